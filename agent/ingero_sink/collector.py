"""The sink's Prometheus metrics."""

from collections.abc import Callable
from typing import Final

from ingero_kit.metrics_server import PageServer, serve_metrics
from ingero_kit.metrics_table import MetricRow, TableCollector, counter, gauge
from ingero_sink.stats import SinkStats

SINK: Final[tuple[MetricRow[SinkStats], ...]] = (
    counter("ingero_sink_events", "Lines by type.", lambda s: s.events, "type"),
    counter("ingero_sink_parse_errors", "Lines that are no event.", lambda s: s.parse_errors),
    counter("ingero_sink_dropped", "Nodes forgotten, by reason.", lambda s: {"cap_reached": s.dropped}, "reason"),
    gauge("ingero_sink_connected", "1 while connected to every agent's socket.", lambda s: s.connected),
    gauge("ingero_sink_last_event_timestamp_seconds", "When the last line came.", lambda s: round(s.last_event, 3)),
    gauge(
        "ingero_sink_active_stragglers",
        "1 while a node straggles.",
        lambda s: dict.fromkeys(s.active.copy(), 1),
        "cluster_id",
        "node_id",
    ),
)


def serve_pages(listen: str, stats: SinkStats, ready: Callable[[], bool]) -> PageServer:
    """Serve the sink's pages. Raises `OSError`."""
    table = TableCollector(SINK, lambda: stats)
    return serve_metrics(listen, [table], lambda: None if ready() else "uds_disconnected")
