"""Simulated fleets for the audit: chips, nodes and runs that differ, several kinds of noise, some of them slow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.audit.audit_results import Population
from ingero_detect.grouped import Bools, Floats

Generator = np.random.Generator
Noise = Callable[[Generator, int], Floats]

NOISES: Final[dict[str, Noise]] = {
    "normal": lambda random, n: random.normal(size=n),
    "Student t(5)": lambda random, n: random.standard_t(5, n) / np.sqrt(5 / 3),
    "Student t(3)": lambda random, n: random.standard_t(3, n) / np.sqrt(3),
    "lognormal": lambda random, n: np.log(random.lognormal(0, 1, n)),
    "skewed to slow": lambda random, n: (random.gumbel(size=n) - 0.5772) / 1.2825,
}
"""Noise of one measurement on the log scale, with standard deviation 1. A lognormal time is normal on it."""

SINGLE_RUN_NOISES: Final[dict[str, Noise]] = {
    **NOISES,
    "exponential": lambda random, n: random.exponential(size=n) - 1,
    "Laplace": lambda random, n: random.laplace(size=n) / np.sqrt(2),
    "10 % of 3 times the noise": lambda random, n: random.normal(size=n) * (1 + 2 * (random.random(n) < 0.1)) / 1.342,
    "two groups": lambda random, n: (random.normal(size=n) + 4 * (random.random(n) < 0.3) - 1.2) / 2.088,
    "skewed far to slow": lambda random, n: (np.exp(0.5 * random.normal(size=n)) - 1.1331) / 0.6039,
}
"""More of them, for fleets with one or two runs."""

BAD_VALUES: Final[dict[str, Noise]] = {
    f"{share} % of values bad": lambda random, n, share=share: (  # type: ignore[misc]
        random.normal(size=n) + (random.random(n) < share / 100) * random.uniform(5, 25, n)
    )
    for share in (1, 5, 10)
}
"""Noise with single values that are far too slow, for fleets with several runs: in one they look like slow chips."""

CHIP_SPREADS: Final[dict[str, Noise]] = {
    "skewed to slow": NOISES["skewed to slow"],
    "Student t(4)": lambda random, n: random.standard_t(4, n) / np.sqrt(2),
    "exponential": SINGLE_RUN_NOISES["exponential"],
}
"""How healthy chips may differ besides the normal way, with standard deviation 1."""

_ALL: Final = {**SINGLE_RUN_NOISES, **BAD_VALUES, **CHIP_SPREADS}


@dataclass(frozen=True)
class SimulatedFleet:
    """What a simulated fleet is like. Spreads and losses are on the log scale."""

    chips: int = 200
    runs: int = 10
    per_node: int = 8
    noise: str = "normal"
    noise_spread: float = 0.02
    chip_spread: float = 0.015
    chips_are: str = "normal"
    node_spread: float = 0.005
    run_spread: float = 0.03
    slow_share: float = 0.0
    slow_nodes: int = 0
    loss: tuple[float, float] = (0.08, 0.2)
    missing: float = 0.0

    @property
    def nodes(self) -> int:
        """Nodes of the fleet."""
        return -(-self.chips // self.per_node)

    def draw(self, random: Generator) -> tuple[Population, Bools, Bools]:
        """One fleet, and which of its chips and nodes are slow."""
        node = np.arange(self.chips) // self.per_node
        slow_node = np.zeros(self.nodes, np.bool_)
        slow_node[random.choice(self.nodes, self.slow_nodes, replace=False)] = True
        slow = np.zeros(self.chips, np.bool_)
        free = np.flatnonzero(~slow_node[node])
        slow[random.choice(free, round(self.slow_share * self.chips), replace=False)] = True
        effect = self.chip_spread * _ALL[self.chips_are](random, self.chips)
        effect += self.node_spread * random.normal(size=self.nodes)[node]
        effect[slow] += random.uniform(*self.loss, int(slow.sum()))
        effect += np.where(slow_node, random.uniform(*self.loss, self.nodes), 0.0)[node]
        of_run = self.run_spread * random.normal(size=self.runs)
        unit, run = np.divmod(np.arange(self.chips * self.runs), self.runs)
        values = effect[unit] + of_run[run] + self.noise_spread * _ALL[self.noise](random, len(unit))
        kept = random.random(len(unit)) >= self.missing
        population = Population("simulated", values[kept], unit[kept], run[kept], node, np.full(self.nodes, -1))
        return population, slow, slow_node

    def known(self, random: Generator) -> Floats:
        """Effects of healthy chips as they are estimated, sorted: the distribution that the bound knows."""
        count = 200_000
        healthy = self.chip_spread * _ALL[self.chips_are](random, count)
        healthy += self.node_spread * random.normal(size=count)
        if self.runs == 1:
            return np.sort(healthy + self.noise_spread * _ALL[self.noise](random, count))
        few = 20_000
        noise = _ALL[self.noise](random, few * self.runs).reshape(few, self.runs) * self.noise_spread
        return np.sort(healthy + np.resize(huber_of_rows(noise), count))


def huber_of_rows(values: Floats) -> Floats:
    """Huber's estimate of location of every row; of two values, the mean."""
    if values.shape[1] <= 2:
        return np.asarray(values.mean(axis=1))
    centre = np.median(values, axis=1, keepdims=True)
    scale = 1.4826 * np.median(np.abs(values - centre))
    for _ in range(20):
        weight = np.minimum(1, 1.5 * scale / np.maximum(np.abs(values - centre), 1e-12))
        centre = (weight * values).sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
    return np.asarray(centre[:, 0])
