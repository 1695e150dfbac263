"""Tells whether ranks that are late may only have waited for one another, in operations that were not recorded. Pure.

A rank that waits in an operation without a record does nothing, as one does that stalls, and is then as late to all
that is recorded. In a mesh of parallel groups a missing kind of groups connects ranks that recorded groups do not
connect at all: so ranks which those do connect have waited for one another only where the recording shows it.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, connected, extremes
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.last_arrival import median_by_step
from ingero_detect.ranks.rank_outliers import (
    CHANCE_OF_POSSIBLE,
    SMALLEST_EFFECT,
    time_segments,
    trimmed_mean,
)
from ingero_detect.ranks.student import upper_quantile
from ingero_detect.ranks.timeline import FEWEST_STEPS, Timeline, shortest_by_instance

ACT_AS_ONE: Final = "act_as_one"
"""What shows ranks that are late in the same steps, and that no recorded group connects."""

MOVES_DATA: Final = 0.01
"""Share of a step that operations of all ranks take at least, after the last has come, to be more than a norm."""

LIKEWISE: Final = 0.5
"""Share of a rank's lateness by which another one that may be its cause is late in the same steps."""


ONSETS: Final = 16
"""Moments that are tried from which a rank may be late."""


def recorded_parts(line: Timeline, period: float) -> Ints:
    """By rank, the lowest one that recorded groups connect it with; 0 for all where no part of the ranks has a group.

    A norm or a barrier of all ranks, which takes less than `MOVES_DATA` of a step (`period`, seconds), connects none.
    """
    together = np.zeros(line.ranks, np.int64)
    if line.group is None:
        return together
    pairs, size = _memberships(line, line.group)
    several = pairs[:, (size >= 2)[pairs[0]] & (size < line.ranks)[pairs[0]]]
    of_all = line.collective & np.isin(line.group, np.flatnonzero(size == line.ranks))
    if not several.size or _moves_data(line, of_all, period):
        return together
    return connected(several, line.ranks)


def within_parts(line: Timeline, stage: Ints, part: Ints) -> tuple[Timeline, Ints]:
    """The timeline of waits without those of ranks of several parts for one another, and the parts as stages.

    How long such ranks wait, as in a norm of all, depends on what they do in operations that were not recorded, such
    as their places in the schedule of a pipeline. So where nothing but waits was recorded, and no stages are known,
    ranks are compared within their part. Else both stay as they are.
    """
    if not line.collective.all() or (stage >= 0).all() or not part.any():
        return line, stage
    rows = np.flatnonzero(line.instance >= 0)
    _, number = np.unique(line.instance[rows], return_inverse=True)
    lowest, highest = (found[number] for found in extremes(part[line.rank[rows]], number, len(rows)))
    instance = line.instance.copy()
    instance[rows] = np.where(lowest == highest, instance[rows], -1)
    return replace(line, instance=instance), np.unique(part, return_inverse=True)[1].astype(np.int64)


def late_in_parts(blocked: Floats, part: Ints, period: float) -> Diagnosis | None:
    """Ranks for which the others of their part wait in nearly all steps, or since some step, if that costs enough.

    `blocked`: seconds by (rank, step) in operations within the part. One of these ranks may be slow, or they wait for
    it, or for each other, where that was not recorded. Half of a part may be late: so a rank is compared with the
    median of all others of its part. Without what chips usually differ by, `2 * SMALLEST_EFFECT` of a step.
    """
    late = np.full_like(blocked, np.nan)
    for kind in np.unique(part).tolist():
        own = np.flatnonzero(part == kind)
        for rank in own.tolist() if len(own) > 1 else ():
            late[rank] = median_by_step(blocked[own[own != rank]]) - blocked[rank]
    judged = np.flatnonzero(np.isfinite(late).any(axis=1))
    if not len(judged) or late.shape[1] < FEWEST_STEPS:
        return None
    found, cost = np.zeros(len(part), np.bool_), 0.0
    steps = late.shape[1]
    onsets = np.unique(np.linspace(0, steps - FEWEST_STEPS // 2, ONSETS).astype(np.int64)).tolist()
    segments = [*time_segments(steps), *(slice(begin, steps) for begin in onsets)]
    for segment in segments:
        values = late[judged, segment] / period
        mean, error = trimmed_mean(values)
        needed = upper_quantile(CHANCE_OF_POSSIBLE / len(judged) / len(segments), values.shape[1])
        slow = (mean > 2 * SMALLEST_EFFECT) & (mean > needed * error)
        found[judged] |= slow
        cost = max(cost, float(mean[slow].max(initial=0.0)) * values.shape[1] / steps)
    if not found.any() or cost < SMALLEST_EFFECT:
        return None
    evidence = {"by": ACT_AS_ONE, "possible": np.flatnonzero(found).tolist()}
    return Diagnosis(Cause.UNKNOWN, seconds_lost_per_step=cost * period, evidence=evidence)


def some_meet(line: Timeline) -> bool:
    """Whether any operation between some of the ranks was recorded, and not only those of all."""
    if line.group is None:
        return False
    pairs, size = _memberships(line, line.group)
    return bool((size[pairs[0]] < line.ranks).any())


def _memberships(line: Timeline, group: Ints) -> tuple[Ints, Ints]:
    """Groups and their ranks, (2, n), and by group the number of its ranks."""
    rows = line.collective & (group >= 0)
    pairs = np.unique(np.stack([group[rows], line.rank[rows]]), axis=1)
    return pairs, np.bincount(pairs[0], minlength=int(group.max(initial=-1)) + 1)


def _moves_data(line: Timeline, rows: Bools, period: float) -> bool:
    """Whether these operations take more than `MOVES_DATA` of a step after their last rank has come."""
    _, shortest = shortest_by_instance(line, np.flatnonzero(rows & (line.instance >= 0)), line.duration)
    return bool(len(shortest)) and float(shortest.sum()) >= MOVES_DATA * period * line.steps


def with_those_that_act_alike(item: Diagnosis, late: Floats, part: Ints) -> Diagnosis:
    """What waits show, but `unknown` where ranks of another part are late like those: one may wait for the other.

    `late`: seconds by (rank, step) that each was blocked less than ranks with the same work.
    """
    found = [*item.ranks, *item.evidence.get("possible", ())]
    seconds = np.maximum(np.where(np.isfinite(late), late, 0.0), 0.0)
    alike = np.zeros(len(part), np.bool_)
    for rank in found:
        own = seconds[rank]
        alike |= (part != part[rank]) & (seconds @ own >= LIKEWISE * (own @ own)) & bool(own.any())
    if not alike.any():
        return item
    alike[found] = True
    evidence = {**item.evidence, "by": ACT_AS_ONE, "possible": np.flatnonzero(alike).tolist()}
    return replace(item, cause=Cause.UNKNOWN, ranks=(), evidence=evidence)
