"""How the rows of a history fall into ticks: how long one is, and where it begins. Pure."""

from typing import Final

import numpy as np

from ingero_detect.grouped import Floats, Ints

NEARLY: Final = 0.02
"""Share by which intervals may differ from a multiple of the tick that is meant."""

EDGE: Final = 0.1
"""Share of a tick that is near its edge."""

FEW: Final = 0.02
"""Share of rows that may be near the edge on either side."""

ENOUGH: Final = 200
"""Ticks of a history, below which ticks are shorter where rows are closer together, and up to which."""

PLACES: Final = 20
"""Places in a tick at which its edge may lie."""


def usual_interval(time: Floats, of: Ints) -> float | None:
    """Median seconds between rows that follow one another of the same; `None` if there are none."""
    order = np.lexsort((time, of))
    gaps = np.diff(time[order])[np.diff(of[order]) == 0]
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) if len(gaps) else None


def fitting(tick: float, interval: float) -> float:
    """The tick for rows so many seconds apart: not shorter, and a multiple of `tick` where the interval is one."""
    if interval <= tick * (1 + NEARLY):
        return tick
    multiple = round(interval / tick) * tick
    return multiple if abs(multiple - interval) <= NEARLY * interval else float(f"{interval:.3g}")


def shorter(tick: float, interval: float | None, ticks: int) -> float | None:
    """A tick that is a multiple of the interval between rows, for a history of few ticks that can have more."""
    if interval is None or ticks >= ENOUGH:
        return None
    found = interval * max(1, int(ticks * tick / (ENOUGH * interval)))
    return found if found * (1 + EDGE) < tick else None


def phase(time: Floats, tick: float) -> float:
    """Seconds by which ticks begin later than whole multiples of a tick, so that few rows are near an edge.

    Rows that jitter around an edge fall two into one tick and none into the next. Rows that lie on one side of it
    do not, and where they are everywhere no place is better.
    """
    share = np.sort((time / tick + 1e-9) % 1.0)
    share = np.concatenate((share - 1, share, share + 1))

    def split(edge: float) -> int:
        """Rows near an edge on the side that has fewer."""
        left, here, right = np.searchsorted(share, (edge - EDGE, edge, edge + EDGE)).tolist()
        return int(min(here - left, right - here))

    edges = np.arange(PLACES) / PLACES
    counts = [split(edge) for edge in edges.tolist()]
    if counts[0] <= FEW * len(time):
        return 0.0
    best = int(np.argmin(counts))
    return float(edges[best] * tick) if 2 * counts[best] < counts[0] else 0.0
