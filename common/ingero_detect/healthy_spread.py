"""The chance of a value among healthy values, learnt from a population that contains some outliers. Pure.

Larger values are worse. The healthy values come from a family of distributions, `(exp(g t) - 1) / g` of a
Student-like `t`: normal, heavy-tailed, skewed or both. Outliers are a second, broad component above the healthy ones.
Location, scale, shape and the share of outliers are all uncertain, so the chance is averaged over them (the posterior
predictive distribution): a small population, or one whose tail is unclear, gives larger chances and names fewer.
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar, Final

import numpy as np

from ingero_detect.discoveries import adjusted_chances
from ingero_detect.grouped import Floats


@dataclass(frozen=True)
class Prior:
    """How likely shapes of the healthy values are before anything is known: degrees of freedom, and the skew `g`;
    `sums` of two kinds of spread; and shares of outliers, which begin `outliers_from` spreads of the bulk. Every fit
    has its own, because many outliers widen that of all values.

    `heavier`: a tail that is not normal counts as the next heavier one, because the sum of two kinds of spread looks
    lighter in the bulk than it is far out. `tail`: share of the values, the largest healthy ones, whose distances
    bound the chances whatever the shape (`_by_excesses`); 0 for none.
    """

    tails: tuple[tuple[float, float], ...]
    skews: tuple[tuple[float, float], ...]
    outliers: tuple[tuple[float, float], ...] = ((0.0, 0.5), (0.01, 0.2), (0.03, 0.18), (0.08, 0.1), (0.15, 0.02))
    sums: tuple[tuple["Sum", float], ...] = ()
    outliers_from: float = 2.0
    heavier: bool = False
    tail: float = 0.0


@dataclass(frozen=True)
class Sum:
    """Values that differ in some way, and normal ones beside them, such as chips and noise. `share`: of the variance.

    Infinite `freedom`: exponential values, larger ones are further apart (exponentially modified normal; Grushka
    1972), which comes near to most long slow sides; with `sigma` lognormal ones, whose tail is longer. Otherwise
    Student's t. The mean is 0, the variance 1.
    """

    freedom: float
    share: float
    sigma: float = 0.0
    long_tailed: ClassVar[bool] = True

    @cached_property
    def _table(self) -> tuple[Floats, Floats, Floats]:
        """Logarithms of the density and of the upper tail, and the lower tail, at `_PLACES`."""
        wide, narrow, step = math.sqrt(self.share), math.sqrt(1 - self.share), _PLACES[1] - _PLACES[0]
        x, reach = _PLACES / wide, math.ceil(8 * narrow / step)
        if self.sigma:
            mean = math.exp(self.sigma**2 / 2)
            logs = np.log(np.maximum(mean * (1 + x * math.sqrt(math.expm1(self.sigma**2))), 1e-12))
            own = np.exp(-((logs / self.sigma) ** 2) / 2 - logs)
        elif math.isinf(self.freedom):
            own = np.where(x >= -1, np.exp(-1 - np.maximum(x, -1)), 0.0)
        else:
            own = (1 + x * x / (self.freedom - 2)) ** (-(self.freedom + 1) / 2)
        noise = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / narrow) ** 2)
        density = np.maximum(np.convolve(own, noise, mode="same"), 1e-290)
        density /= density.sum() * step
        upper = np.cumsum(density[::-1])[::-1] * step - 0.5 * step * density
        return np.log(density), np.log(np.maximum(upper, 1e-300)), 1 - upper

    def value(self, deviate: float) -> float:
        """The value that corresponds to a standard normal deviate."""
        return float(np.interp(0.5 * math.erfc(-deviate / math.sqrt(2)), self._table[2], _PLACES))

    def density(self, x: Floats) -> Floats:
        """Density of values."""
        found: Floats = np.exp(np.interp(x, _PLACES, self._table[0]))
        return found

    def upper_tail(self, x: Floats) -> Floats:
        """The chance of a larger value."""
        found: Floats = np.exp(np.interp(x, _PLACES, self._table[1]))
        return found


_PLACES: Final = np.linspace(-60.0, 60.0, 12001)

MOSTLY_NORMAL: Final = ((math.inf, 0.9), (15.0, 0.035), (8.0, 0.025), (5.0, 0.02), (3.0, 0.015), (2.0, 0.005))

OF_CHIPS: Final = Prior(
    ((math.inf, 0.85), (15.0, 0.05), (8.0, 0.04), (5.0, 0.03), (3.0, 0.02), (2.0, 0.01)),
    ((-0.4, 0.04), (-0.15, 0.08), (0.0, 0.83), (0.15, 0.01), (0.3, 0.015), (0.45, 0.015), (0.6, 0.01)),
    ((0.0, 0.3), (0.01, 0.22), (0.03, 0.21), (0.08, 0.16), (0.17, 0.11)),
    (
        *((Sum(math.inf, share), 0.03) for share in (0.25, 0.45, 0.65, 0.8, 0.95)),
        *((Sum(freedom, 0.6), 0.03) for freedom in (3.0, 4.0)),
        (Sum(math.inf, 0.85, 0.75), 0.0005),
        (Sum(math.inf, 0.93, 1.0), 0.0015),
    ),
    outliers_from=4.0,
    tail=0.3,
)
"""Chips that differ in a skewed or heavy-tailed way, and noise. What is nearer than outliers is healthy (the zero
assumption; Efron 2004): otherwise a long slow side of healthy chips passes for outliers. Lognormal ones are rare:
whoever expects them oftener finds fewer slow chips among exponential ones, which look the same in the bulk."""

OF_AVERAGES: Final = Prior(
    MOSTLY_NORMAL,
    ((-0.4, 0.02), (-0.15, 0.055), (0.0, 0.8), (0.15, 0.07), (0.3, 0.035), (0.6, 0.02)),
)
"""Averages, such as those of the chips of nodes, are nearer to normal values."""

OF_SINGLE_VALUES: Final = Prior(
    ((math.inf, 0.75), (15.0, 0.05), (8.0, 0.05), (5.0, 0.05), (3.0, 0.05), (2.0, 0.05)),
    ((-0.4, 0.04), (-0.15, 0.08), (0.0, 0.7), (0.15, 0.03), (0.3, 0.05), (0.45, 0.05), (0.6, 0.05)),
    OF_CHIPS.outliers,
    tuple((one, 1.5 * likely) for one, likely in OF_CHIPS.sums),
    outliers_from=3.5,
    tail=0.3,
)
"""The noise of single measurements is part of their spread, so heavy and skewed tails are more likely."""

OF_JOBS: Final = Prior(
    ((math.inf, 0.7), (15.0, 0.09), (8.0, 0.08), (5.0, 0.06), (3.0, 0.05), (2.0, 0.02)),
    ((-0.4, 0.05), (-0.15, 0.1), (0.0, 0.6), (0.15, 0.12), (0.3, 0.08), (0.6, 0.05)),
    heavier=True,
)
"""Medians of several jobs with changing partners, which hide how healthy units differ."""

OF_FEW_JOBS: Final = Prior(
    ((math.inf, 0.5), (15.0, 0.1), (8.0, 0.1), (5.0, 0.1), (3.0, 0.1), (2.0, 0.1)),
    ((-0.4, 0.05), (-0.15, 0.1), (0.0, 0.5), (0.15, 0.15), (0.3, 0.1), (0.6, 0.1)),
    heavier=True,
)
"""Medians of few jobs, or of units that often share them: a slow partner makes any tail."""

HEAVY: Final = 3.0
EXTREME: Final = 0.01
"""How much less likely a tail as heavy as this is together with a skew: it would be heavier than any power."""

OUTLIER_REACH: Final = 6.0
"""Mean distance of most outliers from where they begin, in spreads of the bulk (exponential)."""

FAR_OUTLIERS: Final = 0.1
FARTHEST_OUTLIER: Final = 1000.0
"""Share of outliers that lie anywhere up to this distance, on the log scale: a few nodes that lose half are outliers,
and no proof of a heavy tail."""

QUANTILES: Final = (0.2, 0.5, 0.7)
"""Quantiles that place the grid. Fewer outliers than three tenths do not move them far."""

QUANTILE_DEVIATES: Final = (-0.8416, 0.0, 0.5244)
GRID: Final = np.linspace(-3.2, 3.2, 7)
MOST_POINTS: Final = 600
"""More values than these are joined to blocks in the middle of the distribution, where each alone tells little."""

FEWEST_EXCESSES: Final = 8
"""Values of a tail below which it tells nothing."""

DOUBTED: Final = 0.5
"""Adjusted chance up to which a value may be an outlier: it does not tell the tail of healthy ones at first."""

EXPECTED: Final = 0.05
"""Share of the values at a distance that the tail has to explain for these to be healthy too."""

NEGLIGIBLE: Final = 1e-6
"""Weight, relative to the best fit, below which a fit is left out."""

_TABLE: Final = np.linspace(-10.0, 37.0, 4701)
_FARTHEST: Final = 37.0


@cache
def _log_upper_tail() -> Floats:
    return np.array([math.log(0.5 * math.erfc(z / math.sqrt(2))) for z in _TABLE])


def normal_upper_tail(z: Floats) -> Floats:
    """The chance that a standard normal value exceeds `z`."""
    found: Floats = np.exp(np.interp(z, _TABLE, _log_upper_tail()))
    return found


def normal_deviate(t: Floats, freedom: Floats) -> Floats:
    """The standard normal deviate that is as likely as a Student value (Wallace 1959); the value if all is known."""
    known = np.isinf(freedom)
    nu = np.where(known, 1.0, freedom)
    found: Floats = np.sign(t) * (8 * nu + 1) / (8 * nu + 3) * np.sqrt(nu * np.log1p(t * t / nu))
    return np.where(known, t, found)


def _outlier_density(beyond: Floats) -> Floats:
    """Density of outliers by their distance from where outliers begin, in spreads of the bulk; 0 before that."""
    reached = np.maximum(beyond, 0.0)
    near = np.exp(-reached / OUTLIER_REACH) / OUTLIER_REACH
    far = 1 / (1 + reached) / math.log(1 + FARTHEST_OUTLIER)
    return np.where(beyond > 0, (1 - FAR_OUTLIERS) * near + FAR_OUTLIERS * far, 0.0)


@dataclass(frozen=True)
class Shape:
    """Tail and skew of a distribution around 0 with scale 1."""

    freedom: float
    skew: float

    @property
    def long_tailed(self) -> bool:
        """Whether large values are more likely than normal ones."""
        return self.skew > 0 or not math.isinf(self.freedom)

    @property
    def _factor(self) -> float:
        """Wallace's factor (1959), with which the transformed Student value is nearly normal."""
        return 1.0 if math.isinf(self.freedom) else (8 * self.freedom + 1) / (8 * self.freedom + 3)

    def value(self, deviate: float) -> float:
        """The value that corresponds to a standard normal deviate."""
        t = deviate
        if not math.isinf(self.freedom):
            t = math.copysign(math.sqrt(self.freedom * math.expm1((deviate / self._factor) ** 2 / self.freedom)), t)
        return math.expm1(self.skew * t) / self.skew if self.skew else t

    def density(self, x: Floats) -> Floats:
        """Density of values."""
        z, slope = self.deviates(x)
        found = np.minimum(z * z, 140.0)
        found *= -0.5
        np.exp(found, out=found)
        if slope is not None:
            found *= slope
        found /= math.sqrt(2 * math.pi)
        return found

    def upper_tail(self, x: Floats) -> Floats:
        """The chance of a larger value."""
        return normal_upper_tail(self.deviates(x)[0])

    def deviates(self, x: Floats) -> tuple[Floats, Floats | None]:
        """Standard normal deviates of values, and the derivative: 0 beyond the end of a skewed distribution, `None`
        where it is 1."""
        t, slope, inside = x, None, None
        if self.skew:
            base = 1 + self.skew * x
            inside = base > 1e-9
            inside = None if inside.all() else inside
            base = base if inside is None else np.where(inside, base, 1.0)
            t, slope = np.log(base), 1 / base
            t /= self.skew
        z = t
        if not math.isinf(self.freedom):
            z, of_t = self._of_student(t)
            slope = of_t if slope is None else slope * of_t
        if inside is None:
            return z, slope
        beyond = -math.copysign(_FARTHEST, self.skew)
        return np.where(inside, z, beyond), None if slope is None else np.where(inside, slope, 0.0)

    def _of_student(self, t: Floats) -> tuple[Floats, Floats]:
        """Standard normal deviates of Student values, and the derivative."""
        factor, nu = self._factor, self.freedom
        square = t * t
        square /= nu
        z = np.log1p(square)
        z *= nu
        np.sqrt(z, out=z)
        z *= factor
        np.copysign(z, t, out=z)
        square += 1
        square *= z
        slope: Floats = factor**2 * t
        small = np.abs(t) < 1e-6
        if small.any():
            return z, np.where(small, factor, slope / np.where(small, 1.0, square))
        slope /= square
        return z, slope


