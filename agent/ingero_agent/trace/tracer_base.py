"""The interface of tracers, with a tracer that counts nothing where no eBPF program can be loaded."""

from collections.abc import Collection, Mapping
from typing import Final

from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.events import Event
from ingero_agent.trace.governor import ASSUMED_COSTS, ProbeCost
from ingero_agent.trace.libraries import MappedLibrary

NOOP_MODE: Final = "none"
"""Mode of a tracer that counts nothing. Its database gets no rows, so that silence is not taken for an idle job."""


class SchedulerMonitor:
    """Watches how long traced processes wait for a processor; this class watches nothing.

    `why_not`: why it cannot be watched, empty if it can. `on`: whether it is watched now.
    `share`: what it costs every processor, 0 to 1. `switch_ns`: what a switch costs, by the kernel's own count.
    """

    budget = share = switch_ns = 0.0

    def __init__(self, why_not: str = "") -> None:
        self.why_not = why_not

    @property
    def on(self) -> bool:
        """Whether the scheduler is watched now."""
        return False

    def adjust(self, now: float) -> None:
        """Compute the cost of watching, and stop or start accordingly. `now`: monotonic seconds."""


class Tracer:
    """Counts the calls of processes; this class counts nothing, so that everything else of the agent still runs.

    `programs`: "prebuilt" (as shipped) or "compiled" (with BCC).
    `no_returns`: why calls are counted but not timed, empty if they are timed. `blocked_reason`: why nothing can be
    counted although processes may make calls. `hidden_processes`: processes that may not be read, by what is missing.
    `excluded`: processes with GPU libraries that the selection leaves out.

    As of the last scan: `libraries` are attached, `unattached` are too many to attach to, `replaced` were overwritten
    while they were attached (since the start). `single_stepped`: numbers of attached functions whose first
    instruction makes a probe expensive.
    """

    mode = programs = NOOP_MODE
    helper_peak_bytes = excluded = libraries = replaced = unattached = 0
    costs: Mapping[str, ProbeCost] = ASSUMED_COSTS
    single_stepped: Collection[int] = ()

    def __init__(self, reason: str = "") -> None:
        """`reason`: why no program could be loaded."""
        self.no_returns = self.blocked_reason = reason
        self.found: Mapping[int, tuple[MappedLibrary, ...]] = {}
        self.hidden_processes: Mapping[str, int] = {}
        self.scheduler = SchedulerMonitor(reason)

    def scan(self) -> None:
        """Attach to new libraries, detach from those no longer in use."""

    def switch(self, group: str, on: bool) -> None:
        """Count a group of the governor's, or stop."""

    def sample(self, mask: int) -> None:
        """Keep only a sample of the single collectives."""

    def read_counts(self) -> list[CallCount]:
        """The calls since the last poll."""
        return []

    def read_events(self) -> list[Event]:
        """Single collectives, communicators and slow calls since the last time, oldest first."""
        return []

    def recalibrate(self) -> None:
        """Measure again what a probe costs: other processes and clock rates change it. Takes a second."""

    def lost(self) -> dict[str, int]:
        """Calls that could not be counted since the start, by reason; reasons with none are left out."""
        return {}

    def pushed_off(self, pid: int, since_ns: int) -> list[int]:
        """Processes that ran in a process's place since then (monotonic nanoseconds), most recent first."""
        return []

    def close(self) -> None:
        """Detach."""
