"""Runs components as real processes on this machine, and queries them as a user would.

Shared by the demos, the end-to-end run and the benches.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from scripts.controlplane import MORTAL

BIN = Path(sys.executable).parent
FREE = "127.0.0.1:0"
MEMORY = Path("/dev/shm")
"""Where most systems have files in memory."""


class LabFailed(Exception):
    """An expected observation is missing; the text says what happened and what to check."""


@dataclass
class Lab:
    """The processes of one run, by role, and the directory of their logs."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=5, trust_env=False))
    memory: Path | None = None
    """Directory of files that no process may wait for a disk to write; without it that of the logs."""

    def start(self, name: str, *command: str) -> None:
        """Start a process; its output goes to a file with its name."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen([*MORTAL, *command], stdout=log, stderr=log, env=environment)

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.folder / f"{name}.log"

    def signal(self, name: str, number: int) -> None:
        """Send a signal to one process of the run."""
        self.processes[name].send_signal(number)

    def check(self) -> None:
        """Raise when any process has ended by itself, with the end of its log."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                words = self.log(name).read_text(errors="replace").strip().splitlines()[-3:]
                raise LabFailed(f"{name} ended with status {process.returncode}: {' | '.join(words)}")

    def wait(self, what: str, done: Callable[[], Any], seconds: float = 60.0) -> float:
        """Wait until a condition holds; returns how long it took."""
        started = time.monotonic()
        while not done():
            self.check()
            if time.monotonic() - started > seconds:
                raise LabFailed(f"waited {seconds:.0f} s for {what}")
            time.sleep(0.1)
        return time.monotonic() - started

    def stop(self, *names: str) -> None:
        """End the named processes, or all that were started."""
        ending = [self.processes.pop(name) for name in names or list(reversed(self.processes))]
        for process in ending:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in ending:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)
        if not names:
            self.client.close()


def _terminated(number: int, _: object) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def laboratory(name: str) -> Iterator[Lab]:
    """A lab in a temporary directory. All processes end with it, also on SIGTERM; logs are kept only on failure."""
    prefix = f"ingero-{name}-"
    lab = Lab(Path(tempfile.mkdtemp(prefix=prefix)))
    if os.access(MEMORY, os.W_OK):
        lab.memory = Path(tempfile.mkdtemp(prefix=prefix, dir=MEMORY))
    keep = True
    # Only the main thread may handle signals; the processes of labs in other threads end with the main process.
    alone = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _terminated) if alone else None
    try:
        yield lab
        keep = False
    except (KeyboardInterrupt, SystemExit, FileNotFoundError):
        keep = False
        raise
    except (LabFailed, RuntimeError, httpx.HTTPError) as error:
        raise LabFailed(f"{error}; the logs are in {lab.folder}") from error
    finally:
        lab.stop()
        if alone:
            signal.signal(signal.SIGTERM, before)
        if lab.memory:
            shutil.rmtree(lab.memory)
        if not keep:
            shutil.rmtree(lab.folder)


def certificate(folder: Path, *names: str) -> dict[str, str]:
    """Data of a TLS Secret: a certificate for these names that is its own authority."""
    files = {"tls.key": folder / "tls.key", "tls.crt": folder / "tls.crt"}
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
         "-subj", "/CN=ingero", "-addext", f"subjectAltName={','.join(f'DNS:{name}' for name in names)}",
         "-keyout", files["tls.key"], "-out", files["tls.crt"]], check=True, capture_output=True,
    )  # fmt: skip
    texts = {name: file.read_text() for name, file in files.items()}
    return {**texts, "ca.crt": texts["tls.crt"]}


