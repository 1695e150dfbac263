"""Turns the cells of a batch into arrays: which rows can be used, when, whose, and what they say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.diagnose.sources import SHOWN, Problems
from ingero_analyze.replay.cells import NO_VALUE, Cells, Form, coarseness, form_of, numbers, points_may_be_thousands
from ingero_analyze.replay.columns import Columns
from ingero_analyze.replay.equal_work import WorkColumn
from ingero_analyze.replay.reading import (
    COARSE,
    COARSE_TIMES,
    COARSEST,
    COARSEST_TIMES,
    DAYLESS,
    POINTS,
    ZONELESS,
    Reading,
)
from ingero_analyze.replay.subjects import RowSource, Subjects
from ingero_analyze.replay.times import EXCEL_UNIT, FOUR_DIGITS, MIDNIGHT, SLASHED, Clock, lasting, rounded_to, times
from ingero_analyze.table_batch import TableBatch
from ingero_analyze.table_errors import TableError
from ingero_contract.identifiers import node_key
from ingero_detect.nodes.observation import ACTIVE
from ingero_fleet.recording import EMPTY, PARTS, RECORDED, STATES

CODES: Final = {
    "": ACTIVE, "running": ACTIVE, "busy": ACTIVE, "allocated": ACTIVE, "alloc": ACTIVE,
    **{word: code for code, word in STATES.items()},
}  # fmt: skip
"""Values that the column `state` may hold."""

_TOTALS: Final = frozenset(("all", "total", "totals", "sum", "average", "avg", "mean", "median", "overall"))
"""What stands in the column of nodes in rows of all nodes together."""

SHORTEST: Final = float(np.finfo(np.float64).tiny)
"""Seconds of a step whose inverse is a finite number."""

MOST_COMBINATIONS: Final = 1 << 62
"""Numbers of combinations of texts that are told apart without renumbering."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass
class BatchRows:
    """Rows of one batch as arrays. `source`: its number in `Subjects`."""

    time: Floats
    source: Ints
    value: Floats
    state: npt.NDArray[np.uint8]

    def cut(self, part: Any) -> "BatchRows":
        """Some of the rows."""
        return BatchRows(self.time[part], self.source[part], self.value[part], self.state[part])

    @staticmethod
    def join(parts: Sequence["BatchRows"]) -> "BatchRows":
        """Rows one after another."""
        return BatchRows(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("time", "source", "value", "state")
            )
        )


class _Check:
    """Which rows of a batch can be used; the others are counted, and the first ones described."""

    def __init__(self, batch: TableBatch, problems: Problems) -> None:
        self.good = np.ones(batch.rows, np.bool_)
        self.missing = np.zeros(batch.rows, np.bool_)
        self._batch, self._problems = batch, problems

    def refuse(self, wrong: Bools, column: str, text: Callable[[int], str]) -> None:
        """Leave out the rows that are wrong, with the reason of each."""
        rows = np.flatnonzero(wrong & self.good)
        self.good[rows] = False
        shown = rows[: max(0, SHOWN - len(self._problems.shown))]
        for index in shown.tolist():
            self._problems.add("", str(self._batch.error(index, column, text(index))))
        self._problems.count += len(rows) - len(shown)


