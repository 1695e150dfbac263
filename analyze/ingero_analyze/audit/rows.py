"""Reads results of a benchmark, row by row, from CSV, JSON, JSON lines and Parquet, however they are delimited."""

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from ingero_analyze.audit.columns import unit_of
from ingero_analyze.tables import TableError, read_batches, refuse_other_kinds, standard_input

Row = dict[str, str]
MAX_BYTES: Final = 1 << 30
"""Largest file, unpacked."""

DELIMITERS: Final = ",;\t|"
MOST_TITLES: Final = 20
"""Most lines before the header, such as the title of a sheet."""

MISSING: Final = frozenset(
    ("", "-", "na", "n/a", "nan", "null", "none", "[n/a]", "[not supported]", "not available", "?")
)
_CELL: Final = re.compile(r"([-+]?(?:[\d.,'’_\s]*\d\.?)(?:[eE][-+]?\d+)?)\s*(\D*)")
_NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_THOUSANDS: Final = re.compile(r"[-+]?\d{1,3}([,'’_\s])\d{3}(?:\1\d{3})*(?:\.\d+)?")
_POINT_THOUSANDS: Final = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+,\d+")
_DECIMAL_COMMA: Final = re.compile(r"[-+]?\d+,\d+")
_SURELY_DECIMAL: Final = re.compile(
    r"\s*[-+]?(?:\d+,(?:\d{1,2}|\d{4,})|\d{4,},\d+|\d{1,3}(?:\.\d{3})+,\d+)(?![\d.,]).*"
)
_SURELY_THOUSANDS: Final = re.compile(r"\s*[-+]?\d{1,3}(?:,\d{3})*(?:,\d{3},\d{3}|\.\d+)(?![\d.,]).*")
_EITHER: Final = re.compile(r"(?<![\d.,])(\d{1,3}),(?=\d{3}(?![\d.,]))")
_CLOCK: Final = re.compile(r"(?:(\d+):)?(\d{1,3}):(\d\d(?:[.,]\d+)?)")
_DURATION: Final = re.compile(r"(?=\d+[hm])(?:(\d+)h)?(?:(\d+)m)?(\d+(?:\.\d+)?)s")


