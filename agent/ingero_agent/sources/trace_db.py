"""The trace agent's SQLite database, read only: launches and busy time since the last poll.

Only GPU sources count (runtime, driver, graphs): the same operation codes mean other things for host and disk.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero_agent.health.signals import SignalReading
from ingero_agent.sources import ReadFailed
from ingero_agent.sources.procfs import HostLoad

SCHEMA_VERSION: Final = 10
SOURCES: Final = (1, 4, 8)
"""CUDA runtime, CUDA driver, CUDA graphs."""

LAUNCHES: Final = ((1, 3), (4, 1), (8, 4))
"""(source, operation) of every way to launch work."""

BUCKET_SECONDS: Final = 5


_COUNTED: Final = (
    "COALESCE(SUM(CASE WHEN "
    + " OR ".join(f"(source = {source} AND op = {operation})" for source, operation in LAUNCHES)
    + " THEN count END), 0), COALESCE(SUM(sum_dur), 0)"
)
SILENT_SECONDS: Final = 30.0
"""A trace agent that has not written for this long counts as stopped; its silence says nothing about the workload."""


@contextmanager
def open_read_only(file: Path, timeout: float) -> Iterator[sqlite3.Connection]:
    """Open a database for reading, whether its writer runs or not. Raises `sqlite3.Error`, also for another version.

    SQLite keeps two more files next to a database in use and removes them when the writer ends. A reader without
    write access to the folder cannot create them and cannot open the database without them. As there is no writer
    then, the database is read as immutable. If the files are back afterwards, the result of the read is discarded.
    """
    log = Path(f"{file}-wal")
    database, in_use = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=timeout), True
    try:
        try:
            database.execute("PRAGMA schema_version").fetchone()
        except sqlite3.OperationalError as error:
            cannot_make = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if not cannot_make or log.exists() or not file.exists():
                raise
            database.close()
            database, in_use = sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True), False
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise sqlite3.DatabaseError(
                f"schema version {version}, but this agent reads {SCHEMA_VERSION}: run the same version of "
                "`ingero-agent trace`"
            )
        yield database
        if not in_use and log.exists():
            raise sqlite3.OperationalError("a writer began meanwhile")
    finally:
        database.close()


@dataclass(frozen=True)
class _Snapshot:
    """Buckets (launches, busy nanoseconds) as of the trace agent's last write, seconds."""

    written: float
    buckets: dict[int, tuple[int, int]]


class DatabaseSource:
    """Counts the calls of the given processes, or of all, since the last poll.

    A database that does not record when it was written (the published agent's) is read over a sliding window of whole
    buckets instead.
    """

    def __init__(
        self, file: Path, window_seconds: float, gpus: int, pids: tuple[int, ...] = (), proc: Path = Path("/proc")
    ) -> None:
        self._file = file
        self._window = max(window_seconds, 2 * BUCKET_SECONDS)
        self._gpus = max(1, gpus)
        self._where = f"source IN {SOURCES}" + (f" AND pid IN ({', '.join(map(str, pids))})" if pids else "")
        self._load = HostLoad(proc)
        self._before: _Snapshot | None = None
        self._pids: list[int] = []

    def pids(self) -> list[int]:
        """The processes that used a GPU about the time of the last poll."""
        return self._pids

    def read(self, now: float) -> SignalReading | None:
        """Compare with the last poll, `None` on the first and while there is nothing new.

        A database that cannot be read counts as unchanged as long as its writer may be restarting.
        """
        last = self._before
        try:
            with open_read_only(self._file, timeout=1.0) as database:
                counted = self._count(database, now)
            busy, memory = self._load.read()
        except sqlite3.OperationalError as error:
            self._before = last
            if last and 0 <= now - last.written <= SILENT_SECONDS:
                return None
            raise ReadFailed(f"{self._file}: {error}") from None
        except (sqlite3.Error, OSError, ValueError, KeyError) as error:
            raise ReadFailed(f"{self._file}: {error}") from None
        if counted is None:
            return None
        launches, nanoseconds, seconds = counted
        return SignalReading(
            rate=launches / seconds,
            compute=min(1.0, nanoseconds / (seconds * 1e9 * self._gpus)),
            memory=memory,
            cpu=1.0 - busy,
            launches=launches,
            seconds=seconds if self._before else None,
        )

    def _count(self, database: sqlite3.Connection, now: float) -> tuple[int, int, float] | None:
        """Launches, busy nanoseconds, and the seconds in which they were counted."""
        database.execute("BEGIN")
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "writer" not in tables:
            return self._in_window(database, now)
        row = database.execute("SELECT written_at FROM writer").fetchone()
        if row is None:
            raise ReadFailed(f"{self._file}: the trace agent has written nothing yet")
        written = row[0] / 1e9
        if now - written > SILENT_SECONDS:
            raise ReadFailed(f"{self._file}: the trace agent has written nothing for {now - written:.0f} s")
        before = self._before if self._before and self._before.written <= written else None
        self._pids = _processes(database, self._where, int(written) - 2 * BUCKET_SECONDS)
        since = before.written if before else written
        rows = database.execute(
            f"SELECT bucket, {_COUNTED} FROM event_aggregates_5s WHERE {self._where} AND bucket > ? GROUP BY bucket",
            (since - BUCKET_SECONDS,),
        ).fetchall()
        buckets = {bucket: (launches, busy) for bucket, launches, busy in rows}
        self._before = _Snapshot(written, buckets)
        if before is None or written == before.written:
            return None
        grown = [
            (launches - was[0], busy - was[1])
            for bucket, (launches, busy) in buckets.items()
            for was in [before.buckets.get(bucket, (0, 0))]
        ]
        launches, busy = (max(0, sum(part)) for part in zip(*grown, strict=True)) if grown else (0, 0)
        paused = _paused(database, before.written, written) if "pauses" in tables else 0.0
        counted = written - before.written - paused
        return (launches, busy, counted) if counted > 0 else None

    def _in_window(self, database: sqlite3.Connection, now: float) -> tuple[int, int, float]:
        newest = int(now) // BUCKET_SECONDS * BUCKET_SECONDS
        oldest = newest - int(self._window) // BUCKET_SECONDS * BUCKET_SECONDS
        self._pids = _processes(database, self._where, newest - 2 * BUCKET_SECONDS)
        launches, nanoseconds = database.execute(
            f"SELECT {_COUNTED} FROM event_aggregates_5s WHERE {self._where} AND bucket >= ? AND bucket < ?",
            (oldest, newest),
        ).fetchone()
        return launches, nanoseconds, float(newest - oldest)


def _processes(database: sqlite3.Connection, where: str, since: int) -> list[int]:
    rows = database.execute(f"SELECT DISTINCT pid FROM event_aggregates_5s WHERE {where} AND bucket >= ?", (since,))
    return [pid for (pid,) in rows]


def _paused(database: sqlite3.Connection, begin: float, end: float) -> float:
    """Seconds between `begin` and `end` in which no trace agent was counting."""
    rows = database.execute("SELECT begun_at / 1e9, ended_at / 1e9 FROM pauses WHERE ended_at > ?", (begin * 1e9,))
    return sum((max(0.0, min(end, ended) - max(begin, begun)) for begun, ended in rows), 0.0)
