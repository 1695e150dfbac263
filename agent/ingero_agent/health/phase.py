"""The phases of a node: calibrating, active, idle, and stale when it cannot be read. A frozen state machine."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

IDLE_POLLS: Final = 3
FAILED_POLLS: Final = 3


class Phase(StrEnum):
    """The phase of a node. `stale` is never pushed: a stale node is silent."""

    CALIBRATING = "calibrating"
    ACTIVE = "active"
    IDLE = "idle"
    STALE = "stale"


@dataclass(frozen=True)
class PhaseState:
    """The phase, and the counters that its transitions depend on."""

    warmup: int = 30
    phase: Phase = Phase.CALIBRATING
    polls: int = 0
    idle_polls: int = 0
    failures: int = 0

    @classmethod
    def restored(cls, warmup: int) -> "PhaseState":
        """The state of a node whose baseline was restored."""
        return cls(warmup=warmup, phase=Phase.ACTIVE, polls=warmup)


@dataclass(frozen=True)
class PhaseStep:
    """The next state, and what to do: reset the baseline, push, or neither."""

    state: PhaseState
    reset: bool = False
    push: bool = True


def fail(state: PhaseState) -> PhaseState:
    """The state after a failed poll: the baseline learns nothing and nothing is pushed."""
    failures = state.failures + 1
    return replace(state, failures=failures, phase=Phase.STALE if failures >= FAILED_POLLS else state.phase)


def advance(state: PhaseState, launches: int) -> PhaseStep:
    """The step after a successful poll."""
    state = replace(state, failures=0)
    if state.phase is Phase.IDLE and launches <= 0:
        return PhaseStep(state)
    if state.phase in (Phase.STALE, Phase.IDLE):
        return PhaseStep(replace(state, phase=Phase.CALIBRATING, polls=1, idle_polls=0), reset=True, push=False)
    idle_polls = 0 if launches > 0 else state.idle_polls + 1
    if state.phase is Phase.ACTIVE:
        phase = Phase.IDLE if idle_polls >= IDLE_POLLS else Phase.ACTIVE
        return PhaseStep(replace(state, phase=phase, idle_polls=idle_polls))
    polls = state.polls + (launches > 0)
    phase = Phase.ACTIVE if polls >= state.warmup else Phase.CALIBRATING
    return PhaseStep(replace(state, phase=phase, polls=polls, idle_polls=idle_polls))
