"""Sudden losses in noise that depends on that of the tick before."""

import numpy as np
import numpy.typing as npt

from ingero_detect.nodes.autocorrelation import autocorrelation

from .fleets import healthy, play, play_each, play_side_by_side


def autoregressive(
    ticks: int, nodes: int, coefficient: float, seed: int, freedom: float | None = None
) -> npt.NDArray[np.float64]:
    """Noise of variance 1, (ticks, nodes); `freedom`: degrees of freedom of Student innovations, else normal ones."""
    rng = np.random.default_rng(seed)
    size = (ticks + 100, nodes)
    new = (
        rng.normal(size=size) if freedom is None else rng.standard_t(freedom, size) / np.sqrt(freedom / (freedom - 2))
    )
    noise = np.zeros(size)
    for tick in range(1, len(noise)):
        noise[tick] = coefficient * noise[tick - 1] + np.sqrt(1 - coefficient**2) * new[tick]
    return noise[100:]


def test_a_sudden_loss_stands_out_of_what_noise_changes_from_tick_to_tick() -> None:
    losses = np.repeat([0.1, 0.15], 8)
    fleets = [100 * np.exp(0.02 * autoregressive(700, 8, 0.8, seed % 8)) for seed in range(16)]
    for rates, loss in zip(fleets, losses, strict=True):
        rates[600:, 1] *= 1 - loss
    waited = [next(tick for tick, node in found if node == "n1") - 599 for found in play_each(fleets, budget=1e-3)]

    assert np.mean(waited[:8]) <= 5, waited
    assert np.mean(waited[8:]) <= 5, waited


def test_a_loss_that_makes_its_node_restless_is_named() -> None:
    fleets = [100 * np.exp(0.01 * autoregressive(430, 8, 0.97, seed)) for seed in range(4)]
    for seed, rates in enumerate(fleets):
        rates[400:, 1] *= 0.8 + 0.04 * np.random.default_rng(seed).normal(size=30)
    waited = [next(tick for tick, node in found if node == "n1") - 399 for found in play_each(fleets, budget=1e-3)]

    assert max(waited) <= 12, waited


def test_a_sudden_loss_within_the_band_accuses_nobody() -> None:
    fleets = [100 * np.exp(0.004 * autoregressive(900, 8, 0.8, seed)) for seed in range(6)]
    for rates in fleets:
        rates[600:, 1] *= 0.965

    assert not any(play_each(fleets))


def test_sudden_changes_that_die_away_are_noise() -> None:
    fleets = [100 * np.exp(0.03 * autoregressive(1600, 8, 0.8, seed, 4)) for seed in range(4)]

    assert sum(map(len, play_each(fleets, budget=0.01))) <= 3


def test_noise_that_wanders_under_independent_noise_accuses_few() -> None:
    fleets = []
    for seed in range(3):
        wandering, rng = autoregressive(1600, 8, 0.98, seed), np.random.default_rng(seed)
        fleets.append(100 * np.exp(0.03 * wandering + 0.02 * rng.normal(size=wandering.shape)))

    assert len([tick for found in play_each(fleets, budget=1e-3) for tick, _ in found if tick >= 400]) <= 1


def test_the_variance_ratio_is_that_of_the_noise() -> None:
    noises = [
        (nodes, *noise) for nodes in (3, 8, 64) for noise in ((0.0, 1.0, 1.15), (0.8, 5.0, 11.0), (0.95, 20.0, 80.0))
    ]
    fleets = [100 * np.exp(0.03 * autoregressive(1200, nodes, coefficient, 3)) for nodes, coefficient, _, _ in noises]

    ratios = autocorrelation(play_side_by_side(fleets, budget=1e-3)[0].detector.memory).ratio

    assert [noise for noise, ratio in zip(noises, ratios, strict=True) if not noise[2] <= ratio <= noise[3]] == []


def test_the_memory_of_a_moving_average_ends_and_nodes_that_are_ahead_leave_none() -> None:
    new = np.random.default_rng(1).normal(size=(1504, 8))
    average = 100 * np.exp(0.03 * sum(new[lag : lag + 1500] for lag in range(5)) / np.sqrt(5))
    ahead = healthy(1500, 16, noise=0.02)
    ahead[300:, :2] *= 1.3

    found = autocorrelation(play_side_by_side([average, ahead])[0].detector.memory)

    assert found.lag_one[0] > 0.7
    assert found.ratio[0] < 7
    assert found.ratio[1] < 1.6, "nodes that are ahead for long do not make the noise seem to wander"


def test_independent_noise_with_many_small_faults_seems_to_remember_nothing() -> None:
    rates = healthy(2400, 8, 1, noise=0.03)
    for number in range(16):
        rates[300 + 120 * number : 360 + 120 * number, number % 8] *= 1 - 0.09

    played = play(rates, budget=1e-3)

    assert autocorrelation(played.detector.memory).ratio[0] < 1.3
