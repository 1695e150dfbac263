"""The database file: opened under a lock, migrated by numbered files, sealed from outside access, copied, restored.

Only the writer's connection changes anything; every reader takes its own cursor.
"""

import contextlib
import functools
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, count, groupby
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb

from ingero_echo.errors import UserError
from ingero_echo.lock import DatabaseLock
from ingero_echo.settings import StoreConfig
from ingero_echo.snapshots import REPLAY_BYTES, SnapshotRegistry
from ingero_echo.source_position import SourcePosition
from ingero_echo.tables import TABLES, lockdown
from ingero_echo.wal import uncommitted_tail
from ingero_echo.window import Sources, Window, literal
from ingero_kit.logs import get

log = get(__name__)

MAX_LOG_FACTOR: Final = 4
"""Multiple of its limit that the log may reach before a reader of an older version is ended."""


READERS_SECONDS: Final = 3.0
"""How long reader processes of a killed Echo may take to notice that it is gone."""

LOCKED: Final = "lock on file"
"""The engine's message when another process has the file."""


_ALL_SEQS: Final = " UNION ALL ".join(
    [
        *(f"SELECT max(seq) AS seq FROM {table}" for table in TABLES),
        "SELECT sealed FROM sealing",
        "SELECT max(seq) FROM source",
    ]
)
"""The highest order of arrival by table, the highest that was sealed, and that of the source."""


class StoreError(UserError):
    """The database cannot be used; the text says why and what to do."""


@dataclass(frozen=True)
class Migration:
    """One numbered file of the schema."""

    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """All migrations in order; numbers are consecutive from 1."""
    found = []
    for file in files("ingero_echo").joinpath("schema").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    found.sort(key=lambda item: item.number)
    assert [item.number for item in found] == list(range(1, len(found) + 1))
    return found


@functools.cache
def published_columns() -> tuple[tuple[str, str, str], ...]:
    """Table, column and type of everything published, in order."""
    memory = duckdb.connect()
    try:
        for migration in migrations():
            memory.execute(migration.sql)
        found = []
        for table in TABLES:
            found += memory.execute(
                "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE table_name = ? "
                "ORDER BY column_index",
                [table],
            ).fetchall()
        return tuple(found)
    finally:
        memory.close()


def schema_text() -> str:
    """Tables and columns of this version, for people and agents."""
    tables = groupby(published_columns(), key=lambda column: column[0])
    return "\n".join(f"{table}({', '.join(f'{name} {kind}' for _, name, kind in rows)})" for table, rows in tables)


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
            return cls(config, _connect(config, readable), lock, readable)
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
            self.connection = _connect(self.config, self._readable)
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
        log_file = _log_file(self.config.path)
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
            row = cursor.execute(f"SELECT max(seq) FROM ({_ALL_SEQS})").fetchall()
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
    for file in (*_files(path), path.with_name(path.name + ".lock")):
        with contextlib.suppress(OSError):
            file.chmod(file.stat().st_mode & 0o700)


def volume_used(path: Path) -> float | None:
    """Used share of the volume that a file is on, 0 to 1; blocks reserved for root count as neither used nor free."""
    try:
        facts = os.statvfs(path.parent)
    except OSError:
        return None
    used = facts.f_blocks - facts.f_bfree
    return used / (used + facts.f_bavail) if used + facts.f_bavail else None


LOGS: Final = (".wal", ".wal.checkpoint", ".wal.recovery")
"""Files that the engine may keep next to a database: its log, and the logs of an interrupted checkpoint."""

_HEADERS: Final = 3 * 4096
"""Bytes before the first block of a database file."""


def _log_file(path: Path) -> Path:
    return path.with_name(path.name + LOGS[0])


def _check_length(connection: Any, path: Path) -> None:
    """Refuse a file that ends before its last block in use: DuckDB would notice only when it reads that block.

    The header's number of blocks cannot be used. A checkpoint writes the header first, then cuts free blocks off the
    end of the file; until the next one the header counts blocks that are not there, and lists them as free.
    """
    block, total = connection.execute("SELECT block_size, total_blocks FROM pragma_database_size()").fetchall()[0]
    there = (path.stat().st_size - _HEADERS) // block
    if there < total and there <= (last := _last_block(connection)):
        raise StoreError(_unreadable(path, f"it ends in the middle: {there} blocks are there, {last + 1} are needed"))


