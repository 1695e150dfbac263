"""What the sink shows to Prometheus."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingero_kit.metrics_server import MetricsServer
from ingero_sink.stats import SinkStats


class SinkCollector(Collector):
    """The ledger as metric families."""

    def __init__(self, stats: SinkStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        stats = self._stats
        events = CounterMetricFamily("ingero_sink_events", "Lines by type.", labels=["type"])
        for kind, count in sorted(stats.events.copy().items()):
            events.add_metric([kind], count)
        yield events
        yield CounterMetricFamily("ingero_sink_parse_errors", "Lines that are no event.", value=stats.parse_errors)
        dropped = CounterMetricFamily("ingero_sink_dropped", "Nodes forgotten, by reason.", labels=["reason"])
        dropped.add_metric(["cap_reached"], stats.dropped)
        yield dropped
        yield GaugeMetricFamily(
            "ingero_sink_connected", "1 while connected to every agent's socket.", value=stats.connected
        )
        yield GaugeMetricFamily(
            "ingero_sink_last_event_timestamp_seconds", "When the last line came.", value=round(stats.last_event, 3)
        )
        active = GaugeMetricFamily(
            "ingero_sink_active_stragglers", "1 while a node straggles.", labels=["cluster_id", "node_id"]
        )
        for node in sorted(stats.active.copy()):
            active.add_metric(node, 1)
        yield active


def make_metrics_server(host: str, port: int, stats: SinkStats, ready: Callable[[], bool]) -> MetricsServer:
    """The pages over the ledger."""
    registry = CollectorRegistry()
    registry.register(SinkCollector(stats))
    return MetricsServer((host, port), registry, lambda: None if ready() else "uds_disconnected", lambda: None)
