"""Collects data other than calls, once a second: GPU samples, straggling processes and annotations."""

import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

from ingero_agent.sources.trace_db import LAUNCHES
from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.gpu_stats import GpuStats
from ingero_agent.trace.gpus import OFF, GpuPoller
from ingero_agent.trace.host import command_of, rank_and_world_size
from ingero_agent.trace.probes.table import SCHED_SWITCH, SIZE_1
from ingero_agent.trace.sockets import Sockets
from ingero_agent.trace.stats import TraceStats
from ingero_agent.trace.store import TraceStore
from ingero_agent.trace.straggle import GpuAllocations, LaunchRates, ThroughputDrop, straggle_line
from ingero_contract.events import StraggleEvent

POLL_SECONDS = 1.0
"""Time between two polls. Rates over a shorter time are too noisy."""


class AuxCollectors:
    """Collects GPU samples, throughput drops and annotations, and publishes events.

    `pushed_off(pid, since_ns)` returns the processes that preempted a process since a monotonic time.
    """

    def __init__(
        self, stats: TraceStats, store: TraceStore, poller: GpuPoller | None, sockets: Sockets | None,
        pushed_off: Callable[[int, int], list[int]],
    ) -> None:  # fmt: skip
        self._stats, self._store, self._poller, self._sockets = stats, store, poller, sockets
        self._pushed_off = pushed_off
        self._gpus, self._launch_rates, self._allocations = GpuStats(), LaunchRates(), GpuAllocations()
        self._launches: dict[int, int] = defaultdict(int)
        self._switches: dict[int, int] = defaultdict(int)
        self._since: float | None = None
        stats.gpus = self._gpus

    @property
    def gpu_mode(self) -> str:
        """Where GPU figures come from."""
        return self._poller.mode if self._poller else OFF

    @property
    def gpu_error(self) -> str:
        """Why there are no GPU figures; empty if there are, or if they are not wanted."""
        return self._poller.reason if self._poller else ""

    def add(self, rows: Iterable[CallCount], now: float) -> None:
        """Count launches and preemptions; once a second, poll everything else. `now`: monotonic seconds."""
        for one in rows:
            function = one.function
            if (function.source, function.operation) in LAUNCHES:
                self._launches[one.pid] += one.count
            elif function.number == SCHED_SWITCH.number:
                self._switches[one.pid] += one.count
            elif function.shape == SIZE_1 and one.count:
                self._allocations.allocated(one.pid, one.size // one.count)
        if self._since is None:
            self._since = now
        elif now - self._since >= POLL_SECONDS:
            self._poll(now - self._since, now)
            self._since = now

    def save_gpus(self, now: float) -> None:
        """Store the GPU samples since the last call. `now`: seconds since the epoch."""
        with suppress(sqlite3.OperationalError):
            self._store.gpus(self._gpus.drain_window(), now)

    def close(self) -> None:
        """Store the last annotations and stop polling. The sockets stay open: their owner closes them."""
        self._take_annotations()
        if self._poller:
            self._poller.stop()

    def _poll(self, seconds: float, now: float) -> None:
        now_ns = time.time_ns()
        gpus = self._poller.latest() if self._poller else []
        with self._stats.lock:
            self._gpus.add(gpus)
        drops = self._launch_rates.update(
            {pid: count / seconds for pid, count in self._launches.items()}, self._switches
        )
        allocations = self._allocations.update(gpus, now_ns, command_of)
        self._launches.clear()
        self._switches.clear()
        if self._sockets:
            since_ns = int((now - seconds) * 1e9)
            self._sockets.publish([*allocations, *(self._line(drop, since_ns, now_ns) for drop in drops)])
        self._take_annotations()

    def _line(self, drop: ThroughputDrop, since_ns: int, now_ns: int) -> StraggleEvent:
        return straggle_line(
            drop, self._pushed_off(drop.pid, since_ns), now_ns, command_of(drop.pid), str(uuid.uuid4()),
            rank_and_world_size(drop.pid),
        )  # fmt: skip

    def _take_annotations(self) -> None:
        if not self._sockets:
            return
        found = self._sockets.take()
        if found:
            try:
                self._store.annotations(found)
            except sqlite3.OperationalError:
                self._stats.status.unwritten_annotations += len(found)
        events, annotations = self._sockets.events, self._sockets.annotations
        status = self._stats.status
        if events:
            status.lines_sent, status.lines_dropped = events.sent, dict(events.dropped)
            status.consumers = events.consumers
        if annotations:
            status.annotations, status.annotations_refused = annotations.taken, dict(annotations.refused)
