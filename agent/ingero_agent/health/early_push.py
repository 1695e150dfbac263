"""Decides when a node whose throughput falls pushes early: at once, and when Fleet may have confirmed the fall."""

from dataclasses import dataclass
from typing import Final

FALL_RATIO: Final = 0.75
"""Share of its normal rate, over a whole push interval, below which a node pushes early."""

PUSH_TIMES: Final = (0.0, 0.9, 1.2, 1.5)
"""When it pushes, in push intervals since the fall. Fleet judges after 1, so the later pushes fetch the verdict."""

QUIET_INTERVALS: Final = 12.0
"""Push intervals without early pushes after the work recovered before Fleet named the node. Without it, a node whose
throughput varies would push early all day."""

SUSPECT_INTERVALS: Final = 3.0
"""Push intervals after the fall in which the baseline is frozen, because Fleet may still name the node."""


@dataclass(frozen=True)
class EarlyPush:
    """When throughput fell (seconds), how many early pushes followed, and until when there are none."""

    since: float | None = None
    pushes: int = 0
    quiet_until: float = 0.0

    def suspect(self, now: float, interval: float) -> bool:
        """Whether the fall may be the beginning of a fault. One that lasts longer unnamed is the new normal."""
        return self.since is not None and now - self.since < SUSPECT_INTERVALS * interval


def advance(
    state: EarlyPush, rate: float, normal: float, now: float, interval: float, *, named: bool = False
) -> tuple[EarlyPush, bool]:
    """Take the rate over a whole interval (seconds). Returns the next state and whether to push now.

    A node that Fleet has `named` a straggler needs no early push, and has no quiet time after its recovery.
    """
    if named:
        return EarlyPush(), False
    if rate >= FALL_RATIO * normal:
        return (state if state.since is None else EarlyPush(quiet_until=now + QUIET_INTERVALS * interval)), False
    if state.since is None and now < state.quiet_until:
        return state, False
    since = now if state.since is None else state.since
    push = state.pushes < len(PUSH_TIMES) and now - since >= PUSH_TIMES[state.pushes] * interval
    return EarlyPush(since, state.pushes + push), push
