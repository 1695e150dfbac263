"""Work that is due at intervals."""

from ingero_kit.clock import Every


def test_work_is_due_at_once_and_then_an_interval_after_it_was_done() -> None:
    work = Every(10.0)

    assert [now for now in (0.0, 5.0, 9.9, 12.0, 21.9, 22.0) if work.due(now)] == [0.0, 12.0, 22.0]


def test_work_can_begin_later() -> None:
    work = Every(10.0, first=3.0)

    assert [now for now in (0.0, 2.9, 3.0, 12.0, 13.0) if work.due(now)] == [3.0, 13.0]


def test_a_clock_that_was_set_back_does_not_stop_the_work() -> None:
    work = Every(10.0)
    work.due(1000.0)

    assert work.due(500.0)
    assert not work.due(505.0)
