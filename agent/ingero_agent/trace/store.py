"""Stores the trace in SQLite: buckets that only grow, single collectives, slow calls. Safe against being killed."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from ingero_agent.health.throttle import Throttle
from ingero_agent.sources.trace_db import BUCKET_SECONDS, SCHEMA_VERSION
from ingero_agent.trace.annotations import Annotation
from ingero_agent.trace.containers import Container
from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.events import Collective, Event, Lifecycle, SlowCall
from ingero_agent.trace.gpu_stats import GpuWindow
from ingero_agent.trace.probes.table import NCCL
from ingero_agent.trace.settings import KEEP_SECONDS, MAX_DB_BYTES
from ingero_agent.trace.stacks import CallStack
from ingero_agent.trace.stats import HostSnapshot
from ingero_kit.clock import Every

_AGGREGATE: Final = """(bucket INTEGER, source INTEGER, op INTEGER, pid INTEGER, count INTEGER NOT NULL,
stored INTEGER NOT NULL DEFAULT 0, sum_dur INTEGER NOT NULL, min_dur INTEGER NOT NULL DEFAULT 0,
max_dur INTEGER NOT NULL, sum_arg0 INTEGER NOT NULL, PRIMARY KEY (bucket, source, op, pid)) WITHOUT ROWID"""

HISTOGRAM_TABLE: Final = "operation_octaves"
_TABLES: Final = {
    HISTOGRAM_TABLE: """(bucket INTEGER, source INTEGER, op INTEGER, pid INTEGER, octave INTEGER,
count INTEGER NOT NULL, PRIMARY KEY (bucket, source, op, pid, octave)) WITHOUT ROWID""",
    "event_aggregates": _AGGREGATE,
    "event_aggregates_5s": _AGGREGATE,
    "writer": "(id INTEGER PRIMARY KEY CHECK (id = 1), written_at INTEGER NOT NULL)",
    "pauses": "(begun_at INTEGER NOT NULL, ended_at INTEGER NOT NULL)",
    "process_names": "(pid INTEGER PRIMARY KEY, name TEXT, seen_at INTEGER)",
    "process_cgroups": "(pid INTEGER PRIMARY KEY, cgroup_id INTEGER, seen_at INTEGER)",
    "process_jobs": "(pid INTEGER PRIMARY KEY, job_id TEXT, seen_at INTEGER)",
    "cgroup_metadata": """(cgroup_id INTEGER PRIMARY KEY, container_id TEXT, cgroup_path TEXT, pod_name TEXT,
namespace TEXT, pod_uid TEXT, seen_at INTEGER)""",
    "events": """(id TEXT PRIMARY KEY, timestamp INTEGER, pid INTEGER, tid INTEGER, source INTEGER, op INTEGER,
duration INTEGER, gpu_id INTEGER, arg0 INTEGER, arg1 INTEGER, ret_code INTEGER, stack_hash TEXT, node TEXT,
rank INTEGER, local_rank INTEGER, world_size INTEGER, comm TEXT, cgroup_id INTEGER)""",
    "collectives": """(timestamp INTEGER NOT NULL, pid INTEGER NOT NULL, source INTEGER NOT NULL, op INTEGER NOT NULL,
operation TEXT NOT NULL, comm_hash TEXT, rank INTEGER, nranks INTEGER NOT NULL, device INTEGER NOT NULL,
seq INTEGER NOT NULL, seq_exact INTEGER NOT NULL, datatype INTEGER NOT NULL, reduce_op INTEGER, bytes INTEGER,
enqueue_dur INTEGER NOT NULL, blocked_dur INTEGER NOT NULL, end_at INTEGER NOT NULL)""",
    "system_snapshots": """(id INTEGER PRIMARY KEY, timestamp INTEGER UNIQUE, cpu_pct REAL, mem_pct REAL,
mem_avail INTEGER, swap_mb INTEGER, load_avg REAL)""",
    "annotations": """(id INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL, labels TEXT NOT NULL, pid INTEGER NOT NULL,
start_time INTEGER NOT NULL, span_start INTEGER, span_end INTEGER, peer_uid INTEGER, peer_gid INTEGER,
peer_pid INTEGER)""",
    "stacks": """(timestamp INTEGER NOT NULL, pid INTEGER NOT NULL, frames TEXT NOT NULL, samples INTEGER NOT NULL,
nanoseconds INTEGER NOT NULL, sampled_ns INTEGER NOT NULL)""",
    "gpu_samples": """(timestamp INTEGER NOT NULL, gpu_id INTEGER NOT NULL, uuid TEXT NOT NULL, used INTEGER NOT NULL,
free INTEGER NOT NULL, total INTEGER NOT NULL, polls INTEGER NOT NULL, power INTEGER NOT NULL,
thermal INTEGER NOT NULL, sw INTEGER NOT NULL, hw INTEGER NOT NULL, sm_mhz INTEGER, sm_max_mhz INTEGER,
power_ns INTEGER, thermal_ns INTEGER)""",
}
_INDEXES: Final = (
    "CREATE INDEX IF NOT EXISTS events_time ON events (timestamp)",
    "CREATE INDEX IF NOT EXISTS collectives_time ON collectives (timestamp)",
    "CREATE INDEX IF NOT EXISTS annotations_time ON annotations (timestamp)",
    "CREATE INDEX IF NOT EXISTS gpu_samples_time ON gpu_samples (timestamp)",
    "CREATE INDEX IF NOT EXISTS stacks_time ON stacks (timestamp)",
    "CREATE INDEX IF NOT EXISTS collectives_process ON collectives (pid, timestamp)",
    "CREATE INDEX IF NOT EXISTS collectives_match ON collectives (comm_hash, seq)",
)
COLLECTIVE_COLUMNS: Final = {
    "timestamp": "arrival_ns", "pid": "pid", "op": "op_code", "operation": "operation", "comm_hash": "communicator",
    "rank": "rank", "nranks": "nranks", "device": "device", "seq": "seq", "seq_exact": "exact", "datatype": "dtype",
    "reduce_op": "reduce_op", "bytes": "size", "enqueue_dur": "enqueue_ns", "blocked_dur": "blocked_ns",
    "end_at": "end_ns",
}  # fmt: skip
"""Columns of single collectives, with the fields of `Collective` that they store."""

_TIME_COLUMNS: Final = {
    "bucket": (1, ("event_aggregates", "event_aggregates_5s", HISTOGRAM_TABLE)),
    "seen_at": (1, ("process_names", "process_cgroups", "process_jobs", "cgroup_metadata")),
    "ended_at": (10**9, ("pauses",)),
    "timestamp": (10**9, ("events", "system_snapshots", "collectives", "annotations", "gpu_samples", "stacks")),
}
"""Columns that rows are removed by, with their units in a second and their tables."""

WIDTHS: Final = {"event_aggregates": 60, "event_aggregates_5s": BUCKET_SECONDS}
_NS: Final = 10**9
INIT, DESTROY = 1, 2
"""Operations of NCCL under which created and destroyed communicators are stored."""

PRUNE_SECONDS: Final = 10.0
FULL_SHARE: Final = 0.9
"""A database over its limit is pruned to this share of it."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long data is kept and how much. Aggregates of 5 s are for `fleet-push` and are kept for ten minutes."""

    seconds: float = KEEP_SECONDS
    collective_seconds: float = 86400.0
    short_seconds: float = 600.0
    max_bytes: int = MAX_DB_BYTES


