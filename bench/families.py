"""Seeded histories of fleets, healthy and faulty, as the detector sees them: one fixed generator per family."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

TICK = 5.0
"""Seconds between two ticks."""

NOISE = 0.03
"""Standard deviation of a healthy node's rate from tick to tick, share of the rate."""

WARMUP = 30

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class History:
    """A history: `rate` (ticks, nodes), NaN where a node sent nothing; `idle` where it reported no work.

    `guilty` holds, for every faulty node, the ticks [from, to) of its faults.
    """

    rate: Matrix
    idle: npt.NDArray[np.bool_] | None = None
    guilty: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


Generator = Callable[[np.random.Generator, int, int], History]


def _white(rng: np.random.Generator, ticks: int, nodes: int) -> Matrix:
    return rng.normal(size=(ticks, nodes))


def _ar(rng: np.random.Generator, ticks: int, nodes: int, phi: float = 0.8) -> Matrix:
    noise: Matrix = rng.normal(size=(ticks, nodes)) * np.sqrt(1 - phi * phi)
    noise[0] = rng.normal(size=nodes)
    for tick in range(1, ticks):
        noise[tick] += phi * noise[tick - 1]
    return noise


def _rate(noise: Matrix, base: float = 100.0) -> Matrix:
    return base * np.maximum(1 + NOISE * noise, 1e-3)


