"""Measures three real Fleets on one log: equal results through kills, what the log costs, and how soon ticks resume.

`make bench-ha` prints the table; `make bench-ha ARGS=--quick` takes minutes, `ARGS="--only kills"` runs one part.
Every part ends by itself; the exit status is 1 if a figure that must be zero is not.
"""

import argparse
import asyncio
import json
import logging
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import nats
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support"), str(ROOT / "bench")]

from ha_cost import cost, large  # noqa: E402
from ha_table import missed, must_be_zero, row  # noqa: E402
from ingero_contract import echo as contract  # noqa: E402
from ingero_contract import routes  # noqa: E402
from ingero_fleet.replication.log_bodies import Marker  # noqa: E402
from ingero_fleet.replication.parts import unpack  # noqa: E402
from ingero_kit.health_report import HealthReport  # noqa: E402
from ingero_kit.otlp_encode import encode_report  # noqa: E402
from ingero_testing.processes import BIN, Running, echo, fleet  # noqa: E402
from scripts.demo_ha import CLUSTER, FLEETS, TICKS_BETWEEN, WARMUP, HighAvailability  # noqa: E402
from scripts.lab import Lab, LabFailed, laboratory  # noqa: E402
from scripts.nats_servers import NatsServers, nats_servers  # noqa: E402
from tests.fleet.test_replicated_state import Replicas  # noqa: E402

PROTOBUF = {"content-type": "application/x-protobuf"}
PART = 500
"""Nodes in one push."""
VARIANTS = 5
ATTEMPTS = 6
"""Tries of a push on one Fleet after the other, before it has failed."""
LASTING = 3
"""Nodes that are slow all the time."""
EPISODE = 4
"""Nodes that become slow, and well again, together."""
PARTS = ["kills", "latency", "large", "cost", "model"]
STEPS = 100_000
"""Steps of the model of the log."""


