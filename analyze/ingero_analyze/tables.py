"""Reads CSV and Parquet as batches of text and number columns, with errors that name file, row and column."""

import codecs
import csv
import io
import re
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
import numpy.typing as npt

from ingero_analyze import csv_tables, exposition, json_tables, log_lines
from ingero_analyze.json_tables import Row
from ingero_analyze.packed import PackedError, unpacked
from ingero_analyze.table_errors import TableError, place_of

BATCH_BYTES: Final = 4 << 20
BATCH_ROWS: Final = 1 << 16

LATEST: Final = 1e11
"""Largest time in seconds, some three thousand years; times in milliseconds and finer units since 1970 are larger."""

SAMPLE_BYTES: Final = 1 << 16
"""Bytes at the begin of a text that show how it is delimited."""

SENTENCE: Final = 8
"""Words from which text is no name of a column, if lines of a log follow."""

MARKED_BYTES: Final = 1 << 20
"""How much of a file is searched for what shows its kind: logs begin with pages of settings."""

MOST_TEXT: Final = 1 << 30
"""Largest text that is read at once, unpacked."""

PARQUET: Final = (".parquet", ".pq", ".parq")
_MARKED_UP: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*<[?!A-Za-z]")
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\x81\x8d\x8f\x90\x9d]")
"""Bytes that no text in the code page of western Europe has."""

_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OTHERS: Final = {
    b"\xd0\xcf\x11\xe0": "a workbook of a spreadsheet: save the sheet as CSV",
    b"PAR1": "a Parquet file: its name must end in .parquet",
    b"ARROW1": "an Arrow or Feather file: write the table as Parquet or CSV",
    b"\xff\xff\xff\xff": "a stream of Arrow, or something else that is no text: write the table as Parquet or CSV",
    b"ORC": "an ORC file: write the table as Parquet or CSV",
    b"SQLite format 3": "a database of SQLite: write the table as CSV, as `sqlite3 -csv -header` does",
    b"\x93NUMPY": "an array of NumPy, which has no names: write it as CSV, with a time and the names of its nodes",
    b"\x89HDF": "an HDF5 file: write the table as Parquet or CSV",
    b"\x80\x04\x95": "a pickle of Python, which may run anything: write the table as Parquet or CSV",
    b"\x80\x05\x95": "a pickle of Python, which may run anything: write the table as Parquet or CSV",
}
"""How files of other kinds begin, and what to do."""


