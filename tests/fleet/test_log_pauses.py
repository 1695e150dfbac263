"""While the log is away nobody can report: that is no silence of nodes, and nobody is accused or cleared for it."""

import pytest

from ingero_contract.identifiers import node_key
from ingero_fleet.replication.log_bodies import BatchHead, Marker, encode_reports
from ingero_fleet.replication.ordered_log import LogMessage
from ingero_fleet.replication.replicated_state import Applied, ReplicatedState
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.state_machine import StateMachine
from ingero_kit.health_report import HealthReport
from ingero_testing.scripted_fleet import CONFIG

SLOW, NODES, INTERVAL = 3, 7, CONFIG.ingero.push_interval


class OneReplica:
    """A replica, and the log that it follows, one push interval after the other."""

    def __init__(self) -> None:
        self.state = ReplicatedState(lambda export: StateMachine(CONFIG, 0.0, export, export), "v1")
        self.table = ScoreTable.of(CONFIG.ingero)
        self.now, self.sequence, self.ticks = 1_000_000.0, 0, 0
        self.edges: list[str] = []
        self.line = ""

    def report(self, slow: float) -> None:
        for node in range(NODES):
            rate = 100.0 * (slow if node == SLOW else 1.0) + (node + self.ticks) % 3
            self.table.observe(
                HealthReport(node_id=f"n{node}", cluster_id="c", score=0.9, rate=rate, workload_type="train"),
                self.now,
            )

    def publish(self) -> None:
        batch = self.table.take_fresh(100)
        self.apply("batch", f"a-{self.sequence}", encode_reports(BatchHead("a", self.ticks), batch, self.now))

    def tick(self) -> None:
        self.ticks += 1
        applied = self.apply("marker", f"tick-{self.ticks}", Marker("tick", self.ticks, "a", "v1", 0).encode())
        assert applied.result and applied.result.snapshot.findings
        self.edges += [f"{edge.what} {edge.verdict.node}" for edge in applied.result.snapshot.findings.edges]
        verdicts = applied.result.verdict_cache.verdicts
        self.line = verdicts.overrides.get(node_key("c", f"n{SLOW}"), verdicts.default)

    def apply(self, kind: str, key: str, body: bytes) -> Applied:
        self.sequence += 1
        return self.state.apply(LogMessage(self.sequence, self.now, kind, key, body))  # type: ignore[arg-type]

    def rounds(self, count: int, slow: float = 1.0, seconds: float = INTERVAL) -> None:
        for _ in range(count):
            self.report(slow)
            self.publish()
            self.now += seconds
            self.tick()


@pytest.mark.parametrize("intervals", [3, 6, 30, 3000])
@pytest.mark.parametrize("tick_first", [True, False], ids=["tick first", "reports first"])
def test_an_absence_of_the_log_accuses_and_clears_nobody(intervals: int, tick_first: bool) -> None:
    replica = OneReplica()
    replica.rounds(CONFIG.ingero.detector.warmup_ticks + 10)
    replica.rounds(6, slow=0.4)
    assert replica.line.startswith("straggler") and replica.edges
    replica.edges.clear()

    replica.now += intervals * INTERVAL
    if tick_first:
        replica.tick()
        assert replica.line.startswith("straggler")
    replica.rounds(5, slow=0.4)

    assert replica.edges == [] and replica.line.startswith("straggler")
    assert len(replica.state.machine.table) == NODES
    replica.rounds(10)
    assert not replica.line.startswith("straggler"), "it is cleared when it works again"


def test_evidence_begins_anew_after_ten_minutes_without_the_log() -> None:
    """A tick that makes a node suspected before the absence, and one after it, are not enough to accuse it."""
    steady, paused = OneReplica(), OneReplica()
    for one in (steady, paused):
        one.rounds(CONFIG.ingero.detector.warmup_ticks + 10)
        one.rounds(1, slow=0.6)
        assert one.line == "suspected"
    steady.rounds(1, slow=0.6)
    assert steady.line.startswith("straggler")

    paused.now += 600.0
    paused.rounds(1, slow=0.6)
    assert paused.line == "healthy"
    paused.rounds(10)
    assert paused.edges == [] and paused.line == "healthy"
    paused.rounds(3, slow=0.6)
    assert paused.edges == [f"accused n{SLOW}"], "what is slow afterwards is named"


def test_a_log_whose_clock_was_set_back_names_and_clears_as_before() -> None:
    """Its times are clamped then: for as long as it is behind, all messages have the same time."""
    replica = OneReplica()
    replica.rounds(CONFIG.ingero.detector.warmup_ticks + 10)
    replica.rounds(5, seconds=0.0)
    assert replica.edges == []
    replica.rounds(4, slow=0.4, seconds=0.0)
    assert replica.edges == [f"accused n{SLOW}"]
    replica.rounds(12, seconds=0.0)
    assert replica.edges[-1] == f"cleared n{SLOW}" and replica.line == "healthy"
    replica.rounds(3)
    assert len(replica.state.machine.table) == NODES and replica.edges[-1] == f"cleared n{SLOW}"
