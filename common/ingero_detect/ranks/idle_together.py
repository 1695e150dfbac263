"""Finds a rank that stands still, or several at the same time, while all others wait for them. Pure.

The ranks of a host are often a whole pipeline stage. When they stop together, as for a slow data loader, comparing
ranks of a stage shows nothing, and how long a stage waits depends on its place in the schedule. Uneven data, such as
the tokens of experts, hides a rank that stops alone. But neither the partition of a model nor its data is time in
which ranks do nothing at all. So what counts is time that no operation fills, on these ranks in the same steps, if
all other ranks are blocked the longer, the longer it is, and these are not.
"""

from typing import Any, Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, row_medians
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.last_arrival import (
    FAR_SIGMAS,
    SAME_STEPS,
    long_variance_inflation,
    median_by_step,
    min_last_count,
    residuals_by_step,
)
from ingero_detect.ranks.rank_outliers import SIGNIFICANCE, SMALLEST_EFFECT, straggler_ranks
from ingero_detect.ranks.stalls import CHANCE_OF_STALLS, FEW_STALLS, WAITING
from ingero_detect.ranks.timeline import FEWEST_STEPS, Timeline, sum_by_rank_and_step, well_covered_steps
from ingero_detect.threshold import MAD_TO_SIGMA

IDLE: Final = "idle"
IDLE_TOGETHER: Final = "idle_together"
"""What shows a rank that does nothing while all others wait; several that do so at the same time."""

LEAST_STALL: Final = 0.02
"""Share of a step below which time without an operation is none."""

MOST_IDLE: Final = 0.25
"""Share of a step without operations from which too few are recorded: what is not may be longer on some ranks."""

CALM: Final = 0.25
"""Quantile of ranks by how much their time without an operation varies, at which ranks do not stall."""

LARGEST_SHARE: Final = 0.5
"""Share of all ranks that stand still together at most."""


def idle_ranks(
    recorded: Timeline, line: Timeline, late: Floats, longer: Floats, alike: Ints, period: float
) -> Diagnosis | None:
    """The ranks that stand still so often, or so long, that chance is no reason; `unknown` where that is not proven.

    `recorded`: all operations with their durations; the waits of `line` are those in which a rank does nothing else;
    `late`: seconds by (rank, step) that each was blocked less than ranks with the same work (`alike`); `longer`:
    seconds a step that each computes longer than these; `period`: seconds of a step.
    """
    blocked, idle = sum_by_rank_and_step(line, line.collective, line.duration), idle_seconds(recorded)
    known = well_covered_steps(np.where(np.isfinite(blocked), idle, np.nan))
    idle, blocked = idle[:, known], blocked[:, known]
    if idle.shape[1] < FEWEST_STEPS or not np.isfinite(idle + blocked).any(axis=1).all():
        return None
    sure, idle, blocked = np.isfinite(idle), _without_gaps(idle), _without_gaps(blocked)
    if np.median(idle) > MOST_IDLE * period:
        return None
    return _in_the_same_steps(idle, sure, blocked, period) or _lastingly(idle, late, longer, alike, period)


def _in_the_same_steps(idle: Floats, sure: Bools, blocked: Floats, period: float) -> Diagnosis | None:
    """Ranks that do nothing in the same steps, by seconds that differ, while all others wait accordingly.

    `sure`: where no row of the rank is lost, so that its time without an operation is known.
    """
    usual = np.median(idle, axis=1)
    idle = idle - np.minimum(usual, np.median(usual))[:, None]
    # Half of the ranks may stand still, in half of the steps, which is no noise.
    noise = MAD_TO_SIGMA * float(np.quantile(row_medians(np.abs(idle - row_medians(idle)[:, None])), CALM))
    far = sure & (idle > max(FAR_SIGMAS * noise, LEAST_STALL * period))
    first = int(far.sum(axis=1).argmax())
    either = ((far | far[first]) & sure & sure[first]).sum(axis=1)
    together = (far & far[first]).sum(axis=1) >= SAME_STEPS * np.maximum(either, 1)
    if not 1 <= together.sum() <= LARGEST_SHARE * len(together):
        return None
    seconds = np.nan_to_num(median_by_step(np.where(sure, idle, np.nan)[together]))
    # Steps in which others pause too, as at the begin of an epoch, do not tell who waits for these.
    alone = ~far[~together].any(axis=0)
    if not _others_wait(blocked[:, alone], together, seconds[alone]):
        return None
    # Pauses of fewer than half as many ranks are none of such a set. Where these and others pause, neither is alone.
    several = max(1.0, together.sum() / 2)
    others = far[~together].sum(axis=0) >= several
    own = (far | ~sure)[together].all(axis=0) & far[together].any(axis=0)
    odd = (far.sum(axis=0) >= several) & ~(own & others)
    return _verdict(together, own & ~others, int(odd.sum()), seconds, period)


