"""Simulated training jobs of 64 ranks on a two-level fabric, with one slow thing or none.

Ranks wait for each other as programs do: every operation begins at the last arrival. An operation takes its latency
plus its bytes over the bandwidth of the slowest hop that the messages cross.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import orjson

from ingero_analyze.diagnose.timeline_files import RecordedTimeline, verdict
from ingero_analyze.diagnose.topology import with_network
from ingero_contract import attributes, metrics
from ingero_detect.network.topology import ports_of
from ingero_detect.ranks.timeline import Timeline

NODES: Final = 8
GPUS: Final = 8
REPLICAS: Final = 4
STAGES: Final = 2
WAYS: Final = {"forward": (0, 1), "backward": (1, 0)}
"""The stages in the order in which each half of a step visits them."""
FAULTS: Final = ("nothing", "nic", "pair", "link", "leaf", "spine", "node", "interconnect")


Table = npt.NDArray[Any]

COLUMNS: Final = ("rank", "op", "kind", "start", "duration", "step", "group", "seq", "stage", "data_parallel")


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
    columns: dict[str, Table] = field(default_factory=dict)
    inseparable: frozenset[tuple[str, str]] = frozenset()
    """Everything that would slow down the same groups, the cause included: no method can tell these apart."""


class _Groups:
    """Groups of one operation that run at the same time, a row of ranks for each."""

    def __init__(self, made: "_Simulation", op: str, ranks: Table) -> None:
        self.op, self.ranks = op, ranks
        self.usual = np.exp(made.rng.normal(0, 0.005, len(ranks)))
        self.shares = np.array([made.ring_share(ring) for ring in ranks.tolist()])
        self.names = np.array([f"{op}:{'-'.join(map(str, ring))}" for ring in ranks.tolist()])


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
        self.parts: list[tuple[Any, ...]] = []
        self.clock = rng.uniform(0, 100, NODES * GPUS)
        self.at = np.zeros(NODES * GPUS)
        self.stage, self.replica = np.zeros((2, NODES * GPUS), np.int64)
        for (replica, stage), node in np.ndenumerate(self.place):
            self.stage[node * GPUS : (node + 1) * GPUS] = stage
            self.replica[node * GPUS : (node + 1) * GPUS] = replica
        self.groups = self._groups()

    def _groups(self) -> dict[tuple[str, int], _Groups]:
        rails = np.arange(GPUS)
        found = {}
        for way, stages in WAYS.items():
            for stage in stages:
                tensor = np.sort(self.place[:, stage])[:, None] * GPUS + rails
                found[f"all_reduce_{way}", stage] = _Groups(self, f"all_reduce_{way}", tensor)
            pairs = np.concatenate([np.sort(nodes) * GPUS + rails[:, None] for nodes in self.place])
            found[f"send_{way}", stages[0]] = _Groups(self, f"send_{way}", pairs)
        rings = np.concatenate([np.sort(nodes) * GPUS + rails[:, None] for nodes in self.place.T])
        found["reduce_scatter", 0] = _Groups(self, "reduce_scatter", rings)
        return found

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

    def ring_share(self, ring: list[int]) -> float:
        """How many times longer bytes take around a ring than on healthy paths: as on its slowest hop."""
        return max(self.hop_share(one, other) for one, other in zip(ring, (*ring[1:], ring[0]), strict=True))

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
        used: dict[tuple[str, str], set[str]] = {}
        for groups in self.groups.values():
            for name, ring in zip(groups.names.tolist(), groups.ranks.tolist(), strict=True):
                for one, other in zip(ring, (*ring[1:], ring[0]), strict=True):
                    for part in self.crossed(one // GPUS, other // GPUS, one % GPUS):
                        used.setdefault(part, set()).add(name)
        slow = (self.slow["kind"], self.slow["name"])
        return frozenset(part for part, groups in used.items() if groups == used.get(slow))

    def operation(self, groups: _Groups, latency: float, seconds: float, step: int) -> None:
        rng, count = self.rng, len(groups.ranks)
        shares = groups.shares if step >= self.onset else 1.0
        took = (latency + seconds * shares) * groups.usual * np.exp(rng.normal(0, self.noise, count))
        took *= np.where(rng.random(count) < 0.01, rng.uniform(1, 4, count), 1.0)  # other traffic
        arrived = self.at[groups.ranks]
        end = (arrived.max(axis=1) + took)[:, None]
        duration = (end - arrived) * np.exp(rng.normal(0, 0.002, arrived.shape))
        self.at[groups.ranks] = end
        names = np.repeat(groups.names, groups.ranks.shape[1])
        self.rows(groups.ranks.ravel(), groups.op, "collective", arrived.ravel(), duration.ravel(), step, names)

    def rows(
        self, ranks: Table, op: str, kind: str, start: Table, spent: Table, step: int, group: Table | None = None
    ) -> None:
        count = len(ranks)
        group = np.full(count, "") if group is None else group
        steps = np.full(count, step)
        self.parts.append((
            ranks, np.full(count, op), np.full(count, kind), start + self.clock[ranks], spent, steps, group, steps,
            self.stage[ranks], self.replica[ranks],
        ))  # fmt: skip

    def compute(self, stage: int, step: int, seconds: float) -> None:
        ranks = np.flatnonzero(self.stage == stage)
        spent = seconds * np.exp(self.rng.normal(0, self.jitter, len(ranks)))
        if self.fault == "node" and step >= self.onset:
            spent *= np.where(ranks // GPUS == int(self.slow["name"].removeprefix("node-")), 1.2, 1.0)
        self.rows(ranks, f"compute_{seconds}", "compute", self.at[ranks], spent, step)
        self.at[ranks] += spent

    def run(self) -> dict[str, Table]:
        for step in range(self.steps):
            for (way, stages), seconds in zip(WAYS.items(), (0.02, 0.04), strict=True):
                for stage in stages:
                    self.compute(stage, step, seconds)
                    self.operation(self.groups[f"all_reduce_{way}", stage], 5e-5, 0.002, step)
                    if stage == stages[0]:
                        self.operation(self.groups[f"send_{way}", stage], 3e-5, 0.001, step)
            self.operation(self.groups["reduce_scatter", 0], 1e-4, 0.01, step)
        return dict(zip(COLUMNS, map(np.concatenate, zip(*self.parts, strict=True)), strict=True))

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
    return FabricJob(
        number, fault, made.slow["kind"], made.slow["name"], made.topology(), made.onset, made.run(),
        made.inseparable(),
    )  # fmt: skip


def fabric_jobs(jobs: int, seed: int) -> Iterator[FabricJob]:
    """Jobs, every kind of fault in turn."""
    for number in range(jobs):
        yield fabric_job(number, seed, FAULTS[number % len(FAULTS)])


def recorded(job: FabricJob) -> RecordedTimeline:
    """The job's rows as the CSV reader has them."""
    columns = job.columns
    collective = columns["kind"] == "collective"
    ops, op = np.unique(columns["op"], return_inverse=True)
    groups, group = np.unique(columns["group"], return_inverse=True)
    line = Timeline(
        ranks=NODES * GPUS, steps=int(columns["step"].max()) + 1, rank=columns["rank"], step=columns["step"], op=op,
        collective=collective, start=columns["start"], duration=columns["duration"],
        instance=np.where(collective, group * 100_000 + columns["seq"], -1), stage=columns["stage"],
        data_parallel=columns["data_parallel"],
    )  # fmt: skip
    ranks: list[int | str] = list(range(NODES * GPUS))
    return RecordedTimeline(line, ranks, list(range(STAGES)), len(op), ops.tolist(), groups.tolist())


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
    others. lacking: without the cause, or no network is slow. innocent: a node or GPU is named.
    """
    named = {(item["kind"], item["name"]) for item in network["elements"]}
    if any(kind in ("node", "gpu") for kind, _ in named):
        return "innocent"
    if not job.inseparable:
        return "lacking"
    if named:
        return "right" if named == {(job.kind, job.name)} else "lacking"
    possible = {(item["kind"], item["name"]) for cause in network["possible"] for item in cause}
    if possible == job.inseparable:
        return "inseparable"
    return "unknown" if not possible or (job.kind, job.name) in possible else "lacking"


def inspector_exports(job: FabricJob, step: int, *, sizes: bool = True, first_seq: int = 0) -> list[bytes]:
    """What NCCL Inspector exports about a step's collectives, one body for each node."""
    bodies: dict[int, list[dict[str, Any]]] = {}
    wanted = (job.columns["step"] == step) & (job.columns["kind"] == "collective")
    columns = {name: values[wanted].tolist() for name, values in job.columns.items()}
    for row in range(int(wanted.sum())):
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
