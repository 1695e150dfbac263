"""Who holds a synchronised job back? One verdict from a timeline of operations, whatever the clocks say. Pure.

Only durations, and differences on one rank's own clock, are used. Three kinds of evidence:

- compute: time that a rank spends computing in a step, against ranks that do the same (its pipeline stage);
- lag: in a collective everybody waits for the last to arrive, so the late rank is the one that blocks least
  (`lag = median(blocked) - blocked`); a victim blocks longest and is never named;
- where the excess follows a stage, or the step and not the rank, it is the job's partition or its data, no node.

A rank is named when its excess is significant over all ranks, stands out of how ranks differ, and costs time.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.reference import small_sample_factor
from ingero_detect.threshold import MAD_TO_SIGMA

SIGNIFICANCE: Final = 1e-6
"""Chance that any rank of a healthy job is named."""

SMALLEST_EFFECT: Final = 0.02
"""Share of a step below which an excess is nobody's fault."""

OUTSTANDING: Final = 4.0
"""How far a rank's excess must stand out of the spread between ranks, standard deviations."""

SMALLEST_IMBALANCE: Final = 0.05
"""Share of a step that stages or sequences must cost to be named."""

TRIM: Final = 0.1
"""Share of steps left out at either end of a mean."""

ALIKE: Final = 3.5
"""Variance of the logarithm of an estimated variance, times steps, for normal noise that is the same on all ranks."""

FEWEST_STEPS: Final = 8
LARGEST_SHARE: Final = 0.25
"""Share of ranks beyond which slow ranks are not called culprits."""


class Cause(StrEnum):
    """What holds the job back."""

    NODE = "node"
    STAGE = "stage_imbalance"
    SEQUENCE = "sequence_imbalance"
    NONE = "none"


@dataclass(frozen=True)
class Timeline:
    """Operations by row. Numbers count from 0; -1 in `stage`, `data_parallel` and `step` means not known.

    `start` and `duration` in seconds, `start` on the rank's own clock; `instance` numbers the collectives: ranks that
    took part in the same one share it, -1 for compute.
    """

    ranks: int
    steps: int
    rank: Ints
    step: Ints
    op: Ints
    collective: Bools
    start: Floats
    duration: Floats
    instance: Ints
    stage: Ints
    data_parallel: Ints


@dataclass(frozen=True)
class Diagnosis:
    """The verdict. `ranks` are numbers of the timeline; `slowdown` is the step time over what it could be."""

    cause: Cause
    ranks: tuple[int, ...] = ()
    slowdown: float = 1.0
    seconds_lost_per_step: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Excess:
    """Excess of every rank as a share of the step, its standard error, and the spread between like ranks.

    `freedom` is of the errors, in degrees.
    """

    share: Floats
    error: Floats
    freedom: Floats
    spread: float

    def standing_out(self) -> Bools:
        """Ranks whose excess is significant, outstanding and large enough to matter."""
        needed = _widened(SIGNIFICANCE / max(1, len(self.share)), self.freedom)
        z = self.share / np.maximum(self.error, 1e-9)
        found: Bools = (z > needed) & (self.share > np.maximum(SMALLEST_EFFECT, OUTSTANDING * self.spread))
        return found


def quantile(chance: float, steps: int) -> float:
    """The normal quantile of an upper tail, widened for few steps."""
    return float(_widened(chance, np.array(_freedom(steps))))


def _freedom(steps: int) -> float:
    """Degrees of freedom of an error from so many steps."""
    return max(4.0, 0.8 * steps - 1)


def _widened(chance: float, freedom: Floats) -> Floats:
    """The quantile of an upper tail of Student's distribution, to first order."""
    z = -NormalDist().inv_cdf(chance)
    found: Floats = z * (1 + (z * z + 1) / (4 * freedom))
    return found


