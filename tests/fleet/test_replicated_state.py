"""Any order of batches, markers, repeats and restarts that the log can bring leads every replica to one state."""

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ingero_contract.values import NodeState
from ingero_fleet.processor_settings import DetectorConfig
from ingero_fleet.receivers.messages import encode_push
from ingero_fleet.replication.log_bodies import BatchHead, Marker, encode_reports
from ingero_fleet.replication.ordered_log import LogMessage
from ingero_fleet.replication.replicated_state import ReplicatedState
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.state_machine import StateMachine
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_testing.collectives import BEGIN, Job
from ingero_testing.scripted_fleet import CONFIG

PROCESSORS = CONFIG.model_copy(
    update={"ingero": CONFIG.ingero.model_copy(update={"detector": DetectorConfig(warmup_ticks=5)})}
)
NODES = st.integers(0, 6)
NAMES = ("first", "second")


def new_state(rules: str = "v1") -> ReplicatedState:
    return ReplicatedState(lambda export: StateMachine(PROCESSORS, 0.0, export, export), rules)


class Replicas(RuleBasedStateMachine):
    """Two replicas that follow one log at their own pace; each receives reports and cuts markers."""

    @initialize()
    def begin(self) -> None:
        self.log: list[LogMessage] = []
        self.marker = self.cuts = 0
        self.now = BEGIN
        self.states = {name: new_state() for name in NAMES}
        self.tables = {name: ScoreTable.of(PROCESSORS.ingero) for name in NAMES}
        self.numbers = dict.fromkeys((*NAMES, "third"), 0)
        self.saved: list[bytes] = []
        self.hashes: dict[int, str] = {}

    def add(self, kind: Any, key: str, body: bytes) -> None:
        self.log.append(LogMessage(len(self.log) + 1, self.now, kind, key, body))

    def key(self, name: str) -> str:
        self.numbers[name] += 1
        return f"{name}-{self.numbers[name]}"

    @rule(name=st.sampled_from(NAMES), node=NODES, share=st.sampled_from((1.0, 1.0, 0.97, 0.3)), idle=st.booleans())
    def report(self, name: str, node: int, share: float, idle: bool) -> None:
        state = NodeState.IDLE if idle and node == 3 else NodeState.ACTIVE
        self.tables[name].observe(
            HealthReport(
                node_id=f"n{node}", cluster_id="c", score=0.9 * share, rate=100.0 * share, state=state,
                gpu_model="A" if node % 2 else "B", workload_type="train",
            ),
            self.now,
        )  # fmt: skip

    @rule(share=st.sampled_from((1.0, 1.0, 0.4)), steps=st.integers(1, 8))
    def rounds(self, share: float, steps: int) -> None:
        """Some intervals in which all nodes report to one replica or the other, and one may be slow."""
        for step in range(steps):
            for node in range(7):
                self.report(NAMES[(node + step) % 2], node, share if node == 5 else 1.0, False)
            for name in NAMES:
                self.publish(name)
            self.wait(10.0)
            self.cut("first", "tick", behind=False)

    @rule(name=st.sampled_from(NAMES))
    def publish(self, name: str) -> None:
        batch = self.tables[name].take_fresh(4)
        self.add("batch", self.key(name), encode_reports(BatchHead(name, 0), batch, self.now))

    @rule(name=st.sampled_from(NAMES), late=st.integers(0, 2))
    def push(self, name: str, late: int) -> None:
        job = Job(ranks=4, late_ms={late: 30.0}, seed=len(self.log))
        job.moment, job.done = self.now, 10 * len(self.log)
        for body in job.pushes(10):
            self.add("push", self.key(name), encode_push(Push(Signal.METRICS, "protobuf", body), 0.0))

    @rule(
        name=st.sampled_from(NAMES), kind=st.sampled_from(("tick", "early_poll", "collectives_poll")),
        behind=st.booleans(),
    )  # fmt: skip
    def cut(self, name: str, kind: Any, behind: bool) -> None:
        """Cut a marker as the replica knows the log; the log admits it only after the last marker."""
        state = self.states[name]
        if not behind:
            self.follow(name, len(self.log))
        if state.marker == self.marker:
            self.add("marker", f"m-{self.cuts}", Marker(kind, state.markers + 1, name, "v1", 0).encode())
            self.marker, self.cuts = len(self.log), self.cuts + 1

    @precondition(lambda self: self.log)
    @rule(place=st.integers(0, 40))
    def repeat(self, place: int) -> None:
        """A message comes again, as after an outage that outlasts the log's own recognition."""
        message = self.log[-1 - place % len(self.log)]
        if message.kind != "marker" and len(self.log) - message.sequence < 60:
            self.add(message.kind, message.key, message.body)

    @rule(body=st.binary(max_size=40), kind=st.sampled_from(("batch", "push")))
    def rubbish(self, body: bytes, kind: Any) -> None:
        self.add(kind, self.key("third"), body)

    @rule(seconds=st.sampled_from((0.5, 3.0, 10.0, 90.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 30))
    def follow(self, name: str, count: int) -> None:
        state = self.states[name]
        for message in self.log[state.sequence : state.sequence + count]:
            ticks = state.machine.ticks
            state.apply(message)
            if state.machine.ticks != ticks and state.machine.ticks % 4 == 0:
                found = state.state_hash()
                assert self.hashes.setdefault(state.machine.ticks, found) == found
                self.saved = [*self.saved[-1:], state.snapshot()]

    @precondition(lambda self: self.saved)
    @rule(name=st.sampled_from(NAMES), newest=st.booleans())
    def restart(self, name: str, newest: bool) -> None:
        self.states[name] = new_state()
        self.states[name].restore(self.saved[-1 if newest else 0])

    @invariant()
    def replicas_at_the_same_place_have_the_same_state(self) -> None:
        first, second = self.states.values()
        if first.sequence == second.sequence:
            assert (first.markers, first.marker, first.now) == (second.markers, second.marker, second.now)
            assert np.array_equal(first.machine.table.view("seen"), second.machine.table.view("seen"))

    def teardown(self) -> None:
        if self.log:
            for name in NAMES:
                self.follow(name, len(self.log))
            first, second = self.states.values()
            assert first.state_hash() == second.state_hash()


Replicas.TestCase.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
TestReplicas = Replicas.TestCase
