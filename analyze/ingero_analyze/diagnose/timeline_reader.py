"""Reads operation timelines from CSV or Parquet files, and leaves out what cannot be compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from ingero_analyze.diagnose.columns import (
    SECONDS_OF,
    TIMES,
    TimelineColumns,
    kind_of,
    kind_of_operation,
    recognised,
    units_of_times,
)
from ingero_analyze.diagnose.sources import Problems, rank_of
from ingero_analyze.diagnose.step_times import STEP, as_operations
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
from ingero_analyze.tables import LATEST, TableBatch, read_columns
from ingero_detect.grouped import Bools, Floats, Ints

NO_NUMBERS: Final = ("", "none", "nan", "null")
"""Texts for a value that is missing."""

LABELS: Final = {"data_parallel": "dp", "stage": "pp", "tensor_parallel": "tp"}
"""What stands before a number that names a rank together with others."""


def read_timeline(
    files: Sequence[str], problems: Problems, progress: Callable[[int], None] = lambda _: None,
    chosen: Mapping[str, str] | None = None, unit: str | None = None,
) -> RecordedTimeline:  # fmt: skip
    """Read files as one timeline. `problems` counts the rows that cannot be used; `TableError` if none can.

    `chosen`: columns by role (`columns.ROLES`), others by their names; `unit`: of times whose columns name none.
    """
    by_file = {file: str(rank) for file in files if (rank := rank_of(Path(file))) is not None}
    if not len(set(by_file.values())) == len(set(files)) > 1:
        by_file = {}
    table = _Table(problems, unit)
    for file in files:
        consumed = 0
        reading = _Reading(dict(chosen or {}), by_file.get(file))
        for batch in read_columns(file, reading.choose, table.add_ragged, json=True):
            if batch.rows:
                table.add(batch, reading)
            progress(batch.consumed - consumed)
            consumed = batch.consumed
    if not table.rows:
        raise TableError(", ".join(files), problems.shown[0] if problems.count else "there are no rows")
    return table.timeline(", ".join(files))


class _Reading:
    """How one file is read. `rank`: that of all its rows if no column has it."""

    def __init__(self, chosen: Mapping[str, str], rank: str | None) -> None:
        self.rank = rank
        self.columns = TimelineColumns({}, {}, traced=False)
        self._chosen = chosen

    def choose(self, names: Sequence[str]) -> Sequence[str]:
        """The columns to read."""
        self.columns = recognised(names, self._chosen, by_file=self.rank is not None)
        if "rank" in self.columns.roles:
            self.rank = None
        return self.columns.used(by_file=self.rank is not None)


@dataclass
class _Table:
    """Rows as they are read. `starts`: the number of the first row of every batch."""

    problems: Problems
    unit: str | None
    vocabulary: dict[str, dict[str, int]] = field(
        default_factory=lambda: {name: {} for name in (*REQUIRED, *OPTIONAL)}
    )
    parts: list[Columns] = field(default_factory=list)
    lost: list[Bools] = field(default_factory=list)
    batches: list[TableBatch] = field(default_factory=list)
    readings: list[_Reading] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ended: dict[int, tuple[float, int]] = field(default_factory=dict)
    rows: int = 0
    ragged: int = 0

    def add_ragged(self, error: TableError) -> None:
        """Count a row that has more or fewer values than there are columns."""
        self.ragged += 1
        self.problems.add("", str(error))

    def add(self, batch: TableBatch, reading: _Reading) -> None:
        """Add rows."""
        if reading.columns.operations:
            ranks = _ranks(batch, reading, self.vocabulary)
            batch = as_operations(batch, reading.columns.operations, ranks, self.unit, self.ended)
        if not batch.rows:
            return
        columns, lost = _columns(batch, reading, self.vocabulary, self.problems)
        self.parts.append(columns)
        self.lost.append(lost)
        self.batches.append(TableBatch(batch.file, batch.first_row, {}, batch.rows, batch.consumed, batch.places))
        self.readings.append(reading)
        self.starts.append(self.rows)
        self.rows += batch.rows

    def timeline(self, files: str) -> RecordedTimeline:
        """The timeline of what can be used."""
        units = [self._in_seconds(reading) for reading in dict.fromkeys(self.readings)]
        columns = {name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]}
        lost = np.concatenate(self.lost)
        self._lose_too_long(columns, lost)
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
        found = assemble(vocabulary, columns, len(columns["rank"]), counted)
        return replace(found, read=_how_read(self.readings[0], units[0], found))

    def _in_seconds(self, reading: _Reading) -> tuple[str, str]:
        """Convert the times of a file; the units of its starts and durations."""
        at = [place for place, other in enumerate(self.readings) if other is reading]
        sound = [~self.lost[place] for place in at]
        rank, start, duration = (
            np.concatenate([self.parts[place][name][rows] for place, rows in zip(at, sound, strict=True)])
            for name in ("rank", "start", "duration")
        )
        if reading.columns.operations:
            return "s", "s"
        units = units_of_times(reading.columns, self.unit, *_times_of_a_rank(rank, start, duration))
        for place in at:
            for name, unit in zip(("start", "duration"), units, strict=True):
                self.parts[place][name] = self.parts[place][name] * SECONDS_OF[unit]
        return units

    def _lose_too_long(self, columns: Columns, lost: Bools) -> None:
        new = np.flatnonzero(~lost & (columns["duration"] > LATEST))
        for row in new.tolist():
            text = f"{columns['duration'][row]:g} s are too long"
            self.problems.add("", f"{self._place(row)}, column {self._reading(row).columns.length}: {text}")
        lost[new] = True

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

    def _reading(self, row: int) -> _Reading:
        return self.readings[int(np.searchsorted(self.starts, row, side="right")) - 1]

    def _batch(self, row: int) -> tuple[TableBatch, int]:
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.batches[number], int(row) - self.starts[number]


def _columns(
    batch: TableBatch, reading: _Reading, vocabulary: dict[str, dict[str, int]], problems: Problems
) -> tuple[Columns, Bools]:
    """The columns of a batch, times as the file has them, and the rows that cannot be used, which are counted."""
    found: Columns = {}
    lost = np.zeros(batch.rows, np.bool_)
    roles = reading.columns.roles
    if reading.columns.operations:
        roles = {"step": STEP, **roles, "op": "op", "start": "start", "duration": "duration"}

    def lose(bad: Bools, name: str, text: str, value: Callable[[int], Any] = str) -> None:
        new = np.flatnonzero(bad & ~lost)
        for index in new.tolist():
            problems.add("", f"{batch.place(index, name)}: {text.format(value(index))}")
        lost[new] = True

    for role in ("op", *OPTIONAL):
        given = role in roles
        codes = batch.codes(roles[role], vocabulary[role]) if given else np.full(batch.rows, -1, np.int64)
        found[role] = np.where(codes == vocabulary[role].get("", -1), -1, codes)
    found["rank"] = _ranks(batch, reading, vocabulary)
    lose(found["rank"] < 0, reading.columns.of_rank, "nothing is given")
    lose(found["op"] < 0, roles["op"], "nothing is given")
    kinds: dict[str, int] = {}
    numbers = batch.codes(roles["kind"], kinds) if "kind" in roles else found["op"]
    words = list(kinds if "kind" in roles else vocabulary["op"])
    of_word = kind_of if "kind" in roles else kind_of_operation
    found["kind"] = np.array([*map(of_word, words), -1], np.int64)[numbers]
    lose(found["kind"] < 0, roles.get("kind", roles["op"]), "{!r} is neither compute nor collective",
         lambda row: words[numbers[row]][:40])  # fmt: skip
    for role in (name for name in (*TIMES, WORK) if name in roles):
        values = found[role] = batch.numbers_or_nan(roles[role])
        shown = partial(_shown, batch.columns[roles[role]])
        wrong = np.isnan(values)
        wrong[wrong] = [shown(index).lower() not in NO_NUMBERS for index in np.flatnonzero(wrong).tolist()]
        lose(wrong, roles[role], "{!r} is not a number", shown)
        if role == WORK:
            lose(np.isinf(values) | (values < 0), roles[role], "a finite number was expected that is not negative")
        else:
            lose(~np.isfinite(values), roles[role], "a finite time was expected")
    if "duration" not in found:
        found["duration"] = found["end"] * reading.columns.ends_per_start - found["start"]
    found.pop("end", None)
    found.setdefault(WORK, np.full(batch.rows, np.nan))
    lose(found["duration"] < 0, roles.get("duration") or roles["end"], "a duration is never negative")
    return found, lost


def _ranks(batch: TableBatch, reading: _Reading, vocabulary: dict[str, dict[str, int]]) -> Ints:
    """The rank of every row; -1 where it is not given."""
    known, roles = vocabulary["rank"], reading.columns.roles
    if reading.rank is not None:
        return np.full(batch.rows, known.setdefault(reading.rank, len(known)), np.int64)
    if "rank" in roles:
        codes = batch.codes(roles["rank"], known)
        return np.where(codes == known.get("", -1), -1, codes)
    parts = reading.columns.rank_parts()
    texts = [batch.text(roles[part]) for part in parts]
    marks = [LABELS.get(part, "") for part in parts]
    names = [
        "/".join(mark + text for mark, text in zip(marks, row, strict=True)) if all(row) else ""
        for row in zip(*texts, strict=True)
    ]
    return np.array([known.setdefault(name, len(known)) if name else -1 for name in names], np.int64)


def _times_of_a_rank(rank: Ints, start: Floats, duration: Floats) -> tuple[float, float, float]:
    """Medians over ranks: a start, how long a rank was recorded, and how long its operations last in all."""
    if not len(rank):
        return 0.0, 0.0, 0.0
    order = np.lexsort((start, rank))
    first = np.flatnonzero(np.diff(rank[order], prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    spans = start[order][last] - start[order][first]
    return float(np.median(start)), float(np.median(spans)), float(np.median(np.add.reduceat(duration[order], first)))


def _how_read(reading: _Reading, units: tuple[str, str], found: RecordedTimeline) -> dict[str, Any]:
    """Which columns were taken for what, and what else was not said by the file."""
    columns = reading.columns
    told = {"columns": dict(columns.roles), "units": {"start": units[0], "duration": units[1]}}
    if columns.operations:
        told = {"columns": dict(columns.roles), "operations": dict(columns.operations)}
    if "kind" in columns.roles:
        return told
    line = found.line
    exchanges = np.unique(line.op[line.collective]).tolist()
    return {**told, "collectives_by_name": sorted(found.ops[op] for op in exchanges)}


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
