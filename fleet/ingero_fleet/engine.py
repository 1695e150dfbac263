"""The heartbeat: every push interval a copy of the score map is judged and the board that pushes read is replaced."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_fleet import edges, statistics
from ingero_fleet.board import Board
from ingero_fleet.judging import Findings, Judging
from ingero_fleet.picture import Picture
from ingero_fleet.scores import Limits, ScoreTable
from ingero_fleet.settings import IngeroConfig
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_kit.process_memory import GcFreezer, trim_heap

log = get(__name__)

LOOKS: Final = 10
"""How often, between two ticks, reports are searched for nodes that have fallen far."""

SELDOM: Final = 3
"""An early look comes before one tick of so many at most."""


class Engine:
    """Owns the score map and the latest picture. The statistics run in a thread so that no push waits for them."""

    def __init__(self, config: IngeroConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.table = ScoreTable(
            Limits(
                config.max_nodes,
                config.max_clusters,
                config.push_interval * config.ttl_multiplier,
                config.max_cohorts,
            ),
            config.cohort.by,
        )
        self.picture: Picture | None = None
        self.memory = statistics.Memory()
        self.judging = Judging(config)
        self.ticks = 0
        self.late_ticks = 0
        self.failed_ticks = 0
        self.failed_listeners = 0
        self.early_looks = 0
        self.tick_seconds = 0.0
        self.bring_in: Callable[[], Awaitable[None]] | None = None
        """Awaited before the score map is read: brings in what other processes heard."""
        self.publish: list[Callable[[Board], None]] = []
        """Called on the event loop with every new board."""
        self.tell: list[Callable[[bytes], None]] = []
        """Called on the event loop with verdicts that changed, as an OTLP request for logs."""
        self.after_tick: list[Callable[[Picture], None]] = []
        """Called in a thread with every new picture; a failure is logged and counted, and the tick stands."""
        self.facts: list[Callable[[], dict[str, Any]]] = []
        """What other parts add to the facts about Fleet's health."""
        self._may_look = 0
        self._settled = GcFreezer()
        self._started = clock()
        self._worker = ThreadPoolExecutor(1, "tick")

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Healthy while ticks are computed on time."""
        picture = self.picture
        age = self.clock() - (picture.tick.now if picture else self._started)
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
        """Wait for a tick. A node that falls far meanwhile is looked at at once, and the tick is an interval later.

        That happens before one tick of `SELDOM` at most, so that in a fleet where somebody always falls the ticks of
        all others keep coming.
        """
        interval, may = self.config.push_interval, self.ticks >= self._may_look
        while (left := due - time.monotonic()) > 0:
            await asyncio.sleep(min(left, interval / LOOKS) if may else left)
            if may and time.monotonic() < due and await self.look():
                may, due, self._may_look = False, time.monotonic() + interval, self.ticks + SELDOM
        return due

    async def look(self) -> bool:
        """Look at nodes that have fallen far since the last tick; says whether there were any."""
        loop = asyncio.get_running_loop()
        if self.bring_in:
            await self.bring_in()
        rows = await loop.run_in_executor(self._worker, self.judging.fallen, self.table)
        if not len(rows):
            return False
        frame = await self._frame(self.clock(), rows)
        await loop.run_in_executor(self._worker, self.judging.look_early, frame, rows)
        self.early_looks += 1
        return True

    async def tick(self) -> Picture:
        """Run one tick now."""
        started = time.perf_counter()
        loop = asyncio.get_running_loop()
        now = self.clock()
        if self.bring_in:
            await self.bring_in()
        self.table.expire(now)
        said, self.table.last_verdict = self.table.last_verdict, {}
        frame = await self._frame(now)
        tick, findings = await loop.run_in_executor(self._worker, self._compute, frame, said)
        self.memory = tick.memory
        statistics.apply(tick, frame, self.table)
        self.picture = Picture(frame, tick, findings, self.config.push_interval)
        told = findings.told
        board = Board(self.config.cohort.by, tick.thresholds, told.usual, told.others, told.as_of)
        for publish in self.publish:
            publish(board)
        self.ticks += 1
        self.tick_seconds = time.perf_counter() - started
        self._tell(findings)
        await loop.run_in_executor(self._worker, self._after, self.picture)
        return self.picture

    async def _frame(self, now: float, rows: npt.NDArray[np.int64] | None = None) -> statistics.Frame:
        """A copy of the score map; pushes are answered between its pieces."""
        for piece in statistics.Frame.in_pieces(self.table, now, rows):
            frame = piece
            await asyncio.sleep(0)
        return frame

    def _compute(self, frame: statistics.Frame, said: dict[int, str]) -> tuple[statistics.Tick, Findings]:
        return statistics.compute(frame, self.memory, self.config), self.judging.judge(frame, said)

    def _after(self, picture: Picture) -> None:
        for listener in self.after_tick:
            try:
                listener(picture)
            except Exception:
                self.failed_listeners += 1
                log.exception("after_tick_failed")
        if self._settled.look(len(picture.frame.names)):
            trim_heap()

    def _tell(self, findings: Findings) -> None:
        """Log the edges of verdicts, and send them onward as log records."""
        for edge in findings.edges:
            verdict = edge.verdict
            log.info(
                "verdict", edge=edge.what, cluster=verdict.cluster, node=verdict.node, state=str(verdict.state),
                kind=str(verdict.kind), severity=round(verdict.severity, 4),
            )  # fmt: skip
        body = edges.encode(findings.edges) if self.tell else None
        if body:
            for tell in self.tell:
                tell(body)

    def close(self) -> None:
        """Keep what a restart needs."""
        self._worker.shutdown()
        self.judging.close()
