"""Fleet's engine: drives the state machine by this machine's clock, and hands on what every tick decided."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_detect.nodes.column_store import SnapshotError
from ingero_fleet.health_facts import PROBLEM
from ingero_fleet.live_detector import Findings
from ingero_fleet.processor_settings import IngeroConfig
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.snapshot_file import SnapshotFile
from ingero_fleet.state_codec import State, encode_state, hash_in, sealed
from ingero_fleet.state_machine import StateMachine, TickResult, read_state
from ingero_fleet.tick_snapshot import SEVERAL_AGENTS, TickSnapshot
from ingero_fleet.verdict_cache import VerdictCache
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_kit.process_memory import GcFreezer, trim_heap

log = get(__name__)

POLLS_PER_TICK: Final = 10
"""How often, between two ticks, reports are searched for nodes that have fallen far."""

STANDSTILL: Final = 2.0
"""Push intervals without a tick and a report beyond which this process stood still."""

MAX_LOGGED: Final = 20
"""Most nodes of a tick whose agents are logged."""

SNAPSHOT_TICKS: Final = 2
"""Ticks between two snapshots, as long as they cost little."""


class Engine:
    """Owns the latest snapshot. Statistics run in a thread, so that no push waits for them."""

    def __init__(self, machine: StateMachine, clock: Clock) -> None:
        self.machine = machine
        self.clock = clock
        self.snapshot: TickSnapshot | None = None
        self.late_ticks = 0
        self.failed_ticks = 0
        self._failed_listeners = 0
        self.starts_unready = False
        """Whether this Fleet is not healthy before its first tick."""
        self.waits: Callable[[], bool] = lambda: False
        """Whether no tick can be computed at present through no fault of this Fleet, which is healthy then."""
        self.tick_seconds = 0.0
        self.collect_reports: Callable[[], Awaitable[None]] | None = None
        """Awaited before the score map is read: collects the reports of the receiver processes."""
        self.publish: list[Callable[[VerdictCache], None]] = []
        """Called on the event loop with every new verdict cache."""
        self.export_logs: list[Callable[[bytes], None]] = []
        """Called on the event loop with verdicts that changed, as an OTLP request for logs."""
        self.after_tick: list[Callable[[TickSnapshot], None]] = []
        """Called in a thread with every new snapshot; a failure is logged and counted, and the tick stays valid."""
        self.facts: list[Callable[[], dict[str, Any]]] = []
        """Functions by which other parts add facts about Fleet's health."""
        self.state_hash = ""
        """Hash of the state that was saved last."""
        settings = machine.config.detector
        self._snapshots: SnapshotFile | None = None
        if settings.snapshot:
            shortest = SNAPSHOT_TICKS * machine.config.push_interval
            self._snapshots = SnapshotFile(settings.snapshot, shortest, settings.snapshot_interval)
            self._restore(self._snapshots)
        self._gc_freezer = GcFreezer()
        self._started = self._announced = clock()
        self._ticked_at: float | None = None
        self.worker = ThreadPoolExecutor(1, "tick")
        """Where everything runs that takes longer than a push may wait."""

    def _restore(self, snapshots: SnapshotFile) -> None:
        data = snapshots.read()
        if data is None:
            return
        try:
            self.machine.restore(read_state(data), continued=False)
            log.info("state_restored", nodes=len(self.table), ticks=self.ticks)
        except SnapshotError as error:
            log.warning("snapshot_refused", reason=str(error))
            self.machine.detector.learns_anew(str(error))

    @property
    def config(self) -> IngeroConfig:
        """The settings in force."""
        return self.machine.config

    @property
    def table(self) -> ScoreTable:
        """The score map."""
        return self.machine.table

    @property
    def ticks(self) -> int:
        """Ticks computed."""
        return self.machine.ticks

    @property
    def early_polls(self) -> int:
        """Early polls that judged a node."""
        return self.machine.early_polls

    @property
    def failed_listeners(self) -> int:
        """How often a part failed after a tick, which stands all the same."""
        return self._failed_listeners + self.machine.failed_bookings

    @property
    def failed_writes(self) -> dict[str, int]:
        """How often a file of the settings could not be written, by file."""
        snapshots = self._snapshots.failures if self._snapshots else None
        counts = {"snapshot": snapshots, "record": self.machine.detector.failed_recordings}
        return {name: count for name, count in counts.items() if count is not None}

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Healthy while ticks are computed on time."""
        age = self.clock() - self._announced
        facts: dict[str, Any] = {
            "uptime_seconds": round(self.clock() - self._started, 1),
            "last_tick_age_seconds": round(age, 3),
            "tick_seconds": round(self.tick_seconds, 6),
            "ticks": self.ticks,
            "failed_ticks": self.failed_ticks,
            "nodes": len(self.table),
        }
        if self.state_hash:
            facts["state_hash"] = self.state_hash
        for more in self.facts:
            facts |= more()
        problem = "" if self.waits() else self._problem(age)
        return not problem, facts | ({PROBLEM: problem} if problem else {})

    def _problem(self, age: float) -> str:
        """Why this Fleet is not healthy; empty if it is. `age`: seconds since the last tick or the start."""
        if self.starts_unready and self.snapshot is None:
            return "no statistics were computed yet"
        interval = self.config.push_interval
        if age < 3 * interval + 5:
            return ""
        failed = f", and {self.failed_ticks} failed: the log says why" if self.failed_ticks else ""
        return f"no statistics for {age:.0f} s, which are due every {interval:g} s{failed}"

    async def run(self) -> None:
        """Tick until cancelled; a tick that fails is logged and counted, and the next one is tried."""
        interval = self.config.push_interval
        due = time.monotonic() + interval
        while True:
            try:
                due = await self._until(due)
                await self.tick()
            except Exception:
                self.failed_ticks += 1
                log.exception("tick_failed")
            due += interval
            if due < time.monotonic():
                self.late_ticks += 1
                due = time.monotonic() + interval

    async def _until(self, due: float) -> float:
        """Wait for a tick. A node that falls far meanwhile is judged at once; the tick then is an interval later."""
        interval, may = self.config.push_interval, self.machine.may_poll_early
        while (left := due - time.monotonic()) > 0:
            await asyncio.sleep(min(left, interval / POLLS_PER_TICK) if may else left)
            if may and time.monotonic() < due and await self.early_poll():
                may, due = False, time.monotonic() + interval
        return due

    async def early_poll(self) -> bool:
        """Judge nodes that have fallen far since the last tick; returns whether there were any."""
        loop = asyncio.get_running_loop()
        if self.collect_reports:
            await self.collect_reports()
        rows = await loop.run_in_executor(self.worker, self.machine.fallen)
        if not len(rows):
            return False
        scores = await self._copy_scores(self.clock(), rows)
        await loop.run_in_executor(self.worker, self.machine.judge_early, scores, rows)
        return True

    async def tick(self) -> TickSnapshot:
        """Run one tick now."""
        started = time.perf_counter()
        loop, machine = asyncio.get_running_loop(), self.machine
        now = self.clock()
        self._excuse_pause(now)
        if self.collect_reports:
            await self.collect_reports()
        last_verdicts = machine.start_tick(now)
        scores = await self._copy_scores(now)
        judged = await loop.run_in_executor(self.worker, machine.judge, scores, last_verdicts)
        result = machine.conclude(scores, *judged)
        self.tick_seconds = time.perf_counter() - started
        self.announce(result)
        self._export_changes(result)
        await loop.run_in_executor(self.worker, self._after, result.snapshot)
        if self._snapshots and self._snapshots.due(time.monotonic()):
            await self.save()
        return result.snapshot

    def _excuse_pause(self, now: float) -> None:
        """Forget no node for the time in which this process stood still, as in a virtual machine that is moved."""
        before, self._ticked_at = self._ticked_at, now
        if before is None:
            return
        interval, seen = self.config.push_interval, self.table.view("seen")
        pause = now - float(np.max(seen, initial=before))
        if pause > STANDSTILL * interval:
            self.table.excuse(pause, now - interval)
            log.warning("stood_still", seconds=round(pause, 1))

    async def save(self) -> None:
        """Save the state that a restart needs. No tick may run meanwhile."""
        if self._snapshots:
            table, loop = self.table.state(), asyncio.get_running_loop()
            await loop.run_in_executor(self.worker, self._save, self._snapshots, self.clock(), table)

    def announce(self, result: TickResult) -> None:
        """Put the results of a tick before APIs and receivers."""
        _log_several_agents(self.snapshot, result.snapshot)
        self.snapshot, self._announced = result.snapshot, self.clock()
        for publish in self.publish:
            publish(result.verdict_cache)
        if result.snapshot.findings:
            _log_edges(result.snapshot.findings)

    async def _copy_scores(self, now: float, rows: npt.NDArray[np.int64] | None = None) -> ScoreSnapshot:
        """A copy of the score map; pushes are answered between its parts."""
        for piece in self.machine.copies(now, rows):
            scores = piece
            await asyncio.sleep(0)
        return scores

    def _after(self, snapshot: TickSnapshot) -> None:
        self.machine.book(snapshot)
        self.call_listeners(snapshot)

    def call_listeners(self, snapshot: TickSnapshot) -> None:
        """Hand a snapshot to the parts that want every one; called in a thread."""
        for listener in self.after_tick:
            try:
                listener(snapshot)
            except Exception:
                self._failed_listeners += 1
                log.exception("after_tick_failed")
        if self._gc_freezer.freeze_if_grown(len(snapshot.scores.names)):
            trim_heap()

    def _save(self, snapshots: SnapshotFile, now: float, table: State) -> None:
        started = time.thread_time()
        data = sealed(encode_state(self.machine.state(now, table)))
        self.state_hash = hash_in(data)
        snapshots.write(data)
        snapshots.cost = time.thread_time() - started

    def _export_changes(self, result: TickResult) -> None:
        body = result.changes() if self.export_logs else None
        if body:
            for export_logs in self.export_logs:
                export_logs(body)

    def close(self) -> None:
        """Save the state that a restart needs."""
        self.worker.shutdown()
        if self._snapshots:
            self._save(self._snapshots, self.clock(), self.table.state())
        self.machine.detector.close()


def _log_edges(findings: Findings) -> None:
    for edge in findings.edges:
        verdict = edge.verdict
        log.info(
            "verdict", edge=edge.what, cluster=verdict.cluster, node=verdict.node, state=str(verdict.state),
            kind=str(verdict.kind), severity=round(verdict.severity, 4),
        )  # fmt: skip


def _log_several_agents(before: TickSnapshot | None, after: TickSnapshot) -> None:
    """Log the nodes for which several agents began or ceased to report."""
    was, now = (one.scores.nodes_with_several_agents if one else frozenset() for one in (before, after))
    for cluster, node in sorted(now - was)[:MAX_LOGGED]:
        log.warning("several_agents", cluster=cluster, node=node, message=SEVERAL_AGENTS)
    for cluster, node in sorted(was - now)[:MAX_LOGGED]:
        log.info("one_agent_again", cluster=cluster, node=node)
