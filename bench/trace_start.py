"""Compares shipped programs of the tracer with those that BCC compiles: `make bench-trace-start` as root.

A job that has mapped a CUDA runtime waits; the time from the start of the tracer until its probes are attached to it
is taken. Processor time is that of the tracer and of its helper up to then. The memory (PSS) of both is read
every five milliseconds. Starts of the two ways alternate, so that neighbours of the machine slow both. The packages
are those that each way needs beside Python.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from ingero_testing.gpu_job import RUNTIME, attached, children, compile_c, job  # noqa: E402
from ingero_testing.processes import BIN, process  # noqa: E402

PACKAGES: Final = {"prebuilt": "libbpf1", "compiled": "python3-bpfcc"}
WAITING: Final = "#include <stdio.h>\nint main(void) { return getchar() == 0; }\n"
PAUSE: Final = 0.005
REST_SECONDS: Final = 5.0
LONGEST: Final = 60.0
_TICK: Final = os.sysconf("SC_CLK_TCK")


class Start(NamedTuple):
    """Of one start, by the unit that the table shows."""

    seconds: float
    processor: float
    peak: float
    rest: float


def proportional(pids: Iterable[int]) -> float:
    """PSS of processes together, megabytes; a process that is gone has none."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


def processor(pid: int) -> float:
    """Seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICK


def start(folder: Path, library: Path, programs: str) -> Start:
    """Start the tracer once, and end it."""
    log, began, peak = folder / "trace.log", time.monotonic(), 0.0
    command = [str(BIN / "python"), "-m", "ingero_agent", "trace", "--db", str(folder / "trace.db"),
               "--programs", programs, "--period", "1"]  # fmt: skip
    with process(log, *command) as agent:
        pid = agent.process.pid
        while not attached(agent, library):
            if agent.process.poll() is not None or time.monotonic() - began > LONGEST:
                raise SystemExit(f"bench-trace-start: the tracer did not attach:\n{agent.words()}")
            peak = max(peak, proportional([pid, *children(pid)]))
            time.sleep(PAUSE)
        seconds, used = time.monotonic() - began, processor(pid)
        if f'"origin": "{programs}"' not in agent.words():
            raise SystemExit(f"bench-trace-start: the programs are not {programs}:\n{agent.words()}")
        time.sleep(REST_SECONDS)
        return Start(seconds, used, peak, proportional([pid]))


def needed(package: str) -> dict[str, int]:
    """Installed packages that a package needs, with it, and their kilobytes."""
    command = ["apt-cache", "depends", "--recurse", "--installed", "--no-recommends", "--no-suggests",
               "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", package]  # fmt: skip
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = sorted({line for line in text.splitlines() if line and not line.startswith((" ", "<"))})
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${Installed-Size}\\n", *names], capture_output=True, text=True
    ).stdout
    return {name: int(size) for name, _, size in (line.partition(" ") for line in shown.splitlines()) if size}


def package_megabytes(package: str) -> float:
    """Size of what a package needs beyond Python and the packages that every Debian has."""
    there = needed("python3") | needed("apt")
    return sum(size for name, size in needed(package).items() if name not in there) * 1024 / 1e6


def row(label: str, unit: str, digits: int, found: dict[str, list[Start]], value: Callable[[Start], float]) -> str:
    """One line of the table: medians, and the range."""
    cells = []
    for programs in PACKAGES:
        values = sorted(value(one) for one in found[programs])
        low, middle, high = (f"{one:.{digits}f}" for one in (values[0], statistics.median(values), values[-1]))
        cells.append(f"{middle} {unit} ({low} to {high})")
    return f"| {label} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=10, help="starts of each way")
    options = parser.parse_args()
    if os.getuid() or not shutil.which("cc"):
        raise SystemExit("bench-trace-start: needs root and a C compiler")
    found: dict[str, list[Start]] = {programs: [] for programs in PACKAGES}
    with tempfile.TemporaryDirectory() as name:
        library = compile_c(Path(name), "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
        with job(compile_c(Path(name), "job", WAITING, "-Wl,--no-as-needed", str(library))):
            for turn in range(options.starts + 1):
                for programs in PACKAGES:
                    folder = Path(name) / f"{programs}{turn}"
                    folder.mkdir()
                    one = start(folder, library, programs)
                    if turn:  # the first of each fills the page cache
                        found[programs].append(one)
    print(f"| median of {options.starts} starts (range) | shipped, libbpf | compiled, BCC |\n| --- | --- | --- |")
    print(row("until the probes are attached", "s", 2, found, lambda one: one.seconds))
    print(row("processor time until then", "s", 2, found, lambda one: one.processor))
    print(row("peak memory of tracer and helper, PSS", "MB", 0, found, lambda one: one.peak))
    print(row(f"tracer's memory {REST_SECONDS:.0f} s later, PSS", "MB", 0, found, lambda one: one.rest))
    sizes = [f"{package_megabytes(package):.1f} MB (`{package}`)" for package in PACKAGES.values()]
    print(f"| packages beside Python, installed | {' | '.join(sizes)} |")


if __name__ == "__main__":
    main()
