"""Reads CSV, JSON, lines and Parquet as batches of text and number columns, or as rows of text."""

import codecs
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from ingero_analyze import csv_tables, exposition, json_tables, log_lines
from ingero_analyze.csv_batches import MOST_TEXT, SAMPLE_BYTES, csv_batches, is_no_header
from ingero_analyze.json_tables import Row
from ingero_analyze.object_batches import CountedStream, RowsOf, object_batches
from ingero_analyze.packed import PackedError, unpacked
from ingero_analyze.parquet_tables import PARQUET, parquet_batches, parquet_columns, parquet_rows
from ingero_analyze.table_batch import BATCH_BYTES, Choose, Skip, TableBatch
from ingero_analyze.table_errors import TableError

LATEST: Final = 1e11
"""Largest time in seconds, some three thousand years; times in milliseconds and finer units since 1970 are larger."""

MARKED_BYTES: Final = 1 << 20
"""How much of a file is searched for what shows its kind: logs begin with pages of settings."""

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

Rows = tuple[list[str], Iterator[tuple[int, Row]]]
"""Names of columns, and rows with their line numbers."""

Marked = tuple[Callable[[str], bool], RowsOf]
"""Whether a text that begins so is one of some kind, and what reads its rows."""

ReadText = Callable[[str], Rows | None]
"""Reads text of one kind; None for any other."""


def read_columns(
    file: str, choose: Choose, skip: Skip | None = None, *, json: bool = False, marked: Sequence[Marked] = ()
) -> Iterator[TableBatch]:  # fmt: skip
    """Stream some columns of a file, packed or not; `-` is CSV on standard input.

    `TableError` for columns that are not the right ones or a malformed row, which is left out with `skip`; `OSError`
    as usual. With `json`, a file that begins with a bracket is read as JSON, and samples of Prometheus and lines of
    logs are rows. `marked`: kinds of texts that are known by their begin, and what reads their rows.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise TableError(file, "reading histories needs pyarrow: pip install pyarrow") from None
    if Path(file).suffix.lower() in PARQUET:
        yield from parquet_batches(file, choose, skip)
        return
    with _opened(file) as (stream, consumed):
        source: BinaryIO | CountedStream = stream
        if marked:
            begin = stream.read(MARKED_BYTES)
            source = CountedStream(stream, begin)
            text = begin.decode("utf-8", "replace")
            for is_known, rows_of in marked:
                if is_known(text):
                    yield from object_batches(file, b"", source, choose, skip, consumed, rows_of)
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
        return parquet_columns(file), parquet_rows(file, advance)
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
        body[0] not in "[{" and is_no_header(*csv_tables.header_of(begin)[1:]) and log_lines.are_logs(begin)
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
        yield from object_batches(file, first, stream, choose, skip, consumed, exposition.rows_of)
    elif json and log_lines.is_log(first.decode("utf-8", "replace")):
        yield from object_batches(file, first, stream, choose, skip, consumed, log_lines.rows_of)
    elif json and first.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        first = first.removeprefix(b"\xef\xbb\xbf")
        yield from object_batches(file, first, stream, choose, skip, consumed, log_lines.rows_of_objects)
    else:
        yield from csv_batches(file, first, stream, choose, skip, json, consumed)


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
