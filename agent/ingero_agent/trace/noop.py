"""The tracer's protocol, and the tracer that counts nothing where no eBPF program can be loaded."""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.events import Event
from ingero_agent.trace.governor import ASSUMED_COSTS, ProbeCost
from ingero_agent.trace.libraries import MappedLibrary

NOOP_MODE: Final = "none"
"""Mode of a tracer that counts nothing. Its database gets no rows, so that silence is not taken for an idle job."""


class SchedulerMonitor(Protocol):
    """Watches how long traced processes wait for a processor."""

    budget: float
    share: float
    switch_ns: float
    why_not: str

    @property
    def on(self) -> bool:
        """Whether the scheduler is watched now."""

    def adjust(self, now: float) -> None:
        """Turn watching off or on, depending on its cost. `now`: monotonic seconds."""


class Tracer(Protocol):
    """Counts the calls of processes."""

    mode: str
    costs: Mapping[str, ProbeCost]
    helper_peak_bytes: int
    no_returns: str
    found: Mapping[int, tuple[MappedLibrary, ...]]
    hidden_processes: Mapping[str, int]
    """Processes that may not be read, by what is missing."""

    blocked_reason: str
    """Why nothing can be counted although processes may make calls; empty otherwise."""

    @property
    def single_stepped(self) -> Collection[int]:
        """Numbers of functions whose first instruction makes a probe expensive."""

    @property
    def scheduler(self) -> SchedulerMonitor:
        """The monitor of the scheduler."""

    @property
    def libraries(self) -> int:
        """Libraries that are attached."""

    @property
    def replaced(self) -> int:
        """Libraries written over while attached."""

    @property
    def unattached(self) -> int:
        """Libraries that could not be attached to because there are too many."""

    @property
    def left_alone(self) -> int:
        """Processes that the selection leaves out."""

    def scan(self) -> None:
        """Attach to what is new."""

    def switch(self, group: str, on: bool) -> None:
        """Count a group, or stop."""

    def sample(self, mask: int) -> None:
        """Keep one of so many collectives."""

    def read_counts(self) -> list[CallCount]:
        """The calls since the last read."""

    def read_events(self) -> list[Event]:
        """Single collectives, communicators, slow calls."""

    def recalibrate(self) -> None:
        """Measure again what a probe costs."""

    def lost(self) -> dict[str, int]:
        """What could not be counted, by reason."""

    def pushed_off(self, pid: int, since_ns: int) -> list[int]:
        """Processes that preempted this one since then."""

    def close(self) -> None:
        """Detach."""


class _NoopScheduler:
    budget = share = switch_ns = 0.0
    on = False

    def __init__(self, why_not: str) -> None:
        self.why_not = why_not

    def adjust(self, now: float) -> None:
        pass


class NoopTracer:
    """Counts nothing, so that everything else of the agent still runs. `reason`: why no program could be loaded."""

    def __init__(self, reason: str) -> None:
        self.mode, self.helper_peak_bytes, self.no_returns, self.blocked_reason = NOOP_MODE, 0, reason, reason
        self.costs: Mapping[str, ProbeCost] = ASSUMED_COSTS
        self.single_stepped: Collection[int] = ()
        self.found: Mapping[int, tuple[MappedLibrary, ...]] = {}
        self.hidden_processes: Mapping[str, int] = {}
        self.scheduler = _NoopScheduler(reason)
        self.libraries = self.replaced = self.unattached = self.left_alone = 0

    def scan(self) -> None:
        """There is nothing to attach."""

    def switch(self, group: str, on: bool) -> None:
        """There is no group."""

    def sample(self, mask: int) -> None:
        """There are no collectives."""

    def read_counts(self) -> list[CallCount]:
        """Nothing."""
        return []

    def read_events(self) -> list[Event]:
        """Nothing."""
        return []

    def recalibrate(self) -> None:
        """There is no probe."""

    def lost(self) -> dict[str, int]:
        """Nothing was lost."""
        return {}

    def pushed_off(self, pid: int, since_ns: int) -> list[int]:
        """No process is known."""
        return []

    def close(self) -> None:
        """There is nothing to detach."""
