"""Which units have become slower or faster from one run on, and stayed so. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.audit.chip_effects import RunValues
from ingero_detect.discoveries import adjusted_chances
from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.healthy_spread import normal_deviate, normal_upper_tail
from ingero_detect.threshold import MAD_TO_SIGMA

FEWEST_LATER: Final = 3
"""Runs that are all slower, or all faster."""

FEWEST_VALUES: Final = 5
"""Values of a unit from which its own scatter around both levels tells whether they differ."""

LEAST_NOISE: Final = 1e-3


@dataclass(frozen=True)
class LevelChange:
    """Since which run a unit is slower, and its runs before and since. `loss`: logarithmic, negative if faster."""

    run: int
    loss: float
    before: int
    later: int

    @property
    def lasting(self) -> bool:
        """Whether the unit is what it has been since: faster, or slower in most of its runs."""
        return self.loss < 0 or self.later > self.before


def level_changes(found: RunValues, asked: Bools, fdr: float, smallest: float) -> dict[int, LevelChange]:
    """The units, of those `asked`, that are slower (or faster) by `smallest` or more in all of their last runs alone.

    Runs are in the order of their numbers. The difference of the means has to be significant at this rate of false
    discoveries, allowing for every possible first run and both directions: for the noise of all units, and for the
    unit's own scatter around both levels (Student).
    """
    level = grouped_median(found.values, found.of, len(found.count))[1]
    away = found.values - level[found.of]
    freedom = 1 - np.count_nonzero(found.count) / max(len(away), 2)
    noise = float(MAD_TO_SIGMA * np.median(np.abs(away)) / np.sqrt(freedom)) if len(away) and freedom else 0.0
    noise = max(noise, LEAST_NOISE)
    order = np.lexsort((found.run, found.of))
    order = order[found.run[order] >= 0]
    first = np.flatnonzero(np.diff(found.of[order], prepend=-1))
    count = np.diff(first, append=len(order))
    kept = (count >= FEWEST_VALUES) & asked[found.of[order[first]]]
    first, count = first[kept], count[kept]
    chance, place = np.ones(len(first)), np.zeros(len(first), np.int64)
    for length in np.unique(count).tolist():
        of_length = np.flatnonzero(count == length)
        values = found.values[order[first[of_length, None] + np.arange(length)]]
        slower, faster = _rises(values, noise), _rises(-values, noise)
        is_faster = (faster[0] < slower[0]) | ((faster[0] == slower[0]) & (faster[1] < slower[1]))
        either, begins, size = (np.where(is_faster, down, up) for down, up in zip(faster, slower, strict=True))
        chance[of_length] = np.where(size >= smallest, np.minimum(1.0, 2 * either), 1.0)
        place[of_length] = begins
    changes = dict[int, LevelChange]()
    for number in np.flatnonzero(adjusted_chances(chance) <= fdr).tolist():
        rows = order[first[number] : first[number] + count[number]]
        values, at = found.values[rows], int(place[number])
        loss = float(values[at:].mean() - values[:at].mean())
        changes[int(found.of[rows[0]])] = LevelChange(int(found.run[rows[at]]), loss, at, len(rows) - at)
    return changes


def _rises(values: Floats, noise: float) -> tuple[Floats, Ints, Floats]:
    """By row, the clearest rise that separates all later values from all earlier ones: its chance, place and size."""
    n = values.shape[1]
    before = np.arange(1, n - FEWEST_LATER + 1)
    highest = np.maximum.accumulate(values, axis=1)[:, before - 1]
    lowest = np.minimum.accumulate(values[:, ::-1], axis=1)[:, ::-1][:, before]
    sums, squares = np.cumsum(values, axis=1), np.cumsum(values**2, axis=1)
    first, last = sums[:, before - 1] / before, (sums[:, -1:] - sums[:, before - 1]) / (n - before)
    rest = np.maximum(squares[:, -1:] - before * first**2 - (n - before) * last**2, 0.0)
    root = np.sqrt(1 / before + 1 / (n - before))
    own = np.maximum(np.sqrt(rest / (n - 2)), LEAST_NOISE / n)
    rise = np.where(lowest > highest, last - first, 0.0) / root
    deviate = np.minimum(rise / noise, normal_deviate(rise / own, np.full(len(before), n - 2.0)))
    best = deviate.argmax(axis=1)
    row = np.arange(len(values))
    chance = np.minimum(1.0, len(before) * normal_upper_tail(deviate[row, best]))
    return chance, before[best], last[row, best] - first[row, best]


def stale(changes: Mapping[int, LevelChange], unit: Ints, run: Ints) -> Bools:
    """Measurements from before a lasting change of their unit. `unit` and `run`: by measurement."""
    since = np.full(int(unit.max(initial=-1)) + 1, -1)
    for number, change in changes.items():
        since[number] = change.run if change.lasting else -1
    return (run >= 0) & (run < since[unit])
