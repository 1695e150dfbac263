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


def stage_width(rank: Ints, sends: Bools) -> int | None:
    """How many ranks a stage has, from how many sends and receives each rank has; `None` if there are none.

    The first and the last stage have fewer than those in between. Where all have equally many, there are two stages.
    """
    counts = np.bincount(rank[sends], minlength=int(rank.max(initial=0)) + 1)
    most, fewest = int(counts.max()), int(counts.min())
    if not most:
        return None
    ends = len(counts) if most - fewest <= ALIKE * most else int((2 * counts < most + fewest).sum())
    return max(ends // 2, 1)


def doubted_as_stage(found: Diagnosis, line: Timeline, width: int) -> Diagnosis:
    """Nobody is named where those that are as busy as the named ranks are more than half of a stage of `width` ranks.

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
    if not more >= SMALLEST * found.evidence["step_seconds"] or 2 * len(alike) <= width:
        return found
    evidence = {**found.evidence, "by": MAY_BE_STAGE, "possible": sorted(alike)}
    return replace(found, cause=Cause.UNKNOWN, ranks=(), evidence=evidence)