def diagnose(line: Timeline) -> Diagnosis:
    """Judge a timeline."""
    period = _period(line)
    if line.ranks < 2 or line.steps < FEWEST_STEPS or not period > 0:
        return Diagnosis(Cause.NONE, evidence={"reason": "too few ranks or steps", "steps": line.steps})
    stage = _by_rank(line, line.stage)
    replica = _by_rank(line, line.data_parallel)
    compute = _sums(line, ~line.collective, line.duration)
    blocked = _lags(line)
    lags, blame = blocked if blocked is not None else (None, None)
    facts: dict[str, Any] = {"ranks": line.ranks, "steps": line.steps, "step_seconds": float(period)}
    found: list[Diagnosis] = []
    known = _enough(compute)
    if known.any():
        found += _from_compute(line, compute[:, known], stage, replica, period, facts)
    if lags is not None and not any(item.cause is Cause.NODE for item in found):
        suspect = _from_lags(lags, blame, stage, replica, period, facts)
        if suspect is not None and not any(item.cause is Cause.STAGE for item in found):
            found.append(suspect)
    if lags is not None:
        found = [_supported(item, lags) for item in found]
    worst = max(found, key=lambda item: item.seconds_lost_per_step, default=None)
    if worst is None or worst.cause is Cause.NONE:
        return Diagnosis(Cause.NONE, evidence=facts)
    others = [
        {"kind": str(item.cause), "seconds_lost_per_step": item.seconds_lost_per_step}
        for item in found
        if item is not worst and item.cause is not Cause.NONE
    ]
    evidence = {**facts, **worst.evidence, **({"also": others} if others else {})}
    ideal = max(period - worst.seconds_lost_per_step, 1e-12)
    return Diagnosis(worst.cause, worst.ranks, float(period / ideal), worst.seconds_lost_per_step, evidence)


# Matrices


def _by_rank(line: Timeline, values: Ints) -> Ints:
    """What each rank says most often; -1 when it says nothing."""
    found = np.full(line.ranks, -1, np.int64)
    known = values >= 0
    if known.any():
        width = int(values.max()) + 1
        counts = np.bincount(line.rank[known] * width + values[known], minlength=line.ranks * width)
        table = counts.reshape(line.ranks, width)
        found = np.where(table.sum(axis=1) > 0, table.argmax(axis=1), -1)
    return found


def _sums(line: Timeline, chosen: Bools, values: Floats) -> Floats:
    """Sums by (rank, step), NaN where there is nothing."""
    place = line.rank[chosen] * line.steps + line.step[chosen]
    size = line.ranks * line.steps
    total = np.bincount(place, values[chosen], size)
    there = np.bincount(place, minlength=size) > 0
    return np.where(there, total, np.nan).reshape(line.ranks, line.steps)


def _enough(matrix: Floats) -> Bools:
    """Steps that most ranks have something to say about."""
    share = np.isfinite(matrix).mean(axis=0)
    enough: Bools = share >= 0.8
    return enough if enough.sum() >= FEWEST_STEPS else np.zeros(len(enough), np.bool_)


def _period(line: Timeline) -> float:
    """Seconds of a step: the median over ranks of the mean distance of their first starts, each on its own clock."""
    first = np.full(line.ranks * line.steps, np.inf)
    np.minimum.at(first, line.rank * line.steps + line.step, line.start)
    table = first.reshape(line.ranks, line.steps)
    periods = []
    for row in table:
        at = np.flatnonzero(np.isfinite(row))
        if len(at) >= 3:
            periods.append((row[at[-1]] - row[at[0]]) / (at[-1] - at[0]))
    if periods and np.median(periods) > 0:
        return float(np.median(periods))
    busy = _sums(line, np.ones(len(line.rank), np.bool_), line.duration)
    return float(np.nanmedian(busy)) if np.isfinite(busy).any() else 0.0


