"""What a probe costs on this machine: two equal functions made here, one probed and one not, timed side by side.

Nobody else pays for the measurement: the probe is attached for this process alone, and to memory of its own. Between
two calls more memory is written than the nearer caches hold, as a real program does: in an idle loop a probe costs
half.
"""

import ctypes
import mmap
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ingero_agent.trace import kernel

_FUNCTION: Final = {
    "x86_64": bytes.fromhex("555dc3"),  # push %rbp; pop %rbp; ret
    "aarch64": bytes.fromhex("fd7bbfa9fd7bc1a8c0035fd6"),  # stp x29,x30,[sp,#-16]!; ldp x29,x30,[sp],#16; ret
}
_TWIN_AT: Final = 64
_CALLS: Final = 500
_TOUCHED_BYTES: Final = 2 * 2**20
ENTRY_FLOOR_NS: Final = 500.0
PAIR_FLOOR_NS: Final = 1000.0
SCRATCH_NUMBER: Final = 255
"""Function number that calibration calls are counted under; no probed function has it."""


@dataclass(frozen=True)
class Costs:
    """Nanoseconds that one probed call costs the workload: a probe at entry, and a pair at entry and return."""

    entry_ns: float = 1000.0
    pair_ns: float = 2000.0


class Twins:
    """Two equal functions in a file in memory, `descriptor`. `path` and offset 0 name the one to probe."""

    def __init__(self) -> None:
        code = _FUNCTION.get(platform.machine())
        if code is None:
            raise OSError(f"no calibration code for {platform.machine()}")
        self.descriptor = os.memfd_create("ingero-calibration", os.MFD_CLOEXEC)
        os.pwrite(self.descriptor, code.ljust(_TWIN_AT, b"\0") + code.ljust(4096 - _TWIN_AT, b"\0"), 0)
        self.path = f"/proc/self/fd/{self.descriptor}"
        libc = kernel.libc
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        base = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, self.descriptor, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            os.close(self.descriptor)
            raise OSError(ctypes.get_errno(), "memory that may be executed was refused")
        self._base = base
        kind = ctypes.CFUNCTYPE(None)
        self.probed: Callable[[], None] = kind(base)
        self.twin: Callable[[], None] = kind(base + _TWIN_AT)

    def close(self) -> None:
        """Give the memory back; neither function may be called any more."""
        kernel.libc.munmap(ctypes.c_void_p(self._base), ctypes.c_size_t(4096))
        os.close(self.descriptor)


def extra_nanoseconds(probed: Callable[[], None], twin: Callable[[], None], calls: int = _CALLS) -> float:
    """Median of paired differences, nanoseconds a call, with caches that hold something else."""
    clock, differences = time.perf_counter_ns, []
    memory = ctypes.create_string_buffer(_TOUCHED_BYTES)
    address = ctypes.addressof(memory)
    for turn in range(calls):
        ctypes.memset(address, turn & 255, _TOUCHED_BYTES)
        begun = clock()
        probed()
        first = clock() - begun
        ctypes.memset(address, turn & 255, _TOUCHED_BYTES)
        begun = clock()
        twin()
        differences.append(first - (clock() - begun))
    return max(0.0, statistics.median(differences))


def calibrate(entry_program: int, pair_programs: tuple[int, int], *, multi: bool = True) -> Costs:
    """Measure both kinds of probe with the real programs, attached as they are going to be.

    Raises `OSError` where the kernel refuses a link.
    """
    twins = Twins()

    def measured(programs: Iterable[tuple[int, bool]]) -> float:
        links: list[int] = []
        try:
            for program, at_return in programs:
                if multi:
                    links.append(kernel.link(program, twins.path, [0], [cookie], at_return=at_return, pid=me))
                else:
                    links += kernel.link_one(program, twins.path, 0, cookie, at_return=at_return, pid=me)
            return extra_nanoseconds(twins.probed, twins.twin)
        finally:
            for link in links:
                os.close(link)

    cookie, me = SCRATCH_NUMBER, os.getpid()
    try:
        entry = measured([(entry_program, False)])
        pair = measured([(pair_programs[0], False), (pair_programs[1], True)])
    finally:
        twins.close()
    return Costs(max(entry, ENTRY_FLOOR_NS), max(pair, PAIR_FLOOR_NS))
