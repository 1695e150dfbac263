"""A database on disk: its files, how they are copied, whether they are whole, and what their errors mean."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb

from ingero_echo.errors import UserError

LOCKED: Final = "lock on file"
"""The engine's message when another process has the file."""

LOGS: Final = (".wal", ".wal.checkpoint", ".wal.recovery")
"""Files that the engine may keep next to a database: its log, and the logs of an interrupted checkpoint."""

_HEADERS: Final = 3 * 4096
"""Bytes before the first block of a database file."""


class StoreError(UserError):
    """The database cannot be used; the text says why and what to do."""


def volume_used(path: Path) -> float | None:
    """Used share of the volume that a file is on, 0 to 1; blocks reserved for root count as neither used nor free."""
    try:
        facts = os.statvfs(path.parent)
    except OSError:
        return None
    used = facts.f_blocks - facts.f_bfree
    return used / (used + facts.f_bavail) if used + facts.f_bavail else None


def log_of(path: Path) -> Path:
    """The write-ahead log of a database."""
    return path.with_name(path.name + LOGS[0])


def database_files(path: Path) -> list[Path]:
    """A database and its logs, whether they exist or not."""
    return [path.with_name(path.name + suffix) for suffix in ("", *LOGS)]


def remove_database(path: Path) -> None:
    """Remove a database and its logs, if they exist."""
    for file in database_files(path):
        file.unlink(missing_ok=True)


def check_length(connection: Any, path: Path) -> None:
    """Refuse a file that ends before its last block in use: DuckDB would notice only when it reads that block.

    The header's number of blocks cannot be used. A checkpoint writes the header first, then cuts free blocks off the
    end of the file; until the next one the header counts blocks that are not there, and lists them as free.
    """
    block, total = connection.execute("SELECT block_size, total_blocks FROM pragma_database_size()").fetchall()[0]
    there = (path.stat().st_size - _HEADERS) // block
    if there < total and there <= (last := last_block(connection)):
        raise StoreError(unreadable(path, f"it ends in the middle: {there} blocks are there, {last + 1} are needed"))


def last_block(connection: Any) -> int:
    """Number of the last block in use, -1 when there is none; reads metadata only."""
    highest = "SELECT max(greatest(block_id, list_max(additional_block_ids))) FROM pragma_storage_info(?)"
    tables = connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall()
    blocks = [connection.execute(highest, [table]).fetchall()[0][0] for (table,) in tables]
    blocks += connection.execute("SELECT max(block_id) FROM pragma_metadata_info()").fetchall()[0]
    return max((block for block in blocks if block is not None), default=-1)


def disk_problem(error: Exception) -> str | None:
    """The meaning and remedy of a failed write, for causes that a user can remove; `None` for others."""
    text = str(error).lower()
    if "no space" in text or "disk quota" in text or "file too large" in text:
        return "the disk is full: make room; nothing that was acknowledged is lost"
    if "read-only" in text or "permission denied" in text:
        return "the volume cannot be written: make it and the file writable; nothing that was acknowledged is lost"
    return None


def open_error(path: Path, error: Exception) -> str:
    """Why a database cannot be opened, and what to do."""
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
            f"{path}: the log of the database is damaged: {text}. Nothing was changed. Move {log_of(path)}* "
            "to another place and keep it: Echo then starts with all that was folded into the database before"
        )
    return unreadable(path, text)


def unreadable(path: Path, text: str) -> str:
    """What to do with a database that cannot be read for this reason."""
    return (
        f"{path}: the database cannot be read: {text}. Nothing was changed. Put a backup in its place with "
        f"`ingero-echo restore BACKUP --database {path} --force`, which keeps the present files; without a "
        f"backup move the file and {log_of(path)} to another place, keep them, and start anew"
    )


def copy_files(source: Path, target: Path) -> None:
    """Copy a database file and its log, so that the target appears whole or not at all."""
    with appearing(target) as part:
        for file, copied in zip(database_files(source), database_files(part), strict=True):
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
def appearing(target: Path) -> Iterator[Path]:
    """A database file to write, which becomes the target when it is complete and on disk, and is removed otherwise.

    Raises `StoreError` when it cannot be written.
    """
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_database(part)
    try:
        yield part
        with part.open("rb") as copied:
            os.fsync(copied.fileno())
        part.replace(target)
    except (OSError, duckdb.Error) as error:
        raise StoreError(f"{target}: the copy could not be written: {error}") from None
    finally:
        remove_database(part)