@dataclass
class Site:
    """One cluster: Fleet, and for each node a workload and an agent. Pushes come every `interval` seconds."""

    lab: Lab
    cluster: str
    interval: float
    nodes: tuple[str, ...]
    ports: dict[str, int] = field(default_factory=dict)

    def start_fleet(self, **change: str) -> None:
        """Start Fleet on free ports, with additional settings: paths with `__` for the dots."""
        ports = self.lab.folder / f"{self.cluster}-ports.json"
        settings = {
            "receivers.otlp.protocols": f"{{grpc: {{endpoint: '{FREE}'}}, http: {{endpoint: '{FREE}'}}}}",
            "extensions.ingero_threshold.agent_endpoint": FREE,
            "extensions.ingero_threshold.admin_endpoint": FREE,
            "extensions.healthee.endpoint": FREE,
            "extensions.zpages.endpoint": FREE,
            "exporters.prometheus.endpoint": FREE,
            "service.telemetry.metrics.address": FREE,
            "processors.ingero.push_interval": f"{self.interval}s",
            "processors.ingero.quorum.statistical_min": "3",
            **{path.replace("__", "."): value for path, value in change.items()},
        }
        flags = [word for path, value in settings.items() for word in ("--set", f"{path}={value}")]
        self.start("fleet", str(BIN / "ingero-fleet"), "serve", "--ports-file", str(ports), *flags)
        self.lab.wait("Fleet to listen", ports.exists)
        self.ports = json.loads(ports.read_text())

    def start(self, role: str, *command: str) -> None:
        """Start a process of this site."""
        self.lab.start(self.name(role), *command)

    def name(self, role: str) -> str:
        """The name of a process of this site, distinct for each site, as sites may run concurrently."""
        return f"{self.cluster}-{role}"

    def file(self, role: str, suffix: str) -> Path:
        """Path of a file of this site."""
        return self.lab.folder / f"{self.name(role)}.{suffix}"

    def steps(self, node: str) -> str:
        """Path of the file in which a node's workload counts its steps: one that a disk holds up is not healthy."""
        return str((self.lab.memory or self.lab.folder) / f"{self.name(node)}.steps")

    def start_workloads(self, *flags: str) -> None:
        """Start a real workload for every node."""
        for node in self.nodes:
            self.start(f"{node}-workload", sys.executable, "-m", "scripts.workload", self.steps(node), *flags)

    def by_progress(self, node: str) -> tuple[str, ...]:
        """Flags of an agent that watches a node's workload by its processor time and the steps that it counts."""
        pid = self.lab.processes[self.name(f"{node}-workload")].pid
        return "--watch-pid", str(pid), "--progress-file", self.steps(node)

    def start_agents(
        self, warmup: int, *flags: str, watching: Callable[[str], tuple[str, ...]] | None = None
    ) -> None:
        """Start an agent for every workload; `watching` gives the flags by which a node's agent watches it."""
        for number, node in enumerate(self.nodes):
            self.start(
                f"{node}-agent", str(BIN / "ingero-agent"), "fleet-push",
                "--fleet-endpoint", f"127.0.0.1:{self.ports['otlp/http']}", "--fleet-insecure",
                "--fleet-cluster-id", self.cluster, "--fleet-node-id", node, "--fleet-workload-type", "matmul",
                "--fleet-world-size", str(len(self.nodes)), "--fleet-node-rank", str(number),
                "--fleet-push-interval", str(self.interval), "--warmup-samples", str(warmup), "--no-detect-provider",
                "--fleet-persist-path", str(self.file(node, "baseline.json")),
                *(watching or self.by_progress)(node),
                "--remediate", "--remediate-socket", str(self.file(node, "sock")), *flags,
            )  # fmt: skip

    def start_sink(self, node: str) -> None:
        """Start the sink next to a node's agent."""
        self.start(
            "sink", str(BIN / "ingero-sink"), "--remediate-socket", str(self.file(node, "sock")),
            "--listen", FREE, "--reconnect-delay", "0.3s", "--ports-file", str(self.file("sink", "json")),
        )  # fmt: skip

    def hurt(self, number: int, *nodes: str) -> None:
        """Send a signal to the workloads of some nodes."""
        for node in nodes:
            self.lab.signal(self.name(f"{node}-workload"), number)

    def get(self, port: str, path: str) -> Any:
        """Query Fleet; `None` while it cannot answer."""
        try:
            answer = self.lab.client.get(f"http://127.0.0.1:{self.ports[port]}{path}")
        except httpx.TransportError:
            self.lab.check()
            return None
        return answer.json() if answer.status_code == 200 else None

    def nodes_answer(self) -> list[dict[str, Any]]:
        """Every node as Fleet reports it."""
        found = self.get("diagnostics", f"/api/v1/nodes?cluster_id={self.cluster}")
        return found["nodes"] if found else []

    def named(self) -> set[str]:
        """The names of the present stragglers."""
        found = self.get("threshold", f"/api/v1/stragglers?cluster_id={self.cluster}")
        return {node["node_id"] for node in found["stragglers"]} if found else set()

    def ready(self) -> bool:
        """Whether every node is active, known to the detector and not accused."""
        nodes = self.nodes_answer()
        return len(nodes) == len(self.nodes) and all(
            node["state"] == "active" and (node["verdict"] or {}).get("state") in ("healthy", "suspected")
            for node in nodes
        )

    def page(self) -> str:
        """Fleet's findings as Prometheus scrapes them."""
        return self.lab.client.get(f"http://127.0.0.1:{self.ports['prometheus']}/metrics").text

    def sink_lines(self) -> dict[str, float]:
        """The events that the sink has recorded."""
        file = self.file("sink", "json")
        if not file.exists():
            return {}
        port = json.loads(file.read_text())["metrics"]
        page = self.lab.client.get(f"http://127.0.0.1:{port}/metrics").text
        found = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("ingero_sink_")]
        return {name: float(value) for name, value in found}

    def sink_events(self) -> tuple[int, int, int]:
        """Numbers of events that the sink recorded: states, resolved ones, and lines that it could not parse."""
        lines = self.sink_lines()
        events = [f'ingero_sink_events_total{{type="straggler_{kind}"}}' for kind in ("state", "resolved")]
        state, resolved, wrong = (int(lines.get(name, 0)) for name in (*events, "ingero_sink_parse_errors_total"))
        return state, resolved, wrong
