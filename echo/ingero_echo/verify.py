"""`ingero-echo verify`: compares a database with itself and with the shared tables of its events. Reads only.

Everything is computed by the engine, one day after the other, in bounded memory. A row is identified by its event and
its order of arrival.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb

from ingero_echo import rollups
from ingero_echo.errors import UserError
from ingero_echo.lock import DatabaseLock
from ingero_echo.schema_versions import migrations
from ingero_echo.settings import EchoConfig
from ingero_echo.tables import TABLES
from ingero_echo.window import literal

LISTED: Final = 200
"""Most differences that are listed; further ones are counted."""

EXAMPLES: Final = 5
"""Most event ids or nodes that a difference names."""

_NAMED_BY: Final = {"events": "metric_name", "collectives": "measure"}
"""Columns that tell rows of one event apart."""


@dataclass(frozen=True)
class Difference:
    """Something that is not as it must be."""

    kind: str
    """For machines: missing_rows, changed_rows, doubled_rows, sums, missing_file, unreadable_file, file, boundary."""
    table: str
    message: str
    day: str | None = None
    rows: int = 0
    examples: tuple[str, ...] = ()


@dataclass
class TableReport:
    """What was counted of one table."""

    rows: int = 0
    """Rows in the database."""
    compared: int = 0
    """Rows of the database that were searched for in the shared table."""
    sealed_through: int | None = None
    """The boundary of this database in the shared table."""
    files: int = 0
    sealed_rows: int = 0
    """Rows in the files that were read, of all shards."""


@dataclass
class VerifyReport:
    """What was found."""

    database: str
    shard: str | None = None
    """The name of the database among those that share tables; without it only the database was checked."""
    tables: dict[str, TableReport] = field(default_factory=lambda: {table: TableReport() for table in TABLES})
    differences: list[Difference] = field(default_factory=list)
    unlisted: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def add(self, difference: Difference) -> None:
        """Note a difference."""
        if len(self.differences) < LISTED:
            self.differences.append(difference)
        else:
            self.unlisted += 1

    def facts(self) -> dict[str, Any]:
        """For machines."""
        return {"status": "whole" if self.whole else "differs", **asdict(self)}

    def lines(self) -> Iterator[str]:
        """For people."""
        shared = self.shard is not None
        yield f"{'table':16}{'rows':>12}" + (f"{'compared':>12}{'files':>8}{'rows in files':>16}" if shared else "")
        for name, found in self.tables.items():
            rest = f"{found.compared:12}{found.files:8}{found.sealed_rows:16}" if shared else ""
            yield f"{name:16}{found.rows:12}{rest}"
        for one in self.differences:
            examples = f" ({', '.join(one.examples)})" if one.examples else ""
            yield " ".join(filter(None, ("differs:", one.table, one.day, one.message))) + examples
        if self.unlisted:
            yield f"{self.unlisted} more differences"
        yield "whole" if self.whole else "not whole"


def row_key(table: str) -> str:
    """The columns that identify a row of a table, as a list in SQL."""
    return ", ".join(filter(None, ("event_id", "cluster_id", _NAMED_BY.get(table), "seq")))


def within_day(day: str) -> str:
    """The condition for rows of one day, with constants of the column's type, so that the engine skips other days."""
    after = date.fromisoformat(day) + timedelta(days=1)
    return f""""timestamp" >= '{day}'::TIMESTAMP_NS AND "timestamp" < '{after}'::TIMESTAMP_NS"""


def find_doubled(engine: Any, report: VerifyReport, table: str, day: str, rows: str, where: str) -> None:
    """Note rows that are there more than once. Rows from before the order of arrival cannot be told apart."""
    key = row_key(table)
    count, examples = engine.execute(
        f"SELECT count(*), min(event_id::VARCHAR, {EXAMPLES}) FROM "
        f"(SELECT {key} FROM {rows} WHERE seq > 0 GROUP BY {key} HAVING count(*) > 1)"
    ).fetchone()
    if count:
        message = f"{count} rows are {where} more than once"
        report.add(Difference("doubled_rows", table, message, day, count, tuple(examples)))


def find_wrong_sums(engine: Any, report: VerifyReport, day: str, expected: str, sums: str, where: str) -> None:
    """Note partial sums that are not the expected ones of the events; both are tables or queries in parentheses."""
    count, examples = engine.execute(
        f"SELECT count(*), min(cluster_id || '/' || node_id || '/' || metric_name, {EXAMPLES}) "
        f"FROM ({rollups.differing(expected, sums)})"
    ).fetchone()
    if count:
        message = f"{count} sums over five minutes {where} are not those of the events there"
        report.add(Difference("sums", "node_rollups", message, day, count, tuple(examples)))


def verify(config: EchoConfig, database: Path, since: int | None = None) -> VerifyReport:
    """Check a database that is not in use and, where `table` is set, the shared tables; from the day of a time on.

    Raises `UserError` and other errors of the engine and the disk when it cannot be checked.
    """
    if not database.exists():
        raise UserError(f"{database}: no such file")
    report = VerifyReport(str(database), config.table.shard if config.table else None)
    first = time.strftime("%Y-%m-%d", time.gmtime((since or 0) // 10**9))
    lock = DatabaseLock(database)
    lock.acquire()
    folder = database.absolute().with_name(database.name + ".verify")
    try:
        with _engine(config, database, folder) as engine:
            days = [day for day in _days(engine) if day >= first]
            for day in days:
                _check_day(engine, report, day)
            if config.table is not None:
                from ingero_echo.lake.comparison import compare  # optional

                compare(engine, config.table, folder, report, first, set(days))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
    return report


@contextmanager
def _engine(config: EchoConfig, database: Path, folder: Path) -> Iterator[Any]:
    """An engine with the database attached, which spills into the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    settings: dict[str, Any] = {
        "memory_limit": f"{config.store.memory_limit_mb}MB", "threads": config.store.threads,
        "temp_directory": str(folder / "spill"), "preserve_insertion_order": "false",
    }  # fmt: skip
    with duckdb.connect(config=settings) as engine:
        engine.execute(f"ATTACH {literal(str(database))} AS checked (READ_ONLY, TYPE duckdb)")
        engine.execute("USE checked")
        have = engine.execute("SELECT max(number) FROM schema_versions").fetchall()[0][0]
        if have != len(migrations()):
            raise UserError(
                f"{database}: has schema {have}, and this version checks {len(migrations())}",
                "start this version of Echo on it once, or use the version that wrote it",
            )
        yield engine


def _days(engine: Any) -> list[str]:
    tables = " UNION ALL ".join(f'SELECT "timestamp"::DATE AS day FROM {table}' for table in TABLES)
    return [str(day) for (day,) in engine.execute(f"SELECT DISTINCT day FROM ({tables}) ORDER BY 1").fetchall()]


def _check_day(engine: Any, report: VerifyReport, day: str) -> None:
    for table in TABLES:
        rows = f"(FROM {table} WHERE {within_day(day)})"
        report.tables[table].rows += engine.execute(f"SELECT count(*) FROM {rows}").fetchall()[0][0]
        if table != "node_rollups":
            find_doubled(engine, report, table, day, rows, "in the database")
    events, sums = (f"(FROM {table} WHERE {within_day(day)})" for table in ("events", "node_rollups"))
    find_wrong_sums(engine, report, day, f"({rollups.sums(events, '0')})", sums, "in the database")
