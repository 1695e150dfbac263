"""Runs one query within its bounds: time, rows, bytes, and how many at once."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ingero_echo.errors import Refused
from ingero_echo.settings import QueryConfig

_CHUNK: Final = 2000

_CANCEL_AGAIN: Final = 0.1
"""Seconds between two tries to cancel a query."""

DEAF_AFTER: Final = 30.0
"""Seconds that a query may go on beyond its time before it counts as one that cannot be cancelled. DuckDB has such
states (https://github.com/duckdb/duckdb/issues/24961); they hold a thread until the process ends."""


@dataclass
class Result:
    """What came back: an Arrow table, and whether rows were cut off and why."""

    table: pa.Table
    truncated: bool = False
    seconds: float = 0.0

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.table.column_names)

    def lists(self) -> list[list[Any]]:
        """Rows as lists of JSON values."""
        columns = [plain(self.table.column(number)) for number in range(self.table.num_columns)]
        return [list(row) for row in zip(*columns, strict=True)]

    def objects(self) -> list[dict[str, Any]]:
        """Rows as objects of JSON values."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.lists()]


def plain(column: pa.ChunkedArray) -> list[Any]:
    """A column as JSON values: times as RFC 3339, identifiers, intervals and bytes as text."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        text = pc.strftime(column.cast(pa.timestamp("ns")), format="%Y-%m-%dT%H:%M:%SZ")
        return list(text.to_pylist())
    if pa.types.is_decimal(kind):
        return list(column.cast(pa.float64()).to_pylist())
    values = column.to_pylist()
    if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType) or not pa.types.is_primitive(kind):
        return [_plain(value) for value in values]
    if pa.types.is_temporal(kind):
        return [None if value is None else str(value) for value in values]
    return list(values)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value.hex() if isinstance(value, bytes) else str(value)


@dataclass
class Turns:
    """How many queries run at once, over all and by asker."""

    config: QueryConfig
    running: dict[str, float] = field(default_factory=dict)
    """Who holds a turn, since when on the monotonic clock."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def turn(self, asker: str) -> Iterator[None]:
        """Hold a turn; raises `Refused` when the asker has one already, or all are taken."""
        with self._lock:
            if asker in self.running:
                raise Refused(
                    "busy", "this token has a query running", "wait for its answer", status=429, retry_seconds=1
                )
            if len(self.running) >= self.config.at_once:
                raise Refused(
                    "busy", "too many queries are running", "ask again in a moment", status=429, retry_seconds=1
                )
            self.running[asker] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self.running[asker]

    def deaf(self, now: float) -> bool:
        """Whether a query goes on long after it was cancelled: its thread comes back only with a new process."""
        with self._lock:
            return any(now - since > self.config.timeout + DEAF_AFTER for since in self.running.values())


def run(cursor: Any, sql: str, parameters: Mapping[str, Any], config: QueryConfig, max_rows: int) -> Result:
    """Run one query on a cursor of its own; it is cancelled when its time is over.

    Raises `Refused` for what the asker did wrong or may not have.
    """
    began = time.monotonic()
    try:
        with _cancelled_after(config.timeout, cursor):
            return _fetch(cursor, sql, parameters, config, max_rows, began)
    except (duckdb.Error, OSError, pa.ArrowException) as error:  # rows that Arrow fetches bring errors of Arrow's
        raise _refusal(error, config) from None
    finally:
        cursor.close()


def _refusal(error: Exception, config: QueryConfig) -> Refused:
    words = _first_lines(error)
    if isinstance(error, duckdb.InterruptException) or words.startswith("INTERRUPT Error"):
        hint = "narrow it: a shorter window, fewer joins"
        return Refused("timeout", f"the query ran longer than {config.timeout:g} s", hint, status=408)
    if isinstance(error, duckdb.OutOfMemoryException) or words.startswith("Out of Memory Error"):
        return Refused("too_large", "the query needs more memory than it may have", "narrow it", status=422)
    if isinstance(error, duckdb.ConnectionException):
        return Refused("not_ready", "the database is being opened anew", "ask again", 503, 1)
    return Refused("bad_query", words, "see the list of tables and columns", status=422)


@contextmanager
def _cancelled_after(seconds: float, cursor: Any) -> Iterator[None]:
    """Cancel what a cursor runs once its time is over, until it has ended: DuckDB forgets a call that comes early."""
    ended = threading.Event()

    def watch() -> None:
        wait = seconds
        while not ended.wait(wait):
            cursor.interrupt()
            wait = _CANCEL_AGAIN

    watcher = threading.Thread(target=watch, name="query-timeout", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _fetch(
    cursor: Any, sql: str, parameters: Mapping[str, Any], config: QueryConfig, max_rows: int, began: float
) -> Result:
    relation = cursor.sql(sql, params=dict(parameters)) if parameters else cursor.sql(sql)
    reader = relation.to_arrow_reader(_CHUNK)
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    truncated = False
    for part in reader:
        if rows + part.num_rows > max_rows:
            part, truncated = part.slice(0, max_rows - rows), True
        size += part.nbytes
        if size > config.max_bytes:
            truncated = True
            break
        parts.append(part)
        rows += part.num_rows
        if truncated:
            break
    return Result(pa.Table.from_batches(parts, reader.schema), truncated, time.monotonic() - began)


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split("\n\nLINE")[0].split())[:500]
