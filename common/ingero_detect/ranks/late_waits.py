"""Ranks for which others wait: in a collective the late rank is the one that blocks least. Pure."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.case import Case
from ingero_detect.ranks.doubts import Doubts, doubted
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.last_arrival import residuals_by_step
from ingero_detect.ranks.operation_excess import EXPLAINED
from ingero_detect.ranks.peers import alone_in_stage, is_made_of, like_work, share_of_step, worst_first
from ingero_detect.ranks.rank_outliers import (
    CHIP_SPREAD,
    SIGNIFICANCE,
    straggler_ranks,
    trimmed_mean,
    usual_excess,
)
from ingero_detect.ranks.recorded_parts import with_those_that_act_alike
from ingero_detect.ranks.student import upper_quantile
from ingero_detect.ranks.timeline import FEWEST_STEPS, Timeline
from ingero_detect.ranks.wait_attribution import WaitAttribution, blocked_seconds

THROUGHOUT: Final = 0.75
"""Share of its lateness that a rank has in the mean of all steps, from which its chip may explain it: that stays."""


def late_by_waits(case: Case, found: list[Diagnosis]) -> list[Diagnosis]:
    """Ranks that others wait for, where their computing proves none late."""
    if case.lags is None or not case.waits_compare or any(item.cause is Cause.NODE for item in found):
        return []
    suspects: list[Diagnosis] = []
    in_all = case.free if case.blame is not None else None
    if in_all is not None:
        suspects = blocked_least_in_all(in_all, case.stage, case.doubts, case.period)
    if not suspects:
        suspects = blocked_least_in_one(
            case.lags, in_all, case.blame, case.stage, case.doubts, case.period, case.facts
        )
    if suspects:
        suspects = without_usual_chips(suspects, *_chips_explain(case, in_all))
    suspects = [with_those_that_act_alike(item, case.late, case.part) for item in suspects]
    if any(item.cause is Cause.STAGE for item in found):
        return []
    doubted = any(item.cause is Cause.UNKNOWN for item in found)
    return [item for item in suspects if not (doubted and item.cause is Cause.UNKNOWN)]


def _chips_explain(case: Case, in_all: Floats | None) -> tuple[Floats, Bools, float]:
    """By which share of a step each rank computes longer, whether healthy chips differ by as much, and which share of
    its lateness that has to be.

    Where computing was not recorded, a rank that comes later may compute longer by so much.
    """
    if case.known.any():
        relative = case.compute[:, case.known] / case.period
        return *usual_excess(relative, case.like, CHIP_SPREAD * share_of_step(relative)), EXPLAINED
    assert case.lags is not None
    blocked = blocked_seconds(case.line, case.like)
    busy = 1 - share_of_step(blocked / case.period) if blocked is not None else 1.0
    late = in_all if in_all is not None else case.lags / case.period
    return *usual_excess(late, case.like, CHIP_SPREAD * busy), THROUGHOUT


def free_steps(line: Timeline, stage: Ints, period: float) -> Floats | None:
    """How much less each rank was blocked in all its groups than ranks of its stage, by (rank, step), in steps.

    All ranks spend the same time in a step. While a rank is not blocked it delays others, and a victim that waits in
    one group waits less in the next. In a pipeline the waits of single groups do not show the late rank, because a
    sender never waits for its receiver. A rank alone in its stage has no peers, and 0 everywhere.
    """
    blocked = blocked_seconds(line, like_work(stage))
    if blocked is None:
        return None
    return np.asarray(
        np.where(alone_in_stage(stage)[:, None], 0.0, -residuals_by_step(blocked, like_work(stage)) / period)
    )


def blocked_least_in_all(free: Floats, stage: Ints, doubts: Doubts, period: float) -> list[Diagnosis]:
    """The rank that blocks least over all groups that it belongs to."""
    flagged, excess = np.zeros(len(free), np.bool_), np.zeros(len(free))
    judged = ~alone_in_stage(stage)
    flagged[judged], excess[judged] = straggler_ranks(free[judged], like_work(stage)[judged])
    if not flagged.any() or is_made_of(flagged, stage):
        return []
    found = []
    late = np.nanmean(free, axis=1)
    for flags, by in doubts.apart(flagged, late, "blocked_least_in_all", late):
        ranks, shares = worst_first(flags, excess)
        lost = float(np.nanmean(np.nanmax(np.maximum(free[flags], 0.0), axis=0))) * period
        evidence = {"by": by, "excess_share_of_step": shares}
        found.append(doubted(Diagnosis(Cause.NODE, ranks, seconds_lost_per_step=lost, evidence=evidence)))
    return found


def blocked_least_in_one(
    lags: Floats, free: Floats | None, blame: WaitAttribution | None, stage: Ints, doubts: Doubts, period: float,
    facts: dict[str, Any],
) -> list[Diagnosis]:  # fmt: skip
    """The rank that blocks least, for timelines whose compute times are missing or show no cause."""
    flagged, excess = straggler_ranks(lags / period, np.zeros(len(lags), np.int64), blame)
    if free is not None:
        flagged &= np.nanmean(free, axis=1) > 0.5 * excess
    facts["largest_lag_share"] = round(float(np.nanmax(np.nanmedian(lags, axis=1)) / period), 6)
    if not flagged.any():
        return []
    whole = slice(0, lags.shape[1])
    if blame is not None:
        lags = np.where((blame.victims(whole) & ~flagged)[:, None], np.minimum(lags, 0.0), lags)
    if is_made_of(flagged, stage):
        slow = _blocked_least(flagged, excess, lags, blame)
        return [replace(slow, cause=Cause.STAGE, ranks=())]
    early = np.nanmean(lags / period if free is None else free, axis=1)
    return [
        doubted(_blocked_least(flags, excess, lags, blame, by))
        for flags, by in doubts.apart(flagged, early, "blocked_least", early)
    ]


def _blocked_least(
    flagged: Bools, excess: Floats, lags: Floats, blame: WaitAttribution | None, by: str = "blocked_least"
) -> Diagnosis:
    """Ranks that block least, and how much later than the others they come, by step."""
    ranks, shares = worst_first(flagged, excess)
    others = np.where(flagged[:, None], np.minimum(lags, 0.0), lags)
    saved = np.nanmax(lags, axis=0) - np.maximum(np.nanmax(others, axis=0), 0.0)
    lost = float(np.nanmean(np.maximum(saved, 0.0)))
    if blame is not None:
        # A delay that is passed on from group to group counts once.
        gaps = blame.gaps(slice(0, lags.shape[1]))
        lost = min(lost, float((gaps * flagged[blame.rank_of]).max()) / lags.shape[1])
    last = np.argmax(np.nan_to_num(lags, nan=-np.inf), axis=0)
    evidence = {
        "by": by,
        "excess_share_of_step": shares,
        "last_in_share_of_steps": round(float(np.mean(last == ranks[0])), 4),
    }
    return Diagnosis(Cause.NODE, ranks, seconds_lost_per_step=lost, evidence=evidence)


def without_usual_chips(
    found: list[Diagnosis], excess: Floats, usual: Bools, explained: float = EXPLAINED
) -> list[Diagnosis]:  # fmt: skip
    """Without ranks that are late because their chips are slower by what healthy chips differ by.

    `excess`: by which share of the step each computes longer than ranks with the same work; `usual`: whether that is
    no more than these differ by. A rank stays of whose lateness that is less than the share `explained`.
    """
    kept = []
    for item in found:
        late = item.evidence["excess_share_of_step"]
        ranks = tuple(
            rank
            for rank in item.ranks
            if not (usual[rank] and excess[rank] >= explained * late.get(str(rank), np.inf))
        )
        if ranks or not item.ranks:
            kept.append(replace(item, ranks=ranks))
    return kept


def supported_by_waits(item: Diagnosis, lags: Floats) -> Diagnosis:
    """Remove ranks that compute long but block longer than ranks with the same work: they delay no other rank.

    `lags`: seconds by (rank, step) that each was blocked less than those.
    """
    if item.cause is not Cause.NODE or item.evidence["by"].startswith("blocked_least"):
        return item
    mean, error = trimmed_mean(lags)
    needed = upper_quantile(SIGNIFICANCE / len(mean), lags.shape[1]) if lags.shape[1] >= FEWEST_STEPS else 0.0
    guilty = tuple(rank for rank in item.ranks if mean[rank] >= -needed * error[rank])
    lag = {str(rank): round(float(mean[rank]), 9) for rank in item.ranks}
    if not guilty:
        return Diagnosis(Cause.NONE)
    return Diagnosis(
        item.cause, guilty, item.slowdown, item.seconds_lost_per_step, {**item.evidence, "lag_seconds": lag}
    )
