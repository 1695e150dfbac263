"""Measures the memory of each service when it has next to nothing to do. `make bench-memory` prints the table.

Echo, a Fleet with five agents and the sink of one of them run as a user starts them. PSS divides a page among the
processes that share it; a service that runs alone, as in a container, takes all of each. The modules are compiled
before, as in images and packages.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.lab import BIN, FREE, Lab, LabFailed, Site, laboratory  # noqa: E402

TARGETS: Final = {"Fleet, 5 nodes": 60.0, "agent": 35.0, "sink": 25.0, "Echo": 120.0}
"""Most megabytes (10⁶ bytes) of a service, by the name that the table gives it."""

ASKED: Final = "Fleet whose APIs were asked"
"""Its APIs are loaded with their first request."""

NODES: Final = tuple(f"node-{number}" for number in range(5))
AGENTS: Final = tuple(f"{node}-agent" for node in NODES)
PUSHES: Final = 20
"""Pushes of a node after which nothing is imported or allocated for the first time any more."""

PAUSE: Final = 2.0
"""Seconds between two readings."""


class Memory(NamedTuple):
    """Memory of a process, megabytes."""

    together: float
    """Proportional set size (PSS) beside all others."""
    alone: float
    """The whole of every page that it uses (RSS), which is its PSS where no other process uses them."""


def parse_rollup(text: str) -> Memory:
    """Read `/proc/PID/smaps_rollup`. Raises `ValueError` if it lacks a figure."""
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    try:
        return Memory(*(1024 * kilobytes[name] / 1e6 for name in ("Pss", "Rss")))
    except KeyError as error:
        raise ValueError(f"smaps_rollup has no {error}") from None


def equal(before: Memory, after: Memory) -> bool:
    """Whether two readings differ by 1 % at most."""
    return all(abs(new - old) <= 0.01 * old for old, new in zip(before, after, strict=True))


def settled(read: Callable[[], dict[str, Memory]], wait: Callable[[], None], readings: int) -> dict[str, Memory]:
    """The first reading in which every process is as large as in the one before. Raises `LabFailed`."""
    found = read()
    for _ in range(readings):
        wait()
        before, found = found, read()
        if all(equal(before[name], found[name]) for name in found):
            return found
    raise LabFailed(f"after {readings} readings the services still grow: {before} then {found}")


def verdict(memory: Memory, target: float, undisturbed: bool) -> str:
    """Whether a target is reached; beside the others only if nobody else shared their pages."""
    if memory.alone < target:
        return "reached"
    return "reached beside the others" if undisturbed and memory.together < target else "NOT REACHED"


def rows(found: dict[str, Memory], undisturbed: bool) -> list[str]:
    """The lines of the table."""
    lines = []
    for name, memory in found.items():
        target = TARGETS.get(name)
        judged = f"< {target:g} MB | {verdict(memory, target, undisturbed)}" if target else "– | for comparison"
        lines.append(f"| {name} | {memory.alone:.1f} MB | {memory.together:.1f} MB | {judged} |")
    return lines


def strangers(own: set[int]) -> list[int]:
    """Processes of the same interpreter beside those that are measured, which share pages with them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) not in own and (folder / "exe").samefile(sys.executable):
                found.append(int(folder.name))
    return found


class Host:
    """All services on one host."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.site = lab, Site(lab, "idle", 1.0, NODES)
        self.echo: dict[str, int] = {}
        self.strangers: set[int] = set()

    def start(self) -> None:
        """Start everything; the agents watch this process by its processor time."""
        ports = self.lab.folder / "echo.json"
        settings = {
            "store.path": str(self.lab.folder / "echo.duckdb"), "ingest.grpc_endpoint": FREE,
            "ingest.http_endpoint": FREE, "api.endpoint": FREE,
        }  # fmt: skip
        words = [word for path, value in settings.items() for word in ("--set", f"{path}={value}")]
        self.lab.start("echo", str(BIN / "ingero-echo"), "serve", "--insecure", "--ports-file", str(ports), *words)
        self.site.start_fleet()
        self.site.start_agents(5, watching=lambda _: ("--watch-pid", str(os.getpid())))
        self.site.start_sink(NODES[0])
        self.lab.wait("Echo to listen", ports.exists, 120)
        self.echo = json.loads(ports.read_text())

    def wait(self) -> None:
        """Wait until every service has done its work several times."""
        self.lab.wait("every node to be pushed", lambda: self.pushes() >= PUSHES * len(NODES), 120)
        self.lab.wait("the sink to be connected", lambda: self.site.sink_lines().get("ingero_sink_connected") == 1)
        self.lab.wait("Echo to be whole", lambda: "front_ends_ready" in self.lab.log("echo").read_text(), 120)

    def pushes(self) -> float:
        """Pushes that Fleet has taken, read where no API is asked."""
        page = self.lab.client.get(f"http://127.0.0.1:{self.site.ports['telemetry']}/metrics").text
        found = [line for line in page.splitlines() if line.startswith('ingero_fleet_pushes_total{signal="metrics"}')]
        return float(found[0].rsplit(" ", 1)[1]) if found else 0.0

    def ask(self) -> None:
        """Ask Fleet's APIs, as the operator and people do."""
        for port, path in (("threshold", "/api/v1/stragglers"), ("diagnostics", "/api/v1/nodes")):
            if self.site.get(port, path) is None:
                raise LabFailed(f"Fleet does not answer {path}")

    def read(self) -> dict[str, Memory]:
        """The memory of each service, of the agents the largest, after a scrape of the pages open by default."""
        self.lab.check()
        self.strangers |= set(strangers({os.getpid(), *(one.pid for one in self.lab.processes.values())}))
        self.site.page()
        self.site.sink_lines()
        self.lab.client.get(f"http://127.0.0.1:{self.echo['api']}/metrics").raise_for_status()
        fleet, sink, *agents = (self.of(self.site.name(role)) for role in ("fleet", "sink", *AGENTS))
        agent = max(agents, key=lambda memory: memory.alone)
        return dict(zip(TARGETS, (fleet, agent, sink, self.of("echo")), strict=True))

    def of(self, name: str) -> Memory:
        """The memory of one process."""
        return parse_rollup(Path(f"/proc/{self.lab.processes[name].pid}/smaps_rollup").read_text())


def measure() -> tuple[dict[str, Memory], int]:
    """Start everything, and read its memory when that has settled; and the number of strangers."""
    with laboratory("bench-memory") as lab:
        host = Host(lab)
        host.start()
        host.wait()
        idle = settled(host.read, lambda: time.sleep(PAUSE), 60)
        host.ask()
        asked = settled(host.read, lambda: time.sleep(PAUSE), 60)
        return {**idle, ASKED: asked["Fleet, 5 nodes"]}, len(host.strangers)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-memory ARGS=...", description=__doc__)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        measure()  # compiles the modules
        found, others = measure()
    print("| service, idle | PSS alone | PSS beside the others | target | |\n| --- | --- | --- | --- | --- |")
    print("\n".join(rows(found, not others)))
    if others:
        print(
            f"{others} other processes of {sys.executable} shared pages: the figures beside the others are too small"
        )


if __name__ == "__main__":
    try:
        main()
    except LabFailed as error:
        raise SystemExit(f"bench: {error}") from None
