"""When a node whose work falls pushes beside its usual pushes: at once, and when Fleet may have confirmed it."""

from dataclasses import dataclass
from typing import Final

FALLEN: Final = 0.75
"""Share of its normal rate, over a whole push interval, below which a node makes haste."""

MOMENTS: Final = (0.0, 0.9, 1.2, 1.5)
"""When it pushes, in push intervals since then; Fleet judges after 1, so that the later ones fetch the verdict."""

QUIET: Final = 12.0
"""Push intervals for which a node makes no haste whose work came back before it was named, or a restless one would
push all day."""

DOUBT: Final = 3.0
"""Push intervals since it fell for which a node's baseline learns nothing: Fleet may yet name it."""


@dataclass(frozen=True)
class Haste:
    """Since when the node has fallen (seconds), how many pushes were made for it, and until when it makes none."""

    since: float | None = None
    pushes: int = 0
    quiet_until: float = 0.0

    def doubtful(self, now: float, interval: float) -> bool:
        """Whether what is seen now may be the beginning of a fault; what lasts longer unnamed is how things are."""
        return self.since is not None and now - self.since < DOUBT * interval


def advance(
    haste: Haste, rate: float, normal: float, now: float, interval: float, *, named: bool = False
) -> tuple[Haste, bool]:
    """Take a look over a whole interval (seconds); says whether to push now.

    A node that is `named` a straggler needs no haste, and was not restless: once well, it is as quick as any other.
    """
    if named:
        return Haste(), False
    if rate >= FALLEN * normal:
        return (haste if haste.since is None else Haste(quiet_until=now + QUIET * interval)), False
    if haste.since is None and now < haste.quiet_until:
        return haste, False
    since = now if haste.since is None else haste.since
    push = haste.pushes < len(MOMENTS) and now - since >= MOMENTS[haste.pushes] * interval
    return Haste(since, haste.pushes + push), push
