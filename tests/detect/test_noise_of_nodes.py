"""The noise of single nodes, and noise of all nodes with a long tail on the slow side."""

import numpy as np
import pytest

from .fleets import Matrix, healthy, play_each


def side_by_side(fleets: list[Matrix]) -> list[tuple[int, int, int]]:
    """(fleet, tick, node) of every accusation in fleets of equal size, each a cohort."""
    each = enumerate(play_each(fleets))
    return [(fleet, tick, int(node[1:])) for fleet, found in each for tick, node in found]


def with_noise_of_one_node(nodes: int, seeds: int, lost: float = 0.0) -> list[Matrix]:
    """Noise of 2 %, which grows fourfold on one node; 300 ticks later that node loses a share."""
    fleets = [healthy(900, nodes, seed, noise=0.02) for seed in range(seeds)]
    for rates in fleets:
        rates[400:, 3] = 100 * (rates[400:, 3] / 100) ** 4
        rates[700:, 3] *= 1 - lost
    return fleets


@pytest.mark.parametrize("nodes", [16, 64])
def test_a_node_whose_noise_grows_fourfold_is_hardly_accused(nodes: int) -> None:
    """It rises above its usual rate as often as it falls below, which no straggler does; ten ticks show that."""
    accused = side_by_side(with_noise_of_one_node(nodes, 8))

    assert len([tick for _, tick, _ in accused if tick >= 410]) <= 5


def test_a_node_whose_noise_has_grown_is_named_when_it_loses_a_third() -> None:
    accused = side_by_side(with_noise_of_one_node(16, 8, lost=1 / 3))

    assert {fleet for fleet, tick, node in accused if node == 3 and 700 <= tick <= 704} == set(range(8))


def test_noise_that_often_takes_half_of_a_rate_for_one_tick_accuses_few() -> None:
    """Times of steps with lognormal waits: one tick of 25 loses more than half."""
    fleets = [100 * np.exp(-0.15 * np.random.default_rng(seed).lognormal(0, 1, size=(1500, 8))) for seed in range(12)]

    assert len([tick for _, tick, _ in side_by_side(fleets) if tick >= 60]) <= 6
