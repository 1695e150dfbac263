"""Ranks whose times are in another unit than those of others, as where one exporter writes seconds. Pure.

All ranks of a synchronised job take the same time for a step, waits included, and none computes a thousand times as
long as others in all that it does.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.diagnose.counted_steps import numbered
from ingero_detect.grouped import Bools, Floats, Ints

BETWEEN_UNITS: Final = 3.0
"""Decimal digits between two units of time next to each other."""

ALIKE: Final = 0.5
"""By how many digits times of ranks may differ otherwise."""

SHARE: Final = 0.9
"""Share of the steps of a rank that must tell the same unit."""

FEWEST: Final = 8
"""Steps before and after a change of the unit, at least."""


def other_units(rank: Ints, step: Ints, duration: Floats, computes: Bools) -> Floats:
    """By what the time of each row must be multiplied so that it is in the unit of most ranks.

    `step`: -1 where it is not known; then a rank has one unit. Rows that cannot be used are those of rank -1.
    """
    factors = np.ones(len(rank))
    known = (rank >= 0) & np.isfinite(duration)
    if not (known & computes).any():
        return factors
    steps = numbered(step) if (step[known] >= 0).all() else np.zeros(len(step), np.int64)
    told = _units_of_cells(*(_sums(rank, steps, np.where(rows, duration, 0.0)) for rows in (known & computes, known)))
    units = np.stack([_of_rank(own) for own in told])
    if len(np.unique(units[~np.isnan(told)])) > 1:
        whole = _sums(rank, steps, np.where(known, duration, 0.0))
        factors[known] = 10.0 ** (-BETWEEN_UNITS * (units - _usual(units, whole))[rank[known], steps[known]])
    return factors


def _sums(rank: Ints, step: Ints, seconds: Floats) -> Floats:
    """Seconds by rank and step."""
    ranks, steps = int(rank.max()) + 1, int(step.max()) + 1
    place = np.where(rank >= 0, rank * steps + step, ranks * steps)
    return np.asarray(np.bincount(place, seconds, ranks * steps + 1)[:-1].reshape(ranks, steps), np.float64)


def _units_of_cells(computed: Floats, total: Floats) -> Floats:
    """By rank and step, how many units above those of the middle rank its times are; NaN where nothing tells."""
    computing, whole = (_over_middle(seconds) for seconds in (computed, total))
    units = np.round(whole / BETWEEN_UNITS)
    unclear = np.abs(whole - BETWEEN_UNITS * units) > ALIKE
    return np.where(unclear | (np.round(computing / BETWEEN_UNITS) != units), np.nan, units)


def _over_middle(seconds: Floats) -> Floats:
    """How many digits the seconds of each rank have more than those of the middle one of a step."""
    digits = np.full(seconds.shape, np.nan)
    np.log10(seconds, out=digits, where=seconds > 0)
    given = (~np.isnan(digits)).sum(axis=0)
    middle = np.sort(digits, axis=0)[np.maximum(given - 1, 0) // 2, np.arange(len(given))]
    return np.asarray(digits - middle)


def _of_rank(told: Floats) -> npt.NDArray[np.float64]:
    """The unit of each step of a rank: one, or two with a change between; 0 where steps do not agree."""
    places = np.flatnonzero(~np.isnan(told))
    values, units = np.unique(told[places]), np.zeros(len(told))
    if not len(places):
        return units
    agree = np.array([(told[places] == value) for value in values])
    if agree.sum(axis=1).max() >= SHARE * len(places):
        return np.full(len(told), values[agree.sum(axis=1).argmax()])
    before = np.cumsum(agree, axis=1)
    after = agree.sum(axis=1, keepdims=True) - before
    both = (before.max(axis=0) + after.max(axis=0))[FEWEST - 1 : -FEWEST]
    if len(both) and both.max() >= SHARE * len(places):
        last = int(both.argmax()) + FEWEST - 1
        units[: places[last] + 1] = values[before[:, last].argmax()]
        units[places[last] + 1 :] = values[after[:, last].argmax()]
    return units


def _usual(units: Floats, seconds: Floats) -> float:
    """The unit of most steps of ranks; of equally many, that in which a step takes closest to a second."""
    given = seconds > 0
    found, count = np.unique(units[given], return_counts=True)
    most = found[count == count.max()]
    apart = [abs(float(np.log10(np.median(seconds[given & (units == unit)])))) for unit in most.tolist()]
    return float(most[int(np.argmin(apart))])
