"""How much evidence a rank needs, and what ranks lend one another."""

import sys
from pathlib import Path

import numpy as np
import pytest

from ingero_detect.diagnosis import diagnose
from ingero_detect.excess import lent, trimmed

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import as_timeline, ring


def test_a_rank_late_by_as_much_as_its_jitter_is_named_mostly_and_an_innocent_never() -> None:
    found = [
        diagnose(as_timeline(ring(np.random.default_rng(seed), 8, jitter=0.05, culprit=5))) for seed in range(20)
    ]

    assert {rank for one in found for rank in one.ranks} == {5}
    assert sum(one.ranks == (5,) for one in found) >= 14


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8, 0.95])
def test_errors_are_what_means_differ_by_however_slowly_ranks_wander(memory: float) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(400, 100))
    for step in range(1, 100):
        values[:, step] = memory * values[:, step - 1] + np.sqrt(1 - memory**2) * values[:, step]

    mean, error = trimmed(values)

    assert np.std(mean) / np.median(error) == pytest.approx(1.0, abs=0.15)


def test_ranks_with_like_errors_know_them_better_together() -> None:
    error, freedom = lent(np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 0.98]), 50)

    assert error == pytest.approx(np.ones(8), abs=0.03)
    assert (freedom > 200).all()


def test_a_rank_that_is_noisier_than_the_others_keeps_its_error() -> None:
    error, freedom = lent(np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 2.0]), 50)

    assert (error[7], freedom[7]) == (2.0, 39.0)
    assert error[0] == pytest.approx(1.0, abs=0.03)


def test_ranks_of_all_kinds_of_noise_lend_little() -> None:
    own = np.exp(np.linspace(-1.5, 1.5, 16))

    error, _ = lent(own, 50)

    assert error == pytest.approx(own, rel=0.1)
