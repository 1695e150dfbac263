"""The reference level of a cohort: what its nodes do together and are compared with. Pure.

Usually it is the median of the residuals against own history. When that median has left zero, the nodes that still
agree with their own history are the reference instead, if they are at least two and a quarter of the cohort: if sixty
per cent of the nodes are slow, those sixty per cent are accused. If no such group stayed, the mode nearest to zero is
a common move of the cohort, and no node is accused for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, Singles, clipped, singles
from ingero_detect.threshold import MAD_TO_SIGMA

SHARE: Final = 0.25
FEWEST: Final = 2
"""Share of a cohort, and nodes, that a level needs to be a reference."""

HALF: Final = float(np.log(2.0))
"""A loss of half, log units."""

APART: Final = 0.5 * HALF
"""Standard deviation between nodes that work at different levels, log units: more than chips or noise bring about."""

LARGEST_CORRECTED: Final = 32
"""Nodes of a cohort up to which the reference of a node leaves it out: in larger ones it hardly matters."""

_CLIPPED: Final = 1.5
"""Standard deviations at which the influence of a node on the reference of others is limited (Huber 1964)."""

_REJECTED: Final = 4.0
"""Standard deviations from which a node has no influence on the reference of others."""

_SMALL: Final = np.array([1.0, 1.0, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107])
"""Factors that make the MAD of up to 9 normal values unbiased (Croux and Rousseeuw 1992)."""


def small_sample_factor(count: Ints) -> Floats:
    """Factor by which the MAD of `count` values is too small; 1 for many."""
    many = np.maximum(count, 10)
    factor: Floats = np.where(count < 10, _SMALL[np.minimum(count, 9)], many / (many - 0.8))
    return factor


@dataclass(frozen=True)
class Reference:
    """Arrays by cohort. `level`: the reference, log units; `spread`: standard deviation of the nodes that define it.

    `upper`: the same from the faster nodes alone, so that no straggler adds to it; NaN if the cohort moved.
    `common`: the cohort has left zero together; `partial`: a part stayed at zero while the median left it.
    `apart`: common, and the nodes lie far apart, so that it is no phase of the job. `restarting`: common, and either
    apart or by more than half of the rate, as while a job starts.
    """

    count: Ints
    level: Floats
    spread: Floats
    upper: Floats
    common: Bools
    partial: Bools
    apart: Bools
    restarting: Bools


def find_reference(
    residuals: Singles, cohort: Ints, count: Ints, accused: Bools,
    median: Callable[[Singles, Ints], tuple[Floats, Floats]], tolerance: Floats,
) -> Reference:  # fmt: skip
    """Compute the reference of every cohort from the residuals of its `count` nodes.

    Nodes that are `accused` already define no reference as long as enough others are there. `median` computes medians
    and upper quartiles by cohort of values, of which so many are finite; `tolerance`, by cohort, is the distance from
    zero that counts as near.
    """
    needed = _needed(count)
    others = count
    if accused.any():
        others = _defining(cohort, count, accused)
        residuals = np.where(accused & (others < count)[cohort], np.float32(np.inf), residuals)
    middle, quartile = median(residuals, others)
    level = np.where(count > 0, middle, 0.0)
    upper = (quartile - middle) * MAD_TO_SIGMA
    deviation, _ = median(np.abs(residuals - singles(level)[cohort]), others)
    spread = np.where(count > 0, deviation, 0.0) * MAD_TO_SIGMA * small_sample_factor(others)
    moved = (count > 0) & (np.abs(level) > tolerance)
    common, partial = moved.copy(), np.zeros(len(count), np.bool_)
    deep, wide = level < -HALF, (spread > APART) & (count > 2)
    for number in np.flatnonzero(moved).tolist():
        values = np.sort(residuals[cohort == number])[: others[number]]
        inside = np.abs(values) <= tolerance[number]
        near, far = values[inside], values[~inside]
        if len(near) >= needed[number] and abs(np.median(far) - np.median(near)) > tolerance[number]:
            common[number], partial[number] = False, True
            members = near
        else:
            members = _nearest_mode(values, int(needed[number]), max(tolerance[number], 2 * spread[number]))
        level[number] = np.median(members)
        inner = np.median(np.abs(members - level[number]))
        spread[number] = inner * MAD_TO_SIGMA * float(small_sample_factor(np.array([len(members)]))[0])
    upper = np.where(moved, np.nan, upper)
    return Reference(count, level, spread, upper, common, partial, common & wide, common & (deep | wide))


def _needed(count: Ints) -> Ints:
    """By cohort how many of its nodes a level needs to be a reference."""
    needed: Ints = np.maximum(FEWEST, np.ceil(SHARE * count).astype(np.int64))
    return needed


def _defining(cohort: Ints, count: Ints, accused: Bools) -> Ints:
    """By cohort how many nodes define the reference: those that are not accused, or all if these are too few."""
    others = count - np.bincount(cohort[accused], minlength=len(count))
    return np.where(others >= _needed(count), others, count)


def of_the_others(
    reference: Reference, residuals: Singles, cohort: Ints, accused: Bools, spread: Floats
) -> tuple[Ints, Singles]:
    """What the reference of a node in a small cohort must be corrected by, so that it is a mean of the others: the
    nodes concerned, and for each the correction in log units.

    One step from the median to Huber's M-estimator, without the node itself. The median of 8 nodes knows 15 % less
    about a loss of one of them than the mean of the other 7 does, and this 3.5 % less. `spread`: the standard
    deviation of residuals by cohort. Cohorts that moved, or have no spread, keep their reference.
    """
    count = reference.count
    small = (count > FEWEST) & (count <= LARGEST_CORRECTED) & (spread > 0) & ~reference.common & ~reference.partial
    rows = np.flatnonzero(small[cohort])
    if not len(rows):
        return rows, np.zeros(0, np.float32)
    own = cohort[rows]
    unit = singles(spread)[own]
    away = residuals[rows] - singles(reference.level)[own]
    counts = ~accused[rows] | (_defining(cohort, count, accused) == count)[own]
    counts &= np.abs(away) < _REJECTED * unit
    pull = np.where(counts, clipped(away, -_CLIPPED * unit, _CLIPPED * unit), np.float32(0))
    number = np.bincount(own[counts], minlength=len(count))[own] - counts
    return rows, singles((np.bincount(own, pull, len(count))[own] - pull) / np.maximum(number, 1))


def _nearest_mode(values: Singles, needed: int, width: float) -> Singles:
    """The members of the mode nearest to zero that holds `needed` of the sorted `values`, `width` to either side.

    Start at the window whose median is nearest to zero, and move it to its own median until that stays (mean shift).
    """
    start = np.arange(len(values))
    stop = np.searchsorted(values, values + 2 * width, side="right")
    full = np.flatnonzero(stop - start >= needed)
    if not len(full):
        return values
    low, high = start[full], stop[full]
    middles = 0.5 * (values[(low + high - 1) // 2] + values[(low + high) // 2])
    middle = float(middles[int(np.argmin(np.abs(middles)))])
    for _ in range(20):
        first, last = np.searchsorted(values, (middle - width, middle + width), side="left").tolist()
        before, middle = middle, float(np.median(values[first:last])) if last > first else middle
        if middle == before:
            break
    first, last = np.searchsorted(values, (middle - width, middle + width), side="left").tolist()
    return values[first:last] if last - first >= needed else values
