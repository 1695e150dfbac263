"""How soon a thread that wakes up gets a processor that another thread is using."""

import ctypes
import os
import platform
import struct
import sys
from typing import Final

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""Number of the system call, by machine."""

_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr`: size, policy, flags, nice, priority, runtime, deadline, period. See sched_setattr(2)."""

SHORT_NS: Final = 100_000
"""The shortest slice that Linux grants, nanoseconds."""


def ask_for_short_slices() -> bool:
    """Let this thread run at once when it wakes up, for short whiles, beside threads that compute; says if it may.

    Linux 6.12 and later let a thread with shorter slices go before one with longer ones that is within its own;
    earlier ones take no notice. No right is needed, and the share of the processor stays the same. Threads inherit
    their slices: one that computes asks for the usual ones.
    """
    return _ask(SHORT_NS)


def ask_for_usual_slices() -> bool:
    """Let threads with short slices go before this one; says if it may."""
    return _ask(0)


def _ask(nanoseconds: int) -> bool:
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, nanoseconds, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, wanted, 0) == 0)
