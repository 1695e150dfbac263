"""Cohorts whose rates are small numbers of events: nobody is accused of chance, and a dead node is still named."""

import numpy as np
import pytest

from ingero_detect.nodes.counted_events import noise_of_counts, on_root_scale, smallest_unit, whole_multiples

from .fleets import Matrix, play, play_each

NODES = 12


def requests(night: float, seed: int, ticks: int = 400) -> Matrix:
    """Requests a second of replicas behind one balancer: 150 a minute by day, a few or none in the middle."""
    log = np.log(night) + (np.log(150) - np.log(night)) * (0.5 + 0.5 * np.cos(2 * np.pi * np.arange(ticks) / ticks))
    counts = np.random.default_rng(seed).poisson(np.exp(log)[:, None] * np.ones(NODES))
    return np.asarray(np.round(counts / 60, 4))


def test_replicas_with_few_requests_at_night_are_not_accused() -> None:
    nights = [
        np.vstack([requests(night, seed), requests(night, 100 + seed)])
        for night in (0.3, 1.0, 3.0, 8.0) for seed in range(2)
    ]  # fmt: skip

    assert not any(play_each(nights))


@pytest.mark.parametrize(("night", "since", "most"), [(0.3, 50, 2), (8.0, 200, 8), (3.0, 200, 25)])
def test_a_replica_that_does_nothing_is_named_as_soon_as_its_peers_tell(night: float, since: int, most: int) -> None:
    fleets = [requests(night, seed)[: since + 100] for seed in range(2)]
    for rates in fleets:
        rates[since:, 5] = 0.0
    for found in play_each(fleets):
        ((tick, node),) = found

        assert (node, tick - since <= most) == ("n5", True)


def test_few_steps_that_all_nodes_do_alike_are_no_chance_events() -> None:
    """Two or three steps a minute, in turn: a node without any has stopped."""
    place = np.arange(200)[:, None] + np.arange(NODES)
    rates = (2 + place % 2) / 60
    rates[150:, 5] = 0.0

    played = play(np.asarray(rates))

    assert [(node, tick <= 154) for tick, node in played.accused()] == [("n5", True)]
    assert played.detector.memory.group("counted")[0] < 0.5


def test_units_are_found_in_rounded_rates_and_not_in_others() -> None:
    counts = np.array([3.0, 5.0, 4.0, 9.0, 0.0])
    random = np.random.default_rng(1)

    assert smallest_unit(np.round(counts / 60, 4)) == pytest.approx(1 / 60, rel=0.01)
    assert whole_multiples(np.round(counts / 60, 4), 0.0167)
    assert smallest_unit(np.zeros(4)) == 0.0
    assert 0 < smallest_unit(np.array([4.5, 6.4, 7.1])) < 1, "distances from the lowest rate may add up to it"
    chance = [np.exp(0.3 * random.normal(size=12)) for _ in range(100)]
    assert sum(whole_multiples(values, smallest_unit(values)) for values in chance) == 0


def test_the_noise_of_counts_is_the_expected_one_on_the_scale_of_roots() -> None:
    for mean in (2.0, 5.0, 40.0):
        counts = np.random.default_rng(2).poisson(mean, 20_000)
        share = np.full(len(counts), 1 / mean)
        with np.errstate(divide="ignore"):
            residual = on_root_scale(np.log(counts / mean).astype(np.float32), share)

        assert residual.std() == pytest.approx(float(noise_of_counts(share)[0]), rel=0.15)
    assert on_root_scale(np.full(1, 0.01, np.float32), np.full(1, 0.02)) == pytest.approx(0.01, abs=1e-3)
