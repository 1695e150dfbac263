"""The main job on one machine: Fleet and agents as real processes; one workload is taken away, one slowed, then all.

Ends by itself; exit status 0 only if the right node, and no other, was named each time, and nobody for the last.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.live import Live
from rich.table import Table

INTERVAL = 1.0
WARMUP = 8
LEARNT = 12
CLUSTER = "demo"
BIN = Path(sys.executable).parent


class DemoFailed(Exception):
    """The demo did not show what it should; the text says what happened and what to look at."""


@dataclass
class Lab:
    """The processes of one demo, by role, and the folder of their logs."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *command: str) -> None:
        """Start a process; its output goes to a file of its name."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        log = (self.folder / f"{name}.log").open("wb")
        self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def signal(self, name: str, number: int) -> None:
        """Signal one of our own processes."""
        self.processes[name].send_signal(number)

    def check(self) -> None:
        """Raise when any process has ended by itself, with the last words that it wrote."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                words = (self.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()[-3:]
                raise DemoFailed(f"{name} ended with status {process.returncode}: {' | '.join(words)}")

    def stop(self) -> None:
        """End everything that was started."""
        for process in reversed(self.processes.values()):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class View:
    """What a person sees: a live table on a terminal, a line for each happening elsewhere, nothing with --json."""

    def __init__(self, quiet: bool) -> None:
        self.console = Console(stderr=quiet, quiet=quiet, highlight=False)
        self.live = (
            Live(console=self.console, refresh_per_second=4) if self.console.is_terminal and not quiet else None
        )

    def say(self, text: str) -> None:
        """One happening."""
        self.console.print(text)

    def show(self, nodes: list[dict[str, Any]]) -> None:
        """The nodes as they are now."""
        if self.live is None:
            return
        table = Table("node", "state", "score", "verdict", "", title="what Fleet sees")
        for node in sorted(nodes, key=lambda item: str(item["node_id"])):
            table.add_row(
                node["node_id"],
                node["state"],
                f"{node['score']:.3f}",
                (node["verdict"] or {}).get("state", "-"),
                f"[bold red]{node['kind']}: {node['dominant_signal']}[/]" if node["straggler"] else "[green]fine[/]",
            )
        self.live.update(table)


