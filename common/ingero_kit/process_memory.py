"""Memory of the process, where the C library is glibc; elsewhere these do nothing."""

import ctypes
import gc
import sys
from typing import Final

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_trim = getattr(_libc, "malloc_trim", None)
_mallopt = getattr(_libc, "mallopt", None) if _trim is not None else None

_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3
"""Of malloc.h."""

LARGE: Final = 64 << 10
"""Octets from which a piece of memory is taken from the system by itself, and given back when it is freed."""


def use_single_malloc_arena() -> None:
    """Let all threads take memory from one heap: what one of them frees serves the others. Before they start.

    Large pieces stay outside, so that what a tick computes with is gone when it is done.
    """
    if _mallopt is not None:
        _mallopt(_M_ARENA_MAX, 1)
        _mallopt(_M_MMAP_THRESHOLD, LARGE)


def trim_heap() -> None:
    """Return freed memory to the system."""
    if _trim is not None:
        _trim(0)


class GcFreezer:
    """Keeps the collector of cycles away from what stays: walking it takes milliseconds in which nothing else runs.

    Each time that something has grown by a quarter, all that is there is left out from then on; it is still freed
    when nobody refers to it. What is a dead cycle at that moment stays, so this happens a few dozen times at most.
    """

    def __init__(self) -> None:
        self._size = 1000

    def freeze_if_grown(self, size: int) -> bool:
        """Freeze all objects if `size` has grown by a quarter; says whether it did."""
        if size <= 1.25 * self._size:
            return False
        self._size = size
        gc.freeze()
        return True
