"""Which GPUs, nodes and groups of nodes are chronically slower than their like, at a false-discovery rate. Pure.

Units of a population (one model, one benchmark) are compared with each other. A unit is slow if its effect over all
runs is an outlier among the effects of healthy units, and its loss is large enough to matter. A node, or a group such
as a rack, is judged by most of its members, so that one slow member does not accuse it; members of a node that is at
another level than most, named or not, are compared with each other. All hypotheses of all populations and levels
share one false-discovery rate (Benjamini and Hochberg 1995).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from typing import Final

import numpy as np

from ingero_detect.chip_effects import RunValues, UnitEffects, bad_value_chances, unit_effects
from ingero_detect.discoveries import adjusted_chances
from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.healthy_spread import outlier_chances
from ingero_detect.slowdowns import Slowdown, slowdowns
from ingero_detect.threshold import MAD_TO_SIGMA

FEWEST_UNITS: Final = 12
"""Units of a population below which nothing is said about its chips."""

FEWEST_PARENTS: Final = 8
"""Nodes (or groups) below which nothing is said about nodes (or groups)."""

FEWEST_SIBLINGS: Final = 4
"""Members of a node from which a member is compared with the others of it as well."""

CHRONIC_RUNS: Final = 2
"""Measurements from which it is checked that most of them are slow; of two, both."""

IMPLAUSIBLE_SPEED: Final = np.log(1.5)
"""A unit faster than this is an error of the measurement or of the model's name; it is left out."""

FAR_FAST: Final = 10.0
"""With one value per chip, spreads by which one is too fast if no other is half as far: an error as well."""

FAST_SHARE: Final = 0.01
"""Most of the chips that are left out as too fast for this reason; one at least."""

SMALLEST_SPREAD: Final = 5e-4
"""Least spread of healthy units, for values that are rounded."""

MEDIAN_VARIANCE: Final = 1.35
"""Variance of the median of a few normal values relative to their mean."""

MIRROR: Final = 1.25
"""With one value per chip, how much larger a loss has to be than the largest gain."""

LEAST_SHARE: Final = 0.2
"""Least part of the false-discovery rate that a level has, however few nodes there are (weights: Genovese 2006)."""

FAR: Final = 6.0
"""Spreads of the other nodes by which one is at another level, although nobody is named."""

KIND_SHARE: Final = 0.15
KIND_MEMBERS: Final = 3
"""Share and number of nodes that are no faults, but of another kind, if they are slow by the same."""

SAME_LEVEL: Final = 2.0
"""Spreads of the other nodes that those of one kind differ by at most."""

LIKELY: Final = 0.05
"""Chance below which it is also asked whether single bad values explain it."""

PRIOR: Final = 1.0
PARENTS_PRIOR: Final = 0.5
"""Bad values, and as many good ones, that are added to those which are counted: of nodes, which are few, fewer."""

LEVEL_SHARE: Final = 0.15
LEVELS_APART: Final = 5.0
"""Least share of chips at a second level, and spreads within the levels between them (normal values halved: 2.7)."""

INTERVAL: Final = 1.96

UNIFORM: Final = 3**-0.5
"""Standard deviation of values anywhere up to a distance, relative to it."""

GOLDEN: Final = (5**0.5 - 1) / 2
"""Multiples of this, without their whole parts, cover the numbers from 0 to 1 evenly (Weyl 1916)."""


class AuditLevel(StrEnum):
    """What a finding is about."""

    CHIP = "chip"
    NODE = "node"
    GROUP = "group"


@dataclass(frozen=True)
class Population:
    """Measurements of units that can be compared. `slowness` (logarithmic), `unit`, `run` (-1: none) by measurement.

    `node` by unit and `group` by node, -1 where it is not known. `rounding`: half of the step that values have,
    relative to them; where their noise is larger it is part of the noise.
    """

    name: str
    slowness: Floats
    unit: Ints
    run: Ints
    node: Ints
    group: Ints
    rounding: float = 0.0


