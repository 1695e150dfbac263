"""Reads the trace's database for `query`; never writes to it."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ingero_agent.health.throttle import Throttle
from ingero_agent.sources.trace_db import open_read_only
from ingero_agent.trace.events import Collective
from ingero_agent.trace.probes.table import OPERATION_NAMES, SOURCE_NAMES
from ingero_agent.trace.stacks import CallStack
from ingero_agent.trace.store import COLLECTIVE_COLUMNS, WIDTHS


@dataclass(frozen=True, kw_only=True)
class Filter:
    """The filter of a query; times in seconds since the epoch. `operation` is part of a name."""

    begin: float
    end: float
    pid: int | None = None
    operation: str = ""
    limit: int = 100

    @property
    def bounds(self) -> tuple[int, int]:
        """Begin and end in nanoseconds."""
        return int(self.begin * 1e9), int(self.end * 1e9)


_STEPS: Final = 10_000
"""Steps of SQLite between two checks of the time."""

OPERATIONS: Final = (
    "process", "pid", "source", "operation", "calls", "total_ms", "mean_us", "max_us", "megabytes",
    "container", "pod", "job",
)  # fmt: skip
COLLECTIVES: Final = (
    "time", "pid", "operation", "communicator", "rank", "nranks", "seq", "exact", "bytes", "enqueue_us", "blocked_ms"
)  # fmt: skip

STACKS: Final = ("time", "pid", "share", "samples", "stack")
ANNOTATIONS: Final = ("time", "process", "pid", "labels", "span_ms", "collectives", "blocked_ms")
GPUS: Final = (
    "time", "gpu", "uuid", "used_mb", "total_mb", "sm_mhz", "sm_max_mhz", "power", "thermal", "sw", "hw",
    "power_ms", "thermal_ms",
)  # fmt: skip


def has_table(database: sqlite3.Connection, table: str) -> bool:
    """Whether a database has a table; one of an older agent may lack it."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return database.execute(query, (table,)).fetchone() is not None


def has_gpu_samples(database: sqlite3.Connection) -> bool:
    """Whether it has readings of GPUs in the current form: an older agent stored none, or without `polls`."""
    query = "SELECT 1 FROM pragma_table_info('gpu_samples') WHERE name = 'polls'"
    return database.execute(query).fetchone() is not None


@contextmanager
def open_database(file: Path, budget: float | None = None) -> Iterator[sqlite3.Connection]:
    """Open it for reading, for at most `budget` seconds. Raises `FileNotFoundError`, `sqlite3.Error`."""
    if not file.exists():
        raise FileNotFoundError(f"{file} is not there: run `ingero-agent trace --db {file}` first")
    try:
        with open_read_only(file, timeout=5.0) as database:
            if budget is not None:
                end = time.monotonic() + budget
                database.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
            yield database
    except sqlite3.DatabaseError as error:
        raise sqlite3.DatabaseError(f"{file}: {error}") from None


def _operations_query(table: str, with_jobs: bool) -> str:
    """Calls by process and operation; a database of an older agent has no jobs."""
    job, joined = ("j.job_id", "LEFT JOIN process_jobs j ON j.pid = a.pid ") if with_jobs else ("NULL", "")
    return (
        f"SELECT n.name, a.pid, a.source, a.op, SUM(a.count), SUM(a.sum_dur), MAX(a.max_dur), SUM(a.sum_arg0), "
        f"m.container_id, m.namespace, m.pod_name, {job} "
        f"FROM {table} a LEFT JOIN process_names n ON n.pid = a.pid LEFT JOIN process_cgroups c ON c.pid = a.pid "
        f"LEFT JOIN cgroup_metadata m ON m.cgroup_id = c.cgroup_id {joined}"
        "WHERE a.bucket > ? AND a.bucket <= ? AND (? IS NULL OR a.pid = ?) "
        "GROUP BY a.pid, a.source, a.op ORDER BY 6 DESC, 5 DESC"
    )


def operations(file: Path, wanted: Filter) -> list[tuple[Any, ...]]:
    """Rows of `OPERATIONS`: calls by process and operation, most time first. Raises as `open_database`."""
    table = "event_aggregates_5s" if wanted.end - wanted.begin <= 300 else "event_aggregates"
    bounds = (wanted.begin - WIDTHS[table], wanted.end, wanted.pid, wanted.pid)
    with open_database(file) as database:
        found = database.execute(_operations_query(table, has_table(database, "process_jobs")), bounds).fetchall()
    rows = []
    for name, pid, source, op, count, spent, most, size, container, namespace, pod, job in found:
        operation = OPERATION_NAMES.get((source, op), str(op))
        if wanted.operation.lower() in operation.lower():
            rows.append(
                (
                    name or "", pid, SOURCE_NAMES.get(source, str(source)), operation, count, round(spent / 1e6, 3),
                    round(spent / count / 1e3, 3), round(most / 1e3, 3), round(size / 1e6, 3),
                    (container or "")[:12], "/".join(part for part in (namespace, pod) if part), job or "",
                )
            )  # fmt: skip
    return rows[: wanted.limit]


