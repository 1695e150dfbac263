"""The database file: opened under a lock, migrated, sealed from outside access.

Only the writer's connection changes anything; every reader takes its own cursor.
"""

import contextlib
import time
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb

from ingero_echo.database_file import (
    LOCKED,
    StoreError,
    check_length,
    copy_files,
    database_files,
    disk_problem,
    log_of,
    open_error,
)
from ingero_echo.lock import DatabaseLock
from ingero_echo.schema_versions import migrate
from ingero_echo.settings import StoreConfig
from ingero_echo.snapshots import REPLAY_BYTES, SnapshotRegistry
from ingero_echo.source_position import SourcePosition
from ingero_echo.tables import TABLES, lockdown
from ingero_echo.wal import uncommitted_tail
from ingero_echo.window import Sources, Window
from ingero_kit.logs import get

log = get(__name__)

MAX_LOG_FACTOR: Final = 4
"""Multiple of its limit that the log may reach before a reader of an older version is ended."""


READERS_SECONDS: Final = 3.0
"""How long reader processes of a killed Echo may take to notice that it is gone."""

ALL_SEQS: Final = " UNION ALL ".join(
    [
        *(f"SELECT max(seq) AS seq FROM {table}" for table in TABLES),
        "SELECT sealed FROM sealing",
        "SELECT max(seq) FROM source",
    ]
)
"""The highest order of arrival by table, the highest that was sealed, and that of the source."""


class SharedView(Protocol):
    """The shared tables, and what their writers have not sealed yet."""

    def pinned(self, window: Window) -> contextlib.AbstractContextManager[Sources]:
        """What a question about a window reads."""


class Store:
    """An open database. `connection` belongs to the writer; `cursor` makes a reader's."""

    def __init__(
        self, config: StoreConfig, connection: Any, lock: DatabaseLock, readable: Path | None = None
    ) -> None:
        self.config = config
        self.connection = connection
        self.snapshots = SnapshotRegistry(config.path)
        """The rule for other processes that read the file."""
        self.view: SharedView | None = None
        """Where questions read from the shared tables too."""
        self._lock, self._readable = lock, readable
        self.snapshots.admit_readers()

    @classmethod
    def open(cls, config: StoreConfig, readable: Path | None = None) -> "Store":
        """Lock, open (replaying the write-ahead log), migrate and seal the database.

        The engine may read files in the folder `readable`, and no others. Raises `StoreError` or `DatabaseLocked`,
        with a message for the user.
        """
        lock = DatabaseLock(config.path)
        try:
            config.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError as error:
            raise StoreError(f"{config.path}: {disk_problem(error) or f'cannot be opened here: {error}'}") from None
        try:
            _restrict_permissions(config.path)
            return cls(config, connect_database(config, readable), lock, readable)
        except BaseException:
            lock.release()
            raise

    def cursor(self) -> Any:
        """A reader's own cursor: it sees what was committed when its statement begins, and never waits."""
        return self.connection.cursor()

    def pinned(self, window: Window) -> contextlib.AbstractContextManager[Sources]:
        """What a question about a window reads; it stays readable within the block. Raises `EchoApiError`."""
        return self.view.pinned(window) if self.view else contextlib.nullcontext(Sources())

    def reopen(self) -> None:
        """Open the database again after the engine failed, for instance because the disk was full."""
        with self.snapshots.exclusive():
            with contextlib.suppress(duckdb.Error):
                self.connection.close()
            self.connection = connect_database(self.config, self._readable)
            self.snapshots.admit_readers()

    def checkpoint(self) -> None:
        """Fold the log into the file; only the writer's thread may call this, and nothing else does it."""
        with self.snapshots.checkpointing():
            self.connection.execute("CHECKPOINT")

    def checkpoint_if_due(self) -> None:
        """Fold the log in once it is long, or once readers gain from it; waits for readers of an older version."""
        length, limit = self.log_bytes(), self.config.wal_limit_mb << 20
        if length > (REPLAY_BYTES if self.snapshots.checkpoint_wanted else limit) and (
            length > MAX_LOG_FACTOR * limit or not self.snapshots.has_stale_readers()
        ):
            with contextlib.suppress(duckdb.Error):
                self.checkpoint()

    def log_bytes(self) -> int:
        """Length of the write-ahead log."""
        log_file = log_of(self.config.path)
        return log_file.stat().st_size if log_file.exists() else 0

    def copy(self, target: Path) -> None:
        """Write a consistent copy; only the writer's thread may call this. An existing file is not replaced."""
        if target.exists():
            raise StoreError(f"{target}: exists already")
        with contextlib.suppress(duckdb.Error):
            self.checkpoint()
        copy_files(self.config.path, target)

    def newest_seq(self) -> int:
        """The highest order of arrival that was ever used; it never falls, also when its rows are deleted."""
        with self.cursor() as cursor:
            row = cursor.execute(f"SELECT max(seq) FROM ({ALL_SEQS})").fetchall()
        return max(0, int(row[0][0]))

    def sealed_seq(self) -> int:
        """The highest order of arrival in the shared tables, as far as this database knows; -1 for none."""
        with self.cursor() as cursor:
            return int(cursor.execute("SELECT sealed FROM sealing").fetchall()[0][0])

    def source_position(self, through: int | None = None) -> SourcePosition | None:
        """How far the stream was read, or had been when the transaction `through` was written."""
        with self.cursor() as cursor:
            found = cursor.execute(
                "SELECT stream, sequence FROM source WHERE seq <= coalesce(?, seq) ORDER BY seq DESC LIMIT 1",
                [through],
            ).fetchall()
        return SourcePosition(*found[0]) if found else None

    def take_over(self, predecessors: str, sealed: int, highest: int, position: SourcePosition) -> None:
        """Continue after a lost database, which sealed `sealed` whole and `highest` in some table. On the writer's
        thread only; rows that have arrived meanwhile move behind."""
        self.connection.execute("BEGIN")
        try:
            for table in TABLES:
                self.connection.execute(f"UPDATE {table} SET seq = seq + ?", [highest])
            self.connection.execute(
                "UPDATE sealing SET sealed = $sealed, deleted = $sealed, predecessors = $predecessors",
                {"sealed": sealed, "predecessors": predecessors},
            )
            self.connection.execute("INSERT INTO source VALUES (?, ?, ?)", [highest, *position])
            self.connection.execute("COMMIT")
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise

    def delete_through(self, seq: int) -> int:
        """Delete rows that are in the shared tables; returns how many. On the writer's thread only."""
        deleted = 0
        self.connection.execute("BEGIN")
        try:
            for table in TABLES:
                gone = self.connection.execute(f"DELETE FROM {table} WHERE seq <= ?", [seq]).fetchall()
                deleted += int(gone[0][0])
            self.connection.execute("UPDATE sealing SET deleted = greatest(deleted, ?)", [seq])
            self.connection.execute("COMMIT")
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        if deleted:
            self.checkpoint()
        return deleted

    def live_bytes(self) -> int:
        """Bytes that hold data, the write-ahead log included, without free blocks."""
        row = self.connection.execute("SELECT block_size * used_blocks FROM pragma_database_size()").fetchall()[0]
        return int(row[0]) + self.log_bytes()

    def close(self) -> None:
        """Fold the log in, close, unlock."""
        with self.snapshots.exclusive(), contextlib.suppress(duckdb.Error):
            self.connection.close()
        self._lock.release()


