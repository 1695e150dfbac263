"""Samples the call stacks of a late rank's threads for some seconds, through perf events of the kernel.

Nothing is attached at any other time. The kernel writes the samples into rings of a fixed size and drops what does
not fit; the names of functions are found in a separate thread and process.
"""

import ctypes
import mmap
import os
import struct
import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ingero_agent.trace.events import Collective
from ingero_agent.trace.kernel import PERF_EVENT_OPEN, close_all, libc
from ingero_agent.trace.stacks import (
    MAX_FRAMES,
    PERIOD_NS,
    CallStack,
    Sample,
    Target,
    choose_target,
    fold,
    is_due,
    outside,
    running_samples,
    waiting_samples,
)
from ingero_agent.trace.symbols import name_addresses
from ingero_contract.verdicts import VerdictLine
from ingero_kit.clock import clock_offset_ns
from ingero_kit.logs import get

log = get(__name__)

SAMPLING_SECONDS: Final = 5.0
"""How long threads are sampled."""

MAX_COLLECTIVES: Final = 2000
"""Collectives that are kept, to know which process is late."""

_RING_BYTES: Final = 2**18
_ATTRIBUTE_BYTES: Final = 128
_SOFTWARE, _CPU_CLOCK, _CONTEXT_SWITCHES = 1, 0, 3
_TID, _TIME, _CALL_CHAIN = 1 << 1, 1 << 2, 1 << 5
_NO_KERNEL, _ALL_IDS, _NO_KERNEL_CHAIN, _OWN_CLOCK, _SWITCHES = 1 << 5, 1 << 18, 1 << 21, 1 << 25, 1 << 26
_HEAD: Final = 1024
"""Where the first page of a ring has the position up to which the kernel has written."""


class PerfRing:
    """Samples of one thread by one kind of event, until it is closed. Raises `OSError`."""

    def __init__(self, tid: int, event: int, period: int, flags: int) -> None:
        attributes = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
        struct.pack_into(
            "=IIQQQQQ", attributes, 0, _SOFTWARE, _ATTRIBUTE_BYTES, event, period, _TID | _TIME | _CALL_CHAIN, 0,
            flags | _ALL_IDS | _NO_KERNEL_CHAIN | _OWN_CLOCK,
        )  # fmt: skip
        struct.pack_into("=i", attributes, 92, time.CLOCK_MONOTONIC)
        struct.pack_into("=H", attributes, 108, MAX_FRAMES)
        self._descriptor = libc.syscall(PERF_EVENT_OPEN, attributes, tid, -1, -1, 8)
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        try:
            # Writable, so that the kernel drops new samples when the ring is full instead of overwriting old ones.
            self._ring = mmap.mmap(self._descriptor, mmap.PAGESIZE + _RING_BYTES, mmap.MAP_SHARED)
        except OSError:
            close_all([self._descriptor])
            raise

    def finish(self) -> bytes:
        """Stop, and return the records."""
        (head,) = struct.unpack_from("=Q", self._ring, _HEAD)
        data = self._ring[mmap.PAGESIZE : mmap.PAGESIZE + min(head, _RING_BYTES)]
        self._ring.close()
        close_all([self._descriptor])
        return data


class Sampling:
    """A sampling under way: two rings for each thread. Raises `OSError` if no thread can be sampled."""

    def __init__(self, target: Target, ends_at: float) -> None:
        self.target, self.ends_at = target, ends_at
        self._running: list[PerfRing] = []
        self._waiting: list[PerfRing] = []
        problem: OSError | None = None
        for tid in target.tids:
            try:
                self._running.append(PerfRing(tid, _CPU_CLOCK, PERIOD_NS, _NO_KERNEL))
                self._waiting.append(PerfRing(tid, _CONTEXT_SWITCHES, 1, _SWITCHES))
            except OSError as error:  # a thread that has ended
                problem = error
        if problem and not self._waiting:
            self.finish()
            raise problem

    def finish(self) -> list[Sample]:
        """Stop, and return the samples."""
        running = [sample for ring in self._running for sample in running_samples(ring.finish())]
        return [*running, *(sample for ring in self._waiting for sample in waiting_samples(ring.finish()))]


class StackSampler:
    """Samples when a verdict names the node. `outcomes` counts samplings."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter(sampled=0, failed=0)
        self._recent: deque[Collective] = deque(maxlen=MAX_COLLECTIVES)
        self._last: float | None = None
        self._sampling: Sampling | None = None
        self._worker = ThreadPoolExecutor(1, "stacks")
        self._naming: Future[list[CallStack]] | None = None

    def follow(self, collectives: Iterable[Collective], verdict: VerdictLine | None, now: float) -> list[CallStack]:
        """Begin or end a sampling. Returns the stacks of one that has been named. `now`: monotonic seconds."""
        self._recent.extend(collectives)
        if self._sampling:
            if now >= self._sampling.ends_at:
                pid, samples = self._sampling.target.pid, self._sampling.finish()
                samples = outside(samples, (one for one in self._recent if one.pid == pid), clock_offset_ns())
                self._sampling, self._naming = None, self._worker.submit(_named, pid, samples, time.time_ns())
        elif self._naming is None and is_due(verdict, self._last, now):
            self._begin(now)
        if self._naming is None or not self._naming.done():
            return []
        found, self._naming = self._naming.result(), None
        self.outcomes["sampled" if found else "failed"] += 1
        return found

    def close(self) -> None:
        """End a sampling under way, and forget its samples."""
        if self._sampling:
            self._sampling.finish()
            self._sampling = None
        self._worker.shutdown(cancel_futures=True)

    def _begin(self, now: float) -> None:
        target = choose_target(self._recent, time.time_ns())
        if target is None:
            return
        self._last = now
        try:
            self._sampling = Sampling(target, now + SAMPLING_SECONDS)
        except OSError as error:
            self.outcomes["failed"] += 1
            log.warning("stacks_not_sampled", pid=target.pid, reason=str(error))
        else:
            log.info("stacks_sampled", pid=target.pid, threads=len(target.tids), seconds=SAMPLING_SECONDS)


def _named(pid: int, samples: list[Sample], at_ns: int) -> list[CallStack]:
    """The stacks with names of functions; empty if they cannot be named, as their process has ended."""
    names = name_addresses(pid, (address for one in samples for address in one.addresses))
    return fold(samples, lambda address: names.get(address, "unknown"), pid, at_ns) if names else []