@dataclass(frozen=True)
class SlowUnit:
    """A finding. `loss` is a share of the usual speed, with a 95 % interval; `members` are the units it concerns."""

    population: int
    level: AuditLevel
    number: int
    loss: float
    loss_low: float
    loss_high: float
    chance: float
    adjusted: float
    members: tuple[int, ...]
    measurements: int
    chronic: float | None


@dataclass(frozen=True)
class PopulationResult:
    """What was learnt about one population. `refused` is the reason why its chips (or a level) were not judged."""

    name: str
    units: int
    nodes: int
    groups: int
    spread: float
    fit: UnitEffects
    centre: float
    refused: str = ""
    notes: tuple[str, ...] = ()
    apart: tuple[tuple[AuditLevel, int, float], ...] = ()
    """Nodes and groups that are not named, but far slower than the rest: level, number and loss."""
    implausible: tuple[tuple[int, float], ...] = ()
    """Chips that are left out because they are too fast: number and by what share."""
    later: tuple[tuple[AuditLevel, int, Slowdown], ...] = ()
    """Those that are not named, but have become slower: level, number and since when."""


@dataclass(frozen=True)
class AuditResult:
    """Findings, the largest loss first, and the populations in the order in which they were given."""

    findings: tuple[SlowUnit, ...]
    populations: tuple[PopulationResult, ...]
    hypotheses: int


def robust_spread(values: Floats) -> float:
    """Standard deviation by the median absolute deviation, 0 for fewer than two values."""
    return float(MAD_TO_SIGMA * np.median(np.abs(values - np.median(values)))) if len(values) > 1 else 0.0


def unrounded(values: Floats, rounding: float) -> Floats:
    """The values, sorted and spread evenly over what may be rounded to them, up to `rounding` on both sides."""
    return np.sort(values) + rounding * (2 * (np.arange(len(values)) * GOLDEN % 1) - 1)


@cache
def _order_statistics(members: int, drop: int) -> tuple[float, float]:
    """Mean and variance of the average of `members` standard normal values without the `drop` largest."""
    draws = np.random.default_rng(members).normal(size=(4000, members))
    kept = np.sort(draws, axis=1)[:, : members - drop].mean(axis=1)
    return float(kept.mean()), float(kept.var())


def _dropped(members: int) -> int:
    """How many of the slowest members do not count: one less than a majority, one of two."""
    return 1 if members == 2 else (members - 1) // 2


