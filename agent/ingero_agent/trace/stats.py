"""Running totals since the start, from which the Prometheus page and the export are built."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import add
from threading import Lock

from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.events import Collective, Event
from ingero_agent.trace.gpu_stats import GpuStats
from ingero_agent.trace.probes.table import COLLECTIVES, DIRECTIONS, SOURCE_NAMES
from ingero_agent.trace.probes.table import OPERATION_NAMES as NAMES
from ingero_agent.trace.tracer_base import Tracer

HISTOGRAM_BUCKETS = 32
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
COPY_BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)

RING_FULL = "ring_full"
"""Reason under which lost records are counted."""


def quantile(histogram: Iterable[int], share: float) -> float:
    """The nanoseconds below which `share` of the calls lie, linear inside a log2 bucket; 0 without calls."""
    counts = list(histogram)
    wanted, passed = sum(counts) * share, 0
    for index, count in enumerate(counts):
        if count and passed + count >= wanted:
            low = 0.0 if index == 0 else 2.0**index
            return low + (2.0 ** (index + 1) - low) * max(0.0, wanted - passed) / count
        passed += count
    return 0.0


@dataclass
class CallTotals:
    """Calls, nanoseconds, bytes and failures; calls by the binary magnitude of their nanoseconds where timed."""

    count: int = 0
    nanoseconds: int = 0
    size: int = 0
    errors: int = 0
    histogram: list[int] = field(default_factory=lambda: [0] * HISTOGRAM_BUCKETS)

    def add(self, one: CallCount) -> None:
        """Add calls."""
        self.count += one.count
        self.nanoseconds += one.nanoseconds
        self.size += one.size
        self.errors += one.errors
        if one.histogram:
            self.histogram = list(map(add, self.histogram, one.histogram))


def histogram_buckets(totals: CallTotals, bounds_ms: tuple[float, ...] = COPY_BOUNDS_MS) -> list[int]:
    """Calls in each bucket, not cumulative, the last one unbounded. A log2 bucket counts where its middle lies."""
    found = [0] * (len(bounds_ms) + 1)
    for index, count in enumerate(totals.histogram):
        middle = 1.5 * 2.0**index / 1e6
        found[next((place for place, bound in enumerate(bounds_ms) if middle <= bound), len(bounds_ms))] += count
    return found


@dataclass
class TracerStatus:
    """Cost and failures of tracing by `tracer`. Shares are of one processor; sizes in bytes, costs in ns."""

    tracer: Tracer = field(default_factory=Tracer)
    budget: float = 0.0
    overhead: float = 0.0
    step: int = 0
    duty: dict[str, float] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    own_cpu: float = 0.0
    own_rss: int = 0
    period_seconds: float = 0.0
    sample_every: int = 1
    lost: dict[str, int] = field(default_factory=dict)
    database_bytes: int = 0
    pruned_rows: int = 0
    unexported: int = 0
    modes: dict[str, str] = field(default_factory=dict)
    lines_sent: int = 0
    lines_dropped: dict[str, int] = field(default_factory=dict)
    consumers: int = 0
    annotations: int = 0
    annotations_refused: dict[str, int] = field(default_factory=dict)
    unwritten_annotations: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    samplings: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HostSnapshot:
    """The host at a moment: shares in percent, memory in MB."""

    cpu_percent: float
    memory_percent: float
    memory_available_mb: int
    swap_mb: int
    load: float


@dataclass(frozen=True)
class NcclProcess:
    """A process that has NCCL loaded. `version` is empty where the file's name does not contain it."""

    pid: int
    command: str
    path: str
    version: str


class TraceStats:
    """The totals. Readers and writers must hold `lock`; everything else is plain data."""

    def __init__(self, status: TracerStatus | None = None) -> None:
        self.lock = Lock()
        self.operations: dict[tuple[int, int], CallTotals] = {}
        self.copies: dict[str, CallTotals] = {}
        self.collectives: dict[str, CallTotals] = {}
        self.waits: dict[str, CallTotals] = {}
        self.nccl_processes: list[NcclProcess] = []
        self.status = status or TracerStatus()
        self.gpus = GpuStats()

    def add(self, counted: Iterable[CallCount], events: Iterable[Event] = ()) -> None:
        """Add the results of one poll."""
        for one in counted:
            function = one.function
            self.operations.setdefault((function.source, function.operation), CallTotals()).add(one)
            if function.is_copy:
                direction = DIRECTIONS[min(one.kind, len(DIRECTIONS) - 1)]
                self.copies.setdefault(direction, CallTotals()).add(one)
            if function.number in COLLECTIVES:
                self.collectives.setdefault(function.name, CallTotals()).add(one)
        for event in events:
            if isinstance(event, Collective):
                waits = self.waits.setdefault(event.operation, CallTotals())
                waits.count += 1
                waits.nanoseconds += event.blocked_ns

    @staticmethod
    def labels(key: tuple[int, int]) -> tuple[str, str]:
        """Names of an operation's source and of itself."""
        return SOURCE_NAMES.get(key[0], str(key[0])), NAMES.get(key, str(key[1]))