def _lags(line: Timeline) -> tuple[Floats, "_Blame | None"] | None:
    """How much less than the median of its collective each rank blocked, summed by (rank, step).

    Beside it who made whom late, where ranks meet in several groups.
    """
    chosen = line.collective & (line.instance >= 0)
    if not chosen.any():
        return None
    _, instance = np.unique(line.instance[chosen], return_inverse=True)
    m = int(instance.max()) + 1
    count, middle = grouped_median(line.duration[chosen], instance.astype(np.int64), m)
    several = count[instance] >= 2
    lag = np.where(several, middle[instance] - line.duration[chosen], 0.0)
    if not several.any():
        return None
    rows = np.flatnonzero(chosen)[several]
    place = line.rank[rows] * line.steps + line.step[rows]
    size = line.ranks * line.steps
    total = np.bincount(place, lag[several], size)
    there = np.bincount(place, minlength=size) > 0
    table = np.where(there, total, np.nan).reshape(line.ranks, line.steps)
    known = _enough(table)
    if not known.any():
        return None
    return table[:, known], _blame(line, rows, instance[several].astype(np.int64), known)


@dataclass(frozen=True)
class _Blame:
    """What was lost to the last rank alone, by the groups of ranks that meet in collectives.

    A pair is a rank in a group; `pair`, `step` and `gap` are by collective, seconds.
    """

    ranks: int
    rank_of: Ints
    group_of: Ints
    pair: Ints
    step: Ints
    gap: Floats

    def gaps(self, part: slice) -> Floats:
        """Loss by pair in a part of the steps."""
        inside = (self.step >= part.start) & (self.step < part.stop)
        return np.bincount(self.pair[inside], self.gap[inside], len(self.rank_of)).astype(np.float64)

    def victims(self, part: slice) -> Bools:
        """Ranks that are late in one group because somebody held them up in another, for half as long at least."""
        gaps = self.gaps(part)
        order = np.lexsort((-gaps, self.group_of))
        firsts = np.flatnonzero(np.diff(self.group_of[order], prepend=-1))
        first, second = order[firsts], order[np.minimum(firsts + 1, len(order) - 1)]
        worst = np.where(first[self.group_of] == np.arange(len(gaps)), gaps[second][self.group_of],
                         gaps[first][self.group_of])  # fmt: skip
        elsewhere = np.bincount(self.rank_of, gaps, self.ranks)[self.rank_of] - gaps
        held_up = (elsewhere > 0) & (worst >= 0.5 * elsewhere) & (gaps < 0.5 * worst)
        found = np.zeros(self.ranks, np.bool_)
        found[self.rank_of[held_up]] = True
        return found


def _blame(line: Timeline, rows: Ints, instance: Ints, known: Bools) -> _Blame | None:
    """Who came last in every collective and what that cost; `None` where all ranks meet in one group."""
    order = np.lexsort((line.duration[rows], instance))
    rows, instance = rows[order], instance[order]
    starts = np.flatnonzero(np.diff(instance, prepend=-1))
    # The members of a collective, whatever their order, as one number.
    marks = np.random.default_rng(0).integers(1, 2**63, line.ranks, dtype=np.uint64)
    _, group = np.unique(np.add.reduceat(marks[line.rank[rows]], starts), return_inverse=True)
    if group.max() == 0:
        return None
    sizes = np.diff(np.append(starts, len(rows)))
    keys, pair = np.unique(np.repeat(group, sizes) * line.ranks + line.rank[rows], return_inverse=True)
    counted = known[line.step[rows[starts]]]
    column = np.cumsum(known) - 1
    gap = line.duration[rows[np.minimum(starts + 1, len(rows) - 1)]] - line.duration[rows[starts]]
    return _Blame(
        line.ranks, keys % line.ranks, keys // line.ranks, pair[starts][counted].astype(np.int64),
        column[line.step[rows[starts]]][counted], gap[counted],
    )  # fmt: skip


# Ranks against ranks


