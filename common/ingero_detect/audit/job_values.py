"""Values of jobs: every unit of a job has the value of the job, which its slowest one makes. Pure.

Nothing then separates the effect of a job from those of its units, and units that are always in the same jobs cannot
be told from each other.
"""

from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.threshold import MAD_TO_SIGMA

SAME_VALUE: Final = 2e-3
"""Values of one job differ by at most this (log)."""

MOST_RUNS: Final = 0.7
"""Share of the runs of several units whose units have one value, from which values are those of jobs."""

MOST_UNITS: Final = 0.5
"""Share of all units that the median run has at most, if runs are jobs."""

LARGEST_NOISE: Final = 0.02
NOISE_SHARE: Final = 1.0
"""Noise of a value in a job at most, and relative to the spread of jobs."""

MOST_EXPLAINED: Final = 0.25
SLOW: Final = 4.0
"""Share of the units that may explain slow jobs, and by how many standard deviations of a value they are slow."""

QUARTER: Final = 0.67
"""Standard deviations from the lower quarter of normal values to their median."""

AGAINST: Final = 3.0
"""Slow jobs of a unit that count as much as one that is not slow."""

FEWEST_OWN: Final = 5
"""Jobs of a unit from which it is known how much its values differ."""

OFTEN: Final = 0.5
MOST_LOOKED_AT: Final = 32
"""Share of the jobs of a unit in which another one is often met, and units of which that is asked."""

FEWEST_FREE: Final = 20
"""Degrees of freedom from which the noise within jobs is known."""

USUAL: Final = 1.0
FARTHEST: Final = 4.5
"""Deviates of units within jobs, where these do not differ: the median one (0.67 by chance), and the farthest one."""


def are_of_jobs(slowness: Floats, unit: Ints, run: Ints) -> bool:
    """Whether the units of nearly every run have one value, which units that are measured alone never have.

    Runs then differ by more than that. Also if the values of their units differ by noise only, where every run has
    few of the units: these, timed each for itself, wait for the slowest one. The arguments are as in a `Population`.
    """
    known = run >= 0
    order = np.argsort(run[known], kind="stable")
    values, units = slowness[known][order], unit[known][order]
    first = np.flatnonzero(np.diff(run[known][order], prepend=-1))
    if len(first) < 2:
        return False
    lowest, highest = np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)
    several = np.minimum.reduceat(units, first) < np.maximum.reduceat(units, first)
    if several.sum() < 2 or np.median(np.abs(lowest - np.median(lowest))) <= SAME_VALUE:
        return False
    if (highest - lowest <= SAME_VALUE)[several].mean() >= MOST_RUNS:
        return True
    number = np.cumsum(np.diff(run[known][order], prepend=-1) != 0) - 1
    some = several[number]
    present, place = np.unique(units[some], return_inverse=True)
    return _do_not_differ(values[some], place, np.unique(number[some], return_inverse=True)[1], len(present))


def _do_not_differ(slowness: Floats, unit: Ints, run: Ints, units: int) -> bool:
    """Whether units differ within runs by nothing but noise, which is small beside the differences of runs.

    Arguments: of runs of several units, numbered from 0, each with few of all `units`.
    """
    runs = int(run.max()) + 1
    if np.median(np.bincount(run)) > MOST_UNITS * units:
        return False
    level = grouped_median(slowness, run, runs)[1]
    away = slowness - np.bincount(run, slowness, minlength=runs)[run] / np.bincount(run, minlength=runs)[run]
    count = np.bincount(unit, minlength=units)
    effect = np.bincount(unit, away, minlength=units) / np.maximum(count, 1)
    freedom = len(away) - runs - np.count_nonzero(count)
    if freedom < FEWEST_FREE:
        return False
    noise = float(np.sqrt(((away - effect[unit]) ** 2).sum() / freedom))
    if noise > min(LARGEST_NOISE, NOISE_SHARE * MAD_TO_SIGMA * float(np.median(np.abs(level - np.median(level))))):
        return False
    deviate = np.maximum(np.abs(effect) - SAME_VALUE, 0.0) * np.sqrt(count) / max(noise, 1e-12)
    several = count > 1
    return bool(np.median(deviate[several]) < USUAL and deviate[several].max() < FARTHEST) if several.any() else False


def unexplained(slowness: Floats, unit: Ints, run: Ints, units: int) -> Bools:
    """Which values of jobs tell about their unit: those of jobs without another one that is slow in most of its own.

    A unit whose jobs are slow, but for a quarter of them, explains these, and they then say nothing about the others;
    the one with most slow jobs and fewest others first, since one with few jobs is met in these by chance. How slow
    is told by the quarters of all, and by how much the values of the unit itself differ: those of the others also
    differ by how many of their jobs it makes slow. Units that are always together count as one.
    """
    together = always_together(unit, run)
    unit = together[unit]
    kept = np.ones(len(unit), np.bool_)
    explained = np.zeros(units, np.bool_)
    for _ in range(int(MOST_EXPLAINED * units)):
        count, median = grouped_median(slowness[kept], unit[kept], units)
        distance = np.abs(slowness[kept] - median[unit[kept]])
        noise = np.full(units, MAD_TO_SIGMA * float(np.median(distance)))
        own = MAD_TO_SIGMA * grouped_median(distance, unit[kept], units)[1]
        noise = np.where(count >= FEWEST_OWN, np.fmin(noise, own), noise)
        low = _quarter(slowness[kept], unit[kept], units)
        slow = low > np.nanmedian(low) + (SLOW + QUARTER) * np.maximum(noise, SAME_VALUE)
        slow &= ~explained
        if not slow.any():
            break
        middle = 0.5 * (median + np.nanmedian(low))
        others = np.bincount(unit[kept], slowness[kept] < middle[unit[kept]], minlength=units)
        evidence = np.where(slow, count - (1 + AGAINST) * others, -np.inf)
        most = np.flatnonzero(evidence == evidence.max())
        slowest = int(most[low[most].argmax()])
        explained[slowest] = True
        kept &= ~np.isin(run, run[kept & (unit == slowest) & (run >= 0)]) | explained[unit]
    return kept


def _quarter(values: Floats, unit: Ints, units: int) -> Floats:
    """By unit the lower quarter of its values; NaN where there is none."""
    order = np.lexsort((values, unit))
    count = np.bincount(unit, minlength=units)
    place = np.cumsum(count) - count + np.maximum(count - 1, 0) // 4
    return np.where(count > 0, values[order][np.minimum(place, len(order) - 1)], np.nan)


def often_together(unit: Ints, run: Ints) -> bool:
    """Whether most units meet another one in at least half of their jobs, as in jobs of neighbours.

    Of many units, some are looked at. `run` is known.
    """
    present = np.unique(unit)
    largest = []
    for one in present[:: -(-len(present) // MOST_LOOKED_AT)].tolist():
        its = np.unique(run[unit == one])
        met = np.bincount(unit[np.isin(run, its)])
        met[one] = 0
        largest.append(met.max() / len(its))
    return bool(np.median(largest) >= OFTEN)


def always_together(unit: Ints, run: Ints) -> Ints:
    """By unit the first one that is in the same runs; itself if there is none, or in no known run."""
    found = np.arange(int(unit.max(initial=-1)) + 1)
    known = run >= 0
    if not known.any():
        return found
    pairs = np.unique(np.stack((unit[known], run[known])), axis=1)
    present, first = np.unique(pairs[0], return_index=True)
    seen: dict[bytes, int] = {}
    for one, runs in zip(present.tolist(), np.split(pairs[1], first[1:]), strict=True):
        found[one] = seen.setdefault(runs.tobytes(), one)
    return found
