"""Reads the trace's database for `query` and `explain`; never writes to it."""

import os
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ingero_agent.sources.database import LAUNCHES, SCHEMA_VERSION
from ingero_agent.trace.chains import Slow, Stretch
from ingero_agent.trace.events import Collective
from ingero_agent.trace.probes.table import HOST, OPERATION_NAMES, SCHED_SWITCH, SOURCE_NAMES
from ingero_agent.trace.store import OCTAVE_TABLE, WIDTHS, Snapshot

_NS: Final = 10**9
_COLLECTIVE: Final = (
    "pid", "operation", "op", "comm_hash", "rank", "nranks", "device", "seq", "seq_exact", "datatype", "reduce_op",
    "bytes", "timestamp", "enqueue_dur", "blocked_dur", "end_at",
)  # fmt: skip
MAX_COLLECTIVES: Final = 200_000


class CannotRead(Exception):
    """The database cannot be used; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What to look at; times in seconds since the epoch. `operation` is part of a name."""

    begin: float
    end: float
    pid: int | None = None
    operation: str = ""
    limit: int = 100


OPERATIONS: Final = (
    "process", "pid", "source", "operation", "calls", "total_ms", "mean_us", "max_us", "megabytes", "container", "pod"
)  # fmt: skip
COLLECTIVES: Final = (
    "time", "pid", "operation", "communicator", "rank", "nranks", "seq", "exact", "bytes", "enqueue_us", "blocked_ms"
)  # fmt: skip


def _connect(file: Path) -> sqlite3.Connection:
    if not file.exists():
        raise CannotRead(f"{file} is not there: run `ingero-agent trace --db {file}` first")
    database = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=5.0)
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        database.close()
        raise CannotRead(f"{file} has schema version {version}, but this agent reads {SCHEMA_VERSION}")
    return database


def operations(file: Path, wanted: Filter) -> list[tuple[Any, ...]]:
    """Rows of `OPERATIONS`: calls by process and operation, most time first. Raises `CannotRead`, `sqlite3.Error`."""
    table = "event_aggregates_5s" if wanted.end - wanted.begin <= 300 else "event_aggregates"
    query = (
        f"SELECT n.name, a.pid, a.source, a.op, SUM(a.count), SUM(a.sum_dur), MAX(a.max_dur), SUM(a.sum_arg0), "
        "m.container_id, m.namespace, m.pod_name "
        f"FROM {table} a LEFT JOIN process_names n ON n.pid = a.pid LEFT JOIN process_cgroups c ON c.pid = a.pid "
        "LEFT JOIN cgroup_metadata m ON m.cgroup_id = c.cgroup_id "
        "WHERE a.bucket > ? AND a.bucket <= ? AND (? IS NULL OR a.pid = ?) "
        "GROUP BY a.pid, a.source, a.op ORDER BY 6 DESC, 5 DESC"
    )
    bounds = (wanted.begin - WIDTHS[table], wanted.end, wanted.pid, wanted.pid)
    with closing(_connect(file)) as database:
        found = database.execute(query, bounds).fetchall()
    rows = []
    for name, pid, source, op, count, spent, most, size, container, namespace, pod in found:
        operation = OPERATION_NAMES.get((source, op), str(op))
        if wanted.operation.lower() in operation.lower():
            rows.append(
                (
                    name or "", pid, SOURCE_NAMES.get(source, str(source)), operation, count, round(spent / 1e6, 3),
                    round(spent / count / 1e3, 3), round(most / 1e3, 3), round(size / 1e6, 3),
                    (container or "")[:12], "/".join(part for part in (namespace, pod) if part),
                )
            )  # fmt: skip
    return rows[: wanted.limit]


def collectives(file: Path, wanted: Filter) -> list[Collective]:
    """Single collectives, newest last. Raises `CannotRead`, `sqlite3.Error`."""
    query = (
        f"SELECT {', '.join(_COLLECTIVE)} FROM collectives WHERE timestamp >= ? AND timestamp < ? "
        "AND (? IS NULL OR pid = ?) AND operation LIKE ? ORDER BY timestamp DESC LIMIT ?"
    )
    bounds = (
        int(wanted.begin * _NS), int(wanted.end * _NS), wanted.pid, wanted.pid, f"%{wanted.operation}%", wanted.limit
    )  # fmt: skip
    with closing(_connect(file)) as database:
        found = database.execute(query, bounds).fetchall()
    return [_collective(row) for row in reversed(found)]


