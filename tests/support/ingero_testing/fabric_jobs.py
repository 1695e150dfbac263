"""Simulated training jobs of 64 ranks on a two-level fabric, with one slow thing or none.

Ranks wait for each other as programs do: every operation begins at the last arrival. An operation takes its latency
plus its bytes over the bandwidth of the slowest hop that the messages cross.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import numpy as np
import orjson

from ingero_analyze.diagnose.timeline_files import RecordedTimeline, verdict
from ingero_analyze.diagnose.topology import with_network
from ingero_contract import attributes, metrics
from ingero_detect.timeline import Timeline
from ingero_detect.topology import ports_of

NODES: Final = 8
GPUS: Final = 8
REPLICAS: Final = 4
STAGES: Final = 2
FAULTS: Final = ("nothing", "nic", "pair", "link", "leaf", "spine", "node", "interconnect")


@dataclass
class FabricJob:
    """A job: its topology as the file has it, its rows, and what is slow: kind and name as a diagnosis names it."""

    number: int
    fault: str
    kind: str
    name: str
    topology: dict[str, Any]
    onset: int = 0
    """Step from which it is slow."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    inseparable: frozenset[tuple[str, str]] = frozenset()
    """Everything that would slow down the same groups, the cause included: no method can tell these apart."""


class _Simulation:
    def __init__(self, number: int, seed: int, fault: str, steps: int) -> None:
        self.rng = rng = np.random.default_rng((seed, number))
        self.steps, self.fault = steps, fault
        self.place = rng.permutation(NODES).reshape(REPLICAS, STAGES)
        self.per_pod = int(rng.choice([2, 4]))
        self.factor = float(rng.uniform(1.5, 4))
        self.onset = int(rng.choice([0, 0, steps // 4, steps // 2]))
        self.noise, self.jitter = rng.uniform(0.01, 0.08), rng.uniform(0.005, 0.05)
        self.slow: dict[str, str] = self._choose()
        self.columns: dict[str, list[Any]] = {
            name: [] for name in ("rank", "op", "kind", "start", "duration", "step", "group", "seq", "stage",
                                  "data_parallel")
        }  # fmt: skip
        self.clock = rng.uniform(0, 100, NODES * GPUS)
        self.at = np.zeros(NODES * GPUS)
        self.own: dict[tuple[str, tuple[int, ...]], float] = {}
        self.shares: dict[tuple[int, ...], float] = {}
        self.part = {int(node): (stage, replica) for (replica, stage), node in np.ndenumerate(self.place)}

    def _choose(self) -> dict[str, str]:
        rng = self.rng
        node, rail = int(rng.integers(NODES)), int(rng.integers(GPUS))
        pod = node // self.per_pod
        names = {
            "nothing": ("none", ""),
            "nic": ("nic", f"node-{node}/mlx5_{rail}"),
            "leaf": ("switch", f"leaf-{pod}-{rail}"),
            "spine": ("switch", f"spine-{rail}"),
            "link": ("link", f"leaf-{pod}-{rail} - spine-{rail}"),
            "node": ("node", f"node-{node}"),
            "interconnect": ("interconnect", f"node-{node}"),
        }
        if self.fault == "pair":
            replica = int(rng.integers(REPLICAS))
            ends = sorted(f"node-{item}/mlx5_{rail}" for item in self.place[replica])
            return {"kind": "pair", "name": " - ".join(ends)}
        kind, name = names[self.fault]
        return {"kind": kind, "name": name}

    def share(self, ranks: tuple[int, ...], step: int) -> float:
        """How many times longer bytes take around a ring than on healthy paths: as on its slowest hop."""
        if self.fault in ("nothing", "node") or step < self.onset:
            return 1.0
        if ranks not in self.shares:
            hops = zip(ranks, (*ranks[1:], ranks[0]), strict=True)
            self.shares[ranks] = max(self.hop_share(one, other) for one, other in hops)
        return self.shares[ranks]

    def hop_share(self, one: int, other: int) -> float:
        """How many times longer bytes take from one rank to another than on a healthy path."""
        (a, rail), b = divmod(one, GPUS), other // GPUS
        return self.factor if (self.slow["kind"], self.slow["name"]) in self.crossed(a, b, rail) else 1.0

    def crossed(self, a: int, b: int, rail: int) -> set[tuple[str, str]]:
        """What a message from a GPU of one node to one of another, or of the same, crosses."""
        if a == b:
            return {("interconnect", f"node-{a}")}
        ends = sorted((f"node-{a}/mlx5_{rail}", f"node-{b}/mlx5_{rail}"))
        pods = {a // self.per_pod, b // self.per_pod}
        found = {("pair", " - ".join(ends))} | {("nic", end) for end in ends}
        found |= {("switch", f"leaf-{pod}-{rail}") for pod in pods}
        if len(pods) > 1:
            found |= {("switch", f"spine-{rail}")} | {("link", f"leaf-{pod}-{rail} - spine-{rail}") for pod in pods}
        return found

    def inseparable(self) -> frozenset[tuple[str, str]]:
        """What lies on the ways of the same groups as the slow thing, and of no others."""
        used: dict[tuple[str, str], set[tuple[str, tuple[int, ...]]]] = {}
        for op, ranks in self.own:
            for one, other in zip(ranks, (*ranks[1:], ranks[0]), strict=True):
                for part in self.crossed(one // GPUS, other // GPUS, one % GPUS):
                    used.setdefault(part, set()).add((op, ranks))
        slow = (self.slow["kind"], self.slow["name"])
        return frozenset(part for part, groups in used.items() if groups == used.get(slow))

    def operation(self, op: str, ranks: tuple[int, ...], latency: float, seconds: float, step: int, seq: int) -> None:
        rng = self.rng
        usual = self.own.setdefault((op, ranks), float(np.exp(rng.normal(0, 0.005))))
        took = (latency + seconds * self.share(ranks, step)) * usual * np.exp(rng.normal(0, self.noise))
        if rng.random() < 0.01:
            took *= rng.uniform(1, 4)  # other traffic
        index = list(ranks)
        arrived = self.at[index].copy()
        end = arrived.max() + took
        duration = (end - arrived) * np.exp(rng.normal(0, 0.002, len(index)))
        self.at[index] = end
        group = f"{op}:{'-'.join(map(str, ranks))}"
        for rank, start, spent in zip(ranks, arrived.tolist(), duration.tolist(), strict=True):
            self.row(rank, op, "collective", start, spent, step, group, seq)

    def row(self, rank: int, op: str, kind: str, start: float, spent: float, step: int, group: str, seq: int) -> None:
        stage, replica = self.part[rank // GPUS]
        row = (rank, op, kind, start + self.clock[rank], spent, step, group, seq, stage, replica)
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)

    def compute(self, stage: int, step: int, seconds: float) -> None:
        for replica in range(REPLICAS):
            node = int(self.place[replica, stage])
            slow = self.fault == "node" and self.slow["name"] == f"node-{node}" and step >= self.onset
            for rank in range(node * GPUS, (node + 1) * GPUS):
                spent = seconds * float(np.exp(self.rng.normal(0, self.jitter))) * (1.2 if slow else 1.0)
                self.row(rank, f"compute_{seconds}", "compute", self.at[rank], spent, step, "", step)
                self.at[rank] += spent

    def run(self) -> None:
        for step in range(self.steps):
            for way, stages, seconds in (("forward", (0, 1), 0.02), ("backward", (1, 0), 0.04)):
                for stage in stages:
                    self.compute(stage, step, seconds)
                    for replica in range(REPLICAS):
                        first = int(self.place[replica, stage]) * GPUS
                        self.operation(
                            f"all_reduce_{way}", tuple(range(first, first + GPUS)), 5e-5, 0.002, step, step
                        )
                    if stage == stages[0]:
                        for replica in range(REPLICAS):
                            for rail in range(GPUS):
                                ends = tuple(sorted(int(node) * GPUS + rail for node in self.place[replica]))
                                self.operation(f"send_{way}", ends, 3e-5, 0.001, step, step)
            for stage in range(STAGES):
                for rail in range(GPUS):
                    ring = tuple(sorted(int(node) * GPUS + rail for node in self.place[:, stage]))
                    self.operation("reduce_scatter", ring, 1e-4, 0.01, step, step)

    def topology(self) -> dict[str, Any]:
        nics = [
            {"node": f"node-{node}", "nic": f"mlx5_{rail}", "ranks": [node * GPUS + rail],
             "switch": f"leaf-{node // self.per_pod}-{rail}"}
            for node in range(NODES) for rail in range(GPUS)
        ]  # fmt: skip
        pods = NODES // self.per_pod
        return {
            "nics": nics,
            "switches": {f"leaf-{pod}-{rail}": f"spine-{rail}" for pod in range(pods) for rail in range(GPUS)},
        }


def fabric_job(number: int, seed: int, fault: str, steps: int = 24) -> FabricJob:
    """One job."""
    made = _Simulation(number, seed, fault, steps)
    made.run()
    return FabricJob(
        number, fault, made.slow["kind"], made.slow["name"], made.topology(), made.onset, made.columns,
        made.inseparable(),
    )  # fmt: skip


def fabric_jobs(jobs: int, seed: int) -> Iterator[FabricJob]:
    """Jobs, every kind of fault in turn."""
    for number in range(jobs):
        yield fabric_job(number, seed, FAULTS[number % len(FAULTS)])


def recorded(job: FabricJob) -> RecordedTimeline:
    """The job's rows as the CSV reader has them."""
    columns = {name: np.array(values) for name, values in job.columns.items()}
    collective = columns["kind"] == "collective"
    _, op = np.unique(columns["op"], return_inverse=True)
    _, group = np.unique(columns["group"], return_inverse=True)
    line = Timeline(
        ranks=NODES * GPUS, steps=int(columns["step"].max()) + 1, rank=columns["rank"], step=columns["step"], op=op,
        collective=collective, start=columns["start"], duration=columns["duration"],
        instance=np.where(collective, group * 100_000 + columns["seq"], -1), stage=columns["stage"],
        data_parallel=columns["data_parallel"],
    )  # fmt: skip
    return RecordedTimeline(line, list(range(NODES * GPUS)), list(range(STAGES)), len(op))


def judged(job: FabricJob) -> tuple[str, dict[str, Any]]:
    """The outcome, as of `outcome_of`, and the answer."""
    timed = recorded(job)
    answer = with_network(verdict(timed), timed, ports_of(job.topology))
    network, guilty = answer["network"], int(job.name.removeprefix("node-")) if job.fault == "node" else -1
    if any(rank // GPUS != guilty for rank in answer["ranks"]):
        return "innocent", answer
    if job.fault in ("nothing", "node"):
        right = answer["kind"] == ("node" if job.fault == "node" else "none") and network["kind"] == "none"
        return "right" if right else "missed" if not network["slow_groups"] else "lacking", answer
    return "missed" if network["kind"] == "none" else outcome_of(job, network), answer


def outcome_of(job: FabricJob, network: dict[str, Any]) -> str:
    """What a verdict on the network is worth.

    right: the cause alone. inseparable: exactly those parts that no method can tell apart. unknown: the cause among
    others. lacking: without the cause. innocent: a node or GPU is named.
    """
    named = {(item["kind"], item["name"]) for item in network["elements"]}
    if any(kind in ("node", "gpu") for kind, _ in named):
        return "innocent"
    if named:
        return "right" if named == {(job.kind, job.name)} else "lacking"
    possible = {(item["kind"], item["name"]) for cause in network["possible"] for item in cause}
    if possible == job.inseparable:
        return "inseparable"
    return "unknown" if not possible or (job.kind, job.name) in possible else "lacking"


def inspector_exports(job: FabricJob, step: int, *, sizes: bool = True, first_seq: int = 0) -> list[bytes]:
    """What NCCL Inspector exports about a step's collectives, one body for each node."""
    bodies: dict[int, list[dict[str, Any]]] = {}
    columns = job.columns
    for row in [row for row, number in enumerate(columns["step"]) if number == step]:
        if columns["kind"][row] != "collective":
            continue
        op, members = columns["group"][row].split(":")
        node, gpu = divmod(columns["rank"][row], GPUS)
        texts = {
            "node": f"node-{node}", "gpu": f"GPU{gpu}", "comm_id": f"0x{crc32(members.encode()):016x}",
            "nranks": str(members.count("-") + 1), "collective": op, "coll_sn": str(first_seq + columns["seq"][row]),
            **({"coll_msg_size_bytes": str(crc32(op.encode()))} if sizes else {}),
        }  # fmt: skip
        pairs = [{"key": key, "value": {"stringValue": text}} for key, text in texts.items()]
        seconds = columns["duration"][row]
        time = str(int((columns["start"][row] + seconds) * 1e9))
        bodies.setdefault(node, []).append({"attributes": pairs, "timeUnixNano": time, "asDouble": seconds * 1e6})
    resource = {"attributes": [{"key": attributes.CLUSTER_ID, "value": {"stringValue": "c"}}]}
    return [
        orjson.dumps({"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [
            {"name": metrics.INSPECTOR_EXEC_TIME, "unit": "us", "gauge": {"dataPoints": points}}
        ]}]}]})
        for points in bodies.values()
    ]  # fmt: skip


def gpu_topology(job: FabricJob) -> dict[str, Any]:
    """The job's topology with GPUs of nodes instead of ranks."""
    nics = [
        {"node": nic["node"], "nic": nic["nic"], "switch": nic["switch"], "gpus": [f"GPU{nic['ranks'][0] % GPUS}"]}
        for nic in job.topology["nics"]
    ]
    return {**job.topology, "nics": nics}
