"""Ranks, pipeline stages and sequences that compute longer than others with the same work. Pure."""

from dataclasses import dataclass, replace

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.calm_compute import data_peers, slower_in_all, steady_compute
from ingero_detect.ranks.case import Case
from ingero_detect.ranks.doubts import doubted
from ingero_detect.ranks.imbalance import Cause, Diagnosis, sequence_imbalance, stage_imbalance, usual_steps
from ingero_detect.ranks.last_arrival import residuals_by_step
from ingero_detect.ranks.peers import is_made_of, relative_compute, worst_first
from ingero_detect.ranks.rank_outliers import (
    CHIP_SPREAD,
    SIGNIFICANCE,
    SMALLEST_EFFECT,
    straggler_ranks,
    trimmed_mean,
)
from ingero_detect.ranks.slower_part import slower_ranks
from ingero_detect.ranks.student import upper_quantile
from ingero_detect.ranks.timeline import FEWEST_STEPS, Timeline


@dataclass(frozen=True)
class _Computing:
    """What ranks compute in the known steps. Tables have the shape (rank, step)."""

    case: Case
    seconds: Floats
    relative: Floats
    """As shares of a step of usual length, by the median rank of each step."""
    weight: float
    """The share of a step that the median rank computes."""

    @property
    def one_of_each(self) -> bool:
        """Whether no rank has a peer, since each is a pipeline stage of its own."""
        return bool(self.case.single.all())

    @property
    def few(self) -> bool:
        """Whether there are too few steps to know how much ranks vary."""
        return bool(self.seconds.shape[1] < FEWEST_STEPS)

    @property
    def chips(self) -> float:
        """By which share of a step healthy chips differ."""
        return CHIP_SPREAD * min(self.weight, 1.0)


def late_by_computing(case: Case) -> list[Diagnosis]:
    """Ranks, stages and sequences that compute longer; `case.facts` gets the share of a step that ranks compute."""
    if not case.known.any():
        return []
    seconds = case.compute[:, case.known]
    weight = float(np.nanmedian(np.nanmedian(seconds, axis=0))) / case.period
    if not weight > 0:
        return []
    case.facts["compute_share"] = round(weight, 6)
    computing = _Computing(case, seconds, relative_compute(seconds, case.period), weight)
    found = _changed_ranks(computing) if computing.one_of_each else _slow_ranks(computing)
    if case.staged:
        found += _slow_stages(computing, found)
    return found if computing.few else found + _sequences(computing, found)


def _slow_ranks(computing: _Computing) -> list[Diagnosis]:
    """Ranks that compute longer than others of their stage, or than all others."""
    case, seconds = computing.case, computing.seconds
    # In few steps the chance is that of normal values, to which logarithms are closer.
    usual = np.nanmedian(seconds, axis=0)
    relative = computing.weight * np.log(seconds / usual) if computing.few else computing.relative
    peers = case.like
    flagged, excess = straggler_ranks(relative, peers, chips=computing.chips)
    if not flagged.any() and not computing.few:
        seconds, peers, flagged, excess = _in_calm_compute(computing)
    if not flagged.any() or is_made_of(flagged, case.stage):
        return []
    longer = np.nanmean(residuals_by_step(np.log(np.maximum(seconds, 1e-12)), peers), axis=1)
    return [
        doubted(_node(flags, excess, seconds, peers, by))
        for flags, by in case.doubts.apart(flagged, longer, "compute")
    ]


def _changed_ranks(computing: _Computing) -> list[Diagnosis]:
    """Ranks without peers that became slower."""
    late = _late_onset(computing.relative)
    return [_became_slower(computing, late)] if late.any() else []


def _slow_stages(computing: _Computing, found: list[Diagnosis]) -> list[Diagnosis]:
    """The stage that became slower as a whole, and those that have more to do than others.

    `found`: the ranks that are slow by themselves.
    """
    case, relative, stages = computing.case, computing.relative, []
    changed = np.zeros(case.line.ranks, np.bool_)
    if not computing.one_of_each and not found:
        changed = _changed_stage(relative, case.like)
    if changed.any():
        stages.append(_became_slower(computing, changed))
    apart = {rank for item in (*found, *stages) for rank in item.ranks}
    if not computing.one_of_each and not apart:
        # Half of a stage that is slow makes no stage uneven.
        half = slower_ranks(relative, case.like, computing.chips)
        apart = set(np.flatnonzero(half).tolist()) if half is not None else apart
    balance = stage_imbalance(computing.seconds, case.like, case.period, apart)
    explained = changed.any() or (computing.one_of_each and found)
    return [*stages, _with_calls(balance, case.line, case.like)] if balance is not None and not explained else stages


def _sequences(computing: _Computing, found: list[Diagnosis]) -> list[Diagnosis]:
    """Steps that differ by their data, whichever ranks it falls on, but for ranks that are slow by themselves."""
    case = computing.case
    steps = usual_steps(case.line, case.compute, case.known)
    stragglers = {rank for item in found for rank in item.ranks}
    sequence = sequence_imbalance(
        case.line, case.compute[:, steps], steps, case.like, case.replica, case.period, stragglers
    )
    return [sequence] if sequence is not None else []


