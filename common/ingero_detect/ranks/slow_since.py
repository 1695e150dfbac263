"""Finds ranks that are slow from some step on, in recordings too short for means of their parts. Pure.

A rank that becomes slow is last in a run of steps, as is one that wanders. What separates them is the others: how far
their own times change at the same step shows how far ranks wander. As a single pause is no change, nearly all steps
from then on must be above nearly all before.
"""

import math
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.last_arrival import residuals_by_step
from ingero_detect.ranks.slow_spells import CONCENTRATED, FEWEST_LIKE, LOWER
from ingero_detect.ranks.student import upper_quantiles

FEWEST_BEFORE: Final = 2
FEWEST_AFTER: Final = 4
"""Steps before and after a change from which both are known."""

MOST_STEPS: Final = 64
"""Steps up to which they are looked for: in longer recordings the means of parts tell, and the time that it takes
grows with the square of the steps."""

SHARE_AFTER: Final = 1 / 3
"""Share of all steps that a rank is slow in at least: a shorter time at the end may be a pause of several steps."""


def slow_since(
    values: Floats, alike: Ints, chance: float, smallest: float, most: float
) -> tuple[Bools, Floats, Ints]:
    """Ranks that are slow from some step on by more than `chance` explains, by how much, and that step.

    `values` by (rank, step) are compared with those of ranks with the same work (`alike`) in the same step. By
    `smallest` at least; no more than the share `most` of all ranks, as others must show how much ranks change. All
    begin at the same step. Nobody is found where other ranks are as slow in single steps.
    """
    ranks, steps = values.shape
    nobody, none, at = np.zeros(ranks, np.bool_), np.zeros(ranks), np.zeros(ranks, np.int64)
    judged = np.bincount(alike)[alike] >= FEWEST_LIKE
    places = range(FEWEST_BEFORE, steps - max(FEWEST_AFTER, math.ceil(SHARE_AFTER * steps)) + 1)
    if not judged.any() or not places or steps > MOST_STEPS:
        return nobody, none, at
    own = np.nan_to_num(residuals_by_step(values, alike), nan=0.0)  # what is missing shows no change
    best, found = 0.0, (nobody, none, at)
    for begin in places:
        level = np.quantile(own[:, begin:], LOWER, axis=1)
        change = level - np.quantile(own[:, :begin], 1 - LOWER, axis=1)
        slow = judged & (change > smallest) & (level > smallest)
        others = change[judged & ~slow]
        freedom = len(others) - len(np.unique(alike[judged]))
        if not slow.any() or slow.sum() > most * ranks or freedom < 1:
            continue
        error = float(np.std(others, ddof=1)) * np.sqrt(1 + 1 / len(others))
        needed = float(upper_quantiles(chance / ranks / len(places), np.array(float(freedom)))) * error
        slow &= change - others.mean() > needed
        slow = slow & _rare_elsewhere(own, slow, level, begin) if slow.any() else slow
        apart = own[slow, begin:].mean(axis=1) - own[slow, :begin].mean(axis=1)
        evidence = float(apart.sum()) * math.sqrt(begin * (steps - begin))
        if evidence > best:
            best, found = evidence, (slow, np.where(slow, level, 0.0), np.where(slow, begin, 0))
    return found


def _rare_elsewhere(own: Floats, slow: Bools, level: Floats, begin: int) -> Bools:
    """Those of the slow ranks that have nearly all steps as slow as half of their level, and these since `begin`."""
    found = slow.copy()
    for rank in np.flatnonzero(slow).tolist():
        far = own > level[rank] / 2
        inside = np.count_nonzero(far[rank, begin:])
        outside = np.count_nonzero(far[rank, :begin]) + np.count_nonzero(far[~slow])
        found[rank] = inside >= CONCENTRATED * (inside + outside)
    return found
