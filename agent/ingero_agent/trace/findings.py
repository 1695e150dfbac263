"""Finds why a job was slow: from the facts of a time window to findings with evidence and advice. Pure.

Every finding has evidence. Waits at collectives name a rank only if it waited clearly less than its peers. If all
ranks waited equally long, the finding says that this host does not show the straggler.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Final

from ingero_agent.trace.events import Collective, lags
from ingero_agent.trace.stacks import CallStack
from ingero_agent.trace.stats import HostSnapshot, quantile

MIN_COUNT: Final = 10
TAIL_RATIO: Final = 3.0
DROP_SHARE: Final = 0.6
MIN_PEAK: Final = 10.0
MIN_BUCKETS: Final = 5
MIN_INSTANCES: Final = 5
LAG_SECONDS: Final = 0.005
STALL_SHARE: Final = 0.1
THROTTLED_SHARE: Final = 0.1
MEMORY_SHARE: Final = 0.95
"""Share of a GPU's samples, and of its memory, above which it is reported."""

EVIDENCE_STACKS, EVIDENCE_FRAMES = 5, 8
"""Most call stacks of a finding, and most frames of each, the innermost."""

LAG_SHARE: Final = 0.3
"""A rank is late if its peers waited this much longer, in seconds and as a share of what they waited."""


class Severity(StrEnum):
    """Severity of a finding."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"


_ORDER: Final = {Severity.HIGH: 0, Severity.MEDIUM: 1, Severity.LOW: 2}


@dataclass(frozen=True)
class Finding:
    """A cause with its evidence and advice."""

    kind: str
    subject: str
    severity: Severity
    summary: str
    evidence: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def id(self) -> str:
        """An id that is equal for the same cause on the same subject."""
        return hashlib.sha256(f"{self.kind}:{self.subject}".encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class LongCall:
    """A call that took very long, seconds."""

    pid: int
    operation: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """A GPU over the time window: shares of polls at which each kind throttled it, seconds by the driver's own count.

    Clocks in MHz, the lowest while throttled and the highest possible; `memory`: the most used, a share of all.
    """

    index: int
    uuid: str
    throttled: Mapping[str, float] = field(default_factory=dict)
    throttled_seconds: Mapping[str, float] = field(default_factory=dict)
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    memory: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TimeWindow:
    """The facts about a time window.

    `octaves`: calls by binary magnitude of nanoseconds, by (process, operation). `launches`: launches a second in
    equal buckets, by process, oldest first. `stalls`: seconds a second for which the threads of a process, added up,
    wanted a processor and had none. `names`: processes.
    """

    histogram: Mapping[tuple[int, str], Sequence[int]] = field(default_factory=dict)
    launches: Mapping[int, Sequence[float]] = field(default_factory=dict)
    snapshots: Sequence[HostSnapshot] = ()
    collectives: Sequence[Collective] = ()
    slow: Sequence[LongCall] = ()
    stalls: Mapping[int, float] = field(default_factory=dict)
    gpus: Sequence[GpuUse] = ()
    stacks: Sequence[CallStack] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    processors: int = 1

    def name(self, pid: int) -> str:
        """A process's name and number."""
        return f"{self.names.get(pid, 'process')} ({pid})"


def find_causes(window: TimeWindow) -> list[Finding]:
    """All causes, the most severe first."""
    pressure = list(_pressure(window))
    found = [
        *_ranks(window),
        *_tails(window, pressure),
        *_drops(window, pressure),
        *_slow(window),
        *_starved(window),
        *_throttled(window),
        *_full(window),
        *_stacks(window),
    ]
    return sorted(found, key=lambda finding: (_ORDER[finding.severity], finding.kind, finding.subject))


def _pressure(window: TimeWindow) -> Iterator[tuple[str, str, bool]]:
    """Pressure on the host and its GPUs: evidence, advice, and whether it is severe."""
    for finding in _throttled(window):
        if finding.severity is not Severity.LOW:
            yield finding.summary, finding.advice[0], finding.severity is Severity.HIGH
    if not window.snapshots:
        return
    cpu = max(one.cpu_percent for one in window.snapshots)
    memory = max(one.memory_percent for one in window.snapshots)
    swap = max(one.swap_mb for one in window.snapshots)
    load = max(one.load for one in window.snapshots)
    if cpu > 90:
        yield (
            f"processors busy to {cpu:.0f} %",
            "give the job processors of its own (cpuset, CPU manager static)",
            True,
        )
    if memory > 95:
        yield f"memory used to {memory:.0f} %", "lower the memory of data loaders, or move neighbours away", True
    if swap > 0:
        yield f"{swap} MB swapped out", "turn swap off on GPU nodes, or give the job more memory", True
    if load > max(10.0, 2.0 * window.processors):
        yield f"load average {load:.1f} on {window.processors} processors", "fewer data loader workers", False


