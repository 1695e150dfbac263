"""Many short looks in the place of one long one, so that a collapse is seen before the next push is due."""

from collections import deque
from dataclasses import replace
from typing import Final

from ingero_agent.health.signals import Observation
from ingero_agent.sources import Source

MOST: Final = 64
"""Short looks remembered."""

COVERED: Final = 0.85
"""Share of the stretch asked for that looks have to cover."""

_INSTANT: Final = 1e-6
"""Least weight of a look, seconds."""

Piece = tuple[float, float, Observation]


class Pieces:
    """The looks of the last while, each from where the one before it ended, seconds."""

    def __init__(self) -> None:
        self._looks: deque[Piece] = deque(maxlen=MOST)
        self._new = 0
        self._from: float | None = None

    def read(self, source: Source, now: float) -> None:
        """Add a look; raises `ReadFailed` when it failed, and the next one covers its time as well."""
        seen = source.read(now)
        if seen is not None:
            self._looks.append((now if self._from is None else self._from, now, seen))
            self._new = min(self._new + 1, MOST)
        if seen is not None or self._from is None:
            self._from = now

    def whole(self) -> Observation | None:
        """What happened since this was asked last; `None` if there was no look."""
        looks = list(self._looks)[len(self._looks) - self._new :]
        self._new = 0
        return _joined(looks)

    def recent(self, now: float, seconds: float) -> Observation | None:
        """What happened in the last so many seconds; `None` if looks do not cover them."""
        looks = [look for look in self._looks if look[1] > now - seconds]
        return _joined(looks) if looks and now - looks[0][0] >= COVERED * seconds else None


def _joined(looks: list[Piece]) -> Observation | None:
    """One look in the place of several: rates and ratios over time, launches in all, the rest as it is now.

    Every look counts for as long as it counted: what one of them found too early, the one before it found too little.
    """
    if len(looks) <= 1:
        return looks[0][2] if looks else None
    weights = [max(_INSTANT, stop - start if seen.seconds is None else seen.seconds) for start, stop, seen in looks]
    whole = sum(weights)
    means = {
        name: sum(weight * getattr(look, name) for weight, (_, _, look) in zip(weights, looks, strict=True)) / whole
        for name in ("rate", "compute", "cpu")
    }
    seconds = None if looks[-1][2].seconds is None else whole
    return replace(looks[-1][2], launches=sum(look.launches for _, _, look in looks), seconds=seconds, **means)