def _lastingly(idle: Floats, late: Floats, longer: Floats, alike: Ints, period: float) -> Diagnosis | None:
    """Ranks that do nothing for longer than ranks with the same work, if they and nobody else are late by as much.

    What is late because it computes longer is not counted. A rank that is late without either may be the one for
    which these wait, in an operation that is not recorded.
    """
    if not late.shape[1]:
        return None
    found, excess = straggler_ranks(idle / period, alike)
    lateness = (np.nanmean(late, axis=1) - np.maximum(longer, 0.0)) / period
    guilty = lateness > WAITING * excess[found].min(initial=np.inf)
    if not found.any() or not (guilty == found).all():
        return None
    ranks = tuple(np.flatnonzero(found).tolist())
    lost = float(np.median(residuals_by_step(idle, alike)[found].mean(axis=1)))
    shares = {str(rank): round(float(excess[rank]), 6) for rank in ranks}
    return Diagnosis(
        Cause.NODE, ranks, seconds_lost_per_step=lost, evidence={"by": _by(found), "excess_share_of_step": shares}
    )


def _by(ranks: Bools) -> str:
    return IDLE_TOGETHER if ranks.sum() > 1 else IDLE


def _without_gaps(table: Floats) -> Floats:
    """The table with the usual value of its row for one that is not known."""
    return np.asarray(np.where(np.isfinite(table), table, np.nanmedian(table, axis=1, keepdims=True)))


def _others_wait(blocked: Floats, together: Bools, seconds: Floats) -> bool:
    """Whether all other ranks are blocked the longer, the longer these stand still, and these themselves are not.

    One that is not blocked longer may compute longer, while these wait for it in an operation that is not recorded.
    """
    apart = seconds - seconds.sum() / max(len(seconds), 1)
    power = float(apart @ apart)
    if not power > 0:
        return False
    slope = (blocked - blocked.mean(axis=1, keepdims=True)) @ apart / power
    return bool(slope[~together].mean() > WAITING and slope[~together].min() > WAITING / 2 > slope[together].mean())


def _verdict(together: Bools, caused: Bools, total: int, seconds: Floats, period: float) -> Diagnosis | None:
    """What stalls of these ranks prove, in the steps that they `caused` of `total` with any.

    By chance it is as likely one of the `others`, the sets of so many ranks into which all are divided, as on hosts.
    """
    ranks, others = np.flatnonzero(together).tolist(), len(together) / int(together.sum())
    count, chance = int(caused.sum()), CHANCE_OF_STALLS / others
    lost = float(seconds[caused].sum()) / len(caused)
    if (
        not count
        or lost < SMALLEST_EFFECT * period
        or count < max(min_last_count(total, others, chance), total // 2 + 1)
    ):
        return None
    evidence: dict[str, Any] = {"odd_steps": count, "of_odd_steps": total}
    runs = long_variance_inflation(caused) if not caused.all() else 1.0
    needed = min_last_count(max(1, int(total / runs)), others, SIGNIFICANCE / others)
    if count / runs >= needed:
        return Diagnosis(
            Cause.NODE, tuple(ranks), seconds_lost_per_step=lost, evidence={"by": _by(together), **evidence}
        )
    evidence = {"by": FEW_STALLS, "possible": ranks, **evidence}
    return Diagnosis(Cause.UNKNOWN, seconds_lost_per_step=lost, evidence=evidence)


def idle_seconds(line: Timeline, before: Bools | None = None) -> Floats:
    """Seconds before operations (all, or those marked in `before`) without any, by (rank, step of the operation).

    NaN for a step that lacks rows of the rank, as do those after one: what was lost is no time without an operation.
    """
    order = np.lexsort((line.start, line.rank))
    rank, start = line.rank[order], line.start[order]
    end, idle = start + line.duration[order], np.zeros(len(order))
    for rows in np.split(np.arange(len(order)), np.searchsorted(rank, np.arange(1, line.ranks))):
        idle[rows[1:]] = np.maximum(start[rows[1:]] - np.maximum.accumulate(end[rows])[:-1], 0.0)
    by_row = np.empty(len(order))
    by_row[order] = idle
    every = np.ones(len(order), np.bool_)
    count = np.nan_to_num(sum_by_rank_and_step(line, every, np.ones(len(order))))
    short = count < np.median(count, axis=1, keepdims=True)
    short[:, 1:] |= short[:, :-1]
    by_row = by_row if before is None else by_row * before
    return np.where(short, np.nan, sum_by_rank_and_step(line, every, by_row))
