"""The heartbeat: every push interval a copy of the score map is judged and the board that pushes read is replaced."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ingero_fleet import edges, statistics
from ingero_fleet.board import Board
from ingero_fleet.exporters import Exporter
from ingero_fleet.intake import Intake
from ingero_fleet.judging import Findings, Judging
from ingero_fleet.picture import Picture
from ingero_fleet.scores import Limits, ScoreTable
from ingero_fleet.settings import IngeroConfig
from ingero_kit.clock import Clock
from ingero_kit.listener import Counters
from ingero_kit.logs import get
from ingero_kit.otlp_server import Push, Signal

log = get(__name__)


class Engine:
    """Owns the score map and the latest picture. The statistics run in a thread so that no push waits for them."""

    def __init__(self, config: IngeroConfig, clock: Clock, routes: dict[Signal, list[Exporter]]) -> None:
        self.config = config
        self.clock = clock
        self.exporters = {exporter.name: exporter for exporters in routes.values() for exporter in exporters}
        self.table = ScoreTable(
            Limits(config.max_nodes, config.max_clusters, config.push_interval * config.ttl_multiplier),
            config.cohort.by,
        )
        self.intake = Intake(self.table, clock, self.forward if self.exporters else None)
        self.intake.board = Board(config.cohort.by)
        self.picture: Picture | None = None
        self.memory = statistics.Memory()
        self.judging = Judging(config)
        self.ticks = 0
        self.late_ticks = 0
        self.failed_ticks = 0
        self.failed_listeners = 0
        self.tick_seconds = 0.0
        self.listeners: dict[str, Counters] = {}
        self.after_tick: list[Callable[[Picture], None]] = []
        """Called in a thread with every new picture; a failure is logged and counted, and the tick stands."""
        self._routes = routes
        self._started = clock()

    def forward(self, push: Push) -> None:
        """Hand an accepted push to the exporters of its pipeline."""
        for exporter in self._routes.get(push.signal, ()):
            exporter.put(push)

    def edges(self) -> dict[str, Counters]:
        """Counters of the OTLP listeners, by name."""
        return self.listeners

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
            "reports": self.intake.accepted_reports,
            "exporters": {name: exporter.waiting for name, exporter in self.exporters.items()},
        }
        return age < 3 * self.config.push_interval + 5, facts

    async def run(self) -> None:
        """Tick until cancelled; a tick that fails is logged and counted, and the next one is tried."""
        interval = self.config.push_interval
        due = time.monotonic() + interval
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            try:
                await self.tick()
            except Exception:
                self.failed_ticks += 1
                log.exception("tick_failed")
            due += interval
            if due < time.monotonic():
                self.late_ticks += 1
                due = time.monotonic() + interval

    async def tick(self) -> Picture:
        """Run one tick now."""
        started = time.perf_counter()
        now = self.clock()
        with self.intake.locked():
            self.table.expire(now)
            frame = statistics.Frame.take(self.table, now)
            said, self.table.last_verdict = self.table.last_verdict, {}
        tick, findings = await asyncio.to_thread(self._compute, frame, said)
        self.memory = tick.memory
        with self.intake.locked():
            statistics.apply(tick, frame, self.table)
        self.picture = Picture(frame, tick, findings, self.config.push_interval)
        self.intake.board = Board(self.config.cohort.by, tick.thresholds, findings.lines)
        self.ticks += 1
        self.tick_seconds = time.perf_counter() - started
        self._tell(findings)
        if self.after_tick:
            await asyncio.to_thread(self._after, self.picture)
        return self.picture

    def _compute(self, frame: statistics.Frame, said: dict[int, str]) -> tuple[statistics.Tick, Findings]:
        return statistics.compute(frame, self.memory, self.config), self.judging.judge(frame, said)

    def _after(self, picture: Picture) -> None:
        for listener in self.after_tick:
            try:
                listener(picture)
            except Exception:
                self.failed_listeners += 1
                log.exception("after_tick_failed")

    def _tell(self, findings: Findings) -> None:
        """Log the edges of verdicts, and send them onward as log records."""
        for edge in findings.edges:
            verdict = edge.verdict
            log.info(
                "verdict", edge=edge.what, cluster=verdict.cluster, node=verdict.node, state=str(verdict.state),
                kind=str(verdict.kind), severity=round(verdict.severity, 4),
            )  # fmt: skip
        body = edges.encode(findings.edges) if self._routes.get(Signal.LOGS) else None
        if body:
            self.forward(Push(Signal.LOGS, "protobuf", body))

    def close(self) -> None:
        """Keep what a restart needs."""
        self.judging.close()
