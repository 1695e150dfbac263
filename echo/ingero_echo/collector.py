"""Echo's Prometheus metrics about itself. Labels are bounded."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import Metric

from ingero_echo.ingest_handler import IngestHandler
from ingero_echo.lake.maintainer import MaintenanceCounters
from ingero_echo.lake.sealer import SealCounters
from ingero_echo.writer import Writer
from ingero_http.limits import Counters
from ingero_kit.metrics_table import MetricRow, collect_rows, counter, counter_now, gauge, gauge_now, listener_rows

LISTENERS: Final = listener_rows("ingero_echo_listener_events", "ingero_echo_connections")

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


class EchoCollector:
    """Reads the parts of Echo at each scrape; parts that have not started yet are left out."""

    def __init__(
        self,
        writer: Callable[[], Writer | None],
        ingest: Callable[[], IngestHandler | None],
        questions: Callable[[], dict[str, tuple[int, int]]],
        ended: Callable[[], int],
        listeners: Callable[[], Mapping[str, Counters]],
        sealer: Callable[[], SealCounters | None],
        maintainer: Callable[[], MaintenanceCounters | None],
    ) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self._writer, self._ingest_handler, self._questions, self._ended = writer, ingest, questions, ended
        self._listeners, self._sealer, self._maintainer = listeners, sealer, maintainer

    def observe(self, handler: str, status_class: str) -> None:
        """Count a request of the API or of MCP."""
        self.requests[handler, status_class] += 1

    def collect(self) -> Iterator[Metric]:
        """Return all metric families."""
        requests = {(*labels, "v2"): count for labels, count in self.requests.copy().items()}
        yield counter_now("ingero_echo_requests", "Requests.", requests, "handler", "status_class", "api_version")
        questions = self._questions()
        running = {kind: runs for kind, (runs, _) in questions.items()}
        yield gauge_now("ingero_echo_questions_running", "Questions that run.", running, "kind")
        waiting = {kind: waits for kind, (_, waits) in questions.items()}
        yield gauge_now("ingero_echo_questions_waiting", "Questions in the queue.", waiting, "kind")
        text = "Processes of users' SQL that had to be replaced."
        yield counter_now("ingero_echo_sql_processes_ended", text, self._ended())
        yield from collect_rows(LISTENERS, self._listeners())
        if ingest := self._ingest_handler():
            yield from collect_rows(INGEST, ingest)
        if writer := self._writer():
            yield from collect_rows(WRITER, writer)
        if sealer := self._sealer():
            yield from collect_rows(SEALER, sealer)
        if maintainer := self._maintainer():
            yield from collect_rows(MAINTAINER, maintainer)
