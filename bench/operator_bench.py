"""Measures the operator on a real API server: first reconcile, rest, change, taints, kills, an outage, many nodes.

`make bench-operator` prints the table in a quarter of an hour, ARGS=--quick in a few minutes with smaller sizes,
ARGS="--only kills" a part of it. It needs the programs that docs/operator.md names. A test double of Fleet returns
what each measurement needs. First reconcile, change and taints are measured alone. While the FleetClusters are at
rest, which is counted and not timed, the other parts run on separate control planes.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from ingero_testing.fleets import fleets  # noqa: E402
from operators import Operator, Rig, report  # noqa: E402
from scripts.controlplane import control_plane  # noqa: E402

POOL = "bench.ingero.io/pool"
NAMESPACES = 10
PARTS = ("taints", "many", "outage", "kills", "many_nodes")
LANES = (("outage",), ("kills", "many_nodes"))
"""Parts that are measured concurrently while the FleetClusters are at rest, each lane on a separate control plane."""
SETTLING_SWEEPS = 5
QUICK = {"clusters": 200, "rest": 45, "resync": 20, "kills": 20, "outage": 30, "nodes": 2000}


FLEET_READY = {"status": {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}}
"""Status of a Deployment that the double of Fleet answers for: there are no controllers and no pods."""


@dataclass
class Bench(Rig):
    """What is measured."""

    flags: argparse.Namespace

    def cluster(self, number: int, **spec: Any) -> dict[str, Any]:
        """A FleetCluster."""
        namespace = f"bench-{number % NAMESPACES}"
        body = {"clusterId": f"c{number}", "agents": {"nodeSelector": {POOL: f"p{number}"}}, **spec}
        metadata = {"name": f"fc-{number}", "namespace": namespace}
        return {"apiVersion": "ingero.io/v1alpha1", "kind": "FleetCluster", "metadata": metadata, "spec": body}

    def cluster_requests(self, count: int) -> Iterator[tuple[str, str, Any]]:
        """The FleetClusters to create."""
        for number in range(count):
            body = self.cluster(number)
            namespace = body["metadata"]["namespace"]
            self.fleet.of(namespace, body["metadata"]["name"]).interval = 10.0
            yield "POST", f"/apis/ingero.io/v1alpha1/namespaces/{namespace}/fleetclusters", body

    def fleets_ready(self, count: int) -> Iterator[tuple[str, str, Any]]:
        """The status that says that the Fleet of each FleetCluster serves: it is polled from then on."""
        for number in range(count):
            path = f"/apis/apps/v1/namespaces/bench-{number % NAMESPACES}/deployments/fc-{number}-fleet/status"
            yield "PATCH", path, FLEET_READY

    def serve(self, name: str) -> None:
        """Say that the Fleet of a FleetCluster in `bench-0` serves, as soon as its Deployment is there."""
        deployment = ("deployment", f"{name}-fleet", FLEET_READY, "bench-0", "/status")
        self.wait("the Deployment of Fleet", lambda: self.plane.patch(*deployment), 60)

    def reconciled(self) -> int:
        """Number of FleetClusters whose status describes their present spec."""
        items = self.plane.read("fc")["items"]
        return sum(
            (item.get("status") or {}).get("observedGeneration") == item["metadata"]["generation"] for item in items
        )

    def many(self, meanwhile: Callable[[], None]) -> None:
        """First reconcile, one change, rest; other parts may be measured during the rest."""
        count = self.flags.clusters
        report(f"making {count} FleetClusters")
        self.parallel(self.cluster_requests(count))
        started = time.monotonic()
        with self.operator("--resync", f"{self.flags.resync}s") as operator:
            self.wait("every FleetCluster", lambda: self.reconciled() == count, 600, 2.0,
                      lambda: f"({self.reconciled()} of {count})")  # fmt: skip
            seconds, page = time.monotonic() - started, operator.page()
            requests = sum(value for name, value in page.items() if name.startswith("ingero_operator_api_requests"))
            text = (
                f"{seconds:.0f} s; each {1000 * page['process_cpu_seconds_total'] / count:.0f} ms of processor and "
                f"{requests / count:.0f} requests"
            )
            self.note(f"first reconcile of {count} FleetClusters", text, "< 120 s", seconds < 120)
            self.parallel(self.fleets_ready(count))
            self.wait("the queue", lambda: operator.page()["ingero_operator_queue_length"] == 0, 120, 1.0)
            times = [self.change(number) for number in range(5)]
            self.note("one changed CR to its children", f"{max(times):.2f} s (slowest of 5)", "< 2 s", max(times) < 2)
            self.settle(operator)
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(meanwhile)
                self.rest(operator)
                other.result()

    def change(self, number: int) -> float:
        """Seconds from a change to the child that shows it."""
        namespace, name = f"bench-{number % NAMESPACES}", f"fc-{number}"
        started = time.monotonic()
        self.plane.patch("fc", name, {"spec": {"version": "9.9.9"}}, namespace)

        def shown() -> bool:
            child = self.plane.read("-n", namespace, "deployment", f"{name}-fleet")
            return str(child["spec"]["template"]["spec"]["containers"][0]["image"]).endswith(":9.9.9")

        self.wait("the change", shown, 30)
        return time.monotonic() - started

    def settle(self, operator: Operator) -> None:
        """Wait until a whole comparison with the API server has passed without a write: every Fleet has been polled
        and its answer reported. What still writes after some comparisons is measured as it is."""
        for _ in range(SETTLING_SWEEPS):
            page, writes = operator.page(), operator.writes()
            sweeps = page["ingero_operator_resyncs_total"]
            self.wait("a sweep", partial(self.swept, operator, sweeps), 600, 1.0)
            if operator.writes() == writes:
                return

    @staticmethod
    def swept(operator: Operator, before: float) -> bool:
        """Whether there was a further comparison."""
        return operator.page()["ingero_operator_resyncs_total"] > before

    def rest(self, operator: Operator) -> None:
        """Writes, memory and processor while there are only resyncs and polls."""
        before, writes, started = operator.page(), operator.writes(), time.monotonic()
        self.sleep("FleetClusters at rest", self.flags.rest)
        after, seconds = operator.page(), time.monotonic() - started
        sweeps = after["ingero_operator_resyncs_total"] - before["ingero_operator_resyncs_total"]
        made = operator.writes() - writes
        share = (after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / seconds
        text = f"{made:.0f} in {seconds:.0f} s with {sweeps:.0f} sweeps"
        self.note("at rest: writes", text, "0", made == 0)
        self.note("at rest: resident memory", f"{operator.resident():.0f} MB", "< 250 MB", operator.resident() < 250)
        self.note("at rest: processor", f"{100 * share:.1f} % of a core", "< 5 %", share < 0.05)

    def nodes(self) -> list[str]:
        """Twelve ready GPU nodes."""
        names = [f"node-{number:02}" for number in range(12)]
        for name in names:
            labels = {POOL: "taints", "nvidia.com/gpu.present": "true"}
            self.plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
            ready = {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"nvidia.com/gpu": "8"}}
            self.plane.patch("node", name, {"status": ready}, sub="/status")
        return names

    def marked(self, name: str) -> bool:
        """Whether a node carries the operator's taint."""
        taints = self.plane.read("node", name)["spec"].get("taints", [])
        return any(item["key"] == "ingero.io/straggler" for item in taints)

    def unmarked(self, name: str) -> bool:
        """Whether a node does not carry the operator's taint."""
        return not self.marked(name)

    def checks(self) -> str:
        """What the FleetCluster over the twelve nodes says about each accused node."""
        status = self.plane.read("-n", "bench-0", "fc", "taints").get("status") or {}
        preview = (status.get("taints") or {}).get("preview") or []
        return "; ".join(f"{item['node']}: {item['check']}: {item['message']}" for item in preview)

    def begin(self) -> list[str]:
        """The FleetCluster over the twelve nodes."""
        names = self.nodes()
        says = self.fleet.of("bench-0", "taints")
        says.nodes, says.interval = set(names), 0.2
        body = self.cluster(0, taints={
            "mode": "NoSchedule", "confirmFor": "400ms", "confirmWindows": 2, "recoverFor": "400ms",
            "interval": "1ms", "minNodeAge": "1ms", "quiet": "1ms", "maxPerDay": 8,
            "budget": {"maxNodes": 2, "maxPercent": 50},
        })  # fmt: skip
        body["metadata"]["name"] = "taints"
        body["spec"]["agents"]["nodeSelector"] = {POOL: "taints"}
        self.plane.apply(body)
        return names

    def taints(self) -> None:
        """Verdict to taint, and recovery to removal."""
        names = self.begin()
        says = self.fleet.of("bench-0", "taints")
        with self.operator("--poll", "200ms", "--resync", "5s"):
            self.serve("taints")
            added, removed = [], []
            for name in names[:3]:
                says.stragglers = {name}
                added.append(self.wait("the taint", partial(self.marked, name), 60))
                says.stragglers = set()
                removed.append(self.wait("the release", partial(self.unmarked, name), 60))
            delays = "delays of 0.4 s"
            self.note("verdict to taint", f"{max(added):.1f} s ({delays})", "< 5 s", max(added) < 5)
            self.note("recovery to removal", f"{max(removed):.1f} s ({delays})", "< 5 s", max(removed) < 5)

    def outage(self) -> None:
        """The API server stops while one node is tainted and another begins to straggle."""
        names = self.begin()
        says = self.fleet.of("bench-0", "taints")
        with self.operator("--poll", "200ms", "--resync", "5s") as operator:
            self.serve("taints")
            says.stragglers = {names[5]}
            self.wait("the taint", lambda: self.marked(names[5]), 60)
            self.plane.stop_server()
            says.stragglers = {names[6]}
            self.sleep("API server away", self.flags.outage)
            self.plane.start_server()
            back = self.wait(
                "the operator to go on", lambda: self.marked(names[6]) and not self.marked(names[5]), 120,
                far=self.checks,
            )  # fmt: skip
            alive = operator.process.poll() is None
            text = f"went on by itself after {back:.1f} s" if alive else "ended"
            self.note(f"API server away for {self.flags.outage} s", text, "goes on by itself", alive)
            says.stragglers = set()
            self.wait("the release", lambda: not self.marked(names[6]), 60)

    def many_nodes(self) -> None:
        """One FleetCluster over very many nodes that all send heartbeats, with some of them accused."""
        count = self.flags.nodes
        report(f"making {count} nodes")
        names = [f"many-{number:05}" for number in range(count)]
        self.parallel(self.node_requests(names))
        says = self.fleet.of("bench-0", "nodes")
        says.nodes, says.interval = set(names), 2.0
        body = self.cluster(0, taints={
            "mode": "NoSchedule", "confirmFor": "400ms", "confirmWindows": 2, "interval": "1ms", "minNodeAge": "1ms",
            "budget": {"maxNodes": 5, "maxPercent": 50},
        })  # fmt: skip
        body["metadata"]["name"] = "nodes"
        body["spec"]["agents"]["nodeSelector"] = {POOL: "many"}
        self.plane.apply(body)
        with self.operator("--poll", "2s") as operator:
            self.serve("nodes")
            self.wait("every node", lambda: operator.page()["ingero_operator_nodes"] >= count, 300, 0.5,
                      lambda: f"({operator.page()['ingero_operator_nodes']:.0f} of {count})")  # fmt: skip
            says.stragglers = set(names[:5])
            taken = self.wait("the taints", lambda: all(self.marked(name) for name in names[:5]), 120, 0.5)
            self.note(f"{count} nodes: five taints", f"{taken:.1f} s (delays of 0.4 s)", "< 30 s", taken < 30)
            idle = self.processor_share(operator, lambda: time.sleep(10))[0]
            before = operator.page()
            share, seconds = self.processor_share(operator, lambda: self.beat(names))
            events = (
                operator.page()["ingero_operator_watch_events_total"] - before["ingero_operator_watch_events_total"]
            )
            spent = (share - idle) * seconds
            text = (
                f"{1000 * spent / count:.2f} ms a heartbeat ({events:.0f} in {seconds:.0f} s), besides "
                f"{100 * idle:.0f} % of a core for five tainted nodes and five polls a second"
            )
            # Kubelets of idle nodes write their status every five minutes.
            self.note(f"{count} nodes: processor", text, "< 5 % of a core", spent / 300 < 0.05)
            resident = operator.resident()
            self.note(f"{count} nodes: resident memory", f"{resident:.0f} MB", "< 400 MB", resident < 400)
        self.plane.delete("fc", "nodes", "bench-0")

    @staticmethod
    def processor_share(operator: Operator, meanwhile: Callable[[], None]) -> tuple[float, float]:
        """The share of a core that the operator takes while something happens, and how long that lasted, seconds."""
        before, started = operator.page(), time.monotonic()
        meanwhile()
        after, seconds = operator.page(), time.monotonic() - started
        return (after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / seconds, seconds

    def beat(self, names: list[str]) -> None:
        """One heartbeat of every node, and some time to process them."""
        self.parallel(self.heartbeats(names))
        time.sleep(10)

    @staticmethod
    def node_requests(names: list[str]) -> Iterator[tuple[str, str, Any]]:
        """Nodes as kubelets register them, with images and conditions."""
        for name in names:
            labels = {POOL: "many", "nvidia.com/gpu.present": "true", "kubernetes.io/hostname": name}
            labels |= {f"nvidia.com/gpu.label-{number}": "value" for number in range(20)}
            body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
                    "spec": {"providerID": f"bench://{name}"},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}],
                               "capacity": {"nvidia.com/gpu": "8"},
                               "images": [{"names": [f"registry.example.com/image-{item}:1"], "sizeBytes": 1 << 30}
                                          for item in range(20)]}}  # fmt: skip
            yield "POST", "/api/v1/nodes", body

    @staticmethod
    def heartbeats(names: list[str]) -> Iterator[tuple[str, str, Any]]:
        """What a kubelet writes when nothing has happened."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for name in names:
            condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": now}
            yield "PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}}

    def kills(self) -> None:
        """Kill the operator at random moments of tainting and releasing; expect no stray taint, no repeated Event."""
        names = self.begin()
        says = self.fleet.of("bench-0", "taints")
        dice = random.Random(1)
        before = self.event_counts()
        with self.forks() as fork:
            says.stragglers = {names[0]}
            child = fork("--poll", "200ms", "--resync", "60s")
            self.serve("taints")
            os.kill(child, signal.SIGKILL)
            child, started = fork("--poll", "200ms", "--resync", "60s"), time.monotonic()
            self.wait("the first taint", lambda: self.marked(names[0]), 60)
            window = 2 * (time.monotonic() - started)
            os.kill(child, signal.SIGKILL)
            report(f"killing within {window:.1f} s of each start, twice as long as a mark takes")
            for number in range(self.flags.kills):
                says.stragglers = {dice.choice(names)} if number % 2 else set()
                child = fork("--poll", "200ms", "--resync", "60s")
                time.sleep(dice.uniform(0.0, window))
                os.kill(child, signal.SIGKILL)
                if number % 20 == 19:
                    report(f"killed {number + 1} of {self.flags.kills} times")
        says.stragglers = set()
        with self.operator("--poll", "200ms", "--resync", "5s"):
            self.wait("every node to be free", lambda: not any(self.marked(name) for name in names), 120, 0.2)
            time.sleep(1)
        event_counts = self.event_counts()
        doubled = {key: count for key, count in event_counts.items() if count > 1}
        tainted = sum(key[0] == "Tainted" for key in event_counts) - sum(key[0] == "Tainted" for key in before)
        released = sum(key[0] == "Released" for key in event_counts) - sum(key[0] == "Released" for key in before)
        overridden = sum(key[0] == "TaintOverridden" for key in event_counts)
        good = not doubled and tainted == released and not overridden
        text = f"{tainted} marked, {released} released, {len(doubled)} Events twice, {overridden} taken for a person"
        self.note(f"kill -9 at {self.flags.kills} random points", text, "no stray taint, no double Event", good)

    def event_counts(self) -> dict[tuple[str, str, str], int]:
        """Counts of the Events on the FleetCluster, by reason, name and message."""
        items = self.plane.read("-n", "bench-0", "events")["items"]
        return {
            (item["reason"], item["metadata"]["name"], item["message"]): item["count"]
            for item in items
            if item["involvedObject"]["name"] == "taints"
            and item["reason"] in ("Tainted", "Released", "TaintOverridden")
        }


def main() -> None:
    """Parse the flags and measure."""
    parser = argparse.ArgumentParser(prog="make bench-operator ARGS=...", description=__doc__)
    parser.add_argument("--clusters", type=int, default=1000, help="FleetClusters (default 1000)")
    parser.add_argument("--rest", type=int, default=600, help="seconds of rest (default 600)")
    parser.add_argument("--resync", type=int, default=120, help="seconds between sweeps at rest (default 120)")
    parser.add_argument("--kills", type=int, default=200, help="kill points (default 200)")
    parser.add_argument("--outage", type=int, default=300, help="seconds without API server (default 300)")
    parser.add_argument("--nodes", type=int, default=10_000, help="nodes of one FleetCluster (default 10000)")
    parser.add_argument("--quick", action="store_true", help="smaller sizes: three minutes in all")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure only this")
    flags = parser.parse_args()
    if flags.quick:
        for name, value in QUICK.items():
            if getattr(flags, name) == parser.get_default(name):
                setattr(flags, name, value)
    wanted = flags.only or PARTS
    print("| what | ours | target | |\n| --- | --- | --- | --- |", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="ingero-bench-"))  # stays with its logs when something fails
    try:
        each(folder / "taints", flags, [name for name in ("taints",) if name in wanted])
        if "many" in wanted:
            with bench(folder / "many", flags) as found:
                found.many(lambda: run_lanes(folder, flags, wanted))
        else:
            run_lanes(folder, flags, wanted)
    except FileNotFoundError as error:
        raise SystemExit(f"bench: {error}") from None
    shutil.rmtree(folder)


@contextlib.contextmanager
def bench(folder: Path, flags: argparse.Namespace) -> Iterator[Bench]:
    """A control plane with the CRDs and some namespaces, and a double of every Fleet."""
    from ingero_operator.render.crds import all_definitions

    folder.mkdir()
    with control_plane(folder / "plane", full=False) as plane, fleets() as fleet:
        plane.apply(*all_definitions())
        plane.established()
        for number in range(NAMESPACES):
            plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"bench-{number}"}})
        yield Bench(plane, fleet, folder, flags)


def run_lanes(folder: Path, flags: argparse.Namespace, wanted: Sequence[str]) -> None:
    """Run every lane concurrently."""
    with ThreadPoolExecutor(len(LANES)) as pool:
        running = [
            pool.submit(each, folder / lane[0], flags, [name for name in lane if name in wanted]) for lane in LANES
        ]
    for lane in running:
        lane.result()


def each(folder: Path, flags: argparse.Namespace, names: Sequence[str]) -> None:
    """Run some parts, one after the other, on a separate control plane."""
    if not names:
        return
    with bench(folder, flags) as found:
        for name in names:
            report(f"part: {name}")
            getattr(found, name)()


if __name__ == "__main__":
    main()