def trimmed(values: Floats) -> tuple[Floats, Floats]:
    """Trimmed mean by row and its standard error.

    The error is the larger of two: from the robust spread, lent from all rows to a row that seems to have none, and
    from the plain one, so that rare large values cannot pass for a habit. Both grow with the lag-1 autocorrelation.
    """
    middle = np.nanmedian(values, axis=1, keepdims=True)
    centred = np.where(np.isfinite(values), values - middle, 0.0)
    sigma = MAD_TO_SIGMA * np.nanmedian(np.abs(values - middle), axis=1)
    low, high = np.nanquantile(values, (TRIM, 1 - TRIM), axis=1)
    clipped = np.clip(values, low[:, None], high[:, None])
    mean = np.nanmean(clipped, axis=1)
    count = np.isfinite(values).sum(axis=1)
    bounded = np.clip(centred, -3 * sigma[:, None], 3 * sigma[:, None])
    power = (bounded**2).sum()
    ratio = float((bounded[:, 1:] * bounded[:, :-1]).sum() / power) if power > 0 else 0.0
    ratio = min(max(ratio, 0.0), 0.9)
    stretch = np.sqrt((1 + ratio) / (1 - ratio))
    pooled = np.sqrt(np.nanmean(sigma**2))
    spread = np.maximum(np.maximum(1.06 * sigma, 0.5 * pooled), np.nanstd(values, axis=1))
    error = stretch * spread / np.sqrt(np.maximum(count, 1))
    return mean, error


def lent(error: Floats, steps: int) -> tuple[Floats, Floats]:
    """Errors that ranks lend one another, and their degrees of freedom (moderated variances, Smyth 2004).

    How much is lent follows from how alike the errors are. A rank whose error is larger than chance makes it among
    alike ones keeps its own.
    """
    freedom = np.full(len(error), _freedom(steps))
    logs = 2 * np.log(np.maximum(error, 1e-12))
    typical = float(np.median(logs))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(logs - typical)))
    spread *= float(small_sample_factor(np.array([len(error)]))[0])
    most = (len(error) - 1) * freedom[0]
    excess = spread**2 - ALIKE / steps
    weight = most if excess <= 0 else min(most, 2 / excess)
    ordinary = logs <= typical + 2.5 * np.sqrt(ALIKE / steps)
    joined = np.sqrt((weight * np.exp(typical) + freedom * error**2) / (weight + freedom))
    return np.where(ordinary, joined, error), np.where(ordinary, freedom + weight, freedom)


def _against(values: Floats, error: Floats, alike: Ints, steps: int) -> _Excess:
    """Excess of ranks over the middle of those that do the same; over the lower one where there are but two."""
    share, spreads = np.zeros(len(values)), []
    for kind in np.unique(alike).tolist():
        members = np.flatnonzero(alike == kind)
        own = values[members]
        middle = np.median(own) if len(members) >= 3 else own.min()
        share[members] = own - middle
        if len(members) >= 5:
            spreads += (own - middle).tolist()
    spread = MAD_TO_SIGMA * float(np.median(np.abs(spreads))) if spreads else 0.0
    return _Excess(share, *lent(error, steps), spread)


def _segments(steps: int) -> list[slice]:
    """The whole, then halves, quarters and eighths, as long as they are long enough to say anything."""
    found = []
    for parts in (1, 2, 4, 8):
        length = steps // parts
        if parts > 1 and length < 2 * FEWEST_STEPS:
            break
        found += [slice(part * length, (part + 1) * length) for part in range(parts)]
    return found


