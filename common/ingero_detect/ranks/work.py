"""Removes from a timeline what different work of the ranks explains, such as longer sequences. Pure.

The duration of an operation on a given amount of work is learnt from all ranks that perform it, without a model of
the hardware. Each duration is then scaled to the work that the rank would have if the work of the step was shared
equally, and the next collective of the rank is lengthened by what the rank would have arrived earlier. What remains
are differences between ranks.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ingero_detect.duration_curve import duration_curve
from ingero_detect.grouped import Floats, Ints, extremes
from ingero_detect.ranks.timeline import Timeline, most_common_by_rank, sum_by_rank_and_step

FEWEST_ROWS: Final = 48
"""Operations of one name and stage from which a curve is learnt. The work of each of them must be known."""


@dataclass(frozen=True)
class EqualWork:
    """The timeline with equal work, and the seconds by which the mean step was longer because work was not equal."""

    line: Timeline
    seconds_lost_per_step: float


def with_equal_work(line: Timeline) -> EqualWork | None:
    """The timeline as it would be with equal work; `None` where nothing of it is known, or all work is equal."""
    if line.work is None:
        return None
    computes, known = ~line.collective, np.isfinite(line.work)
    scale = np.ones(len(line.rank))
    stage = most_common_by_rank(line, line.stage)
    kind = line.op * (int(stage.max(initial=-1)) + 2) + stage[line.rank] + 1
    for one in np.unique(kind[computes & known]).tolist():
        rows = np.flatnonzero(computes & (kind == one))
        if len(rows) >= FEWEST_ROWS and known[rows].all():
            scale[rows] = _scale(line, rows, line.work)
    return None if (scale == 1).all() else with_shorter_operations(line, scale)


def with_shorter_operations(line: Timeline, scale: Floats) -> EqualWork:
    """The timeline with the durations of compute times `scale`, by row, and the waits that follow as much longer."""
    computes = ~line.collective
    saved = line.duration * (1 - scale)
    raw = sum_by_rank_and_step(line, computes, line.duration)
    equal = sum_by_rank_and_step(line, computes, line.duration - saved)
    steps = np.isfinite(raw).any(axis=0)
    lost = float(np.mean(np.nanmax(raw[:, steps], axis=0) - np.nanmax(equal[:, steps], axis=0)))
    duration = line.duration - saved + _passed_on(line, np.where(computes, saved, 0.0))
    return EqualWork(replace(line, duration=duration), max(0.0, lost))


def work_differs(line: Timeline) -> bool:
    """Whether operations of one name are known to do different amounts of work."""
    if line.work is None:
        return False
    rows = np.flatnonzero(~line.collective & np.isfinite(line.work))
    least, most = extremes(line.work[rows], line.op[rows], int(line.op.max(initial=0)) + 1)
    return bool((most > least).any())


def _scale(line: Timeline, rows: Ints, work: Floats) -> Floats:
    """By operation, the expected duration on an equal share of the step's work over that on its own work."""
    work, duration, rank = work[rows], line.duration[rows], line.rank[rows]
    expected = duration_curve(work, duration, rank, line.ranks).at(work)
    step = line.step[rows]
    count = np.bincount(step, minlength=line.steps)
    total = np.bincount(step, expected, line.steps)
    return np.asarray(total[step] / count[step] / np.maximum(expected, 1e-12))


def _passed_on(line: Timeline, saved: Floats) -> Floats:
    """By collective, the seconds by which its rank would have arrived earlier, since its collective before."""
    order = np.lexsort((line.start, line.rank))
    rank, collective = line.rank[order], line.collective[order]
    total = np.cumsum(saved[order])
    at = np.flatnonzero(collective)
    first = np.diff(rank[at], prepend=-1) != 0
    begin = np.searchsorted(rank, rank[at])
    before = np.where(first, total[begin] - saved[order][begin], np.append(0.0, total[at][:-1]))
    found = np.zeros(len(saved))
    found[order[at]] = total[at] - before
    return found