def _ranks(window: TimeWindow) -> Iterator[Finding]:
    waits: dict[str, list[float]] = defaultdict(list)
    for one in window.collectives:
        if one.communicator is not None:
            waits[one.communicator].append(one.blocked_ns / 1e9)
    by_communicator: dict[str, dict[int, float]] = defaultdict(dict)
    instances: dict[str, int] = {}
    for (communicator, rank), values in lags(window.collectives).items():
        if len(values) >= MIN_INSTANCES:
            by_communicator[communicator][rank] = median(values)
            instances[communicator] = len(values)
    for communicator, late in by_communicator.items():
        typical = median(waits[communicator])
        late_ranks = [rank for rank, lag in late.items() if lag > max(LAG_SECONDS, LAG_SHARE * typical)]
        subject = f"communicator {communicator}"
        if 0 < len(late_ranks) <= len(late) // 2:
            for rank in late_ranks:
                others = max(abs(lag) for other, lag in late.items() if other not in late_ranks)
                yield Finding(
                    "late-rank", f"{subject} rank {rank}", Severity.HIGH,
                    f"rank {rank} comes {late[rank] * 1e3:.1f} ms late to every collective; all others wait for it",
                    (
                        f"median over {instances[communicator]} collectives; the other ranks lie within "
                        f"{others * 1e3:.1f} ms of each other",
                        f"ranks wait {typical * 1e3:.1f} ms at a collective",
                    ),
                    (
                        f"check rank {rank}'s input pipeline, garbage collection and processors before its GPU",
                        "compare its CPU pressure and disk with a healthy rank's",
                    ),
                )  # fmt: skip
        elif typical > LAG_SECONDS and len(late) >= 3:
            yield Finding(
                "equal-waits", subject, Severity.LOW,
                f"all {len(late)} ranks here wait equally long ({typical * 1e3:.1f} ms): this host does not show the "
                "cause",
                (f"median over {instances[communicator]} collectives",),
                (
                    "if a rank of another node is late, Fleet sees it",
                    "if a GPU is slow while the host runs ahead, check the clocks and throttling of the GPUs",
                ),
            )  # fmt: skip


def _tails(window: TimeWindow, pressure: Sequence[tuple[str, str, bool]]) -> Iterator[Finding]:
    if not pressure:
        return
    for (pid, operation), histogram in window.histogram.items():
        if sum(histogram) < MIN_COUNT:
            continue
        middle, tail = quantile(histogram, 0.5) / 1e3, quantile(histogram, 0.99) / 1e3
        if middle <= 0 or tail / middle < TAIL_RATIO:
            continue
        severe = any(one[2] for one in pressure)
        yield Finding(
            "tail", f"{operation} of {pid}", Severity.HIGH if severe else Severity.MEDIUM,
            f"{operation} of {window.name(pid)}: the slowest 1 % take {tail / middle:.0f} times the median",
            (f"p50 {middle:.1f} µs, p99 {tail:.1f} µs of {sum(histogram)} calls", *(one[0] for one in pressure)),
            tuple(one[1] for one in pressure),
        )  # fmt: skip


def _drops(window: TimeWindow, pressure: Sequence[tuple[str, str, bool]]) -> Iterator[Finding]:
    for pid, rates in window.launches.items():
        if len(rates) < MIN_BUCKETS:
            continue
        peak, current = max(rates), rates[-1]
        if peak < MIN_PEAK or current < 1 or current >= DROP_SHARE * peak:
            continue
        slow = [one for one in window.slow if one.pid == pid]
        evidence = [one[0] for one in pressure]
        if window.stalls.get(pid, 0.0) > STALL_SHARE:
            evidence.append(f"its threads waited {window.stalls[pid]:.2f} s a second for a processor")
        if slow:
            evidence.append(f"{len(slow)} calls of more than a second, {slow[0].operation} among them")
        if not evidence:
            continue
        severe = any(one[2] for one in pressure)
        yield Finding(
            "throughput-drop", str(pid), Severity.HIGH if severe else Severity.MEDIUM,
            f"{window.name(pid)} launches {current:.0f} a second, {peak:.0f} at its best",
            tuple(evidence), tuple(one[1] for one in pressure) or ("find out what the slow calls wait for",),
        )  # fmt: skip


