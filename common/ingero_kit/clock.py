"""A clock that tells the time of day and never steps: set once at start, then driven by the monotonic clock."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Seconds since the epoch."""


def clock_offset() -> float:
    """What the time of day is ahead of the monotonic clock, seconds."""
    return time.time() - time.monotonic()


def steady_clock(offset: float | None = None) -> Clock:
    """Make a clock; corrections of the system's clock after this call do not reach it.

    Clocks of one machine with the same `offset` tell the same time, in every process.
    """
    ahead = clock_offset() if offset is None else offset

    def now() -> float:
        return ahead + time.monotonic()

    return now


def rfc3339(seconds: float) -> str:
    """Render seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
