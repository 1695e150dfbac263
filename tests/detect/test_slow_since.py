"""Ranks that become slow within a short recording."""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ingero_detect.ranks.diagnosis import diagnose
from ingero_detect.ranks.slow_since import slow_since

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, as_timeline, layered


def found_in(values: npt.NDArray[np.float64], chance: float) -> list[int]:
    flagged, _, _ = slow_since(values, np.zeros(len(values), np.int64), chance, 0.04, 0.25)
    return np.flatnonzero(flagged).tolist()


@pytest.mark.parametrize("ranks", [8, 16, 32])
@pytest.mark.parametrize(("steps", "begin"), [(9, 4), (10, 5), (12, 7), (15, 6)])
def test_a_rank_that_becomes_slow_within_few_steps_is_named(ranks: int, steps: int, begin: int) -> None:
    for seed in range(3):
        columns = layered(np.random.default_rng(seed), 1, ranks, steps=steps).arrays()
        slow = (columns["op"] == "layer") & (columns["rank"] == 5) & (columns["step"].astype(int) >= begin)
        columns["duration"] = columns["duration"].astype(float) * np.where(slow, 1.25, 1.0)

        assert diagnose(as_timeline(Table({name: [column] for name, column in columns.items()}))).ranks == (5,)


def test_the_excess_and_the_first_slow_step_are_told() -> None:
    values = 0.001 * np.random.default_rng(1).normal(size=(16, 10))
    values[3, 6:] += 0.1

    flagged, excess, begin = slow_since(values, np.zeros(16, np.int64), 1e-6, 0.04, 0.25)

    assert np.flatnonzero(flagged).tolist() == [3]
    assert excess[3] == pytest.approx(0.1, abs=0.003)
    assert begin[3] == 6


def test_two_ranks_that_become_slow_together_are_found() -> None:
    values = 0.005 * np.random.default_rng(2).normal(size=(16, 10))
    values[[3, 4], 5:] += 0.15

    assert found_in(values, 1e-6) == [3, 4]


@pytest.mark.parametrize("memory", [0.0, 0.9, 1.0])
def test_ranks_that_wander_are_not_found(memory: float) -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        values = 0.03 * rng.normal(size=(12, 10))
        for step in range(1, 10):
            values[:, step] += memory * values[:, step - 1]

        assert found_in(values, 1e-3) == []


def test_single_pauses_and_those_that_strike_all_ranks_are_not_found() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        values = 0.005 * rng.normal(size=(12, 10))
        one, several = values.copy(), values.copy()
        one[3, 8] += 1.0
        several[rng.permutation(12)[:6, None], rng.integers(0, 10, (6, 4))] += 0.2

        assert (found_in(one, 1e-3), found_in(several, 1e-3)) == ([], [])


def test_a_rank_that_is_slow_in_the_last_steps_of_many_is_not_found() -> None:
    values = 0.005 * np.random.default_rng(4).normal(size=(12, 24))
    values[3, -5:] += 0.2

    assert found_in(values, 1e-3) == []


def test_pairs_show_no_change() -> None:
    values = np.zeros((2, 10))
    values[1, 5:] += 0.2

    assert found_in(values, 1e-3) == []
