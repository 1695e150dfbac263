"""Finds nodes that lose work at a strict period since the first rows: checkpoints, evaluations, reports. Pure.

A fault begins at some time and keeps no clock. So losses that come at every time of a timetable, from the first one
in the history, and hardly would by chance, are by design, and tell nothing about the node. The rows at these times
count as no reports, so that what the node loses beside them is judged as usual.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_detect.grouped import Floats, Ints, row_medians
from ingero_detect.threshold import MAD_TO_SIGMA

NOTHING: Final = -4.0
"""Log rate of a node that does nothing, relative to its usual one, and the least that is told from that."""

STOPPED: Final = -1.0
"""Level below which a node does not work for so long that no loss can be seen, log units."""

LEVEL_ROWS: Final = 60
"""Rows around a row whose median is the level of a node."""

LEAST: Final = 0.05
SPREADS: Final = 4.0
"""What a node loses, log units, and in standard deviations of its values, at least."""

ALIKE: Final = 1 / 3
"""Share of the median of these losses that one has: less is noise."""

APART: Final = 3
"""Ticks without a loss between two."""

WITHIN: Final = 2.0
"""Ticks by which a loss is off its time at most: rows are no more regular than ticks."""

FOLLOW: Final = 0.3
CORRECT: Final = 0.03
"""Share of that by which the time of the next loss, and the period, follow it (an alpha-beta filter)."""

MOST_PERIODS: Final = 8
"""Periods that are tried for a node."""

FEWEST: Final = 4
"""Losses of a timetable."""

KEPT: Final = 0.8
"""Share of the times of a timetable, in which the node works, that have a loss."""

MOST_TIME: Final = 1 / 3
"""Most of a period that a loss takes: what takes more is another phase, or a node that fails and recovers."""

BY_CHANCE: Final = 0.01
"""Chance that as many losses at times of their own would keep a timetable, at most (bound of Chernoff)."""

MOST_CELLS: Final = 4_000_000
"""Nodes times ticks up to which values are kept, 4 bytes each."""


@dataclass(frozen=True)
class Timetable:
    """The tick in which each loss of a timetable begins; in ticks how long one takes, and the period; and what is
    lost then, log units."""

    begins: Ints
    length: int
    period: float
    loss: float

    @property
    def longest(self) -> int:
        """Ticks that are left out in a row."""
        return self.length + 2

    def ticks(self) -> Ints:
        """The ticks of all losses, with one before and one after each, which may have a part of it."""
        return np.unique(self.begins[:, None] + np.arange(-1, self.length + 1))


class TickValues:
    """The values of all nodes in every tick, until there are too many."""

    def __init__(self) -> None:
        self._ticks, self._rows = list[int](), list[tuple[Ints, npt.NDArray[np.float32]]]()
        self._cohort: dict[int, int] = {}
        self._last, self._full = b"", False

    def note(self, tick: int, node: Ints, cohort: Ints, value: Floats) -> None:
        """Add a tick: by row the number of a node that works, of its cohort, and its value."""
        if (key := node.tobytes() + cohort.tobytes()) != self._last:
            self._cohort |= dict(zip(node.tolist(), cohort.tolist(), strict=True))
            self._last = key
        self._full |= len(self._cohort) * (len(self._ticks) + 1) > MOST_CELLS
        if self._full:
            self._rows.clear()
            return
        self._ticks.append(tick)
        self._rows.append((node, value.astype(np.float32)))

    def timetables(self, accused: Set[int]) -> dict[int, Timetable]:
        """By number of a node its timetable, of cohorts in which one of the accused nodes has one."""
        found: dict[int, Timetable] = {}
        for cohort in {self._cohort[node] for node in accused if node in self._cohort and not self._full}:
            nodes = [node for node, of in self._cohort.items() if of == cohort]
            ticks, off = self._distances(nodes)
            of_node = dict(zip(nodes, off.T, strict=True))
            if any(timetable(ticks, of_node[node]) for node in accused & of_node.keys()):
                tables = {node: timetable(ticks, own) for node, own in of_node.items()}
                found |= {node: table for node, table in tables.items() if table}
        return found

    def _distances(self, nodes: Sequence[int]) -> tuple[Ints, Floats]:
        """The ticks, and by tick and node its distance from its own usual value and from what all do, log units."""
        column = np.full(max(self._cohort) + 1, -1)
        column[nodes] = np.arange(len(nodes))
        logs = np.full((len(self._rows), len(nodes)), np.nan)
        for row, (node, value) in zip(logs, self._rows, strict=True):
            here = column[node] >= 0
            with np.errstate(divide="ignore"):
                row[column[node[here]]] = np.log(value[here])
        usual = row_medians(logs.T)
        off = np.maximum(logs - np.where(np.isfinite(usual), usual, np.nan), NOTHING)
        off -= row_medians(off)[:, None]
        return np.array(self._ticks, np.int64), off


def timetable(ticks: Ints, off: Floats) -> Timetable | None:
    """The timetable of the losses of a node, if they have one. `off`: by tick its distance from its usual value and
    from what all do, log units; NaN where it did not report."""
    known = np.flatnonzero(np.isfinite(off))
    if len(known) < FEWEST * APART:
        return None
    time, own = ticks[known], off[known]
    level = _levels(own)
    below = level - own
    loss = below > max(LEAST, SPREADS * MAD_TO_SIGMA * float(np.median(np.abs(below))))
    low = np.flatnonzero(loss)
    if len(low) < FEWEST:
        return None
    low = low[below[low] >= ALIKE * np.median(below[low])]
    edge = np.flatnonzero(np.diff(time[low]) > APART) + 1
    begins, ends = time[low[np.r_[0, edge]]], time[low[np.r_[edge - 1, -1]]]
    found = _most_kept(begins, time, level)
    if found is None:
        return None
    kept, times, period = found
    length = int(np.quantile(ends[kept] - begins[kept] + 1, 0.75, method="inverted_cdf"))
    return Timetable(times, length, period, float(np.median(below[low]))) if length <= MOST_TIME * period else None


def _levels(own: Floats) -> Floats:
    """What a node usually does around each of its rows: a running median."""
    side = min(LEVEL_ROWS, len(own)) // 2
    around = np.lib.stride_tricks.sliding_window_view(np.pad(own, side, "reflect"), 2 * side + 1)
    levels: Floats = np.median(around, axis=1)
    return levels


def _most_kept(begins: Ints, time: Ints, level: Floats) -> tuple[Ints, Ints, float] | None:
    """The losses that keep a timetable since the first rows, all of its times, and its period; of several timetables
    that with most losses. `begins`: the ticks of losses; `level`: by tick of a node what it usually does."""
    works = time[level > STOPPED]
    best: tuple[Ints, Ints, float] | None = None
    for period in _periods(np.diff(begins)):
        for first in np.flatnonzero(begins - time[0] < period)[:FEWEST].tolist():
            kept, times, fitted = _follow(begins, first, period, int(time[-1]))
            seen = times[np.isin(times, works) | np.isin(times + 1, works)]
            if len(kept) < FEWEST or (best and len(kept) <= len(best[0])):
                continue
            if _hardly_by_chance(len(kept), max(len(seen), len(kept)), len(begins), len(time)):
                best = kept, times, fitted
    return best


def _periods(intervals: Ints) -> list[float]:
    """The intervals that losses may have, those that most have first."""
    ordered = np.sort(intervals)
    first, last = (
        np.searchsorted(ordered, ordered - 2 * WITHIN),
        np.searchsorted(ordered, ordered + 2 * WITHIN, "right"),
    )
    sums = np.concatenate(([0], np.cumsum(ordered)))
    means = (sums[last] - sums[first]) / (last - first)
    return list(dict.fromkeys(means[np.argsort(first - last, kind="stable")].tolist()))[:MOST_PERIODS]


def _follow(begins: Ints, first: int, period: float, last: int) -> tuple[Ints, Ints, float]:
    """The losses that are at the times of a timetable from a `first` one on, all of its times until the `last` tick,
    and its period in the end, ticks."""
    kept, times, expected = [first], [int(begins[first])], begins[first] + period
    while expected <= last:
        nearest = min(int(np.searchsorted(begins, expected - WITHIN)), len(begins) - 1)
        off = float(begins[nearest] - expected)
        if abs(off) <= WITHIN:
            kept.append(nearest)
            times.append(int(begins[nearest]))
            expected, period = expected + FOLLOW * off, period + CORRECT * off
        else:
            times.append(round(expected))
        expected += period
    return np.array(kept), np.array(times), period


def _hardly_by_chance(kept: int, times: int, losses: int, ticks: int) -> bool:
    """Whether so many of the losses of a node are at so many times, two of which define the timetable."""
    by_chance = min((2 * WITHIN + 1) * losses / ticks, 1 - 1e-9)
    share = (kept - 2) / (times - 2)
    if kept < KEPT * times or share <= by_chance:
        return False
    rest = (1 - share) * np.log((1 - share) / (1 - by_chance)) if share < 1 else 0.0
    return bool((times - 2) * (share * np.log(share / by_chance) + rest) >= -np.log(BY_CHANCE))