def gaussian(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """Independent normal noise."""
    return History(_rate(_white(rng, ticks, nodes)))


def student(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """Independent Student noise with 3 degrees of freedom: heavy tails on both sides."""
    return History(_rate(rng.standard_t(3, size=(ticks, nodes))))


def lognormal(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """A step time with lognormal excess, so that rates are skewed to the slow side."""
    step = 1 + NOISE * np.exp(rng.normal(size=(ticks, nodes)))
    return History(100.0 / step)


def autocorrelated(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """First-order autoregressive noise, 0.8 from tick to tick."""
    return History(_rate(_ar(rng, ticks, nodes)))


def wandering(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """Loads that wander by 3 %, 0.98 from tick to tick, under independent noise of 2 %."""
    return History(_rate((0.03 * _ar(rng, ticks, nodes, 0.98) + 0.02 * _white(rng, ticks, nodes)) / NOISE))


def averaged(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """Rates over the last five ticks, as a recorded `rate(...[5m])` of every minute has them."""
    noise = _white(rng, ticks + 4, nodes)
    summed: Matrix = sum((noise[lag : lag + ticks] for lag in range(5)), np.zeros((ticks, nodes)))
    return History(_rate(summed / np.sqrt(5)))


def dips(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """A checkpoint every ten minutes: all nodes lose 70 % for two ticks, not all at the same tick."""
    rate = _rate(_white(rng, ticks, nodes))
    for start in range(60, ticks - 4, 120):
        first = start + rng.integers(0, 2, nodes)
        for offset in range(2):
            rate[first + offset, np.arange(nodes)] *= 0.3
    return History(rate)


def diurnal(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """The whole fleet drifts by 20 % up and down over a day."""
    day = 1 + 0.2 * np.sin(2 * np.pi * np.arange(ticks) * TICK / 86400)
    return History(_rate(_white(rng, ticks, nodes)) * day[:, None])


def chips(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """Nodes that differ by up to 10 % for good."""
    return History(_rate(_white(rng, ticks, nodes)) * rng.uniform(0.9, 1.0, nodes))


def restarts(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """A fifth of the nodes restarts at random, about every two hours: silent for 1 to 5 minutes, then a ramp."""
    rate = _rate(_white(rng, ticks, nodes))
    for node in range(0, nodes, 5):
        tick = WARMUP + int(rng.exponential(1440))
        while tick < ticks:
            gap = int(rng.integers(12, 60))
            rate[tick : tick + gap, node] = np.nan
            ramp = rate[tick + gap : tick + gap + 3, node]
            ramp *= np.array([0.4, 0.7, 0.9])[: len(ramp)]
            tick += gap + int(rng.exponential(1440))
    return History(rate)


def glitches(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """Pauses of one or two ticks on single nodes, once per node-hour: they exist only on the slow side."""
    rate = _rate(_white(rng, ticks, nodes))
    for node in range(nodes):
        for start in rng.integers(WARMUP, ticks - 2, rng.poisson(ticks * TICK / 3600)).tolist():
            rate[start : start + int(rng.integers(1, 3)), node] *= 0.5
    return History(rate)


HEALTHY: dict[str, Generator] = {
    "Gaussian": gaussian, "Student t(3)": student, "lognormal": lognormal, "AR(1) 0.8": autocorrelated,
    "common dips": dips, "diurnal drift": diurnal, "chips differ 10 %": chips, "20 % restart": restarts,
    "pauses of 1-2 ticks": glitches, "wandering loads": wandering, "averaged over 5": averaged,
}  # fmt: skip


def _step(rng: np.random.Generator, ticks: int, nodes: int, sigmas: float, noise: Matrix) -> History:
    """Single nodes, one after the other, lose `sigmas` standard deviations for five minutes each."""
    rate, guilty = _rate(noise), {}
    start = 720
    for node in rng.permutation(nodes).tolist():
        stop = start + 60
        if stop + 60 > ticks:
            break
        rate[start:stop, node] *= 1 - sigmas * NOISE
        guilty[node] = [(start, stop)]
        start = stop + 60
    return History(rate, guilty=guilty)


def step_faults(sigmas: float, correlated: bool = False) -> Generator:
    """Step faults of so many standard deviations of the noise."""

    def generate(rng: np.random.Generator, ticks: int, nodes: int) -> History:
        noise = _ar(rng, ticks, nodes) if correlated else _white(rng, ticks, nodes)
        return _step(rng, ticks, nodes, sigmas, noise)

    return generate


def collapse(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """One node's work stops: it reports that it is idle."""
    rate = _rate(_white(rng, ticks, nodes))
    node, start = int(rng.integers(nodes)), ticks // 2
    idle = np.zeros((ticks, nodes), bool)
    idle[start:, node] = True
    rate[start:, node] = 0.0
    return History(rate, idle, {node: [(start, ticks)]})


def vanished_rate(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """The same, visible only in its rate."""
    history = collapse(rng, ticks, nodes)
    return History(history.rate, None, history.guilty)


def leak(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """One node loses 1 % of its first rate a minute."""
    rate = _rate(_white(rng, ticks, nodes))
    node, start = int(rng.integers(nodes)), ticks // 3
    lost = 0.01 * np.arange(ticks - start) * TICK / 60
    rate[start:, node] *= np.maximum(1 - lost, 0.2)
    return History(rate, guilty={node: [(start, ticks)]})


def born_slow(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """One node is 30 % slower than its peers from its first tick."""
    rate = _rate(_white(rng, ticks, nodes))
    node = int(rng.integers(nodes))
    rate[:, node] *= 0.7
    return History(rate, guilty={node: [(0, ticks)]})


def roles(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """An eighth of the nodes, at least two, has a role that does a quarter less; chips differ by 3 %."""
    level = np.exp(0.03 * rng.normal(size=nodes))
    level[rng.permutation(nodes)[: max(2, nodes // 8)]] *= 0.75
    return History(_rate(_white(rng, ticks, nodes)) * level)


def part_slow(share: float) -> Generator:
    """A share of the fleet becomes three times slower."""

    def generate(rng: np.random.Generator, ticks: int, nodes: int) -> History:
        rate = _rate(_white(rng, ticks, nodes))
        start = ticks // 2
        chosen = rng.permutation(nodes)[: round(share * nodes)]
        rate[start:, chosen] /= 3
        return History(rate, guilty={int(node): [(start, ticks)] for node in chosen})

    return generate


def flapping(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """One node: five minutes slow by 30 %, ten minutes well, and again."""
    rate = _rate(_white(rng, ticks, nodes))
    node = int(rng.integers(nodes))
    spells = [(start, start + 60) for start in range(300, ticks - 130, 180)]
    for start, stop in spells:
        rate[start:stop, node] *= 0.7
    return History(rate, guilty={node: spells})


def phase_change(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """The whole job halves its rate, then goes back; nodes follow within two ticks of one another."""
    rate = _rate(_white(rng, ticks, nodes))
    for node in range(nodes):
        start, stop = ticks // 3 + int(rng.integers(0, 2)), 2 * ticks // 3 + int(rng.integers(0, 2))
        rate[start:stop, node] *= 0.5
    return History(rate)


def all_restart(rng: np.random.Generator, ticks: int, nodes: int) -> History:
    """All nodes restart at once and return over half a minute."""
    rate = _rate(_white(rng, ticks, nodes))
    for node in range(nodes):
        back = ticks // 2 + 20 + int(rng.integers(0, 6))
        rate[ticks // 2 : back, node] = np.nan
        rate[back : back + 3, node] *= np.array([0.4, 0.7, 0.9])
    return History(rate)
