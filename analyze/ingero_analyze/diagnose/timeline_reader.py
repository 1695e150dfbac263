"""Reads operation timelines from CSV or Parquet files, and leaves out what cannot be compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Final

import numpy as np

from ingero_analyze.diagnose import deepspeed_timers, elastic_events, loop_logs, rank_timers
from ingero_analyze.diagnose.batch_columns import FileReading, columns_of, ranks_of, without_lone_gpus
from ingero_analyze.diagnose.columns import RECORD, SECONDS_OF, units_of_times
from ingero_analyze.diagnose.counted_steps import counted_steps, numbered
from ingero_analyze.diagnose.decimal_commas import with_points
from ingero_analyze.diagnose.file_ranks import path_says_rank, ranks_of_files
from ingero_analyze.diagnose.missing_starts import with_starts
from ingero_analyze.diagnose.mixed_units import other_units
from ingero_analyze.diagnose.several_jobs import FileContent, are_several, jobs_of
from ingero_analyze.diagnose.sources import Problems, SourceError, read_begin
from ingero_analyze.diagnose.step_times import as_operations
from ingero_analyze.diagnose.timed_cells import in_seconds
from ingero_analyze.diagnose.timeline_files import (
    OPTIONAL,
    REQUIRED,
    RecordedTimeline,
    assemble,
    chores_of,
    in_likely_unit,
    ordered,
    plain_name,
)
from ingero_analyze.diagnose.timeline_rows import (
    MOST_AT_ONCE,
    MOST_OVERLAPPING,
    Columns,
    LostRows,
    begin_together,
    filled_starts,
    one_after_another,
    ranks_claimed_twice,
    ranks_short_of_rows,
    repeated_rows,
    selected,
    share_that_overlaps,
    span_of_steps,
    without_lost_rows,
)
from ingero_analyze.table_batch import TableBatch
from ingero_analyze.table_errors import TableError
from ingero_analyze.tables import LATEST, read_columns
from ingero_detect.grouped import Bools, Floats, Ints, extremes

TIMERS: Final = (
    (lambda begin: rank_timers.MARK in begin, rank_timers.rows_of),
    (lambda begin: deepspeed_timers.MARK.search(begin) is not None, deepspeed_timers.rows_of),
    (loop_logs.are_of_loop, loop_logs.rows_of),
)
"""How logs of the timers of Megatron-LM, DeepSpeed and other loops are known, and read."""

MOST_TWICE: Final = 0.25
"""Share of ranks that two processes claim from which there are two jobs."""

UNNAMED: Final = "rows without a job"
JOB_BITS: Final = 32
RANKS: Final = (1 << JOB_BITS) - 1
"""Ranks of several jobs are told apart by numbers whose lower bits are the rank, and the upper ones the job."""

BEGIN_OF_LOG: Final = 1 << 20
"""Bytes of a log in a folder that show whether it has timers; settings and the start of the job come before them."""


def has_timers(begin: str) -> bool:
    """Whether a log that begins so has timers of ranks."""
    return any(is_known(begin) for is_known, _ in TIMERS)


def read_timelines(
    files: Sequence[str], problems: Problems, progress: Callable[[int], None], chosen: Mapping[str, str],
    unit: str | None,
) -> dict[str, RecordedTimeline]:  # fmt: skip
    """Read files as a timeline for each job that they are of, by its name in their paths and in the column of jobs.

    `problems` counts the rows that cannot be used; `TableError` if none can. `chosen`: columns by role
    (`columns.ROLES`), others by their names; `unit`: of times whose columns name none.
    """
    table = _read_table(files, problems, progress, chosen, unit)
    jobs = jobs_of(table.contents()) if len(files) > 1 else {}
    if not jobs:
        return _timelines(table, "", files)
    problems.count, problems.shown = 0, []
    found: dict[str, RecordedTimeline] = {}
    for job, own in jobs.items():
        found |= _timelines(_read_table(own, problems, lambda _: None, chosen, unit), job, own)
    return found


def _timelines(table: "_Table", name: str, files: Sequence[str]) -> dict[str, RecordedTimeline]:
    """The timelines of the jobs in a table by name; those that cannot be judged are problems, if others can."""
    found, refused = dict[str, RecordedTimeline](), list[TableError]()
    for job, part in table.by_job().items():
        try:
            found["/".join(filter(None, (name, job)))] = part.timeline(", ".join(files))
        except TableError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    for why in refused:
        table.problems.add("", str(why))
    return found


def _read_table(
    files: Sequence[str], problems: Problems, progress: Callable[[int], None], chosen: Mapping[str, str] | None,
    unit: str | None,
) -> "_Table":  # fmt: skip
    by_file = ranks_of_files(files)
    table = _Table(problems, unit)
    for file in files:
        begin = _begin_of(file)
        if (events := elastic_events.events_of(begin)) and not has_timers(begin):
            raise TableError(file, elastic_events.told_of(events))
        consumed = 0
        reading = FileReading(dict(chosen or {}), by_file.get(file), says_rank=path_says_rank(file))
        try:
            for batch in read_columns(file, reading.choose, table.add_ragged, json=True, marked=TIMERS):
                if batch.rows:
                    table.add(batch, reading)
                progress(batch.consumed - consumed)
                consumed = batch.consumed
        except TableError:
            if _is_of_training(file):
                raise TableError(file, NO_TIMERS) from None
            raise
    if not table.rows:
        raise TableError(", ".join(files), problems.shown[0] if problems.count else "there are no rows")
    if all(reading.host for reading in table.readings):
        table.vocabulary["rank"] = without_lone_gpus(table.vocabulary["rank"])
    return table


NO_TIMERS: Final = (
    "this log of a training has no times of operations of each rank. What it has, such as losses, the time of whole "
    f"steps or samples per second, is the same for all ranks of a synchronised job and tells none; {RECORD}"
)


def _is_of_training(file: str) -> bool:
    """Whether a file that could not be read is the log of a training."""
    return loop_logs.is_of_training(_begin_of(file))


def _begin_of(file: str) -> str:
    """How a file begins; empty for standard input, and where it cannot be read."""
    try:
        return "" if file == "-" else read_begin(Path(file), BEGIN_OF_LOG).decode("utf-8", "replace")
    except SourceError:
        return ""


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
    readings: list[FileReading] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ended: dict[int, tuple[float, int]] = field(default_factory=dict)
    ended_in_step: dict[tuple[int, int], float] = field(default_factory=dict)
    jobs: list[Ints] = field(default_factory=list)
    job_names: dict[str, int] = field(default_factory=dict)
    host_of: dict[int, int] = field(default_factory=dict)
    hosts: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    ragged: int = 0

    def add_ragged(self, error: TableError) -> None:
        """Count a row that has more or fewer values than there are columns."""
        self.ragged += 1
        self.problems.add("", str(error))

    def add(self, batch: TableBatch, reading: FileReading) -> None:
        """Add rows."""
        batch = reading.long(batch)
        batch, timed = in_seconds(with_points(batch, reading.columns.numbers()), reading.columns.numbers())
        reading.tell_seconds(timed)
        self._add_hosts(batch, reading)
        if reading.columns.operations:
            ranks = self._ranks_of_jobs(batch, reading)
            batch = as_operations(batch, reading.columns.operations, ranks, self.unit, self.ended)
        elif "start" not in reading.columns.roles:
            ranks = self._ranks_of_jobs(batch, reading)
            steps = batch.codes(reading.columns.roles["step"], self.vocabulary["step"])
            duration = batch.numbers_or_nan(reading.columns.length)
            batch = with_starts(batch, ranks, steps, duration, self.ended_in_step)
        if not batch.rows:
            return
        columns, lost = columns_of(batch, reading, self.vocabulary, self.problems)
        self.parts.append(columns)
        self.lost.append(lost)
        self.jobs.append(self._jobs_of(batch, reading))
        self.batches.append(TableBatch(batch.file, batch.first_row, {}, batch.rows, batch.consumed, batch.places))
        self.readings.append(reading)
        self.starts.append(self.rows)
        self.rows += batch.rows

    def _jobs_of(self, batch: TableBatch, reading: FileReading) -> Ints:
        column = reading.columns.roles.get("job")
        return np.zeros(batch.rows, np.int64) if column is None else batch.codes(column, self.job_names)

    def _ranks_of_jobs(self, batch: TableBatch, reading: FileReading) -> Ints:
        """By row, a number for its rank and job together."""
        ranks = ranks_of(batch, reading, self.vocabulary)
        return np.where(ranks < 0, -1, ranks + (self._jobs_of(batch, reading) << JOB_BITS))

    def by_job(self) -> dict[str, "_Table"]:
        """The rows of each job that a column names, or of all that may be of one, which has no name."""
        names = list(self.job_names)
        job = np.concatenate(self.jobs) if len(names) > 1 else np.zeros(0, np.int64)
        parts = {names[code] or UNNAMED: self._of_job(code) for code in np.unique(job).tolist()}
        contents = [content for part in parts.values() if (content := part.content()) is not None]
        return parts if len(parts) > 1 and are_several(contents) else {"": self}

    def _of_job(self, code: int) -> "_Table":
        part = replace(self, parts=[], lost=[], batches=[], readings=[], starts=[], jobs=[], rows=0)
        whole = zip(self.parts, self.lost, self.batches, self.readings, self.jobs, strict=True)
        for columns, lost, batch, reading, jobs in whole:
            rows = np.flatnonzero(jobs == code)
            if not len(rows):
                continue
            places = rows if batch.places is None else batch.places[rows]
            part.parts.append(selected(columns, rows))
            part.lost.append(lost[rows])
            part.jobs.append(jobs[rows])
            part.batches.append(replace(batch, rows=len(rows), places=places))
            part.readings.append(reading)
            part.starts.append(part.rows)
            part.rows += len(rows)
        part.host_of = {rank & RANKS: host for rank, host in self.host_of.items() if rank >> JOB_BITS == code}
        return part

    def content(self) -> FileContent | None:
        """What all files have together; `None` where nothing can be used."""
        return reduce(FileContent.joined, self.contents().values()) if not np.concatenate(self.lost).all() else None

    def _add_hosts(self, batch: TableBatch, reading: FileReading) -> None:
        column = reading.columns.roles.get("node")
        if column is None:
            return
        ranks, hosts = self._ranks_of_jobs(batch, reading), batch.codes(column, self.hosts)
        _, rows = np.unique(numbered(ranks, hosts), return_index=True)
        for row in rows.tolist():
            self.host_of.setdefault(int(ranks[row]), int(hosts[row]))

    def timeline(self, files: str) -> RecordedTimeline:
        """The timeline of what can be used."""
        parts: dict[FileReading, list[int]] = {}
        for place, reading in enumerate(self.readings):
            parts.setdefault(reading, []).append(place)
        converted = [self._in_seconds(reading, at) for reading, at in parts.items()]
        units, again = converted[0][0], all(overlaid for _, overlaid in converted)
        columns = {name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]}
        lost = np.concatenate(self.lost)
        multiplied = self._in_one_unit(columns, lost, again)
        self._lose_too_long(columns, lost)
        if again:
            _, step = ordered(self.vocabulary["step"], columns["step"])
            columns["start"] = one_after_another(columns, step, ~lost)
        later, first = repeated_rows(columns)
        keep = np.ones(self.rows, np.bool_)
        keep[later] = False
        if len(later):
            self.problems.add("", f"{self._place(later[0])}: the same row as {self._row(first[0], later[0])}; "
                              f"{len(later)} such rows count once", len(later))  # fmt: skip
        columns, lost = selected(columns, keep), lost[keep]
        sound = selected(columns, ~lost)
        parts_of_rank = self.readings[0].columns.rank_parts() if self.readings[0].rank is None else ()
        if parts_of_rank and share_that_overlaps(sound) > MOST_OVERLAPPING:
            raise TableError(
                files, f"operations of one {self.readings[0].columns.of_rank} overlap, so several ranks share it; "
                "choose the column that tells ranks with --column rank=COLUMN",
            )  # fmt: skip
        twice = ranks_claimed_twice(sound) if (~lost).any() else []
        self._refuse_two_jobs(files, twice, len(np.unique(columns["rank"])))
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
        if not self.unit and not any(reading.columns.tells_unit() for reading in parts):
            found, units = in_likely_unit(found, units)
        names, hosts = list(self.vocabulary["rank"]), list(self.hosts)
        host_of = {
            str(plain_name(names[rank & RANKS])): hosts[host]
            for rank, host in self.host_of.items()
            if rank >= 0 and hosts[host]
        }
        read = _how_read(self.readings[0], units, found, again)
        return replace(found, hosts=host_of, read=read, other_units=multiplied)

    def contents(self) -> dict[str, FileContent]:
        """What each file has."""
        found: dict[str, FileContent] = {}
        names, ops = list(self.vocabulary["rank"]), list(self.vocabulary["op"])
        for part, lost, batch in zip(self.parts, self.lost, self.batches, strict=True):
            cells = np.unique(np.stack([part["rank"], part["step"]])[:, ~lost], axis=1).T.tolist()
            held = FileContent(
                frozenset((names[rank], step) for rank, step in cells),
                frozenset(ops[op] for op in np.unique(part["op"][~lost]).tolist()),
                (float(part["start"][~lost].min(initial=np.inf)), float(part["start"][~lost].max(initial=-np.inf))),
                float(part["duration"][~lost].sum()),
            )
            found[batch.file] = found[batch.file].joined(held) if batch.file in found else held
        return found

    def _in_seconds(self, reading: FileReading, at: Sequence[int]) -> tuple[tuple[str, str], bool]:
        """Convert the times of the parts of a file; the units of its starts and durations, and whether starts are
        times since the begin of their step."""
        if reading.columns.operations:
            return ("s", "s"), False
        sound = [~self.lost[place] for place in at]
        rank, step, start, duration = (
            np.concatenate([self.parts[place][name][rows] for place, rows in zip(at, sound, strict=True)])
            for name in ("rank", "step", "start", "duration")
        )
        usual, span, busy = _times_of_a_rank(rank, start, duration)
        laid_out = "start" not in reading.columns.roles
        units, again = units_of_times(reading.columns, self.unit, usual, span, busy), False
        if laid_out or begin_together(step, start):
            spans = span_of_steps(rank, step, start)
            of_steps = units_of_times(reading.columns, self.unit, usual, spans, busy)
            again = laid_out or busy * SECONDS_OF[of_steps[1]] > MOST_AT_ONCE * span * SECONDS_OF[of_steps[0]]
            units = of_steps if again else units
        for place in at:
            for name, unit in zip(("start", "duration"), units, strict=True):
                self.parts[place][name] = self.parts[place][name] * SECONDS_OF[unit]
        return units, again

    def _refuse_two_jobs(self, files: str, twice: Sequence[int], ranks: int) -> None:
        """`TableError` where so many ranks are claimed by two processes that there are two jobs."""
        names = list(self.vocabulary["rank"])
        if len(twice) > max(1, MOST_TWICE * ranks):
            told = ", ".join(names[rank] for rank in twice[:8])
            raise TableError(
                files, f"ranks {told} have the rows of two processes each, which overlap in time or in steps: these "
                "are recordings of two jobs, or runs of one; give each by itself, or a column `job` that tells them "
                "apart",
            )  # fmt: skip

    def _in_one_unit(self, columns: Columns, lost: Bools, again: bool) -> dict[str, float]:
        """Convert the times of ranks that are in another unit than those of most; these ranks, and by what their
        times were multiplied."""
        rank = np.where(lost, -1, columns["rank"])
        factors = other_units(rank, columns["step"], columns["duration"], columns["kind"] == 0)
        columns["duration"] = columns["duration"] * factors
        laid_out = bool(self.readings[0].columns.operations)
        names, found = list(self.vocabulary["rank"]), dict[str, float]()
        for number in np.unique(columns["rank"][factors != 1]).tolist():
            rows = np.flatnonzero(columns["rank"] == number)
            factor = float(factors[rows][factors[rows] != 1][0])
            if laid_out:
                columns["start"][rows] = _following(columns["start"][rows], columns["duration"][rows])
            elif again or (factors[rows] == factor).all():
                columns["start"][rows] *= factors[rows] if again or _spans_differ(columns, number, factor) else 1.0
            found[str(plain_name(names[number]))] = factor
        return found

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
            numbered(columns["rank"]), columns["op"], columns["group"], columns["start"], columns["kind"] == 1,
            chores_of(columns["op"], list(self.vocabulary["op"])),
        )  # fmt: skip
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

    def _reading(self, row: int) -> FileReading:
        return self.readings[int(np.searchsorted(self.starts, row, side="right")) - 1]

    def _batch(self, row: int) -> tuple[TableBatch, int]:
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.batches[number], int(row) - self.starts[number]


def _times_of_a_rank(rank: Ints, start: Floats, duration: Floats) -> tuple[float, float, float]:
    """Medians over ranks: a start, how long a rank was recorded, and how long its operations last in all."""
    if not len(rank):
        return 0.0, 0.0, 0.0
    order = np.lexsort((start, rank))
    first = np.flatnonzero(np.diff(rank[order], prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    spans = start[order][last] - start[order][first]
    return float(np.median(start)), float(np.median(spans)), float(np.median(np.add.reduceat(duration[order], first)))


def _following(start: Floats, duration: Floats) -> Floats:
    """Starts of the operations of a rank that follow one another without a break."""
    order = np.argsort(start, kind="stable")
    found, lasting = np.empty(len(start)), np.nan_to_num(duration[order])
    found[order] = np.cumsum(lasting) - lasting
    return found


def _spans_differ(columns: Columns, rank: int, factor: float) -> bool:
    """Whether the time for which the rank was recorded is closer to that of others if it is multiplied as well."""
    known = np.isfinite(columns["start"]) & (columns["rank"] >= 0)
    first, last = extremes(columns["start"][known], columns["rank"][known], int(columns["rank"].max()) + 1)
    spans = last - first
    usual, own = float(np.median(spans[np.isfinite(spans)])), float(spans[rank])
    return min(own, usual) > 0 and bool(abs(np.log(own * factor / usual)) < abs(np.log(own / usual)))


def _how_read(reading: FileReading, units: tuple[str, str], found: RecordedTimeline, again: bool) -> dict[str, Any]:
    """Which columns were taken for what, and what else was not said by the file."""
    columns = reading.columns
    told: dict[str, Any] = {"columns": dict(columns.roles), "units": {"start": units[0], "duration": units[1]}}
    if again:
        told["starts"] = "since the begin of each step" if "start" in columns.roles else "one after another"
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
