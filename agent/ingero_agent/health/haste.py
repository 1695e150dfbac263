"""When a node whose work collapses pushes beside its usual pushes: at once, and when Fleet may have confirmed it."""

from dataclasses import dataclass
from typing import Final

COLLAPSED: Final = 0.48
"""Share of its normal rate, over a whole push interval, below which a node makes haste. Fleet's line is a half."""

MOMENTS: Final = (0.0, 0.9, 1.2, 1.5)
"""When it pushes, in push intervals since then; Fleet judges after 1, so that the later ones fetch the verdict."""


@dataclass(frozen=True)
class Haste:
    """Since when the node has collapsed (seconds), and how many pushes were made for it."""

    since: float | None = None
    pushes: int = 0


def advance(haste: Haste, rate: float, normal: float, now: float, interval: float) -> tuple[Haste, bool]:
    """Take a look over a whole interval (seconds); says whether to push now."""
    if rate >= COLLAPSED * normal:
        return Haste(), False
    since = now if haste.since is None else haste.since
    push = haste.pushes < len(MOMENTS) and now - since >= MOMENTS[haste.pushes] * interval
    return Haste(since, haste.pushes + push), push