def read_collectives(database: sqlite3.Connection, wanted: Filter) -> list[Collective]:
    """Single collectives, newest last. Raises `sqlite3.Error`."""
    query = (
        f"SELECT {', '.join(COLLECTIVE_COLUMNS)} FROM collectives WHERE timestamp >= ? AND timestamp < ? "
        "AND (? IS NULL OR pid = ?) AND operation LIKE ? ORDER BY timestamp DESC LIMIT ?"
    )
    bounds = (*wanted.bounds, wanted.pid, wanted.pid, f"%{wanted.operation}%", wanted.limit)
    found = database.execute(query, bounds).fetchall()
    rows = (dict(zip(COLLECTIVE_COLUMNS.values(), row, strict=True)) for row in reversed(found))
    return [Collective(**{**row, "tid": 0, "exact": bool(row["exact"])}) for row in rows]


def collectives(file: Path, wanted: Filter) -> list[Collective]:
    """Single collectives, newest last. Raises as `open_database`."""
    with open_database(file) as database:
        return read_collectives(database, wanted)


def collective_rows(file: Path, wanted: Filter) -> list[tuple[Any, ...]]:
    """Rows of `COLLECTIVES`, newest last. Raises as `open_database`."""
    return [
        (
            round(one.arrival_ns / 1e9, 6), one.pid, one.operation, one.communicator, one.rank, one.nranks, one.seq,
            one.exact, one.size, round(one.enqueue_ns / 1e3, 1), round(one.blocked_ns / 1e6, 3),
        )
        for one in collectives(file, wanted)
    ]  # fmt: skip


def annotations(file: Path, wanted: Filter) -> list[tuple[Any, ...]]:
    """Rows of `ANNOTATIONS`, newest last: with the collectives of that process within the span.

    Raises as `open_database`.
    """
    query = (
        "SELECT a.timestamp, n.name, a.pid, a.labels, a.span_end - a.span_start, COUNT(c.seq), SUM(c.blocked_dur) "
        "FROM annotations a LEFT JOIN process_names n ON n.pid = a.pid "
        "LEFT JOIN collectives c ON c.pid = a.pid AND c.timestamp >= a.span_start AND c.timestamp < a.span_end "
        "WHERE a.timestamp >= ? AND a.timestamp < ? AND (? IS NULL OR a.pid = ?) "
        "GROUP BY a.id ORDER BY a.timestamp DESC LIMIT ?"
    )
    bounds = (*wanted.bounds, wanted.pid, wanted.pid, wanted.limit)
    with open_database(file) as database:
        found = database.execute(query, bounds).fetchall() if has_table(database, "annotations") else []
    rows = []
    for at, name, pid, labels, span, count, blocked in reversed(found):
        text = " ".join(f"{key}={value}" for key, value in json.loads(labels).items())
        within = (None,) * 3 if span is None else (round(span / 1e6, 3), count, round((blocked or 0) / 1e6, 3))
        rows.append((round(at / 1e9, 6), name or "", pid, text, *within))
    return rows


def read_stacks(database: sqlite3.Connection, wanted: Filter) -> list[CallStack]:
    """Call stacks, newest sampling last, in it the longest first. Raises `sqlite3.Error`."""
    if not has_table(database, "stacks"):
        return []
    query = (
        "SELECT timestamp, pid, frames, samples, nanoseconds, sampled_ns FROM stacks "
        "WHERE timestamp >= ? AND timestamp < ? AND (? IS NULL OR pid = ?) "
        "ORDER BY timestamp, nanoseconds DESC LIMIT ?"
    )
    found = database.execute(query, (*wanted.bounds, wanted.pid, wanted.pid, wanted.limit)).fetchall()
    return [
        CallStack(
            at_ns=at, pid=pid, frames=tuple(json.loads(frames)), samples=samples, nanoseconds=spent, sampled_ns=total
        )
        for at, pid, frames, samples, spent, total in found
    ]


def stack_rows(file: Path, wanted: Filter) -> list[tuple[Any, ...]]:
    """Rows of `STACKS`. Raises as `open_database`."""
    with open_database(file) as database:
        return [
            (round(one.at_ns / 1e9, 3), one.pid, round(one.share, 3), one.samples, " > ".join(one.frames))
            for one in read_stacks(database, wanted)
        ]


def gpus(file: Path, wanted: Filter) -> list[tuple[Any, ...]]:
    """Rows of `GPUS`, newest last; throttling as a share of polls. Raises as `open_database`."""
    query = (
        "SELECT ROUND(timestamp / 1e9, 3), gpu_id, uuid, used >> 20, total >> 20, sm_mhz, sm_max_mhz, "
        + "".join(f"ROUND(1.0 * {kind} / MAX(1, polls), 2), " for kind in Throttle)
        + "ROUND(power_ns / 1e6, 3), ROUND(thermal_ns / 1e6, 3) FROM gpu_samples "
        "WHERE timestamp >= ? AND timestamp < ? ORDER BY timestamp DESC LIMIT ?"
    )
    with open_database(file) as database:
        if not has_gpu_samples(database):
            return []
        return database.execute(query, (*wanted.bounds, wanted.limit)).fetchall()[::-1]


View = tuple[tuple[str, ...], Callable[[Path, Filter], list[tuple[Any, ...]]]]

VIEWS: Final[dict[str, View]] = {
    "operations": (OPERATIONS, operations),
    "collectives": (COLLECTIVES, collective_rows),
    "annotations": (ANNOTATIONS, annotations),
    "gpus": (GPUS, gpus),
    "stacks": (STACKS, stack_rows),
}
"""What `query` shows: columns, and the function that reads their rows."""