def quantity_of(text: str) -> tuple[float, str] | None:
    """The finite number in a cell, and the unit that may follow it; None if it is missing.

    Durations such as 1:34.20 and 1m34.2s are in seconds. `ValueError` if it is no number, or no known unit follows.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text), ""
    if text.lower() in MISSING:
        return None
    duration = _CLOCK.fullmatch(text) or _DURATION.fullmatch(text)
    if duration:
        hours, minutes, seconds = (float((part or "0").replace(",", ".")) for part in duration.groups())
        return 3600 * hours + 60 * minutes + seconds, "s"
    cell = _CELL.fullmatch(text)
    value = _value(cell.group(1)) if cell else math.nan
    if cell is None or not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is not a number")
    follows = cell.group(2).strip()
    unit = unit_of(follows) if follows else ""
    if unit is None:
        raise ValueError(f"{text[:40]!r} is a number with {follows[:40]!r}, which is no known unit")
    return value, unit


def _value(text: str) -> float:
    """The number in a text without unit; NaN if it is none."""
    thousands = _THOUSANDS.fullmatch(text)
    if thousands:
        text = text.replace(thousands.group(1), "")
    elif _POINT_THOUSANDS.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    elif _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def read_rows(file: str, advance: Callable[[int], None]) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """The columns of a file, and its rows with their line numbers (numbers of rows in JSON arrays and Parquet).

    `TableError` if it holds no table, `OSError` as usual.
    """
    if Path(file).suffix.lower() in (".parquet", ".pq"):
        return _parquet(file, advance)
    data = standard_input().read(MAX_BYTES + 1) if file == "-" else _unpacked(file)
    if len(data) > MAX_BYTES:
        raise TableError(file, f"more than {MAX_BYTES >> 20} MiB")
    refuse_other_kinds(file, data)
    try:
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        raise TableError(file, "neither text nor Parquet") from None
    if file != "-":
        advance(Path(file).stat().st_size)
    start = text.lstrip()[:1]
    if not start:
        raise TableError(file, "the file is empty")
    return _json(file, text) if start in "[{" else _csv(file, text)


def _unpacked(file: str) -> bytes:
    with Path(file).open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        try:
            return gzip.GzipFile(fileobj=stream).read(MAX_BYTES + 1) if packed else stream.read(MAX_BYTES + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TableError(file, f"not whole: {error}") from None


def _csv(file: str, text: str) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    lines = io.StringIO(text, newline="")
    skipped, header, delimiter = _header(text)
    if not header:
        raise TableError(file, "only comments, and no table")
    for _ in range(skipped + 1):
        lines.readline()
    reader = csv.reader(chain([header], lines), delimiter=delimiter, skipinitialspace=True)
    try:
        columns = [name.strip() for name in next(reader)]
    except (csv.Error, StopIteration) as error:
        raise TableError(file, f"line {skipped + 1}: {error}") from None
    if len(columns) < 2:
        raise TableError(file, f"line {skipped + 1}: one column, {columns[0][:40]!r}; a unit and a value are needed")
    if len(set(columns)) < len(columns):
        columns = [
            name if columns.index(name) == place else f"{name} {place + 1}" for place, name in enumerate(columns)
        ]
    rows = _csv_rows(file, reader, columns, skipped)
    commas = (delimiter != "," or '"' in text) and _EITHER.search(text)
    return columns, _decimal(rows, _with_decimal_commas(text, delimiter)) if commas else rows


def _header(text: str) -> tuple[int, str, str]:
    """How many lines are before the header, the header and the delimiter.

    The header has two cells or more; before it are titles, comments and Excel's "sep=;". Where no delimiter makes two
    cells, blanks separate columns.
    """
    found, first, given = (0, "", ","), None, ""
    for skipped, line in enumerate(io.StringIO(text, newline="")):
        if skipped > MOST_TITLES and first is not None:
            break
        if not line.strip() or line.startswith("#"):
            continue
        if line.lower().startswith("sep=") and len(line.strip()) == 5:
            given = line[4]
            continue
        delimiter = given or max(DELIMITERS, key=line.count)
        if sum(map(bool, map(str.strip, line.split(delimiter)))) > 1:
            return skipped, line, delimiter
        first = (skipped, line) if first is None else first
    if first is not None:
        many = len(first[1].split()) > 1
        found = (
            first[0],
            first[1].strip() if many else first[1],
            " " if many else max(DELIMITERS, key=first[1].count),
        )
    return found


def _with_decimal_commas(text: str, delimiter: str) -> set[int]:
    """Columns in which commas are decimal ones: some surely are, and none surely separates thousands."""
    decimal, thousands = set[int](), set[int]()
    try:
        for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True):
            for place, cell in enumerate(cells):
                if "," in cell:
                    decimal |= {place} if _SURELY_DECIMAL.fullmatch(cell) else set()
                    thousands |= {place} if _SURELY_THOUSANDS.fullmatch(cell) else set()
    except csv.Error:
        pass
    return decimal - thousands


def _decimal(rows: Iterator[tuple[int, Row]], places: set[int]) -> Iterator[tuple[int, Row]]:
    """The rows with points for the decimal commas of some columns, where they could separate thousands."""
    for line, row in rows:
        yield (
            line,
            {
                name: _EITHER.sub(r"\1.", cell, count=1) if place in places else cell
                for place, (name, cell) in enumerate(row.items())
            },
        )


def _csv_rows(file: str, reader: Any, columns: Sequence[str], skipped: int) -> Iterator[tuple[int, Row]]:
    while True:
        line = skipped + reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise TableError(file, f"line {line}: {error}") from None
        if cells is None:
            return
        if not any(map(str.strip, cells)) or cells[0].startswith("#"):
            continue
        if len(cells) > len(columns) and any(map(str.strip, cells[len(columns) :])):
            yield line, {}
            continue
        yield line, dict(zip(columns, map(str.strip, cells), strict=False))


def _json(file: str, text: str) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    found: list[tuple[int, Any]] = []
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
        for line, one in enumerate(text.splitlines(), 1):
            try:
                found += [(line, json.loads(one))] if one.strip() else []
            except (ValueError, RecursionError):
                found.append((line, None))
    if isinstance(whole, dict):
        lists = [value for value in whole.values() if isinstance(value, list)]
        whole = lists[0] if len(lists) == 1 else [whole]
    if isinstance(whole, list):
        found = list(enumerate(whole, 1))
    rows = [(line, _flat(item) if isinstance(item, dict) else {}) for line, item in found]
    columns = list(dict.fromkeys(name for _, row in rows for name in row))
    if not columns:
        raise TableError(file, "no JSON object with values")
    return columns, iter(rows)


def _flat(item: dict[str, Any], before: str = "") -> Row:
    """Values of an object as text; those of objects in it with both names."""
    found = Row()
    for name, value in item.items():
        if isinstance(value, dict) and not before:
            found |= _flat(value, f"{name} ")
        elif value is not None and not isinstance(value, list | dict):
            found[_encodable(before + name)] = _encodable(str(value))
    return found


def _encodable(text: str) -> str:
    """The text with question marks for lone surrogates, which JSON may hold and no output can."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _parquet(file: str, advance: Callable[[int], None]) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise TableError(file, "reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        columns = [column.name for column in parquet.read_schema(file) if not pa.types.is_nested(column.type)]
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise TableError(file, f"not a Parquet file, or damaged: {str(error)[:200]}") from None
    return columns, _parquet_rows(file, columns, advance)


def _parquet_rows(file: str, columns: Sequence[str], advance: Callable[[int], None]) -> Iterator[tuple[int, Row]]:
    consumed = 0
    for batch in read_batches(file, (), columns):
        texts = {name: batch.text(name) for name in batch.columns}
        for index in range(batch.rows):
            yield batch.first_row + index, {name: values[index] for name, values in texts.items()}
        advance(batch.consumed - consumed)
        consumed = batch.consumed
