"""Decodes records of the ring: single collectives with arrival and blocked time, communicators, slow calls. Pure.

A collective has three times. `arrival_ns` is when the rank called it (or closed the group it was in). `enqueue_ns` is
the host time inside that call, which does not depend on the peers. `blocked_ns` is the time in the next wait for the
GPU that began after the arrival: the rank that arrives last waits least.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Final

from ingero_agent.trace.probes.table import BY_NUMBER, element_size

_RECORD: Final = struct.Struct("=3IHBB8QIIiBBHQ")
COLLECTIVE, INIT, INIT_FAILED, DESTROY, SLOW = range(1, 6)
_NONE: Final = 255
_UNKNOWN_WORK: Final = (1 << 64) - 1
BY_CALL, BY_STRUCTURE = 1, 2
"""How a communicator's identity is known: from its own init call, or from the library's memory."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective that its process waited for. Times of day in nanoseconds.

    `rank`, `communicator` and `size` are absent where they are not known. `seq` numbers the collectives of the
    communicator; it is the same on every rank if `exact`, that is if the communicator was seen from its start.
    `work`: bytes of the process's other communicators since its previous collective here that it waited for.
    """

    pid: int
    tid: int
    operation: str
    op_code: int
    communicator: str | None
    rank: int | None
    nranks: int
    device: int
    seq: int
    exact: bool
    dtype: int
    reduce_op: int | None
    size: int | None
    arrival_ns: int
    enqueue_ns: int
    blocked_ns: int
    end_ns: int
    work: int | None = None


@dataclass(frozen=True, kw_only=True)
class Lifecycle:
    """A communicator was created, failed to be created, or was destroyed. `at_ns`: time of day."""

    kind: str
    pid: int
    communicator: str
    rank: int
    nranks: int
    seq: int
    at_ns: int
    result: int = 0


@dataclass(frozen=True, kw_only=True)
class SlowCall:
    """One call that took very long. Time of day and duration in nanoseconds; `size` in bytes, where it has one."""

    pid: int
    tid: int
    source: int
    operation: int
    name: str
    size: int
    begun_ns: int
    duration_ns: int
    result: int


Event = Collective | Lifecycle | SlowCall
_KINDS: Final = {INIT: "init", INIT_FAILED: "init_failed", DESTROY: "destroy"}


def communicator_name(identity: int) -> str:
    """The communicator's hash as NCCL's logs show it, 16 hexadecimal digits."""
    return f"{identity:016x}"


def decode(record: bytes, offset_ns: int) -> Event | None:
    """Decode a record; `None` for one of an unknown type. `offset_ns` turns monotonic time into the time of day."""
    if len(record) < _RECORD.size:
        return None
    (
        kind, pid, tid, number, dtype, redop, identity, _, seq, count, arrival, enqueue, blocked, end, rank, nranks,
        device, how, exact, result, work,
    ) = _RECORD.unpack_from(record)  # fmt: skip
    if kind in _KINDS:
        return Lifecycle(
            kind=_KINDS[kind], pid=pid, communicator=communicator_name(identity), rank=rank, nranks=nranks, seq=seq,
            at_ns=end + offset_ns, result=result,
        )  # fmt: skip
    function = BY_NUMBER.get(number)
    if function is None:
        return None
    if kind == SLOW:
        return SlowCall(
            pid=pid, tid=tid, source=function.source, operation=function.operation, name=function.name, size=count,
            begun_ns=arrival + offset_ns, duration_ns=blocked, result=result,
        )  # fmt: skip
    if kind != COLLECTIVE:
        return None
    element, known = element_size(dtype), how in (BY_CALL, BY_STRUCTURE)
    return Collective(
        pid=pid, tid=tid, operation=function.name, op_code=function.operation,
        communicator=communicator_name(identity) if known and identity else None, rank=rank if known else None,
        nranks=nranks, device=device, seq=seq, exact=bool(exact), dtype=dtype,
        reduce_op=None if redop == _NONE else redop, size=count * element if element else None,
        arrival_ns=arrival + offset_ns, enqueue_ns=enqueue, blocked_ns=blocked, end_ns=end + offset_ns,
        work=None if work == _UNKNOWN_WORK else work,
    )  # fmt: skip


def lags(collectives: Iterable[Collective]) -> dict[tuple[str, int], list[float]]:
    """How much later than its peers each (communicator, rank) arrived, seconds, one value for each collective.

    The lag is the median of the peers' blocked times minus its own. It uses durations only, so clocks need not agree.
    Collectives are matched by communicator and number, and only where every rank's number is exact.
    """
    instances: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for one in collectives:
        if one.exact and one.communicator is not None and one.rank is not None:
            instances[one.communicator, one.seq][one.rank] = one.blocked_ns
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (communicator, _), blocked in instances.items():
        if len(blocked) < 3:
            continue
        for rank, mine in blocked.items():
            peers = median(other for peer, other in blocked.items() if peer != rank)
            found[communicator, rank].append((peers - mine) / 1e9)
    return dict(found)


MAX_EVENTS: Final = 1000.0
"""Events a second above which collectives are sampled whatever they cost."""

FEW_EVENTS: Final = 200.0
"""Events a second that are never sampled: with fewer, a late rank is found later."""


def sample_mask(mask: int, events_per_second: float, load: float) -> int:
    """The next sampling mask: twice as coarse when events are too many or too expensive, finer when they are neither.

    `load`: the agent's own processor time as a part of its budget. Masks nest, so ranks with different masks all send
    the instances of the coarser mask.
    """
    if events_per_second > (FEW_EVENTS if load > 1 else MAX_EVENTS):
        return min(mask * 2 + 1, 0xFFFF)
    return mask >> 1 if events_per_second < MAX_EVENTS / 4 and load < 0.5 else mask
