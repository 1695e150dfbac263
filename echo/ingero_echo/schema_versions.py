"""The schema in numbered files, applied in order, and what of it is published."""

import functools
import re
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb

from ingero_echo.database_file import StoreError
from ingero_echo.tables import TABLES
from ingero_kit.logs import get

log = get(__name__)


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
