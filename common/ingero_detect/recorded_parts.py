"""Tells whether ranks that are late may only have waited for one another, in operations that were not recorded. Pure.

A rank that waits in an operation without a record does nothing, as one does that stalls, and is then as late to all
that is recorded. In a mesh of parallel groups a missing kind of groups connects ranks that recorded groups do not
connect at all: so ranks which those do connect have waited for one another only where the recording shows it.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from ingero_detect.grouped import Floats, Ints
from ingero_detect.imbalance import Cause, Diagnosis
from ingero_detect.timeline import Timeline

ACT_AS_ONE: Final = "act_as_one"
"""What shows ranks that are late in the same steps, and that no recorded group connects."""

MOVES_DATA: Final = 0.01
"""Share of a step that operations of all ranks take at least, after the last has come, to be more than a norm."""

LIKEWISE: Final = 0.5
"""Share of a rank's lateness by which another one that may be its cause is late in the same steps."""


def recorded_parts(line: Timeline, period: float) -> Ints:
    """By rank, the lowest one that recorded groups connect it with; 0 for all where no part of the ranks has a group.

    A norm or a barrier of all ranks, which takes less than `MOVES_DATA` of a step (`period`, seconds), connects none.
    """
    together = np.zeros(line.ranks, np.int64)
    if line.group is None:
        return together
    rows = np.flatnonzero(line.collective & (line.group >= 0))
    pairs = np.unique(np.stack([line.group[rows], line.rank[rows]]), axis=1)
    size = np.bincount(pairs[0], minlength=int(line.group.max(initial=-1)) + 1)
    several = pairs[:, (size >= 2)[pairs[0]] & (size < line.ranks)[pairs[0]]]
    if not several.size or _moves_data(line, rows[size[line.group[rows]] == line.ranks], period):
        return together
    return connected(several, line.ranks)


def some_meet(line: Timeline) -> bool:
    """Whether any operation between some of the ranks was recorded, and not only those of all."""
    if line.group is None:
        return False
    rows = line.collective & (line.group >= 0)
    pairs = np.unique(np.stack([line.group[rows], line.rank[rows]]), axis=1)
    return bool((np.unique(pairs[0], return_counts=True)[1] < line.ranks).any())


def connected(pairs: Ints, ranks: int) -> Ints:
    """By rank, the lowest one that groups connect it with; each column of `pairs` is a group and one of its ranks."""
    label = np.arange(ranks)
    while True:
        lowest = np.full(int(pairs[0].max(initial=0)) + 1, ranks)
        np.minimum.at(lowest, pairs[0], label[pairs[1]])
        joined = label.copy()
        np.minimum.at(joined, pairs[1], lowest[pairs[0]])
        if (joined == label).all():
            return label
        label = joined


def _moves_data(line: Timeline, rows: Ints, period: float) -> bool:
    """Whether these operations take more than `MOVES_DATA` of a step after their last rank has come."""
    rows = rows[line.instance[rows] >= 0]
    if not len(rows):
        return False
    _, instance = np.unique(line.instance[rows], return_inverse=True)
    shortest = np.full(int(instance.max()) + 1, np.inf)
    np.minimum.at(shortest, instance, line.duration[rows])
    return float(shortest.sum()) >= MOVES_DATA * period * line.steps


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
