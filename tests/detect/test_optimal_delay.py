"""The least delay that the bench of the detector compares with."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from optimal_delay import optimal_delay

LEVEL = 110.0
"""Alarm level of the simulated procedure."""


def shewhart(shift: float, run_length: float) -> float:
    """Mean delay, by simulation, of the test that judges every observation alone."""
    rng = np.random.default_rng(1)
    level = np.quantile(rng.normal(size=400_000), 1 - 1 / run_length)
    return 1 / float(np.mean(rng.normal(shift, 1, 400_000) > level))


def test_a_large_loss_is_found_by_its_first_observation() -> None:
    assert optimal_delay(10.0, 720_000.0) == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize("shift", [1.0, 2.0, 3.0])
def test_no_simpler_test_is_faster(shift: float) -> None:
    assert 1 <= optimal_delay(shift, 200.0) <= shewhart(shift, 200.0) + 0.05


def test_the_delay_is_that_of_a_simulated_shiryaev_roberts_procedure() -> None:
    rng, statistic, delays = np.random.default_rng(2), np.zeros(20_000), []
    false = 0
    for _ in range(400):
        statistic = (1 + statistic) * np.exp(rng.normal(size=statistic.size) - 0.5)
        false += int(np.count_nonzero(statistic > LEVEL))
        statistic[statistic > LEVEL] = 0
    for delay in range(1, 200):
        statistic = (1 + statistic) * np.exp(rng.normal(1.0, 1.0, statistic.size) - 0.5)
        delays += [delay] * np.count_nonzero(statistic > LEVEL)
        statistic = statistic[statistic <= LEVEL]

    run_length = 400 * 20_000 / false

    assert np.mean(delays) == pytest.approx(optimal_delay(1.0, run_length), abs=0.15)
