"""A Fleet that only receives: it publishes pushes to the shared log, and answers by what others have judged.

It keeps the latest reports of its own nodes and the latest verdicts, and neither reads the log nor cuts ticks. While
no verdicts come, the last ones stand.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from ingero_fleet.health_facts import PROBLEM
from ingero_fleet.replication.log_bodies import BatchHead
from ingero_fleet.replication.ordered_log import OrderedLog
from ingero_fleet.replication.persistent_task import persist
from ingero_fleet.replication.publisher import FLUSHES_PER_TICK, ReportPublisher
from ingero_fleet.replication.verdict_follower import VerdictFollower
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.verdict_cache import VerdictCache
from ingero_kit.clock import Clock, rfc3339
from ingero_kit.metrics_table import MetricRow, counter, gauge


class LogReceiver:
    """One for each Fleet with `log.role: receiver`. `publisher` takes pushes for the log; `run` does the rest."""

    def __init__(
        self, shared: OrderedLog, receiving: ScoreTable, clock: Clock, interval: float, name: str,
        adopt: Callable[[VerdictCache], None],
    ) -> None:  # fmt: skip
        """`receiving` is the score map of the listeners; `name` must be new for every process."""
        self.outcomes: Counter[str] = Counter()
        """Flushes lost, verdicts left out, tasks that failed, by name."""
        self.name = name
        self.nodes = receiving
        self.verdicts = VerdictFollower(shared, clock, interval, self.outcomes, adopt)
        head = BatchHead(name, 0, judges=False)
        self.publisher = ReportPublisher(shared, receiving, lambda: head, clock, interval, self.outcomes)
        self._log, self._pause = shared, interval / FLUSHES_PER_TICK

    async def run(self) -> None:
        """Publish and follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for task in (self.publisher.keep_publishing, self.verdicts.keep_following):
                group.create_task(persist(task, self._pause, self.outcomes))

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Healthy once it has verdicts. While the log is away, or nobody judges, the last verdicts stand."""
        age, away = self.verdicts.age(), self._log.health().away_since
        healthy = age is not None or away is not None
        problem = {} if healthy else {PROBLEM: "no replica has published verdicts yet"}
        return healthy, {
            **problem,
            "replica": self.name,
            "role": "receiver",
            "log": f"away since {rfc3339(away)}" if away else "ok",
            "nodes": len(self.nodes),
            "ticks": self.verdicts.ticks,
            "verdicts_age_seconds": None if age is None else round(age, 3),
            "verdicts_stale": self.verdicts.is_stale,
            "replication": dict(self.outcomes),
        }


LOG_RECEIVER: Final[tuple[MetricRow[LogReceiver], ...]] = (
    gauge(
        "ingero_fleet_verdicts_age_seconds",
        "Seconds since a judging replica published verdicts; no sample before the first ones.",
        lambda s: s.verdicts.age(),
    ),
    gauge("ingero_fleet_nodes", "Nodes in the score map.", lambda s: len(s.nodes)),
    counter(
        "ingero_fleet_receiver_outcomes",
        "What was lost or refused between this receiver and the log.",
        lambda s: dict(s.outcomes),
        "outcome",
    ),
)
"""Rows for the page about a receiver itself."""
