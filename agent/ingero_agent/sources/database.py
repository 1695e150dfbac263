"""The trace agent's SQLite database, read only: launches, busy time and copies of the latest window.

Only GPU sources count (runtime, driver, graphs): the same operation codes mean other things for host and disk.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from ingero_agent.health.signals import Observation
from ingero_agent.sources import ReadFailed
from ingero_agent.sources.procfs import parse_cpu, parse_memory

SCHEMA_VERSION: Final = 10
SOURCES: Final = (1, 4, 8)
"""CUDA runtime, CUDA driver, CUDA graphs."""

LAUNCHES: Final = ((1, 3), (4, 1), (8, 4))
"""(source, operation) of every way to launch work."""

BUCKET_SECONDS: Final = 5


class DatabaseSource:
    """Rates over a sliding window of whole buckets, of these processes or of all."""

    def __init__(
        self, file: Path, window_seconds: float, gpus: int, pids: tuple[int, ...] = (), proc: Path = Path("/proc")
    ) -> None:
        self._file = file
        self._window = max(window_seconds, 2 * BUCKET_SECONDS)
        self._gpus = max(1, gpus)
        self._pids = f" AND pid IN ({', '.join(map(str, pids))})" if pids else ""
        self._proc = proc
        self._cpu: tuple[int, int] | None = None

    def read(self, now: float) -> Observation:
        """Sum the buckets that end inside the window; a locked or missing database fails this look only."""
        newest = int(now) // BUCKET_SECONDS * BUCKET_SECONDS
        oldest = newest - int(self._window) // BUCKET_SECONDS * BUCKET_SECONDS
        seconds = newest - oldest
        launch_filter = " OR ".join(f"(source = {source} AND op = {operation})" for source, operation in LAUNCHES)
        query = (
            f"SELECT COALESCE(SUM(CASE WHEN {launch_filter} THEN count END), 0), COALESCE(SUM(sum_dur), 0) "
            f"FROM event_aggregates_5s WHERE source IN {SOURCES} AND bucket >= ? AND bucket < ?{self._pids}"
        )
        try:
            with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, timeout=1.0)) as database:
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version != SCHEMA_VERSION:
                    raise ReadFailed(
                        f"{self._file}: schema version {version}, but this agent reads {SCHEMA_VERSION}: "
                        "run the same version of `ingero-agent trace`"
                    )
                launches, nanoseconds = database.execute(query, (oldest, newest)).fetchone()
            busy, total = parse_cpu((self._proc / "stat").read_text())
            memory = parse_memory((self._proc / "meminfo").read_text())
        except (sqlite3.Error, OSError, ValueError, KeyError) as error:
            raise ReadFailed(f"{self._file}: {error}") from None
        before, self._cpu = self._cpu, (busy, total)
        share = (busy - before[0]) / max(1, total - before[1]) if before else 0.0
        return Observation(
            rate=launches / seconds,
            compute=min(1.0, nanoseconds / (seconds * 1e9 * self._gpus)),
            memory=memory,
            cpu=1.0 - share,
            launches=int(launches),
        )

    def close(self) -> None:
        """Every look opens and closes its own connection."""