def _last_block(connection: Any) -> int:
    """Number of the last block in use, -1 when there is none; reads metadata only."""
    highest = "SELECT max(greatest(block_id, list_max(additional_block_ids))) FROM pragma_storage_info(?)"
    tables = connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall()
    blocks = [connection.execute(highest, [table]).fetchall()[0][0] for (table,) in tables]
    blocks += connection.execute("SELECT max(block_id) FROM pragma_metadata_info()").fetchall()[0]
    return max((block for block in blocks if block is not None), default=-1)


def _connect(config: StoreConfig, readable: Path | None = None) -> Any:
    spill = config.path.with_name(config.path.name + ".spill")
    log_file = _log_file(config.path)
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
        _check_length(connection, config.path)
        migrate(connection, config.path)
        connection.execute("PRAGMA enable_checkpoint_on_shutdown")
        for setting in lockdown(readable):
            connection.execute(f"SET {setting}")
    except duckdb.Error as error:
        connection.close()
        raise StoreError(_open_error(config.path, error)) from None
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
                raise StoreError(_open_error(path, error)) from None
            time.sleep(0.05)


def migrate(connection: Any, path: Path) -> int:
    """Bring the schema to this version, each file in its own transaction; returns how many were applied.

    Raises `StoreError` when the database is newer than this program.
    """
    connection.execute("CREATE TABLE IF NOT EXISTS schema_versions (number INTEGER, name VARCHAR, applied TIMESTAMP)")
    have = connection.execute("SELECT coalesce(max(number), 0) FROM schema_versions").fetchone()[0]
    known = migrations()
    if have > len(known):
        raise StoreError(
            f"{path}: the database was written by a newer ingero-echo (schema {have}, this one knows {len(known)}): "
            "use that version, or point store.path elsewhere"
        )
    for migration in known[have:]:
        connection.execute("BEGIN")
        try:
            connection.execute(migration.sql)
            connection.execute(
                "INSERT INTO schema_versions VALUES (?, ?, now()::TIMESTAMP)", [migration.number, migration.name]
            )
            connection.execute("COMMIT")
        except duckdb.Error:
            connection.execute("ROLLBACK")
            raise
        log.info("schema_migrated", number=migration.number, name=migration.name)
    return len(known) - int(have)


def disk_problem(error: Exception) -> str | None:
    """The meaning and remedy of a failed write, for causes that a user can remove; `None` for others."""
    text = str(error).lower()
    if "no space" in text or "disk quota" in text or "file too large" in text:
        return "the disk is full: make room; nothing that was acknowledged is lost"
    if "read-only" in text or "permission denied" in text:
        return "the volume cannot be written: make it and the file writable; nothing that was acknowledged is lost"
    return None


def _open_error(path: Path, error: Exception) -> str:
    text = str(error).splitlines()[0]
    if LOCKED in text:
        return f"{path}: another program has the database open: {text}"
    known = disk_problem(error)
    if known:
        return f"{path}: {known}"
    if "could not read enough bytes" in text.lower():
        text = f"it ends in the middle: {text}"
    if "WAL file" in text:
        return (
            f"{path}: the log of the database is damaged: {text}. Nothing was changed. Move {_log_file(path)}* "
            "to another place and keep it: Echo then starts with all that was folded into the database before"
        )
    return _unreadable(path, text)


def _unreadable(path: Path, text: str) -> str:
    return (
        f"{path}: the database cannot be read: {text}. Nothing was changed. Put a backup in its place with "
        f"`ingero-echo restore BACKUP --database {path} --force`, which keeps the present files; without a "
        f"backup move the file and {_log_file(path)} to another place, keep them, and start anew"
    )