def collective_rows(found: Sequence[Collective]) -> list[tuple[Any, ...]]:
    """Rows of `COLLECTIVES`."""
    return [
        (
            round(one.arrival_ns / 1e9, 6), one.pid, one.operation, one.communicator, one.rank, one.nranks, one.seq,
            one.exact, one.size, round(one.enqueue_ns / 1e3, 1), round(one.blocked_ns / 1e6, 3),
        )
        for one in found
    ]  # fmt: skip


def stretch(file: Path, wanted: Filter) -> Stretch:
    """Everything that `find_chains` looks at. Raises `CannotRead`, `sqlite3.Error`."""
    begin, end = wanted.begin, wanted.end
    short = end - begin <= 600
    table = "event_aggregates_5s" if short else "event_aggregates"
    width = WIDTHS[table]
    launch = " OR ".join(f"(source = {source} AND op = {op})" for source, op in LAUNCHES)
    only = "" if wanted.pid is None else f" AND pid = {wanted.pid}"
    with closing(_connect(file)) as database:
        octaves: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0] * 32)
        for pid, source, op, octave, count in database.execute(
            f"SELECT pid, source, op, octave, SUM(count) FROM {OCTAVE_TABLE} WHERE bucket > ? AND bucket <= ?{only} "
            f"AND source != {HOST} GROUP BY pid, source, op, octave", (begin - 60, end),
        ):  # fmt: skip
            octaves[pid, OPERATION_NAMES.get((source, op), str(op))][octave] += count
        rates: dict[int, dict[int, float]] = defaultdict(dict)
        newest = int(end) // width * width
        for pid, bucket, count in database.execute(
            f"SELECT pid, bucket, SUM(count) FROM {table} WHERE ({launch}) AND bucket >= ? AND bucket < ?{only} "
            "GROUP BY pid, bucket", (begin, newest),
        ):  # fmt: skip
            rates[pid][bucket] = count / width
        snapshots = [
            Snapshot(*row)
            for row in database.execute(
                "SELECT cpu_pct, mem_pct, mem_avail, swap_mb, load_avg FROM system_snapshots "
                "WHERE timestamp >= ? AND timestamp < ? ORDER BY timestamp", (int(begin * _NS), int(end * _NS)),
            )
        ]  # fmt: skip
        slow = [
            Slow(pid=pid, operation=OPERATION_NAMES.get((source, op), str(op)), seconds=duration / _NS)
            for pid, source, op, duration in database.execute(
                "SELECT pid, source, op, duration FROM events WHERE duration IS NOT NULL "
                f"AND timestamp >= ? AND timestamp < ?{only}",
                (int(begin * _NS), int(end * _NS)),
            )
        ]
        stalls = {
            pid: spent / _NS / max(1.0, end - begin)
            for pid, spent in database.execute(
                f"SELECT pid, SUM(sum_dur) FROM {table} WHERE source = {HOST} AND op = {SCHED_SWITCH.operation} "
                f"AND bucket >= ? AND bucket < ?{only} GROUP BY pid", (begin, end),
            )
        }  # fmt: skip
        names = dict(database.execute("SELECT pid, name FROM process_names").fetchall())
    everything = Filter(begin=begin, end=end, pid=wanted.pid, limit=MAX_COLLECTIVES)
    return Stretch(
        octaves=dict(octaves),
        launches={
            pid: [found.get(bucket, 0.0) for bucket in range(min(found), newest, width)]
            for pid, found in rates.items()
        },
        snapshots=snapshots, collectives=collectives(file, everything), slow=slow, stalls=stalls, names=names,
        processors=os.cpu_count() or 1,
    )  # fmt: skip


def _collective(row: tuple[Any, ...]) -> Collective:
    (
        pid, operation, code, communicator, rank, nranks, device, seq, exact, dtype, reduce_op, size, arrival,
        enqueue, blocked, end,
    ) = row  # fmt: skip
    return Collective(
        pid=pid, tid=0, operation=operation, op_code=code, communicator=communicator, rank=rank, nranks=nranks,
        device=device, seq=seq, exact=bool(exact), dtype=dtype, reduce_op=reduce_op, size=size, arrival_ns=arrival,
        enqueue_ns=enqueue, blocked_ns=blocked, end_ns=end,
    )  # fmt: skip
