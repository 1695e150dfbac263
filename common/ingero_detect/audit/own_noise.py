"""Which units scatter far more than the others, by how much, and how well that is known. Pure."""

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.threshold import MAD_TO_SIGMA

FEWEST: Final = 3
"""Values from which the scatter of a unit is its own."""

DROPPED: Final = 10
"""The slowest value, and another one of so many, may be bad and tell nothing about the scatter."""

WELL: Final = 3
"""One of so many values of a slow unit may be as good as those of usual ones."""

MOST: Final = 50
"""Values from which the moments of the scatter grow in proportion."""

EVIDENT: Final = 3.0
FAR: Final = 4.0
"""Normal deviates from which more scatter than that of others is used, and from which it is worth saying."""

TIMES: Final = 4.0
"""How much larger than that of others it then is."""

LIKE: Final = 3.0
"""Standard deviations of values of usual units within which one is usual."""

IMPLAUSIBLE_SPEED: Final = float(np.log(1.5))
"""A unit, or one of its values, that is faster by this is an error of the measurement or of the model's name, as
no chip is so fast."""

BAD: Final = 3.0
"""How much larger the variance of all values is from which the slowest ones are taken for bad."""


@dataclass(frozen=True)
class OwnNoise:
    """By unit, where it is evidently larger than the usual one: the standard deviation of a value, and its freedom.

    Otherwise 0 and infinite. `far`: larger by so much that it is worth saying.
    """

    spread: Floats
    freedom: Floats
    far: Bools


def own_noise(values: Floats, unit: Ints, count: Ints, noise: float) -> OwnNoise:
    """Compare the scatter of every unit, without its slowest values, with the usual `noise` of a value.

    Those that do not scatter without a few values like those of usual units do not if they are most of all. Single
    values that are too fast for any chip, as of another unit, are no scatter.
    """
    sound = ~_too_fast(values, unit, count)
    values, unit = values[sound], unit[sound]
    count = np.bincount(unit, minlength=len(count))
    order = np.lexsort((values, unit))
    of = unit[order]
    rank = np.arange(len(of)) - np.searchsorted(of, of)
    kept = order[rank < count[of] - 1 - count[of] // DROPPED]
    number = np.bincount(unit[kept], minlength=len(count))
    squares: Floats = _variance(values[kept], unit[kept], number) * np.maximum(number - 1, 1)
    sizes, place = np.unique(count, return_inverse=True)
    moments = np.array([_moments(size) if size >= FEWEST else (1.0, 1.0) for size in sizes.tolist()])
    expected, freedom = moments[place, 0], moments[place, 1]
    variance = np.where(count >= FEWEST, squares / expected, 0.0)
    deviate = _deviate(variance, freedom, noise)
    evident = deviate > EVIDENT
    if evident.any():
        good = evident & _well_at_times(values[order], of, rank, count, noise)
        evident &= ~good if 2 * good.sum() > evident.sum() else True
    far = evident & (deviate > FAR) & (variance > (TIMES * noise) ** 2)
    whole = _variance(values, unit, count)
    some = whole < BAD * variance
    spread = np.sqrt(np.where(some, whole, variance))
    freedom = np.where(some, count - 1.0, freedom)
    return OwnNoise(np.where(evident, spread, 0.0), np.where(evident, freedom, np.inf), far)


def _too_fast(values: Floats, unit: Ints, count: Ints) -> Bools:
    """Values that no chip reaches, where they are one of `DROPPED` of a unit or fewer, or its only one."""
    apart = grouped_median(values, unit, len(count))[1][unit] - values
    found: Bools = apart > IMPLAUSIBLE_SPEED
    few = np.bincount(unit[found], minlength=len(count)) <= np.maximum(count // DROPPED, 1)
    return found & few[unit]


def _deviate(variance: Floats, freedom: Floats, noise: float) -> Floats:
    """How far a variance is above the usual one: its cube root is nearly normal (Wilson and Hilferty 1931)."""
    rate = 2 / (9 * freedom)
    found: Floats = (
        (np.cbrt(variance / noise**2) - (1 - rate)) / np.sqrt(rate) if noise > 0 else np.zeros_like(variance)
    )
    return found


def _well_at_times(values: Floats, unit: Ints, rank: Ints, count: Ints, noise: float) -> Bools:
    """Which units do not scatter without some of their fastest values, a third at most, which are like usual ones.

    Values are sorted by unit and size, with their `rank` in it.
    """
    units = len(count)
    median = grouped_median(values, unit, units)[1]
    centre = float(np.nanmedian(median))
    spread = MAD_TO_SIGMA * float(np.nanmedian(np.abs(median - centre)))
    usual = np.abs(values - centre) <= LIKE * np.hypot(spread, noise)
    kept = ~usual | (rank >= np.maximum(count[unit] // WELL, 1))
    number = np.bincount(unit[kept], minlength=units)
    variance = _variance(values[kept], unit[kept], number)
    steady = _deviate(variance, np.maximum(number - 1.0, 1.0), noise) <= EVIDENT
    found: Bools = steady & (number > 1) & (number < count)
    return found


def _variance(values: Floats, unit: Ints, count: Ints) -> Floats:
    """The variance of the values of every unit."""
    mean = np.bincount(unit, values, minlength=len(count)) / np.maximum(count, 1)
    squares = np.bincount(unit, (values - mean[unit]) ** 2, minlength=len(count))
    variance: Floats = squares / np.maximum(count - 1, 1)
    return variance


@cache
def _moments(count: int) -> tuple[float, float]:
    """Of standard normal values: the expected sum of squares without the largest ones, and its freedom."""
    if count > MOST:
        return tuple(moment * count / MOST for moment in _moments(MOST))  # type: ignore[return-value]
    draws = np.random.default_rng(count).normal(size=(4000, count))
    kept = np.sort(draws, axis=1)[:, : count - 1 - count // DROPPED]
    squares = ((kept - kept.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    return float(squares.mean()), float(2 * squares.mean() ** 2 / squares.var())