def copy_files(source: Path, target: Path) -> None:
    """Copy a database file and its log, so that the target appears whole or not at all."""
    with _appearing(target) as part:
        for file, copied in zip(_files(source), _files(part), strict=True):
            if file == source or (file.exists() and file.stat().st_size):
                shutil.copyfile(file, copied)
        try:
            # Opening the copy folds its log in, and proves that it can be opened.
            folded = duckdb.connect(str(part))
            folded.execute("CHECKPOINT")
            folded.close()
        except duckdb.Error as error:
            if disk_problem(error):
                raise
            text = str(error).splitlines()[0].replace(str(part), str(source))
            raise StoreError(f"{source}: no database, or damaged: {text}") from None


@contextlib.contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A database file to write, which becomes the target when it is complete and on disk, and is removed otherwise.

    Raises `StoreError` when it cannot be written.
    """
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove(part)
    try:
        yield part
        with part.open("rb") as copied:
            os.fsync(copied.fileno())
        part.replace(target)
    except (OSError, duckdb.Error) as error:
        raise StoreError(f"{target}: the copy could not be written: {error}") from None
    finally:
        _remove(part)


def _files(path: Path) -> list[Path]:
    """A database and its logs, whether they exist or not."""
    return [path.with_name(path.name + suffix) for suffix in ("", *LOGS)]


def _remove(path: Path) -> None:
    """Remove a database and its logs, if they exist."""
    for file in _files(path):
        file.unlink(missing_ok=True)


def _unused(path: Path) -> Path:
    """The path, with a number appended if it exists already."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(2))
    return next(name for name in chain([path], numbered) if not any(file.exists() for file in _files(name)))


def compact(source: Path, target: Path, memory_limit_mb: int = 256) -> None:
    """Write the live data of a database that is not in use into a new one, which has no free blocks.

    Raises `StoreError` or `DatabaseLocked`.
    """
    if target.exists():
        raise StoreError(f"{target}: exists already")
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = DatabaseLock(source)
    lock.acquire()
    try:
        config: dict[str, Any] = {"memory_limit": f"{memory_limit_mb}MB", "preserve_insertion_order": "true"}
        with _appearing(target) as part, duckdb.connect(config=config) as both:
            both.execute(f"ATTACH {literal(str(source))} AS old (READ_ONLY, TYPE duckdb)")
            both.execute(f"ATTACH {literal(str(part))} AS fresh")
            both.execute("COPY FROM DATABASE old TO fresh")
            both.execute("CHECKPOINT fresh")
    finally:
        lock.release()


def _sealing_state(connection: Any) -> Any:
    """Identity, boundaries and the highest order of arrival of a database."""
    query = f"SELECT store, sealed, deleted, (SELECT max(seq) FROM ({_ALL_SEQS})) FROM sealing"
    return connection.execute(query).fetchall()


def _state_of_file(path: Path) -> Any:
    """The same of a database that is not in use; `None` if there is none, or it cannot be read."""
    if not path.exists():
        return None
    try:
        with duckdb.connect(str(path), read_only=True) as connection:
            return _sealing_state(connection)
    except duckdb.Error:
        return None


def restore(backup: Path, config: StoreConfig, *, force: bool = False) -> None:
    """Replace the database, which must not be in use, by a backup. An existing one is kept as `.before-restore`,
    with a number if that name exists.

    The restored database has an identity of its own in shared tables, unless it has all that the existing one had.

    Raises `StoreError` or `DatabaseLocked`.
    """
    path = config.path
    if not backup.exists():
        raise StoreError(f"{backup}: no such backup")
    lock = DatabaseLock(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock.acquire()
    try:
        if path.exists() and not force:
            raise StoreError(f"{path}: exists: add --force to keep it as {path.name}.before-restore and go on")
        fresh = path.with_name(path.name + ".restored")
        _remove(fresh)
        copy_files(backup, fresh)
        checked = _connect(config.model_copy(update={"path": fresh}))
        try:
            if _sealing_state(checked) != _state_of_file(path):
                newest = checked.execute(f"SELECT greatest(0, max(seq)) FROM ({_ALL_SEQS})").fetchall()[0][0]
                checked.execute("UPDATE sealing SET origin = store, copied = ?, store = uuid()", [newest])
        finally:
            checked.close()
        kept = _unused(path.with_name(f"{path.name}.before-restore"))
        for old, new in zip(_files(path), _files(kept), strict=True):
            if old.exists():
                old.replace(new)
        fresh.replace(path)
    finally:
        lock.release()
