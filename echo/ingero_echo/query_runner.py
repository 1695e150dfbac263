"""Runs one query within its limits: time, rows, bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Protocol

import duckdb

from ingero_echo.arrays import pa
from ingero_echo.errors import EchoApiError

_CHUNK_ROWS: Final = 2000

_CANCEL_AGAIN: Final = 0.1
"""Seconds between two tries to cancel a query."""


@dataclass
class QueryResult:
    """The result of a query as an Arrow table or the stream of one, and whether rows were cut off."""

    content: pa.Table | bytes
    truncated: bool = False
    seconds: float = 0.0

    @cached_property
    def table(self) -> pa.Table:
        """The table."""
        return pa.ipc.open_stream(self.content).read_all() if isinstance(self.content, bytes) else self.content

    def stream(self) -> bytes:
        """The table as an Arrow stream; that of a process for SQL as it came."""
        return self.content if isinstance(self.content, bytes) else arrow_stream(self.content).to_pybytes()

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.table.column_names)

    def lists(self) -> list[list[Any]]:
        """Rows as lists of JSON values."""
        columns = [shown(name, column) for name, column in zip(self.columns, self.table.columns, strict=True)]
        return [list(row) for row in zip(*columns, strict=True)]

    def objects(self) -> list[dict[str, Any]]:
        """Rows as objects of JSON values."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.lists()]


def arrow_stream(table: pa.Table) -> pa.Buffer:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def shown(name: str, column: pa.ChunkedArray) -> list[Any]:
    """A column as JSON values; raises `EchoApiError` for values that have none, such as days after the year 9999."""
    try:
        return plain(column)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        message = f"the column {name[:100]} holds a value that cannot be shown: {error!s:.200}"
        raise EchoApiError("bad_query", message, "cast it to VARCHAR", status=422) from None


