"""`ingero demo`: Fleet and agents with made-up signals on this machine; one slows down and is named."""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import click

from ingero_contract import routes
from ingero_kit.extras import pip_command

CLUSTER: Final = "demo"
FREE: Final = "127.0.0.1:0"
INTERVAL: Final = "500ms"
SECONDS: Final = 180.0
"""Longest wait for one step."""
SETTINGS: Final = {
    "receivers.otlp.protocols.http.endpoint": FREE,
    "extensions.ingero_threshold.agent_endpoint": FREE,
    "extensions.ingero_threshold.admin_endpoint": FREE,
    "extensions.healthee.endpoint": FREE,
    "extensions.zpages.endpoint": FREE,
    "exporters.prometheus.endpoint": FREE,
    "service.telemetry.metrics.address": FREE,
    "processors.ingero.push_interval": INTERVAL,
    "processors.ingero.quorum.statistical_min": "3",
    "processors.ingero.detector.warmup_ticks": "8",
}
SLOW: Final = "stages: [{seconds: 3600, launches_per_second: 40}]\n"
"""Before, each node does 100 launches a second."""


class DemoFailed(Exception):
    """What did not happen; the text ends with what to look at."""


@dataclass
class Demo:
    """The processes, and what Fleet answers."""

    folder: Path
    nodes: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Of the nodes; the last one slows down."""
        return [f"node-{number}" for number in range(1, self.nodes + 1)]

    @property
    def scenario(self) -> Path:
        """What the last node does, once it is written."""
        return self.folder / "slow.yaml"

    def start(self, name: str, program: str, *words: str) -> None:
        """Start a program of this package with the interpreter that runs this; its output goes to a file."""
        code = f"from {program}.cli import main; main()"
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-c", code, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def start_fleet(self) -> None:
        """Start Fleet on free ports."""
        file = self.folder / "ports.json"
        chosen = [f"--set={path}={value}" for path, value in SETTINGS.items()]
        self.start("fleet", "ingero_fleet", "serve", *chosen, "--ports-file", str(file))
        self.wait("Fleet to start", file.exists)
        self.ports = json.loads(file.read_text())

    def start_agents(self) -> None:
        """Start an agent for each node."""
        for name in self.names:
            script = ["--stub-script", str(self.scenario)] if name == self.names[-1] else []
            self.start(
                name, "ingero_agent", "fleet-push", "--stub", *script, "--fleet-node-id", name,
                "--fleet-endpoint", f"127.0.0.1:{self.ports['otlp/http']}", "--fleet-insecure",
                "--fleet-cluster-id", CLUSTER, "--fleet-push-interval", INTERVAL, "--warmup-samples", "5",
                "--no-detect-provider", "--fleet-persist-path", str(self.folder / f"{name}.json"),
            )  # fmt: skip

    def ask(self, port: str, path: str) -> Any:
        """An answer of Fleet; an empty one if there is none yet."""
        try:
            with build_opener(ProxyHandler({})).open(
                f"http://127.0.0.1:{self.ports[port]}{path}", timeout=5
            ) as answer:
                return json.load(answer)
        except (URLError, TimeoutError, ConnectionError):
            return {}

    def learnt(self) -> bool:
        """Whether Fleet knows what every node usually does."""
        rows = self.ask("threshold", f"{routes.FLEET_VERDICTS}?cluster_id={CLUSTER}").get("nodes") or []
        return sum(1 for row in rows if (row["verdict"] or {}).get("state") == "healthy") == self.nodes

    def stragglers(self) -> list[str]:
        """Whom Fleet accuses now."""
        rows = self.ask("threshold", f"{routes.FLEET_STRAGGLERS}?cluster_id={CLUSTER}").get("stragglers") or []
        return [str(row["node_id"]) for row in rows]

    def wait(self, what: str, done: Callable[[], Any]) -> float:
        """Seconds until something is so; raises `DemoFailed` when a program ends or it takes too long."""
        began = time.monotonic()
        while not done():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    lines = (self.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
                    words = "".join(lines[-1:])
                    if words.startswith("ModuleNotFoundError"):
                        words += f": {pip_command('fleet' if name == 'fleet' else 'agent')}"
                    raise DemoFailed(f"{name} ended with status {process.returncode}: {words}")
            if time.monotonic() - began > SECONDS:
                raise DemoFailed(f"waited {SECONDS:.0f} s for {what}")
            time.sleep(0.1)
        return time.monotonic() - began

    def stop(self) -> None:
        """End what was started."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ended(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def demonstration(nodes: int) -> Iterator[Demo]:
    """Everything ends with the block, also on SIGTERM."""
    with tempfile.TemporaryDirectory(prefix="ingero-demo-") as folder:
        demo = Demo(Path(folder), nodes)
        before = signal.signal(signal.SIGTERM, _ended)
        try:
            yield demo
        finally:
            demo.stop()
            signal.signal(signal.SIGTERM, before)


def play(demo: Demo) -> None:
    """The story, a line for each event."""
    demo.start_fleet()
    demo.start_agents()
    click.echo(f"Fleet and {demo.nodes} agents run; live page: http://127.0.0.1:{demo.ports['diagnostics']}/")
    click.echo(f"all are learnt after {demo.wait('every node to be learnt', demo.learnt):.1f} s")
    slow = demo.names[-1]
    demo.scenario.write_text(SLOW)
    click.echo(f"{slow} slows down from 100 launches a second to 40")
    took = demo.wait(f"{slow} to be named", demo.stragglers)
    found = demo.stragglers()
    if found != [slow]:
        raise DemoFailed(f"Fleet names {', '.join(found) or 'nobody'}")
    why = demo.ask("diagnostics", f"{routes.FLEET_WHY}?cluster_id={CLUSTER}&node_id={slow}")
    click.echo(f"{slow} is the straggler, named after {took:.1f} s\nwhy: {why['why']}")


@click.command()
@click.option("--nodes", type=click.IntRange(4, 50), default=4, show_default=True, help="Agents to start.")
@click.option("--keep", is_flag=True, help="Run until Ctrl-C, for a look at the live page.")
def command(nodes: int, keep: bool) -> None:
    """Start Fleet and agents with made-up signals here, slow one down, and show how it is named; half a minute.

    It needs no GPU, opens loopback ports only and leaves nothing behind. Exit status 1: not that node was named.

    \b
    ingero demo
    ingero demo --nodes 8 --keep
    """
    with demonstration(nodes) as demo:
        try:
            play(demo)
            if keep:
                click.echo("Ctrl-C ends it")
                with contextlib.suppress(KeyboardInterrupt):
                    signal.pause()
        except DemoFailed as error:
            raise click.ClickException(str(error)) from None