class Demo:
    """One run."""

    def __init__(self, nodes: int, lab: Lab, view: View) -> None:
        self.nodes = [f"node-{number}" for number in range(nodes)]
        self.lab = lab
        self.view = view
        self.ports: dict[str, int] = {}
        self.echo: dict[str, int] = {}
        self.client = httpx.Client(timeout=5, trust_env=False)

    def start(self) -> None:
        """Start Echo, Fleet, workloads, agents and the sink of the node that will suffer."""
        folder = self.lab.folder
        ports_file, echo_file = folder / "ports.json", folder / "echo.json"
        store = {
            "store.path": str(folder / "echo.duckdb"),
            "ingest.grpc_endpoint": "127.0.0.1:0",
            "ingest.http_endpoint": "127.0.0.1:0",
            "api.endpoint": "127.0.0.1:0",
        }
        self.lab.start(
            "echo", str(BIN / "ingero-echo"), "serve", "--insecure", "--ports-file", str(echo_file),
            *(word for path, value in store.items() for word in ("--set", f"{path}={value}")),
        )  # fmt: skip
        self.wait("Echo to listen", echo_file.exists, 60)
        self.echo = json.loads(echo_file.read_text())
        exporter = f"{{endpoint: 'http://127.0.0.1:{self.echo['otlp/http']}', tls: {{insecure: true}}}}"
        listeners = {
            "receivers.otlp.protocols": "{grpc: {endpoint: '127.0.0.1:0'}, http: {endpoint: '127.0.0.1:0'}}",
            "extensions.ingero_threshold.agent_endpoint": "127.0.0.1:0",
            "extensions.ingero_threshold.admin_endpoint": "127.0.0.1:0",
            "extensions.healthee.endpoint": "127.0.0.1:0",
            "extensions.zpages.endpoint": "127.0.0.1:0",
            "exporters.prometheus.endpoint": "127.0.0.1:0",
            "service.telemetry.metrics.address": "127.0.0.1:0",
            "processors.ingero.push_interval": f"{INTERVAL}s",
            "processors.ingero.quorum.statistical_min": "3",
            "processors.ingero.detector.warmup_ticks": str(LEARNT),
            "processors.ingero.detector.record": str(folder / "history.csv"),
            "exporters.otlphttp": exporter,
            "service.pipelines.metrics.exporters": "[prometheus, otlphttp]",
            "service.pipelines.logs.exporters": "[otlphttp]",
        }
        flags = [word for path, value in listeners.items() for word in ("--set", f"{path}={value}")]
        self.lab.start("fleet", str(BIN / "ingero-fleet"), "serve", "--ports-file", str(ports_file), *flags)
        self.wait("Fleet to listen", ports_file.exists, 60)
        self.ports = json.loads(ports_file.read_text())
        self.view.say(f"live page: http://127.0.0.1:{self.ports['diagnostics']}/")
        for node in self.nodes:
            steps = folder / f"{node}.steps"
            self.lab.start(f"{node}-workload", sys.executable, "-m", "scripts.workload", str(steps))
        for number, node in enumerate(self.nodes):
            steps = folder / f"{node}.steps"
            self.lab.start(
                f"{node}-agent", str(BIN / "ingero-agent"), "fleet-push",
                "--fleet-endpoint", f"127.0.0.1:{self.ports['otlp/http']}", "--fleet-insecure",
                "--fleet-cluster-id", CLUSTER, "--fleet-node-id", node, "--fleet-workload-type", "matmul",
                "--fleet-world-size", str(len(self.nodes)), "--fleet-node-rank", str(number),
                "--fleet-push-interval", str(INTERVAL), "--warmup-samples", str(WARMUP), "--no-detect-provider",
                "--fleet-persist-path", str(folder / f"{node}.baseline.json"),
                "--watch-pid", str(self.lab.processes[f"{node}-workload"].pid), "--progress-file", str(steps),
                "--remediate", "--remediate-socket", str(folder / f"{node}.sock"),
            )  # fmt: skip
        victim = self.nodes[-1]
        self.lab.start(
            "sink", str(BIN / "ingero-sink"), "--socket-path", str(folder / f"{victim}.sock"),
            "--listen", "127.0.0.1:0", "--reconnect-delay", "0.3s", "--ports-file", str(folder / "sink.json"),
        )  # fmt: skip

    def get(self, port: str, path: str) -> Any:
        """Ask Fleet."""
        answer = self.client.get(f"http://127.0.0.1:{self.ports[port]}{path}")
        return answer.json() if answer.status_code == 200 else None

    def picture(self) -> list[dict[str, Any]]:
        """Every node as Fleet sees it."""
        found = self.get("diagnostics", "/api/v1/nodes")
        nodes: list[dict[str, Any]] = found["nodes"] if found else []
        self.view.show(nodes)
        return nodes

    def named(self) -> set[str]:
        """Who is a straggler now."""
        self.picture()
        found = self.get("threshold", f"/api/v1/stragglers?cluster_id={CLUSTER}")
        return {node["node_id"] for node in found["stragglers"]} if found else set()

    def wait(self, what: str, done: Callable[[], bool], seconds: float) -> float:
        """Wait until something is so; returns how long it took."""
        started = time.monotonic()
        while not done():
            self.lab.check()
            if time.monotonic() - started > seconds:
                raise DemoFailed(f"waited {seconds:.0f} s for {what}")
            time.sleep(0.1)
        return time.monotonic() - started

    def ready(self) -> bool:
        """Every node active, known to the detector and accused of nothing."""
        nodes = self.picture()
        return len(nodes) == len(self.nodes) and all(
            node["state"] == "active" and (node["verdict"] or {}).get("state") in ("healthy", "suspected")
            for node in nodes
        )

    def pushes(self, node: str) -> int:
        """How many pushes of a node Fleet has taken."""
        found = self.get("diagnostics", f"/api/v1/why?node_id={node}") or {}
        return int(found.get("pushes", 0))

    def episode(self, victim: str, what: str, hurt: int, heal: int, name: str) -> dict[str, Any]:
        """Hurt one node, wait until it is named, heal it, wait until it is well."""
        self.view.say(f"[bold]{what}[/] ({victim})")
        before = self.pushes(victim)
        self.lab.signal(name, hurt)
        seconds = self.wait(f"{victim} to be named", lambda: bool(self.named()), 90)
        wrong = self.named() - {victim}
        if wrong or victim not in self.named():
            raise DemoFailed(f"named {sorted(self.named())} instead of {victim}")
        why = self.get("diagnostics", f"/api/v1/why?node_id={victim}") or {}
        pushes = int(why.get("pushes", before)) - before
        self.view.say(
            f"  [bold red]{victim} is the straggler[/], named after {seconds:.1f} s, {pushes} of its pushes"
        )
        self.view.say(f"  why: {why.get('why', '')} Weakest signal: {why.get('dominant_signal')}.")
        answer = self.ask(victim)
        self.lab.signal(name, heal)
        recovery = self.wait(f"{victim} to recover", self.ready, 120)
        self.view.say(f"  healed; well again after {recovery:.1f} s")
        return {
            "what": what,
            "node": victim,
            "named_after_seconds": round(seconds, 2),
            "named_after_pushes": pushes,
            "recovered_after_seconds": round(recovery, 2),
            "echo": answer,
        }

    def together(self) -> dict[str, Any]:
        """Slow every workload to half: a slow job, but nobody's fault."""
        self.view.say("[bold]all workloads slowed to half their speed[/]")
        for node in self.nodes:
            self.lab.signal(f"{node}-workload", signal.SIGUSR1)
        seconds = self.wait("the job to be called slow", self.job_is_slow, 90)
        self.view.say(f"  after {seconds:.1f} s Fleet says that the job is slow, and [bold green]accuses nobody[/]")
        for node in self.nodes:
            self.lab.signal(f"{node}-workload", signal.SIGUSR2)
        return {"what": "all workloads slowed", "told_after_seconds": round(seconds, 2), "accused": []}

    def job_is_slow(self) -> bool:
        """Whether Fleet says so; naming anybody meanwhile is a failure."""
        if wrong := self.named():
            raise DemoFailed(f"named {sorted(wrong)} although all nodes slowed down together")
        page = self.client.get(f"http://127.0.0.1:{self.ports['prometheus']}/metrics").text
        return "ingero_fleet_job_slow{" in page

    def ask(self, victim: str) -> str:
        """Ask the event store which node it is and why, as a person would."""
        found = dict[str, Any]()

        def told() -> bool:
            done = subprocess.run(
                [
                    BIN / "ingero-echo", "ask", "find_stragglers", f"cluster_id={CLUSTER}", "--json",
                    "--api", f"http://127.0.0.1:{self.echo['api']}",
                ],
                capture_output=True, text=True,
            )  # fmt: skip
            found.update(json.loads(done.stdout) if done.returncode == 0 else {})
            return bool(found.get("rows"))

        self.wait("Echo to know of it", told, 30)
        if found["rows"][0]["node_id"] != victim:
            raise DemoFailed(f"Echo ranks {found['rows'][0]['node_id']} before {victim}")
        summary = str(found["summary"])
        self.view.say(f"  ingero-echo ask find_stragglers: {summary}")
        return summary

    def sink_lines(self) -> dict[str, float]:
        """What the sink has booked."""
        port = json.loads((self.lab.folder / "sink.json").read_text())["metrics"]
        page = self.client.get(f"http://127.0.0.1:{port}/metrics").text
        found = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("ingero_sink_")]
        return {name: float(value) for name, value in found}

    def run(self) -> dict[str, Any]:
        """The whole story."""
        view, victim = self.view, self.nodes[-1]
        view.say(
            f"{len(self.nodes)} agents over real CPU workloads, shortened for the demo: a push every {INTERVAL:g} s "
            f"(production: 10 s), {WARMUP} and {LEARNT} samples of warm-up of agent and Fleet (production: 30 each), "
            "a quorum of 3 (production: 5)."
        )
        self.start()
        quorum = self.wait("all nodes to be active and known", self.ready, 180)
        view.say(f"all {len(self.nodes)} nodes active and known to Fleet after {quorum:.1f} s")
        workload = f"{victim}-workload"
        episodes = [
            self.episode(victim, "one workload taken away", signal.SIGSTOP, signal.SIGCONT, workload),
            self.episode(victim, "one workload slowed to half its speed", signal.SIGUSR1, signal.SIGUSR2, workload),
            self.together(),
        ]
        lines = self.sink_lines()
        state, resolved = (
            lines.get(f'ingero_sink_events_total{{type="straggler_{kind}"}}', 0.0) for kind in ("state", "resolved")
        )
        errors = lines["ingero_sink_parse_errors_total"]
        view.say(f"sink of {victim}: {state:.0f} events, {resolved:.0f} resolved, {errors:.0f} parse errors")
        return {
            "nodes": len(self.nodes),
            "quorum_after_seconds": round(quorum, 2),
            "episodes": episodes,
            "sink": lines,
        }


