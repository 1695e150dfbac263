"""Clocks that return the time of day and never step, and work that is due at intervals."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

Clock = Callable[[], float]
"""Seconds since the epoch."""

_CHECK_SECONDS: Final = 1.0
_SLEW: Final = 0.1
_READINGS: Final = 9


def clock_offset_ns() -> int:
    """Nanoseconds that the time of day is ahead of the monotonic clock, from the narrowest of several readings."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(_READINGS)]
    before, wall, after = min(readings, key=lambda one: one[2] - one[0])
    return wall - (before + after) // 2


def clock_offset() -> float:
    """Seconds that the time of day is ahead of the monotonic clock."""
    return clock_offset_ns() / 1e9


def steady_clock(offset: float | None = None) -> Clock:
    """A clock set once, then driven by the monotonic clock: later corrections of the system's clock do not reach it.

    Clocks with the same `offset` return the same time in every process of a machine.
    """
    ahead = clock_offset() if offset is None else offset

    def now() -> float:
        return ahead + time.monotonic()

    return now


class SlewedClock:
    """The time of day for a process that runs for months: it follows the system's clock and never steps.

    If the system's clock is set after the start, or the machine was suspended, this clock runs a tenth faster or
    slower until both agree, so that measured durations stay plausible. Callable from any thread.
    """

    def __init__(
        self, offset: float | None = None, wall: Clock = time.time, monotonic: Clock = time.monotonic
    ) -> None:
        """`offset`: seconds that another clock of this machine is ahead of the monotonic one, to agree with it."""
        self._wall, self._monotonic = wall, monotonic
        now = monotonic()
        time_of_day = wall() if offset is None else now + offset
        self._state = now, time_of_day, wall() - time_of_day

    def __call__(self) -> float:
        """Seconds since the epoch."""
        now = self._monotonic()
        checked, time_of_day, error = self._state
        elapsed = now - checked
        if not error and elapsed < _CHECK_SECONDS:
            return time_of_day + elapsed
        time_of_day += elapsed + max(-_SLEW * elapsed, min(_SLEW * elapsed, error))
        if elapsed >= _CHECK_SECONDS:
            self._state = (
                now,
                time_of_day,
                self._wall() - time_of_day,
            )  # one assignment, since several threads may come here
        return time_of_day

    def offset(self) -> float:
        """Seconds that this clock is ahead of the monotonic one now."""
        return self() - self._monotonic()


def rfc3339(seconds: float) -> str:
    """Render seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Every:
    """Work that is due every `seconds`, first at `first` if given, otherwise at once."""

    def __init__(self, seconds: float, first: float = float("-inf")) -> None:
        self.seconds, self._at = seconds, first

    def due(self, now: float) -> bool:
        """Whether the work is due; if so, it is next due `seconds` from now, also after the clock was set back."""
        if self._at - self.seconds <= now < self._at:
            return False
        self._at = now + self.seconds
        return True
