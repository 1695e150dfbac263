"""Memory that the process does not need any more."""

import ctypes
import sys

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_trim = getattr(_libc, "malloc_trim", None)


def give_back() -> None:
    """Return freed memory to the system, where the C library can (glibc's `malloc_trim`)."""
    if _trim is not None:
        _trim(0)
