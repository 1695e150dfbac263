"""Ranks that are slow as a heavier pipeline stage would be, where nothing says which ranks are a stage. Pure."""

from dataclasses import replace
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Ints
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.timeline import Timeline, sum_by_rank_and_step

ALIKE: Final = 0.02
"""By which share some ranks may have more sends than others where all stages have equally many."""

SMALLEST: Final = 0.01
"""Share of a step by which ranks are busier than others if that is why they were named."""

MAY_BE_STAGE: Final = "may_be_stage"

UNTOLD: Final = 0
"""The number of ranks of a stage where sends were recorded, and do not tell it."""


def stage_width(rank: Ints, step: Ints, op: Ints, sends: Bools) -> int | None:
    """How many ranks a stage has, from how many sends and receives each rank has; `None` if there are none.

    The first and the last stage have fewer than those in between. Where all have equally many, there are two stages,
    or, with one row for all sends of a step, any number (`UNTOLD`).
    """
    counts = np.bincount(rank[sends], minlength=int(rank.max(initial=0)) + 1)
    most, fewest = int(counts.max()), int(counts.min())
    if not most:
        return None
    if most - fewest > ALIKE * most:
        return max(int((2 * counts < most + fewest).sum()) // 2, 1)
    cells = (rank[sends] * (int(step.max()) + 1) + step[sends]) * (int(op.max()) + 1) + op[sends]
    return UNTOLD if len(np.unique(cells)) == len(cells) else max(len(counts) // 2, 1)


def _could_be_stage(alike: Bools, meet: bool) -> bool:
    """Whether these ranks are mostly those of one stage of some pipeline: ranks in a row, or at equal distances.

    One rank is a stage of its own if ranks do not `meet` other than by sends; the first or the last may be heavier.
    """
    ranks = len(alike)
    if alike.sum() == 1:
        return not meet and bool(alike[0] or alike[-1])
    for width in range(2, ranks // 2 + 1):
        if ranks % width:
            continue
        stages = alike.reshape(-1, width), alike.reshape(width, -1).T
        if any(2 * int(table.sum(axis=1).max()) > max(width, int(alike.sum())) for table in stages):
            return True
    return False


def doubted_as_stage(found: Diagnosis, line: Timeline, width: int) -> Diagnosis:
    """Nobody is named where those that are as busy as the named ranks are more than half of a stage of `width` ranks,
    or, where that is not told, may be a stage.

    A rank is busy while it computes or, where no compute was recorded, while it is not blocked.
    """
    if found.cause is not Cause.NODE:
        return found
    computed = not line.collective.all()
    seconds = sum_by_rank_and_step(line, ~line.collective if computed else line.collective, line.duration)
    busy = np.nanmedian(seconds, axis=1) * (1 if computed else -1)
    middle = float(np.nanmedian(busy))
    more = float(np.nanmean(busy[list(found.ranks)])) - middle
    alike = set(np.flatnonzero(busy > middle + more / 2).tolist()) | set(found.ranks)
    as_busy = np.isin(np.arange(line.ranks), list(alike))
    meet = bool((line.collective & ~line.sends).any()) if line.sends is not None else False
    stage = _could_be_stage(as_busy, meet) if width == UNTOLD else 2 * len(alike) > width
    if not more >= SMALLEST * found.evidence["step_seconds"] or not stage:
        return found
    evidence = {**found.evidence, "by": MAY_BE_STAGE, "possible": sorted(alike)}
    return replace(found, cause=Cause.UNKNOWN, ranks=(), evidence=evidence)
