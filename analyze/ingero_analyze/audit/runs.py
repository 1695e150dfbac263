"""Which rows of a population belong to one run, how their values differ within it, and how they are rounded. Pure."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np

from ingero_detect.audit.audit_tiers import robust_spread
from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.threshold import MAD_TO_SIGMA

ANOTHER: Final = 0.5
"""Share of a file's chips and runs that earlier files have as well, from which its runs are others than theirs."""

MIXED: Final = 3.0
"""How much more values of a chip in one run differ than chance explains if they are not of one kind."""

LEAST_MIXED: Final = 0.03

LEAST_STEP: Final = 1e-4
LARGEST_STEP: Final = 0.2
"""Steps of rounded values, relative to them: smaller ones do not matter, and larger ones are no rounding."""

ROUND: Final = 0.5
ONCE: Final = 1.2
"""Days are runs if most have this share of the chips, and a chip has hardly more rows than this on a day."""

_DATE: Final = re.compile(r"\d{4}-\d\d.*")
_TIME_OF_DAY: Final = re.compile(
    r"[T ]*\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[AaPp][Mm])?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
)


def numbered(*columns: Ints) -> tuple[Ints, Ints]:
    """By row the number of its combination of values (-1 or more), sorted; and the first row of each combination."""
    number, first = np.zeros(len(columns[0]), np.int64), np.zeros(0, np.int64)
    for column in columns:
        keys = number * (int(column.max(initial=-1)) + 2) + column + 1
        _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    return number, first


def day_of(time: str) -> str:
    """The day of a time: what is left without the time of day, or that of seconds or milliseconds since 1970."""
    try:
        seconds = float(time)
    except ValueError:
        return _TIME_OF_DAY.sub("", time).strip() or time
    seconds = seconds / 1000 if seconds >= 1e11 else seconds
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d") if 1e8 < seconds < 1e11 else time


def days_are_runs(day: Ints, chip: Ints) -> bool:
    """Whether every day most chips were measured once. `day`: by row, -1 where it is not known."""
    known = day >= 0
    days, pairs = len(np.unique(day[known])), len(numbered(day[known], chip[known])[1])
    chips = len(np.unique(chip))
    return days > 1 and known.sum() <= ONCE * pairs and pairs >= ROUND * chips * days


def runs_of_rows(
    run: Ints, chip: Ints, file: Ints, names: Sequence[str], day: Ints | None = None, days: Sequence[str] = ()
) -> tuple[Ints, list[str]]:
    """By row the number of its run (-1: none), in the order in which they were, and the names of runs.

    `run`: places in `names`, -1 for none; `day`: likewise in `days`. Where the same chips have the same runs in
    several files or on several days, as if each counted from 1, these are different runs.
    """
    at = np.zeros(len(run), np.int64) if day is None or not len(days) else _ordered(days)[day]
    where = np.where(_other_runs(run, chip, file)[file], file, -1)
    again = _other_runs(np.where(run < 0, -1, numbered(where, run)[0]), chip, at)
    on = np.where(again[at], at, -1)
    labelled = run >= 0
    number, first = numbered(on[labelled], where[labelled], run[labelled])
    named = [names[place] for place in run[labelled][first].tolist()]
    order = np.lexsort((_moments(named), np.maximum(where[labelled][first], 0), np.maximum(on[labelled][first], 0)))
    found = np.full(len(run), -1)
    found[labelled] = np.argsort(order)[number]
    if day is not None and again.any():
        named = [
            f"{days[one]} {name}" if one >= 0 else name
            for one, name in zip(day[labelled][first].tolist(), named, strict=True)
        ]
    return found, [named[place] for place in order.tolist()]


def _ordered(days: Sequence[str]) -> Ints:
    """By day, and last for none (the first one), its place in the order of days."""
    return np.append(np.argsort(np.argsort(_moments(days), kind="stable")), 0)


def _other_runs(run: Ints, chip: Ints, file: Ints) -> Bools:
    """By file, whether its runs are others than those of the same name in earlier files."""
    found = np.zeros(int(file.max(initial=-1)) + 1, np.bool_)
    labelled = run >= 0
    if not labelled.any():
        return found
    key, first = numbered(run[labelled], chip[labelled])
    seen = np.zeros(len(first), np.bool_)
    order = np.argsort(file[labelled], kind="stable")
    present, first = np.unique(file[labelled][order], return_index=True)
    for number, rows in zip(present.tolist(), np.split(order, first[1:]), strict=True):
        mine = np.unique(key[rows])
        found[number] = seen[mine].mean() >= ANOTHER
        seen[mine] = True
    return found


def _moments(names: Sequence[str]) -> Floats:
    """What runs are sorted by: their numbers, or their dates; otherwise they stay in the order in which they are."""
    try:
        return np.array([float(name) for name in names])
    except ValueError:
        dates = {name: place for place, name in enumerate(sorted(set(names)))}
        if all(map(_DATE.fullmatch, names)):
            return np.array([dates[name] for name in names], np.float64)
        return np.arange(len(names), dtype=np.float64)


def joined(slowness: Floats, unit: Ints, run: Ints, units: int) -> tuple[Floats, Ints, Ints, float]:
    """Several values of a chip in one run become their median; also their spread, if it is more than chance explains.

    Otherwise the spread is 0.
    """
    labelled = run >= 0
    values, rest = slowness[labelled], ~labelled
    pairs, place = np.unique(run[labelled] * units + unit[labelled], return_inverse=True)
    count, median = grouped_median(values, place, len(pairs))
    several = (count > 1)[place]
    within = np.abs(values - median[place])[several]
    return (
        np.concatenate((median, slowness[rest])), np.concatenate((pairs % units, unit[rest])),
        np.concatenate((pairs // units, run[rest])), _mixed_spread(within, median, pairs // units, count),
    )  # fmt: skip


def _mixed_spread(within: Floats, median: Floats, run: Ints, count: Ints) -> float:
    """Spread `within` chips and runs with several values, if it is far more than chance explains; otherwise 0.

    `median`, `run` and `count` of values: by chip and run. Chance differences of `n` values make their medians differ
    by a root of `n` less, between chips and runs.
    """
    if not len(within):
        return 0.0
    spread = float(MAD_TO_SIGMA * np.median(within))
    of_run = grouped_median(median, run, int(run.max()) + 1)[1]
    across = robust_spread(median - of_run[run])
    chance = max(MIXED * across * float(np.sqrt(np.median(count[count > 1]))), LEAST_MIXED)
    return spread if spread > chance else 0.0


def rounding_of(values: Floats) -> float:
    """Half of the step of which all values are multiples, relative to their median; 0 if none that matters."""
    distinct = np.unique(np.round(values / np.median(values), 10))
    step = float(np.diff(distinct).min(initial=np.inf))
    if not LEAST_STEP <= step <= LARGEST_STEP:
        return 0.0
    times = distinct / step
    return step / 2 if np.abs(times - np.round(times)).max() < 0.05 else 0.0
