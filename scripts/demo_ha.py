"""Three Fleets on one log of three NATS servers, agents behind one address; one after the other is killed.

A node is slow all the time: it must stay named, by every Fleet, and no other node may be. Ends by itself; exit status
0 only if no push failed, nobody else was accused, nobody was cleared, and all Fleets have equal states at the end.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from scripts.lab import BIN, FREE, Lab, LabFailed, laboratory
from scripts.nats_servers import NatsServers, nats_servers
from scripts.pushing_agents import Front, PushingAgents, Seen, in_background

CLUSTER, FLEETS, WARMUP = "demo", 3, 12
TICKS_BETWEEN = 5
"""Ticks that all Fleets have to compute after a kill, before the next one."""


@dataclass
class Episode:
    """One kill, and what was seen until things were as before."""

    what: str
    seen: Seen
    silence: float
    """Longest time between two ticks, over all Fleets that ran, seconds."""
    back: float | None = None
    """Time from the start of a Fleet that was killed until it had caught up, seconds."""


class HighAvailability:
    """One run."""

    def __init__(
        self, lab: Lab, servers: NatsServers, nodes: int, interval: float, say: Callable[[str], None]
    ) -> None:
        self.lab, self.servers, self.interval, self.say = lab, servers, interval, say
        self.nodes = [f"node-{number:03d}" for number in range(nodes)]
        self.victim = self.nodes[nodes // 2]
        self.more: dict[str, str] = {}
        """Further settings of every Fleet."""
        self.ports: list[dict[str, int]] = []
        self.episodes: list[Episode] = []
        self.hashes: list[str] = []
        self._ticked = [("", time.monotonic())] * FLEETS
        self._silence = 0.0

    def start_fleet(self, number: int) -> None:
        """Start a Fleet; one that ran before gets the same ports."""
        ports = self.lab.folder / f"fleet-{number}.json"
        ports.unlink(missing_ok=True)
        known = self.ports[number] if number < len(self.ports) else {}

        def at(name: str) -> str:
            return f"127.0.0.1:{known[name]}" if known else FREE

        settings = {
            "receivers.otlp.protocols": f"{{http: {{endpoint: '{at('otlp/http')}'}}}}",
            "extensions.ingero_threshold.agent_endpoint": at("threshold"),
            "extensions.ingero_threshold.admin_endpoint": at("diagnostics"),
            "extensions.healthee.endpoint": at("health"),
            "extensions.zpages.endpoint": at("zpages"),
            "exporters.prometheus.endpoint": at("prometheus"),
            "service.telemetry.metrics.address": at("telemetry"),
            "processors.ingero.push_interval": f"{self.interval}s",
            "processors.ingero.quorum.statistical_min": "3",
            "processors.ingero.detector.warmup_ticks": str(WARMUP),
            "log.nats.servers": json.dumps(self.servers.urls),
            "log.nats.max_bytes": str(256 << 20),
            **self.more,
        }
        flags = [word for path, value in settings.items() for word in ("--set", f"{path}={value}")]
        self.lab.start(f"fleet-{number}", str(BIN / "ingero-fleet"), "serve", "--ports-file", str(ports), *flags)

        def listening() -> bool:
            self.poll()
            return ports.exists()

        self.lab.wait(f"Fleet {number} to listen", listening, 150)
        if not known:
            self.ports.append(json.loads(ports.read_text()))
        self._ticked[number] = ("", time.monotonic())

    def poll(self) -> None:
        """Note the ticks of the Fleets that answer."""
        for number in range(len(self.ports)):
            self.stragglers(number)

    def running(self) -> list[int]:
        """Fleets that run."""
        return [number for number in range(FLEETS) if f"fleet-{number}" in self.lab.processes]

    def get(self, number: int, port: str, path: str) -> httpx.Response | None:
        """Query one Fleet; `None` while it does not answer."""
        try:
            answer = self.lab.client.get(f"http://127.0.0.1:{self.ports[number][port]}{path}")
        except httpx.TransportError:
            return None
        return answer if answer.status_code == 200 else None

    def stragglers(self, number: int) -> tuple[str, set[str]]:
        """The time of a Fleet's last tick, and whom it names."""
        answer = self.get(number, "threshold", f"/api/v1/stragglers?cluster_id={CLUSTER}")
        if answer is None:
            return "", set()
        tree: dict[str, Any] = answer.json()
        tick, at = str(tree["generated_at"]), time.monotonic()
        if tick != self._ticked[number][0]:
            if self._ticked[number][0]:
                self._silence = max(self._silence, at - self._ticked[number][1])
            self._ticked[number] = (tick, at)
        return tick, {node["node_id"] for node in tree["stragglers"]}

    def all_name(self, wanted: set[str]) -> bool:
        """Whether every Fleet that runs names these nodes and no other."""
        found = [self.stragglers(number)[1] for number in self.running()]
        return all(named == wanted for named in found)

    def facts(self, number: int) -> dict[str, str]:
        """What a Fleet says of its own health."""
        answer = self.get(number, "zpages", "/debug/servicez")
        return dict(re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td></tr>", answer.text)) if answer else {}

    def hashed(self) -> bool:
        """Whether all Fleets have hashed the state of the same tick; keeps the hashes."""
        facts = [self.facts(number) for number in self.running()]
        self.hashes = [one.get("state_hash", "") for one in facts]
        return all(self.hashes) and len({one.get("state_hash_tick") for one in facts}) == 1

    def ready(self) -> bool:
        """Whether every Fleet knows every node and accuses none."""
        for number in self.running():
            answer = self.get(number, "diagnostics", f"/api/v1/nodes?cluster_id={CLUSTER}")
            nodes = answer.json()["nodes"] if answer else []
            if len(nodes) != len(self.nodes):
                return False
            if any((node["verdict"] or {}).get("state") not in ("healthy", "suspected") for node in nodes):
                return False
        return True

    def ticks(self, count: int) -> None:
        """Wait until every Fleet that runs has computed so many ticks."""
        seen: list[set[str]] = [set() for _ in range(FLEETS)]

        def enough() -> bool:
            for number in self.running():
                seen[number].add(self.stragglers(number)[0])
            return all(len(seen[number] - {""}) > count for number in self.running())

        self.lab.wait(f"{count} ticks of every Fleet", enough, 120)

    def episode(
        self, what: str, agents: PushingAgents, kill: Callable[[], None], restore: Callable[[], None]
    ) -> None:
        """Kill something, wait until ticks go on, restore it, wait until all is as before."""
        agents.take()
        self._silence = 0.0
        kill()
        self.ticks(TICKS_BETWEEN)
        started = time.monotonic()
        restore()
        self.lab.wait("all Fleets to name the straggler again", lambda: self.all_name({self.victim}), 120)
        back = time.monotonic() - started if what.startswith("Fleet") else None
        self.ticks(TICKS_BETWEEN)
        found = Episode(what, agents.take(), self._silence, back)
        self.episodes.append(found)
        seen = found.seen
        self.say(
            f"killed {what}: {seen.pushes} pushes, {seen.failed} failed, {seen.reconnected} answered by another; "
            f"longest time without a tick {found.silence:.1f} s"
            + (f"; caught up after {back:.1f} s" if back is not None else "")
        )

    def leader(self) -> int:
        """Number of the NATS server that leads the log at present."""

        async def ask() -> int:
            import nats

            client = await nats.connect(self.servers.urls)
            try:
                info = await client.jetstream(timeout=5).stream_info("ingero-log")
                return int(info.cluster.leader.removeprefix("n")) if info.cluster and info.cluster.leader else -1
            finally:
                await client.close()

        return asyncio.run(ask())

    def run(self, agents: PushingAgents) -> None:
        """The whole story."""
        say, lab = self.say, self.lab
        seconds = lab.wait("every Fleet to know every node", self.ready, 180)
        say(f"{FLEETS} Fleets know {len(self.nodes)} nodes after {seconds:.1f} s")
        agents.slow = frozenset({self.victim})
        seconds = lab.wait(f"all Fleets to name {self.victim}", lambda: self.all_name({self.victim}), 120)
        say(f"[bold red]{self.victim}[/] works at half its speed; all Fleets name it after {seconds:.1f} s")
        for number in range(FLEETS):

            def kill_fleet(number: int = number) -> None:
                self.lab.processes.pop(f"fleet-{number}").kill()

            def restart_fleet(number: int = number) -> None:
                self.start_fleet(number)

            self.episode(f"Fleet {number}", agents, kill_fleet, restart_fleet)
            leader = self.leader()
            self.episode(
                f"NATS server {leader} (leader)", agents,
                lambda leader=leader: self.servers.kill(leader), lambda leader=leader: self.servers.start(leader),  # type: ignore[misc]
            )  # fmt: skip
        agents.slow = frozenset()
        seconds = lab.wait("all Fleets to clear the node", lambda: self.all_name(set()), 180)
        say(f"{self.victim} works at its old speed; all Fleets clear it after {seconds:.1f} s")
        lab.wait("all Fleets to hash the state of one tick", self.hashed, 60)
        say(f"the hash of all of their states: {' '.join(sorted(set(self.hashes)))}")

    def table(self) -> Table:
        """What the agents saw."""
        table = Table(title="what the agents saw")
        table.add_column("killed")
        for name in ("pushes", "failed", "by another", "p99 ms", "others accused", "cleared", "no tick", "back"):
            table.add_column(name, justify="right")
        for one in self.episodes:
            seen = one.seen
            table.add_row(
                one.what,
                str(seen.pushes),
                str(seen.failed),
                str(seen.reconnected),
                f"{1000 * p99(seen.seconds):.1f}",
                ", ".join(sorted(seen.accused - {self.victim})) or "nobody",
                ", ".join(sorted(seen.cleared)) or "nobody",
                f"{one.silence:.1f} s",
                "" if one.back is None else f"{one.back:.1f} s",
            )
        return table

    def wrong(self) -> list[str]:
        """What must not have happened."""
        out = []
        for one in self.episodes:
            if one.seen.failed:
                out.append(f"{one.what}: {one.seen.failed} pushes failed")
            if others := one.seen.accused - {self.victim}:
                out.append(f"{one.what}: {', '.join(sorted(others))} accused")
            if one.seen.cleared:
                out.append(f"{one.what}: {', '.join(sorted(one.seen.cleared))} cleared")
        if len(set(self.hashes)) > 1:
            out.append(f"the states of the Fleets differ: {', '.join(self.hashes)}")
        return out


def p99(seconds: list[float]) -> float:
    """The 99th percentile; 0 without any."""
    return sorted(seconds)[min(len(seconds) - 1, int(0.99 * len(seconds)))] if seconds else 0.0


def main() -> int:
    """Parse the flags, run, report the result."""
    parser = argparse.ArgumentParser(prog="make demo-ha ARGS=...", description=__doc__)
    parser.add_argument("--nodes", type=int, default=12, help="simulated nodes, 5 to 1000 (default 12)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two pushes (default 1)")
    flags = parser.parse_args()
    if not 5 <= flags.nodes <= 1000:
        parser.error("--nodes must be between 5 and 1000")
    console = Console(highlight=False)
    console.width = max(console.width, 118)
    try:
        with laboratory("demo-ha") as lab, nats_servers(lab.folder / "nats", count=3) as servers:
            run = HighAvailability(lab, servers, flags.nodes, flags.interval, console.print)
            for number in range(FLEETS):
                run.start_fleet(number)
            front = Front([ports["otlp/http"] for ports in run.ports])
            agents: list[PushingAgents] = []

            async def push() -> None:
                await front.start()
                agents.append(PushingAgents(front.port, CLUSTER, run.nodes, flags.interval))
                await agents[0].run()

            with in_background(push):
                lab.wait("the address to listen", lambda: bool(agents))
                run.run(agents[0])
            console.print(run.table())
            wrong = run.wrong()
    except LabFailed as error:
        print(f"demo-ha: {error}", file=sys.stderr)
        return 1
    for line in wrong:
        print(f"demo-ha: {line}", file=sys.stderr)
    if not wrong:
        console.print("[bold green]no push failed, the straggler stayed named, and nobody else was[/]")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
