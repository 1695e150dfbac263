"""Learns from a history how long different amounts of work take, to judge times as if all had done the same. Pure.

Steps with longer sequences or larger batches take longer, and their node is not slow. A time is divided by what its
work usually takes, if that explains times: it must leave less of how each node's times vary, and no more of how nodes
differ at one time, as it would where all wait in every step for the one with most work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from ingero_detect.duration_curve import DurationCurve, duration_curve
from ingero_detect.grouped import Bools, Floats, Ints, grouped_median

MOST_EXAMPLES: Final = 1 << 17
"""Rows that are learnt from: of longer histories those of every second, fourth, eighth moment."""

MOST_HALVINGS: Final = 24
"""Times that moments are halved, at most: more rows of a single one say nothing about other times."""

FEWEST_EXAMPLES: Final = 100

KNOWN: Final = 0.9
"""Share of the rows whose work must be known."""

DIFFERENT: Final = 0.05
"""Share by which work differs, at least: nine tenths of the rows from the least of them to the most, log units."""

LEFT: Final = 0.8
"""Most that is left of how the times of a node vary."""

REFITTED: Final = 3
"""Rounds in which columns that explain times together are learnt again."""

NO_MORE: Final = 1.1
ROUNDING: Final = 0.002
"""How many times as much nodes may differ at one time, and what they may differ by anyway, log units."""

FALLS: Final = 0.01
"""Share of its changes in which the work of a node falls, at least: a count from the beginning on only rises."""


@dataclass(frozen=True)
class WorkColumn:
    """How long a row takes by the work in a column. `usual`: seconds of the median work."""

    name: str
    curve: DurationCurve
    usual: float

    @classmethod
    def of(cls, name: str, curve: DurationCurve, work: Floats) -> Self:
        """The column of this work."""
        usual = np.median(work[np.isfinite(work) & (work > 0)], keepdims=True)
        return cls(name, curve, float(curve.at(usual)[0]))

    def of_usual(self, work: Floats) -> Floats:
        """The time of work, over that of the usual work; NaN where it is not known."""
        known = np.isfinite(work) & (work > 0)
        return np.where(known, self.curve.at(np.where(known, work, 1.0)) / self.usual, np.nan)


class WorkExamples:
    """Times of steps beside the work in some columns, of which one may explain them."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._parts: list[tuple[Floats, Ints, Floats, Floats]] = []
        self.rows, self._thinned = 0, 0

    def add(self, time: Floats, source: Ints, seconds: Floats, work: Floats) -> None:
        """Add rows; `work` by column and row."""
        self._keep([(time, source, seconds, work)])
        while self.rows > MOST_EXAMPLES:
            self._thinned += 1
            parts, self._parts, self.rows = self._parts, [], 0
            self._keep(parts if self._thinned <= MOST_HALVINGS else [])

    def _keep(self, parts: Sequence[tuple[Floats, Ints, Floats, Floats]]) -> None:
        for time, source, seconds, work in parts:
            some = _drawn(time, self._thinned)
            self._parts.append((time[some], source[some], seconds[some], work[:, some]))
            self.rows += len(self._parts[-1][0])

    def explaining(self) -> tuple[WorkColumn, ...]:
        """The column that explains times best, and those that explain what it leaves: their times are multiplied."""
        if self.rows < FEWEST_EXAMPLES:
            return ()
        time, source, seconds = (np.concatenate([part[place] for part in self._parts]) for place in (0, 1, 2))
        work = np.concatenate([part[3] for part in self._parts], axis=1)
        order = np.lexsort((time, source))
        _, source = np.unique(source[order], return_inverse=True)
        _, moment = np.unique(time[order], return_inverse=True)
        rows = all_rows = _Rows(source, moment, np.log(seconds[order]), work[:, order])
        found: dict[int, WorkColumn] = {}
        while best := rows.best():
            number, curve = best
            found[number] = WorkColumn.of(self._columns[number], curve, rows.work[number])
            rows = rows.without(number, found[number])
        return tuple(all_rows.together(found).values())