@dataclass
class _Tier:
    """Units, nodes or groups of a population. `judged`: those with values, or with at least two such members.

    `effect` is what is tested, `loss` the median of the members' effects, and most of them have at least `least`.
    `by_run`: values in single runs, of which the share `chronic` is as slow. `tested`: whether there are enough to
    compare them with each other. `single`: whether chips have one value. `few`: whether they are chips with one or
    two. `rounding`: half of the step of values that is as large as their noise.
    """

    level: AuditLevel
    effect: Floats
    error: Floats
    parent: Ints
    judged: Bools
    loss: Floats
    least: Floats
    by_run: RunValues
    chronic: Floats
    tested: bool = True
    single: bool = False
    few: bool = False
    rounding: float = 0.0
    chance: Floats = field(default_factory=lambda: np.ones(0))
    below: Floats = field(default_factory=lambda: np.ones(0))
    """Distance by which a member is slower than what it is compared with."""

    @cached_property
    def below_siblings(self) -> Floats:
        """Every member's effect minus the median of the other members of its parent; NaN with too few of them."""
        found = np.full(len(self.effect), np.nan)
        for parent in np.unique(self.parent[self.judged & (self.parent >= 0)]).tolist():
            members = np.flatnonzero(self.judged & (self.parent == parent))
            if len(members) >= FEWEST_SIBLINGS:
                own = self.effect[members]
                others = np.broadcast_to(own, (len(own), len(own)))[~np.eye(len(own), dtype=bool)]
                found[members] = own - np.median(others.reshape(len(own), -1), axis=1)
        return found

    @cached_property
    def _siblings(self) -> float:
        """Typical number of members of a parent, of parents with enough of them."""
        has = np.isfinite(self.below_siblings)
        return float(np.median(np.bincount(self.parent[has])[np.unique(self.parent[has])])) if has.any() else 0.0

    @cached_property
    def spread_within(self) -> float:
        """Robust spread of members within their parents; NaN if too few have siblings."""
        apart = self.below_siblings[np.isfinite(self.below_siblings)]
        if len(apart) < FEWEST_UNITS:
            return float("nan")
        return robust_spread(apart) / float(np.sqrt(1 + MEDIAN_VARIANCE / (self._siblings - 1)))

    def _shrunken(self) -> Floats:
        """Effects minus the part of their siblings' level that differs between parents beyond chance."""
        within, whole = self.spread_within, robust_spread(self.effect[self.judged])
        between = max(0.0, whole**2 - within**2) if np.isfinite(within) else 0.0
        if between == 0:
            return self.effect
        share = between / (between + MEDIAN_VARIANCE * within**2 / (self._siblings - 1))
        level = self.effect - self.below_siblings
        return self.effect - share * np.where(np.isfinite(level), level - np.nanmedian(level), 0.0)

    def spread_of(self, rows: Bools | Ints) -> float:
        """Spread of some of the effects, at least their typical error."""
        return max(robust_spread(self.effect[rows]), float(np.median(self.error[rows])), SMALLEST_SPREAD)

    def mirrored(self) -> float:
        """Least loss where chips have one value: more than the gain of the fastest, which is by chance."""
        gain = float(np.median(self.loss[self.judged]) - self.loss[self.judged].min()) if self.single else 0.0
        return MIRROR * gain

    def _chances(self, compared: Floats) -> Floats:
        errors, compared = self.error[self.judged], compared[self.judged]
        spread = float(np.sqrt(max(robust_spread(compared) ** 2 - float(np.median(errors**2)), 0.0)))
        found = np.ones(len(self.effect))
        deviates = compared / np.hypot(max(spread, SMALLEST_SPREAD), errors)
        healthy = unrounded(compared, self.rounding) / np.hypot(max(spread, SMALLEST_SPREAD), np.median(errors))
        found[self.judged] = outlier_chances(healthy if self.rounding else deviates, 1e-3, self.few, deviates)
        return found

    def of_parents(self, parents: int) -> Floats:
        """Chance that most members of a parent are as slow as they are, whatever they share (Rueger 1978)."""
        alone = self._shrunken() is self.effect or not self.tested
        chance = self.chance if alone else self._chances(self.effect - float(np.median(self.effect[self.judged])))
        found = np.ones(parents)
        for number in np.unique(self.parent[self.judged & (self.parent >= 0)]).tolist():
            own = np.sort(chance[self.judged & (self.parent == number)])
            most = len(own) // 2 + 1
            if len(own) >= 2:
                found[number] = min(1.0, len(own) / most * own[most - 1])
        return found

    def judge(self, inside: Bools, members: Floats) -> None:
        """Set the chances. Those `inside` of a named parent are compared with their siblings only.

        `members`: chances by the members' own chances, 1 where these say nothing.
        """
        siblings = self.below_siblings
        self.below = self.loss - float(np.median(self.loss[self.judged]))
        self.below[inside] = np.where(np.isfinite(siblings), siblings, 0.0)[inside]
        self.chance = self._chances_by_spread(inside, members) if self.tested else np.where(inside, 1.0, members)
        self._allow_for_bad_values(inside)

    def _chances_by_spread(self, inside: Bools, members: Floats) -> Floats:
        siblings, compared = self.below_siblings, self._shrunken()
        has = np.isfinite(siblings)
        own = self._chances(np.where(inside & has, siblings, compared - float(np.median(compared[self.judged]))))
        own[inside & ~has] = 1.0
        several = self.level is not AuditLevel.CHIP
        return np.where(inside, own, np.minimum(1.0, 2 * np.minimum(own, members))) if several else own

    def _allow_for_bad_values(self, inside: Bools) -> None:
        """Raise chances to those of single bad values; those `inside` are compared with their siblings' level.

        How often values are bad is told by those with several. Where most have one value, they are too few to tell
        more than what they show about those with one; and those with one tell about the few with several.
        """
        one, several = self.by_run.count == 1, self.by_run.count >= CHRONIC_RUNS
        prior = PRIOR if self.level is AuditLevel.CHIP else PARENTS_PRIOR
        if self.single:
            self._allow_for(several, inside, one | several, prior)
            self._allow_for(one, inside, several, 0.0)
        else:
            self._allow_for(one | several, inside, several, prior)

    def _allow_for(self, asked: Bools, inside: Bools, telling: Bools, prior: float) -> None:
        likely = np.flatnonzero(self.judged & asked & (self.chance < LIKELY))
        if not len(likely) or not telling.any():
            return
        centre = _usual_value(self.by_run, self.judged)
        others = self.effect - self.below_siblings - float(np.median(self.effect[self.judged]))
        level = centre + np.where(inside & np.isfinite(others), others, 0.0)
        explained = bad_value_chances(self.by_run, likely, level[likely], centre, telling, prior)
        self.chance[likely] = np.maximum(self.chance[likely], explained)

    def chronically_slow(self) -> Bools:
        """Those that are as slow in most of their runs; of two, in both."""
        return (self.by_run.count < CHRONIC_RUNS) | (self.chronic > 0.5)


