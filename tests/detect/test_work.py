"""What different amounts of work explain is removed from a timeline."""

import numpy as np
import pytest

from ingero_detect.ranks.timeline import Timeline
from ingero_detect.ranks.work import with_equal_work


def line(work: list[float], computing: list[float], waiting: list[float], ranks: int, steps: int) -> Timeline:
    """A compute operation and then a collective of every rank in every step; values by step, then rank."""
    rank, step = np.tile(np.arange(ranks), 2 * steps), np.repeat(np.arange(steps), 2 * ranks)
    collective = np.tile(np.repeat([False, True], ranks), steps)
    duration, amount = np.empty(len(rank)), np.full(len(rank), np.nan)
    duration[~collective], duration[collective] = computing, waiting
    amount[~collective] = work
    unknown = np.full(len(rank), -1)
    return Timeline(
        ranks=ranks, steps=steps, rank=rank, step=step, op=collective.astype(np.int64), collective=collective,
        start=100.0 * step + collective, duration=duration, instance=np.where(collective, step, -1), stage=unknown,
        data_parallel=unknown, work=amount,
    )  # fmt: skip


def test_durations_and_waits_are_those_of_an_equal_share_of_the_work() -> None:
    work = np.tile([1.0, 2.0, 3.0, 4.0], 30)
    equal = with_equal_work(
        line(work.tolist(), (0.1 * work).tolist(), np.tile([0.3, 0.2, 0.1, 0.0], 30).tolist(), 4, 30)
    )

    assert equal is not None
    assert equal.line.duration[:4] == pytest.approx([0.25] * 4)
    assert np.ptp(equal.line.duration[4:8]) == pytest.approx(0, abs=1e-9)
    assert equal.seconds_lost_per_step == pytest.approx(0.4 - 0.25)


def test_equal_or_unknown_work_changes_nothing() -> None:
    same = [1.0] * 120
    assert with_equal_work(line(same, same, same, 4, 30)) is None
    assert with_equal_work(line([np.nan] * 120, same, same, 4, 30)) is None


def test_work_without_time_and_time_without_work_do_not_break_it() -> None:
    rng = np.random.default_rng(1)
    work, computing = rng.choice([0.0, 1.0, 1e300], 120), rng.choice([0.0, 1e-9, 1e9], 120)

    equal = with_equal_work(line(work.tolist(), computing.tolist(), [1.0] * 120, 4, 30))

    assert equal is not None and np.isfinite(equal.line.duration).all()
