"""Reads the files of a history: what their columns mean, and how their cells are written."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import PurePath
from typing import Final

import numpy as np

from ingero_analyze.member_columns import ColumnsOfMembers
from ingero_analyze.replay.cells import Form, form_of
from ingero_analyze.replay.column_names import (
    MEASURES,
    date_of,
    is_gpu_of_host,
    is_index,
    measure_named,
    metrics_with_meaning,
    says_value,
    unit_of,
)
from ingero_analyze.replay.columns import FILE, WORK, Columns, MetricOpenError, WideOpenError, recognised, time_of
from ingero_analyze.replay.equal_work import WorkColumn, WorkExamples
from ingero_analyze.replay.metrics import MOST_NAMES, MetricColumn, metrics_of
from ingero_analyze.replay.reading import EQUAL_WORK, MISNAMED, NO_WORK, Reading
from ingero_analyze.replay.row_parser import CODES, BatchRows, Ints, RowParser, numbers_of
from ingero_analyze.replay.subjects import HiddenGroups, Subjects, short_names
from ingero_analyze.replay.times import Clock, are_dates, clock_of, with_dates
from ingero_analyze.replay.wide import WideTable, columns_of_members, wide_measure, wide_metric, wide_table
from ingero_analyze.table_batch import TableBatch
from ingero_analyze.table_errors import TableError
from ingero_analyze.tables import read_columns
from ingero_analyze.terminal import listed
from ingero_fleet.recording import RECORDED

_OWN_STATES: Final = ("active", "calibrating")
"""Words that only a column of such states holds; others may be those of Slurm or of a job."""

_TAGGED: Final = re.compile(r"-tag-(?P<tag>.+)\.(?:csv|json)")
"""The name of a file that TensorBoard writes of a series: run-RUN-tag-TAG.csv."""

_EXPORTED: Final = re.compile(r"-data(?:-as-\w+)?-\d{4}-\d\d-\d\d.*")
"""What Grafana puts behind the title of a panel where it names a file: Throughput-data-2026-01-31 10_00_00.csv."""

INDEX_IS_NO_TIME: Final = (
    "there is no column 'time', and the index only numbers the rows; choose one with --column time=COLUMN"
)


class RowReader:
    """Reads files one after another or in turns, with common numbers of what tells rows apart."""

    def __init__(
        self, files: Sequence[str], chosen: Mapping[str, Sequence[str]], labels: Sequence[str], metric: str | None,
        wide: str | None, groups: HiddenGroups | None = None, work: Sequence[WorkColumn] = (), learning: bool = False,
    ) -> None:  # fmt: skip
        self.reading = Reading()
        self.subjects = Subjects(files, groups)
        self._parser = RowParser(files, self.subjects, self.reading, work)
        self._files, self._short = list(files), short_names(files)
        self.chosen, self._labels, self._metric, self._wide = chosen, labels, metric, wide
        self._work, self._learning = tuple(work), learning
        self.work_columns: tuple[str, ...] = ()
        """Those of the file that is read, while it is learnt which of them explains times."""

    def read(self, file: str, progress: Callable[[int], None]) -> Iterator[tuple[TableBatch, BatchRows, Ints]]:
        """The rows of a file that can be used, by batch, and their places in it.

        `TableError` when a column is missing or not certain.
        """
        table, consumed = _FileTable(self, file), 0
        for batch in read_columns(file, table.choose, self._note_problem, json=True):
            reports = table.reports(batch)
            if reports.rows:
                clock, form = table.forms(reports)
                rows, kept = self._parser.rows(reports, table.columns, clock, form)
                table.check(reports, rows, kept)
                if len(kept):
                    self.reading.rows += len(kept)
                    yield reports, rows, kept
            progress(batch.consumed - consumed)
            consumed = batch.consumed
        table.finish()

    def layout(self, file: str, names: Sequence[str]) -> tuple[Columns | str, ColumnsOfMembers | None]:
        """How a file with columns of these names is used (`_recognised`), and the columns of each node, if it has
        such."""
        chosen = chain.from_iterable(self.chosen.values())
        of_members = None if self._wide else columns_of_members(names, chosen)
        return self._wide or self._recognised(file, of_members.long_names if of_members else names), of_members

    def wide_table(self, names: Sequence[str]) -> WideTable:
        """A table each of whose columns is a node."""
        time, metric = time_of(names, self.chosen), self._metric
        if metric is None and not self._wide:
            metric = wide_metric(names, time) or None
        return wide_table(names, time, metric)

    def begin(self, file: str, batch: TableBatch, columns: Columns) -> tuple[Columns, MetricColumn | None]:
        """Note how a file is read, as its first rows show it: its columns, and which rows are of which metric."""
        columns = self._with_known_states(batch, columns)
        self.work_columns = columns.roles.get(WORK, ())
        if not self._learning:
            columns = columns.with_work([one.name for one in self._work])
        self.reading.begin(file, columns)
        if not self._work and not self._learning and self.work_columns and self.chosen.get(WORK):
            self.reading.note(NO_WORK.format(listed(self.work_columns, len(self.work_columns))))
        if self._work:
            self.reading.note(EQUAL_WORK.format(listed(columns.roles[WORK], len(self._work))))
        if product := columns.roles[columns.measure][1:]:
            self.reading.note(f"the rate is {columns.value} times {product[0]}: how much a chip works in all")
        self.subjects.numbers_of_gpus = is_gpu_of_host(columns.roles["node"][0])
        named = columns.one("metric")
        return columns, None if named is None else MetricColumn(file, named, self._metric)

    def _recognised(self, file: str, names: Sequence[str]) -> Columns | str:
        """The columns of a file; what they hold where each node has one, and this is known. Where it is open whose
        values they hold, the metric that says most about work, or the only one at all, is judged."""
        some = len(self._files) > 1
        try:
            chosen = {**_of_tag(file, names, self.chosen), **self.chosen}
            return recognised(names, chosen, self._labels, self._metric, by_file=some)
        except WideOpenError:
            metric = self._metric or wide_metric(names, time_of(names, self.chosen))
            measure = wide_measure(metric, _title(file))
            if measure is None:
                raise
            of = f", of the metric {metric}" if metric else ""
            self.reading.note(f"each column is a node, whose cells are {measure}{of}")
            return measure
        except MetricOpenError as error:
            if file == "-":
                raise
            known = metrics_of(file, error.column)
            fitting = known if len(known) == 1 else metrics_with_meaning(known)
            if len(fitting) != 1:
                raise MetricOpenError(error.column, error.value, listed(known[:MOST_NAMES], len(known))) from None
            self._metric = fitting[0]
            others = f", of {listed(known[:MOST_NAMES], len(known))}" if len(known) > 1 else ""
            self.reading.note(f"the metric {self._metric} is judged{others}")
        return recognised(names, self.chosen, self._labels, self._metric, by_file=some)

    def _with_known_states(self, batch: TableBatch, columns: Columns) -> Columns:
        """The columns without that of states, if these are other ones than whether a node works."""
        name = columns.one("state")
        if name is None or columns.recorded or "state" in self.chosen:
            return columns
        words: dict[str, int] = {}
        batch.codes(name, words)
        known = {word.strip().lower() for word in words if word.strip()}
        if known <= CODES.keys() or not known.isdisjoint(_OWN_STATES):
            return columns
        shown = ", ".join(repr(word[:40]) for word in sorted(words)[:5])
        self.reading.note(f"the column {name} is not used: it holds {shown}, and not active, idle, calibrating")
        return columns.without("state")

    def with_file(self, batch: TableBatch) -> TableBatch:
        """A batch with a column that names its file."""
        import pyarrow as pa

        names = pa.array([self._short[self._files.index(batch.file)]] * batch.rows, pa.string())
        return replace(batch, columns={**batch.columns, FILE: names})

    def _note_problem(self, error: TableError) -> None:
        self.reading.problems.add("", str(error))


def learnt_work(
    files: Sequence[str], chosen: Mapping[str, Sequence[str]], labels: Sequence[str], metric: str | None,
    wide: str | None,
) -> tuple[WorkColumn, ...]:  # fmt: skip
    """How long different amounts of work take; nothing where no column tells work, or explains times, or the files
    cannot be read, or not twice."""
    if "-" in files:
        return ()
    reader = RowReader(files, chosen, labels, metric, wide, learning=True)
    examples: WorkExamples | None = None
    columns: tuple[str, ...] = ()
    try:
        for file in files:
            for batch, rows, kept in reader.read(file, lambda _: None):
                columns = columns if examples else reader.work_columns
                if not columns or not set(columns) <= {*reader.work_columns}:
                    return ()
                examples = examples or WorkExamples(columns)
                work = np.stack([numbers_of(batch, name)[kept] for name in columns])
                known = np.isfinite(rows.value) & (rows.value > 0)
                examples.add(rows.time[known], rows.source[known], 1 / rows.value[known], work[:, known])
    except TableError:
        return ()
    return examples.explaining() if examples else ()


class _FileTable:
    """A file that is read: how its columns are used, and, since its first rows, what its cells look like."""

    columns: Columns

    def __init__(self, reader: RowReader, file: str) -> None:
        self._reader, self._file = reader, file
        self._wide: WideTable | None = None
        self._members: ColumnsOfMembers | None = None
        self._metric: MetricColumn | None = None
        self._clock: Clock | None = None
        self._date, self._form, self._begun = list[str](), Form(), False

    def choose(self, names: Sequence[str]) -> Sequence[str]:
        """The columns that are needed. `TableError` when one is missing or not certain."""
        layout, members = self._reader.layout(self._file, names)
        self._members, names = members, members.long_names if members else names
        if isinstance(layout, str):
            wide = self._wide = self._reader.wide_table(names)
            self.columns = wide.columns(layout)
            self._date += date_of(names, wide.time)
            return [wide.time, *self._date, *(one.column for one in wide.series)]
        self.columns = layout
        used = list(dict.fromkeys(name for names in layout.roles.values() for name in names))
        used = [name for name in used if name in names]
        self._date += date_of([name for name in names if name not in used], layout.roles["time"][0])
        used += self._date
        used += [RECORDED] if layout.recorded else []
        return members.needed(used) if members else used

    def reports(self, batch: TableBatch) -> TableBatch:
        """A batch with a row for each report, of the metric that is judged."""
        batch = self._with_dates(self._members.long(batch) if self._members else batch)
        if not self._begun:
            self.columns = self._with_index(batch)
            self.columns, self._metric = self._reader.begin(self._file, batch, self.columns)
            self._begun = True
        if self.columns.one("node") == FILE and FILE not in batch.columns:
            batch = self._reader.with_file(batch)
        if self._wide:
            batch = self._wide.long(batch, self.columns.measure)
        return batch if self._metric is None else self._metric.select(batch)

    def _with_index(self, batch: TableBatch) -> Columns:
        """The columns; where the index of a wide table is no time, its numbers are those of steps. `TableError` for
        such an index of any other table."""
        time = self._wide.time if self._wide else self.columns.roles["time"][0]
        if not is_index(time) or "time" in self._reader.chosen or are_dates(batch.columns[time]):
            return self.columns
        if self._wide:
            return replace(self.columns, steps=True)
        raise TableError(self._file, INDEX_IS_NO_TIME)

    def forms(self, batch: TableBatch) -> tuple[Clock, Form]:
        """How the times and the values of the file are written, by its first rows."""
        if self._clock is None:
            columns = self.columns
            self._clock = clock_of(batch.columns[columns.roles["time"][0]], columns.per_second)
            if self._clock.misnamed:
                self._reader.reading.doubt(MISNAMED)
            self._form = form_of(batch.columns[columns.value])
            if self._form.unit and columns.measure == "step_seconds":
                self.columns = replace(columns, seconds=unit_of(self._form.unit) or columns.seconds)
        return self._clock, self._form

    def check(self, batch: TableBatch, rows: BatchRows, kept: Ints) -> None:
        """Note what the rows that are used say about metrics."""
        if self._metric is not None:
            self._metric.check(batch, rows.source, kept)

    def finish(self) -> None:
        """End the file. `TableError` if no row is of the metric."""
        if self._metric is not None:
            self._metric.finish()

    def _with_dates(self, batch: TableBatch) -> TableBatch:
        """A batch with whole times, where dates have a column of their own."""
        time = self._wide.time if self._wide else self.columns.roles["time"][0]
        joined = with_dates(batch.columns[self._date[0]], batch.columns[time]) if self._date else None
        if joined is None:
            return batch
        self.columns = self.columns.with_date(self._date[0])
        return replace(batch, columns={**batch.columns, time: joined})


def _title(file: str) -> str:
    """What the name of a file says of its values."""
    return _EXPORTED.sub("", short_names([file])[0])


def _of_tag(file: str, names: Sequence[str], chosen: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """What the column `value` holds where no other name says it: by the tag at the end of the name that TensorBoard
    gives a file, in which a group may stand first, or else by the whole name, or that of its folder."""
    tag = _TAGGED.search(PurePath(file).name)
    values = [name for name in names if name.strip().lower() == "value"]
    if len(values) != 1 or not chosen.keys().isdisjoint((*MEASURES, "metric")) or any(map(says_value, names)):
        return {}
    texts = (_title(file), PurePath(file).parent.name)
    if tag:
        texts = (tag["tag"].replace("_", " "), tag["tag"].replace("_", "/", 1))
    measure = next(filter(None, map(measure_named, texts)), None)
    return {measure: values} if measure else {}
