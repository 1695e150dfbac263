"""The pure half of the agent: signals, baseline, score, state, decision."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_agent.health import classification, early_push, phase, score
from ingero_agent.health.baseline import Baseline
from ingero_agent.health.classification import DecisionRule, FleetResponse, choose_rule, is_straggler
from ingero_agent.health.early_push import EarlyPush
from ingero_agent.health.phase import Phase, PhaseState
from ingero_agent.health.signals import SignalReading, Signals, sanitise
from ingero_contract.signals import HealthSignal
from ingero_contract.values import DecisionSource, DetectionMode, VerdictState
from ingero_contract.verdicts import VerdictLine


def reading(rate: float = 100.0, compute: float = 0.9, memory: float = 0.9, cpu: float = 0.9) -> SignalReading:
    return SignalReading(
        rate=rate, compute=compute, memory=memory, cpu=cpu, launches=int(rate) if math.isfinite(rate) else 0
    )


def learnt(observation: SignalReading, samples: int = 30) -> Baseline:
    baseline = Baseline()
    for _ in range(samples):
        baseline = baseline.advance(observation)
    return baseline


# Signals and baseline.


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_impossible_numbers_become_zero_and_are_named(value: float) -> None:
    clean, wrong = sanitise(reading(rate=value))

    assert (clean.rate, wrong) == (0.0, ["rate"])


@given(st.floats(0, 1e6), st.floats(0, 1), st.integers(1, 200))
def test_a_constant_signal_is_its_own_baseline_from_the_first_sample(rate: float, ratio: float, samples: int) -> None:
    normal = learnt(reading(rate, ratio, ratio, ratio), samples).normal()

    assert normal is not None
    assert normal.throughput == pytest.approx(rate)
    assert normal.compute == pytest.approx(ratio)


def test_a_signal_that_sank_below_half_of_its_long_average_warns() -> None:
    baseline = learnt(reading(100), 300)
    assert not baseline.degraded()

    for _ in range(40):
        baseline = baseline.advance(reading(20))

    assert baseline.degraded()


# Score.


def test_a_node_at_its_normal_scores_one() -> None:
    assert score.compute(reading(), learnt(reading()).normal()).value == pytest.approx(1.0)


def test_a_light_but_healthy_job_scores_as_well_as_a_heavy_one() -> None:
    light, heavy = reading(10, compute=0.1), reading(1000, compute=0.95)

    assert score.compute(light, learnt(light).normal()).value == pytest.approx(
        score.compute(heavy, learnt(heavy).normal()).value
    )


@pytest.mark.parametrize(
    ("changes", "signal"),
    [
        ({"rate": 50.0}, HealthSignal.THROUGHPUT),
        ({"compute": 0.3}, HealthSignal.COMPUTE),
        ({"memory": 0.1}, HealthSignal.MEMORY),
        ({"cpu": 0.2}, HealthSignal.CPU),
        ({}, HealthSignal.UNKNOWN),
    ],
)
def test_the_dominant_signal_is_the_one_furthest_below_its_own_normal(
    changes: dict[str, float], signal: HealthSignal
) -> None:
    assert score.compute(reading(**changes), learnt(reading()).normal()).dominant is signal


@given(st.floats(0, 1e9), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.integers(0, 50))
def test_a_score_is_always_between_zero_and_one(
    rate: float, compute: float, memory: float, cpu: float, samples: int
) -> None:
    normal = learnt(reading(), samples).normal()

    assert 0 <= score.compute(reading(rate, compute, memory, cpu), normal).value <= 1


@given(st.floats(0, 0.9), st.floats(0, 0.9))
def test_less_work_never_scores_better(first: float, second: float) -> None:
    normal = learnt(reading()).normal()
    low, high = sorted((first, second))

    assert score.compute(reading(low * 100), normal).value <= score.compute(reading(high * 100), normal).value


# Life.


def live(*launches: int, warmup: int = 3) -> list[Phase]:
    state, phases = PhaseState(warmup=warmup), []
    for count in launches:
        state = phase.advance(state, count).state
        phases.append(state.phase)
    return phases


def test_warm_up_then_active_then_idle_then_learning_anew() -> None:
    assert live(5, 5, 5, 0, 0, 0, 0, 5, 5, 5) == [
        Phase.CALIBRATING, Phase.CALIBRATING, Phase.ACTIVE, Phase.ACTIVE, Phase.ACTIVE, Phase.IDLE, Phase.IDLE,
        Phase.CALIBRATING, Phase.CALIBRATING, Phase.ACTIVE,
    ]  # fmt: skip


def test_a_node_without_work_never_warms_up() -> None:
    assert set(live(*[0] * 20)) == {Phase.CALIBRATING}


def test_a_failed_poll_pushes_nothing_and_three_make_the_node_silent() -> None:
    state = PhaseState.restored(3)
    for expected in (Phase.ACTIVE, Phase.ACTIVE, Phase.STALE):
        state = phase.fail(state)
        assert state.phase is expected

    step = phase.advance(state, 5)

    assert (step.reset, step.push, step.state.phase) == (True, False, Phase.CALIBRATING)


# Decision.

NOW = 1000.0
STRAGGLER = VerdictLine(state=VerdictState.STRAGGLER, kind="slow")


@pytest.mark.parametrize(
    ("word", "warm", "mode", "source"),
    [
        pytest.param(FleetResponse(), False, DetectionMode.NONE, DecisionSource.NONE, id="nothing yet"),
        pytest.param(
            FleetResponse(threshold=0.8, quorum=True, threshold_at=NOW), True,
            DetectionMode.FLEET, DecisionSource.THRESHOLD, id="fresh threshold",
        ),
        pytest.param(
            FleetResponse(threshold=0.8, quorum=True, threshold_at=NOW, verdict=STRAGGLER, verdict_at=NOW), True,
            DetectionMode.FLEET, DecisionSource.VERDICT, id="verdict before threshold",
        ),
        pytest.param(
            FleetResponse(threshold=0.8, quorum=True, threshold_at=NOW - 100), True,
            DetectionMode.FLEET_CACHED, DecisionSource.THRESHOLD, id="reachable with an old threshold",
        ),
        pytest.param(
            FleetResponse(threshold=0.8, quorum=False, threshold_at=NOW), True,
            DetectionMode.FLEET_CACHED, DecisionSource.THRESHOLD, id="no quorum",
        ),
        pytest.param(
            FleetResponse(threshold=0.8, quorum=True, threshold_at=NOW - 100, reachable=False), True,
            DetectionMode.LOCAL_CACHED, DecisionSource.THRESHOLD, id="Fleet away",
        ),
        pytest.param(
            FleetResponse(threshold=0.8, threshold_at=NOW - 400, reachable=False), True,
            DetectionMode.LOCAL_BASELINE, DecisionSource.HISTORY, id="Fleet long away",
        ),
        pytest.param(
            FleetResponse(), True, DetectionMode.LOCAL_BASELINE, DecisionSource.HISTORY,
            id="below quorum from the start",
        ),
        pytest.param(
            FleetResponse(threshold=0.8, quorum=False, threshold_at=NOW - 301), True,
            DetectionMode.LOCAL_BASELINE, DecisionSource.HISTORY, id="below quorum for long",
        ),
        pytest.param(
            FleetResponse(threshold=0.8, quorum=True, threshold_at=NOW - 301), True,
            DetectionMode.NONE, DecisionSource.NONE, id="quorum, and a threshold that is too old",
        ),
        pytest.param(FleetResponse(reachable=False), False, DetectionMode.NONE, DecisionSource.NONE, id="cold"),
        pytest.param(
            FleetResponse(threshold=0.8, quorum=True, threshold_at=NOW + 100), True,
            DetectionMode.NONE, DecisionSource.NONE, id="clock stepped back",
        ),
    ],
)  # fmt: skip
def test_the_best_word_decides(word: FleetResponse, warm: bool, mode: DetectionMode, source: DecisionSource) -> None:
    rule = choose_rule(word, NOW, 10.0, warm)

    assert (rule.mode, rule.source) == (mode, source)


def test_long_push_intervals_still_find_their_threshold_fresh() -> None:
    word = FleetResponse(threshold=0.8, quorum=True, threshold_at=NOW - 65)

    assert choose_rule(word, NOW, 30.0, True).mode is DetectionMode.FLEET


RULE = DecisionRule(DetectionMode.FLEET, DecisionSource.THRESHOLD, 0.8)


def test_recovery_needs_the_hysteresis() -> None:
    assert is_straggler(False, RULE, 0.79, True, 0.02)
    assert is_straggler(True, RULE, 0.81, True, 0.02)
    assert not is_straggler(True, RULE, 0.82, True, 0.02)
    assert not is_straggler(False, RULE, 0.80, True, 0.02)


def test_leaving_the_active_phase_resolves() -> None:
    assert not is_straggler(True, RULE, 0.1, False, 0.02)


def test_a_node_that_fleet_calls_stopped_is_accused_although_it_is_idle() -> None:
    stopped = VerdictLine(state=VerdictState.STOPPED, kind="stopped")
    rule = DecisionRule(DetectionMode.FLEET, DecisionSource.VERDICT, 0.8, stopped)

    assert is_straggler(False, rule, 0.1, False, 0.02)


def test_the_verdict_beats_the_score() -> None:
    rule = DecisionRule(DetectionMode.FLEET, DecisionSource.VERDICT, 0.8, STRAGGLER)
    healthy = DecisionRule(DetectionMode.FLEET, DecisionSource.VERDICT, 0.8, VerdictLine(state=VerdictState.HEALTHY))

    assert is_straggler(False, rule, 0.99, True, 0.02)
    assert not is_straggler(False, healthy, 0.1, True, 0.02)


def test_no_rule_accuses_nobody() -> None:
    nobody = DecisionRule(DetectionMode.NONE, DecisionSource.NONE)

    assert not is_straggler(True, nobody, 0.0, True, 0.02)


def test_weights_sum_to_one() -> None:
    assert sum(score.WEIGHTS) == pytest.approx(1.0)
    assert isinstance(score.WEIGHTS, Signals)
    assert classification.LOCAL_THRESHOLD == 0.85


def test_a_collapse_is_pushed_at_once_and_again_when_fleet_may_have_confirmed_it() -> None:
    classification, pushed = EarlyPush(), []
    for moment in range(300):
        classification, push = early_push.advance(
            classification, 20.0 if moment >= 50 else 100.0, 100.0, moment / 10, 10.0
        )
        if push:
            pushed.append(moment / 10)

    assert pushed == [5.0, 7.0, 14.0, 17.0, 20.0]


def test_early_pushes_of_falls_that_were_never_named_are_limited() -> None:
    classification, pushed = EarlyPush(), []
    for moment in range(0, 2000, 10):
        restless = moment % 100 in (0, 10)
        classification, push = early_push.advance(classification, 20.0 if restless else 80.0, 100.0, moment / 10, 1.0)
        if push:
            pushed.append(moment / 10)

    begun = [now for now in pushed if now - 1 not in pushed]
    assert begun[:3] == [0.0, 10.0, 20.0]
    earned = 200.0 / early_push.INTERVALS_PER_FALL
    assert 1 <= len(begun) - earned <= early_push.FALLS


def test_who_was_named_and_is_well_again_makes_haste_as_before() -> None:
    classification, pushed = EarlyPush(), []
    for moment in range(60):
        fallen, named = moment % 20 >= 10, moment % 20 >= 13
        classification, push = early_push.advance(
            classification, 20.0 if fallen else 100.0, 100.0, moment, 1.0, named=named
        )
        if push:
            pushed.append(moment)

    assert pushed == [10, 11, 12, 30, 31, 32, 50, 51, 52]


def test_what_may_be_a_fault_is_not_learnt_until_it_has_lasted() -> None:
    fallen, _ = early_push.advance(EarlyPush(), 20.0, 100.0, 50.0, 10.0)

    assert not EarlyPush().suspect(50.0, 10.0)
    assert fallen.suspect(50.0, 10.0) and fallen.suspect(79.0, 10.0)
    assert not fallen.suspect(80.0, 10.0)
