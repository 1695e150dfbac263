"""Finds ranks that are slow for a while: in nearly all steps of some stretch, wherever it begins. Pure.

Means of arbitrary stretches would name ranks that pause a few times in a row. The lower quartile of a stretch is high
only where three quarters of its steps are slow. How high the highest one of a rank gets by chance, however its values
follow one another, is seen from all other ranks. Where these are slow in single steps too, a stretch of one of them
may be chance.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.last_arrival import residuals_by_step
from ingero_detect.ranks.timeline import FEWEST_STEPS
from ingero_detect.reference import small_sample_factor
from ingero_detect.threshold import MAD_TO_SIGMA

LOWER: Final = 0.25
"""Share of the steps of a stretch that may be as usual."""

GROWTH: Final = 1.5
"""Each length of stretches over the one before."""

FEWEST_LIKE: Final = 3
"""Ranks with the same work that are needed to compare them."""

SHORTEST_SHARE: Final = 0.25
"""Share of the steps that a stretch has at least."""

CONCENTRATED: Final = 0.8
"""Share of all slow steps that a stretch must have."""

SURE_SIGMAS: Final = 6.0
"""Deviations of a median of several steps by which a rank is slow that such medians are taken of."""

LEAST_NOISE: Final = 0.25
"""Usual deviation of a step below which highest quartiles of ranks do not differ but by luck, as a share."""


@dataclass(frozen=True)
class SlowSpells:
    """By row: the highest lower quartile, its deviations above those of the others, and in which steps it is.

    `lengths`: of how many lengths stretches were tried; `apart`: the values minus those of ranks with the same work.
    """

    lengths: int
    apart: Floats
    level: Floats
    deviations: Floats
    begin: Ints
    end: Ints

    def rare_elsewhere(self, flagged: Bools) -> Bools:
        """Those of the flagged rows whose stretch has nearly all slow steps of it and of all other rows.

        Slow is a step by half of the stretch's level. Flagged rows may be slow in the same stretch, as ranks of a
        host; those that are slow at another time show that this strikes any rank.
        """
        found = flagged.copy()
        for row in np.flatnonzero(flagged).tolist():
            slow = self.apart > self.level[row] / 2
            inside = np.count_nonzero(slow[row, self.begin[row] : self.end[row]])
            slow[row] = False
            slow[flagged, self.begin[row] : self.end[row]] = False
            found[row] = inside >= CONCENTRATED * (inside + np.count_nonzero(slow))
        return found


def slow_spells(values: Floats, alike: Ints) -> SlowSpells | None:
    """The slowest stretch of each row, at most half of the steps long; `None` where there is nothing to compare.

    `values` by (rank, step) are compared with those of ranks with the same work (`alike`) in the same step.
    """
    ranks, steps = values.shape
    judged = np.bincount(alike)[alike] >= FEWEST_LIKE
    if steps < 2 * FEWEST_STEPS or judged.sum() < FEWEST_LIKE + 1:
        return None
    own = residuals_by_step(values, alike)
    noise = MAD_TO_SIGMA * float(np.nanmedian(np.abs(own[judged])))
    own = np.nan_to_num(own, nan=0.0)  # what is missing shows no slowness
    correction = float(small_sample_factor(np.array([int(judged.sum())]))[0])
    lengths = _lengths(steps)
    begin, end = np.zeros((2, ranks), np.int64)
    found = SlowSpells(len(lengths), own, np.zeros(ranks), np.full(ranks, -np.inf), begin, end)
    for length in lengths:
        stride = max(1, length // FEWEST_STEPS)
        windows = np.lib.stride_tricks.sliding_window_view(own, length, axis=1)[:, ::stride]
        lower = np.quantile(windows, LOWER, axis=2)
        place = lower.argmax(axis=1)
        highest = lower[np.arange(ranks), place]
        usual = highest[judged]
        middle = float(np.median(usual))
        spread = MAD_TO_SIGMA * float(np.median(np.abs(usual - middle))) * correction
        deviations = (highest - middle) / max(spread, LEAST_NOISE * noise, 1e-9)
        better = judged & (deviations > found.deviations)
        for table, new in (
            (found.level, highest), (found.deviations, deviations),
            (found.begin, place * stride), (found.end, place * stride + length),
        ):  # fmt: skip
            table[better] = new[better]
    return found


def lasting_or_rare(values: Floats, alike: Ints, level: Floats, flagged: Bools) -> Bools:
    """Those of the flagged rows that are slow in most steps, or for a while as hardly any other row is.

    A mean over a stretch does not tell a rank that became slow from one of many that are slow for several steps now
    and then: of those, the one with the longest stretch differs from all others by more than they do from one
    another. `level`: by how much a flagged row is slow. Slow is a step around which the median of several is above
    half of that; of so many that noise hardly makes it so. Where that are too many to see stretches, all are kept.
    """
    own = np.nan_to_num(residuals_by_step(values, alike), nan=0.0)
    steps = own.shape[1]
    noise = MAD_TO_SIGMA * float(np.median(np.abs(own[~flagged]))) if not flagged.all() else 0.0
    slow, medians = dict[int, Bools](), dict[int, Floats]()
    for row in np.flatnonzero(flagged).tolist():
        reach = max(1, math.ceil(((SURE_SIGMAS * noise / max(level[row], 1e-12)) ** 2 - 1) / 2))
        if 2 * reach + 1 <= SHORTEST_SHARE * steps:
            if reach not in medians:
                medians = {reach: _medians_around(own, reach)}
            slow[row] = medians[reach] > level[row] / 2
    brief = {row: table for row, table in slow.items() if np.count_nonzero(table[row]) < (1 - LOWER) * steps}
    found = flagged.copy()
    lasting = flagged & ~np.isin(np.arange(len(flagged)), list(brief))
    for row, table in brief.items():
        others = np.where(flagged[:, None], table & ~table[row], table)[~lasting]
        inside = np.count_nonzero(table[row])
        found[row] = inside >= CONCENTRATED * (inside + np.count_nonzero(others))
    return found


def _medians_around(values: Floats, reach: int) -> Floats:
    """By row, the median of so many steps before each, itself and as many after it."""
    padded = np.pad(values, ((0, 0), (reach, reach)), mode="symmetric")
    # A median copies every window: those of all rows at once would be as many times the values as a window is long.
    windows = (np.lib.stride_tricks.sliding_window_view(row, 2 * reach + 1) for row in padded)
    return np.stack([np.median(of_row, axis=1) for of_row in windows])


def _lengths(steps: int) -> list[int]:
    """From the shortest stretch up to half of the steps."""
    found = [max(FEWEST_STEPS, int(SHORTEST_SHARE * steps))]
    while found[-1] * GROWTH <= steps / 2:
        found.append(int(found[-1] * GROWTH))
    return found
