"""Finds a large part of the ranks that is slower than the rest, which medians over all ranks do not show. Pure.

Where half of the ranks with the same work are slow, the median lies between the halves and nobody stands out. The
faster half is then the measure: all slow ranks must be far behind all others. Whether they are on slow hosts, of
another kind of hardware or always have more to do is not known, so nobody is named.
"""

from math import comb
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.idle_together import MOST_IDLE, idle_seconds
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.last_arrival import median_by_step
from ingero_detect.ranks.rank_outliers import (
    CHANCE_OF_POSSIBLE,
    MIN_SPREADS,
    SIGNIFICANCE,
    SMALLEST_EFFECT,
    moderated_errors,
    straggler_ranks,
    trimmed_mean,
    variance_inflation_of,
    without_common_mode,
)
from ingero_detect.ranks.slow_since import FEWEST_AFTER, FEWEST_BEFORE, SHARE_AFTER
from ingero_detect.ranks.slow_spells import LOWER
from ingero_detect.ranks.stalls import WAITING, late_together, stalling_rank
from ingero_detect.ranks.student import upper_quantiles
from ingero_detect.ranks.timeline import FEWEST_STEPS, Timeline, sum_by_rank_and_step, well_covered_steps

SLOWER_PART: Final = "slower_part"
"""What shows that up to half of the ranks compute longer than all others, or do nothing for longer."""

LATE_PART: Final = "late_part"
"""What shows that up to half of the ranks are only waited for by all others."""

SMALLEST_CHANCE: Final = 1e-300
"""The smallest chance whose quantile is known; that of one set among all of very many ranks is smaller."""

MOST_PLACES: Final = 32
"""At how many steps a part of the ranks is looked for that became slower."""

FEWEST_RANKS: Final = 4
"""Ranks from which a slower half is more than a pair, one of which is always the slower one."""


def idle_part(recorded: Timeline, line: Timeline, period: float, staged: bool) -> Diagnosis | None:
    """The ranks that do nothing for longer than all others, in all stages, while these are blocked the longer.

    `recorded`: all operations with their durations; the waits of `line` are those in which a rank does nothing else;
    `period`: seconds of a step. If stages are not known (`staged`), some must do so before they compute: the later
    half of a pipeline may do nothing before it receives.
    """
    blocked = sum_by_rank_and_step(line, line.collective, line.duration)
    idle = np.where(np.isfinite(blocked), idle_seconds(recorded), np.nan)
    idle[:, 0] = np.nan  # before the first operation of all nothing was recorded
    known = well_covered_steps(idle)
    idle, blocked = idle[:, known] / period, blocked[:, known] / period
    slow = slower_ranks(idle, np.zeros(len(idle), np.int64), 0.0)
    if slow is None:
        return None
    usual, waits = np.nanmedian(idle, axis=1), np.nanmedian(blocked, axis=1)
    longer = float(np.median(usual[slow]) - np.median(usual[~slow]))
    if usual[~slow].max() > MOST_IDLE or np.median(waits[~slow]) - np.median(waits[slow]) < WAITING * longer:
        return None
    if not staged:
        before = idle_seconds(recorded, ~recorded.collective)[:, known] / period
        if np.nanmedian(before, axis=1)[slow].max() < WAITING * longer:
            return None
    return _possible(slow, idle, period)


def part_without_operations(line: Timeline, period: float) -> Diagnosis | None:
    """The few ranks that do nothing for longer than all others, where sends do not tell who waits for whom.

    All ranks spend the same time in a step: they compute, are blocked, or do nothing. So those of whose step least is
    recorded do nothing, or wait in an operation without a record, as whole stages may at the end of a step. A step
    that lacks rows of a rank is unknown.
    """
    idle = _unrecorded(line, period)
    if idle is None:
        return None
    idlest, _ = straggler_ranks(idle, np.zeros(line.ranks, np.int64))
    return _possible(idlest, idle, period, LATE_PART) if idlest.any() else None


def stalls_without_operations(line: Timeline, period: float) -> Diagnosis | None:
    """The same of ranks that do nothing in some steps, compared with what each does not record in its usual step."""
    idle = _unrecorded(line, period)
    if idle is None:
        return None
    apart = (idle - np.nanmedian(idle, axis=1, keepdims=True)) * period
    return stalling_rank(apart, period, set()) or late_together(apart, period)


def _unrecorded(line: Timeline, period: float) -> Floats | None:
    """By how much less of a step of each rank is recorded than of the median rank, in steps; `None` without sends."""
    if line.sends is None or not line.sends.any():
        return None
    every = np.ones(len(line.rank), np.bool_)
    spent, count = (sum_by_rank_and_step(line, every, each) for each in (line.duration, every.astype(np.float64)))
    spent[count < np.nanmedian(count, axis=1, keepdims=True)] = np.nan
    known = well_covered_steps(spent)
    if not known.any() or np.nanmedian(spent[:, known]) < (1 - MOST_IDLE) * period:
        return None
    return np.asarray((median_by_step(spent[:, known]) - spent[:, known]) / period)


def slower_part(compute: Floats | None, late: Floats, alike: Ints, chips: float, period: float) -> Diagnosis | None:
    """The ranks that compute longer than all others and are waited for, or that are only waited for.

    `compute`: share of a step by (rank, step), `None` if it is not comparable; `late`: seconds by (rank, step) that
    each was blocked less than ranks with the same work (`alike`), without steps where no waits were recorded;
    `chips`: by which share of a step healthy chips usually differ; `period`: seconds of a step.
    """
    waited = late / period
    slow = slower_ranks(compute, alike, chips) if compute is not None else None
    if slow is not None and compute is not None:
        behind = np.nanmean(waited, axis=1) if late.shape[1] else slow.astype(np.float64)
        if behind[slow].min() > behind[~slow].max():
            return _possible(slow, compute, period)
    slow = slower_ranks(waited, alike, 0.0)
    return _possible(slow, waited, period, LATE_PART) if slow is not None else None


