"""Replicas of Fleet without sockets for agents, in one event loop: a test reports, publishes and cuts for them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ingero_contract.identifiers import node_key
from ingero_fleet.engine import Engine
from ingero_fleet.processor_settings import DetectorConfig, ProcessorsConfig
from ingero_fleet.replication.ordered_log import OrderedLog
from ingero_fleet.replication.replica import Replica
from ingero_fleet.replication.replicated_state import ReplicatedState
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.state_machine import StateMachine
from ingero_fleet.verdict_cache import VerdictCache
from ingero_kit.clock import Clock
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_receiver import Push
from ingero_testing.scripted_fleet import CONFIG

PROCESSORS = CONFIG.model_copy(
    update={"ingero": CONFIG.ingero.model_copy(update={"detector": DetectorConfig(warmup_ticks=5)})}
)


class ReplicaMember:
    """One replica: what it received, answers and exports."""

    def __init__(
        self, shared: OrderedLog, clock: Clock, name: str, rules: str = "v1",
        processors: ProcessorsConfig = PROCESSORS,
    ) -> None:  # fmt: skip
        self.exported = list[Push]()
        self.cache = VerdictCache()
        self.state = ReplicatedState(lambda export: StateMachine(processors, 0.0, export, export), rules)
        self.engine = Engine(self.state.machine, clock)
        self.engine.publish.append(self.adopt)
        self.receiving = ScoreTable.of(processors.ingero)
        self.replica = Replica(self.engine, self.state, shared, self.receiving, name, self.exported.append)

    def adopt(self, cache: VerdictCache) -> None:
        self.cache = cache

    def report(self, node: int, rate: float = 100.0) -> None:
        report = HealthReport(node_id=f"n{node}", cluster_id="c", score=0.9, rate=rate, workload_type="train")
        assert not isinstance(self.receiving.observe(report, self.engine.clock()), str)

    def line(self, node: int) -> str:
        verdicts = self.cache.verdicts
        return verdicts.overrides.get(node_key("c", f"n{node}"), verdicts.default)


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def following(*members: ReplicaMember) -> AsyncIterator[None]:
    """The members follow the log."""
    tasks = [asyncio.create_task(one.replica.keep_following()) for one in members]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def same(*members: ReplicaMember) -> bool:
    """Whether all have the same state."""
    return len({one.state.state_hash() for one in members}) == 1
