"""How long work takes is learnt from waits, whatever the ranks and the steps are like otherwise."""

from collections.abc import Callable

import numpy as np
import pytest

from ingero_detect.grouped import Floats, row_medians
from ingero_detect.ranks.work_in_waits import explained_time, learn_curve, steadied, told

RANKS, STEPS = 8, 60


def job(
    time: Callable[[Floats], Floats], work: Floats, late: Floats | float = 0.0, noise: float = 0.2
) -> Floats:  # fmt: skip
    """Waits of ranks that take this time for their work."""
    random = np.random.default_rng(1)
    arrival = time(work) + late + random.normal(0, noise, work.shape) + random.normal(0, 50, (len(work), 1))
    return np.asarray(arrival.max(axis=1, keepdims=True) - arrival)


def lengths(spread: float = 0.3, seed: int = 0) -> Floats:
    return 4096 * np.exp(spread * np.random.default_rng(seed).normal(size=(STEPS, RANKS)))


@pytest.mark.parametrize(
    "time",
    [lambda work: 0.01 * work, lambda work: 2e-6 * work**2, lambda work: 3 * np.sqrt(work), lambda work: 0 * work],
    ids=["linear", "quadratic", "root", "none"],
)
def test_the_time_of_work_is_learnt_without_a_formula_and_whoever_is_late(
    time: Callable[[Floats], Floats],
) -> None:
    work = lengths()
    late = np.zeros((STEPS, RANKS))
    late[:, 2], late[::4, 5] = 9.0, 20.0
    found = explained_time(learn_curve(job(time, work, late), work), work)

    true = time(work) - time(row_medians(work))[:, None]
    # In the tails there are few points.
    apart = np.abs(found.expected - true)
    assert np.median(apart) < 0.15
    assert np.quantile(apart, 0.9) < 0.6
    assert (apart <= found.margin + 0.6).mean() > 0.95


def test_time_never_falls_with_work() -> None:
    work = lengths()

    found = explained_time(learn_curve(job(lambda work: -0.01 * work, work), work), work)

    assert np.abs(found.expected).max() < 0.5


def test_work_that_never_varies_within_ranks_explains_nothing_for_certain() -> None:
    work = np.tile(np.linspace(1000, 2000, RANKS), (STEPS, 1))

    found = explained_time(learn_curve(job(lambda work: 0.01 * work, work), work), work)

    more = work[0] > found.usual[0] * 1.02
    assert np.abs(found.certain()).max() < 1e-6
    assert found.margin[:, more].min() > 100
    assert found.at_least(RANKS - 1).max() == 0.0
    assert found.at_most(RANKS - 1).min() > 100
    assert found.at_most(0).max() == pytest.approx(0), "less work than usual explains no lateness"


def test_a_rank_that_always_has_less_work_need_not_arrive_earlier_but_explains_no_lateness() -> None:
    work = lengths()
    work[:, 0] /= 2
    found = explained_time(learn_curve(job(lambda work: 0.01 * work, work), work), work)

    assert found.expected[:, 0].mean() < -10
    assert found.at_most(0).mean() == pytest.approx(0, abs=1.5)


def test_any_time_is_possible_beyond_the_work_that_was_seen() -> None:
    work = lengths(0.05)
    curve = learn_curve(job(lambda work: 0.01 * work, work), work)
    work[:, 3] *= 3

    found = explained_time(curve, work)

    assert np.isinf(found.at_most(3)).all()
    assert np.isfinite(found.at_most(0)).mean() > 0.9
    most = 0.01 * (np.delete(work, 3, axis=1).max() - found.usual)
    assert (found.certain()[:, 3] < most + 1).all(), "as much as the most work that was seen"


def test_equal_work_needs_no_curve_and_explains_nothing() -> None:
    work = np.full((STEPS, RANKS), 4096.0)

    assert learn_curve(job(lambda work: work, work), work) is None
    assert learn_curve(np.zeros((0, RANKS)), np.zeros((0, RANKS))) is None
    found = explained_time(None, work)
    assert (found.margin == 0).all()
    work[:, 1] *= 2
    assert np.isinf(explained_time(None, work).at_most(1)).all()


def test_unknown_points_and_extreme_numbers_break_nothing() -> None:
    random = np.random.default_rng(3)
    for scale in (1e-30, 1.0, 1e15):
        work = random.choice([0.0, 1.0, 2.0, 1e3], (STEPS, RANKS)) * scale
        waited = random.choice([0.0, 1e-9, 1e9], work.shape)
        gaps = random.random(work.shape) < 0.3
        work[gaps] = waited[gaps] = np.nan
        found = explained_time(learn_curve(waited, work), work)
        assert np.isfinite(found.expected[~gaps]).all()
        assert np.isfinite(steadied(waited, work)[~gaps]).all()


def test_ranks_that_always_do_more_work_are_as_steady_as_the_others() -> None:
    work = lengths(0.0)
    work[:, 6] *= 2
    random = np.random.default_rng(0)
    waited = 50 - random.normal(0, 1, work.shape) * work / 4096
    rougher = waited.copy()
    rougher[:, 1] = 50 - random.normal(0, 2, STEPS)

    spread = steadied(rougher, work).std(axis=0)
    assert spread[6] == pytest.approx(1, abs=0.3)
    assert spread[1] == pytest.approx(2, abs=0.5), "its work explains no unsteadiness"


def test_half_of_the_ranks_must_tell_their_work() -> None:
    nothing = np.nan
    table = np.array([[1, 2, 3, 4], [1, 2, nothing, nothing], [1, nothing, nothing, nothing]])

    assert told(table).tolist() == [True, True, False]
    assert told(table[:, :2]).tolist() == [True, True, False]
