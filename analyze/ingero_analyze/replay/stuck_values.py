"""Finds values that an exporter repeats: one that hangs, while those of all other nodes change, and one that now and
then fills in the value before where there is none. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.audit.audit_tiers import robust_spread
from ingero_detect.grouped import Bools, Floats, Ints

CERTAIN: Final = 25.0
"""Log of how unlikely it is that a node repeats its value so often by chance."""

MOST_CHANGES: Final = 0.8
"""Share of reports that change which counts at most, so that at least 16 equal values are needed."""

SHORTEST: Final = 16
HISTORY: Final = 200
FEWEST: Final = 30
"""Reports before a run that tell how often the values of a node change: at most, and at least."""


MOST_DEVIATIONS: Final = 4.0
LATEST: Final = 5
"""Standard deviations of its last values within which a value is usual: from their median, or from that of the latest
ones, where all nodes move."""

FEWEST_FILLED: Final = 8
MOST_FILLED: Final = 0.4
"""Repetitions of a source that are no chance at least, and at most as a share of its rows: one that has more reports
at longer intervals."""

BY_CHANCE: Final = 0.2
"""Share of these that chance brings about at most, where values are rounded as finely as the least change tells."""


@dataclass(frozen=True)
class Stuck:
    """A source that repeated a value: how often, from when to when."""

    source: int
    rows: int
    since: float
    until: float


def stuck_values(time: Floats, source: Ints, value: Floats, cohort: Ints) -> tuple[Bools, list[Stuck]]:
    """Which rows repeat the value of an exporter that hangs, and whose they are.

    It repeats what was a usual value of the node when it began to hang: a chip whose clock is held at a lower value
    than before repeats it too, but is slow. A value that is as high or as low as the node's values get is no sign.
    Rows are sorted by source and time; `cohort`: by source.
    """
    changed = np.concatenate(([True], (np.diff(value) != 0) | (np.diff(source) != 0)))
    starts = np.flatnonzero(changed)
    lengths = np.diff(np.append(starts, len(value)))
    first = np.searchsorted(source, source[starts])
    long = (lengths >= SHORTEST) & (value[starts] > 0) & (starts - first >= FEWEST)
    total = np.concatenate(([0], np.cumsum(changed)))
    found, runs = np.zeros(len(value), np.bool_), list[Stuck]()
    if not long.any():
        return found, runs
    peers = _Peers(time, source, changed, cohort)
    for start, length, earliest in zip(*(each[long].tolist() for each in (starts, lengths, first)), strict=True):
        begin = max(earliest, start - HISTORY)
        before = value[begin:start]
        own = (total[start] - total[begin]) / (start - begin)
        if not _usual(float(value[start]), before, before[changed[begin:start]]):
            continue
        stop, changes = start + length, min(own, MOST_CHANGES)
        if not _certain(length, changes):
            continue
        if _certain(length, min(changes, peers.changes(int(source[start]), time[start], time[stop - 1]))):
            found[start + 1 : stop] = True
            runs.append(Stuck(int(source[start]), length, float(time[start]), float(time[stop - 1])))
    return found, runs


def filled_in(repeats: Ints, rows: Ints, least: Floats, mean: Floats) -> Bools:
    """By source, whether so many repetitions of its values in so many rows are none of rounding; `least`, `mean`: of
    the changes of its values."""
    by_chance = least <= BY_CHANCE * repeats * mean / np.maximum(rows, 1)
    found: Bools = (repeats >= FEWEST_FILLED) & (repeats <= MOST_FILLED * rows) & by_chance
    return found


def filled_values(source: Ints, value: Floats) -> Bools:
    """Which rows repeat the usual value before them for a short time, at sources that do so now and then and are not
    rounded. Rows are sorted by source and time."""
    change = np.abs(np.diff(value, prepend=np.nan))
    within = np.diff(source, prepend=-1) == 0
    same, changed = within & (change == 0) & (value > 0), within & (change > 0)
    many = int(source.max(initial=-1)) + 1
    repeats, changes, rows = (np.bincount(source[each], minlength=many) for each in (same, changed, within))
    least = np.full(many, np.inf)
    np.minimum.at(least, source[changed], change[changed])
    mean = np.bincount(source[changed], change[changed], many) / np.maximum(changes, 1)
    filled = filled_in(repeats, rows, least, mean)
    found = np.zeros(len(value), np.bool_)
    if not filled.any():
        return found
    edges = np.flatnonzero(np.diff(same, prepend=False, append=False))
    first = np.searchsorted(source, source)
    for start, stop in edges.reshape(-1, 2).tolist():
        begin = max(int(first[start]), start - HISTORY)
        if not filled[source[start]] or stop - start >= SHORTEST or start - begin < FEWEST:
            continue
        before = value[begin : start - 1]
        found[start:stop] = _usual(float(value[start]), before, before[~same[begin : start - 1]])
    return found


def _usual(value: float, before: Floats, different: Floats) -> bool:
    """Whether a value is like the last `different` ones before, and not the bound of all that was reached before. Of
    a value that was repeated one counts: a node that has stopped repeats what little it does."""
    recent = different[-FEWEST:]
    centres = np.median(recent), np.median(recent[-LATEST:])
    near = np.min(np.abs(value - np.array(centres))) <= MOST_DEVIATIONS * robust_spread(recent)
    bound = value in (before.min(), before.max()) and np.count_nonzero(before == value) > 1
    return bool(near and not bound)


def _certain(length: int, changes: float) -> bool:
    return -length * float(np.log1p(-changes)) > CERTAIN


class _Peers:
    """How often the values of the other sources of a cohort change."""

    def __init__(self, time: Floats, source: Ints, changed: Bools, cohort: Ints) -> None:
        self._cohort = cohort
        self._time, self._changed = time, changed
        self._of, self._own = cohort[source], source

    def changes(self, source: int, since: float, until: float) -> float:
        """The share of their reports in this time that change; 0 without reports."""
        here = (self._of == self._cohort[source]) & (self._own != source)
        here &= (self._time > since) & (self._time <= until)
        return float(self._changed[here].mean()) if here.any() else 0.0