@dataclass(frozen=True)
class TableBatch:
    """Some rows of one file. `first_row` is the number of the first one, counted like lines in an editor.

    `places`: the place of every row, counted from the first one, where rows without values are left out.
    """

    file: str
    first_row: int
    columns: Mapping[str, Any]
    rows: int
    consumed: int
    places: npt.NDArray[np.int64] | None = None

    def error(self, index: int, column: str, text: str) -> TableError:
        """An error at a row of this batch."""
        return TableError(self.file, text, self._row(index), column)

    def place(self, index: int, column: str | None = None) -> str:
        """A row of this batch, in words."""
        return place_of(self.file, self._row(index), column)

    def _row(self, index: int) -> int:
        return self.first_row + (index if self.places is None else int(self.places[index]))

    def text(self, name: str) -> list[str]:
        """A column as text; empty where a value is missing."""
        values: list[str] = self.texts(name).to_pylist()
        return values

    def codes(self, name: str, known: dict[str, int]) -> npt.NDArray[np.int64]:
        """A text column as numbers into `known`, which grows."""
        import pyarrow.compute as pc

        encoded = pc.dictionary_encode(self.texts(name))
        numbers = [known.setdefault(text, len(known)) for text in encoded.dictionary.to_pylist()]
        return np.array(numbers, np.int64)[np.asarray(encoded.indices)] if numbers else np.zeros(0, np.int64)

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """A column as numbers; NaN where a value is missing. `TableError` names the first that is not a number."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.columns[name]
        if is_text(column):
            column = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(column, ""), None, column)
        try:
            numbers = pc.cast(column, pa.float64(), safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            index = self._first_without(column, pa.float64(), safe=False)
            raise self.error(index, name, f"{str(column[index])[:40]!r} is not a number") from None
        return np.asarray(pc.fill_null(numbers, float("nan")), np.float64)

    def numbers_or_nan(self, name: str) -> npt.NDArray[np.float64]:
        """A column as numbers; NaN where a value is missing or not a number."""
        import pyarrow.compute as pc

        try:
            return self.numbers(name)
        except TableError:
            encoded = pc.dictionary_encode(self.texts(name))
            values = [_number(text) for text in encoded.dictionary.to_pylist()]
            return np.array(values, np.float64)[np.asarray(encoded.indices, np.int64)]

    def texts(self, name: str) -> Any:
        """A column as an array of text; empty where a value is missing. `TableError` names the first that is none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.columns[name]
        try:
            return pc.fill_null(pc.cast(column, pa.string()), "")
        except pa.ArrowNotImplementedError:
            raise TableError(self.file, f"{column.type} is neither text nor a number", column=name) from None
        except pa.ArrowInvalid:
            raise self.error(self._first_without(column, pa.string()), name, "not UTF-8 text") from None

    def _first_without(self, column: Any, kind: Any, *, safe: bool = True) -> int:
        """The first row whose value cannot be converted; the first row if every one can."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for index in range(self.rows):
            try:
                pc.cast(column.slice(index, 1), kind, safe=safe)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                return index
        return 0


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def is_text(column: Any) -> bool:
    """Whether a column of Arrow holds text."""
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


Choose = Callable[[Sequence[str]], Sequence[str]]
"""Which of a file's columns to read. Raises `ValueError` if they are not the right ones."""

Rows = tuple[list[str], Iterator[tuple[int, Row]]]
"""Names of columns, and rows with their line numbers."""

RowsOf = Callable[[bytes, json_tables.LineStream, json_tables.Fail], Iterator[tuple[int, Row]]]
"""Reads rows of a stream, of which something was read before, with their line numbers."""

Marked = tuple[Callable[[str], bool], RowsOf]
"""Whether a text that begins so is one of some kind, and what reads its rows."""

ReadText = Callable[[str], Rows | None]
"""Reads text of one kind; None for any other."""

Skip = Callable[[TableError], None]
"""Takes note of a row that cannot be read and is left out."""


def read_batches(
    file: str, required: Sequence[str], optional: Sequence[str], skip: Skip | None = None
) -> Iterator[TableBatch]:
    """Stream a file; `-` is CSV on standard input. CSV may be packed. Columns not requested are not read.

    `TableError` for a missing required column or a malformed row, which is left out with `skip`; `OSError` as usual.
    """
    return read_columns(file, lambda names: _wanted(names, required, optional), skip)


