"""The limit on what tracing costs: properties over any load."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_agent.trace.calibrate import FLOOR, extra_nanoseconds
from ingero_agent.trace.call_rates import CallRates
from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.governor import (
    BUDGET_FILL,
    COLLECTIVE,
    CORE,
    DEFAULT_BUDGET,
    ENTRY,
    LAUNCH,
    MEMORY,
    PAIR,
    PERIODS,
    SCHEDULER,
    STEP,
    STEP_BACK_FILL,
    STEPS,
    WAIT,
    CallRate,
    DutyCycle,
    GovernorState,
    ProbeCost,
    advance,
    cost_at,
    duty,
    full_cost,
    reader_level,
)
from ingero_agent.trace.probes.table import FUNCTIONS
from ingero_agent.trace.tracer import EbpfTracer

LIMIT = DEFAULT_BUDGET * BUDGET_FILL
COSTS = st.fixed_dictionaries({CORE: st.floats(0, 0.004), LAUNCH: st.floats(0, 0.5), MEMORY: st.floats(0, 0.5)})
PRICES = {
    ENTRY: ProbeCost(1000, 1000),
    PAIR: ProbeCost(2000, 2000),
    COLLECTIVE: ProbeCost(4000, 4000),
    WAIT: ProbeCost(2000, 2000),
}


def run(state: GovernorState, full: dict[str, float], seconds: int, start: float = 0.0) -> list[GovernorState]:
    states = []
    for second in range(seconds):
        state = advance(state, full, start + second, DEFAULT_BUDGET)
        states.append(state)
    return states


@given(COSTS, st.integers(0, len(STEPS) - 1))
def test_under_any_steady_load_the_cost_fits_within_four_seconds_or_everything_is_shed(
    full: dict[str, float], step: int
) -> None:
    state = run(GovernorState(step), full, 5)[-1]

    assert cost_at(state.step, full) <= LIMIT or state.step == len(STEPS) - 1


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
            assert cost_at(state.step, full) <= LIMIT * STEP_BACK_FILL
        before = state


@given(st.integers(1, len(STEPS) - 1))
def test_everything_comes_back_once_the_load_is_gone(step: int) -> None:
    assert run(GovernorState(step), {CORE: 0.0, LAUNCH: 0.0, MEMORY: 0.0}, 61 * len(STEPS))[-1].step == 0


@given(st.dictionaries(st.sampled_from([CORE, LAUNCH, MEMORY]), st.floats(0, 0.0013)))
def test_what_fits_is_never_shed(full: dict[str, float]) -> None:
    assert {state.step for state in run(GovernorState(), full, 30)} == {0}


def test_what_watching_the_scheduler_costs_is_in_the_estimate_at_every_step() -> None:
    full = {LAUNCH: 0.004, SCHEDULER: 0.002}

    assert [duty(step, SCHEDULER) for step in range(len(STEPS))] == [1.0] * len(STEPS)
    assert cost_at(0, full) == pytest.approx(0.006)
    assert run(GovernorState(), full, 5)[-1].step == 1


def test_a_short_burst_sheds_nothing() -> None:
    state = run(GovernorState(), {LAUNCH: 0.5}, 3)[-1]

    assert advance(state, {LAUNCH: 0.0}, 3.0, DEFAULT_BUDGET).step == 0


@pytest.mark.parametrize(
    ("launches", "step"),
    [(1_000, 0), (3_000, 0), (10_000, 1), (13_000, 1), (30_000, 2), (100_000, 5), (250_000, 6), (1_000_000, 6)],
)
def test_launches_a_second_and_the_step_they_lead_to_at_one_microsecond_each(launches: int, step: int) -> None:
    rates = {
        LAUNCH: {ENTRY: CallRate(launches)},
        MEMORY: {},
        CORE: {COLLECTIVE: CallRate(100), WAIT: CallRate(100, 100)},
    }
    full = full_cost(rates, PRICES)

    assert run(GovernorState(), full, 5)[-1].step == step


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1e4), st.floats(0, 1e4))
def test_calls_cost_the_more_the_more_there_are_and_cold_ones_their_own_price(
    cold: float, more: float, warm: float, extra: float
) -> None:
    cost = ProbeCost(warm, warm + extra)

    assert cost.share(CallRate(cold, cold)) == pytest.approx(cold * cost.cold / 1e9)
    assert cost.share(CallRate(cold + more, cold)) - cost.share(CallRate(cold, cold)) == pytest.approx(
        more * warm / 1e9, abs=1e-9
    )


def test_a_process_pays_by_what_it_calls_and_a_closed_group_keeps_its_rates() -> None:
    names = {function.name: function for function in FUNCTIONS}
    launch, reduce, wait = (names[name] for name in ("cudaLaunchKernel", "ncclAllReduce", "cudaStreamSynchronize"))
    prices, on = (
        {**PRICES, ENTRY: ProbeCost(1000, 3000), STEP: ProbeCost(9000, 9000)},
        {CORE: 1.0, LAUNCH: 0.5, MEMORY: 1.0},
    )
    rates = CallRates()

    rates.update(
        [CallCount(launch, 1, 500, cold=100), CallCount(reduce, 1, 10), CallCount(wait, 1, 10)],
        on,
        {1},
        {wait.number},
    )
    first = rates.most_expensive(prices)
    rates.update([CallCount(reduce, 1, 20)], {CORE: 1.0, LAUNCH: 0.0, MEMORY: 1.0}, {1}, ())
    second = rates.most_expensive(prices)
    rates.update([], on, set(), ())

    assert first == pytest.approx({CORE: 10 * (4 + 2 + 9) / 1e6, LAUNCH: (800 + 200 * 3) / 1e6, MEMORY: 0.0})
    assert second == pytest.approx({CORE: 20 * 4 / 1e6, LAUNCH: (800 + 200 * 3) / 1e6, MEMORY: 0.0})
    assert rates.most_expensive(prices) == {CORE: 0.0, LAUNCH: 0.0, MEMORY: 0.0}


def test_what_a_call_costs_is_distinguished_from_what_its_twin_costs_whatever_interrupts() -> None:
    now = itertools.count()
    late = iter([0, 0, 10**9, 0, 0, 0, 0, 0, 0, 0])

    def probed() -> None:
        spent.append(next(late))

    spent: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingero_agent.trace.calibrate.time.perf_counter_ns", lambda: next(now) * 10 + sum(spent))
        (found,) = extra_nanoseconds([(probed, lambda: None)], lambda: None, 10)

    assert found == 0.0


def test_each_step_costs_no_more_than_the_one_before() -> None:
    full = {CORE: 0.001, LAUNCH: 0.1, MEMORY: 0.1}

    costs = [cost_at(step, full) for step in range(len(STEPS))]

    assert costs == sorted(costs, reverse=True)
    assert duty(len(STEPS) - 1, CORE) == 1.0


@given(st.integers(0, len(STEPS) - 1), st.floats(0, 1e6))
def test_windows_are_open_for_their_share_of_the_time(step: int, begun: float) -> None:
    window = DutyCycle(step, begun)

    open_read_only = sum(window.is_open(LAUNCH, begun + tick / 10) for tick in range(5, 6000, 10))

    assert open_read_only == 600 * duty(step, LAUNCH)


def test_an_agent_that_works_too_much_polls_less_often_and_comes_back() -> None:
    level = reader_level(0, 0.03, 0.01)
    busier = reader_level(level, 0.02, 0.01)

    assert (level, busier, reader_level(busier, 0.0, 0.01), reader_level(0, 0.0, 0.01)) == (1, 2, 1, 0)
    assert reader_level(len(PERIODS) - 1, 1.0, 0.01) == len(PERIODS) - 1


@pytest.mark.ebpf
def test_the_cost_of_a_probe_is_measured_anew_and_the_measurement_is_no_call_of_anybody() -> None:
    tracer = EbpfTracer()
    try:
        tracer.costs = {}
        tracer.recalibrate()

        assert set(tracer.costs) == set(FLOOR)
        assert all(FLOOR[kind].warm <= cost.warm <= cost.cold < 1e8 for kind, cost in tracer.costs.items())
        assert (tracer.read_counts(), tracer.read_events(), tracer.lost()) == ([], [], {})
    finally:
        tracer.close()
