"""Reads the facts of a time window from the trace's database, for `explain`."""

import os
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Final

from ingero_agent.health.throttle import Throttle
from ingero_agent.sources.trace_db import LAUNCHES
from ingero_agent.trace.findings import GpuUse, LongCall, TimeWindow
from ingero_agent.trace.probes.table import HOST, OPERATION_NAMES, SCHED_SWITCH
from ingero_agent.trace.queries import Filter, has_gpu_samples, open_database, read_collectives, read_stacks
from ingero_agent.trace.stats import HostSnapshot
from ingero_agent.trace.store import HISTOGRAM_TABLE, WIDTHS

_NS: Final = 10**9
SHORT_SECONDS: Final = 600.0
"""Length of a time window up to which the buckets of 5 s are used."""


def read_time_window(file: Path, wanted: Filter, budget: float | None = None) -> TimeWindow:
    """Read everything that `find_causes` needs, with the newest `wanted.limit` collectives.

    `budget` is the longest that reading may take, seconds. Raises `FileNotFoundError`, `sqlite3.Error`.
    """
    table = "event_aggregates_5s" if wanted.end - wanted.begin <= SHORT_SECONDS else "event_aggregates"
    with open_database(file, budget) as database:
        return TimeWindow(
            histogram=_histograms(database, wanted), launches=_launches(database, wanted, table),
            snapshots=_snapshots(database, wanted), collectives=read_collectives(database, wanted),
            slow=_slow(database, wanted), stalls=_stalls(database, wanted, table), gpus=_gpus(database, wanted),
            stacks=read_stacks(database, wanted),
            names=dict(database.execute("SELECT pid, name FROM process_names").fetchall()),
            processors=os.cpu_count() or 1,
        )  # fmt: skip


def _only(wanted: Filter) -> str:
    return "" if wanted.pid is None else f" AND pid = {wanted.pid}"


def _histograms(database: sqlite3.Connection, wanted: Filter) -> dict[tuple[int, str], list[int]]:
    histogram: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0] * 32)
    for pid, source, op, octave, count in database.execute(
        "SELECT pid, source, op, octave, SUM(count) "
        f"FROM {HISTOGRAM_TABLE} WHERE bucket > ? AND bucket <= ?{_only(wanted)} "
        f"AND source != {HOST} GROUP BY pid, source, op, octave", (wanted.begin - 60, wanted.end),
    ):  # fmt: skip
        histogram[pid, OPERATION_NAMES.get((source, op), str(op))][octave] += count
    return dict(histogram)


def _launches(database: sqlite3.Connection, wanted: Filter, table: str) -> dict[int, list[float]]:
    width = WIDTHS[table]
    newest = int(wanted.end) // width * width
    launch = " OR ".join(f"(source = {source} AND op = {op})" for source, op in LAUNCHES)
    rates: dict[int, dict[int, float]] = defaultdict(dict)
    for pid, bucket, count in database.execute(
        f"SELECT pid, bucket, SUM(count) FROM {table} WHERE ({launch}) AND bucket >= ? AND bucket < ?{_only(wanted)} "
        "GROUP BY pid, bucket", (wanted.begin, newest),
    ):  # fmt: skip
        rates[pid][bucket] = count / width
    return {
        pid: [found.get(bucket, 0.0) for bucket in range(min(found), newest, width)] for pid, found in rates.items()
    }


def _snapshots(database: sqlite3.Connection, wanted: Filter) -> list[HostSnapshot]:
    query = (
        "SELECT cpu_pct, mem_pct, mem_avail, swap_mb, load_avg FROM system_snapshots "
        "WHERE timestamp >= ? AND timestamp < ? ORDER BY timestamp"
    )
    return [HostSnapshot(*row) for row in database.execute(query, wanted.bounds)]


def _slow(database: sqlite3.Connection, wanted: Filter) -> list[LongCall]:
    query = (
        "SELECT pid, source, op, duration FROM events WHERE duration IS NOT NULL "
        f"AND timestamp >= ? AND timestamp < ?{_only(wanted)}"
    )
    return [
        LongCall(pid=pid, operation=OPERATION_NAMES.get((source, op), str(op)), seconds=duration / _NS)
        for pid, source, op, duration in database.execute(query, wanted.bounds)
    ]


def _stalls(database: sqlite3.Connection, wanted: Filter, table: str) -> dict[int, float]:
    query = (
        f"SELECT pid, SUM(sum_dur) FROM {table} WHERE source = {HOST} AND op = {SCHED_SWITCH.operation} "
        f"AND bucket >= ? AND bucket < ?{_only(wanted)} GROUP BY pid"
    )
    seconds = max(1.0, wanted.end - wanted.begin)
    return {pid: spent / _NS / seconds for pid, spent in database.execute(query, (wanted.begin, wanted.end))}


def _gpus(database: sqlite3.Connection, wanted: Filter) -> list[GpuUse]:
    if not has_gpu_samples(database):
        return []
    query = (
        "SELECT gpu_id, uuid, MIN(CASE WHEN power + thermal + sw + hw > 0 THEN sm_mhz END), MAX(sm_max_mhz), "
        "MAX(1.0 * used / total), SUM(power_ns), SUM(thermal_ns), "
        "SUM(polls), SUM(power), SUM(thermal), SUM(sw), SUM(hw) FROM gpu_samples "
        "WHERE timestamp >= ? AND timestamp < ? AND total > 0 GROUP BY uuid ORDER BY gpu_id"
    )
    found = []
    for index, uuid, clock, most, memory, power_ns, thermal_ns, polls, *counts in database.execute(
        query, wanted.bounds
    ):
        throttled = {Throttle.POWER: power_ns, Throttle.THERMAL: thermal_ns}
        found.append(
            GpuUse(
                index=index, uuid=uuid, sm_mhz=clock, sm_max_mhz=most, memory=memory,
                throttled={kind: count / polls for kind, count in zip(Throttle, counts, strict=True) if count},
                throttled_seconds={kind: spent / _NS for kind, spent in throttled.items() if spent},
            )
        )  # fmt: skip
    return found
