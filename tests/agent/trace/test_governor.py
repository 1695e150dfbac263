"""The limit on what tracing costs: properties over any load."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_agent.trace.calibrate import ENTRY_FLOOR_NS, PAIR_FLOOR_NS, Costs
from ingero_agent.trace.governor import (
    CORE,
    LAUNCH,
    MEMORY,
    PERIODS,
    SCHEDULER,
    STEPS,
    GovernorConfig,
    GovernorState,
    Window,
    advance,
    cost_at,
    duty,
    full_cost,
    reader_level,
)
from ingero_agent.trace.tracer import Tracer

CONFIG = GovernorConfig()
COSTS = st.fixed_dictionaries({CORE: st.floats(0, 0.004), LAUNCH: st.floats(0, 0.5), MEMORY: st.floats(0, 0.5)})
NANOSECONDS = {CORE: 2000.0, LAUNCH: 1000.0, MEMORY: 2000.0}


def run(state: GovernorState, full: dict[str, float], seconds: int, start: float = 0.0) -> list[GovernorState]:
    states = []
    for second in range(seconds):
        state = advance(state, full, start + second, CONFIG)
        states.append(state)
    return states


@given(COSTS, st.integers(0, len(STEPS) - 1))
def test_under_any_steady_load_the_cost_fits_within_four_seconds_or_everything_is_shed(
    full: dict[str, float], step: int
) -> None:
    state = run(GovernorState(step), full, 5)[-1]

    assert cost_at(state.step, full) <= CONFIG.budget or state.step == len(STEPS) - 1


@given(COSTS, st.integers(0, len(STEPS) - 1))
def test_under_any_steady_load_the_step_settles_and_never_swings(full: dict[str, float], step: int) -> None:
    steps = [step, *(state.step for state in run(GovernorState(step), full, 600))]
    moves = [after - before for before, after in itertools.pairwise(steps) if after != before]

    assert all(move > 0 for move in moves) or all(move < 0 for move in moves)
    assert len(set(steps[-200:])) == 1


@given(COSTS, st.integers(0, len(STEPS) - 1))
def test_a_step_back_never_breaks_the_budget(full: dict[str, float], step: int) -> None:
    before = GovernorState(step)
    for state in run(before, full, 600):
        if state.step < before.step:
            assert cost_at(state.step, full) <= CONFIG.budget * CONFIG.room
        before = state


@given(st.integers(1, len(STEPS) - 1))
def test_everything_comes_back_once_the_load_is_gone(step: int) -> None:
    assert run(GovernorState(step), {CORE: 0.0, LAUNCH: 0.0, MEMORY: 0.0}, 61 * len(STEPS))[-1].step == 0


@given(st.dictionaries(st.sampled_from([CORE, LAUNCH, MEMORY]), st.floats(0, 0.0016)))
def test_what_fits_is_never_shed(full: dict[str, float]) -> None:
    assert {state.step for state in run(GovernorState(), full, 30)} == {0}


def test_what_watching_the_scheduler_costs_is_in_the_estimate_at_every_step() -> None:
    full = {LAUNCH: 0.004, SCHEDULER: 0.002}

    assert [duty(step, SCHEDULER) for step in range(len(STEPS))] == [1.0] * len(STEPS)
    assert cost_at(0, full) == pytest.approx(0.006)
    assert run(GovernorState(), full, 5)[-1].step == 1


def test_a_short_burst_sheds_nothing() -> None:
    state = run(GovernorState(), {LAUNCH: 0.5}, 3)[-1]

    assert advance(state, {LAUNCH: 0.0}, 3.0, CONFIG).step == 0


@pytest.mark.parametrize(
    ("launches", "step"),
    [(1_000, 0), (4_000, 0), (15_000, 1), (18_000, 1), (40_000, 2), (1_000_000, 5)],
)
def test_launches_a_second_and_the_step_they_lead_to_at_one_microsecond_each(launches: int, step: int) -> None:
    full = full_cost({LAUNCH: launches, MEMORY: 0.0, CORE: 100.0}, NANOSECONDS)

    assert run(GovernorState(), full, 5)[-1].step == step


def test_each_step_costs_no_more_than_the_one_before() -> None:
    full = {CORE: 0.001, LAUNCH: 0.1, MEMORY: 0.1}

    costs = [cost_at(step, full) for step in range(len(STEPS))]

    assert costs == sorted(costs, reverse=True)
    assert duty(len(STEPS) - 1, CORE) == 1.0


@given(st.integers(0, len(STEPS) - 1), st.floats(0, 1e6))
def test_windows_are_open_for_their_share_of_the_time(step: int, begun: float) -> None:
    window = Window(step, begun)

    opened = sum(window.is_open(LAUNCH, begun + tick / 10) for tick in range(5, 6000, 10))

    assert opened == 600 * duty(step, LAUNCH)


def test_an_agent_that_works_too_much_looks_less_often_and_comes_back() -> None:
    level = reader_level(0, 0.03, 0.01)
    busier = reader_level(level, 0.02, 0.01)

    assert (level, busier, reader_level(busier, 0.0, 0.01), reader_level(0, 0.0, 0.01)) == (1, 2, 1, 0)
    assert reader_level(len(PERIODS) - 1, 1.0, 0.01) == len(PERIODS) - 1


@pytest.mark.parametrize("change", [{"budget": 0}, {"budget": 2}, {"room": 0}])
def test_a_budget_that_makes_no_sense_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        GovernorConfig(**change)


@pytest.mark.ebpf
def test_the_cost_of_a_probe_is_measured_anew_and_the_measurement_is_no_call_of_anybody() -> None:
    tracer = Tracer()
    try:
        tracer.costs = Costs(1e9, 1e9)
        tracer.recalibrate()

        assert ENTRY_FLOOR_NS <= tracer.costs.entry_ns < 1e8
        assert PAIR_FLOOR_NS <= tracer.costs.pair_ns < 1e8
        assert tracer.read() == []
    finally:
        tracer.close()