def _slow(window: TimeWindow) -> Iterator[Finding]:
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for one in window.slow:
        groups[one.pid, one.operation].append(one.seconds)
    for (pid, operation), seconds in groups.items():
        yield Finding(
            "slow-call", f"{operation} of {pid}", Severity.MEDIUM,
            f"{operation} of {window.name(pid)} took up to {max(seconds):.1f} s",
            (f"{len(seconds)} calls of more than a second, {sum(seconds):.1f} s together",),
            (
                "a wait this long is usually a peer that is late or gone: `ingero-agent explain` on the other nodes",
                "an allocation or copy this long is usually memory pressure or a host page fault storm",
            ),
        )  # fmt: skip


def _starved(window: TimeWindow) -> Iterator[Finding]:
    for pid, share in window.stalls.items():
        if share > STALL_SHARE:
            yield Finding(
                "cpu-starved", str(pid), Severity.HIGH if share > 5 * STALL_SHARE else Severity.MEDIUM,
                f"threads of {window.name(pid)} wanted a processor and had none for {share:.2f} s a second",
                ("time between being ready to run and running, all threads added up; sleep is not in it",),
                (
                    "give the job processors of its own (cpuset, CPU manager static), or fewer threads",
                    "find what else runs on this node: `top`, or the other pods",
                ),
            )  # fmt: skip


_RELIEF: Final = {
    "thermal": "check cooling, dust and fans of this node, and the temperature of its neighbours",
    "power": "check the power limit (`nvidia-smi -q -d POWER`), the power supplies and the rack's budget",
    "hw": "a hardware slowdown is a defect or a brake from outside: read the node's log for Xid and drain it",
    "sw": "check for clocks that were set by hand (`nvidia-smi -q -d CLOCK`) and for sync boost",
}
"""What to do by kind of throttling, the most severe first."""

_AT_LIMIT: Final = (
    "usual at full load; a fault only if GPUs of this model have a higher clock at the same load, or a "
    "higher limit (`nvidia-smi -q -d POWER`)"
)


def _throttled(window: TimeWindow) -> Iterator[Finding]:
    for gpu in window.gpus:
        kinds = [kind for kind in _RELIEF if gpu.throttled.get(kind, 0.0) >= THROTTLED_SHARE]
        if not kinds:
            continue
        at_limit = "power" in kinds and {"power", "sw"} >= set(kinds)
        severity = Severity.LOW if at_limit else Severity.MEDIUM if kinds == ["sw"] else Severity.HIGH
        what = "is at its power limit" if at_limit else f"is throttled: {', '.join(kinds)}"
        evidence = [f"{kind}: {gpu.throttled[kind]:.0%} of the polls" for kind in kinds]
        evidence += [
            f"{kind}: {seconds:.1f} s by the driver's own count"
            for kind, seconds in gpu.throttled_seconds.items() if kind in kinds
        ]  # fmt: skip
        if gpu.sm_mhz is not None and gpu.sm_max_mhz:
            evidence.append(f"clock down to {gpu.sm_mhz} of {gpu.sm_max_mhz} MHz")
        yield Finding(
            "gpu-throttled", gpu.uuid, severity, f"GPU {gpu.index} ({gpu.uuid}) {what}", tuple(evidence),
            (_AT_LIMIT,) if at_limit else tuple(_RELIEF[kind] for kind in kinds),
        )  # fmt: skip


def _full(window: TimeWindow) -> Iterator[Finding]:
    for gpu in window.gpus:
        if gpu.memory > MEMORY_SHARE:
            yield Finding(
                "gpu-memory", gpu.uuid, Severity.MEDIUM,
                f"memory of GPU {gpu.index} ({gpu.uuid}) was used to {gpu.memory:.0%}",
                ("used over total memory, by the driver",),
                ("an allocator that preserves most of it is fine; failing allocations are not: smaller batches",),
            )  # fmt: skip


def _stacks(window: TimeWindow) -> Iterator[Finding]:
    """What a process that its job waits for does outside of collectives, by its latest sampling."""
    latest = {one.pid: one.at_ns for one in window.stacks}
    for pid, at in latest.items():
        found = [one for one in window.stacks if one.pid == pid and one.at_ns == at]
        yield Finding(
            "late-rank-stack", str(pid), Severity.MEDIUM,
            f"{window.name(pid)}, which its job waits for, spends {found[0].share:.0%} of its time outside of "
            f"collectives in {found[0].frames[-1]}",
            tuple(
                f"{one.share:.0%} ({one.samples} samples): {' > '.join(one.frames[-EVIDENCE_FRAMES:])}"
                for one in found[:EVIDENCE_STACKS]
            ),
            ("find out what the innermost functions of the program work on or wait for",),
        )  # fmt: skip