class RowParser:
    """Turns the cells of batches into rows, with common numbers of what tells rows apart.

    `work`: how long different amounts of work take; values are those of the usual one. What is found on the way is
    noted in `reading`.
    """

    def __init__(
        self, files: Sequence[str], subjects: Subjects, reading: Reading, work: Sequence[WorkColumn],
    ) -> None:  # fmt: skip
        self.reading, self.subjects = reading, subjects
        self._files, self._work = list(files), tuple(work)
        self._texts: dict[str, dict[str, int]] = {}

    def rows(self, batch: TableBatch, columns: Columns, clock: Clock, form: Form) -> tuple[BatchRows, Ints]:
        """The rows of a batch that can be used, and their places. `TableError` where a column cannot be read."""
        check = _Check(batch, self.reading.problems)
        time = self._times(batch, columns, clock, check)
        empty = _empty(batch, columns)
        state = self._states(batch, columns, check)
        value = self._values(batch, columns, form, check, (state == ACTIVE) & ~empty)
        source = self._sources(batch, columns, check, empty)
        kept = np.flatnonzero(check.good)
        rows = BatchRows(time, source, value, state)
        return rows.cut(kept), kept

    def _times(self, batch: TableBatch, columns: Columns, clock: Clock, check: _Check) -> Floats:
        name = columns.roles["time"][0]
        cells = _cells(batch, name, lambda column: times(column, clock))
        self.reading.calendar |= cells.calendar
        self.reading.foreign_times |= cells.calendar and set(cells.units) != {"seconds"}
        if cells.lasting and bool((np.diff(cells.values) < -MIDNIGHT).any()):
            self.reading.doubt(DAYLESS)
        if rounded_to(batch.columns[name], clock) > COARSEST_TIMES:
            self.reading.doubt(COARSE_TIMES)
        if EXCEL_UNIT in cells.units:
            self.reading.note(f"times are {EXCEL_UNIT}")
        elif set(cells.units) - {"seconds"}:
            self.reading.note(f"times are {' and '.join(cells.units)} since 1970")
        if cells.zoneless:
            self.reading.note(ZONELESS)
        check.refuse(
            cells.wrong, name, lambda index: _no_time(batch.columns[name][index], cells.calendar and not cells.units)
        )
        check.refuse(np.isnan(cells.values), name, lambda _: "a time is missing or not finite")
        return cells.values

    def _values(self, batch: TableBatch, columns: Columns, form: Form, check: _Check, working: Bools) -> Floats:
        name, measure = columns.value, columns.measure
        lasts = measure == "step_seconds"
        cells = _cells(batch, name, lambda column: (lasts and lasting(column)) or numbers(column, form))
        for other in columns.roles[measure][1:]:
            factor = _cells(batch, other, lambda column: numbers(column, form_of(column)))
            cells = Cells(cells.values * factor.values, cells.wrong | factor.wrong)
        if not columns.recorded:
            cells.values[np.isin(cells.values, NO_VALUE)] = np.nan
        if not form.comma and points_may_be_thousands(batch.columns[name]):
            self.reading.doubt(POINTS)
        if measure != "counter" and coarseness(cells.values, whole=measure == "step_seconds") > COARSEST:
            self.reading.doubt(COARSE)
        value = cells.values * columns.seconds if measure == "step_seconds" else cells.values
        for work in self._work:
            value = value / work.of_usual(numbers_of(batch, work.name))
        check.refuse(cells.wrong, name, lambda index: f"{_shown(batch.columns[name][index])} is not a number")
        if measure == "step_seconds":
            check.refuse(value <= 0, name, lambda index: f"{value[index]:g} is not positive")
            check.refuse(value < SHORTEST, name, lambda index: f"{value[index]:g} is too small")
        check.refuse(value < 0, name, lambda index: f"{value[index]:g} is negative")
        if measure == "score":
            check.refuse(value > 1, name, lambda index: f"a score lies between 0 and 1, this is {value[index]:g}")
        missing = working & np.isnan(value) & check.good
        if columns.recorded:
            check.refuse(missing, name, lambda _: "a finite number was expected")
        elif missing.any():
            if not self.reading.missing:
                index = int(np.flatnonzero(missing)[0])
                self.reading.first_missing = batch.place(index, name)
            self.reading.missing += int(missing.sum())
            check.good &= ~missing
            check.missing = missing
        if measure == "step_seconds":
            with np.errstate(divide="ignore", over="ignore"):
                value = 1.0 / value
        return value

    def _states(self, batch: TableBatch, columns: Columns, check: _Check) -> npt.NDArray[np.uint8]:
        name = columns.one("state")
        if name is None:
            return np.full(batch.rows, ACTIVE, np.uint8)
        words: dict[str, int] = {}
        found = batch.codes(name, words)
        texts = list(words)
        codes = np.array([CODES.get(word.strip().lower(), -1) for word in words], np.int64)[found]
        check.refuse(
            codes < 0, name, lambda index: f"{texts[found[index]][:40]!r} is none of active, idle, calibrating"
        )
        return np.where(codes < 0, ACTIVE, codes).astype(np.uint8)

    def _sources(self, batch: TableBatch, columns: Columns, check: _Check, empty: Bools) -> Ints:
        """Numbers of sources, by node, GPU, and the cohort's key: of a recording's key the parts it has."""
        roles, name = columns.roles, columns.roles["node"][0]
        node, names = self._column(batch, name)
        blank = np.isin(node, [number for number, text in enumerate(names) if not text.strip()])
        check.refuse(blank & ~empty, name, lambda _: "a node needs a name")
        if not columns.recorded:
            total = np.isin(node, [number for number, text in enumerate(names) if text.strip().lower() in _TOTALS])
            check.refuse(total, name, lambda index: f"{names[node[index]]!r} is no node, but all of them")
        labels: list[Sequence[str]] = [roles.get("cohort", ())]
        if any(role in roles for role in PARTS):
            labels = [roles.get(role, ()) for role in PARTS]
            labels += [roles["cohort"]] if "cohort" in roles else []
        ends = np.cumsum([4, *map(len, labels)]).tolist()
        file = self._files.index(batch.file)

        def number_of(texts: Sequence[str]) -> int:
            if not columns.recorded:
                texts = [text.strip() for text in texts]
            shared = ("/".join(filter(None, texts[start:stop])) for start, stop in pairwise(ends))
            cluster, host, gpu, rack = texts[:4]
            return self.subjects.number(RowSource(node_key(cluster, host), gpu, (cluster, *shared), file, rack))

        parts = [self._column(batch, columns.one("cluster")), (node, names)]
        parts += [self._column(batch, columns.one(role)) for role in ("gpu", "rack")]
        parts += [self._column(batch, one) for several in labels for one in several]
        return _numbered(parts, check.good | (check.missing & ~blank), number_of)

    def _column(self, batch: TableBatch, name: str | None) -> tuple[Ints, list[str]]:
        if name is None:
            return np.zeros(batch.rows, np.int64), [""]
        words = self._texts.setdefault(name, {})
        codes = batch.codes(name, words)
        return codes, list(words)


