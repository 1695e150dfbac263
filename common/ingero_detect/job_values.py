"""Values of jobs: every unit of a job has the value of the job, which its slowest one makes. Pure.

Nothing then separates the effect of a job from those of its units, and units that are always in the same jobs cannot
be told from each other.
"""

from typing import Final

import numpy as np

from ingero_detect.grouped import Floats, Ints

SAME_VALUE: Final = 2e-3
"""Values of one job differ by at most this (log)."""

MOST_RUNS: Final = 0.7
"""Share of the runs of several units whose units have one value, from which values are those of jobs."""


def are_of_jobs(slowness: Floats, unit: Ints, run: Ints) -> bool:
    """Whether the units of nearly every run have one value, which units that are measured alone never have.

    Runs then differ by more than that. The arguments are as in a `Population`.
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
    return bool((highest - lowest <= SAME_VALUE)[several].mean() >= MOST_RUNS)


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
