"""Reduces the memory of a process. What is for the allocator is glibc's; with other C libraries it does nothing."""

import ctypes
import gc
import sys
from typing import Final

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_trim = getattr(_libc, "malloc_trim", None)
_mallopt = getattr(_libc, "mallopt", None) if _trim is not None else None

_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3
"""Option number from malloc.h."""

LARGE: Final = 64 << 10
"""Bytes from which an allocation gets its own mapping, which returns to the system when it is freed."""


def limit_malloc_arenas(count: int) -> None:
    """Let threads share so many heaps. Call it before they start."""
    if _mallopt is not None:
        _mallopt(_M_ARENA_MAX, count)


def use_single_malloc_arena() -> None:
    """Let all threads share one heap, so that each can reuse memory that another freed. Call it before they start.

    Large allocations stay outside, so that a tick's arrays return to the system when it ends.
    """
    limit_malloc_arenas(1)
    if _mallopt is not None:
        _mallopt(_M_MMAP_THRESHOLD, LARGE)


def leave_out_pydantic_v1() -> None:
    """Make the import of pydantic's first version fail, for which FastAPI is prepared. Call it before apps are made.

    FastAPI loads it, 2 MB, only to refuse its models.
    """
    sys.modules.setdefault("pydantic.v1", None)  # type: ignore[arg-type]  # None makes the import fail


def trim_heap() -> None:
    """Return freed memory to the system."""
    if _trim is not None:
        _trim(0)


class GcFreezer:
    """Excludes long-lived objects from garbage collection: each pass over them stops the process for milliseconds.

    Whenever a size has grown by a quarter, all objects that exist are excluded. They are still freed when their last
    reference is gone, but reference cycles that are already unreachable stay for ever. The growth limits that to a
    few dozen times.
    """

    def __init__(self) -> None:
        self._size = 1000

    def freeze_if_grown(self, size: int) -> bool:
        """Freeze all objects if `size` has grown by a quarter; returns whether it did."""
        if size <= 1.25 * self._size:
            return False
        self._size = size
        gc.freeze()
        return True