def _usual_value(by_run: RunValues, judged: Bools) -> float:
    """The median of the medians of units."""
    medians = grouped_median(by_run.values, by_run.of, len(judged))[1][judged]
    return float(np.nanmedian(medians)) if np.isfinite(medians).any() else 0.0


def _parents(tier: _Tier, level: AuditLevel, parents: int, above: Ints) -> _Tier:
    """The next level: a parent's effect is the mean of its members without the slowest, less than half of them."""
    centre = float(np.median(tier.effect[tier.judged]))
    within = tier.spread_within
    within = robust_spread(tier.effect[tier.judged]) if np.isnan(within) else within
    effect, error, loss, least = (np.zeros(parents) for _ in range(4))
    by_run = tier.by_run.of_parents(np.where(tier.judged, tier.parent, -1), parents)
    judged = np.zeros(parents, np.bool_)
    for number in range(parents):
        members = np.flatnonzero(tier.judged & (tier.parent == number))
        if len(members) < 2:
            continue
        size, drop = len(members), _dropped(len(members))
        mean, variance = _order_statistics(size, drop)
        own = np.sort(tier.effect[members] - centre)
        effect[number] = own[: size - drop].mean() - mean * within
        error[number] = np.hypot(np.sqrt(variance) * within, tier.rounding * UNIFORM)
        loss[number], least[number] = np.median(own), own[(size - 1) // 2]
        judged[number] = True
    usual = float(np.median(loss[judged])) if judged.any() else 0.0
    chronic = by_run.share_above(_usual_value(by_run, judged) + 0.5 * (loss - usual))
    tested = bool(judged.sum() >= FEWEST_PARENTS)
    return _Tier(
        level, effect, error, above, judged, loss, least, by_run, chronic, tested, tier.single, rounding=tier.rounding
    )


def two_levels(effects: Floats) -> tuple[int, float]:
    """How many are at a slower level of their own, and by how much; 0 of them if there is one level.

    Sorted effects are split where the squares within both parts are least (Fisher 1958).
    """
    ordered, n = np.sort(effects), len(effects)
    slower = np.arange(int(np.ceil(LEVEL_SHARE * n)), n // 2 + 1)
    if not len(slower) or slower[0] < 2:
        return 0, 0.0
    sums, squares = np.cumsum(ordered), np.cumsum(ordered**2)
    faster = n - slower
    low, high = sums[faster - 1] / faster, (sums[-1] - sums[faster - 1]) / slower
    within = np.maximum(squares[-1] - faster * low**2 - slower * high**2, 0.0)
    best = int(within.argmin())
    distance = float(high[best] - low[best])
    apart = distance > LEVELS_APART * max(float(np.sqrt(within[best] / n)), SMALLEST_SPREAD)
    return (int(slower[best]), distance) if apart else (0, 0.0)


def _too_fast(effect: Floats, usable: Bools) -> Bools:
    """The few units that are far faster than all others, which are at most half as far from the median."""
    order = np.flatnonzero(usable)[np.argsort(effect[usable])]
    median, spread = float(np.median(effect[usable])), max(robust_spread(effect[usable]), SMALLEST_SPREAD)
    gain = median - effect[order]
    found = np.zeros(len(effect), np.bool_)
    for many in range(max(1, int(FAST_SHARE * len(order))), 0, -1):
        if gain[many - 1] > max(FAR_FAST * spread, 2 * gain[many]):
            found[order[:many]] = True
            break
    return found


class _Judged:
    """One population: its levels, from chips upwards, and what is said about it."""

    def __init__(self, population: Population) -> None:
        self.population = population
        units, nodes = len(population.node), len(population.group)
        groups = int(population.group.max(initial=-1)) + 1
        fit = self.fit = unit_effects(population.slowness, population.unit, population.run, units)
        usable = np.isfinite(fit.effect) & (fit.count > 0)
        centre = float(np.median(fit.effect[usable])) if usable.any() else 0.0
        implausible = usable & (centre - fit.effect > IMPLAUSIBLE_SPEED)
        usable &= ~implausible
        if usable.sum() >= FEWEST_UNITS and np.median(fit.count[usable]) < 2:
            implausible |= _too_fast(fit.effect, usable)
            usable &= ~implausible
        self.centre, self.tiers, self.refused = centre, list[_Tier](), ""
        self.usable, notes = usable, []
        self._implausible = tuple(
            (number, float(np.expm1(centre - fit.effect[number]))) for number in np.flatnonzero(implausible).tolist()
        )
        if fit.apart:
            notes.append(f"{fit.apart} measurements of runs that connect too few chips, left out")
        if usable.sum() < FEWEST_UNITS:
            self.refused = f"{usable.sum()} comparable chips; fewer than {FEWEST_UNITS} show no usual spread"
        else:
            rounding = 0.0 if fit.noise > population.rounding else population.rounding
            error = np.hypot(np.nan_to_num(np.where(usable, fit.error, 0.0)), rounding * UNIFORM)
            effect = np.where(usable, fit.effect, 0.0)
            single = bool(np.median(fit.count[usable]) < 2)
            few = bool(np.median(fit.count[usable]) < 3)
            chips = _Tier(
                AuditLevel.CHIP, effect, error, population.node, usable, effect, effect, fit.by_run, fit.chronic,
                True, single, few, rounding,
            )  # fmt: skip
            self.tiers = [chips]
            for level, count, above in ((AuditLevel.NODE, nodes, population.group), (AuditLevel.GROUP, groups, None)):
                tier = _parents(self.tiers[-1], level, count, np.full(count, -1) if above is None else above)
                if not tier.judged.any():
                    break
                if not tier.tested:
                    notes.append(f"{tier.judged.sum()} {level}s, too few to compare: named if most members are slow")
                self.tiers.append(tier)
        self.notes = tuple(notes)
        self.named: list[Bools] = [np.zeros(len(tier.effect), np.bool_) for tier in self.tiers]
        self._set_apart = [np.zeros_like(named) for named in self.named]
        self._known: list[Bools | None] = [None for _ in self.tiers]
        self._members_say = [np.ones(len(tier.effect)) for tier in self.tiers]
        self.adjusted: list[Floats] = [np.ones(len(tier.effect)) for tier in self.tiers]

    def judge(self) -> None:
        """Set the chances of all levels, given what is named on the level above."""
        inside = np.zeros(0, np.bool_)
        first = all(known is None for known in self._known)
        covered = list[Bools]()
        for place in range(len(self.tiers) - 1, -1, -1):
            tier = self.tiers[place]
            above = inside[tier.parent] & (tier.parent >= 0) if len(inside) else np.zeros(len(tier.effect), np.bool_)
            covered.insert(0, above)
            inside = self.named[place] | self._set_apart[place] | above
        for place, (tier, above) in enumerate(zip(self.tiers, covered, strict=True)):
            known = self._known[place]
            if known is None or not np.array_equal(above, known):
                tier.judge(above, self._members_say[place])
                self._known[place] = above
            if first and place + 1 < len(self.tiers):
                self._members_say[place + 1] = tier.of_parents(len(self.tiers[place + 1].effect))

    def chances(self) -> list[Floats]:
        """Chances of what is judged, by level, weighted so that every level has its part of the rate."""
        found = [tier.chance[tier.judged] for tier in self.tiers]
        total = sum(map(len, found))
        shares = [max(LEAST_SHARE, len(part) / total) for part in found]
        weights = [share / sum(shares) * total / len(part) for share, part in zip(shares, found, strict=True)]
        return [np.minimum(1.0, part / weight) for part, weight in zip(found, weights, strict=True)]

    def reported(self, place: int) -> Bools:
        """The named ones of a level. Nodes that are many and slow by the same are of another kind, and left out."""
        tier, named = self.tiers[place], self.named[place]
        rest = tier.judged & ~named
        count = int(named.sum())
        if not place or count < KIND_MEMBERS or count < KIND_SHARE * tier.judged.sum() or not rest.any():
            return named
        alike = robust_spread(tier.effect[named]) <= SAME_LEVEL * tier.spread_of(rest)
        return np.zeros_like(named) if alike else named

    def _apart(self, place: int, smallest: float) -> Bools:
        """Of a level above chips: not named, but at another level than most."""
        tier = self.tiers[place]
        free = tier.judged & ~self.reported(place)
        if place + 1 < len(self.tiers):
            free &= ~(self.named[place + 1][tier.parent] & (tier.parent >= 0))
        if not free.any():
            return free
        loss = tier.loss - float(np.median(tier.loss[tier.judged]))
        far = tier.effect - np.median(tier.effect[free]) > FAR * tier.spread_of(free)
        return free & far & (loss >= smallest) & (tier.least >= 0.5 * tier.loss)

    def apart(self) -> tuple[tuple[AuditLevel, int, float], ...]:
        """Nodes and groups, not named, at another level than most: faults, or of a kind that no label tells."""
        return tuple(
            (tier.level, number, float(-np.expm1(float(np.median(tier.loss[tier.judged])) - tier.loss[number])))
            for place, tier in enumerate(self.tiers[1:], 1)
            for number in np.flatnonzero(self._set_apart[place]).tolist()
        )

    def accept(self, adjusted: Sequence[Floats], fdr: float, smallest: float, top: int) -> None:
        """Name what is significant and large enough, on the levels from `top` upwards."""
        for place, (tier, found) in enumerate(zip(self.tiers, adjusted, strict=True)):
            self.adjusted[place][tier.judged] = found
            if place >= top:
                enough = tier.judged & (self.adjusted[place] <= fdr) & (tier.below >= max(smallest, tier.mirrored()))
                most = tier.level is AuditLevel.CHIP or tier.least >= 0.5 * tier.loss
                self.named[place] = enough & most & tier.chronically_slow()
        self._set_apart[1:] = [self._apart(place, smallest) for place in range(1, len(self.tiers))]

    def result(self, fdr: float, smallest: float) -> PopulationResult:
        """What is said about the population as a whole; the spread is that of units that are not named."""
        quiet = self.usable.copy()
        for place in range(len(self.tiers) - 1, -1, -1):
            quiet[self._members(place, np.flatnonzero(self.named[place]))] = False
        effects = self.fit.effect[quiet if quiet.any() else self.usable]
        centre = float(np.median(effects)) if len(effects) else self.centre
        nodes = len(np.unique(self.population.node[self.usable & (self.population.node >= 0)]))
        return PopulationResult(
            self.population.name, int(self.usable.sum()), nodes, int(self.population.group.max(initial=-1)) + 1,
            robust_spread(effects), self.fit, centre, self.refused, self.notes + self._levels(quiet, smallest),
            self.apart(), self._implausible, self._later(fdr, smallest) if self.fit.runs else (),
        )  # fmt: skip

    def _levels(self, quiet: Bools, smallest: float) -> tuple[str, ...]:
        """A note if chips with several values, that are not named and not on nodes apart, are at two levels."""
        free = quiet & (self.fit.count >= CHRONIC_RUNS)
        for place, apart in enumerate(self._set_apart):
            free[self._members(place, np.flatnonzero(apart))] = False
        slower, distance = two_levels(self.fit.effect[free]) if self.tiers else (0, 0.0)
        if not slower or distance < smallest:
            return ()
        share = f"{-100 * np.expm1(-distance):.1f} %"
        return (
            f"{slower} of {free.sum()} chips are {share} slower, at a level of their own: too many to be outliers, "
            "so none is named; faults, or of another kind that no column tells",
        )

    def _later(self, fdr: float, smallest: float) -> tuple[tuple[AuditLevel, int, Slowdown], ...]:
        """What has become slower and is not named, without members of what has."""
        found = list[tuple[AuditLevel, int, Slowdown]]()
        inside = np.zeros(0, np.bool_)
        for place in range(len(self.tiers) - 1, -1, -1):
            tier = self.tiers[place]
            above = inside[tier.parent] & (tier.parent >= 0) if len(inside) else np.zeros(len(tier.effect), np.bool_)
            inside = above | self.named[place]
            for number, slowdown in slowdowns(tier.by_run, tier.judged & ~inside, fdr, smallest).items():
                found.append((tier.level, number, slowdown))
                inside[number] = True
        return tuple(found)

    def _members(self, place: int, numbers: Ints) -> Ints:
        """Units of the named ones on a level."""
        for below in range(place - 1, -1, -1):
            numbers = np.flatnonzero(np.isin(self.tiers[below].parent, numbers) & self.tiers[below].judged)
        return numbers

    def findings(self, number: int, spread: float) -> list[SlowUnit]:
        """All findings."""
        return [
            self._finding(number, tier.level, place, item, spread)
            for place, tier in enumerate(self.tiers)
            for item in np.flatnonzero(self.reported(place)).tolist()
        ]

    def _finding(self, number: int, level: AuditLevel, place: int, item: int, spread: float) -> SlowUnit:
        tier, members = self.tiers[place], self._members(place, np.array([item]))
        below = tier.below[item]
        error = tier.error[item] if level is not AuditLevel.CHIP or self.fit.count[item] > 1 else spread
        if not error > 0:
            error = spread
        count = int(self.fit.count[members].sum())
        chronic = float(tier.chronic[item]) if tier.by_run.count[item] >= CHRONIC_RUNS else None
        low, middle, high = (1 - np.exp(-(below + side * INTERVAL * error)) for side in (-1, 0, 1))
        return SlowUnit(
            number, level, item, float(middle), float(low), float(high), float(tier.chance[item]),
            float(self.adjusted[place][item]), tuple(members.tolist()), count, chronic,
        )  # fmt: skip


def audit(populations: Sequence[Population], fdr: float = 0.05, min_loss: float = 0.02) -> AuditResult:
    """Judge all populations together. `min_loss`: share of the usual speed below which a loss is not reported."""
    judged = [_Judged(population) for population in populations]
    smallest = -float(np.log1p(-min_loss))
    hypotheses = 0
    for top in (2, 1, 0):
        for one in judged:
            one.judge()
        parts = [one.chances() for one in judged]
        flat = [part for one in parts for part in one]
        hypotheses = sum(map(len, flat))
        if not hypotheses:
            break
        adjusted = iter(
            np.split(adjusted_chances(np.concatenate(flat)), np.cumsum([len(part) for part in flat])[:-1])
        )
        for one, mine in zip(judged, parts, strict=True):
            one.accept([next(adjusted) for _ in mine], fdr, smallest, top)
    results = [one.result(fdr, smallest) for one in judged]
    findings = [
        item
        for number, (one, result) in enumerate(zip(judged, results, strict=True))
        for item in one.findings(number, max(result.spread, SMALLEST_SPREAD))
    ]
    findings.sort(key=lambda item: (-item.loss, item.population, item.level, item.number))
    return AuditResult(tuple(findings), tuple(results), hypotheses)
