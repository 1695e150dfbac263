"""Counters of the log's client, and their Prometheus rows."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from ingero_kit.connection_stats import ConnectionStats
from ingero_kit.metrics_table import MetricRow, counter, gauge

ELECTION_SECONDS: Final = 15.0
"""Beginning of an absence, in which the servers may be electing a new leader; they take 4 to 9 s."""

ATTEMPT_SECONDS: Final = 0.5
"""How long one attempt waits during that time: a request that came before the new leader is never answered."""


@dataclass
class LogStats(ConnectionStats):
    """What happened between this Fleet and the log since the start."""

    published: Counter[str] = field(default_factory=Counter)
    published_bytes: int = 0
    read_bytes: int = 0
    last_known: int = 0
    """Highest sequence of the log that was seen in any answer."""
    last_read: int = 0
    """Sequence of the last message that `follow` returned."""

    @property
    def lag(self) -> int:
        """Messages that were not read yet."""
        return max(0, self.last_known - self.last_read)

    def patience(self, seconds: float) -> float:
        """How long an attempt waits that usually takes `seconds` at most."""
        since = self.away_since
        electing = since is not None and time.time() - since < ELECTION_SECONDS
        return min(seconds, ATTEMPT_SECONDS) if electing else seconds


LOG: Final[tuple[MetricRow[LogStats], ...]] = (
    gauge(
        "ingero_fleet_log_away_seconds",
        "Seconds since the log stopped answering; 0 while it answers.",
        lambda s: 0.0 if (since := s.away_since) is None else max(0.0, time.time() - since),
    ),
    gauge("ingero_fleet_log_lag_messages", "Messages in the log that were not applied yet.", lambda s: s.lag),
    gauge("ingero_fleet_log_sequence", "Place in the log that was read last.", lambda s: s.last_read),
    counter("ingero_fleet_log_published", "Messages that the log confirmed.", lambda s: dict(s.published), "kind"),
    counter("ingero_fleet_log_published_bytes", "Their bytes, compressed.", lambda s: s.published_bytes),
    counter("ingero_fleet_log_read_bytes", "Bytes read from the log, compressed.", lambda s: s.read_bytes),
    counter("ingero_fleet_log_events", "What happened to the log's client.", lambda s: dict(s.events), "event"),
)
"""Rows for the page about Fleet itself. Events: `retry` (sent again), `repeat` (the log had it already),
`marker_lost` (another Fleet cut first), `gap`, `resubscribed`, `connected`, `client_error`, `unreadable`,
`snapshot_failed`, `connect_failed`, `publish_failed`, `follow_failed`, `orphan_purged`."""
