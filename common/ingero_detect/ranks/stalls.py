"""Finds ranks that stand still in some steps while the job waits, also where that proves nothing. Pure."""

from typing import Any, Final

import numpy as np

from ingero_detect.grouped import Bools, Floats
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.last_arrival import (
    FAR_SIGMAS,
    frequently_among_last,
    frequently_far,
    long_variance_inflation,
    median_by_step,
    min_last_count,
)
from ingero_detect.ranks.rank_outliers import (
    MAX_STRAGGLER_SHARE,
    MIN_SPREADS,
    SIGNIFICANCE,
    SMALLEST_EFFECT,
    variance_inflation_of_others,
)
from ingero_detect.ranks.timeline import FEWEST_STEPS
from ingero_detect.threshold import MAD_TO_SIGMA

STALLS: Final = "stalls"
"""What shows a rank that is far behind in so many of the steps in which any rank is, that it is the cause."""

FEW_STALLS: Final = "few_stalls"
"""The same in too few steps to prove it."""

LATE_TOGETHER: Final = "late_together"
"""What shows ranks that are among the last together, in too few steps to prove that they are the cause."""

WAITING: Final = 0.5
"""Share of a stall that ranks must be blocked longer than usual to wait for it."""

MOST_TOGETHER: Final = 0.5
"""Share of ranks that are late together at most: others must show that they need not be."""

CHANCE_OF_STALLS: Final = 0.05
"""Chance with which pauses that strike any rank strike one so often that it is called possible."""

CHANCE_OF_SEVERAL: Final = 1e-3
"""The same for one of several ranks that are late together, as of a host."""


def stalling_rank(
    late: Floats, period: float, named: set[int], blocked: Floats | None = None
) -> Diagnosis | None:  # fmt: skip
    """The rank with most of the steps in which a single one is far behind, if that is hardly chance and costs enough.

    `late`: seconds by (rank, step) that each was blocked less than ranks with the same work; `period`: seconds of a
    step. Ranks that are `named` are not looked at. With `blocked`, the seconds of each in all groups, it is named if
    all others wait for it so often that pauses which strike any rank of the job are no reason.
    """
    ranks = np.array([rank for rank in range(len(late)) if rank not in named], np.int64)
    apart = late[ranks] - np.nanmedian(late[ranks], axis=1, keepdims=True)
    known = np.isfinite(apart).mean(axis=0) >= 0.8
    apart = apart[:, known]
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
    evidence: dict[str, Any] = {"odd_steps": int(counts[first]), "of_odd_steps": total}
    own, rank = far & (last == first), int(ranks[first])
    if blocked is not None and _proven(own, total, len(ranks)) and _all_wait(blocked[:, known], rank, own, gap):
        return Diagnosis(Cause.NODE, (rank,), seconds_lost_per_step=lost, evidence={"by": STALLS, **evidence})
    evidence = {"by": FEW_STALLS, "possible": [rank], **evidence}
    return Diagnosis(Cause.UNKNOWN, seconds_lost_per_step=lost, evidence=evidence)


def late_together(late: Floats, period: float) -> Diagnosis | None:
    """Ranks that are late together so often that it is hardly chance, if that costs enough.

    They are up to half of all that are far behind in the same steps (some, not most), as the ranks of one host of
    two, or are among the last quarter of all. Where nobody else is ever far behind, as few steps count as of
    `stalling_rank`. `late` and `period` as there. What differs lastingly
    between the other ranks must be far less.
    """
    values = late / period
    values = values[:, np.isfinite(values).mean(axis=0) >= 0.8]
    if values.shape[1] < FEWEST_STEPS or not np.isfinite(values).any(axis=1).all():
        return None
    alike, chance = np.zeros(len(values), np.int64), CHANCE_OF_SEVERAL / len(values)
    far = frequently_far(values, alike, chance, alone=CHANCE_OF_STALLS)
    stretch = variance_inflation_of_others(values)
    among = frequently_among_last(values, alike, MAX_STRAGGLER_SHARE, chance, stretch)
    mean = np.nanmean(values - median_by_step(values), axis=1)
    for (often, cost), most, may_last in ((far, MOST_TOGETHER, False), (among, MAX_STRAGGLER_SHARE, True)):
        late_ones = often & (cost > SMALLEST_EFFECT)
        if not 2 <= late_ones.sum() <= most * len(values):
            continue
        if not may_last and _lastingly(values, late_ones):
            continue
        others = mean[~late_ones]
        spread = MAD_TO_SIGMA * float(np.median(np.abs(others - np.median(others))))
        late_ones &= mean - np.median(others) > MIN_SPREADS * spread
        lost = _lost(values, late_ones) * period if late_ones.sum() >= 2 else 0.0
        if lost >= SMALLEST_EFFECT * period:
            evidence = {"by": LATE_TOGETHER, "possible": np.flatnonzero(late_ones).tolist()}
            return Diagnosis(Cause.UNKNOWN, seconds_lost_per_step=lost, evidence=evidence)
    return None


def _lastingly(values: Floats, late: Bools) -> bool:
    """Whether these ranks are behind the others in most steps, as of a slower half, and not in some."""
    apart = median_by_step(values[late]) - median_by_step(values[~late])
    return bool(np.nanmedian(apart) > SMALLEST_EFFECT)


def _lost(values: Floats, late: Bools) -> float:
    """By how much the last of these ranks is behind the last of all others, a mean over steps."""
    return float(np.nanmean(np.nanmax(values[late], axis=0) - np.nanmax(values[~late], axis=0)))


def _proven(stalls: Bools, total: int, ranks: int) -> bool:
    """Whether one of so many ranks is hardly by chance the one in these of all the odd steps."""
    runs = long_variance_inflation(stalls)
    return int(stalls.sum()) / runs >= min_last_count(max(1, int(total / runs)), ranks, SIGNIFICANCE / ranks)


def _all_wait(blocked: Floats, rank: int, stalls: Bools, gap: Floats) -> bool:
    """Whether all other ranks are blocked longer than usual in most of these steps, and this one in few of them."""
    longer = blocked - np.nanmedian(blocked[:, ~stalls], axis=1, keepdims=True)
    waits = (longer >= WAITING * gap)[:, stalls].mean(axis=1)
    return bool((np.delete(waits, rank) > 0.5).all() and waits[rank] < 0.5)
