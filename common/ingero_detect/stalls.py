"""Finds the rank that stands still in some steps, too few to prove that it is the cause. Pure."""

from typing import Final

import numpy as np

from ingero_detect.grouped import Floats
from ingero_detect.imbalance import Cause, Diagnosis
from ingero_detect.last_arrival import FAR_SIGMAS, min_last_count
from ingero_detect.rank_outliers import SMALLEST_EFFECT
from ingero_detect.threshold import MAD_TO_SIGMA
from ingero_detect.timeline import FEWEST_STEPS

STALLS: Final = "few_stalls"
"""What shows a rank that is far behind in most of the steps in which any rank is."""

CHANCE_OF_STALLS: Final = 0.05
"""Chance with which pauses that strike any rank strike one so often that it is called possible."""


def few_stalls(late: Floats, period: float, named: set[int]) -> Diagnosis | None:
    """The rank with most of the steps in which a single one is far behind, if that is hardly chance and costs enough.

    `late`: seconds by (rank, step) that each was blocked less than ranks with the same work; `period`: seconds of a
    step. Ranks that are `named` are not looked at.
    """
    ranks = np.array([rank for rank in range(len(late)) if rank not in named], np.int64)
    apart = late[ranks] - np.nanmedian(late[ranks], axis=1, keepdims=True)
    apart = apart[:, np.isfinite(apart).mean(axis=0) >= 0.8]
    steps = apart.shape[1]
    if len(ranks) < 2 or steps < FEWEST_STEPS:
        return None
    usual = MAD_TO_SIGMA * float(np.nanmedian(np.abs(apart)))
    table = np.where(np.isfinite(apart), apart, -np.inf)
    last = table.argmax(axis=0)
    gap = table[last, np.arange(steps)] - np.partition(table, -2, axis=0)[-2]
    far = (gap > FAR_SIGMAS * usual) & (table.max(axis=0) > FAR_SIGMAS * usual)
    counts = np.bincount(last[far], minlength=len(ranks))
    first, total = int(counts.argmax()), int(far.sum())
    lost = float(gap[far & (last == first)].sum()) / steps
    enough = max(min_last_count(total, len(ranks), CHANCE_OF_STALLS / len(ranks)), total // 2 + 1)
    if not total or counts[first] < enough or lost < SMALLEST_EFFECT * period:
        return None
    evidence = {"by": STALLS, "possible": [int(ranks[first])], "odd_steps": int(counts[first]), "of_odd_steps": total}
    return Diagnosis(Cause.UNKNOWN, seconds_lost_per_step=lost, evidence=evidence)
