"""Backups of a database: put back, and written anew without free blocks."""

from itertools import chain, count
from pathlib import Path
from typing import Any

import duckdb

from ingero_echo.database_file import StoreError, appearing, copy_files, database_files, remove_database
from ingero_echo.lock import DatabaseLock
from ingero_echo.settings import StoreConfig
from ingero_echo.store import ALL_SEQS, connect_database
from ingero_echo.window import literal


def _unused(path: Path) -> Path:
    """The path, with a number appended if it exists already."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(2))
    return next(name for name in chain([path], numbered) if not any(file.exists() for file in database_files(name)))


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
        with appearing(target) as part, duckdb.connect(config=config) as both:
            both.execute(f"ATTACH {literal(str(source))} AS old (READ_ONLY, TYPE duckdb)")
            both.execute(f"ATTACH {literal(str(part))} AS fresh")
            both.execute("COPY FROM DATABASE old TO fresh")
            both.execute("CHECKPOINT fresh")
    finally:
        lock.release()


def _sealing_state(connection: Any) -> Any:
    """Identity, boundaries and the highest order of arrival of a database."""
    query = f"SELECT store, sealed, deleted, (SELECT max(seq) FROM ({ALL_SEQS})) FROM sealing"
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
        remove_database(fresh)
        copy_files(backup, fresh)
        checked = connect_database(config.model_copy(update={"path": fresh}))
        try:
            if _sealing_state(checked) != _state_of_file(path):
                newest = checked.execute(f"SELECT greatest(0, max(seq)) FROM ({ALL_SEQS})").fetchall()[0][0]
                checked.execute("UPDATE sealing SET origin = store, copied = ?, store = uuid()", [newest])
        finally:
            checked.close()
        kept = _unused(path.with_name(f"{path.name}.before-restore"))
        for old, new in zip(database_files(path), database_files(kept), strict=True):
            if old.exists():
                old.replace(new)
        fresh.replace(path)
    finally:
        lock.release()
