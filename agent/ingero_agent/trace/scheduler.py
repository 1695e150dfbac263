"""Watches the scheduler for the traced processes: on while switches are few enough for the cost of it."""

import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ingero_agent.trace import kernel
from ingero_agent.trace.probes.table import SCHED_PROGRAMS
from ingero_kit.logs import get

log = get(__name__)

MAX_SWITCHES: Final = 50_000.0
"""Switches of the whole machine a second above which the scheduler is left alone: each costs about 0.3 µs."""


def watched(on: bool, switches_a_second: float) -> bool:
    """Whether to watch from now on; begins again only at half of the limit."""
    return switches_a_second <= (MAX_SWITCHES if on else MAX_SWITCHES / 2)


def parse_switches(text: str) -> int:
    """Switches since the start of the machine, from /proc/stat. Raises `ValueError`."""
    for line in text.splitlines():
        if line.startswith("ctxt "):
            return int(line.split()[1])
    raise ValueError("/proc/stat has no line ctxt")


class Scheduler:
    """`why_not`: why it cannot be watched, empty while it can. `on`: whether it is watched now."""

    def __init__(self, descriptors: Mapping[str, int], why_not: str) -> None:
        self._programs = {name: descriptors[name] for name in SCHED_PROGRAMS if name in descriptors}
        self.why_not = why_not
        self._links: list[int] = []
        self._followed: set[int] = set()
        self._tracked = None if why_not else kernel.Map(descriptors["tracked"], 4, 4)
        self._before: tuple[int, float] | None = None
        self.open()
        if self.why_not:
            log.warning("scheduler_not_watched", reason=self.why_not)

    @property
    def on(self) -> bool:
        """Whether it is watched now."""
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

    def judge(self, now: float) -> None:
        """Look how much there is to watch, and leave off or begin again. `now`: monotonic seconds."""
        try:
            switches = parse_switches(Path("/proc/stat").read_text())
        except (OSError, ValueError):
            return
        before, self._before = self._before, (switches, now)
        if before is None or now <= before[1] or self.why_not:
            return
        rate = (switches - before[0]) / (now - before[1])
        if watched(self.on, rate) != self.on:
            self.close() if self.on else self.open()
            log.info("scheduler", watched=self.on, switches_a_second=round(rate))

    def close(self) -> None:
        """Leave off."""
        for link in self._links:
            os.close(link)
        self._links.clear()
