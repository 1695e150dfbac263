"""Reads CSV and Parquet as batches of text and number columns, with errors that name file, row and column."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

BATCH_BYTES: Final = 4 << 20
BATCH_ROWS: Final = 1 << 16


class TableError(ValueError):
    """A file cannot be read; the text names the place."""

    def __init__(self, file: str, text: str, row: int | None = None, column: str | None = None) -> None:
        place = file
        if row is not None:
            place += f", row {row}"
        if column is not None:
            place += f", column {column}"
        super().__init__(f"{place}: {text}")


@dataclass(frozen=True)
class TableBatch:
    """Some rows of one file. `first_row` is the number of the first one, counted like lines in an editor."""

    file: str
    first_row: int
    columns: Mapping[str, Any]
    rows: int
    consumed: int

    def error(self, index: int, column: str, text: str) -> TableError:
        """An error at a row of this batch."""
        return TableError(self.file, text, self.first_row + index, column)

    def text(self, name: str) -> list[str]:
        """A column as text; empty where a value is missing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = pc.fill_null(pc.cast(self.columns[name], pa.string()), "")
        values: list[str] = column.to_pylist()
        return values

    def codes(self, name: str, known: dict[str, int]) -> npt.NDArray[np.int64]:
        """A text column as numbers into `known`, which grows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = pc.fill_null(pc.cast(self.columns[name], pa.string()), "")
        encoded = pc.dictionary_encode(column)
        numbers = [known.setdefault(text, len(known)) for text in encoded.dictionary.to_pylist()]
        return np.array(numbers, np.int64)[np.asarray(encoded.indices)] if numbers else np.zeros(0, np.int64)

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """A column as numbers; NaN where a value is missing. `TableError` names the first that is not a number."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.columns[name]
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(column, ""), None, column)
        try:
            numbers = pc.cast(column, pa.float64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            for index, value in enumerate(column.to_pylist()):
                try:
                    if value is not None:
                        float(value)
                except (TypeError, ValueError):
                    raise self.error(index, name, f"{str(value)[:40]!r} is not a number") from None
            raise self.error(0, name, "not a column of numbers") from None
        return np.asarray(pc.fill_null(numbers, float("nan")), np.float64)

    def times(self, name: str) -> tuple[npt.NDArray[np.float64], bool]:
        """A column of seconds or RFC 3339 times as seconds, and whether it was the latter."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.columns[name]
        if pa.types.is_timestamp(column.type):
            return np.asarray(pc.cast(column, pa.timestamp("us")).cast(pa.int64()), np.float64) / 1e6, True
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)) or not self.rows:
            return self._present(self.numbers(name), name), False
        if "T" not in str(column[0]).upper() and ":" not in str(column[0]):
            return self._present(self.numbers(name), name), False
        try:
            moments = pc.cast(pc.utf8_trim_whitespace(column), pa.timestamp("us", tz="UTC"))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            for index, value in enumerate(column.to_pylist()):
                try:
                    pa.scalar(value, pa.string()).cast(pa.timestamp("us", tz="UTC"))
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                    raise self.error(index, name, f"{str(value)[:40]!r} is no RFC 3339 time with a zone") from None
            raise
        if moments.null_count:
            raise self.error(int(np.flatnonzero(np.asarray(pc.is_null(moments)))[0]), name, "a time is missing")
        return np.asarray(moments.cast(pa.int64()), np.float64) / 1e6, True

    def _present(self, values: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise self.error(int(bad[0]), name, "a time is missing or not finite")
        return values


def read_batches(file: str, required: Sequence[str], optional: Sequence[str]) -> Iterator[TableBatch]:
    """Stream a file; `-` is CSV on standard input. Columns that are not requested are not read.

    `TableError` for a missing required column or a malformed row, `OSError` as usual.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise TableError(file, "reading histories needs pyarrow: pip install pyarrow") from None
    if Path(file).suffix.lower() in (".parquet", ".pq"):
        yield from _parquet(file, required, optional)
    elif file == "-":
        yield from _csv("-", sys.stdin.buffer, required, optional)
    else:
        with Path(file).open("rb") as stream:
            yield from _csv(file, stream, required, optional)


def _wanted(file: str, names: Sequence[str], required: Sequence[str], optional: Sequence[str]) -> list[str]:
    for name in required:
        if name not in names:
            raise TableError(file, f"there is no column {name!r} (there are: {', '.join(names)[:200]})")
    doubled = [name for name in (*required, *optional) if list(names).count(name) > 1]
    if doubled:
        raise TableError(file, "this column is there twice", column=doubled[0])
    return [name for name in (*required, *optional) if name in names]


class _Counted:
    """A binary stream that counts the bytes read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.consumed = 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.consumed += len(data)
        return data


def _csv(file: str, stream: BinaryIO, required: Sequence[str], optional: Sequence[str]) -> Iterator[TableBatch]:
    import pyarrow as pa
    from pyarrow import csv

    counted = _Counted(stream)
    first = stream.readline(1 << 20)
    if not first.strip():
        raise TableError(file, "the file is empty")
    try:
        header = first.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise TableError(file, "the first row is not UTF-8 text; is this a CSV file?") from None
    names = [name.strip().strip('"').strip() for name in header.split(",")]
    wanted = _wanted(file, names, required, optional)
    ragged: list[str] = []

    def refuse(row: Any) -> str:
        ragged.append(f"{row.actual_columns} values where {row.expected_columns} columns were expected")
        return "error"

    unique = [name if names.index(name) == place else f"{name} {place}" for place, name in enumerate(names)]
    row = 2
    try:
        reader = csv.open_csv(
            counted,
            read_options=csv.ReadOptions(block_size=BATCH_BYTES, column_names=unique, use_threads=False),
            parse_options=csv.ParseOptions(invalid_row_handler=refuse),
            convert_options=csv.ConvertOptions(
                include_columns=wanted,
                column_types={name: pa.string() for name in wanted},
                strings_can_be_null=False,
            ),
        )
        for found in reader:
            columns = {name: found.column(place) for place, name in enumerate(wanted)}
            yield TableBatch(file, row, columns, found.num_rows, counted.consumed)
            row += found.num_rows
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        text = ragged[0] if ragged else str(error)[:200]
        raise TableError(file, f"after row {row - 1}: {text}") from None


def _parquet(file: str, required: Sequence[str], optional: Sequence[str]) -> Iterator[TableBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    try:
        source = parquet.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise TableError(file, f"not a Parquet file: {str(error)[:200]}") from None
    wanted = _wanted(file, source.schema_arrow.names, required, optional)
    row, size = 1, Path(file).stat().st_size
    total = max(1, source.metadata.num_rows)
    for found in source.iter_batches(BATCH_ROWS, columns=wanted):
        columns = {}
        for name in wanted:
            column = found.column(found.schema.get_field_index(name))
            columns[name] = pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
        done = row - 1 + found.num_rows
        yield TableBatch(file, row, columns, found.num_rows, size * done // total)
        row += found.num_rows
