"""Fleet's engine: every push interval, judges a copy of the score map and replaces the verdict cache."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_contract.identifiers import NodeKey
from ingero_fleet import threshold_rule, verdict_records
from ingero_fleet.live_detector import Findings, LiveDetector
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.settings import IngeroConfig
from ingero_fleet.tick_snapshot import TickSnapshot
from ingero_fleet.verdict_cache import VerdictCache, with_collectives
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_kit.process_memory import GcFreezer, trim_heap

log = get(__name__)

POLLS_PER_TICK: Final = 10
"""How often, between two ticks, reports are searched for nodes that have fallen far."""

TICKS_PER_EARLY_POLL: Final = 3
"""At most one in so many ticks is preceded by an early poll."""


class Engine:
    """Owns the score map and the latest snapshot. Statistics run in a thread, so that no push waits for them."""

    def __init__(self, config: IngeroConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.table = ScoreTable.of(config)
        self.snapshot: TickSnapshot | None = None
        self.memory = threshold_rule.RuleState()
        self.detector = LiveDetector(config)
        self.ticks = 0
        self.late_ticks = 0
        self.failed_ticks = 0
        self.failed_listeners = 0
        self.early_polls = 0
        self.tick_seconds = 0.0
        self.collect_reports: Callable[[], Awaitable[None]] | None = None
        """Awaited before the score map is read: collects the reports of the receiver processes."""
        self.collectives_wait_for: Callable[[], Mapping[NodeKey, str]] = dict
        """Returns the nodes that collectives wait for, with the kind of the accusation."""
        self.publish: list[Callable[[VerdictCache], None]] = []
        """Called on the event loop with every new verdict cache."""
        self.export_logs: list[Callable[[bytes], None]] = []
        """Called on the event loop with verdicts that changed, as an OTLP request for logs."""
        self.after_tick: list[Callable[[TickSnapshot], None]] = []
        """Called in a thread with every new snapshot; a failure is logged and counted, and the tick stays valid."""
        self.facts: list[Callable[[], dict[str, Any]]] = []
        """Functions by which other parts add facts about Fleet's health."""
        self._next_early_poll = 0
        self._gc_freezer = GcFreezer()
        self._started = clock()
        self._worker = ThreadPoolExecutor(1, "tick")

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Healthy while ticks are computed on time."""
        snapshot = self.snapshot
        age = self.clock() - (snapshot.tick.now if snapshot else self._started)
        facts: dict[str, Any] = {
            "uptime_seconds": round(self.clock() - self._started, 1),
            "last_tick_age_seconds": round(age, 3),
            "tick_seconds": round(self.tick_seconds, 6),
            "ticks": self.ticks,
            "failed_ticks": self.failed_ticks,
            "nodes": len(self.table),
        }
        for more in self.facts:
            facts |= more()
        return age < 3 * self.config.push_interval + 5, facts

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
        """Wait for a tick. A node that falls far meanwhile is judged at once; the tick then is an interval later.

        At most one tick of `TICKS_PER_EARLY_POLL` is preceded by an early poll, so that the regular ticks go on in a
        fleet where some node always falls.
        """
        interval, may = self.config.push_interval, self.ticks >= self._next_early_poll
        while (left := due - time.monotonic()) > 0:
            await asyncio.sleep(min(left, interval / POLLS_PER_TICK) if may else left)
            if may and time.monotonic() < due and await self.early_poll():
                may, due = False, time.monotonic() + interval
                self._next_early_poll = self.ticks + TICKS_PER_EARLY_POLL
        return due

    async def early_poll(self) -> bool:
        """Judge nodes that have fallen far since the last tick; returns whether there were any."""
        loop = asyncio.get_running_loop()
        if self.collect_reports:
            await self.collect_reports()
        rows = await loop.run_in_executor(self._worker, self.detector.fallen, self.table)
        if not len(rows):
            return False
        scores = await self._copy_scores(self.clock(), rows)
        await loop.run_in_executor(self._worker, self.detector.judge_early, scores, rows)
        self.early_polls += 1
        return True

    async def tick(self) -> TickSnapshot:
        """Run one tick now."""
        started = time.perf_counter()
        loop = asyncio.get_running_loop()
        now = self.clock()
        if self.collect_reports:
            await self.collect_reports()
        self.table.expire(now)
        last_verdicts, self.table.last_verdict = self.table.last_verdict, {}
        scores = await self._copy_scores(now)
        tick, findings = await loop.run_in_executor(self._worker, self._compute, scores, last_verdicts)
        self.memory = tick.memory
        threshold_rule.apply(tick, scores, self.table)
        self.snapshot = TickSnapshot(scores, tick, findings, self.config.push_interval)
        verdicts = with_collectives(findings.node_verdicts, self.collectives_wait_for())
        verdict_cache = VerdictCache(self.config.cohort.by, tick.thresholds, verdicts)
        for publish in self.publish:
            publish(verdict_cache)
        self.ticks += 1
        self.tick_seconds = time.perf_counter() - started
        self._export_edges(findings)
        await loop.run_in_executor(self._worker, self._after, self.snapshot)
        return self.snapshot

    async def _copy_scores(self, now: float, rows: npt.NDArray[np.int64] | None = None) -> ScoreSnapshot:
        """A copy of the score map; pushes are answered between its parts."""
        for piece in ScoreSnapshot.in_pieces(self.table, now, rows):
            scores = piece
            await asyncio.sleep(0)
        return scores

    def _compute(self, scores: ScoreSnapshot, last_verdicts: dict[int, str]) -> tuple[threshold_rule.Tick, Findings]:
        return threshold_rule.compute(scores, self.memory, self.config), self.detector.judge(scores, last_verdicts)

    def _after(self, snapshot: TickSnapshot) -> None:
        for listener in self.after_tick:
            try:
                listener(snapshot)
            except Exception:
                self.failed_listeners += 1
                log.exception("after_tick_failed")
        if self._gc_freezer.freeze_if_grown(len(snapshot.scores.names)):
            trim_heap()

    def _export_edges(self, findings: Findings) -> None:
        """Log changes of verdicts, and export them as log records."""
        for edge in findings.edges:
            verdict = edge.verdict
            log.info(
                "verdict", edge=edge.what, cluster=verdict.cluster, node=verdict.node, state=str(verdict.state),
                kind=str(verdict.kind), severity=round(verdict.severity, 4),
            )  # fmt: skip
        body = verdict_records.encode(findings.edges) if self.export_logs else None
        if body:
            for export_logs in self.export_logs:
                export_logs(body)

    def close(self) -> None:
        """Save the state that a restart needs."""
        self._worker.shutdown()
        self.detector.close()