class Load:
    """All nodes push once an interval, to one Fleet after the other, in a thread."""

    def __init__(self, nodes: list[str], interval: float) -> None:
        self.ports: list[int] = []
        self.slow: frozenset[str] = frozenset()
        self.pushes = self.failed = self.rounds = 0
        self.interval = interval
        self._nodes = nodes
        noise = random.Random(1)
        self._well = [[self._encoded(node, noise.uniform(0.99, 1.01)) for node in nodes] for _ in range(VARIANTS)]
        self._over = threading.Event()

    @staticmethod
    def _encoded(node: str, speed: float) -> bytes:
        rates = {"score": min(1.0, 0.95 * speed), "throughput": min(1.0, 0.95 * speed), "rate": 100 * speed}
        return encode_report(
            HealthReport(
                node_id=node, cluster_id=CLUSTER, compute=0.9, memory=0.4, cpu=0.8, workload_type="training",
                detection_mode="fleet", **rates,  # type: ignore[arg-type]
            )
        ).SerializeToString()  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[None]:
        """Push while the block runs."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(60)

    def _run(self) -> None:
        parts = range(0, len(self._nodes), PART)
        with httpx.Client(timeout=5, trust_env=False) as client:
            due = time.monotonic()
            for self.rounds in count():
                well, slow = self._well[self.rounds % VARIANTS], self.slow
                for number, first in enumerate(parts):
                    due += self.interval / len(parts)
                    if self._over.wait(max(0.0, due - time.monotonic())):
                        return
                    names = self._nodes[first : first + PART]
                    body = b"".join(
                        self._encoded(name, 0.5) if name in slow else known
                        for name, known in zip(names, well[first : first + PART], strict=True)
                    )
                    self._push(client, body, number + self.rounds)
                due = max(due, time.monotonic())

    def _push(self, client: httpx.Client, body: bytes, turn: int) -> None:
        self.pushes += 1
        for attempt in range(ATTEMPTS):
            port = self.ports[(turn + attempt) % len(self.ports)]
            try:
                if client.post(
                    f"http://127.0.0.1:{port}{routes.OTLP_METRICS}", content=body, headers=PROTOBUF
                ).is_success:
                    return
            except httpx.TransportError:
                continue
        self.failed += 1


class Kills(HighAvailability):
    """Random kills of Fleets and of the log's leader, while nodes become slow and well again."""

    def __init__(self, lab: Lab, servers: NatsServers, nodes: int, interval: float, more: dict[str, str]) -> None:
        super().__init__(lab, servers, nodes, interval, print)
        self.more = more
        self.load = Load(self.nodes, interval)
        self.random = random.Random(1)
        self.order = self.random.sample(self.nodes, nodes)
        self.lasting = frozenset(self.order[:LASTING])
        self.episode_of: frozenset[str] = frozenset()
        self.done: list[frozenset[str]] = []
        self.hashes_of: dict[str, dict[str, str]] = {}
        """State hashes by tick and replica."""
        self.reloads: dict[str, int] = {}
        """How often each replica loaded the state of others because its own differed."""
        self.times: set[str] = set()
        self.unnamed = 0
        self.has_named: dict[int, set[str]] = {number: set() for number in range(FLEETS)}
        self.resumed: dict[str, list[float]] = {"Fleet": [], "NATS leader": []}

    def begin(self) -> None:
        """Start all Fleets and the load, and wait until every node is known."""
        for number in range(FLEETS):
            self.start_fleet(number)
        self.load.ports = [ports["otlp/http"] for ports in self.ports]

    def known(self) -> bool:
        """Whether every Fleet has judged the last node as healthy."""
        self.poll()
        path = f"{routes.FLEET_VERDICTS}?limit=1&offset={len(self.nodes) - 1}"
        for number in self.running():
            found = self.get(number, "threshold", path)
            nodes = found.json()["nodes"] if found else []
            if not nodes or (nodes[0]["verdict"] or {}).get("state") != "healthy":
                return False
        return True

    def step(self) -> bool:
        """Note hashes and names of every Fleet; begin or end an episode when all Fleets agree on the last one."""
        wanted = self.lasting | self.episode_of
        agreed = True
        for number in self.running():
            tick, named = self.stragglers(number)
            if tick:
                self.times.add(tick)
                self.unnamed += len(self.has_named[number] & self.lasting - named)
                self.has_named[number] = named & self.lasting
            agreed = agreed and named == wanted
            self.note_hash(number)
        if agreed and self.episode_of:
            self.done.append(self.episode_of)
            self.episode_of = frozenset()
        elif agreed:
            first = LASTING + EPISODE * len(self.done)
            self.episode_of = frozenset(self.order[first : first + EPISODE])
        self.load.slow = self.lasting | self.episode_of
        return agreed

    def note_hash(self, number: int) -> None:
        """Note a Fleet's latest state hash, and how often it had to load the state of others."""
        facts = self.facts(number)
        if facts.get("state_hash"):
            self.hashes_of.setdefault(facts["state_hash_tick"], {})[facts["replica"]] = facts["state_hash"]
            found = re.search(r"states_differed\W+(\d+)", facts.get("replication", ""))
            self.reloads[facts["replica"]] = int(found[1]) if found else 0

    def several(self, ticks: int) -> None:
        """Go on until every Fleet that runs has computed so many further ticks."""
        seen: dict[int, set[str]] = {number: set() for number in self.running()}

        def enough() -> bool:
            self.step()
            for number in seen:
                seen[number].add(self._ticked[number][0])
            return all(len(found - {""}) > ticks for found in seen.values())

        self.lab.wait(f"{ticks} ticks of every Fleet", enough, 120 + 20 * ticks * self.interval)

    def kill_one(self) -> None:
        """Kill a Fleet or the leader, see ticks go on, start it again."""
        self._silence, killed = 0.0, time.time()
        if self.random.random() < 0.5:
            number = self.random.randrange(FLEETS)
            process = self.lab.processes.pop(f"fleet-{number}")
            process.kill()
            process.wait(30)
            self.several(self.random.randint(2, TICKS_BETWEEN))
            self.resumed["Fleet"].append(lateness(self.markers(), killed, self.load.interval))
            self.has_named[number] = set()
            self.start_fleet(number)
        else:
            number = self.leader()
            self.servers.kill(max(0, number))
            self.several(self.random.randint(2, TICKS_BETWEEN))
            self.resumed["NATS leader"].append(self._silence)
            self.servers.start(max(0, number))

    def markers(self) -> list[tuple[float, str]]:
        """Time and kind of every marker that is in the log."""

        async def read() -> list[tuple[float, str]]:
            client = await nats.connect(self.servers.urls)
            found: list[tuple[float, str]] = []
            try:
                markers = await client.jetstream(timeout=5).subscribe("ingero.marker", ordered_consumer=True)
                while True:
                    message = await markers.next_msg(timeout=5)
                    kind = Marker.decode(unpack(message.headers or {}, message.data)).kind
                    found.append((message.metadata.timestamp.timestamp(), kind))
                    if not message.metadata.num_pending:
                        return found
            finally:
                await client.close()

        return asyncio.run(read())

    def finish(self) -> None:
        """End the last episode, and wait until all Fleets have hashed one tick."""
        if self.episode_of:
            self.lab.wait("the last episode to be named", lambda: self.step() and not self.episode_of, 120)
        self.episode_of = frozenset()
        self.load.slow = self.lasting
        self.lab.wait("the last nodes to be cleared", lambda: self.all_name(set(self.lasting)), 180)
        self.lab.wait("all Fleets to hash the state of one tick", self.hashed, 60 + 30 * self.interval)
        for number in self.running():
            self.note_hash(number)
        self.ticks(2)


