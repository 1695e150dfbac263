"""How often any test finds a single slow chip if it does not know the shape of the healthy ones.

By the lemma of Neyman and Pearson (1933), no test finds the slow chip more often than the likelihood ratio against
one distribution of healthy fleets, at the size that the test has there. That distribution may be any mixture of
shapes, so the mixture against which the ratio is weakest bounds every test that names somebody in 5 % of healthy
fleets of each shape at most. Here chips are normal, and the shapes are those nearest to normal of seven kinds; the
test knows them, location and scale. `make bench-audit ARGS=--bound` prints the bound beside what the audit finds.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Final

import numpy as np
from rich.table import Table

from ingero_detect.audit.audit import audit
from ingero_detect.audit.audit_results import Population
from ingero_detect.audit.audit_tiers import AuditLevel
from ingero_detect.grouped import Floats
from ingero_detect.healthy_spread import Shape, Sum

SIZE: Final = 0.05
"""Share of healthy fleets in which a test may name somebody, and the rate of the audit."""

CHIPS: Final = (40, 100, 200, 400)
DISTANCES: Final = (4.0, 5.0)
"""How far the slow chip is from the middle of the healthy ones, in their standard deviations."""

SHAPES: Final = (
    Sum(np.inf, 0.25), Sum(np.inf, 0.45), Sum(3.0, 0.6), Sum(4.0, 0.6),
    Shape(8.0, 0.0), Shape(5.0, 0.0), Shape(3.0, 0.0),
)  # fmt: skip
"""Normal values with an exponential or a Student's part, and Student's distributions."""

ROUNDS: Final = 300
PACE: Final = 4.0
"""Steps in which the mixture is found, and how fast a shape gains weight on which the test is too large."""

SPREAD: Final = 0.02
"""Standard deviation of the chips that the audit is given, log units."""

_PLACES: Final = np.linspace(-30, 60, 90_001)
"""Where distributions are tabulated, in standard deviations."""


@dataclass(frozen=True)
class NearNormal:
    """A shape with the location and scale at which it is nearest to the standard normal distribution."""

    shape: Shape | Sum

    @cached_property
    def _fit(self) -> tuple[float, float]:
        """Location and scale of the least Kullback-Leibler divergence from normal."""
        x = np.linspace(-8, 8, 2001)
        normal = np.exp(-x * x / 2)
        found = (
            (float(-(normal * np.log(self._density(x, middle, scale) + 1e-300)).sum()), middle, scale)
            for middle in np.arange(-0.4, 0.41, 0.02).tolist()
            for scale in np.exp(np.arange(-0.5, 0.3, 0.02)).tolist()
        )
        return min(found)[1:]

    def _density(self, x: Floats, middle: float, scale: float) -> Floats:
        return np.asarray(self.shape.density((x - middle) / scale) / scale)

    def log_likelihood(self, fleets: Floats) -> Floats:
        """Of fleets (fleets, chips), by fleet."""
        return np.asarray(np.log(self._density(fleets, *self._fit) + 1e-300).sum(axis=1))

    def draw(self, fleets: int, chips: int, random: np.random.Generator) -> Floats:
        """Healthy fleets, (fleets, chips)."""
        below = np.cumsum(self._density(_PLACES, *self._fit))
        return np.interp(random.random((fleets, chips)), below / below[-1], _PLACES)


def one_slow(fleets: int, chips: int, distance: float, random: np.random.Generator) -> Floats:
    """Normal fleets (fleets, chips) whose first chip is slow; larger is slower."""
    found = random.normal(size=(fleets, chips))
    found[:, 0] += distance
    return found


def _likelihood_with_a_slow_one(fleets: Floats, distance: float) -> Floats:
    normal = -(fleets**2 + np.log(2 * np.pi)).sum(axis=1) / 2
    return np.asarray(normal + np.log(np.exp(distance * fleets - distance**2 / 2).mean(axis=1)))


def bound(chips: int, distance: float, fleets: int, random: np.random.Generator) -> float:
    """The share of fleets with one slow chip that the best test tells from healthy ones of every shape."""
    shapes = [NearNormal(shape) for shape in SHAPES]

    def of_shapes(given: Floats) -> Floats:
        return np.array([shape.log_likelihood(given) for shape in shapes])

    healthy = [shape.draw(fleets, chips, random) for shape in shapes]
    against = np.concatenate([of_shapes(given) for given in healthy], axis=1)
    for_one = np.concatenate([_likelihood_with_a_slow_one(given, distance) for given in healthy])
    of_shape = np.repeat(np.arange(len(shapes)), fleets)
    weight, limit = np.full(len(shapes), 1 / len(shapes)), np.inf
    for _ in range(ROUNDS):
        ratio = for_one - np.logaddexp.reduce(against + np.log(weight)[:, None], axis=0)
        order = np.argsort(-ratio)
        share = np.cumsum(weight[of_shape[order]] / fleets)
        limit = float(ratio[order][np.searchsorted(share, SIZE)])
        size = np.bincount(of_shape[ratio > limit], minlength=len(shapes)) / fleets
        heavier = weight * np.exp(PACE * (size - SIZE))
        weight = heavier / heavier.sum()
    given = one_slow(fleets, chips, distance, random)
    mixed = np.logaddexp.reduce(of_shapes(given) + np.log(weight)[:, None], axis=0)
    return float((_likelihood_with_a_slow_one(given, distance) - mixed > limit).mean())


def knows_they_are_normal(chips: int, distance: float) -> float:
    """The share that a test finds which knows the distribution of healthy chips."""
    normal = NormalDist()
    return 1 - normal.cdf(normal.inv_cdf(1 - SIZE / chips) - distance)


def found_by_the_audit(chips: int, distance: float, fleets: int, random: np.random.Generator) -> float:
    """The share of fleets, each measured once, in which the audit names the slow chip."""
    none, number = np.full(chips, -1), np.arange(chips)
    found = 0
    for values in one_slow(fleets, chips, distance, random):
        run, group = np.zeros(chips, np.int64), np.zeros(0, np.int64)
        population = Population("normal", SPREAD * values, number, run, none, group)
        named = audit([population], SIZE).findings
        found += any(item.level is AuditLevel.CHIP and item.number == 0 for item in named)
    return found / fleets


def _row(chips: int, distance: float, fleets: int) -> tuple[float, float, float]:
    random = np.random.default_rng([chips, int(distance)])
    return (
        knows_they_are_normal(chips, distance), bound(chips, distance, 6 * fleets, random),
        found_by_the_audit(chips, distance, fleets, random),
    )  # fmt: skip


def table_of_bounds(fleets: int) -> Table:
    """The bound from six times as many fleets as the audit is tried on."""
    table = Table(title=f"one slow chip among normal ones, one run each: found in a share of {fleets} fleets")
    for name in (
        "GPUs",
        "spreads away",
        "by a test that knows they are normal",
        "by any test, at most",
        "by the audit",
    ):
        table.add_column(name, justify="right")
    rows = [(chips, distance) for distance in DISTANCES for chips in CHIPS]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting = [pool.submit(_row, *row, fleets) for row in rows]
        for (chips, distance), one in zip(rows, waiting, strict=True):
            table.add_row(str(chips), f"{distance:g}", *(f"{100 * share:.0f} %" for share in one.result()))
    return table
