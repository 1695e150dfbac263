"""Reads operation timelines from CSV or Parquet files, and leaves out what cannot be compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from ingero_analyze.diagnose.sources import Problems
from ingero_analyze.diagnose.timeline_files import (
    OPTIONAL,
    REQUIRED,
    WORK,
    RecordedTimeline,
    assemble,
    counted_steps,
    numbered,
)
from ingero_analyze.diagnose.timeline_rows import (
    Columns,
    LostRows,
    filled_starts,
    ranks_claimed_twice,
    ranks_short_of_rows,
    repeated_rows,
    selected,
    without_lost_rows,
)
from ingero_analyze.table_errors import TableError
from ingero_analyze.tables import LATEST, TableBatch, read_batches
from ingero_detect.grouped import Bools, Ints

KINDS: Final = {"compute": 0, "collective": 1}
NO_NUMBERS: Final = ("", "none", "nan", "null")
"""Texts for a value that is missing."""


def read_timeline(
    files: Sequence[str], problems: Problems, progress: Callable[[int], None] = lambda _: None
) -> RecordedTimeline:
    """Read files as one timeline. `problems` counts the rows that cannot be used; `TableError` if none can."""
    table = _Table(problems)
    for file in files:
        consumed = 0
        for batch in read_batches(file, REQUIRED, (*OPTIONAL, WORK), table.add_ragged):
            if batch.rows:
                table.add(batch)
            progress(batch.consumed - consumed)
            consumed = batch.consumed
    if not table.rows:
        raise TableError(", ".join(files), problems.shown[0] if problems.count else "there are no rows")
    return table.timeline(", ".join(files))


@dataclass
class _Table:
    """Rows as they are read. `starts`: the number of the first row of every batch."""

    problems: Problems
    vocabulary: dict[str, dict[str, int]] = field(
        default_factory=lambda: {name: {} for name in (*REQUIRED, *OPTIONAL)}
    )
    parts: list[Columns] = field(default_factory=list)
    lost: list[Bools] = field(default_factory=list)
    batches: list[TableBatch] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    rows: int = 0
    ragged: int = 0

    def add_ragged(self, error: TableError) -> None:
        """Count a row that has more or fewer values than there are columns."""
        self.ragged += 1
        self.problems.add("", str(error))

    def add(self, batch: TableBatch) -> None:
        """Add rows."""
        columns, lost = _columns(batch, self.vocabulary, self.problems)
        self.parts.append(columns)
        self.lost.append(lost)
        self.batches.append(TableBatch(batch.file, batch.first_row, {}, batch.rows, batch.consumed, batch.places))
        self.starts.append(self.rows)
        self.rows += batch.rows

    def timeline(self, files: str) -> RecordedTimeline:
        """The timeline of what can be used."""
        columns = {name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]}
        lost = np.concatenate(self.lost)
        later, first = repeated_rows(columns)
        keep = np.ones(self.rows, np.bool_)
        keep[later] = False
        if len(later):
            self.problems.add("", f"{self._place(later[0])}: the same row as {self._row(first[0], later[0])}; "
                              f"{len(later)} such rows count once", len(later))  # fmt: skip
        columns, lost = selected(columns, keep), lost[keep]
        sound = selected(columns, ~lost)
        twice = ranks_claimed_twice(sound) if (~lost).any() else []
        for rank in twice:
            self._leave_out(columns, rank, "has the rows of two processes, which overlap in time or in steps")
        keep = ~np.isin(columns["rank"], twice)
        columns, lost = selected(columns, keep), lost[keep]
        counted: Ints | None = None
        if lost.any() or self.ragged:
            columns, counted = self._without(columns, lost)
        if not len(columns["rank"]):
            raise TableError(files, f"nothing can be used; {self.problems.shown[0]}")
        vocabulary = dict(self.vocabulary)
        for name in ("rank", "step"):
            vocabulary[name], columns[name] = _present(vocabulary[name], columns[name])
        return assemble(vocabulary, columns, len(columns["rank"]), counted)

    def _without(self, columns: Columns, rows: Bools) -> tuple[Columns, Ints | None]:
        """What can be compared although rows are lost, and steps if they are counted."""
        given = bool((columns["step"][~rows] >= 0).all())
        lost = self._lost(columns, rows, with_steps=given)
        if given:
            keep = without_lost_rows(columns, lost)
            return selected(columns, keep), None
        start, unclear = filled_starts(columns, rows)
        short = set(ranks_short_of_rows(columns, lost))
        for rank in sorted({*unclear, *short}):
            self._leave_out(columns, rank, "lacks rows, and without steps nothing tells where")
        there = (columns["rank"] >= 0) & ~np.isin(columns["rank"], [*unclear, *short]) & (columns["op"] >= 0)
        columns, rows = selected({**columns, "start": start}, there), rows[there]
        if not len(rows):
            return columns, None
        counted = counted_steps(
            numbered(columns["rank"]), columns["op"], columns["group"], columns["start"], columns["kind"] == 1
        )
        keep = without_lost_rows({**columns, "step": counted}, LostRows(rows, lost.unplaced))
        return selected(columns, keep), numbered(counted[keep])

    def _lost(self, columns: Columns, rows: Bools, *, with_steps: bool) -> LostRows:
        nowhere = (columns["rank"] < 0) | ((columns["step"] < 0) if with_steps else (columns["op"] < 0))
        return LostRows(rows, self.ragged + int((rows & nowhere).sum()))

    def _leave_out(self, columns: Columns, rank: int, why: str) -> None:
        name = list(self.vocabulary["rank"])[rank]
        count = int((columns["rank"] == rank).sum())
        self.problems.add("", f"rank {name[:40]} {why}; its {count} rows are left out", count)

    def _place(self, row: int) -> str:
        batch, index = self._batch(row)
        return batch.place(index)

    def _row(self, row: int, beside: int) -> str:
        """The place of a row, without the file where it is that of another row."""
        batch, _ = self._batch(row)
        place = self._place(row)
        return place.removeprefix(f"{batch.file}, ") if batch.file == self._batch(beside)[0].file else place

    def _batch(self, row: int) -> tuple[TableBatch, int]:
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.batches[number], int(row) - self.starts[number]


def _columns(batch: TableBatch, vocabulary: dict[str, dict[str, int]], problems: Problems) -> tuple[Columns, Bools]:
    """The columns of a batch, and the rows that cannot be used, which are counted."""
    found: Columns = {}
    lost = np.zeros(batch.rows, np.bool_)

    def lose(bad: Bools, name: str, text: str, value: Callable[[int], Any] = str) -> None:
        new = np.flatnonzero(bad & ~lost)
        for index in new.tolist():
            problems.add("", f"{batch.place(index, name)}: {text.format(value(index))}")
        lost[new] = True

    for name in ("rank", "op", *OPTIONAL):
        given = name in batch.columns
        codes = batch.codes(name, vocabulary[name]) if given else np.full(batch.rows, -1, np.int64)
        found[name] = np.where(codes == vocabulary[name].get("", -1), -1, codes)
        if name in REQUIRED:
            lose(found[name] < 0, name, "nothing is given")
    kinds: dict[str, int] = {}
    numbers = batch.codes("kind", kinds)
    words = list(kinds)
    found["kind"] = np.array([KINDS.get(kind.strip().lower(), -1) for kind in words], np.int64)[numbers]
    lose(found["kind"] < 0, "kind", "{!r} is neither compute nor collective", lambda row: words[numbers[row]][:40])
    for name in ("start", "duration", WORK):
        if name not in batch.columns:
            found[name] = np.full(batch.rows, np.nan)
            continue
        values = found[name] = batch.numbers_or_nan(name)
        shown = partial(_shown, batch.columns[name])
        wrong = np.isnan(values)
        wrong[wrong] = [shown(index).lower() not in NO_NUMBERS for index in np.flatnonzero(wrong).tolist()]
        lose(wrong, name, "{!r} is not a number", shown)
        if name == WORK:
            lose(np.isinf(values) | (values < 0), name, "a finite number was expected that is not negative")
            continue
        lose(~np.isfinite(values) | ((values < 0) if name == "duration" else False), name,
             "a finite number of seconds was expected, not negative if a duration")  # fmt: skip
        if name == "duration":
            lose(values > LATEST, name, "{:g} is too large: seconds are expected", values.item)
    return found, lost


def _present(words: dict[str, int], codes: Ints) -> tuple[dict[str, int], Ints]:
    """The words that rows have, and the codes renumbered by them."""
    used = np.zeros(len(words) + 1, np.bool_)
    used[codes] = True
    used[-1] = False
    number_of = np.where(used, np.cumsum(used) - 1, -1)
    return {word: int(number_of[code]) for word, code in words.items() if used[code]}, number_of[codes]


def _shown(column: Any, index: int) -> str:
    """A value as text, as far as it is shown."""
    return str(column[index]).strip()[:40]
