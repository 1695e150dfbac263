"""Counters of the source, and their Prometheus rows."""

import time
from dataclasses import dataclass
from typing import Final

from ingero_kit.connection_stats import ConnectionStats
from ingero_kit.metrics_table import MetricRow, counter, gauge


@dataclass
class SourceStats(ConnectionStats):
    """What was read from the stream since the start."""

    messages: int = 0
    malformed: int = 0
    rejected: int = 0
    deleted: int = 0
    """Message through which the stream was deleted, because the tables have it."""
    waiting: int = 0
    """Messages in the stream after the last one that was written."""


SOURCE: Final[tuple[MetricRow[SourceStats], ...]] = (
    counter("ingero_echo_source_messages", "Messages of the stream whose rows are written.", lambda s: s.messages),
    counter("ingero_echo_source_malformed", "Messages left out as not readable.", lambda s: s.malformed),
    counter("ingero_echo_source_rejected", "Records of messages left out.", lambda s: s.rejected),
    gauge("ingero_echo_source_waiting", "Messages after the last one whose rows are written.", lambda s: s.waiting),
    gauge("ingero_echo_source_deleted", "Message through which all are deleted, as sealed.", lambda s: s.deleted),
    gauge(
        "ingero_echo_source_away_seconds",
        "Seconds since the stream cannot be read; 0 while it can.",
        lambda s: 0.0 if (since := s.away_since) is None else max(0.0, time.time() - since),
    ),
    counter("ingero_echo_source_events", "What happened to the client.", lambda s: dict(s.events), "event"),
)
