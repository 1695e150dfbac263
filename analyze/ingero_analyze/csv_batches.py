"""Reads CSV as batches of columns, as it arrives in a stream."""

import codecs
import csv
import io
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_analyze import csv_tables, exposition, json_tables, log_lines
from ingero_analyze.json_tables import Row
from ingero_analyze.object_batches import CountedStream, object_batches
from ingero_analyze.table_batch import BATCH_BYTES, Choose, Skip, TableBatch, as_text, chosen
from ingero_analyze.table_errors import TableError

SAMPLE_BYTES: Final = 1 << 16
"""Bytes at the begin of a text that show how it is delimited."""

SENTENCE: Final = 8
"""Words from which text is no name of a column, if lines of a log follow."""

MOST_TEXT: Final = 1 << 30
"""Largest text that is read at once, unpacked."""


def csv_batches(
    file: str, first: bytes, stream: Any, choose: Choose, skip: Skip | None, json: bool,
    consumed: Callable[[], int] | None,
) -> Iterator[TableBatch]:  # fmt: skip
    """Batches of CSV whose first line is read already."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    sample = first + stream.read(SAMPLE_BYTES)
    if not sample.strip():
        raise TableError(file, "the file is empty")
    try:
        sample[: sample.find(b"\n")].decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TableError(file, "the first row is not UTF-8 text; is this a CSV file?") from None
    text = sample.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    before, header, delimiter = csv_tables.header_of(text)
    if not header:
        raise TableError(file, csv_tables.NO_TABLE)
    lines = text.splitlines(keepends=True)
    names, more = csv_tables.with_levels(
        _names(file, header, delimiter), "".join(lines[before + 1 : before + 1 + csv_tables.MOST_TITLES]), delimiter
    )
    before += more
    below = "".join(lines[before + 1 :])
    whole = below if len(sample) < SAMPLE_BYTES else below[: below.rfind("\n") + 1]
    regular = csv_tables.is_regular(whole, delimiter, len(names))
    if json and (not regular or is_no_header(header, delimiter)) and log_lines.are_logs(text):
        yield from object_batches(file, sample, stream, choose, skip, consumed, log_lines.rows_of)
        return
    series = _column_of_series(names, whole, delimiter) if json else None
    if series is not None or not regular:
        yield from object_batches(file, sample, stream, choose, skip, consumed, partial(_irregular, file, series))
        return
    counted = CountedStream(stream, sample)
    for _ in range(before + 1):
        counted.readline()
    wanted = list(chosen(file, names, choose))
    ragged: list[TableError] = []
    skipped: list[int] = []

    def refuse(row: Any) -> str:
        text = f"{row.actual_columns} values where {row.expected_columns} columns were expected"
        if lines := row.text.rstrip("\r\n").count("\n"):
            ragged.append(TableError(file, csv_tables.open_quote(lines + 1), row.number + before + 1))
            return "error"
        error = TableError(file, text, row.number + before + 1)
        if skip is None:
            ragged.append(error)
            return "error"
        skip(error)
        skipped.append(row.number + before + 1)
        return "skip"

    unique = [name if names.index(name) == place else f"{name} {place}" for place, name in enumerate(names)]
    row = before + 2
    try:
        reader = arrow_csv.open_csv(
            counted,
            read_options=arrow_csv.ReadOptions(block_size=BATCH_BYTES, column_names=unique, use_threads=False),
            parse_options=arrow_csv.ParseOptions(
                delimiter=delimiter, invalid_row_handler=refuse, ignore_empty_lines=False
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=wanted, column_types={name: pa.binary() for name in wanted}
            ),
        )
        for found in reader:
            size = found.num_rows
            places = np.setdiff1d(np.arange(size + len(skipped)), np.array(skipped, np.int64) - row)[:size]
            yield _batch(file, row, found, wanted, consumed() if consumed else counted.consumed, places, skip)
            row += int(places[-1]) + 1 if size else 0
            skipped[:] = [number for number in skipped if number >= row]
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        if ragged:
            raise ragged[0] from None
        long = f'a row of more than {BATCH_BYTES >> 20} MiB; perhaps a quotation mark (") is not closed'
        raise TableError(
            file, f"after row {row - 1}: {long if 'straddl' in str(error) else str(error)[:200]}"
        ) from None


def is_no_header(line: str, delimiter: str) -> bool:
    """Whether a line may be one of a log: its cells are words or a sentence, or it is one."""
    sentence = any(len(cell.split()) >= SENTENCE for cell in line.split(delimiter))
    return delimiter == " " or sentence or log_lines.has_values(line)


def _names(file: str, header: str, delimiter: str) -> list[str]:
    try:
        bare = csv_tables.within(header, header, delimiter).strip()
        names = next(csv.reader([bare], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error as error:
        raise TableError(file, f"the first row is not CSV: {error}") from None
    return [name.strip() for name in names]


def _column_of_series(names: Sequence[str], text: str, delimiter: str) -> str | None:
    """The column whose cells name a series of Prometheus, or a line of a log, with its labels, as Grafana writes rows
    of these."""
    first = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True), [])
    found = [name for name, cell in zip(names, first, strict=False) if _labels_of(cell, names)]
    return found[0] if len(found) == 1 else None


def _labels_of(cell: str, names: Container[str]) -> Row | None:
    """The labels of a series, or a JSON object of those of a line of a log, if cells with such `names` hold that;
    `None` for anything else."""
    logged = cell.startswith("{") and any(name in names for name in log_lines.LINES)
    return exposition.labels_of(cell) or (json_tables.object_of(cell.encode()) if logged else None)


def _irregular(
    file: str, series: str | None, first: bytes, stream: json_tables.LineStream, fail: json_tables.Fail
) -> Iterator[tuple[int, Row]]:
    """Rows of CSV with titles, padding or quotes that only Python's reader knows, or of labelled `series`."""
    data = first + stream.read(MOST_TEXT)
    columns, rows = csv_tables.read_csv(file, data.decode("utf-8-sig", "replace"), points=False)
    for line, row in rows:
        if row:
            labels = None if series is None else _labels_of(row.get(series, ""), row)
            yield line, log_lines.with_line({**row, **labels}) if labels else row
        else:
            fail(f"more values than the {len(columns)} columns", line)


def _batch(
    file: str, row: int, found: Any, wanted: Sequence[str], consumed: int, places: npt.NDArray[np.int64],
    skip: Skip | None,
) -> TableBatch:  # fmt: skip
    """Rows of CSV as text, without those that have no value in any column that is used, such as empty lines."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given = [np.asarray(pc.not_equal(found.column(place), b"")) for place in range(len(wanted))]
    kept = np.flatnonzero(np.logical_or.reduce(given)) if wanted else np.arange(found.num_rows)
    rows = found if len(kept) == found.num_rows else found.take(pa.array(kept))
    raw = TableBatch(file, row, dict(zip(wanted, rows.columns, strict=True)), len(kept), consumed, places[kept])
    return as_text(raw, wanted, skip)
