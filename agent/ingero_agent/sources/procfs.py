"""Measures a real workload through /proc: CPU time of processes, or steps that the workload counts in a file.

It needs no GPU and no privileges, so it works on every machine. Parsing is separate from reading.
"""

import contextlib
import math
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero_agent.health.signals import SignalReading
from ingero_agent.sources import ReadFailed
from ingero_kit.clock import Clock, Every
from ingero_kit.logs import get
from ingero_kit.proc_stat import stat_fields

log = get(__name__)

MAX_PROCESSES: Final = 4096

SEARCH_SECONDS: Final = 5.0
"""How often all command lines are searched; between two searches the processes found are polled."""

OWN_FLAG: Final = b"--watch-command"
"""Shows a command line that starts an agent, such as that of sudo or a shell: it has the pattern and is no work."""

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class WatchTarget:
    """What to watch: process ids, a pattern over command lines, or a cgroup folder; and a file with a step count."""

    pids: tuple[int, ...] = ()
    pattern: str = ""
    cgroup: Path | None = None
    progress_file: Path | None = None


def parse_stat(text: str) -> tuple[int, float]:
    """Start time (clock ticks) and CPU seconds from a stat line."""
    values = stat_fields(text)
    return int(values[19]), (int(values[11]) + int(values[12])) / _TICKS


def parse_schedstat(text: str) -> float:
    """CPU seconds of one thread from its schedstat line, which has nanoseconds: far finer than stat's clock ticks."""
    return int(text.split()[0]) / 1e9


def parse_cpu(text: str) -> tuple[int, int]:
    """Busy and all clock ticks of the host from the first line of /proc/stat; idle and iowait count as idle."""
    numbers = [int(word) for word in text.splitlines()[0].split()[1:9]]
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)


def parse_memory(text: str) -> dict[str, int]:
    """Sizes by name from /proc/meminfo, kB."""
    return {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+)", text, re.MULTILINE)}