def read_columns(
    file: str, choose: Choose, skip: Skip | None = None, *, json: bool = False, marked: Sequence[Marked] = ()
) -> Iterator[TableBatch]:  # fmt: skip
    """Stream some columns of a file as `read_batches` does; with `skip`, malformed rows are left out.

    With `json`, a file that begins with a bracket is read as JSON, and samples of Prometheus and lines of logs are
    rows. `marked`: kinds of texts that are known by their begin, and what reads their rows.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise TableError(file, "reading histories needs pyarrow: pip install pyarrow") from None
    if Path(file).suffix.lower() in PARQUET:
        yield from _parquet(file, choose, skip)
        return
    with _opened(file) as (stream, consumed):
        source: BinaryIO | _Counted = stream
        if marked:
            begin = stream.read(MARKED_BYTES)
            source = _Counted(stream, begin)
            text = begin.decode("utf-8", "replace")
            for is_known, rows_of in marked:
                if is_known(text):
                    yield from _objects(file, b"", source, choose, skip, consumed, rows_of)
                    return
        yield from _text_rows(file, source, choose, skip, json, consumed)


def read_rows(
    file: str,
    advance: Callable[[int], None],
    other: ReadText = lambda text: None,
    is_value: json_tables.IsValue | None = None,
) -> Rows:
    """The columns of a file, and its rows as text with their line numbers (numbers of rows in JSON and Parquet).

    `other` reads text that is no table, and returns None for what may be one; `is_value` knows by their names what
    cells of JSON were measured. Rows that hold something else are empty. `TableError` if the file holds no table,
    `OSError` as usual.
    """
    if Path(file).suffix.lower() in PARQUET:
        return _parquet_columns(file), _parquet_rows(file, advance)
    with _opened(file) as (stream, _):
        data = stream.read(MOST_TEXT + 1)
    if len(data) > MOST_TEXT:
        raise TableError(file, f"more than {MOST_TEXT >> 20} MiB")
    refuse_other_kinds(file, data)
    try:
        text = data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
    except UnicodeDecodeError:
        raise TableError(file, "neither text nor Parquet") from None
    if file != "-":
        advance(Path(file).stat().st_size)
    if not text.strip():
        raise TableError(file, "the file is empty")
    if (known := other(text)) is not None:
        return known
    begin, body = text[:SAMPLE_BYTES], text.strip()
    if log_lines.is_log(body.partition("\n")[0]) or (
        body[0] not in "[{" and _is_no_header(*csv_tables.header_of(begin)[1:]) and log_lines.are_logs(begin)
    ):
        rows = list(log_lines.rows_of(b"", io.BytesIO(text.encode()), lambda failure, line: None))
        return json_tables.names_of(row for _, row in rows), iter(rows)
    if body[0] not in "[{":
        return csv_tables.read_csv(file, text, points=True)
    found: list[tuple[int, Row]] = []
    failures: list[str] = []

    def fail(failure: str, row: int) -> None:
        failures.append(failure)
        found.append((row, {}))

    for item in json_tables.rows_of(b"", io.BytesIO(body.encode()), fail, is_value):
        found.append(item)
    columns = json_tables.names_of(row for _, row in found)
    if not columns:
        raise TableError(file, failures[0] if failures else "no JSON object with values")
    return columns, iter(found)


@contextmanager
def _opened(file: str) -> Iterator[tuple[BinaryIO, Callable[[], int] | None]]:
    """The bytes of a file, unpacked, and for a packed one what counts the bytes read of it."""
    if file == "-":
        yield io.BytesIO(b"".join(_arriving(standard_input()))), None
        return
    try:
        with unpacked(Path(file)) as content:
            yield content
    except PackedError as error:
        raise TableError(file, str(error)) from None


def standard_input() -> io.BufferedReader:
    """Standard input as bytes. Raises `TableError` where it is closed."""
    if sys.stdin is None:
        raise TableError("-", "standard input is closed")
    return cast(io.BufferedReader, sys.stdin.buffer)


def _arriving(stream: io.BufferedReader) -> Iterator[bytes]:
    """A stream in pieces, as they arrive. Between two of them Ctrl-C gets through; while Arrow waits it does not."""
    while piece := stream.read1(BATCH_BYTES):
        yield piece


def _wanted(names: Sequence[str], required: Sequence[str], optional: Sequence[str]) -> list[str]:
    for name in required:
        if name not in names:
            raise ValueError(f"there is no column {name!r} (there are: {', '.join(names)[:200]})")
    doubled = [name for name in (*required, *optional) if list(names).count(name) > 1]
    if doubled:
        raise ValueError(f"the column {doubled[0]} is there twice")
    return [name for name in (*required, *optional) if name in names]


def _chosen(file: str, names: Sequence[str], choose: Choose) -> Sequence[str]:
    try:
        return choose(names)
    except ValueError as error:
        raise TableError(file, str(error)) from None


class _Counted:
    """A binary stream that counts the bytes read; `ahead` was read from it before."""

    def __init__(self, stream: Any, ahead: bytes = b"") -> None:
        self._stream, self._ahead = stream, io.BytesIO(ahead)
        self.consumed = 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        data = self._ahead.read(size)
        data += bytes(self._stream.read(size if size < 0 else size - len(data)))
        self.consumed += len(data)
        return data

    def readline(self, size: int = -1) -> bytes:
        data = self._ahead.readline()
        if not data.endswith(b"\n"):
            data += bytes(self._stream.readline(size))
        self.consumed += len(data)
        return data


def refuse_other_kinds(file: str, first: bytes) -> None:
    """`TableError` for a file that begins like a workbook or Parquet, with what to do."""
    for magic, what in _OTHERS.items():
        if first.startswith(magic):
            raise TableError(file, what)
    if _MARKED_UP.match(first):
        raise TableError(file, "XML or HTML: save the table as CSV or JSON")
    if first[257:262] == b"ustar":
        raise TableError(file, "a tar archive: unpack it and name its folder")


def _text_rows(
    file: str, stream: Any, choose: Choose, skip: Skip | None, json: bool, consumed: Callable[[], int] | None = None
) -> Iterator[TableBatch]:
    """Batches of CSV, or of JSON; `consumed` counts the bytes of the file where the stream unpacks it."""
    first = stream.readline(1 << 20)
    refuse_other_kinds(file, first)
    if (coding := _coding(first)) is not None:
        stream = io.BytesIO(_recoded(file, first, stream, coding))
        first = stream.readline(1 << 20)
    if json and exposition.is_exposition(first):
        yield from _objects(file, first, stream, choose, skip, consumed, exposition.rows_of)
    elif json and log_lines.is_log(first.decode("utf-8", "replace")):
        yield from _objects(file, first, stream, choose, skip, consumed, log_lines.rows_of)
    elif json and first.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        first = first.removeprefix(b"\xef\xbb\xbf")
        yield from _objects(file, first, stream, choose, skip, consumed, log_lines.rows_of_objects)
    else:
        yield from _csv(file, first, stream, choose, skip, json, consumed)


def _coding(first: bytes) -> str | None:
    """How a text is encoded that begins with this line, if it is not in UTF-8 or ends its lines with CR alone."""
    if first.startswith(_UTF_16):
        return "utf-16"
    if b"\0" in first[:2]:
        return "utf-16-be" if first[:1] == b"\0" else "utf-16-le"
    try:
        first[:SAMPLE_BYTES].rpartition(b"\n" if b"\n" in first[:SAMPLE_BYTES] else b"\r")[0].decode()
    except UnicodeDecodeError:
        return None if _NO_TEXT.search(first[:SAMPLE_BYTES]) else "cp1252"
    return "utf-8" if b"\r" in first.rstrip(b"\r\n") and b"\n" not in first[:SAMPLE_BYTES] else None


def _recoded(file: str, first: bytes, stream: Any, coding: str) -> bytes:
    """A file in UTF-16 or a code page, as spreadsheets and PowerShell write it, in UTF-8, with ends of lines."""
    data: bytes = first + stream.read(json_tables.MOST_BYTES)
    try:
        text = data.decode(coding)
    except UnicodeDecodeError:
        raise TableError(
            file, f"neither UTF-8 nor {coding}, or more than {json_tables.MOST_BYTES >> 20} MiB"
        ) from None
    return (text if "\n" in text else text.replace("\r", "\n")).encode()


def _objects(
    file: str, first: bytes, stream: Any, choose: Choose, skip: Skip | None, consumed: Callable[[], int] | None,
    rows_of: RowsOf,
) -> Iterator[TableBatch]:  # fmt: skip
    """Batches of objects. Cells whose name the first batch does not have are left out."""

    failures: list[str] = []

    def fail(text: str, row: int) -> None:
        error = TableError(file, text, row)
        if skip is None:
            raise error
        failures[:] = failures or [text]
        skip(error)

    counted = _Counted(stream)
    found = rows_of(first, counted, fail)
    wanted: Sequence[str] | None = None
    while part := list(islice(found, BATCH_ROWS)):
        rows = [row for _, row in part]
        wanted = _chosen(file, json_tables.names_of(rows), choose) if wanted is None else wanted
        places = np.array([number for number, _ in part], np.int64) - part[0][0]
        columns = json_tables.columns_of(rows, wanted)
        yield TableBatch(
            file, part[0][0], columns, len(rows), consumed() if consumed else len(first) + counted.consumed, places
        )
    if wanted is None:
        raise TableError(file, failures[0] if failures else "there is no JSON object with cells of a row")


def _csv(
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
    if json and (not regular or _is_no_header(header, delimiter)) and log_lines.are_logs(text):
        yield from _objects(file, sample, stream, choose, skip, consumed, log_lines.rows_of)
        return
    series = _column_of_series(names, whole, delimiter) if json else None
    if series is not None or not regular:
        yield from _objects(file, sample, stream, choose, skip, consumed, partial(_irregular, file, series))
        return
    counted = _Counted(stream, sample)
    for _ in range(before + 1):
        counted.readline()
    wanted = list(_chosen(file, names, choose))
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


def _is_no_header(line: str, delimiter: str) -> bool:
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
    return _as_text(raw, wanted, skip)


def _as_text(raw: TableBatch, names: Sequence[str], skip: Skip | None) -> TableBatch:
    """The batch with these columns as text; with `skip`, without the rows of which one is no text."""
    try:
        return replace(raw, columns={**raw.columns, **{name: raw.texts(name) for name in names}})
    except TableError:
        if skip is None:
            raise
    import pyarrow as pa

    kept = np.ones(raw.rows, np.bool_)
    for name in names:
        for index in np.flatnonzero(kept).tolist():
            try:
                (raw.columns[name][index].as_py() or b"").decode()
            except UnicodeDecodeError:
                kept[index] = False
                skip(raw.error(index, name, "not UTF-8 text"))
    rows = np.flatnonzero(kept)
    places = rows if raw.places is None else raw.places[rows]
    columns = {name: column.take(pa.array(rows)) for name, column in raw.columns.items()}
    return _as_text(replace(raw, columns=columns, rows=len(rows), places=places), names, None)


def _parquet_columns(file: str) -> list[str]:
    """The columns of a file that hold single values."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise TableError(file, "reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        return [column.name for column in parquet.read_schema(file) if not pa.types.is_nested(column.type)]
    except (pa.ArrowException, OSError) as error:
        raise _no_parquet(file, error) from None


