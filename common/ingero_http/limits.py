"""Limits of a server, and its counters."""

from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the memory and work that clients can cause."""

    body_bytes: int = 4 << 20
    """Largest body as sent; larger ones are refused."""
    decoded_bytes: int = 16 << 20
    """Largest body after decompression."""
    header_bytes: int = 16 << 10
    """Largest sum of all header names and values and the path."""
    read_seconds: float = 10.0
    """Longest time from a request's first byte to its last, and from a connection's start to its first request."""
    idle_seconds: float = 120.0
    """Longest time between two requests of a connection."""
    age_seconds: float = 0.0
    """Age at which a connection is closed after a response, a tenth more or less; 0 for none. Clients then connect
    anew, so that servers behind one address share the load again after one was added."""
    send_seconds: float = 30.0
    """Longest time for which a client may read nothing of its responses."""
    connections: int = 20_000
    """Connections at once; for a further one, the one that has been idle longest is closed."""
    streams: int = 256
    """Requests at once on one HTTP/2 connection."""
    unfinished_bytes: int = 128 << 20
    """Bytes of incomplete requests of all connections together; more are refused and may be retried."""
    unread_bytes: int = 64 << 20
    """Bytes of unread responses of all connections together; beyond it the longest waiting connection is closed."""


@dataclass(slots=True)
class Counters:
    """Events at a server by kind, such as refused requests and closed connections."""

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
    aged: int = 0


COUNTER_KINDS: Final = tuple(item.name for item in fields(Counters) if item.name != "open")
"""The counters that only grow, for metrics."""
