"""Reads CSV and Parquet as batches of text and number columns, with errors that name file, row and column."""

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

BATCH_BYTES: Final = 4 << 20
BATCH_ROWS: Final = 1 << 16

LATEST: Final = 1e11
"""Largest time in seconds, some three thousand years; times in milliseconds and finer units since 1970 are larger."""

_PACKED: Final = b"\x1f\x8b"


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
        place = index if self.places is None else int(self.places[index])
        return TableError(self.file, text, self.first_row + place, column)

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
        if _is_text(column):
            column = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(column, ""), None, column)
        try:
            numbers = pc.cast(column, pa.float64(), safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            index = self._first_without(column, pa.float64(), safe=False)
            raise self.error(index, name, f"{str(column[index])[:40]!r} is not a number") from None
        return np.asarray(pc.fill_null(numbers, float("nan")), np.float64)

    def times(self, name: str) -> tuple[npt.NDArray[np.float64], bool]:
        """A column of seconds or RFC 3339 times as seconds, and whether it was the latter."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.columns[name]
        if pa.types.is_timestamp(column.type):
            moments = pc.cast(column, pa.timestamp("us"), safe=False)
        elif _is_text(column) and pc.any(pc.match_substring(column, ":")).as_py():
            moments = self._moments(pc.utf8_upper(pc.utf8_trim_whitespace(column)), name)
        else:
            return self._seconds(self.numbers(name), name), False
        if moments.null_count:
            raise self.error(int(np.flatnonzero(np.asarray(pc.is_null(moments)))[0]), name, "a time is missing")
        return np.asarray(moments.cast(pa.int64()), np.float64) / 1e6, True

    def _moments(self, column: Any, name: str) -> Any:
        """RFC 3339 times as microseconds; null where a time is missing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = pc.if_else(pc.equal(column, ""), None, column)
        try:
            return pc.cast(column, pa.timestamp("us", tz="UTC"))
        except pa.ArrowInvalid:
            pass
        nanoseconds = pa.timestamp("ns", tz="UTC")
        try:
            return pc.cast(pc.cast(column, nanoseconds), pa.timestamp("us", tz="UTC"), safe=False)
        except pa.ArrowInvalid:
            index = self._first_without(column, nanoseconds)
            value = str(self.columns[name][index])[:40]
            raise self.error(index, name, f"{value!r} is no RFC 3339 time with a zone") from None

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

    def _seconds(self, values: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
        bad = np.flatnonzero(~(np.abs(values) <= LATEST))
        if len(bad):
            value = float(values[bad[0]])
            large = f"{value:g} is too large: seconds are expected"
            raise self.error(int(bad[0]), name, large if np.isfinite(value) else "a time is missing or not finite")
        return values


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def read_batches(file: str, required: Sequence[str], optional: Sequence[str]) -> Iterator[TableBatch]:
    """Stream a file; `-` is CSV on standard input. CSV may be packed with gzip. Columns not requested are not read.

    `TableError` for a missing required column or a malformed row, `OSError` as usual.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise TableError(file, "reading histories needs pyarrow: pip install pyarrow") from None
    if Path(file).suffix.lower() in (".parquet", ".pq"):
        yield from _parquet(file, required, optional)
    elif file == "-":
        yield from _csv("-", standard_input(), required, optional)
    else:
        with Path(file).open("rb") as stream:
            if stream.peek(2)[:2] != _PACKED:
                yield from _csv(file, stream, required, optional)
                return
            try:
                with gzip.GzipFile(fileobj=stream) as unpacked:
                    yield from _csv(file, unpacked, required, optional, stream.tell)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise TableError(file, f"not gzip, or cut off: {error}") from None


def standard_input() -> BinaryIO:
    """Standard input as bytes. Raises `TableError` where it is closed."""
    if sys.stdin is None:
        raise TableError("-", "standard input is closed")
    return sys.stdin.buffer


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


def _csv(
    file: str, stream: Any, required: Sequence[str], optional: Sequence[str],
    consumed: Callable[[], int] | None = None,
) -> Iterator[TableBatch]:  # fmt: skip
    """Batches of CSV; `consumed` counts the bytes of the file where the stream unpacks it."""
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
    ragged: list[TableError] = []

    def refuse(row: Any) -> str:
        text = f"{row.actual_columns} values where {row.expected_columns} columns were expected"
        ragged.append(TableError(file, text, row.number + 1))
        return "error"

    unique = [name if names.index(name) == place else f"{name} {place}" for place, name in enumerate(names)]
    row = 2
    try:
        reader = csv.open_csv(
            counted,
            read_options=csv.ReadOptions(block_size=BATCH_BYTES, column_names=unique, use_threads=False),
            parse_options=csv.ParseOptions(invalid_row_handler=refuse, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(
                include_columns=wanted, column_types={name: pa.binary() for name in wanted}
            ),
        )
        for found in reader:
            yield _batch(file, row, found, wanted, consumed() if consumed else counted.consumed)
            row += found.num_rows
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        raise ragged[0] if ragged else TableError(file, f"after row {row - 1}: {str(error)[:200]}") from None


def _batch(file: str, row: int, found: Any, wanted: Sequence[str], consumed: int) -> TableBatch:
    """Rows of CSV as text, without those that have no value in any column that is used, such as empty lines."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given = [np.asarray(pc.not_equal(found.column(place), b"")) for place in range(len(wanted))]
    kept = np.flatnonzero(np.logical_or.reduce(given)) if wanted else np.arange(found.num_rows)
    places = None if len(kept) == found.num_rows else kept
    rows = found if places is None else found.take(pa.array(kept))
    raw = TableBatch(file, row, dict(zip(wanted, rows.columns, strict=True)), len(kept), consumed, places)
    return replace(raw, columns={name: raw.texts(name) for name in wanted})


def _parquet(file: str, required: Sequence[str], optional: Sequence[str]) -> Iterator[TableBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    try:
        source = parquet.ParquetFile(file)
        wanted = _wanted(file, source.schema_arrow.names, required, optional)
        row, size = 1, Path(file).stat().st_size
        total = max(1, source.metadata.num_rows)
        for found in source.iter_batches(BATCH_ROWS, columns=wanted):
            columns = {}
            for name in wanted:
                column = found.column(found.schema.get_field_index(name))
                coded = pa.types.is_dictionary(column.type)
                columns[name] = pc.cast(column, column.type.value_type) if coded else column
            done = row - 1 + found.num_rows
            yield TableBatch(file, row, columns, found.num_rows, size * done // total)
            row += found.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise TableError(file, f"not a Parquet file, or damaged: {str(error)[:200]}") from None
