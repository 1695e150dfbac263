"""Watches the scheduler for the traced processes, as long as the number of switches keeps the cost low enough."""

import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ingero_agent.trace import kernel
from ingero_agent.trace.governor import DEFAULT_BUDGET
from ingero_agent.trace.probes.table import SCHED_PROGRAMS
from ingero_agent.trace.tracer_base import SchedulerMonitor
from ingero_kit.clock import Every
from ingero_kit.logs import get

log = get(__name__)

SHARE_OF_BUDGET: Final = 0.5
"""Share of the tracing budget that watching the scheduler may take."""

FLOOR_NS: Final = 300.0
"""Least cost that is assumed for a watched switch, nanoseconds."""

TRAMPOLINE_NS: Final = 50.0
"""Nanoseconds that the kernel's own count of a program's time leaves out on each run."""

MEASURE_SECONDS: Final = 3600.0
_ENABLE_STATISTICS: Final = 32


def should_watch(on: bool, share: float, budget: float) -> bool:
    """Whether to watch from now on, by the share of every processor that it costs; resumes at half of the limit."""
    return share <= budget * SHARE_OF_BUDGET * (1.0 if on else 0.5)


def cost_ns(switch: tuple[int, int], wakeup: tuple[int, int]) -> float:
    """Nanoseconds a switch costs, from (nanoseconds, runs) of the two programs; the floor when it never ran."""
    if not switch[1]:
        return FLOOR_NS
    spent = switch[0] + wakeup[0] + TRAMPOLINE_NS * (switch[1] + wakeup[1])
    return max(FLOOR_NS, spent / switch[1])


def parse_switches(text: str) -> int:
    """Switches since the start of the machine, from /proc/stat. Raises `ValueError`."""
    for line in text.splitlines():
        if line.startswith("ctxt "):
            return int(line.split()[1])
    raise ValueError("/proc/stat has no line ctxt")


def process_of(tid: int) -> int:
    """The process of a thread; 0 when it is gone."""
    try:
        text = Path(f"/proc/{tid}/status").read_text(errors="replace")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Tgid:")), 0)


class EbpfSchedulerMonitor(SchedulerMonitor):
    """Watches the scheduler through eBPF."""

    def __init__(self, descriptors: Mapping[str, int], why_not: str, budget: float = DEFAULT_BUDGET) -> None:
        super().__init__(why_not)
        self.budget, self.switch_ns = budget, FLOOR_NS
        self._processors = os.cpu_count() or 1
        self._statistics: int | None = None
        self._measure_due = Every(MEASURE_SECONDS)
        self._pushed = None if why_not else kernel.Map(descriptors["pushed"], 8, 8)
        self._programs = {name: descriptors[name] for name in SCHED_PROGRAMS if name in descriptors}
        self._links: list[int] = []
        self._followed: set[int] = set()
        self._tracked = None if why_not else kernel.Map(descriptors["tracked"], 4, 4)
        self._before: tuple[int, float] | None = None
        self.open()
        if self.why_not:
            log.warning("scheduler_not_watched", reason=self.why_not)

    @property
    def on(self) -> bool:
        return bool(self._links)

    def open(self) -> None:
        """Begin to watch."""
        if self.why_not or self._links:
            return
        try:
            for name, tracepoint in SCHED_PROGRAMS.items():
                self._links.append(kernel.link_tracepoint(self._programs[name], tracepoint))
        except OSError as error:
            self.close()
            self.why_not = f"the kernel refuses to be watched: {error}"

    def follow(self, pids: Iterable[int]) -> None:
        """Watch these processes and no others."""
        if self._tracked is None:
            return
        wanted = set(pids)
        for pid in wanted - self._followed:
            with suppress(OSError):
                self._tracked.put(struct.pack("=I", pid), struct.pack("=I", 1))
        for pid in self._followed - wanted:
            self._tracked.delete(struct.pack("=I", pid))
        self._followed = wanted

    def adjust(self, now: float) -> None:
        try:
            switches = parse_switches(Path("/proc/stat").read_text())
        except (OSError, ValueError):
            return
        before, self._before = self._before, (switches, now)
        if before is None or now <= before[1] or self.why_not:
            return
        rate = (switches - before[0]) / (now - before[1])
        self._measure(now)
        would = rate * self.switch_ns / 1e9 / self._processors
        if should_watch(self.on, would, self.budget) != self.on:
            self.close() if self.on else self.open()
            log.info(
                "scheduler", should_watch=self.on, switches_a_second=round(rate), nanoseconds=round(self.switch_ns)
            )
        self.share = would if self.on else 0.0

    def pushed_off(self, pid: int, since_ns: int) -> list[int]:
        """Processes that ran in place of a process's threads since then (monotonic), most recent first."""
        if self._pushed is None:
            return []
        rows = ((*struct.unpack("=II", key), *struct.unpack("=Q", at)) for key, at in self._pushed.items(4096))
        recent = sorted(((at, by) for mine, by, at in rows if mine == pid and at >= since_ns), reverse=True)
        found = dict.fromkeys(process_of(by) for _, by in recent)
        return [one for one in found if one not in (0, pid)]

    def _measure(self, now: float) -> None:
        """Let the kernel measure the programs' time for one round, every hour."""
        if self._statistics is not None:
            with suppress(OSError, ValueError, KeyError):
                switch, wakeup = (self._runs(name) for name in ("on_switch", "on_wakeup"))
                self.switch_ns = cost_ns(switch, wakeup)
            os.close(self._statistics)
            self._statistics = None
        elif self.on and self._measure_due.due(now):
            with suppress(OSError):
                self._statistics = kernel.bpf(_ENABLE_STATISTICS, struct.pack("=I", 0))

    def _runs(self, name: str) -> tuple[int, int]:
        text = Path(f"/proc/self/fdinfo/{self._programs[name]}").read_text()
        values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return int(values["run_time_ns"]), int(values["run_cnt"])

    def close(self) -> None:
        """Stop watching."""
        kernel.close_all(self._links)
        self._links.clear()
        if self._statistics is not None:
            os.close(self._statistics)
            self._statistics = None