def _became_slower(computing: _Computing, ranks: Bools) -> Diagnosis:
    """Ranks that became slower than they were at their own beginning, compared with all others."""
    everyone = np.zeros(len(ranks), np.int64)
    return _node(ranks, computing.relative[:, -1], computing.seconds, everyone, "compute_change")


def _in_calm_compute(computing: _Computing) -> tuple[Floats, Ints, Bools, Floats]:
    """The seconds and peers by which ranks stand out where data does not hide it, these ranks, and their excess."""
    case, relative, alike = computing.case, computing.relative, computing.case.like
    steady = steady_compute(case.line, case.known, alike)
    if steady:
        seconds = np.sum(steady, axis=0)
        # What is slow in all of them is a chip, which is as slow in what data hides.
        share = float(np.nanmedian(relative))
        likewise = share * seconds / np.maximum(np.nanmedian(seconds, axis=0), 1e-12)
        flagged, excess = straggler_ranks(likewise, alike, chips=CHIP_SPREAD * min(share, 1.0))
        flagged &= slower_in_all(steady, alike)
        if flagged.any():
            return seconds, alike, flagged, excess
    peers = data_peers(case.doubts.shared, computing.seconds, alike)
    if peers is None:
        nobody = np.zeros(len(alike), np.bool_)
        return computing.seconds, alike, nobody, np.zeros(len(alike))
    return computing.seconds, peers, *straggler_ranks(residuals_by_step(relative, peers), peers)


def _late_onset(relative: Floats) -> Bools:
    """Ranks that became slower than they were at their own beginning, which no partition of the job causes."""
    change, needed = _change(relative)
    late: Bools = (change > needed) & (change >= change.max())
    return late


def _changed_stage(relative: Floats, alike: Ints) -> Bools:
    """All ranks of the one stage that became slower as a whole, as a host may become, and no partition does."""
    change, needed = _change(relative)
    kinds = np.unique(alike)
    means = np.array([change[alike == kind].mean() for kind in kinds.tolist()])
    found: Bools = alike == kinds[means.argmax()]
    # The ranks of a stage know its change together better than each alone.
    enough = max(float(np.sqrt((needed[found] ** 2).mean() / found.sum())), 2 * SMALLEST_EFFECT)
    clear = change[found].min() > means.max() / 2 > change[~found].max()
    return found if len(kinds) >= 3 and means.max() > enough and clear else np.zeros_like(found)


def _change(relative: Floats) -> tuple[Floats, Floats]:
    """By which share each rank became slower than the median rank did, and from where that is significant."""
    steps = relative.shape[1]
    if steps < 2 * FEWEST_STEPS:
        return np.zeros(len(relative)), np.full(len(relative), np.inf)
    quarter = max(steps // 4, FEWEST_STEPS)
    before, error_before = trimmed_mean(relative[:, :quarter])
    after, error_after = trimmed_mean(relative[:, -quarter:])
    change = after / np.maximum(before, 1e-12) - 1
    change = change - np.median(change)
    error = np.hypot(error_before, error_after) / np.maximum(before, 1e-12)
    needed = upper_quantile(SIGNIFICANCE / len(relative), quarter)
    return change, np.maximum(needed * error, 2 * SMALLEST_EFFECT)


def _with_calls(balance: Diagnosis, line: Timeline, alike: Ints) -> Diagnosis:
    """The imbalance with the ranks of the heaviest stages, and how many more operations these do than others.

    One with as many operations as the others, each of which takes longer, may also be on slow hosts.
    """
    calls = np.bincount(line.rank[~line.collective], minlength=line.ranks)
    own = np.isin(alike, balance.evidence.get("stages", [balance.evidence["stage"]]))
    more = float(np.median(calls[own]) / max(float(np.median(calls[~own])), 1.0))
    evidence = {"stage_ranks": np.flatnonzero(own).tolist(), "operations_over_others": round(more, 4)}
    return replace(balance, evidence={**balance.evidence, **evidence})


def _node(flagged: Bools, excess: Floats, compute: Floats, alike: Ints, by: str) -> Diagnosis:
    """The stragglers and their cost: how much faster the slowest rank of each step is if they are like peers."""
    repaired = compute.copy()
    for rank in np.flatnonzero(flagged).tolist():
        peers = (alike == alike[rank]) & ~flagged
        if peers.any():
            repaired[rank] = np.minimum(compute[rank], np.nanmedian(compute[peers], axis=0))
    saved = np.nanmax(compute, axis=0) - np.nanmax(repaired, axis=0)
    ranks, shares = worst_first(flagged, excess)
    evidence = {"by": by, "excess_share_of_step": shares}
    return Diagnosis(Cause.NODE, ranks, seconds_lost_per_step=float(np.nanmean(saved)), evidence=evidence)
