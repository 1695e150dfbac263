"""Measures what a probe costs on this machine: two equal functions, one probed and one not, are timed alternately.

Other processes are not affected: the probes are attached for this process only, to its own memory. Each kind is
measured twice. *Warm*: between two calls more memory is written than the nearer caches hold, as a real program does;
in an idle loop a probe costs half. *Cold*: after a pause, when other processes have replaced the contents of the
caches and the TLB; a probe then costs several times as much. A function that is called a hundred times a second, as
collectives are, is usually cold.
"""

import ctypes
import mmap
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from ingero_agent.trace import kernel
from ingero_agent.trace.governor import COLLECTIVE, ENTRY, PAIR, STEP, WAIT, ProbeCost
from ingero_agent.trace.probes.table import COMM_5

_FUNCTION: Final = {
    "x86_64": bytes.fromhex("555dc3"),  # push %rbp; pop %rbp; ret
    "aarch64": bytes.fromhex("fd7bbfa9fd7bc1a8c0035fd6"),  # stp x29,x30,[sp,#-16]!; ldp x29,x30,[sp],#16; ret
}
_STEPPED: Final = {"x86_64": bytes.fromhex("4885ffc3")}  # test %rdi,%rdi; ret
_EVERY: Final = 64
_TOUCHED_BYTES: Final = 2 * 2**20
_PAUSE_SECONDS: Final = 0.005
WARM_CALLS: Final = 200
COLD_CALLS: Final = 20
SCRATCH_NUMBER: Final = 255
"""Function number that calibration calls are counted under; no probed function has it."""

_SCRATCH_SLOT: Final = 255
_WAITS: Final = 1 << 24
COMMUNICATOR: Final = 1
COLLECTIVE_TYPE: Final = (7, 0)
"""Communicator, data type and reduction of calibration's collectives; nothing reads through the pointer."""

FLOOR: Final[Mapping[str, ProbeCost]] = {
    ENTRY: ProbeCost(500.0, 500.0), PAIR: ProbeCost(1000.0, 1000.0), COLLECTIVE: ProbeCost(1000.0, 1000.0),
    WAIT: ProbeCost(1000.0, 1000.0), STEP: ProbeCost(0.0, 0.0),
}  # fmt: skip
"""No probe costs less, whatever was measured."""

Call = Callable[[], object]


class Twins:
    """Equal functions in a file in memory, `descriptor`, which `path` names; the first is `probed`.

    `pairs`: three pairs of a function to probe and its twin, at offset 0, 128 and 256. The last pair begins with an
    instruction that the kernel cannot emulate. Raises `OSError` where the file cannot be created.
    """

    def __init__(self) -> None:
        code = _FUNCTION.get(platform.machine())
        if code is None:
            raise OSError(f"no calibration code for {platform.machine()}")
        self.descriptor = os.memfd_create("ingero-calibration", os.MFD_CLOEXEC)
        single_stepped = _STEPPED.get(platform.machine(), code)
        os.pwrite(
            self.descriptor,
            b"".join(one.ljust(_EVERY, b"\0") for one in (*[code] * 4, single_stepped, single_stepped)),
            0,
        )
        os.ftruncate(self.descriptor, 4096)
        self.path = f"/proc/self/fd/{self.descriptor}"
        libc = kernel.libc
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        base = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, self.descriptor, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            os.close(self.descriptor)
            raise OSError(ctypes.get_errno(), "memory that may be executed was refused")
        self._base = base
        words = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
                 ctypes.c_void_p]  # fmt: skip
        kind = ctypes.CFUNCTYPE(None, *words)
        arguments = (None, None, 1, *COLLECTIVE_TYPE, COMMUNICATOR, None)

        def call(index: int) -> Call:
            function = kind(base + index * _EVERY)
            return lambda: function(*arguments)

        self.pairs = [(call(index), call(index + 1)) for index in (0, 2, 4)]
        self.probed = self.pairs[0][0]

    def close(self) -> None:
        """Free the memory; the functions must not be called afterwards."""
        kernel.libc.munmap(ctypes.c_void_p(self._base), ctypes.c_size_t(4096))
        os.close(self.descriptor)


def extra_nanoseconds(pairs: Sequence[tuple[Call, Call]], disturb: Callable[[], object], calls: int) -> list[float]:
    """Extra nanoseconds of each probed call of a sequence over its twin, after `disturb`.

    The mean without the highest and the lowest tenth, which excludes interruptions.
    """
    clock = time.perf_counter_ns
    found: list[list[int]] = [[] for _ in pairs]
    for _ in range(calls):
        disturb()
        for (probed, twin), differences in zip(pairs, found, strict=True):
            twin()  # the function's own cache misses are not a cost of tracing
            begun = clock()
            twin()
            between = clock()
            probed()
            differences.append(clock() - between - (between - begun))
    cut = calls // 10
    return [max(0.0, statistics.fmean(sorted(differences)[cut : calls - cut])) for differences in found]


def calibrate(programs: Mapping[str, int], *, multi: bool = True) -> dict[str, ProbeCost]:
    """Measure each kind of probe with the real programs, attached in the way they will be used. Takes a second.

    `programs`: descriptors by name. Raises `OSError` where the kernel refuses a link.
    """
    twins = Twins()
    memory = ctypes.create_string_buffer(_TOUCHED_BYTES)
    address, me = ctypes.addressof(memory), os.getpid()

    def attached(names: str, at: int = 0, cookie: int = SCRATCH_NUMBER) -> AbstractContextManager[None]:
        chosen = [programs[name] for name in names.split()]
        return kernel.attached(chosen, twins.path, {at: cookie}, pid=me, multi=multi)

    def measured(*pairs: tuple[Call, Call]) -> list[ProbeCost]:
        warm = extra_nanoseconds(pairs, lambda: ctypes.memset(address, 1, _TOUCHED_BYTES), WARM_CALLS)
        cold = extra_nanoseconds(pairs, lambda: time.sleep(_PAUSE_SECONDS), COLD_CALLS)
        return [ProbeCost(*both) for both in zip(warm, cold, strict=True)]

    first, second, third = twins.pairs
    collective = SCRATCH_NUMBER | COMM_5 << 8 | _SCRATCH_SLOT << 16
    try:
        with attached("launch_enter"):
            (entry,) = measured(first)
        with attached("launch_enter", 4 * _EVERY):
            (single_stepped,) = measured(third)
        with attached("call_enter call_return"):
            (pair,) = measured(first)
        waiting = attached("call_enter call_return", 2 * _EVERY, SCRATCH_NUMBER | _WAITS)
        with attached("coll_enter coll_return", 0, collective), waiting:
            enqueued, waited = measured(first, second)
    finally:
        twins.close()
    step = ProbeCost(single_stepped.warm - entry.warm, single_stepped.cold - entry.cold)
    found = {ENTRY: entry, PAIR: pair, COLLECTIVE: enqueued, WAIT: waited, STEP: step}
    return {kind: cost.at_least(FLOOR[kind]) for kind, cost in found.items()}


def without_returns(costs: Mapping[str, ProbeCost]) -> dict[str, ProbeCost]:
    """The costs where nothing is attached at returns."""
    return {**costs, PAIR: costs[ENTRY], WAIT: costs[ENTRY]}


def nanoseconds(costs: Mapping[str, ProbeCost]) -> dict[str, float]:
    """The costs by one name each, for logs and metrics: `entry`, `entry_cold` and so on."""
    return {
        name: round(value)
        for kind, cost in costs.items()
        for name, value in ((kind, cost.warm), (f"{kind}_cold", cost.cold))
    }