def _culprits(relative: Floats, alike: Ints, blame: _Blame | None = None) -> tuple[Bools, Floats]:
    """Ranks that stand out, in the whole or in a part of the steps, and their largest excess; victims never do."""
    flagged = np.zeros(len(relative), np.bool_)
    excess = np.zeros(len(relative))
    for number, part in enumerate(_segments(relative.shape[1])):
        values = relative[:, part]
        if not (np.isfinite(values).sum(axis=1) >= FEWEST_STEPS // 2).all():
            continue
        mean, error = trimmed(values)
        victims = blame.victims(part) if blame is not None else np.zeros(len(mean), np.bool_)
        found = _against(np.where(victims, np.minimum(mean, 0.0), mean), error, alike, values.shape[1])
        standing = found.standing_out() & ~victims
        if number:
            standing &= found.share > 2 * SMALLEST_EFFECT
        if standing.sum() > max(1, LARGEST_SHARE * len(relative)):
            continue
        flagged |= standing
        excess = np.maximum(excess, np.where(standing, found.share, 0.0))
        if not number and standing.any():
            break
    if flagged.sum() > max(1, LARGEST_SHARE * len(relative)):
        flagged[:] = False
    return flagged, excess


# What the compute times say


def _from_compute(
    line: Timeline, compute: Floats, stage: Ints, replica: Ints, period: float, facts: dict[str, Any]
) -> list[Diagnosis]:
    usual = np.nanmedian(compute, axis=0)
    weight = float(np.nanmedian(usual)) / period
    if not weight > 0:
        return []
    relative = compute / np.maximum(usual, 1e-12) * min(weight, 1.0)
    facts["compute_share"] = round(weight, 6)
    alike = stage if (stage >= 0).all() else np.zeros(line.ranks, np.int64)
    staged = len(np.unique(alike)) > 1
    found: list[Diagnosis] = []
    alone = staged and bool(np.bincount(alike).max() == 1)
    if not alone:
        flagged, excess = _culprits(relative, alike)
        if flagged.any() and not _is_made_of(flagged, stage) and not _is_made_of(flagged, replica):
            found.append(_node(flagged, excess, compute, alike, "compute"))
    else:
        late = _late_onset(relative)
        if late.any():
            found.append(_node(late, relative[:, -1], compute, np.zeros(line.ranks, np.int64), "compute_change"))
    if staged:
        balance = _stages(compute, alike, period, {rank for item in found for rank in item.ranks})
        if balance is not None and not (alone and found):
            found.append(balance)
    sequence = _sequences(line, compute, alike, replica, period, {rank for item in found for rank in item.ranks})
    if sequence is not None:
        found.append(sequence)
    return found


def _is_made_of(flagged: Bools, parts: Ints) -> bool:
    """Whether the slow ranks are just those of one or more parts, pipeline stages or replicas, of several ranks."""
    if (parts < 0).any() or not 2 <= len(np.unique(parts)) < len(parts):
        return False
    touched = np.isin(parts, np.unique(parts[flagged]))
    return bool((touched == flagged).all())


def _late_onset(relative: Floats) -> Bools:
    """Ranks that became slower under way against their own beginning: no partition of the job does that."""
    steps = relative.shape[1]
    if steps < 4 * FEWEST_STEPS:
        return np.zeros(len(relative), np.bool_)
    quarter = steps // 4
    before, error_before = trimmed(relative[:, :quarter])
    after, error_after = trimmed(relative[:, -quarter:])
    change = after / np.maximum(before, 1e-12) - 1
    change = change - np.median(change)
    error = np.hypot(error_before, error_after) / np.maximum(before, 1e-12)
    needed = quantile(SIGNIFICANCE / len(relative), quarter)
    late: Bools = (change > np.maximum(needed * error, 2 * SMALLEST_EFFECT)) & (change >= change.max())
    return late


def _node(flagged: Bools, excess: Floats, compute: Floats, alike: Ints, by: str) -> Diagnosis:
    """Culprits and what they cost: the slowest rank of each step against the slowest if they were as their like."""
    mended = compute.copy()
    for rank in np.flatnonzero(flagged).tolist():
        peers = (alike == alike[rank]) & ~flagged
        if peers.any():
            mended[rank] = np.minimum(compute[rank], np.nanmedian(compute[peers], axis=0))
    saved = np.nanmax(compute, axis=0) - np.nanmax(mended, axis=0)
    ranks = tuple(int(rank) for rank in np.flatnonzero(flagged)[np.argsort(-excess[flagged], kind="stable")])
    evidence = {"by": by, "excess_share_of_step": {str(rank): round(float(excess[rank]), 6) for rank in ranks}}
    return Diagnosis(Cause.NODE, ranks, seconds_lost_per_step=float(np.nanmean(saved)), evidence=evidence)


def _stages(compute: Floats, stage: Ints, period: float, culprits: set[int]) -> Diagnosis | None:
    """Stages whose work differs: what the heaviest one costs over an even partition."""
    healthy = np.array([rank not in culprits for rank in range(len(stage))])
    kinds = [kind for kind in np.unique(stage).tolist() if (healthy & (stage == kind)).any()]
    if len(kinds) < 2:
        return None
    means = [np.nanmedian(compute[healthy & (stage == kind)], axis=0) for kind in kinds]
    table = np.array(means)
    typical = np.nanmedian(table, axis=1)
    heaviest = int(np.argmax(typical))
    lost = float(np.nanmean(table[heaviest] - np.nanmean(table, axis=0)))
    second = float(np.partition(typical, -2)[-2])
    steady = float(np.nanmean(table[heaviest] >= np.nanmax(table, axis=0) - 1e-12))
    if lost < SMALLEST_IMBALANCE * period or typical[heaviest] < 1.05 * np.median(typical) or steady < 0.6:
        return None
    evidence = {
        "stage": kinds[heaviest],
        "stage_over_mean": round(float(typical[heaviest] / typical.mean()), 6),
        "stage_over_second": round(float(typical[heaviest] / max(second, 1e-12)), 6),
    }
    return Diagnosis(Cause.STAGE, seconds_lost_per_step=lost, evidence=evidence)


def _sequences(
    line: Timeline, compute: Floats, alike: Ints, replica: Ints, period: float, culprits: set[int]
) -> Diagnosis | None:
    """Excess that follows the step, or the data of a step on whichever rank it falls, and no rank."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.maximum(compute, 1e-12))
    logs = np.where(np.isfinite(compute), logs, np.nan)
    healthy = np.array([rank not in culprits for rank in range(len(logs))])
    logs = logs[healthy]
    alike, replica, compute = alike[healthy], replica[healthy], compute[healthy]
    by_rank = np.nanmedian(logs, axis=1, keepdims=True)
    centred = logs - by_rank
    step = np.nanmedian(centred, axis=0)
    cells = centred - step
    sigma = max(MAD_TO_SIGMA * float(np.nanmedian(np.abs(cells - np.nanmedian(cells)))), 1e-4)
    ordinary = np.exp(by_rank + step + np.minimum(cells, 4 * sigma))
    lost_cells = float(np.nanmean(np.nanmax(compute, axis=0) - np.nanmax(ordinary, axis=0)))
    step_sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(step - np.median(step)))), 1e-4)
    usual = float(np.nanmedian(np.nanmax(compute, axis=0)))
    calm = np.minimum(step, np.median(step) + 4 * step_sigma)
    lost_steps = usual * float(np.mean(np.exp(step - np.median(step)) - np.exp(calm - np.median(step))))
    together = _together(line, healthy, alike, replica, cells)
    lost_spread = 0.0
    if (sigma > 0.05 and together > 0.6) or sigma > 0.15:
        lost_spread = float(np.nanmean(np.nanmax(compute, axis=0) - np.nanmean(compute, axis=0)))
        lost_spread = max(0.0, lost_spread - float(np.nanmax(np.exp(by_rank)) - np.nanmean(np.exp(by_rank))))
    odd = cells > 4 * sigma
    if lost_cells >= SMALLEST_IMBALANCE * period and odd.any() and _concentrated(odd):
        lost_cells = 0.0
    lost = max(lost_cells, lost_steps, lost_spread)
    if lost < SMALLEST_IMBALANCE * period:
        return None
    evidence = {
        "odd_share_of_cells": round(float(odd.mean()), 6), "noise": round(sigma, 6),
        "operations_move_together": round(together, 4),
        "seconds": {"cells": lost_cells, "steps": lost_steps, "spread": lost_spread},
    }  # fmt: skip
    return Diagnosis(Cause.SEQUENCE, seconds_lost_per_step=lost, evidence=evidence)


def _concentrated(odd: Bools) -> bool:
    """Whether one rank has more of the odd cells than chance gives any."""
    counts = odd.sum(axis=1)
    total, ranks = int(counts.sum()), len(counts)
    expected = total / ranks
    needed = expected + quantile(SIGNIFICANCE / ranks, 1000) * np.sqrt(max(expected, 1.0)) + 3
    return bool(counts.max() > needed and counts.max() > 0.5 * total)


def _together(line: Timeline, healthy: Bools, alike: Ints, replica: Ints, cells: Floats) -> float:
    """How far different operations, or different stages of one replica, are long in the same steps: a correlation."""
    found = [0.0]
    names = np.unique(line.op[~line.collective])
    if 2 <= len(names) <= 64:
        parts = []
        for name in names.tolist():
            table = _sums(line, ~line.collective & (line.op == name), line.duration)[healthy]
            if table.shape[1] != cells.shape[1] or np.isfinite(table).mean() < 0.5:
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.log(np.maximum(table, 1e-12))
            logs = np.where(np.isfinite(table), logs, np.nan)
            logs = logs - np.nanmedian(logs, axis=1, keepdims=True)
            parts.append(logs - np.nanmedian(logs, axis=0))
        found += [_correlation(parts[0], other) for other in parts[1:]]
    if (replica >= 0).all() and len(np.unique(alike)) > 1:
        for one in np.unique(replica).tolist():
            members = np.flatnonzero(replica == one)
            found += [_correlation(cells[members[0]], cells[other]) for other in members[1:]]
        return float(np.median(found[1:])) if len(found) > 1 else 0.0
    return max(found)


def _correlation(one: Floats, other: Floats) -> float:
    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < FEWEST_STEPS:
        return 0.0
    a, b = one[both] - one[both].mean(), other[both] - other[both].mean()
    power = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum() / power) if power > 0 else 0.0


# What the waiting times say


def _from_lags(
    lags: Floats, blame: _Blame | None, stage: Ints, replica: Ints, period: float, facts: dict[str, Any]
) -> Diagnosis | None:
    """The rank that blocks least, when compute times are missing or tell nothing."""
    flagged, excess = _culprits(lags / period, np.zeros(len(lags), np.int64), blame)
    facts["largest_lag_share"] = round(float(np.nanmax(np.nanmedian(lags, axis=1)) / period), 6)
    if not flagged.any():
        return None
    whole = slice(0, lags.shape[1])
    if blame is not None:
        lags = np.where((blame.victims(whole) & ~flagged)[:, None], np.minimum(lags, 0.0), lags)
    ranks = tuple(int(rank) for rank in np.flatnonzero(flagged)[np.argsort(-excess[flagged], kind="stable")])
    others = np.where(flagged[:, None], np.minimum(lags, 0.0), lags)
    saved = np.nanmax(lags, axis=0) - np.maximum(np.nanmax(others, axis=0), 0.0)
    lost = float(np.nanmean(np.maximum(saved, 0.0)))
    if blame is not None:
        # A delay that is passed on from group to group is lost once.
        lost = min(lost, float((blame.gaps(whole) * flagged[blame.rank_of]).max()) / lags.shape[1])
    last = np.argmax(np.nan_to_num(lags, nan=-np.inf), axis=0)
    evidence = {
        "by": "blocked_least",
        "excess_share_of_step": {str(rank): round(float(excess[rank]), 6) for rank in ranks},
        "last_in_share_of_steps": round(float(np.mean(last == ranks[0])), 4),
    }
    if _is_made_of(flagged, stage):
        return Diagnosis(Cause.STAGE, seconds_lost_per_step=lost, evidence=evidence)
    if len(ranks) > 1 and (replica >= 0).all() and len(np.unique(replica[list(ranks)])) == 1:
        return None
    return Diagnosis(Cause.NODE, ranks, seconds_lost_per_step=lost, evidence=evidence)


def _supported(item: Diagnosis, lags: Floats) -> Diagnosis:
    """A rank that computes long but blocks longer than others holds nobody up."""
    if item.cause is not Cause.NODE or item.evidence.get("by") == "blocked_least":
        return item
    mean, error = trimmed(lags)
    needed = quantile(SIGNIFICANCE / len(mean), lags.shape[1])
    guilty = tuple(rank for rank in item.ranks if mean[rank] > -needed * error[rank])
    lag = {str(rank): round(float(mean[rank]), 9) for rank in item.ranks}
    if not guilty:
        return Diagnosis(Cause.NONE)
    return Diagnosis(
        item.cause, guilty, item.slowdown, item.seconds_lost_per_step, {**item.evidence, "lag_seconds": lag}
    )
