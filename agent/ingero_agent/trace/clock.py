"""Converts the kernel's monotonic time to the time of day, in one place. Pure except for `sample_clocks`."""

import time
from collections.abc import Iterable
from typing import Final

TRIES: Final = 9


def sample_clocks() -> tuple[int, int, int]:
    """Monotonic time, time of day, monotonic time again; nanoseconds."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    return before, wall, time.monotonic_ns()


def best_offset(samples: Iterable[tuple[int, int, int]]) -> int:
    """Nanoseconds to add to monotonic time, from the narrowest sample."""
    before, wall, after = min(samples, key=lambda one: one[2] - one[0])
    return wall - (before + after) // 2


def wall_clock_offset() -> int:
    """Nanoseconds to add to monotonic time, measured now."""
    return best_offset(sample_clocks() for _ in range(TRIES))
