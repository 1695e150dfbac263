"""Tells whether ranks that are late may only have waited for one another, in operations that were not recorded. Pure.

A rank that waits in an operation without a record does nothing, as one does that stalls, and is then as late to all
that is recorded. In a mesh of parallel groups a missing kind of groups connects ranks that recorded groups do not
connect at all: so ranks which those do connect have waited for one another only where the recording shows it.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, connected
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.timeline import Timeline, shortest_by_instance

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
    pairs, size = _memberships(line, line.group)
    several = pairs[:, (size >= 2)[pairs[0]] & (size < line.ranks)[pairs[0]]]
    of_all = line.collective & np.isin(line.group, np.flatnonzero(size == line.ranks))
    if not several.size or _moves_data(line, of_all, period):
        return together
    return connected(several, line.ranks)


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
