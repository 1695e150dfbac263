"""A clock that follows the system's clock without ever stepping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_kit.clock import SlewedClock


class Machine:
    """The system's two clocks, set by hand."""

    def __init__(self) -> None:
        self.monotonic = 100.0
        self.ahead = 1_700_000_000.0

    def clock(self, offset: float | None = None) -> SlewedClock:
        return SlewedClock(offset, lambda: self.monotonic + self.ahead, lambda: self.monotonic)

    def error(self, clock: SlewedClock) -> float:
        """Seconds that a clock is behind."""
        return self.monotonic + self.ahead - clock()


def test_a_clock_that_agrees_with_the_system_s_runs_with_it() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(100):
        machine.monotonic += 0.37
        assert abs(machine.error(clock)) < 1e-6


@pytest.mark.parametrize("step", [30.0, -30.0])
def test_a_correction_after_the_start_arrives_at_a_tenth_of_the_time(step: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.ahead += step
    for _ in range(200):
        machine.monotonic += 1
        clock()
    assert machine.error(clock) == pytest.approx(step / 3, abs=0.5)
    for _ in range(120):
        machine.monotonic += 1
        clock()
    assert abs(machine.error(clock)) < 1e-6


def test_a_second_process_that_takes_over_the_offset_agrees_with_the_first() -> None:
    machine = Machine()
    first = machine.clock()
    machine.ahead += 60
    machine.monotonic += 10
    second = machine.clock(first.offset())
    for seconds in (0.5, 1.5, 7.0, 100.0):
        machine.monotonic += seconds
        assert second() == pytest.approx(first(), abs=0.2)


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(-100, 100)), max_size=30))
def test_it_never_goes_back_whatever_the_system_s_clock_does(changes: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = machine.clock()
    before = clock()
    for seconds, step in changes:
        machine.monotonic += seconds
        machine.ahead += step
        now = clock()
        assert now - before >= 0.89 * seconds - 1e-6
        assert now - before <= 1.11 * seconds + 1e-6
        before = now
