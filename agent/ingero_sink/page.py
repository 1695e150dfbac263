"""The sink's HTTP side: `/metrics`, `/healthz`, `/readyz`."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingero_sink.ledger import Ledger


class LedgerPage(Collector):
    """The ledger as metric families."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        ledger = self._ledger
        events = CounterMetricFamily("ingero_sink_events", "Lines by type.", labels=["type"])
        for kind, count in sorted(ledger.events.copy().items()):
            events.add_metric([kind], count)
        yield events
        yield CounterMetricFamily("ingero_sink_parse_errors", "Lines that are no event.", value=ledger.parse_errors)
        dropped = CounterMetricFamily("ingero_sink_dropped", "Nodes forgotten, by reason.", labels=["reason"])
        dropped.add_metric(["cap_reached"], ledger.dropped)
        yield dropped
        yield GaugeMetricFamily("ingero_sink_connected", "1 while connected to the agent.", value=ledger.connected)
        yield GaugeMetricFamily(
            "ingero_sink_last_event_timestamp_seconds", "When the last line came.", value=round(ledger.last_event, 3)
        )
        active = GaugeMetricFamily(
            "ingero_sink_active_stragglers", "1 while a node straggles.", labels=["cluster_id", "node_id"]
        )
        for node in sorted(ledger.active.copy()):
            active.add_metric(node, 1)
        yield active


def make_server(host: str, port: int, ledger: Ledger, ready: Callable[[], bool]) -> ThreadingHTTPServer:
    """An HTTP server over the ledger; `serve_forever` runs it."""
    registry = CollectorRegistry()
    registry.register(LedgerPage(ledger))

    class Page(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, generate_latest(registry), "text/plain; version=0.0.4; charset=utf-8")
            elif path == "/healthz":
                self._answer(200, b"ok\n")
            elif path == "/readyz":
                self._answer(200, b"ok\n") if ready() else self._answer(503, b"not ready: uds_disconnected\n")
            else:
                self._answer(404, b"not found: /metrics, /healthz, /readyz\n")

        def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
            """Scrapes are not news."""

    server = ThreadingHTTPServer((host, port), Page)
    server.daemon_threads = True
    return server