def lateness(markers: list[tuple[float, str]], killed: float, interval: float) -> float:
    """Seconds by which the first tick after a kill came later than an interval after the last judgement before it.

    An early judgement postpones the tick after it, whether something was killed or not.
    """
    judged = [(at, kind) for at, kind in markers if kind in ("tick", "early_poll")]
    place = next(place for place, (at, kind) in enumerate(judged) if kind == "tick" and at > killed)
    return max(0.0, judged[place][0] - judged[place - 1][0] - interval) if place else 0.0


EDGES = """
SELECT node_id, json_extract_string(evidence, '$.edge') AS edge, count(*) AS n FROM verdicts
WHERE json_extract_string(evidence, '$.edge') IN ('accused', 'cleared') GROUP BY ALL LIMIT 100000
"""


def edges(store: Running) -> dict[tuple[str, str], int]:
    """How often Echo has each edge of each node."""
    url = store.url("api", contract.TOOLS + contract.TOOL_PREFIX + "run_analysis")
    answer = httpx.post(url, json={"sql": EDGES}, timeout=60)
    answer.raise_for_status()
    return {(node, edge): int(number) for node, edge, number in answer.json()["rows"]}


def exporting(store: Running) -> dict[str, str]:
    """Settings of a Fleet that sends its findings to Echo."""
    return {
        "exporters.otlphttp": f"{{endpoint: '{store.url('otlp/http')}', tls: {{insecure: true}}}}",
        "service.pipelines.logs.exporters": "[otlphttp]",
    }


def kills(nodes: int, ticks: int, wanted: int, interval: float) -> None:
    """Equal results and episodes through kills."""
    with ExitStack() as stack:
        lab = stack.enter_context(laboratory("bench-ha"))
        servers = stack.enter_context(nats_servers(lab.folder / "nats", count=3))
        store = stack.enter_context(echo(lab.folder / "echo"))
        run = Kills(lab, servers, nodes, interval, exporting(store))
        run.begin()
        stack.enter_context(run.load.running())
        lab.wait("every Fleet to know every node", run.known, 180 + 10 * WARMUP * interval)
        run.times.clear()
        for number in range(wanted):
            while len(run.times) < ticks * (number + 1) // (wanted + 1):
                run.several(1)
            run.kill_one()
        while len(run.times) < ticks:
            run.several(1)
        run.finish()
        expected = {(node, "accused"): 1 for node in run.lasting}
        expected |= {(node, edge): 1 for nodes_of in run.done for node in nodes_of for edge in ("accused", "cleared")}
        deadline = time.monotonic() + 30
        while (found := edges(store)) != expected and time.monotonic() < deadline:
            time.sleep(0.5)
    what = f"{nodes:,} nodes, {len(run.times):,} ticks of {interval:g} s, "
    what += f"{len(run.resumed['Fleet'])} kills of a Fleet and {len(run.resumed['NATS leader'])} of the NATS leader: "
    compared = [found for found in run.hashes_of.values() if len(found) > 1]
    all_three = sum(len(found) >= FLEETS for found in compared)
    row(f"{what}ticks whose state was hashed by two Fleets at least; by all three", f"{len(compared)}; {all_three}",
        "> 0", all_three > 0, zero=True)  # fmt: skip
    must_be_zero("of these, ticks with different hashes (each covers the digests of all ticks before)",
                 sum(len(set(found.values())) > 1 for found in compared))  # fmt: skip
    must_be_zero("times that a Fleet had to load the state of others because its own differed",
                 sum(run.reloads.values()))  # fmt: skip
    must_be_zero(f"edges lost at Echo, of {len(expected)}", sum(key not in found for key in expected))
    must_be_zero("edges doubled at Echo", sum(number > 1 for number in found.values()))
    must_be_zero(
        "nodes accused that were not slow", len({node for node, _ in found} - {node for node, _ in expected})
    )
    cleared = sum(found.get((node, "cleared"), 0) for node in run.lasting)
    must_be_zero("false clears, at Echo and in answers of Fleets", cleared + run.unnamed)
    must_be_zero(f"failed pushes, of {run.load.pushes:,} of up to {PART} nodes each", run.load.failed)
    if late := run.resumed["Fleet"]:
        late = [one / interval for one in late]
        row("next tick after a Fleet's kill, intervals late, median and worst",
            f"{statistics.median(late):.2f}, {max(late):.2f}", "≤ 0.5", max(late) <= 0.5)  # fmt: skip
    if silence := run.resumed["NATS leader"]:
        row("time without a tick after the NATS leader's kill, median and worst",
            f"{statistics.median(silence):.1f}, {max(silence):.1f} s", "≤ 10 s", max(silence) <= 10)  # fmt: skip


