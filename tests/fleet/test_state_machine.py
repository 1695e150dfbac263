"""The state machine: equal steps lead to an equal state, also through snapshots and in other processes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ingero_contract.identifiers import node_key
from ingero_contract.signals import SIGNALS
from ingero_contract.values import NodeState, VerdictState
from ingero_detect.nodes.codes import STATES
from ingero_detect.nodes.column_store import SnapshotError
from ingero_fleet import state_machine
from ingero_fleet.engine import Engine
from ingero_fleet.processor_settings import DetectorConfig, ProcessorsConfig
from ingero_fleet.state_codec import State, encode_state, sealed
from ingero_fleet.state_machine import StateMachine, read_state
from ingero_fleet.tick_snapshot import stragglers_answer, why_answer
from ingero_kit.clock import rfc3339
from ingero_kit.health_report import HealthReport
from ingero_testing.scripted_fleet import CONFIG, TICKS, end_of, new_machine, play, state_hash

SUPPORT = Path(__file__).parents[1] / "support"


def test_a_restored_state_machine_decides_as_one_that_went_on() -> None:
    straight = new_machine()
    before = play(straight)
    assert {(what, node) for what, node, _ in before} >= {("accused", "node-2"), ("cleared", "node-2")}
    assert straight.collectives.stragglers and straight.cost.ledger.stragglers and len(straight.taints)
    assert straight.early_polls

    for cut in (25, 57):
        first, second = new_machine(), new_machine()
        edges = play(first, 0, cut)
        second.restore(read_state(sealed(encode_state(first.state(end_of(cut - 1))))), continued=True)
        assert state_hash(second, end_of(cut - 1)) == state_hash(first, end_of(cut - 1))
        assert edges + play(second, cut) == before
        assert state_hash(second, end_of(TICKS)) == state_hash(straight, end_of(TICKS))


def test_the_state_does_not_depend_on_how_a_process_hashes_text() -> None:
    hashes = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(SUPPORT)}
        command = [sys.executable, "-m", "ingero_testing.scripted_fleet"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        hashes.add(done.stdout.split()[-1])
    assert len(hashes) == 1


def test_a_restart_keeps_what_was_learnt_and_booked_and_waits_for_the_nodes() -> None:
    first, second = new_machine(), new_machine()
    play(first, 0, 40)
    second.restore(read_state(sealed(encode_state(first.state(end_of(39))))), continued=False)

    assert second.cost.ledger == first.cost.ledger
    assert second.rule == first.rule
    assert not len(second.fallen()), "no early poll before the first tick"
    result = second.tick(end_of(40))
    assert result.verdict_cache.thresholds
    assert result.snapshot.findings is not None and result.snapshot.findings.edges == []


def test_a_snapshot_of_the_detector_alone_is_read() -> None:
    first, second = new_machine(), new_machine()
    play(first, 0, 30)
    second.restore(read_state(first.detector.detector.snapshot()), continued=False)

    assert second.detector.detector.ticks == first.detector.detector.ticks
    assert len(second.table) == second.ticks == 0


def test_a_snapshot_that_cannot_be_used_says_why_and_changes_nothing() -> None:
    first, second = new_machine(), new_machine()
    play(first, 0, 12)
    data = sealed(encode_state(first.state(end_of(11))))
    blank = state_hash(second, end_of(11))

    for damaged in (data[:-1], data[:200] + b"?" + data[201:], b"", data[:20]):
        with pytest.raises(SnapshotError):
            second.restore(read_state(damaged), continued=True)
    newer = first.state(end_of(11)) | {"version": 99}
    with pytest.raises(SnapshotError, match="version 99"):
        second.restore(newer, continued=True)
    assert state_hash(second, end_of(11)) == blank


def test_a_state_from_before_a_signal_was_added_is_read_and_one_without_a_part_is_refused() -> None:
    first, second = new_machine(), new_machine()
    play(first, 0, 12)
    state = read_state(sealed(encode_state(first.state(end_of(11)))))
    del state["table"]["columns"][str(SIGNALS[0].signal)]
    second.restore(state, continued=True)
    assert np.isnan(second.table.view(str(SIGNALS[0].signal))).all()

    del state["cost"]
    with pytest.raises(SnapshotError, match="does not fit this Fleet: KeyError 'cost'"):
        second.restore(state, continued=True)


def test_other_settings_of_the_detector_learn_anew_and_keep_the_rest_after_a_restart_only() -> None:
    first = new_machine()
    play(first, 0, 40)
    state = read_state(sealed(encode_state(first.state(end_of(39)))))
    ingero = CONFIG.ingero.model_copy(update={"detector": DetectorConfig(warmup_ticks=11)})
    other = new_machine(CONFIG.model_copy(update={"ingero": ingero}))

    with pytest.raises(SnapshotError, match="another warm-up"):
        other.restore(state, continued=True)
    other.restore(state, continued=False)
    assert other.detector.detector.ticks == 0
    assert other.cost.ledger == first.cost.ledger


def steady(
    machine: StateMachine, first: int, last: int, state: NodeState = NodeState.ACTIVE
) -> list[dict[str, str | None] | None]:
    """Ticks in which all nodes work; returns what the operator reads of the warm-up after each."""
    found = []
    for tick in range(first, last):
        for number in range(4):
            report = HealthReport(node_id=f"node-{number}", cluster_id="c", score=0.9, rate=100.0, state=state)
            assert isinstance(machine.table.observe(report, end_of(tick) - 1), int)
        found.append(stragglers_answer(machine.tick(end_of(tick)).snapshot, "c", 10.0)["learning"])
    return found


def restarted(machine: StateMachine, tick: int, config: ProcessorsConfig = CONFIG) -> StateMachine:
    """Another process that reads the state after a tick."""
    other = new_machine(config)
    other.restore(read_state(sealed(encode_state(machine.state(end_of(tick))))), continued=config is CONFIG)
    return other


def test_a_warm_up_is_reported_with_begin_and_end_until_most_nodes_have_learned() -> None:
    machine = new_machine()
    first = steady(machine, 0, 5)
    other = restarted(machine, 4)
    rest = steady(machine, 5, 14)

    assert first[0] == {"since": rfc3339(end_of(0)), "until": rfc3339(end_of(10)), "reason": None}
    assert {str(phase) for phase in first} == {str(first[0])}
    assert rest[0] == first[0] and rest[-1] is None
    assert steady(other, 5, 14) == rest


def test_a_warm_up_after_a_refused_snapshot_names_the_reason_until_it_ends() -> None:
    first = new_machine()
    steady(first, 0, 20)
    ingero = CONFIG.ingero.model_copy(update={"detector": DetectorConfig(warmup_ticks=11)})
    other = restarted(first, 19, CONFIG.model_copy(update={"ingero": ingero}))
    phases = steady(other, 20, 40)

    assert phases[0] and "another warm-up" in str(phases[0]["reason"])
    assert phases[-1] is None


def test_a_damaged_snapshot_file_is_the_reason_of_the_warm_up(tmp_path: Path) -> None:
    file = tmp_path / "detector.npz"
    file.write_bytes(b"rubbish")
    settings = DetectorConfig(warmup_ticks=10, snapshot=file)
    machine = new_machine(
        CONFIG.model_copy(update={"ingero": CONFIG.ingero.model_copy(update={"detector": settings})})
    )
    Engine(machine, lambda: end_of(0))

    (phase,) = steady(machine, 0, 1)
    assert phase and "another format" in str(phase["reason"])


def test_a_restart_with_a_snapshot_of_a_fleet_that_had_learned_is_no_warm_up() -> None:
    first, second = new_machine(), new_machine()
    steady(first, 0, 20)
    state = read_state(sealed(encode_state(first.state(end_of(19)))))
    del state["detector"]["learning_since"], state["detector"]["refusal"]  # as older Fleets wrote it
    second.restore(state, continued=False)

    assert steady(second, 20, 22) == [None, None]


def test_agents_that_start_again_need_no_second_warm_up_of_fleet() -> None:
    machine = new_machine()
    steady(machine, 0, 20)
    calibrating = steady(machine, 20, 24, NodeState.CALIBRATING)
    states = machine.detector.detector.view().columns["state"]
    rest = steady(machine, 24, 26)

    assert [*calibrating, *rest] == [None] * 6
    assert {STATES[code] for code in states} == {VerdictState.LEARNING}
    assert {STATES[code] for code in machine.detector.detector.view().columns["state"]} == {VerdictState.HEALTHY}


def test_a_state_of_an_older_version_is_migrated_step_by_step_and_nothing_is_learnt_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = 40
    straight, first, second = new_machine(), new_machine(), new_machine()
    before = play(straight)
    edges = play(first, 0, cut)
    older = first.state(end_of(cut - 1))
    # Versions 101 and 102 kept the ticks and the taints in other places than the present one.
    older |= {"version": 101, "tick": older.pop("ticks"), "marks": older.pop("taints")}
    data = sealed(encode_state(older))

    def to_102(state: State) -> State:
        return {**state, "version": 102, "ticks": state["tick"]}

    def to_103(state: State) -> State:
        return {**state, "version": 103, "taints": state["marks"]}

    monkeypatch.setattr(state_machine, "VERSION", 103)
    with pytest.raises(SnapshotError, match="version 101, which this Fleet cannot read"):
        second.restore(read_state(data), continued=True)
    monkeypatch.setattr(state_machine, "MIGRATIONS", {101: to_102, 102: to_103})
    second.restore(read_state(data), continued=True)

    assert edges + play(second, cut) == before
    assert state_hash(second, end_of(TICKS)) == state_hash(straight, end_of(TICKS))


def test_a_node_with_several_agents_is_marked_in_answers_and_its_pushes_get_no_verdict() -> None:
    machine = StateMachine(ProcessorsConfig(), 0.0)
    for tick in range(1, 6):
        for node, agent in (("a", "1"), ("b", "2"), ("b", "3"), ("c", "4")):
            report = HealthReport(
                node_id=node, cluster_id="k", score=0.9, instance_id=agent, time_unix_nano=tick * 10**10
            )
            machine.table.observe(report, 10.0 * tick)
        result = machine.tick(10.0 * tick + 1)

    snapshot, names = result.snapshot, result.snapshot.scores.names
    rows = [names.index(node_key("k", node)) for node in "ab"]
    answer = stragglers_answer(snapshot, "k", 10.0)
    assert answer["several_agents"] == {"count": 1, "nodes": [{"cluster_id": "k", "node_id": "b"}]}
    answers = [why_answer(snapshot, row, machine.config) for row in rows]
    assert [found["several_agents"] for found in answers] == [False, True]
    assert answers[1]["why"].startswith("Several agents report as this node")
    verdicts = result.verdict_cache.verdicts
    assert (verdicts.overrides.get(node_key("k", "b")), verdicts.default) == ("", "learning")