def _parquet_rows(file: str, advance: Callable[[int], None]) -> Iterator[tuple[int, Row]]:
    consumed = 0
    for batch in read_batches(file, (), _parquet_columns(file)):
        texts = {name: batch.text(name) for name in batch.columns}
        for index in range(batch.rows):
            yield batch.first_row + index, {name: values[index] for name, values in texts.items()}
        advance(batch.consumed - consumed)
        consumed = batch.consumed


def _no_parquet(file: str, error: Exception) -> Exception:
    """What is wrong with a file; the error itself if it is one of the file system."""
    if isinstance(error, OSError) and error.errno:
        return error
    return TableError(file, f"not a Parquet file, or damaged: {str(error)[:200]}")


def _flat(table: Any) -> Any:
    """A table of Arrow with the fields of structures as columns, such as `resource.host`."""
    from pyarrow import types

    while any(types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def _parquet(file: str, choose: Choose, skip: Skip | None) -> Iterator[TableBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    try:
        source = parquet.ParquetFile(file)
        wanted = list(_chosen(file, _flat(source.schema_arrow.empty_table()).column_names, choose))
        row, size = 1, Path(file).stat().st_size
        total = max(1, source.metadata.num_rows)
        for found in source.iter_batches(BATCH_ROWS, columns=wanted):
            flat = _flat(pa.Table.from_batches([found]))
            columns = {}
            for name in wanted:
                column = flat.column(flat.schema.get_field_index(name)).chunk(0)
                coded = pa.types.is_dictionary(column.type)
                columns[name] = pc.cast(column, column.type.value_type) if coded else column
            done = row - 1 + found.num_rows
            batch = TableBatch(file, row, columns, found.num_rows, size * done // total)
            yield _as_text(batch, [name for name in wanted if pa.types.is_binary(columns[name].type)], skip)
            row += found.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _no_parquet(file, error) from None
