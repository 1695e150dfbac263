"""How long work takes, learnt from examples without a model of the hardware. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, grouped_median

ROWS_OF_A_KNOT: Final = 24
"""Examples whose medians are one point of the curve."""

MOST_KNOTS: Final = 16

REFINEMENTS: Final = 2


@dataclass(frozen=True)
class DurationCurve:
    """The duration that is usual for each amount of work: straight lines between points in order of `work`."""

    work: Floats
    duration: Floats

    def at(self, work: Floats) -> Floats:
        """The usual duration; beyond the points on the line through the last two, up to four times as far."""
        x, y = self.work, self.duration
        if len(x) == 1:
            return np.full(np.shape(work), y[0])
        work = np.clip(work, 0.25 * x[0], 4 * x[-1])
        found = np.interp(work, x, y)
        for outside, end, beside in ((work < x[0], 0, 1), (work > x[-1], -1, -2)):
            slope = (y[beside] - y[end]) / (x[beside] - x[end])
            found[outside] = y[end] + slope * (work[outside] - x[end])
        return np.asarray(np.maximum(found, 0.5 * y.min()))


def duration_curve(work: Floats, duration: Floats, who: Ints, many: int) -> DurationCurve:
    """The curve of examples, each done by one of `many`, of whom some may be slower than others."""
    curve = _medians(work, duration)
    for _ in range(REFINEMENTS):
        # Without this, a slow one among few others raises the curve where its work lies.
        _, ratio = grouped_median(duration / np.maximum(curve.at(work), 1e-12), who, many)
        curve = _medians(work, duration / np.maximum(ratio[who] / np.nanmedian(ratio), 1e-12))
    return curve


def _medians(work: Floats, duration: Floats) -> DurationCurve:
    """Medians of examples with about the same work; those with equal work are in one of them."""
    order = np.argsort(work, kind="stable")
    ordered = work[order]
    count = min(max(len(work) // ROWS_OF_A_KNOT, 1), MOST_KNOTS)
    begins = np.searchsorted(ordered, ordered[np.arange(1, count) * len(work) // count])
    parts = [part for part in np.split(order, np.unique(begins)) if len(part)]
    x = np.array([np.median(work[part]) for part in parts])
    y = np.array([np.median(duration[part]) for part in parts])
    distinct: Bools = np.append(True, np.diff(x) > 1e-9 * x[1:])
    return DurationCurve(x[distinct], y[distinct])
