"""Memory of the process, where the C library is glibc; elsewhere these do nothing."""

import ctypes
import sys
from typing import Final

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_trim = getattr(_libc, "malloc_trim", None)
_mallopt = getattr(_libc, "mallopt", None) if _trim is not None else None

_M_ARENA_MAX: Final = -8
"""Of malloc.h."""


def share_one_heap() -> None:
    """Let all threads take memory from one heap: what one of them frees serves the others. Before they start."""
    if _mallopt is not None:
        _mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Return freed memory to the system."""
    if _trim is not None:
        _trim(0)
