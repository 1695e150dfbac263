"""When a node whose work falls pushes beside its usual pushes: at once, and when Fleet may have confirmed it."""

from dataclasses import dataclass
from typing import Final

FALL_RATIO: Final = 0.75
"""Share of its normal rate, over a whole push interval, below which a node makes haste."""

PUSH_TIMES: Final = (0.0, 0.9, 1.2, 1.5)
"""When it pushes, in push intervals since then; Fleet judges after 1, so that the later ones fetch the verdict."""

QUIET_INTERVALS: Final = 12.0
"""Push intervals for which a node makes no haste whose work came back before it was named, or a restless one would
push all day."""

SUSPECT_INTERVALS: Final = 3.0
"""Push intervals since it fell for which a node's baseline learns nothing: Fleet may yet name it."""


@dataclass(frozen=True)
class EarlyPush:
    """Since when the node has fallen (seconds), how many pushes were made for it, and until when it makes none."""

    since: float | None = None
    pushes: int = 0
    quiet_until: float = 0.0

    def suspect(self, now: float, interval: float) -> bool:
        """Whether what is seen now may be the beginning of a fault; what lasts longer unnamed is how things are."""
        return self.since is not None and now - self.since < SUSPECT_INTERVALS * interval


def advance(
    state: EarlyPush, rate: float, normal: float, now: float, interval: float, *, named: bool = False
) -> tuple[EarlyPush, bool]:
    """Take a look over a whole interval (seconds); says whether to push now.

    A node that is `named` a straggler needs no haste, and was not restless: once well, it is as quick as any other.
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