class HostLoad:
    """Processors and memory of the host."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.memory: dict[str, int] = {}
        """Sizes by name as of the last reading, kB."""
        self._proc, self._before = proc, (0, 0)

    def read(self) -> tuple[float, float]:
        """Busy share of the processors since the previous call (at first, since boot); available share of the memory.

        Raises `OSError`, `ValueError`, `KeyError`, `IndexError`.
        """
        busy, total = parse_cpu((self._proc / "stat").read_text())
        before, self._before = self._before, (busy, total)
        self.memory = parse_memory((self._proc / "meminfo").read_text())
        available = self.memory["MemAvailable"] / max(1, self.memory["MemTotal"])
        return (busy - before[0]) / max(1, total - before[1]), available


def parse_cpu_stat(text: str) -> float:
    """CPU seconds of a cgroup from cpu.stat (cgroup v2)."""
    found = re.search(r"^usage_usec (\d+)", text, re.MULTILINE)
    if not found:
        raise ValueError("no usage_usec")
    return int(found.group(1)) / 1e6


@dataclass(frozen=True)
class _CountedSteps:
    """The steps so far, and the time at which they were read, seconds."""

    at: float
    number: float


class ProcfsSource:
    """Rates from differences between two polls.

    Each number carries the time of its own reading: an agent that waits for a processor in the middle of a poll, or
    searches all command lines, would otherwise count too much work in that poll and too little in the next one.
    """

    def __init__(self, target: WatchTarget, proc: Path = Path("/proc"), clock: Clock = time.monotonic) -> None:
        """`clock` tells when a number was read; only differences of its times count."""
        self._target = target
        self._pattern = re.compile(target.pattern) if target.pattern else None
        self._proc = proc
        self._clock = clock
        self._load = HostLoad(proc)
        self._seconds: dict[tuple[int, int], float] = {}
        self._cpu_read_at: float | None = None
        self._counted: _CountedSteps | None = None
        self._used = 0.0
        self._found: list[int] = []
        self._search_due = Every(SEARCH_SECONDS)
        self._absent = ""

    def read(self, now: float) -> SignalReading | None:
        """Compare with the last poll; `None` on the first, and on the first that finds steps."""
        try:
            steps = self._steps()
            busy, memory = self._load.read()
            cpu_at, used = self._cpu_seconds(now)
            self._note_absent(self._no_process(), steps is not None)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise ReadFailed(f"the workload could not be read: {error}") from None
        cpu_before, self._cpu_read_at = self._cpu_read_at, cpu_at
        steps_before, self._counted = self._counted, steps
        if cpu_before is None or cpu_at <= cpu_before:
            return None
        cpu_rate = max(0.0, used) / (cpu_at - cpu_before)
        rate, seconds = cpu_rate, cpu_at - cpu_before
        if self._target.progress_file is not None:
            if steps is None:
                rate = 0.0
            elif steps_before is None or steps.at <= steps_before.at:
                return None
            else:
                seconds = steps.at - steps_before.at
                rate = max(0.0, steps.number - steps_before.number) / seconds
        return SignalReading(
            rate=rate,
            compute=min(1.0, cpu_rate),
            memory=memory,
            cpu=1.0 - busy,
            launches=round(rate * seconds) if rate * seconds >= 1 else int(rate > 0.01),
            seconds=seconds,
        )

    def _no_process(self) -> str:
        """Why no process is watched; empty if one is."""
        target = self._target
        if self._seconds or not (target.pids or target.pattern):
            return ""
        if target.pattern:
            return f"no command line matches {target.pattern!r} (watch_command)"
        return f"no such process: {', '.join(map(str, target.pids[:8]))} (watch_pid)"

    def _note_absent(self, no_process: str, counted: bool) -> None:
        """Log once what of the workload is not there; without it the node counts as idle."""
        file = self._target.progress_file
        no_steps = f"{file} does not exist (progress_file)" if file and not counted else ""
        absent = "; ".join(filter(None, (no_process, no_steps)))
        if absent and absent != self._absent:
            log.warning("workload_absent", reason=absent)
        elif self._absent and not absent:
            log.info("workload_present")
        self._absent = absent

    def pids(self) -> list[int]:
        """The processes of the last poll; those of a cgroup as of now."""
        if self._target.cgroup is None:
            return [pid for pid, _ in self._seconds]
        try:
            return [int(line) for line in (self._target.cgroup / "cgroup.procs").read_text().split()]
        except (OSError, ValueError):
            return []

    def _steps(self) -> _CountedSteps | None:
        """The steps so far; `None` without a file, as before a job has begun.

        Raises `OSError` and `ValueError`, as when the workload is just writing the file: the next poll then counts
        for both.
        """
        file = self._target.progress_file
        if file is None:
            return None
        at = self._clock()
        try:
            words = file.read_text().split()
        except FileNotFoundError:
            return None
        try:
            number = float(words[0])
        except (ValueError, IndexError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{file} holds no number of steps (progress_file)")
        return _CountedSteps(at, number)

    def _cpu_seconds(self, now: float) -> tuple[float, float]:
        """When they were read, and the CPU seconds used since the last poll.

        They are counted by process and start time, so that starts and ends add nothing.
        """
        pids = self._pids(now)
        at = self._clock()
        if self._target.cgroup is not None:
            total = parse_cpu_stat((self._target.cgroup / "cpu.stat").read_text())
            used, self._used = total - self._used, total
            return at, used
        current: dict[tuple[int, int], float] = {}
        for pid in pids:
            try:
                started, seconds = parse_stat((self._proc / str(pid) / "stat").read_text())
                seconds = self._thread_seconds(pid) or seconds
            except (OSError, ValueError, IndexError):
                continue
            current[(pid, started)] = seconds
        used = sum(max(0.0, seconds - self._seconds.get(key, seconds)) for key, seconds in current.items())
        self._seconds = current
        return at, used

    def _thread_seconds(self, pid: int) -> float:
        """CPU seconds over the threads that live now; 0 where the kernel keeps no schedstat."""
        total = 0.0
        for task in os.scandir(self._proc / str(pid) / "task"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += parse_schedstat(Path(task.path, "schedstat").read_text())
        return total

    def _pids(self, now: float) -> list[int]:
        if self._pattern is None:
            return list(self._target.pids)
        if self._search_due.due(now):
            self._found = self._search(self._pattern)
        return self._found

    def _search(self, pattern: re.Pattern[str]) -> list[int]:
        found: list[int] = []
        for entry in os.scandir(self._proc):
            if entry.name.isdigit() and len(found) < MAX_PROCESSES:
                try:
                    command = (self._proc / entry.name / "cmdline").read_bytes().replace(b"\0", b" ")
                except OSError:
                    continue
                own = int(entry.name) == os.getpid() or OWN_FLAG in command
                if not own and pattern.search(command.decode("utf-8", "replace")):
                    found.append(int(entry.name))
        return found
