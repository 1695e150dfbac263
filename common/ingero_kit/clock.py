"""A clock that tells the time of day and never steps: set once at start, then driven by the monotonic clock."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Seconds since the epoch."""


def steady_clock() -> Clock:
    """Make a clock; corrections of the system's clock after this call do not reach it."""
    offset = time.time() - time.monotonic()

    def now() -> float:
        return offset + time.monotonic()

    return now


def rfc3339(seconds: float) -> str:
    """Render seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
