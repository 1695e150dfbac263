"""One tick of the published rule over small fleets."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_contract.identifiers import node_key
from ingero_contract.values import NodeState
from ingero_fleet import score_snapshot, threshold_rule
from ingero_fleet.processor_settings import IngeroConfig, QuorumConfig
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ScoreLimits, ScoreTable
from ingero_fleet.threshold_rule import RuleState, Tick
from ingero_fleet.tick_snapshot import TickSnapshot, stragglers_answer, summary_answer, threshold_answer
from ingero_kit.health_report import HealthReport

CONFIG = IngeroConfig(quorum=QuorumConfig(statistical_min=3))


def table() -> ScoreTable:
    return ScoreTable(ScoreLimits(nodes=100, clusters=10, ttl_seconds=50), CONFIG.cohort.by)


def observe(score_table: ScoreTable, now: float = 0.0, /, **nodes: float | HealthReport) -> None:
    for name, value in nodes.items():
        report = value if isinstance(value, HealthReport) else HealthReport(node_id=name, cluster_id="c", score=value)
        assert isinstance(score_table.observe(report, now), int)


def tick(score_table: ScoreTable, memory: RuleState | None = None, now: float = 1.0) -> Tick:
    scores = ScoreSnapshot.take(score_table, now)
    done = threshold_rule.compute(scores, memory or RuleState(), CONFIG)
    threshold_rule.apply(done, scores, score_table)
    return done


def stragglers(score_table: ScoreTable, done: Tick) -> set[str]:
    return {score_table.names[row][1] for row in np.flatnonzero(done.straggling)}


def test_what_comes_while_the_map_is_copied_is_in_this_frame_or_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_snapshot, "ROWS_PER_PIECE", 2)
    score_table = table()
    observe(score_table, a=0.9, b=0.9, gone=0.9, d=0.9)
    score_table.view("seen")[2] = -100.0
    score_table.expire(0.0)
    pieces = ScoreSnapshot.in_pieces(score_table, 1.0)

    next(pieces)
    observe(score_table, a=0.5, reuses=0.6, d=0.7, new=0.8)
    *_, scores = pieces

    seen = {scores.names[row][1]: scores.columns["score"][row] for row in np.flatnonzero(scores.columns["alive"])}
    assert seen == {"a": 0.9, "b": 0.9, "d": 0.7}
    following = ScoreSnapshot.take(score_table, 2.0)
    fresh = {following.names[row][1] for row in np.flatnonzero(following.columns["fresh"])}
    assert fresh == {"a", "reuses", "new"}


def test_the_roster_is_the_same_list_until_somebody_comes_or_goes() -> None:
    score_table = table()
    observe(score_table, a=0.9, b=0.9)
    first = ScoreSnapshot.take(score_table, 1.0).names
    observe(score_table, a=0.8)
    assert ScoreSnapshot.take(score_table, 2.0).names is first

    observe(score_table, c=0.9)
    assert [name for _, name in ScoreSnapshot.take(score_table, 3.0).names] == ["a", "b", "c"]


def test_the_slow_node_and_no_other_is_below_the_threshold() -> None:
    score_table = table()
    observe(score_table, a=0.95, b=0.94, c=0.96, d=0.5)

    done = tick(score_table)

    assert stragglers(score_table, done) == {"d"}


def test_a_tight_fleet_has_the_minimum_band() -> None:
    score_table = table()
    observe(score_table, a=0.98900, b=0.98904, c=0.98896)

    (threshold,) = tick(score_table).thresholds.values()

    assert threshold == pytest.approx(0.989 - CONFIG.threshold.min_band)


def test_without_a_quorum_there_is_no_threshold() -> None:
    score_table = table()
    observe(score_table, a=0.9, b=0.1)

    done = tick(score_table)

    assert done.thresholds == {}
    assert threshold_answer(TickSnapshot(ScoreSnapshot.take(score_table, 1), done), "c") == {
        "threshold": 0,
        "quorum_met": False,
    }


@pytest.mark.parametrize("state", [NodeState.CALIBRATING, NodeState.IDLE])
def test_nodes_that_are_not_active_neither_count_nor_straggle(state: NodeState) -> None:
    score_table = table()
    observe(score_table, a=0.9, b=0.9, c=HealthReport(node_id="c", cluster_id="c", score=0.0, state=state))

    done = tick(score_table)

    assert done.thresholds == {}
    assert stragglers(score_table, done) == set()


def idle(name: str) -> HealthReport:
    return HealthReport(node_id=name, cluster_id="c", score=0.0, state=NodeState.IDLE)


def test_a_cohort_that_rests_together_accuses_nobody() -> None:
    score_table = table()
    observe(score_table, a=0.9, b=0.9, c=0.9, d=0.1)
    done = tick(score_table)

    observe(score_table, **{name: idle(name) for name in "abcd"})

    assert stragglers(score_table, tick(score_table, done.memory)) == set()


def test_recovery_needs_more_than_the_threshold_itself() -> None:
    score_table = table()
    observe(score_table, a=0.9, b=0.9, c=0.9, d=0.1)
    done = tick(score_table)
    (threshold,) = done.thresholds.values()

    observe(score_table, d=threshold + 0.01)
    assert stragglers(score_table, tick(score_table, done.memory)) == {"d"}

    observe(score_table, d=threshold + 0.03)
    assert stragglers(score_table, tick(score_table, done.memory)) == set()


def test_since_and_windows_report_how_long() -> None:
    score_table = table()
    observe(score_table, a=0.9, b=0.9, c=0.9, d=0.1)
    done = tick(score_table, now=5.0)
    for now in (6.0, 7.0):
        observe(score_table, d=0.1)
        done = tick(score_table, done.memory, now)
    row = score_table.row_of(node_key("c", "d"))
    assert row is not None

    assert (done.since[row], done.windows[row]) == (5.0, 3)


def test_a_small_cohort_merges_by_model_but_never_across_jobs() -> None:
    score_table = table()
    for number in range(4):
        observe(
            score_table,
            **{f"n{number}": HealthReport(
                node_id=f"n{number}", cluster_id="c", score=0.9, job_id="j1", gpu_model="A" if number else "B"
            )},
        )  # fmt: skip
    observe(score_table, other=HealthReport(node_id="other", cluster_id="c", score=0.9, job_id="j2"))

    done = tick(score_table)

    merged = {summary.key: summary.merged_into for summary in done.cohorts}
    assert merged[("c", "", "j1", "B", "")] == ("c", "", "j1", "*", "*")
    assert merged[("c", "", "j1", "A", "")] is None
    assert ("c", "", "j2", "", "") not in done.thresholds


def test_panic_freezes_the_threshold() -> None:
    score_table = table()
    observe(score_table, a=0.9, b=0.9, c=0.9, d=0.9)
    done = tick(score_table)
    before = dict(done.thresholds)
    for _ in range(3):
        observe(score_table, a=0.2, b=0.2, c=0.2)
        done = tick(score_table, done.memory)

    assert done.clusters["c"].panic
    assert done.thresholds == pytest.approx(before, abs=0.2)
    frozen = dict(done.thresholds)
    assert tick(score_table, done.memory).thresholds == frozen


def test_a_panic_that_lasts_ends_where_scores_have_come_to_rest() -> None:
    """Agents of the published protocol learn nothing while they straggle: only the threshold can give way."""
    score_table = table()
    observe(score_table, a=0.9, b=0.9, c=0.9, d=0.9)
    done = tick(score_table)
    observe(score_table, a=0.2, b=0.2, c=0.2)
    panicked = []
    for number in range(100):
        done = tick(score_table, done.memory, now=10.0 + 10.0 * number)
        panicked.append(done.clusters["c"].panic)

    lasted = 10.0 * panicked.count(True)
    assert threshold_rule.FREEZE_SECONDS < lasted < 2 * threshold_rule.FREEZE_SECONDS
    assert not any(panicked[panicked.index(False, panicked.index(True)) :])
    assert stragglers(score_table, done) == set()


def test_coverage_is_low_when_the_declared_world_is_missing() -> None:
    score_table = table()
    for name in "abc":
        observe(score_table, **{name: HealthReport(node_id=name, cluster_id="c", score=0.9, world_size=8)})

    assert tick(score_table).clusters["c"].coverage_low


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ((8,), 8),
        ((8, 8, 8), 8),
        ((90, 8, 8), 8),
        ((90, 0, 0), 3),
        ((8, 16, 8, 16), 16),
        ((90, 91, 8), 90),
    ],
)
def test_one_node_alone_does_not_decide_how_many_are_expected(declared: tuple[int, ...], expected: int) -> None:
    score_table = table()
    for number, size in enumerate(declared):
        name = f"n{number}"
        observe(score_table, **{name: HealthReport(node_id=name, cluster_id="c", score=0.9, world_size=size)})

    assert tick(score_table).clusters["c"].expected == expected


@given(st.lists(st.floats(0, 1), min_size=3, max_size=30), st.randoms())
def test_the_order_of_nodes_changes_nothing(values: list[float], random: object) -> None:
    export, backward = table(), table()
    observe(export, **{f"n{number}": value for number, value in enumerate(values)})
    observe(backward, **{f"n{number}": value for number, value in reversed(list(enumerate(values)))})

    first, second = tick(export), tick(backward)

    assert first.thresholds == second.thresholds
    assert stragglers(export, first) == stragglers(backward, second)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=30))
def test_a_threshold_is_always_one_that_agents_accept(values: list[float]) -> None:
    score_table = table()
    observe(score_table, **{f"n{number}": value for number, value in enumerate(values)})

    assert all(0.1 <= threshold <= 0.99 for threshold in tick(score_table).thresholds.values())


def test_answers_are_plain_json() -> None:
    score_table = table()
    observe(score_table, a=0.9, b=0.9, c=0.9, d=0.1)
    scores = ScoreSnapshot.take(score_table, 1.0)
    snapshot = TickSnapshot(scores, threshold_rule.compute(scores, RuleState(), CONFIG))

    answer = stragglers_answer(snapshot, "c", 1.0)

    assert [node["node_id"] for node in answer["stragglers"]] == ["d"]
    json.dumps([answer, *map(summary_answer, snapshot.tick.clusters.values())])
