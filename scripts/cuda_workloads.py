"""The demo's workloads, observed by their CUDA and NCCL calls: a C job for each node and one trace agent for all.

The libraries are NVIDIA's own where `make gpu-libraries` has installed them, otherwise stand-ins with the same names
and signatures.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

from ingero_testing.gpu_job import COLLECTIVES, RUNTIME, compile_c, nvidia_libraries
from scripts.lab import BIN, Site

SOURCE = Path(__file__).with_name("cuda_workload.c")
STEPS_A_SECOND = 40

TRACE_PERIOD, OWN_BUDGET = 0.1, 0.1
"""Settings of the trace agent: it reads counts as often as the demo's short push interval needs, which takes more
than its default limit of 1 % of a core."""


@dataclass(frozen=True)
class Libraries:
    """The CUDA runtime and NCCL that the job calls, and a description of them."""

    runtime: Path
    nccl: Path
    words: str


def why_not() -> str:
    """Why this machine cannot trace, with the fix; empty when it can."""
    if not shutil.which("cc"):
        return "there is no C compiler; install one (Debian: apt-get install gcc libc6-dev)"
    found = subprocess.run([BIN / "ingero-agent", "check"], capture_output=True, text=True)
    if found.returncode == 0:
        return ""
    cures = [line.partition("fix: ")[2] for line in found.stdout.splitlines() if "fix: " in line]
    missing = [line.split(maxsplit=2)[2] for line in found.stdout.splitlines() if line.startswith("missing")]
    return f"{missing[0] if missing else 'it is not allowed here'}; {cures[0] if cures else 'see ingero-agent check'}"


def find_libraries(folder: Path) -> Libraries:
    """NVIDIA's own libraries, or stand-ins that are built into `folder`."""
    found = nvidia_libraries()
    if found:
        return Libraries(*found, "NVIDIA's own libcudart and libnccl")
    shared = ("-shared", "-fPIC", "-pthread")
    return Libraries(
        compile_c(folder, "libcudart.so.12", RUNTIME, *shared),
        compile_c(folder, "libnccl.so.2", COLLECTIVES, *shared, "-DHASH_AT=64"),
        "stand-ins for libcudart and libnccl (`make gpu-libraries` downloads NVIDIA's own, 200 MB)",
    )


class CudaWorkloads:
    """Starts the jobs and the trace agent of a site, and gives the flags by which its agents watch them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.libraries = find_libraries(site.lab.folder)
        self._database = site.file("trace", "db")

    def start(self) -> None:
        """Start everything; when this returns, the trace agent counts."""
        site, libraries = self.site, self.libraries
        program = compile_c(site.lab.folder, "cuda_workload", SOURCE.read_text(), "-ldl")
        site.start(
            "trace", str(BIN / "ingero-agent"), "trace", "--db", str(self._database), "--period", str(TRACE_PERIOD),
            "--only-command", re.escape(str(program)), "--own-budget", str(OWN_BUDGET),
        )  # fmt: skip
        for node in site.nodes:
            site.start(
                f"{node}-workload", str(program), str(libraries.runtime), str(libraries.nccl), str(STEPS_A_SECOND)
            )
        log = site.lab.log(site.name("trace"))
        inodes = [f'"inode": {file.stat().st_ino},' for file in (libraries.runtime, libraries.nccl)]

        def counting() -> bool:
            lines = [line for line in log.read_text().splitlines() if '"event": "attached"' in line]
            return all(any(inode in line for line in lines) for inode in inodes)

        site.lab.wait("the trace agent to attach", counting)

    def watching(self, node: str) -> tuple[str, ...]:
        """Flags of the agent over a node's job."""
        pid = self.site.lab.processes[self.site.name(f"{node}-workload")].pid
        return (
            "--signal-db-path", str(self._database), "--signal-pid", str(pid)
        )  # fmt: skip