def slower_ranks(values: Floats, alike: Ints, chips: float) -> Bools | None:
    """At least two and at most half of the ranks, the least of which is far above the highest of all others.

    What the two parts differ by is no chance, of all sets of so many ranks, by the errors of the ranks and by that of
    the difference, which contains what ranks of a host have in common.
    """
    ranks, steps = values.shape
    if ranks < FEWEST_RANKS or steps < FEWEST_STEPS or (np.isfinite(values).sum(axis=1) < FEWEST_STEPS).any():
        return None
    values = without_common_mode(values, alike)
    mean, error = trimmed_mean(values)
    error, freedom = moderated_errors(error, steps)
    excess = _above_faster_half(mean, alike)
    slow, gap = _upper_part(excess)
    spread = max(float(np.std(excess[~slow], ddof=1)), chips)
    if gap <= max(2 * SMALLEST_EFFECT, MIN_SPREADS * spread):
        return None
    apart = median_by_step(values[slow]) - median_by_step(values[~slow])
    own = float(np.nanstd(apart, ddof=1)) * np.sqrt(variance_inflation_of(values) / steps)
    separate = float(np.hypot(*(np.sqrt((error[part] ** 2).sum()) / part.sum() for part in (slow, ~slow))))
    chance = max(SIGNIFICANCE / comb(ranks, int(slow.sum())), SMALLEST_CHANCE)
    needed = float(upper_quantiles(chance, freedom[slow].min(keepdims=True))[0])
    return slow if np.nanmean(apart) > needed * max(own, separate) else None


def part_slower_since(seconds: Floats, alike: Ints, period: float) -> Diagnosis | None:
    """The ranks, up to half of all, that compute longer since one and the same step, while all others do not.

    `seconds` of computing by (rank, step). Nearly all steps since then must be longer than nearly all before, on each
    of these ranks by more than on any other, and by far more than these differ. A job whose other ranks became
    faster has none.
    """
    values = seconds / period
    ranks, steps = values.shape
    last = steps - max(FEWEST_AFTER, int(SHARE_AFTER * steps) + 1)
    places = np.unique(np.linspace(FEWEST_BEFORE, last, MOST_PLACES).astype(int)) if last >= FEWEST_BEFORE else ()
    if ranks < FEWEST_RANKS or not np.isfinite(values).all():
        return None
    own = _above_faster_half(values, alike)
    found: tuple[float, Diagnosis | None] = 0.0, None
    for begin in places:
        change = np.quantile(own[:, begin:], LOWER, axis=1) - np.quantile(own[:, :begin], 1 - LOWER, axis=1)
        slow, gap = _upper_part(change)
        chance = (SIGNIFICANCE / len(places) / comb(ranks, int(slow.sum()))) ** (1 / int(slow.sum()))
        freedom = np.array([max(1.0, ranks - slow.sum() - len(np.unique(alike)))])
        needed = max(MIN_SPREADS, float(upper_quantiles(chance, freedom)[0])) * float(np.std(change[~slow], ddof=1))
        rise = np.median(values[:, begin:], axis=1) - np.median(values[:, :begin], axis=1)
        longer = np.median(rise[slow]) > max(2 * SMALLEST_EFFECT, 2 * abs(float(np.median(rise[~slow]))))
        enough = gap > max(2 * SMALLEST_EFFECT, needed, found[0]) and longer
        if enough and _rises(median_by_step(own[slow]) - median_by_step(own[~slow]), begin, len(places)):
            found = gap, _possible(slow, values[:, begin:], period)
    return found[1]


def _rises(apart: Floats, begin: int, places: int) -> bool:
    """Whether a difference by step is larger since one of so many places than by chance.

    Ranks that share their data differ from all others by the same, so many of them prove no more than one.
    """
    before, after = apart[:begin], apart[begin:]
    squares = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    freedom = len(apart) - 2
    error = np.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    needed = upper_quantiles(CHANCE_OF_POSSIBLE / places, np.array(float(freedom)))
    return bool(after.mean() - before.mean() > float(needed) * error)


def _above_faster_half(values: Floats, alike: Ints) -> Floats:
    """Values by rank, or by (rank, step), less the median of the lower half of the ranks with the same work."""
    found = values.copy()
    for kind in np.unique(alike):
        own = alike == kind
        found[own] -= np.median(np.sort(values[own], axis=0)[: (own.sum() + 1) // 2], axis=0)
    return found


def _upper_part(values: Floats) -> tuple[Bools, float]:
    """At least two and at most half of the values, above the largest gap to all others, and that gap."""
    order = np.argsort(-values)
    gaps = values[order][1 : len(values) // 2] - values[order][2 : len(values) // 2 + 1]
    part = np.zeros(len(values), np.bool_)
    part[order[: int(gaps.argmax()) + 2]] = True
    return part, float(gaps.max())


def _possible(slow: Bools, values: Floats, period: float, by: str = SLOWER_PART) -> Diagnosis | None:
    """The verdict on slow ranks if they cost enough: what the last of them is behind the last of the others."""
    lost = float(np.nanmean(np.nanmax(values[slow], axis=0) - np.nanmax(values[~slow], axis=0)))
    if lost < SMALLEST_EFFECT:
        return None
    evidence = {"by": by, "possible": np.flatnonzero(slow).tolist()}
    return Diagnosis(Cause.UNKNOWN, seconds_lost_per_step=lost * period, evidence=evidence)
