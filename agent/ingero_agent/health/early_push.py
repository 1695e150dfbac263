"""Decides when a node whose throughput falls pushes early: at once, and when Fleet may have confirmed the fall."""

from dataclasses import dataclass
from typing import Final

FALL_RATIO: Final = 0.8
"""Share of its normal rate, over a whole push interval, below which a node pushes early. Work that is halved is
below it after two fifths of an interval."""

PUSH_TIMES: Final = (0.0, 0.2, 0.9, 1.2, 1.5)
"""When it pushes, in push intervals since the fall. The second push shows the fall to a Fleet that knows the node as
noisy. Fleet judges after 1, so the later pushes fetch the verdict."""

FALLS: Final = 3
"""Falls from which the work may recover in a row, unnamed, before there are no early pushes for some time."""

INTERVALS_PER_FALL: Final = 12.0
"""Push intervals that earn one such fall again. Without the limit a node whose throughput varies would push early all
day."""

SUSPECT_INTERVALS: Final = 3.0
"""Push intervals after the fall in which the baseline is frozen, because Fleet may still name the node."""


@dataclass(frozen=True)
class EarlyPush:
    """When throughput fell (seconds), how many early pushes followed, and when all falls will be earned again.

    `earned_at` is the theoretical arrival time of the generic cell rate algorithm (ITU-T I.371).
    """

    since: float | None = None
    pushes: int = 0
    earned_at: float = 0.0

    def suspect(self, now: float, interval: float) -> bool:
        """Whether the fall may be the beginning of a fault. One that lasts longer unnamed is the new normal."""
        return self.since is not None and now - self.since < SUSPECT_INTERVALS * interval


def advance(
    state: EarlyPush, rate: float, normal: float, now: float, interval: float, *, named: bool = False
) -> tuple[EarlyPush, bool]:
    """Take the rate over a whole interval (seconds). Returns the next state and whether to push now.

    A node that Fleet has `named` a straggler needs no early push, and its fall does not count as unnamed.
    """
    earns = INTERVALS_PER_FALL * interval
    if named:
        return EarlyPush(earned_at=state.earned_at), False
    if rate >= FALL_RATIO * normal:
        return (state if state.since is None else EarlyPush(earned_at=max(now, state.earned_at) + earns)), False
    if state.since is None and now < state.earned_at - (FALLS - 1) * earns:
        return state, False
    since = now if state.since is None else state.since
    push = state.pushes < len(PUSH_TIMES) and now - since >= PUSH_TIMES[state.pushes] * interval
    return EarlyPush(since, state.pushes + push, state.earned_at), push