@dataclass(frozen=True)
class _Rows:
    """Rows in the order of their source and time. `logs`: of the seconds; `work`: by column and row, no number where
    it is not known or explains no more."""

    source: Ints
    moment: Ints
    logs: Floats
    work: Floats

    def best(self) -> tuple[int, DurationCurve] | None:
        """The column that explains most, and how long its work takes."""
        found = [(number, self._explained(number)) for number in range(len(self.work))]
        fitting = [(of[0], number, of[1]) for number, of in found if of is not None]
        return min(fitting, key=lambda one: one[0])[1:] if fitting else None

    def without(self, number: int, column: WorkColumn) -> "_Rows":
        """Rows whose work in a column is known, with the times of its usual work."""
        factor = column.of_usual(self.work[number])
        known = np.isfinite(factor)
        work = self.work[:, known]
        work[number] = np.nan
        return _Rows(self.source[known], self.moment[known], self.logs[known] - np.log(factor[known]), work)

    def together(self, columns: dict[int, WorkColumn]) -> dict[int, WorkColumn]:
        """Columns by number, each learnt again from the times that the others leave (backfitting): where another
        column has two values, the median time of some work is that of either."""
        columns = dict(columns)
        for number in REFITTED * list(columns) if len(columns) > 1 else ():
            rows = self
            for other in columns.keys() - {number}:
                rows = rows.without(other, columns[other])
            known = np.isfinite(rows.work[number]) & (rows.work[number] > 0)
            work, source = rows.work[number][known], rows.source[known]
            curve = duration_curve(work, np.exp(rows.logs[known]), source, int(source.max()) + 1)
            columns[number] = WorkColumn.of(columns[number].name, curve, work)
        return columns

    def _explained(self, number: int) -> tuple[float, DurationCurve] | None:
        """Which share of how times vary work leaves, and how long it takes; `None` if it explains too little."""
        known = np.isfinite(self.work[number]) & (self.work[number] > 0)
        if not known.any() or known.mean() < KNOWN:
            return None
        rows = _Rows(self.source[known], self.moment[known], self.logs[known], self.work[:, known])
        work = rows.work[number]
        low, high = np.quantile(work, (0.05, 0.95))
        if np.log(high / low) < DIFFERENT or rows._only_rises(work):
            return None
        curve = duration_curve(work, np.exp(rows.logs), rows.source, int(rows.source.max()) + 1)
        equal = _Rows(rows.source, rows.moment, rows.logs - np.log(curve.at(work)), rows.work)
        left = equal._varies() / max(rows._varies(), 1e-12)
        between = equal._differs() <= NO_MORE * rows._differs() + ROUNDING
        return (left, curve) if left <= LEFT and between and curve.duration[-1] > curve.duration[0] else None

    def _only_rises(self, work: Floats) -> bool:
        """Whether work is a count of all since the beginning."""
        change = np.diff(work)[np.diff(self.source) == 0]
        changes = np.count_nonzero(change)
        return bool(2 * changes >= len(change) and np.count_nonzero(change < 0) < FALLS * changes)

    def _varies(self) -> float:
        """How far the times of a node are from its median, usually."""
        return _spread(self.logs, self.source)

    def _differs(self) -> float:
        """How far nodes are from the median of their time, usually; 0 where each row has a time of its own."""
        count = np.bincount(self.moment)
        several = count[self.moment] > 1
        return _spread(self.logs[several], self.moment[several]) if several.any() else 0.0


def _spread(logs: Floats, group: Ints) -> float:
    """The mean distance from the median of a group."""
    _, median = grouped_median(logs, group, int(group.max()) + 1)
    return float(np.abs(logs - median[group]).mean())


def _drawn(time: Floats, halvings: int) -> Bools:
    """Every so-many-th moment, with all of its rows: by hash, so that no period of the history matters."""
    mixed = np.ascontiguousarray(time, np.float64).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    drawn: Bools = ((mixed >> np.uint64(40)) & np.uint64((1 << min(halvings, MOST_HALVINGS)) - 1)) == 0
    return drawn