def _restrict_permissions(path: Path) -> None:
    """Restrict files that other users may read, because their content is protected by tokens."""
    for file in (*database_files(path), path.with_name(path.name + ".lock")):
        with contextlib.suppress(OSError):
            file.chmod(file.stat().st_mode & 0o700)


def connect_database(config: StoreConfig, readable: Path | None = None) -> Any:
    """Open a database as the configuration says, whole, migrated and locked down; raises `StoreError`."""
    spill = config.path.with_name(config.path.name + ".spill")
    log_file = log_of(config.path)
    try:
        left = uncommitted_tail(log_file.read_bytes()) if log_file.exists() else None
    except OSError as error:
        raise StoreError(f"{log_file}: {disk_problem(error) or f'cannot be read: {error}'}") from None
    settings: dict[str, Any] = {
        "memory_limit": f"{config.memory_limit_mb}MB",
        "threads": config.threads,
        "temp_directory": str(spill),
        "max_temp_directory_size": f"{config.spill_limit_mb}MB",
        # The file changes when `Store` says so, because other processes read it: see `snapshots`.
        "checkpoint_threshold": "1000TB",
        "auto_checkpoint_skip_wal_threshold": str(1 << 60),
        "enable_optimistic_write": "false",
    }
    connection = _open_writable(config.path, settings)
    try:
        # Until the file is known to be whole and ours, closing it must leave it as it is.
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        check_length(connection, config.path)
        migrate(connection, config.path)
        connection.execute("PRAGMA enable_checkpoint_on_shutdown")
        for setting in lockdown(readable):
            connection.execute(f"SET {setting}")
    except duckdb.Error as error:
        connection.close()
        raise StoreError(open_error(config.path, error)) from None
    except StoreError:
        connection.close()
        raise
    if left:
        log.warning(
            "log_tail_left_out", file=str(log_file), bytes=left,
            hint="it was being written when the process ended, and was not acknowledged; more only if the disk lied",
        )  # fmt: skip
    return connection


def _open_writable(path: Path, settings: dict[str, Any]) -> Any:
    """Open the file, after waiting for readers that a killed process may have left for a moment."""
    deadline = time.monotonic() + READERS_SECONDS
    while True:
        try:
            return duckdb.connect(str(path), config=settings)
        except duckdb.Error as error:
            if LOCKED not in str(error) or time.monotonic() > deadline:
                raise StoreError(open_error(path, error)) from None
            time.sleep(0.05)