def main() -> int:
    """Parse the flags, run, say how it went."""
    parser = argparse.ArgumentParser(prog="make demo ARGS=...", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5, help="simulated nodes, 3 to 32 (default 5)")
    parser.add_argument(
        "--keep", action="store_true", help="leave it running until Ctrl-C, with its addresses printed"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the story")
    flags = parser.parse_args()
    if not 3 <= flags.nodes <= 32:
        parser.error("--nodes must be between 3 and 32")
    view = View(quiet=flags.json)
    folder = Path(tempfile.mkdtemp(prefix="ingero-demo-"))
    lab = Lab(folder)
    demo = Demo(flags.nodes, lab, view)
    keep_logs = False
    try:
        with view.live or contextlib.nullcontext():
            result = demo.run()
        view.say("[bold green]the right node was named both times, and nobody for what all did together[/]")
        if flags.json:
            print(json.dumps(result))
        if flags.keep:
            names = {"threshold": "/api/v1/stragglers", "diagnostics": "/api/v1/nodes", "prometheus": "/metrics"}
            for name, path in names.items():
                view.say(f"  {name}: http://127.0.0.1:{demo.ports[name]}{path}")
            view.say("Ctrl-C ends it")
            while True:
                lab.check()
                time.sleep(1)
    except DemoFailed as error:
        print(f"demo: {error}; the logs are in {folder}", file=sys.stderr)
        keep_logs = True
        return 1
    except KeyboardInterrupt:
        return 0 if flags.keep else 130
    finally:
        lab.stop()
        if not keep_logs:
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
