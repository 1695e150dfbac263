"""What a server allows its clients, and what it counts."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may ask of a server."""

    body_bytes: int = 4 << 20
    """Largest body as sent; larger ones are refused."""
    decoded_bytes: int = 16 << 20
    """Largest body after decompression."""
    header_bytes: int = 16 << 10
    """Largest sum of all header names and values and the path."""
    read_seconds: float = 10.0
    """Longest time from a request's first byte to its last, and from a connection's first to its first request."""
    idle_seconds: float = 120.0
    """Longest time between two requests of a connection."""
    send_seconds: float = 30.0
    """Longest time for which a client may read nothing of its answers."""
    connections: int = 20_000
    """Connections at once; for a further one, the one that has been silent longest is closed."""
    streams: int = 256
    """Requests at once on one HTTP/2 connection."""
    unfinished_bytes: int = 128 << 20
    """Requests that have begun and not ended, of all connections together; more is told to try again."""
    unread_bytes: int = 64 << 20
    """Answers that wait to be read, of all connections together; beyond it the longest waiting ones are given up."""


@dataclass(slots=True)
class Counters:
    """What happened at the edge, by kind; read by the metrics page."""

    requests: int = 0
    open: int = 0
    refused_connections: int = 0
    timeouts: int = 0
    malformed: int = 0
    too_large: int = 0
    handler_errors: int = 0
    gave_way: int = 0
    failed_handshakes: int = 0
    unread: int = 0
    overloaded: int = 0
    turns_ended: int = 0


COUNTER_KINDS: Final = (
    "requests", "refused_connections", "timeouts", "malformed", "too_large", "handler_errors", "gave_way",
    "failed_handshakes", "unread", "overloaded", "turns_ended",
)  # fmt: skip
"""The counters that only grow, as the metrics pages name them."""
