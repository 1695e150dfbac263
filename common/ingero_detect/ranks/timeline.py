"""Operations of a synchronised job by rank and step; clocks of ranks are never compared. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints

FEWEST_STEPS: Final = 8
"""Steps that are needed to say that no rank is late, and to measure how a rank varies from step to step."""

LONGEST_PAUSE: Final = 10.0
"""Usual steps without any operation of a rank from which that time is a pause of the job, and no part of a step."""

FEWEST_PROVEN: Final = 3
SHORTEST: Final = 2
"""Steps in which a rank can be proven late that is far behind in all of them, and in which one is possible."""


@dataclass(frozen=True)
class Timeline:
    """Operations by row. Numbers count from 0; -1 in `stage`, `data_parallel` and `step` means not known.

    `start` and `duration` in seconds, `start` on the rank's own clock; `instance` numbers the collectives: ranks that
    took part in the same one share it, -1 for compute. `work` is the amount of work of an operation in any
    unit, such as tokens; NaN where it is not known. `group` numbers the groups of ranks that communicate, -1 where
    none is known. `sends` are sends and receives without a group: the rows of an `instance` are of several pairs.
    `chores` are operations whose name says that they are checkpoints, logs or the like. `routed` is compute that may
    be more for ranks to whose experts more tokens are routed, of which no amount is known; `None` where none are
    routed.
    """

    ranks: int
    steps: int
    rank: Ints
    step: Ints
    op: Ints
    collective: Bools
    start: Floats
    duration: Floats
    instance: Ints
    stage: Ints
    data_parallel: Ints
    work: Floats | None = None
    group: Ints | None = None
    sends: Bools | None = None
    chores: Bools | None = None
    routed: Bools | None = None


def most_common_by_rank(line: Timeline, values: Ints) -> Ints:
    """The most common value of each rank; -1 for a rank without values."""
    found = np.full(line.ranks, -1, np.int64)
    known = values >= 0
    if known.any():
        width = int(values.max()) + 1
        counts = np.bincount(line.rank[known] * width + values[known], minlength=line.ranks * width)
        table = counts.reshape(line.ranks, width)
        found = np.where(table.sum(axis=1) > 0, table.argmax(axis=1), -1)
    return found


def sum_by_rank_and_step(line: Timeline, chosen: Bools, values: Floats) -> Floats:
    """Sums by (rank, step), NaN where there is nothing."""
    place = line.rank[chosen] * line.steps + line.step[chosen]
    size = line.ranks * line.steps
    total = np.bincount(place, values[chosen], size)
    there = np.bincount(place, minlength=size) > 0
    return np.where(there, total, np.nan).reshape(line.ranks, line.steps)


def places_of_compute(line: Timeline) -> Ints:
    """The place of every operation of compute in the order of its rank's step; 0 for collectives."""
    place = np.zeros(len(line.rank), np.int64)
    rows = np.flatnonzero(~line.collective)
    rows = rows[np.lexsort((line.start[rows], line.step[rows], line.rank[rows]))]
    cell = line.rank[rows] * line.steps + line.step[rows]
    first = np.flatnonzero(np.diff(cell, prepend=-1))
    place[rows] = np.arange(len(rows)) - np.repeat(first, np.diff(np.append(first, len(rows))))
    return place


def shortest_by_instance(line: Timeline, rows: Ints, seconds: Floats) -> tuple[Ints, Floats]:
    """For every row the number of the operation that its ranks do together, and by operation the least of `seconds`.

    A collective takes that long after its last rank has come.
    """
    found, instance = np.unique(line.instance[rows], return_inverse=True)
    shortest = np.full(len(found), np.inf)
    np.minimum.at(shortest, instance, seconds[rows])
    return instance, shortest


def well_covered_steps(matrix: Floats) -> Bools:
    """Steps for which most ranks have values; none where they are too few to prove anything."""
    share = np.isfinite(matrix).mean(axis=0)
    covered: Bools = share >= 0.8
    return covered if covered.sum() >= SHORTEST else np.zeros(len(covered), np.bool_)


def step_period(line: Timeline) -> float:
    """Seconds of a step: the median over ranks of the mean time between first starts, each on its own clock.

    Without the time in which a rank does nothing for longer than `LONGEST_PAUSE` steps, as while a job is restarted.
    """
    first = np.full(line.ranks * line.steps, np.inf)
    np.minimum.at(first, line.rank * line.steps + line.step, line.start)
    table = first.reshape(line.ranks, line.steps)
    order = np.lexsort((line.start, line.rank))
    bounds = np.searchsorted(line.rank[order], np.arange(line.ranks + 1))
    periods = []
    for number, row in enumerate(table):
        at = np.flatnonzero(np.isfinite(row))
        if len(at) >= 3:
            longest = LONGEST_PAUSE * float(np.median(np.diff(np.sort(row[at])) / np.diff(at)))
            own = order[bounds[number] : bounds[number + 1]]
            start = line.start[own]
            idle = start[1:] - np.maximum.accumulate(start + line.duration[own])[:-1]
            inside = (start[1:] > row[at[0]]) & (start[1:] <= row[at[-1]])
            paused = float(idle[inside & (idle > max(longest, 0.0))].sum())
            periods.append((row[at[-1]] - row[at[0]] - paused) / (at[-1] - at[0]))
    if periods and np.median(periods) > 0:
        return float(np.median(periods))
    busy = sum_by_rank_and_step(line, np.ones(len(line.rank), np.bool_), line.duration)
    return float(np.nanmedian(busy)) if np.isfinite(busy).any() else 0.0
