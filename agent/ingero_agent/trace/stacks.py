"""Decides when and what to sample of a late rank, and folds samples into call stacks. Pure.

A stack is weighed by time: a sample of a running thread stands for the time between two samples, one taken when a
thread leaves its processor for the time until it runs again.
"""

import struct
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import fmean
from typing import Final

from ingero_agent.trace.events import Collective
from ingero_agent.trace.probes.table import FUNCTIONS
from ingero_contract.values import LATE_RANK
from ingero_contract.verdicts import VerdictLine

REPEAT_SECONDS: Final = 600.0
"""Least time between the begins of two samplings."""

RECENT_SECONDS: Final = 60.0
"""Age up to which collectives show which process is late."""

MIN_COLLECTIVES: Final = 3
MAX_THREADS: Final = 4
MAX_STACKS: Final = 20
"""Most stacks that are stored of one sampling, those with the most time."""

MAX_FRAMES: Final = 64
PERIOD_NS: Final = 10_101_010
"""Time between two samples of a running thread: 99 a second."""

_SAMPLE, _SWITCH = 9, 14
_SWITCH_OUT: Final = 1 << 13
_FIRST_CONTEXT: Final = 2**64 - 4096
"""Addresses from here on are marks of the kernel, no addresses."""

_WAITS: Final = frozenset(one.name for one in FUNCTIONS if one.waits or one.kind == "coll")
"""Functions in which a rank waits for its peers or its GPU."""


@dataclass(frozen=True)
class Target:
    """A process to sample, and those of its threads that matter."""

    pid: int
    tids: tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """One sampled stack, innermost address first; the time for which it stands, and the middle of that time."""

    addresses: tuple[int, ...]
    nanoseconds: int
    at_ns: int


@dataclass(frozen=True, kw_only=True)
class CallStack:
    """A call stack outside of collectives and waits, outermost function first. `at_ns`: time of day.

    `sampled_ns`: the time that all stacks of the sampling stand for, those in collectives and waits left out.
    """

    at_ns: int
    pid: int
    frames: tuple[str, ...]
    samples: int
    nanoseconds: int
    sampled_ns: int

    @property
    def share(self) -> float:
        """Share of the time of the sampling, 0 to 1."""
        return self.nanoseconds / self.sampled_ns if self.sampled_ns else 0.0


def is_due(verdict: VerdictLine | None, last: float | None, now: float) -> bool:
    """Whether to sample now: Fleet's answer names this node for a late rank, and the last sampling began long ago."""
    if verdict is None or verdict.collectives != LATE_RANK:
        return False
    return last is None or now - last >= REPEAT_SECONDS


def choose_target(collectives: Iterable[Collective], now_ns: int) -> Target | None:
    """The process that waited least at recent collectives: its main thread, and the threads that called them."""
    found: dict[int, list[Collective]] = defaultdict(list)
    for one in collectives:
        if now_ns - one.arrival_ns <= RECENT_SECONDS * 1e9:
            found[one.pid].append(one)
    waits = {pid: fmean(one.blocked_ns for one in own) for pid, own in found.items() if len(own) >= MIN_COLLECTIVES}
    if not waits:
        return None
    pid = min(waits, key=lambda one: waits[one])
    callers = Counter(one.tid for one in found[pid] if one.tid and one.tid != pid)
    return Target(pid, (pid, *(tid for tid, _ in callers.most_common(MAX_THREADS - 1))))


def _records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(type, flags, body) of each record of a perf ring."""
    at = 0
    while at + 8 <= len(data):
        kind, flags, size = struct.unpack_from("=IHH", data, at)
        if size < 8 or at + size > len(data):
            return
        yield kind, flags, data[at + 8 : at + size]
        at += size


def _chain(body: bytes) -> tuple[int, int, tuple[int, ...]]:
    """Thread, time and addresses of a sample."""
    _, tid, at, count = struct.unpack_from("=IIQQ", body)
    addresses = struct.unpack_from(f"={min(count, (len(body) - 24) // 8)}Q", body, 24)
    return tid, at, tuple(one for one in addresses if one < _FIRST_CONTEXT)[:MAX_FRAMES]


def running_samples(data: bytes) -> list[Sample]:
    """The samples of running threads."""
    chains = (_chain(body) for kind, _, body in _records(data) if kind == _SAMPLE)
    return [Sample(addresses, PERIOD_NS, at) for _, at, addresses in chains]


def waiting_samples(data: bytes) -> list[Sample]:
    """A sample for each time that a thread left its processor and came back."""
    found, left = list[Sample](), dict[int, tuple[int, tuple[int, ...]]]()
    for kind, flags, body in _records(data):
        if kind == _SAMPLE:
            tid, at, addresses = _chain(body)
            left[tid] = at, addresses
        elif kind == _SWITCH and not flags & _SWITCH_OUT:
            _, tid, at = struct.unpack_from("=IIQ", body)
            if tid in left:
                since, addresses = left.pop(tid)
                found.append(Sample(addresses, max(0, at - since), (since + at) // 2))
    return found


def outside(samples: Iterable[Sample], collectives: Iterable[Collective], offset_ns: int) -> list[Sample]:
    """The samples that were not taken while their process waited at a collective.

    `offset_ns` turns the time of samples into the time of day.
    """
    waits = sorted((one.end_ns - one.blocked_ns, one.end_ns) for one in collectives)

    def waited(at: int) -> bool:
        place = bisect_right(waits, at, key=itemgetter(0)) - 1
        return place >= 0 and at <= waits[place][1]

    return [one for one in samples if not waited(one.at_ns + offset_ns)]


def fold(samples: Iterable[Sample], name: Callable[[int], str], pid: int, at_ns: int) -> list[CallStack]:
    """The stacks with the most time, without those that wait in a collective or for the GPU."""
    spent, counts = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for one in samples:
        frames = tuple(name(address) for address in reversed(one.addresses))
        if frames and not _WAITS.intersection(frames):
            spent[frames] += one.nanoseconds
            counts[frames] += 1
    stack = CallStack(at_ns=at_ns, pid=pid, frames=(), samples=0, nanoseconds=0, sampled_ns=spent.total())
    return [
        replace(stack, frames=frames, samples=counts[frames], nanoseconds=nanoseconds)
        for frames, nanoseconds in spent.most_common(MAX_STACKS)
    ]