def latency(rounds: int, seconds: float) -> None:
    """The p99 of pushes to a Fleet with the log and to one without, in turn."""
    found: dict[str, list[float]] = {"with": [], "without": []}
    with ExitStack() as stack:
        lab = stack.enter_context(laboratory("bench-ha"))
        servers = stack.enter_context(nats_servers(lab.folder / "nats", count=3))
        base = {"processors": {"ingero": {"push_interval": "5s"}}}
        services = {
            "with": stack.enter_context(
                fleet(lab.folder / "a", {**base, "log": {"nats": {"servers": servers.urls}}})
            ),
            "without": stack.enter_context(fleet(lab.folder / "b", base)),
        }
        for _ in range(rounds):
            for name, service in services.items():
                command = [
                    str(BIN / "ingero-fleet"), "bench", "--json", "--rate", "500", "--connections", "8",
                    "--seconds", str(seconds), "--endpoint", f"127.0.0.1:{service.ports['otlp/http']}",
                ]  # fmt: skip
                done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
                facts = json.loads(done.stdout)
                if facts["errors"]:
                    raise SystemExit(f"bench-ha: errors under load: {facts['errors']}")
                found[name].append(facts["p99_ms"])
    ours, without = (statistics.median(found[name]) for name in ("with", "without"))
    ratio = statistics.median(one / other for one, other in zip(*found.values(), strict=True))
    row(f"push p99 with the log; without; ratio, medians of {rounds}",
        f"{ours:.2f} ms; {without:.2f} ms; {ratio:.2f}", "≤ 1.1", ratio <= 1.1)  # fmt: skip


class CountedReplicas(Replicas):
    """The model of the log, with its steps counted."""

    steps = 0

    @invariant()
    def count_a_step(self) -> None:
        """Called after every step."""
        CountedReplicas.steps += 1


def model(wanted: int) -> None:
    """Random steps of the model of two replicas on one log; fails on the first that leads to two states."""
    chosen = settings(
        max_examples=10, stateful_step_count=50, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    differ = 0
    while CountedReplicas.steps < wanted and not differ:
        try:
            run_state_machine_as_test(CountedReplicas, settings=chosen)
        except AssertionError as error:
            differ = 1
            print(f"bench-ha: {error}", file=sys.stderr)
    must_be_zero(f"{CountedReplicas.steps:,} random steps of two replicas: runs with two states", differ)


def main() -> int:
    """Run the parts and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-ha ARGS=...", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part")
    parser.add_argument("--nodes", type=int, help="nodes of the part with kills (default 5000)")
    parser.add_argument("--ticks", type=int, help="ticks of it (default 1000)")
    parser.add_argument("--kills", type=int, help="kills in it (default 50)")
    parser.add_argument("--interval", type=float, default=1.0, help="push interval of it, seconds (default 1)")
    parser.add_argument("--large", type=int, help="nodes of the part with three Fleets (default 100000)")
    parser.add_argument("--steps", type=int, help=f"steps of the model (default {STEPS})")
    flags = parser.parse_args()
    parts, quick = flags.only or PARTS, flags.quick
    print("| figure | result | bar | reached |\n| --- | --- | --- | --- |", flush=True)
    try:
        if "kills" in parts:
            kills(flags.nodes or (500 if quick else 5000), flags.ticks or (40 if quick else 1000),
                  flags.kills or (3 if quick else 50), flags.interval)  # fmt: skip
        if "latency" in parts:
            latency(2 if quick else 9, 3.0 if quick else 10.0)
        if "large" in parts:
            large(partial(Kills, more={}), flags.large or (10_000 if quick else 100_000), 15 if quick else 120)
        if "cost" in parts:
            for nodes in (10_000,) if quick else (10_000, 100_000, 1_000_000):
                cost(nodes)
        if "model" in parts:
            model(flags.steps or (1_000 if quick else STEPS))
    except LabFailed as error:
        print(f"bench-ha: {error}", file=sys.stderr)
        return 1
    for what in missed:
        print(f"bench-ha: not zero: {what}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
