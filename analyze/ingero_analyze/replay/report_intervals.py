"""How often nodes report: intervals to which a tick has to fit, and steps that take several ticks. Pure."""

from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, grouped_median

FEWEST: Final = 30
"""Equal intervals of a source that are one of its usual ones."""

ALIKE: Final = 0.25
"""Log units within which intervals are equal."""

TOLERATED_TICKS: Final = 3.2
"""Ticks between reports that do not count as silence."""

FEW: Final = 0.1
"""Share of the time of all nodes for which usual intervals may be longer than that."""

LONG: Final = 2.0
"""Usual intervals of a cohort from which on one may be that of a slow step."""

SAME_WORK: Final = float(np.log(1.5))
"""Log units by which the work of a row may differ from the usual one."""

SHARE: Final = 0.25
"""Share of the long intervals of a cohort that hold this work where rows are written after it. Where fewer do, nodes
are absent, as replicas that a fleet does not need, and some happen to come back at a rate that fits."""

MOST_TICKS: Final = 10_000
"""Ticks that one row stands for at most."""

RARE: Final = 0.001
"""Chance, after a report, of a silence that rows missing at random do not explain."""

MOST_BY_CHANCE: Final = 20
"""Ticks that a silence by chance lasts at most."""

INDEPENDENT: Final = 1.25
"""How many times as often a tick without a report may follow another one than a report, where rows are missing at
random."""


def interval_for_most(time: Floats, source: Ints, tick: float) -> float:
    """Seconds of a tick within which nearly all nodes report nearly all the time, at least `tick`.

    Rows are sorted by source and time. An interval is usual where a source has many equal ones; others are outages.
    Where rows are missing at random, the tick stays.
    """
    gaps, of = _gaps(time, source)
    after_report, after_miss = _missed_rates(gaps / tick)
    if after_report > 0 and after_miss <= INDEPENDENT * after_report:
        return tick
    there = gaps > 0
    kind = np.round(np.log(gaps[there]) / ALIKE).astype(np.int64)
    both = np.stack((of[there], kind))
    _, back, count = np.unique(both, axis=1, return_inverse=True, return_counts=True)
    usual = count[back.ravel()] >= FEWEST
    lengths, kinds = gaps[there][usual], kind[usual]
    if not len(lengths):
        return tick
    shown, number = np.unique(kinds, return_inverse=True)
    middle = grouped_median(lengths, number, len(shown))[1]
    spent = np.bincount(number, weights=lengths)
    for candidate in (tick, *middle[middle > tick].tolist()):
        if spent[middle > TOLERATED_TICKS * candidate].sum() <= FEW * spent.sum():
            return float(candidate)
    return tick


def silence_by_chance(time: Floats, source: Ints, tick: float) -> int:
    """Ticks without a report that rows missing at random explain: more follow a report once in a thousand times.

    Of the share of ticks after a report, and of those after a miss, that miss one the smaller counts: outages, which
    begin rarely and last, and nodes that report in every second tick, raise only one of them. Rows are sorted by
    source and time.
    """
    rate = min(_missed_rates(_gaps(time, source)[0] / tick))
    return 0 if rate <= 0 else int(min(MOST_BY_CHANCE, np.ceil(np.log(RARE) / np.log(min(rate, 0.99)))))


def slow_steps(time: Floats, source: Ints, rate: Floats, cohort: Ints) -> Bools:
    """Which rows end a step that took much longer than those of the cohort, so that they stand for the time since the
    row before.

    Where every row is written after the same work, the interval before it times its rate is that work, however slowly
    it was done. Rows that are written by a clock hold more work after a longer interval. Rows are sorted by source
    and time; `cohort`: by source.
    """
    gaps, of = _gaps(time, source)
    with np.errstate(divide="ignore", invalid="ignore"):
        length, work = np.log(gaps), np.log(gaps * rate[1:])
    there = (gaps > 0) & np.isfinite(work)
    found = np.zeros(len(time), np.bool_)
    if not there.any():
        return found
    usual_work, usual_gap = (_of_cohorts(values[there], of[there], cohort) for values in (work, length))
    long = there & (length > usual_gap[of] + np.log(LONG))
    same = long & (np.abs(work - usual_work[of]) < SAME_WORK)
    all_long, all_same = (np.bincount(cohort[of[some]], minlength=int(cohort.max()) + 1) for some in (long, same))
    found[1:] = same & (all_same >= SHARE * all_long)[cohort[of]]
    return found


def ticks_of_steps(time: Floats, slow: Bools, tick: float, phase: float) -> tuple[Ints, Floats]:
    """The rows that end slow steps, repeated for every tick of the step but those of its two ends, and the times."""
    rows = np.flatnonzero(slow)
    number = np.floor((time - phase) / tick + 1e-9).astype(np.int64)
    missing = np.clip(number[rows] - number[rows - 1] - 1, 0, MOST_TICKS)
    which = np.repeat(rows, missing)
    back = np.arange(len(which)) - np.repeat(np.cumsum(missing) - missing, missing) + 1
    return which, time[which] - back * tick


def _missed_rates(ticks: Floats) -> tuple[float, float]:
    """How often no report follows a report, and how often none follows a tick without one, of the ticks from each row
    to the next one of its source."""
    missed = np.maximum(np.rint(ticks) - 1, 0)
    reports, begun, every = (float(many) for many in (np.sum(ticks > 0), np.sum(missed > 0), missed.sum()))
    return begun / max(1.0, reports), (every - begun) / max(1.0, every)


def _gaps(time: Floats, source: Ints) -> tuple[Floats, Ints]:
    """Seconds from the row before, 0 for the first of a source, and the source, of all rows but the first."""
    return np.where(np.diff(source) == 0, np.diff(time), 0.0), source[1:]


def _of_cohorts(values: Floats, source: Ints, cohort: Ints) -> Floats:
    """By source the median over its cohort's sources of their medians."""
    count, median = grouped_median(values, source, len(cohort))
    some = count > 0
    return grouped_median(median[some], cohort[some], int(cohort.max()) + 1)[1][cohort]
