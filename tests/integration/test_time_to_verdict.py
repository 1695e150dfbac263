"""From a slowdown to the verdict, in virtual time: agents' early pushes and Fleet's ticks together."""

from collections import deque

import numpy as np
import pytest

from ingero_agent.health.early_push import EarlyPush, advance
from ingero_contract.values import NodeState
from ingero_fleet.processor_settings import DetectorConfig, IngeroConfig, ProcessorsConfig, QuorumConfig
from ingero_fleet.state_machine import StateMachine
from ingero_kit.health_report import HealthReport

BEGIN = 1_700_000_000.0
INTERVAL = 10.0
POLLS = 10
"""Polls of an agent in an interval, and of Fleet."""
NODES, NORMAL, WARM = 5, 100.0, 50


class Node:
    """An agent without I/O: pushes once an interval at its own time, and early when its rate falls."""

    def __init__(self, number: int, random: np.random.Generator, noise: float) -> None:
        self.name = f"node-{number}"
        self.random, self.noise = random, noise * np.sqrt(POLLS)
        self.due = BEGIN + random.uniform(0, INTERVAL)
        self.window: deque[float] = deque(maxlen=POLLS)
        self.pending: list[float] = []
        self.early = EarlyPush()

    def poll(self, now: float, speed: float) -> float | None:
        """The rate to push, if any."""
        work = NORMAL * speed * max(0.05, 1 + self.noise * self.random.normal())
        self.window.append(work)
        self.pending.append(work)
        if now >= self.due:
            self.due = now + INTERVAL * self.random.uniform(0.9, 1.1)
            rate = float(np.mean(self.pending))
            self.pending.clear()
            return rate
        if len(self.window) < POLLS or now < BEGIN + 15 * INTERVAL:
            return None
        rate = float(np.mean(self.window))
        self.early, push = advance(self.early, rate, NORMAL, now, INTERVAL)
        return rate if push else None


def intervals_to_verdict(seed: int, noise: float, share: float) -> float:
    """Push intervals from the fall of one of five nodes to `share` until Fleet announces that it straggles."""
    random = np.random.default_rng(seed)
    config = IngeroConfig(
        push_interval=INTERVAL, quorum=QuorumConfig(statistical_min=3), detector=DetectorConfig(warmup_ticks=30)
    )
    machine = StateMachine(ProcessorsConfig(ingero=config), BEGIN, lambda push: None, lambda push: None)
    nodes = [Node(number, random, noise) for number in range(NODES)]
    due, may = BEGIN + random.uniform(1, 2) * INTERVAL, False
    slow_at = BEGIN + (WARM + random.uniform(0, 1)) * INTERVAL
    for step in range(POLLS * (WARM + 10)):
        now = BEGIN + step * INTERVAL / POLLS
        for node in nodes:
            rate = node.poll(now, share if node is nodes[0] and now > slow_at else 1.0)
            if rate is not None:
                report = HealthReport(
                    node_id=node.name, cluster_id="c", state=NodeState.ACTIVE, score=0.9 * rate / NORMAL, rate=rate
                )
                machine.table.observe(report, now)
        if now < due and may and machine.early_poll(now):
            due, may = now + INTERVAL, False
        if now >= due:
            findings = machine.tick(now).snapshot.findings
            due, may = now + INTERVAL, machine.may_poll_early
            accused = {edge.verdict.node for edge in findings.edges if edge.what == "accused"} if findings else set()
            assert accused <= ({"node-0"} if now > slow_at else set())
            if accused:
                return (now - slow_at) / INTERVAL
    raise AssertionError("nobody was accused")


@pytest.mark.parametrize(("share", "most"), [(0.0, 1.5), (0.3, 1.5), (0.5, 1.6)])
def test_a_node_that_loses_half_or_more_is_named_within_two_intervals_whatever_the_phase(
    share: float, most: float
) -> None:
    delays = [intervals_to_verdict(seed, 0.02, share) for seed in range(12)]

    assert max(delays) <= most
    assert np.median(delays) <= 1.45


def test_noise_of_five_percent_costs_an_interval_now_and_then() -> None:
    delays = [intervals_to_verdict(seed, 0.05, 0.5) for seed in range(12)]

    assert np.median(delays) <= 1.75 and max(delays) <= 2.75
