"""Which units have become slower from one run on, and stayed so. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.chip_effects import RunValues
from ingero_detect.discoveries import adjusted_chances
from ingero_detect.grouped import Bools, Floats, grouped_median
from ingero_detect.healthy_spread import normal_upper_tail
from ingero_detect.threshold import MAD_TO_SIGMA

FEWEST_LATER: Final = 3
"""Runs that are all slower."""

FEWEST_BEFORE: Final = 3
"""Runs before them, of which none is as slow."""

LEAST_NOISE: Final = 1e-3


@dataclass(frozen=True)
class Slowdown:
    """Since which run a unit is slower, and by how much on the log scale."""

    run: int
    loss: float


def slowdowns(found: RunValues, asked: Bools, fdr: float, smallest: float) -> dict[int, Slowdown]:
    """The units, of those `asked`, that are slower by `smallest` or more in all of their last runs, and in no other.

    Runs are in the order of their numbers. The difference of the means has to be significant at this rate of false
    discoveries, allowing for every possible first run, for the noise of all units or the larger one of the unit.
    """
    level = grouped_median(found.values, found.of, len(found.count))[1]
    away = found.values - level[found.of]
    freedom = 1 - np.count_nonzero(found.count) / max(len(away), 2)
    noise = float(MAD_TO_SIGMA * np.median(np.abs(away)) / np.sqrt(freedom)) if len(away) and freedom else 0.0
    noise = max(noise, LEAST_NOISE)
    order = np.lexsort((found.run, found.of))
    order = order[found.run[order] >= 0]
    starts = np.flatnonzero(np.diff(found.of[order], prepend=-1))
    units, chances, changes = list[int](), list[float](), list[Slowdown]()
    for rows in np.split(order, starts[1:]):
        if len(rows) < FEWEST_BEFORE + FEWEST_LATER or not asked[found.of[rows[0]]]:
            continue
        chance, place, loss = _change(found.values[rows], noise)
        units.append(int(found.of[rows[0]]))
        chances.append(chance if loss >= smallest else 1.0)
        changes.append(Slowdown(int(found.run[rows[place]]), loss))
    significant = adjusted_chances(np.array(chances)) <= fdr
    return {unit: change for unit, change, yes in zip(units, changes, significant.tolist(), strict=True) if yes}


def _change(values: Floats, noise: float) -> tuple[float, int, float]:
    """The clearest rise that separates all later values from all earlier ones: its chance, place and size."""
    n = len(values)
    before = np.arange(FEWEST_BEFORE, n - FEWEST_LATER + 1)
    highest = np.maximum.accumulate(values)[before - 1]
    lowest = np.minimum.accumulate(values[::-1])[::-1][before]
    sums, squares = np.cumsum(values), np.cumsum(values**2)
    first, last = sums[before - 1] / before, (sums[-1] - sums[before - 1]) / (n - before)
    rest = np.maximum(squares[-1] - before * first**2 - (n - before) * last**2, 0.0)
    scale = np.maximum(noise, np.sqrt(rest / (n - 2))) * np.sqrt(1 / before + 1 / (n - before))
    deviate = np.where(lowest > highest, (last - first) / scale, 0.0)
    best = int(deviate.argmax())
    chance = min(1.0, len(before) * float(normal_upper_tail(deviate[best : best + 1])[0]))
    return chance, int(before[best]), float(last[best] - first[best])