def _condensed(ordered: Floats) -> tuple[Floats, Floats]:
    """Sorted values with their weights; of many, those in the middle joined to blocks."""
    n = len(ordered)
    if n <= MOST_POINTS:
        return ordered, np.ones(n)
    ends = min(n // 10, MOST_POINTS // 4)
    edges = np.unique(np.linspace(ends, n - ends, MOST_POINTS // 2).astype(int))
    weight = np.diff(edges).astype(np.float64)
    middle = np.add.reduceat(ordered[: n - ends], edges[:-1]) / weight
    ones = np.ones(ends)
    return np.concatenate((ordered[:ends], middle, ordered[n - ends :])), np.concatenate((ones, weight, ones))


def _shapes(prior: Prior) -> list[tuple[Shape | Sum, float]]:
    """Every shape of a prior and how likely it is: by tail and skew, then the sums."""
    found = list[tuple[Shape | Sum, float]]()
    for freedom, likely_tail in prior.tails:
        for skew, likely_skew in prior.skews:
            extreme = EXTREME if freedom <= HEAVY and skew > 0 else 1.0
            found.append((Shape(freedom, skew), likely_tail * likely_skew * extreme))
    return found + list(prior.sums)


def outlier_chances(
    values: Floats, smallest_spread: float = 0.0, prior: Prior = OF_CHIPS, asked: Floats | None = None
) -> Floats:
    """For every value, or every one that is `asked`, the chance that a healthy one is at least as large.

    At least three values are needed.
    """
    ordered = np.sort(values)
    wanted = values if asked is None else asked
    if round(prior.tail * len(ordered)) < FEWEST_EXCESSES:
        return _averaged_chances(ordered, smallest_spread, prior, wanted)[0]
    found, long_tailed = _averaged_chances(ordered, smallest_spread, prior, np.concatenate((wanted, ordered)))
    of_wanted, of_all = np.split(found, [len(wanted)])
    return np.maximum(of_wanted, long_tailed * _by_excesses(ordered, of_all, prior.tail, wanted))


def _by_excesses(ordered: Floats, chances: Floats, share: float, wanted: Floats) -> Floats:
    """The least chances of values if those of the tail are exponential, with what is not known of its mean.

    The excesses over the smallest of the tail (Pickands 1975) have a predictive distribution with a heavier tail than
    theirs, the heavier the fewer they are. `chances`: of the sorted values; those that are most likely outliers are
    no part of the tail, unless it explains how many there are. 0 below the tail, and where outliers leave none.
    """
    count, size = len(ordered), round(share * len(ordered))
    end = count - int((adjusted_chances(chances) <= DOUBTED).sum())
    if end in (count, 0) or end <= size:
        return np.zeros(len(wanted))

    def tail(beyond: Floats) -> Floats:
        begin = ordered[end - size - 1]
        mean = max(float(ordered[end - size : end].mean() - begin), 1e-9)
        excess = np.maximum(beyond - begin, 0.0)
        return np.where(beyond > begin, (size + 1) / count * (1 + excess / (size * mean)) ** -size, 0.0)

    while end < count and float(tail(ordered[end : end + 1])[0]) * count > EXPECTED * (count - end):
        end += 1
    return tail(wanted)


def _averaged_chances(ordered: Floats, smallest_spread: float, prior: Prior, wanted: Floats) -> tuple[Floats, float]:
    """The chances of values among sorted ones, averaged over all that these leave open.

    Also how likely it is that the healthy ones have a longer upper tail than normal ones.
    """
    points, weight = _condensed(ordered)
    low, middle, high = np.quantile(ordered, QUANTILES)
    span = QUANTILE_DEVIATES[2] - QUANTILE_DEVIATES[0]
    spread = max((high - low) / span, smallest_spread, 1e-12)
    width = GRID / math.sqrt(len(ordered))
    factors = np.exp(1.1 * width)
    weights, chances = [], []
    for shape, likely in _shapes(prior):
        ends = [shape.value(deviate) for deviate in QUANTILE_DEVIATES]
        scale = spread * span / (ends[2] - ends[0])
        location = np.repeat(middle - scale * ends[1] + 1.3 * scale * width, len(GRID))[:, None]
        scales = np.tile(scale * factors, len(GRID))[:, None]
        bulk_spreads = scales * (ends[2] - ends[0]) / span
        begin = location + scales * ends[1] + prior.outliers_from * bulk_spreads
        among = points > begin.min()
        outlier = _outlier_density((points[among] - begin) / bulk_spreads) / bulk_spreads
        bulk = float(weight[~among].sum())
        healthy = shape.density((points - location) / scales)
        healthy /= scales
        healthy += 1e-9 / spread
        of_bulk, upper = np.log(healthy[:, ~among]) @ weight[~among], healthy[:, among]
        logs = [
            of_bulk
            + bulk * math.log1p(-share)
            + np.log((1 - share) * upper + share * outlier) @ weight[among]
            + math.log(often)
            for share, often in prior.outliers
        ]
        weights.append(np.logaddexp.reduce(logs, axis=0) + math.log(likely))
        chances.append((shape, location, scales))
    most = max(float(one.max()) for one in weights)
    total, long_tailed, found = 0.0, 0.0, np.zeros(len(wanted))
    for place, logs_of in enumerate(weights):
        likelihood = float(np.exp(logs_of - most).sum())
        total += likelihood
        freedom = chances[place][0].freedom
        long_tailed += likelihood * chances[place][0].long_tailed
        next_one = prior.heavier and not math.isinf(freedom) and freedom != prior.tails[-1][0]
        judge = place + len(prior.skews) if next_one else place
        share = np.exp(weights[judge] - weights[judge].max())
        share *= likelihood / share.sum()
        some = share > NEGLIGIBLE
        if some.any():
            shape, location, scales = chances[judge]
            found += share[some] @ shape.upper_tail((wanted - location[some]) / scales[some])
    return np.clip(found / total, 1e-300, 1.0), long_tailed / total