def plain(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """A column as JSON values: times as RFC 3339, intervals as ISO 8601, identifiers and bytes as text, also within
    lists and structures. A map is a list of pairs."""
    import pyarrow.compute as pc  # imported late: the SQL worker does not need it

    kind = column.type
    if pa.types.is_nested(kind):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return [value for chunk in chunks for value in _nested(chunk)]
    if pa.types.is_timestamp(kind):
        text = pc.strftime(column.cast(pa.timestamp("ns")), format="%Y-%m-%dT%H:%M:%SZ")
        return list(text.to_pylist())
    if pa.types.is_decimal(kind) and kind.scale == 0:  # such as the sum of whole numbers
        numbers = (None if value is None else int(value) for value in column.to_pylist())
        return [value if value is None or abs(value) < 1 << 63 else float(value) for value in numbers]
    if pa.types.is_decimal(kind):
        return list(column.cast(pa.float64()).to_pylist())
    values = column.to_pylist()
    if pa.types.is_primitive(kind) and not pa.types.is_temporal(kind) and not isinstance(kind, pa.BaseExtensionType):
        return list(values)
    return [_plain(value) for value in values]


def _nested(array: pa.Array) -> list[Any]:
    """An array of lists, maps or structures as JSON values."""
    kind = array.type
    if pa.types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        columns = [plain(array.field(number)) for number in range(kind.num_fields)]
        rows: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    else:
        items = plain(array.values)
        if pa.types.is_map(kind):
            items = [list(entry.values()) for entry in items]
        ends = (
            range(array.offset * kind.list_size, (array.offset + len(array) + 1) * kind.list_size, kind.list_size)
            if pa.types.is_fixed_size_list(kind)
            else array.offsets.to_pylist()
        )
        rows = [items[begin:end] for begin, end in pairwise(ends)]
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _plain(value: Any) -> Any:
    if isinstance(value, pa.MonthDayNano):
        months, days, nanos = value
        return f"P{months}M{days}DT{nanos / 1e9:.9f}".rstrip("0").rstrip(".") + "S"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


class QueryLimits(Protocol):
    """Limits of a query."""

    @property
    def timeout(self) -> float:
        """Seconds; then it is cancelled."""

    @property
    def max_bytes(self) -> int:
        """Most bytes of an answer before encoding."""


class CancelToken:
    """Asks a query to end early, from any thread; one for each query."""

    def __init__(self) -> None:
        self.requested = False
        self._wake = threading.Event()

    def request(self) -> None:
        """Request the end of the query."""
        self.requested = True
        self._wake.set()

    def wait(self, seconds: float) -> None:
        """Return when the end is requested, on `wake`, or after this time."""
        self._wake.wait(seconds)

    def wake(self) -> None:
        """Wake the waiting thread, so that it checks again."""
        self._wake.set()


def run_query(
    cursor: Any,
    sql: str,
    parameters: Mapping[str, Any],
    limits: QueryLimits,
    max_rows: int,
    cancel: CancelToken | None = None,
) -> QueryResult:
    """Run one query on its own cursor; it is cancelled at its time limit, or when `stop` is requested.

    Raises `EchoApiError` for mistakes of the caller and for exceeded limits.
    """
    began, cancel = time.monotonic(), cancel or CancelToken()
    try:
        with _cancel_when_due(limits.timeout, cursor, cancel):
            return _fetch(cursor, sql, parameters, limits, max_rows, began)
    except (duckdb.Error, OSError, pa.ArrowException) as error:  # rows that Arrow fetches bring errors of Arrow's
        raise _to_api_error(error, limits, cancel) from None
    finally:
        cursor.close()


def timed_out(limits: QueryLimits) -> EchoApiError:
    """The error for a query that reached its time limit."""
    hint = "narrow it: a shorter window, fewer joins"
    return EchoApiError("timeout", f"the query ran longer than {limits.timeout:g} s", hint, status=408)


def cancelled() -> EchoApiError:
    """The error for a client that disconnected."""
    return EchoApiError("cancelled", "the client disconnected", status=408)


def _to_api_error(error: Exception, limits: QueryLimits, cancel: CancelToken) -> EchoApiError:
    message = _first_lines(error)
    if isinstance(error, duckdb.InterruptException) or message.startswith("INTERRUPT Error"):
        return cancelled() if cancel.requested else timed_out(limits)
    if isinstance(error, duckdb.OutOfMemoryException) or message.startswith("Out of Memory Error"):
        return EchoApiError("too_large", "the query needs more memory than it may have", "narrow it", status=422)
    if isinstance(error, duckdb.ConnectionException):
        return EchoApiError("not_ready", "the database is being opened anew", "ask again", 503, 1)
    if isinstance(error, duckdb.IOException | duckdb.FatalException | duckdb.SerializationException):
        return EchoApiError("storage", message, "ask again; what was acknowledged is not lost", 503, 1)
    return EchoApiError("bad_query", message, "fleet.cluster.describe names tables and columns", status=422)


@contextmanager
def _cancel_when_due(seconds: float, cursor: Any, cancel: CancelToken) -> Iterator[None]:
    """Cancel a cursor's query at its time limit, again until it ends: DuckDB ignores a call that is too early."""
    ended = threading.Event()

    def watch() -> None:
        cancel.wait(seconds)
        while not ended.is_set():
            cursor.interrupt()
            ended.wait(_CANCEL_AGAIN)

    watcher = threading.Thread(target=watch, name="query-timeout", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        cancel.wake()
        watcher.join()


def _fetch(
    cursor: Any, sql: str, parameters: Mapping[str, Any], limits: QueryLimits, max_rows: int, began: float
) -> QueryResult:
    relation = cursor.sql(sql, params=dict(parameters)) if parameters else cursor.sql(sql)
    reader = relation.to_arrow_reader(_CHUNK_ROWS)
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    truncated = False
    for part in reader:
        if rows + part.num_rows > max_rows:
            part, truncated = part.slice(0, max_rows - rows), True
        size += part.nbytes
        if size > limits.max_bytes:
            truncated = True
            break
        parts.append(part)
        rows += part.num_rows
        if truncated:
            break
    return QueryResult(pa.Table.from_batches(parts, reader.schema), truncated, time.monotonic() - began)


def _first_lines(error: Exception) -> str:
    """What DuckDB says is wrong, without the query, and without its stack: that has paths of the server."""
    text = str(error).split("\n\nLINE")[0].partition("Stack Trace:")[0]
    return " ".join(text.split())[:500]
