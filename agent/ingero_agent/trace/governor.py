"""Keeps the cost of tracing for the workload within a budget. Pure: from rates, costs and time to what to probe.

Three groups of probes are distinguished:

* `core`: NCCL, waits for the GPU, graph capture. Rare and the most informative; always on.
* `launch`: kernel and graph launches. Frequent; a count at entry.
* `memory`: allocations, frees and copies that do not wait. Timed at both ends.

Watching the scheduler costs all processes the same and is part of the estimate. It is not a group: it is fully on or
off (`scheduler.py`), and takes at most half of the budget.

A group that is too expensive is not dropped. It is counted in windows (one second of every 4, then 10, then 30), and
the tracer scales the counts up, so that exported rates do not change. The order is the table `STEPS`. The true rates
are known at every step, so the cost of another step is computed, not tried. When the cost is too high, the governor
moves to the first step that fits. It steps back once that step would have fitted, with a reserve, for a whole minute.

The cost of a call depends on the time since the previous one, because other processes and the program itself replace
the contents of the caches. Calls that follow within milliseconds have the warm cost, others the cold cost. The kernel
counts the two separately.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

CORE, LAUNCH, MEMORY, SCHEDULER = "core", "launch", "memory", "scheduler"
GROUPS: Final = (CORE, LAUNCH, MEMORY)

ENTRY, PAIR, COLLECTIVE, WAIT, STEP = "entry", "pair", "collective", "wait", "step"
"""Kinds of cost: a counted call, a timed call, a collective, a wait for the GPU, and the extra cost of a first
instruction that the kernel must single-step."""

DEFAULT_BUDGET: Final = 0.005
"""Share of one processor that tracing may cost the most heavily traced process."""

WINDOW_SECONDS: Final = 1.0

STEPS: Final[tuple[Mapping[str, int], ...]] = (
    {LAUNCH: 1, MEMORY: 1},
    {LAUNCH: 4, MEMORY: 1},
    {LAUNCH: 10, MEMORY: 1},
    {LAUNCH: 10, MEMORY: 4},
    {LAUNCH: 10, MEMORY: 10},
    {LAUNCH: 30, MEMORY: 30},
    {LAUNCH: 100, MEMORY: 100},
)
"""Steps: a group is counted for one second out of this many."""


BUDGET_FILL: Final = 0.8
"""Share of the budget that the estimate may take. The rest covers errors of the estimate: repeated measurements on
one machine differ by a tenth to a fifth, and a thread that works for 90 % of the time loses a tenth more of its
work."""

STEP_BACK_FILL: Final = 0.8
"""Share of the allowed estimate that a step back must fit into."""

OVER_SECONDS: Final = 3.0
CALM_SECONDS: Final = 60.0
"""How long the cost must be too high, or low enough for a step back, before the governor changes the step."""


@dataclass(frozen=True)
class ProbeCost:
    """Nanoseconds that one probed call costs the workload, with warm and with cold caches."""

    warm: float
    cold: float

    def at_least(self, other: "ProbeCost") -> "ProbeCost":
        """The larger of both; cold never below warm."""
        warm = max(self.warm, other.warm)
        return ProbeCost(warm, max(self.cold, other.cold, warm))

    def share(self, rate: "CallRate") -> float:
        """Share of one processor that calls at this rate take."""
        return (rate.calls * self.warm + rate.cold * (self.cold - self.warm)) / 1e9


ASSUMED_COSTS: Final[Mapping[str, ProbeCost]] = {
    ENTRY: ProbeCost(1000.0, 5000.0), PAIR: ProbeCost(2000.0, 8000.0), COLLECTIVE: ProbeCost(3000.0, 15_000.0),
    WAIT: ProbeCost(2500.0, 8000.0), STEP: ProbeCost(8000.0, 10_000.0),
}  # fmt: skip
"""Costs that are assumed where nothing could be measured."""


@dataclass(frozen=True)
class CallRate:
    """Calls a second, and how many of them are cold."""

    calls: float = 0.0
    cold: float = 0.0

    def __add__(self, other: "CallRate") -> "CallRate":
        return CallRate(self.calls + other.calls, self.cold + other.cold)


@dataclass(frozen=True)
class GovernorState:
    """The current step, and since when (seconds) the cost has been too high, or low enough for a step back."""

    step: int = 0
    over_since: float | None = None
    calm_since: float | None = None


def duty(step: int, group: str) -> float:
    """Share of the time in which a group is counted."""
    return 1.0 / STEPS[step].get(group, 1)


def cost_at(step: int, full: Mapping[str, float]) -> float:
    """Cost at a step, from what each group would cost if it were always on."""
    return sum(cost * duty(step, group) for group, cost in full.items())


Rates = Mapping[str, Mapping[str, CallRate]]
"""Call rates by group and by kind of cost."""


def full_cost(rates: Rates, costs: Mapping[str, ProbeCost]) -> dict[str, float]:
    """Share of one processor for each group, always on."""
    return {group: sum(costs[kind].share(rate) for kind, rate in by_kind.items()) for group, by_kind in rates.items()}


def advance(state: GovernorState, full: Mapping[str, float], now: float, budget: float) -> GovernorState:
    """The state after a poll. `full` is what each group would cost always on, as a share of one processor.

    `budget`: the share of one processor that tracing may cost the most heavily traced process.
    """
    last, limit = len(STEPS) - 1, budget * BUDGET_FILL
    if cost_at(state.step, full) > limit and state.step < last:
        since = state.over_since if state.over_since is not None else now
        if now - since < OVER_SECONDS:
            return replace(state, over_since=since, calm_since=None)
        fitting = (step for step in range(state.step + 1, last) if cost_at(step, full) <= limit)
        return GovernorState(next(fitting, last))
    if state.step and cost_at(state.step - 1, full) <= limit * STEP_BACK_FILL:
        since = state.calm_since if state.calm_since is not None else now
        if now - since < CALM_SECONDS:
            return replace(state, over_since=None, calm_since=since)
        return GovernorState(state.step - 1)
    return GovernorState(state.step)


PERIODS: Final = (1, 2, 5)
"""How much longer the agent waits between polls, by how far its own work exceeds its own budget."""


def reader_level(level: int, share: float, budget: float) -> int:
    """The next level of `PERIODS`, from the share of a processor that the agent itself used at this level."""
    if share > budget:
        return min(level + 1, len(PERIODS) - 1)
    if level and share * PERIODS[level] / PERIODS[level - 1] < budget / 2:
        return level - 1
    return level


@dataclass(frozen=True)
class DutyCycle:
    """Whether a group is being counted now: the first second of every `1 / duty` seconds, from the step's start."""

    step: int = 0
    begun: float = 0.0

    def is_open(self, group: str, now: float) -> bool:
        """Whether the group is counted at this time, seconds."""
        every = STEPS[self.step].get(group, 1)
        return every == 1 or (now - self.begun) % (every * WINDOW_SECONDS) < WINDOW_SECONDS

    def next_change(self, now: float) -> float:
        """Seconds until any group may open or close; infinite while everything is on."""
        return WINDOW_SECONDS - (now - self.begun) % WINDOW_SECONDS if self.step else float("inf")
