"""Echo's Prometheus metrics about itself. Labels are bounded."""

from collections import Counter
from typing import Final

from ingero_echo.ingest_handler import IngestHandler
from ingero_echo.lake.maintainer import MaintenanceCounters
from ingero_echo.lake.sealer import SealCounters
from ingero_echo.lazy_apps import LazyApps
from ingero_echo.writer import Writer
from ingero_kit.metrics_table import MetricRow, counter, gauge, listener_rows

LISTENERS: Final = listener_rows("ingero_echo_listener_events", "ingero_echo_connections")

REQUESTS: Final[tuple[MetricRow[Counter[tuple[str, str]]], ...]] = (
    counter(
        "ingero_echo_requests",
        "Requests.",
        lambda s: {(*labels, "v2"): count for labels, count in s.copy().items()},
        "handler",
        "status_class",
        "api_version",
    ),
)

QUESTIONS: Final[tuple[MetricRow[LazyApps], ...]] = (
    gauge(
        "ingero_echo_questions_running",
        "Questions that run.",
        lambda s: {kind: running for kind, (running, _) in s.questions().items()},
        "kind",
    ),
    gauge(
        "ingero_echo_questions_waiting",
        "Questions in the queue.",
        lambda s: {kind: waiting for kind, (_, waiting) in s.questions().items()},
        "kind",
    ),
    counter(
        "ingero_echo_sql_processes_ended", "Processes of users' SQL that had to be replaced.", lambda s: s.ended()
    ),
)

INGEST: Final[tuple[MetricRow[IngestHandler], ...]] = (
    counter(
        "ingero_echo_pushes",
        "OTLP requests.",
        lambda s: {signal.lower(): count for signal, count in s.pushes.copy().items()},
        "signal",
    ),
    counter("ingero_echo_malformed", "OTLP requests not readable.", lambda s: s.malformed),
    counter(
        "ingero_echo_rate_limited", "OTLP requests refused by the rate limit of a token.", lambda s: s.rate_limited
    ),
    counter("ingero_echo_rejected", "Records left out and reported back.", lambda s: s.rejected),
)

WRITER: Final[tuple[MetricRow[Writer], ...]] = (
    counter("ingero_echo_events", "Events committed.", lambda s: s.counters.events),
    counter("ingero_echo_repeats", "Events recognised as repeats.", lambda s: s.counters.repeats),
    counter(
        "ingero_echo_repeat_lookups",
        "Groups whose repeats needed a query of the database.",
        lambda s: s.counters.lookups,
    ),
    counter("ingero_echo_groups", "Transactions.", lambda s: s.counters.groups),
    counter("ingero_echo_write_failures", "Failed transactions.", lambda s: s.counters.failures),
    counter("ingero_echo_refused", "Pushes refused because the queue was full.", lambda s: s.counters.refused),
    counter("ingero_echo_deleted", "Rows deleted by retention.", lambda s: s.counters.deleted),
    counter("ingero_echo_retention_runs", "Runs of retention.", lambda s: s.counters.sweeps),
    counter("ingero_echo_write_seconds", "Time in transactions.", lambda s: s.counters.write_seconds),
    gauge("ingero_echo_longest_write_seconds", "Longest transaction.", lambda s: s.counters.longest_write_seconds),
    gauge("ingero_echo_waiting_bytes", "Encoded pushes that wait.", lambda s: s.waiting_bytes),
)

SEALER: Final[tuple[MetricRow[SealCounters], ...]] = (
    counter("ingero_echo_seals", "Ranges sealed into the shared tables.", lambda s: s.seals),
    counter("ingero_echo_seal_failures", "Seals that failed and are tried again.", lambda s: s.failures),
    counter("ingero_echo_sealed_events", "Events sealed.", lambda s: s.rows),
    counter("ingero_echo_sealed_files", "Data files added to the shared tables.", lambda s: s.files),
    counter("ingero_echo_sealed_bytes", "Size of data files put into object storage.", lambda s: s.bytes),
    counter("ingero_echo_sealed_deleted", "Rows deleted here because they are sealed.", lambda s: s.deleted),
    gauge("ingero_echo_sealed_seq", "Order of arrival of the newest sealed row.", lambda s: s.sealed),
    gauge("ingero_echo_last_seal_seconds", "Unix time of the newest seal.", lambda s: s.last),
    gauge("ingero_echo_sealing_lag_seconds", "Seconds of arrivals that may not be sealed yet.", lambda s: s.lag),
    gauge("ingero_echo_shard_taken", "1 when another database seals under this shard's name.", lambda s: s.taken),
)

MAINTAINER: Final[tuple[MetricRow[MaintenanceCounters], ...]] = (
    counter("ingero_echo_maintenance_runs", "Runs of maintenance of the shared tables.", lambda s: s.runs),
    counter("ingero_echo_maintenance_failures", "Runs that failed; the next one goes on.", lambda s: s.failures),
    counter("ingero_echo_maintenance_expired_files", "Data files deleted by retention.", lambda s: s.expired),
    counter("ingero_echo_maintenance_merged_files", "Data files merged into larger ones.", lambda s: s.merged),
    counter("ingero_echo_maintenance_snapshots", "Versions of tables that were expired.", lambda s: s.snapshots),
    counter("ingero_echo_maintenance_removed_objects", "Objects deleted that no version names.", lambda s: s.removed),
)
