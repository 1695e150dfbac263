"""The node's life: calibrating, active, idle, and stale when it cannot be read. A frozen state machine."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

IDLE_LOOKS: Final = 3
FAILED_LOOKS: Final = 3


class Phase(StrEnum):
    """Where the node is. `stale` never travels: a stale node is silent."""

    CALIBRATING = "calibrating"
    ACTIVE = "active"
    IDLE = "idle"
    STALE = "stale"


@dataclass(frozen=True)
class Life:
    """Phase and the counts that move it."""

    warmup: int = 30
    phase: Phase = Phase.CALIBRATING
    looks: int = 0
    without_work: int = 0
    failures: int = 0

    @classmethod
    def restored(cls, warmup: int) -> "Life":
        """The life of a node whose baseline was restored."""
        return cls(warmup=warmup, phase=Phase.ACTIVE, looks=warmup)


@dataclass(frozen=True)
class Step:
    """The next life, and what to do: reset the baseline, push, or neither."""

    life: Life
    reset: bool = False
    push: bool = True


def fail(life: Life) -> Step:
    """A look that failed: nothing is learnt from it and nothing is pushed."""
    failures = life.failures + 1
    phase = Phase.STALE if failures >= FAILED_LOOKS else life.phase
    return Step(replace(life, failures=failures, phase=phase), push=False)


def advance(life: Life, launches: int) -> Step:
    """A look that succeeded."""
    life = replace(life, failures=0)
    if life.phase is Phase.STALE:
        return Step(replace(life, phase=Phase.CALIBRATING, looks=1, without_work=0), reset=True, push=False)
    if life.phase is Phase.IDLE:
        if launches <= 0:
            return Step(life)
        return Step(replace(life, phase=Phase.CALIBRATING, looks=1, without_work=0), reset=True, push=False)
    without_work = 0 if launches > 0 else life.without_work + 1
    if life.phase is Phase.ACTIVE:
        phase = Phase.IDLE if without_work >= IDLE_LOOKS else Phase.ACTIVE
        return Step(replace(life, phase=phase, without_work=without_work))
    looks = life.looks + (launches > 0)
    phase = Phase.ACTIVE if looks >= life.warmup else Phase.CALIBRATING
    return Step(replace(life, phase=phase, looks=looks, without_work=without_work))
