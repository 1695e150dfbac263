"""Runs real synchronised jobs in which one rank is late, and reports which rank Fleet names.

Where this machine can be traced (root, BTF, libbpf, a C compiler) the ranks are unmodified processes over libraries
with NCCL's and CUDA's names, whose wait is a barrier over all ranks; `ingero-agent trace` observes them through eBPF
and pushes to Fleet. Elsewhere the ranks of `scripts.ranks` all-reduce vectors over sockets and push themselves;
so do those of `scripts.gloo`, which are PyTorch processes.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

from ingero_testing.gpu_job import attached, build_job, communicator_hash, go, identity, job
from ingero_testing.processes import Running
from scripts.lab import BIN, Site

TRACED = "unmodified processes, traced through eBPF"
SELF_REPORTED = "processes that push their own waits, without eBPF"
GLOO = "processes of PyTorch that wait in gloo's all_reduce and push their own waits"
NODE = "traced"
FOREVER = 1_000_000
UNIFORM = 3**0.5
"""Half the width of a uniform distribution, in standard deviations."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The job. Shares of a step: `extra`, how much longer the late rank computes; `jitter`, standard deviation."""

    ranks: int = 8
    late: int = 5
    step_seconds: float = 0.1
    extra: float = 0.05
    jitter: float = 0.01
    deadline_seconds: float = 30.0


@dataclass
class Outcome:
    """The outcome: seconds from the first late step to the verdict, `None` without one, and wrongly named ranks."""

    seconds: float | None = None
    wrong: set[int] = field(default_factory=set)
    why: str = ""


@dataclass
class RunningJob:
    """A running job: its communicator's name in Fleet, and how to make one rank late."""

    comm: str
    hurt: Callable[[], None]


def can_trace() -> bool:
    """Whether the trace agent reports that it works on this machine, and C can be compiled."""
    if shutil.which("cc") is None:
        return False
    try:
        return subprocess.run([str(BIN / "ingero-agent"), "check"], capture_output=True, timeout=120).returncode == 0
    except subprocess.TimeoutExpired:
        return False


class Jobs:
    """Starts jobs, one after the other, with one Fleet and, where tracing is possible, one tracer."""

    def __init__(self, site: Site, plan: Plan, traced: bool, gloo: bool = False) -> None:
        self.site, self.plan, self.traced, self.gloo = site, plan, traced, gloo
        self.path = TRACED if traced else GLOO if gloo else SELF_REPORTED
        self._program = Path()
        self._count = 0

    def start(self) -> None:
        """Build the job and start the tracer, if the job is to be traced."""
        if not self.traced:
            return
        folder, site = self.site.lab.folder, self.site
        self._program = build_job(folder)
        site.start(
            "tracer", str(BIN / "ingero-agent"), "trace", "--db", str(folder / "trace.db"), "--node", NODE,
            "--cluster", site.cluster, "--otlp", f"http://127.0.0.1:{site.ports['otlp/http']}",
            "--otlp-interval", f"{min(1.0, site.interval)}s",
        )  # fmt: skip
        site.lab.wait("the tracer", lambda: '"started"' in self._tracer().words())

    def _tracer(self) -> Running:
        name = self.site.name("tracer")
        return Running(self.site.lab.processes[name], log=self.site.lab.log(name))

    @contextlib.contextmanager
    def run(self) -> Iterator[RunningJob]:
        """Start one job; no rank is late yet."""
        with self._traced() if self.traced else self._self_reported() as running:
            yield running

    @contextlib.contextmanager
    def _traced(self) -> Iterator[RunningJob]:
        plan, folder = self.plan, self.site.lab.folder
        microseconds = round(1e6 * plan.step_seconds)
        arguments = [plan.ranks, FOREVER, microseconds, plan.late, round(plan.extra * microseconds), "on-signal",
                     round(UNIFORM * plan.jitter * microseconds)]  # fmt: skip
        with job(self._program, *arguments) as started:
            libraries = [folder / "libcudart.so.12", folder / "libnccl.so.2"]
            self.site.lab.wait("the tracer to attach", lambda: attached(self._tracer(), *libraries))
            go(started)
            comm = communicator_hash(identity(started.pid))
            yield RunningJob(comm, lambda: started.send_signal(signal.SIGUSR1))

    @contextlib.contextmanager
    def _self_reported(self) -> Iterator[RunningJob]:
        plan, site, self._count = self.plan, self.site, self._count + 1
        comm, program = f"{self._count:016x}", "scripts.gloo" if self.gloo else "scripts.ranks"
        site.start(
            "job", sys.executable, "-m", program, "--fleet", f"http://127.0.0.1:{site.ports['otlp/http']}",
            "--cluster", site.cluster, "--comm", comm, "--ranks", str(plan.ranks), "--step", str(plan.step_seconds),
            "--jitter", str(UNIFORM * plan.jitter), "--late", str(plan.late), "--extra", str(plan.extra),
        )  # fmt: skip
        try:
            site.lab.wait("the job's first collectives", lambda: self.communicator(comm).get("judged"), 120)
            yield RunningJob(comm, lambda: site.lab.signal(site.name("job"), signal.SIGUSR1))
        finally:
            site.lab.stop(site.name("job"))

    def communicator(self, comm: str) -> dict[str, Any]:
        """Fleet's report on a communicator; empty before Fleet knows it."""
        found = self.site.get("diagnostics", f"/api/v1/collectives?cluster_id={self.site.cluster}&limit=10000") or {}
        return next((item for item in found.get("communicators", []) if item["comm"] == comm), {})

    def watch(self, settle: float, linger: float = 0.0) -> Outcome:
        """Run one job: `settle` seconds without a late rank, then until Fleet names it, then `linger` seconds."""
        plan = self.plan
        with self.run() as running:
            _, early = self._follow(running.comm, settle)
            running.hurt()
            seconds, named = self._follow(running.comm, plan.deadline_seconds, plan.late)
            _, after = self._follow(running.comm, linger)
            return Outcome(seconds, early | ((named | after) - {plan.late}), self._why(running.comm))

    def _follow(self, comm: str, seconds: float, wanted: int | None = None) -> tuple[float | None, set[int]]:
        """All ranks accused within so many seconds; ends early, with the time, when the wanted one is named."""
        begun, named = time.monotonic(), set[int]()
        while (passed := time.monotonic() - begun) < seconds:
            self.site.lab.check()
            found = self.communicator(comm)
            if found.get("verdict") == "culprit":
                named.add(found["finding"]["rank"])
                if found["finding"]["rank"] == wanted:
                    return passed, named
            time.sleep(0.05)
        return None, named

    def _why(self, comm: str) -> str:
        """Fleet's explanation of the verdict on the straggler."""
        found = self.site.get("diagnostics", f"/api/v1/collectives?cluster_id={self.site.cluster}") or {}
        return next((str(item["why"]) for item in found.get("culprits", []) if item["comm"] == comm), "")
