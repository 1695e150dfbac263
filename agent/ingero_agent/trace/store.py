"""What was counted, in SQLite: buckets that only ever grow, safe against being killed."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero_agent.sources.database import BUCKET_SECONDS, SCHEMA_VERSION

_COLUMNS: Final = """(bucket INTEGER, source INTEGER, op INTEGER, pid INTEGER, count INTEGER NOT NULL, stored INTEGER
NOT NULL DEFAULT 0, sum_dur INTEGER NOT NULL, min_dur INTEGER NOT NULL DEFAULT 0, max_dur INTEGER NOT NULL,
sum_arg0 INTEGER NOT NULL, PRIMARY KEY (bucket, source, op, pid)) WITHOUT ROWID"""
KEEP_SECONDS: Final = {"event_aggregates": 7 * 86400, "event_aggregates_5s": 600}
WIDTHS: Final = {"event_aggregates": 60, "event_aggregates_5s": BUCKET_SECONDS}


@dataclass(frozen=True)
class Counted:
    """Calls of one operation by one process since the look before; nanoseconds and bytes."""

    source: int
    operation: int
    pid: int
    count: int
    nanoseconds: int = 0
    longest: int = 0
    size: int = 0


class Store:
    """One writer."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(file, timeout=5.0)
        run = self._database.execute
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        for table in WIDTHS:
            run(f"CREATE TABLE IF NOT EXISTS {table} {_COLUMNS}")
        run("CREATE TABLE IF NOT EXISTS process_names (pid INTEGER PRIMARY KEY, name TEXT, seen_at INTEGER)")
        run(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._database.commit()

    def add(self, rows: Iterable[Counted], now: float, names: dict[int, str] | None = None) -> None:
        """Add to the buckets of `now` (seconds); what comes late adds to its bucket, it never replaces it."""
        rows = list(rows)
        with self._database as database:
            for table, width in WIDTHS.items():
                bucket = int(now) // width * width
                database.executemany(
                    f"INSERT INTO {table} (bucket, source, op, pid, count, sum_dur, max_dur, sum_arg0) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count, "
                    "sum_dur = sum_dur + excluded.sum_dur, max_dur = max(max_dur, excluded.max_dur), "
                    "sum_arg0 = sum_arg0 + excluded.sum_arg0",
                    [
                        (
                            bucket,
                            row.source,
                            row.operation,
                            row.pid,
                            row.count,
                            row.nanoseconds,
                            row.longest,
                            row.size,
                        )
                        for row in rows
                    ],
                )
                database.execute(f"DELETE FROM {table} WHERE bucket < ?", (int(now) - KEEP_SECONDS[table],))
            database.executemany(
                "INSERT OR REPLACE INTO process_names VALUES (?, ?, ?)",
                [(pid, name, int(now)) for pid, name in (names or {}).items()],
            )

    def close(self) -> None:
        """Finish."""
        self._database.close()
