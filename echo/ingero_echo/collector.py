"""Echo about itself, for Prometheus. Labels are bounded."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ingero_echo.ingest_handler import IngestHandler
from ingero_echo.writer import Writer
from ingero_http.limits import COUNTER_KINDS, Counters


class EchoCollector:
    """Reads the parts when it is scraped; parts that are not there yet are left out."""

    def __init__(
        self,
        writer: Callable[[], Writer | None],
        ingest: Callable[[], IngestHandler | None],
        questions: Callable[[], dict[str, tuple[int, int]]],
        ended: Callable[[], int],
        listeners: Callable[[], Mapping[str, Counters]],
    ) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self._writer, self._ingest_handler, self._questions, self._ended = writer, ingest, questions, ended
        self._listeners = listeners

    def observe(self, handler: str, status_class: str) -> None:
        """Count a request of the API or of MCP."""
        self.requests[handler, status_class] += 1

    def collect(self) -> Iterator[Metric]:
        """All families."""
        requests = CounterMetricFamily(
            "ingero_echo_requests", "Requests.", labels=["handler", "status_class", "api_version"]
        )
        for (handler, status_class), count in sorted(self.requests.items()):
            requests.add_metric([handler, status_class, "v2"], count)
        yield requests
        running = GaugeMetricFamily("ingero_echo_questions_running", "Questions that run.", labels=["kind"])
        waiting = GaugeMetricFamily("ingero_echo_questions_waiting", "Questions in the queue.", labels=["kind"])
        for kind, (runs, waits) in self._questions().items():
            running.add_metric([kind], runs)
            waiting.add_metric([kind], waits)
        yield running
        yield waiting
        yield CounterMetricFamily(
            "ingero_echo_sql_processes_ended", "Processes of users' SQL that had to be replaced.", self._ended()
        )
        events = CounterMetricFamily(
            "ingero_echo_listener_events", "What happened at a listener, by kind.", labels=["listener", "kind"]
        )
        connections = GaugeMetricFamily("ingero_echo_connections", "Open connections.", labels=["listener"])
        for name, counts in self._listeners().items():
            for kind in COUNTER_KINDS:
                events.add_metric([name, kind], getattr(counts, kind))
            connections.add_metric([name], counts.open)
        yield from (events, connections)
        ingest, writer = self._ingest_handler(), self._writer()
        if ingest:
            pushes = CounterMetricFamily("ingero_echo_pushes", "OTLP requests.", labels=["signal"])
            for signal, count in sorted(ingest.pushes.items()):
                pushes.add_metric([signal.lower()], count)
            yield pushes
            yield CounterMetricFamily("ingero_echo_malformed", "OTLP requests not readable.", ingest.malformed)
            yield CounterMetricFamily("ingero_echo_rejected", "Records left out and reported back.", ingest.rejected)
        if writer:
            counters = writer.counters
            yield CounterMetricFamily("ingero_echo_events", "Events committed.", counters.events)
            yield CounterMetricFamily("ingero_echo_repeats", "Events recognised as repeats.", counters.repeats)
            yield CounterMetricFamily(
                "ingero_echo_repeat_lookups", "Groups whose repeats had to be looked up.", counters.lookups
            )
            yield CounterMetricFamily("ingero_echo_groups", "Transactions.", counters.groups)
            yield CounterMetricFamily("ingero_echo_write_failures", "Failed transactions.", counters.failures)
            yield CounterMetricFamily("ingero_echo_refused", "Pushes told to come back.", counters.refused)
            yield CounterMetricFamily("ingero_echo_deleted", "Rows deleted by retention.", counters.deleted)
            yield CounterMetricFamily("ingero_echo_sweeps", "Times that retention looked.", counters.sweeps)
            yield CounterMetricFamily("ingero_echo_write_seconds", "Time in transactions.", counters.write_seconds)
            yield GaugeMetricFamily(
                "ingero_echo_longest_write_seconds", "Longest transaction.", counters.longest_write_seconds
            )
            yield GaugeMetricFamily("ingero_echo_waiting_bytes", "Encoded pushes that wait.", writer.waiting_bytes)