class TraceStore:
    """The database, with one writer. Raises `sqlite3.Error`."""

    def __init__(self, file: Path, retention: Retention | None = None) -> None:
        """Raises `OSError`, which names the file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._retention = retention or Retention()
        self._prune_due = Every(PRUNE_SECONDS)
        self.pruned_rows = 0
        try:
            self._database = sqlite3.connect(file, timeout=5.0)
            self._prepare()
        except sqlite3.Error as error:
            raise OSError(f"{file} cannot be used as the database: {error}") from None

    def _prepare(self) -> None:
        """Make what is missing. A database of another program is left as it is."""
        run = self._database.execute
        (version,) = run("PRAGMA user_version").fetchone()
        names = {name for (name,) in run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version > SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"it has schema version {version}, newer than {SCHEMA_VERSION}")
        if version == 0 and names - set(_TABLES):
            raise sqlite3.DatabaseError("it is that of another program")
        run("PRAGMA auto_vacuum = INCREMENTAL")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run(f"PRAGMA journal_size_limit = {16 * 2**20}")
        for table, columns in _TABLES.items():
            run(f"CREATE TABLE IF NOT EXISTS {table} {columns}{' STRICT' if table == 'collectives' else ''}")
        for index in _INDEXES:
            run(index)
        run(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._database.commit()

    def begin(self, now: float) -> None:
        """Record that counting began at `now` (seconds): since the last write nothing was counted."""
        with self._database as database:
            database.execute(
                "INSERT INTO pauses SELECT written_at, ? FROM writer WHERE written_at < ?", [int(now * _NS)] * 2
            )

    def add(
        self, rows: Iterable[CallCount], now: float, names: dict[int, str] | None = None, events: Iterable[Event] = ()
    ) -> None:
        """Add to the buckets of `now` (seconds). Late data is added to its bucket and never replaces it."""
        rows, events = list(rows), list(events)
        with self._database as database:
            self._add_counts(database, rows, now)
            _insert(database, "OR REPLACE", "writer (id, written_at)", [(1, int(now * _NS))])
            known = [(pid, name, int(now)) for pid, name in (names or {}).items()]
            _insert(database, "OR REPLACE", "process_names (pid, name, seen_at)", known)
            singles = [event for event in events if isinstance(event, Collective)]
            _insert(
                database,
                "",
                f"collectives (source, {', '.join(COLLECTIVE_COLUMNS)})",
                [(NCCL, *(getattr(one, field) for field in COLLECTIVE_COLUMNS.values())) for one in singles],
            )
            _insert(
                database,
                "OR IGNORE",
                "events (id, timestamp, pid, tid, source, op, duration, arg0, ret_code)",
                [_slow(event) for event in events if isinstance(event, SlowCall)],
            )
            _insert(
                database, "OR IGNORE",
                "events (id, timestamp, pid, source, op, arg0, ret_code, rank, world_size, comm)",
                [_lifecycle(event) for event in events if isinstance(event, Lifecycle)],
            )  # fmt: skip
        if self._prune_due.due(now):
            self.prune(now)

    @staticmethod
    def _add_counts(database: sqlite3.Connection, rows: Iterable[CallCount], now: float) -> None:
        sums: dict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        histogram: dict[tuple[int, int, int, int], int] = defaultdict(int)
        for row in rows:
            total = sums[row.function.source, row.function.operation, row.pid]
            total[0] += row.count
            total[1] += row.nanoseconds
            total[2] = max(total[2], row.longest)
            total[3] += row.size
            for octave, count in enumerate(row.histogram):
                if count:
                    histogram[row.function.source, row.function.operation, row.pid, octave] += count
        for table, width in WIDTHS.items():
            bucket = int(now) // width * width
            database.executemany(
                f"INSERT INTO {table} (bucket, source, op, pid, count, sum_dur, max_dur, sum_arg0) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count, "
                "sum_dur = sum_dur + excluded.sum_dur, max_dur = max(max_dur, excluded.max_dur), "
                "sum_arg0 = sum_arg0 + excluded.sum_arg0",
                [(bucket, *key, *total) for key, total in sums.items()],
            )
        minute = int(now) // WIDTHS["event_aggregates"] * WIDTHS["event_aggregates"]
        database.executemany(
            f"INSERT INTO {HISTOGRAM_TABLE} VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET count = count + excluded.count",
            [(minute, *key, count) for key, count in histogram.items()],
        )

    def stacks(self, found: Iterable[CallStack]) -> None:
        """Store call stacks."""
        rows = [
            (one.at_ns, one.pid, json.dumps(one.frames), one.samples, one.nanoseconds, one.sampled_ns)
            for one in found
        ]
        with self._database as database:
            _insert(database, "", "stacks (timestamp, pid, frames, samples, nanoseconds, sampled_ns)", rows)

    def annotations(self, found: Iterable[Annotation]) -> None:
        """Store annotations."""
        columns = "timestamp, labels, pid, start_time, span_start, span_end, peer_uid, peer_gid, peer_pid"
        rows = [
            (
                one.timestamp, json.dumps(one.labels), one.pid, one.start_time, one.span_start, one.span_end,
                one.peer.uid, one.peer.gid, one.peer.pid,
            )
            for one in found
        ]  # fmt: skip
        with self._database as database:
            _insert(database, "", f"annotations ({columns})", rows)

    def gpus(self, found: Iterable[GpuWindow], now: float) -> None:
        """Store the GPU windows since the previous call."""
        with self._database as database:
            columns = (
                "timestamp, gpu_id, uuid, used, free, total, polls, power, thermal, sw, hw, sm_mhz, sm_max_mhz, "
                "power_ns, thermal_ns"
            )
            _insert(database, "", f"gpu_samples ({columns})", [_gpu(one, int(now * _NS)) for one in found])

    def places(self, found: Mapping[int, Container], jobs: Mapping[int, str], now: float) -> None:
        """Store the containers and the Slurm jobs of processes."""
        with self._database as database:
            processes = [(pid, one.cgroup, int(now)) for pid, one in found.items()]
            _insert(database, "OR REPLACE", "process_cgroups (pid, cgroup_id, seen_at)", processes)
            _insert(
                database, "OR REPLACE",
                "cgroup_metadata (cgroup_id, container_id, cgroup_path, pod_name, namespace, pod_uid, seen_at)",
                [
                    (one.cgroup, one.container, one.path, one.pod, one.namespace, one.pod_uid, int(now))
                    for one in found.values()
                ],
            )  # fmt: skip
            known = [(pid, job, int(now)) for pid, job in jobs.items()]
            _insert(database, "OR REPLACE", "process_jobs (pid, job_id, seen_at)", known)

    def snapshot(self, host: HostSnapshot, now: float) -> None:
        """Store the state of the host at `now`."""
        with self._database as database:
            _insert(
                database, "OR IGNORE",
                "system_snapshots (timestamp, cpu_pct, mem_pct, mem_avail, swap_mb, load_avg)",
                [(int(now * _NS), *astuple(host))],
            )  # fmt: skip

    def prune(self, now: float) -> None:
        """Remove what is too old; then, while the database is too large, the oldest tenth of everything."""
        kept = self._retention
        seconds = {"event_aggregates_5s": kept.short_seconds, "pauses": kept.short_seconds,
                   "collectives": kept.collective_seconds}  # fmt: skip
        limits = [
            (table, column, (now - seconds.get(table, kept.seconds)) * scale)
            for column, (scale, tables) in _TIME_COLUMNS.items()
            for table in tables
        ]
        with self._database as database:
            for table, column, before in limits:
                self.pruned_rows += database.execute(
                    f"DELETE FROM {table} WHERE {column} < ?", (int(before),)
                ).rowcount
        if self._used_bytes() > kept.max_bytes:
            self._shrink([(table, column) for table, column, _ in limits])

    def _shrink(self, columns: list[tuple[str, str]]) -> None:
        while self._used_bytes() > self._retention.max_bytes * FULL_SHARE:
            removed = 0
            with self._database as database:
                for table, column in columns:
                    (rows,) = database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
                    if not rows:
                        continue
                    (edge,) = database.execute(
                        f"SELECT {column} FROM {table} ORDER BY {column} LIMIT 1 OFFSET ?", (rows // 10,)
                    ).fetchone()
                    removed += database.execute(f"DELETE FROM {table} WHERE {column} <= ?", (edge,)).rowcount
            self.pruned_rows += removed
            if not removed:
                break
        self._database.execute("PRAGMA incremental_vacuum").fetchall()
        self._database.commit()
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @property
    def size(self) -> int:
        """Bytes on disk."""
        try:
            return self._file.stat().st_size
        except OSError:
            return 0

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _used_bytes(self) -> int:
        def pragma(name: str) -> int:
            return int(self._database.execute(f"PRAGMA {name}").fetchone()[0])

        return (pragma("page_count") - pragma("freelist_count")) * pragma("page_size")


def _insert(database: sqlite3.Connection, conflict: str, columns: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Insert rows into `table (columns)`; `conflict` says what becomes of a row whose key exists."""
    marks = ", ".join("?" * (columns.count(",") + 1))
    database.executemany(f"INSERT {conflict} INTO {columns} VALUES ({marks})", rows)


def _lifecycle(one: Lifecycle) -> tuple[object, ...]:
    operation = DESTROY if one.kind == "destroy" else INIT
    return (
        f"{one.kind}:{one.at_ns}:{one.pid}", one.at_ns, one.pid, NCCL, operation, one.seq, one.result, one.rank,
        one.nranks, one.communicator,
    )  # fmt: skip


def _slow(one: SlowCall) -> tuple[object, ...]:
    identity = f"{one.begun_ns}:{one.tid}"
    return (
        identity, one.begun_ns, one.pid, one.tid, one.source, one.operation, one.duration_ns, one.size, one.result
    )  # fmt: skip


def _gpu(one: GpuWindow, at_ns: int) -> tuple[object, ...]:
    return (
        at_ns, one.index, one.uuid, one.used, one.free, one.total, one.polls,
        *(one.throttled.get(kind, 0) for kind in Throttle), one.sm_mhz, one.sm_max_mhz,
        one.throttled_ns.get(Throttle.POWER), one.throttled_ns.get(Throttle.THERMAL),
    )  # fmt: skip