def _empty(batch: TableBatch, columns: Columns) -> Bools:
    """Which rows stand for a recorded tick without nodes."""
    if not columns.recorded:
        return np.zeros(batch.rows, np.bool_)
    kinds = {EMPTY: 0}
    return np.asarray(batch.codes(RECORDED, kinds) == kinds[EMPTY])


def _cells(batch: TableBatch, name: str, parse: Callable[[Any], Cells]) -> Cells:
    try:
        return parse(batch.columns[name])
    except ValueError as error:
        raise TableError(batch.file, str(error), column=name) from None


def numbers_of(batch: TableBatch, name: str) -> Floats:
    """The numbers of a column; NaN where there is none."""
    return _cells(batch, name, lambda column: numbers(column, form_of(column))).values


def _shown(cell: Any) -> str:
    return repr(str(cell)[:40])


def _no_time(cell: Any, calendar: bool) -> str:
    if calendar and SLASHED.fullmatch(str(cell)):
        parts = "the day or the month" if FOUR_DIGITS.search(str(cell)) else "the day, the month or the year"
        return f"{_shown(cell)} may begin with {parts}; write it as 2026-01-31"
    if calendar:
        return f"{_shown(cell)} is no ISO 8601 time"
    try:
        return f"{float(str(cell)):g} is too large: seconds are expected"
    except ValueError:
        return f"{_shown(cell)} is no time"


def _numbered(
    parts: Sequence[tuple[Ints, list[str]]], wanted: Bools, number_of: Callable[[Sequence[str]], int]
) -> Ints:
    """Number every combination of texts of the wanted rows; the others are 0."""
    rows = np.flatnonzero(wanted)
    combined, size = np.zeros(len(rows), np.int64), 1
    for codes, words in parts:
        if size * len(words) > MOST_COMBINATIONS:
            known, combined = np.unique(combined, return_inverse=True)
            size = max(1, len(known))
        combined, size = combined * len(words) + codes[rows], size * len(words)
    different, where, back = np.unique(combined, return_index=True, return_inverse=True)
    known = np.zeros(len(different), np.int64)
    for place, row in sorted(enumerate(rows[where].tolist()), key=lambda pair: pair[1]):
        known[place] = number_of([words[codes[row]] for codes, words in parts])
    found = np.zeros(len(wanted), np.int64)
    found[rows] = known[back]
    return found
