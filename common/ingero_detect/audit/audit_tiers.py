"""Levels of an audit: chips, nodes, groups, with what their chances are computed from. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from typing import Final

import numpy as np

from ingero_detect.audit.chip_effects import RunValues, bad_value_chances
from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.healthy_spread import (
    OF_AVERAGES,
    OF_CHIPS,
    OF_FEW_JOBS,
    OF_JOBS,
    OF_SINGLE_VALUES,
    normal_deviate,
    normal_upper_tail,
    outlier_chances,
)
from ingero_detect.threshold import MAD_TO_SIGMA

FEWEST_UNITS: Final = 12
"""Units of a population below which nothing is said about its chips."""

FEWEST_PARENTS: Final = 8
"""Nodes (or groups) below which nothing is said about nodes (or groups)."""

FEWEST_COMPARED: Final = 6
"""Of fewer nodes (or groups) than that, how many let one be compared with the others as if these were normal."""

OWN: Final = 0.8
"""Weight of the comparison with the other nodes, where there are enough of them; the rest is that of their chips."""

FIRST: Final = 2.0
"""How often the least chance of all chips counts: it may be that nobody is slow."""

FEWEST_SIBLINGS: Final = 4
"""Members of a node from which a member is compared with the others of it as well."""

CHRONIC_RUNS: Final = 2
"""Measurements from which it is checked that most of them are slow; of two, both."""

SMALLEST_SPREAD: Final = 5e-4
"""Least spread of healthy units, for values that are rounded."""

MEDIAN_VARIANCE: Final = 1.35
"""Variance of the median of a few normal values relative to their mean."""

MIRROR: Final = 1.25
"""With one value per chip, how much larger a loss has to be than the largest gain."""

LIKELY: Final = 0.05
"""Chance below which it is also asked whether single bad values explain it."""

PRIOR: Final = 1.0
PARENTS_PRIOR: Final = 0.5
"""Bad values, and as many good ones, that are added to those which are counted: of nodes, which are few, fewer."""

UNIFORM: Final = 3**-0.5
"""Standard deviation of values anywhere up to a distance, relative to it."""

GOLDEN: Final = (5**0.5 - 1) / 2
"""Multiples of this, without their whole parts, cover the numbers from 0 to 1 evenly (Weyl 1916)."""


class AuditLevel(StrEnum):
    """What a finding is about."""

    CHIP = "chip"
    NODE = "node"
    GROUP = "group"


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
class Tier:
    """Units, nodes or groups of a population. `judged`: those with values, or with at least two such members.

    `effect` is what is tested, `loss` the median of the members' effects, and most of them have at least `least`.
    `by_run`: values in single runs, of which the share `chronic` is as slow. `tested`: whether there are enough to
    compare them with each other. `single`: whether most chips have one value. `few`: whether those with several have
    two, or share them with others that they often meet. `rounding`: half of the step of values that is as large as
    their noise. `freedom` of the errors, if not all of them are known. `apart`: largest distance of a value from the
    others of its chip. `of_jobs`: values are those of jobs.
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
    freedom: Floats | None = None
    apart: float = 0.0
    of_jobs: bool = False
    chance: Floats = field(default_factory=lambda: np.ones(0))
    below: Floats = field(default_factory=lambda: np.ones(0))
    """Distance by which a member is slower than what it is compared with."""
    unusual: Floats = field(default_factory=lambda: np.ones(0))
    """Chances if single values are not bad."""

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

    @cached_property
    def alone(self) -> Bools:
        """Chips with one value; nodes where most chips have one."""
        one = self.by_run.count == 1 if self.level is AuditLevel.CHIP else np.full(len(self.effect), self.single)
        return one & self.judged

    def _too_near(self) -> Bools:
        """One value has to be farther away than the gains, which are by chance, and than the bad values of others."""
        gain = float(np.median(self.loss[self.judged]) - self.loss[self.judged].min())
        return self.alone & (self.below < MIRROR * max(gain, self.apart))

    def _chances(self, compared: Floats) -> Floats:
        found = np.ones(len(self.effect))
        several = self.judged & ~self.alone if self.level is AuditLevel.CHIP else self.judged
        if several.any():
            found[several] = self._by_error(compared)[several[self.judged]]
        if not several.all() and self.level is AuditLevel.CHIP and self.alone.any():
            found[self.alone] = self._of_one_value(compared)
        return found

    def _by_error(self, compared: Floats) -> Floats:
        """Chances of those that are judged, by how far they are in spreads that contain their errors."""
        errors, compared = self.error[self.judged], compared[self.judged]
        spread = float(np.sqrt(max(robust_spread(compared) ** 2 - float(np.median(errors**2)), 0.0)))
        spread = max(spread, SMALLEST_SPREAD)
        deviates = compared / np.hypot(spread, errors)
        if self.freedom is not None:  # of the sum of both variances (Satterthwaite 1946)
            known = self.freedom[self.judged] * (1 + (spread / np.maximum(errors, SMALLEST_SPREAD)) ** 2) ** 2
            deviates = normal_deviate(deviates, known)
        healthy = unrounded(compared, self.rounding) / np.hypot(spread, np.median(errors))
        prior = OF_CHIPS if self.level is AuditLevel.CHIP else OF_AVERAGES
        if self.of_jobs:
            prior = OF_FEW_JOBS if self.few else OF_JOBS
        elif self.few:
            prior = OF_SINGLE_VALUES
        return outlier_chances(healthy if self.rounding else deviates, 1e-3, prior, deviates)

    def _of_one_value(self, compared: Floats) -> Floats:
        """Chances of chips with one value among single values of all: of chips with several, any one of theirs."""
        found, count = self.by_run, np.maximum(self.by_run.count, 1)
        order = np.argsort(found.of, kind="stable")
        place = np.searchsorted(found.of[order], np.arange(len(count))) + np.arange(len(count)) % count
        one = found.values[order][np.minimum(place, len(order) - 1)]
        values = np.where(self.alone, compared, compared + one - self.effect)[self.judged]
        spread = max(robust_spread(values), SMALLEST_SPREAD)
        healthy = unrounded(values, self.rounding) if self.rounding else values
        return outlier_chances(healthy / spread, 1e-3, OF_SINGLE_VALUES, compared[self.alone] / spread)

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
        self.chance = self._chances_by_spread(inside, members) if self.tested else self._of_few(inside, members)
        self.unusual = self.chance.copy()
        self._allow_for_bad_values(inside)
        self.chance[self._too_near()] = 1.0
        if self.level is AuditLevel.CHIP and self.judged.any():
            first = np.flatnonzero(self.judged)[self.chance[self.judged].argmin()]
            self.chance[first] = min(1.0, FIRST * float(self.chance[first]))

    def _of_few(self, inside: Bools, members: Floats) -> Floats:
        """Chances by the members, and from six on by the distance from the others, which are taken for normal.

        Student's test with one degree of freedom less, because they may not be normal.
        """
        at = np.flatnonzero(self.judged)
        count, found = len(at), members.copy()
        if count >= FEWEST_COMPARED:
            others = np.array([np.delete(self.effect[at], place) for place in range(count)])
            spread = np.maximum(others.std(axis=1, ddof=1), np.maximum(self.error[at], SMALLEST_SPREAD))
            distance = (self.effect[at] - others.mean(axis=1)) / (spread * np.sqrt(1 + 1 / (count - 1)))
            own = normal_upper_tail(normal_deviate(distance, np.full(count, count - 3.0)))
            found[at] = np.minimum(1.0, 2 * np.minimum(members[at], own))
        return np.where(inside, 1.0, found)

    def _chances_by_spread(self, inside: Bools, members: Floats) -> Floats:
        siblings, compared = self.below_siblings, self._shrunken()
        has = np.isfinite(siblings)
        own = self._chances(np.where(inside & has, siblings, compared - float(np.median(compared[self.judged]))))
        own[inside & ~has] = 1.0
        several = self.level is not AuditLevel.CHIP
        either = np.minimum(1.0, np.minimum(own / OWN, members / (1 - OWN)))
        return np.where(inside, own, either) if several else own

    def _allow_for_bad_values(self, inside: Bools) -> None:
        """Raise chances to those of single bad values; those `inside` are compared with their siblings' level.

        How often values are bad is told by those with several. Where most have one value, they are too few to tell
        more than what they show about those with one; and those with one tell about the few with several. Chips with
        one value have to be slower than any bad value instead (`_too_near`).
        """
        one, several = self.by_run.count == 1, self.by_run.count >= CHRONIC_RUNS
        if self.level is AuditLevel.CHIP:
            self._allow_for(several, inside, one | several if self.single else several, PRIOR)
        elif self.single:
            self._allow_for(several, inside, one | several, PARENTS_PRIOR)
            self._allow_for(one, inside, several, 0.0)
        else:
            self._allow_for(one | several, inside, several, PARENTS_PRIOR)

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


def parents_of(tier: Tier, by_run: RunValues, level: AuditLevel, parents: int, above: Ints) -> Tier:
    """The next level: a parent's effect is the mean of its members without the slowest, less than half of them.

    `by_run`: values of the members, with what all of a parent lose in single runs.
    """
    centre = float(np.median(tier.effect[tier.judged]))
    within = tier.spread_within
    within = robust_spread(tier.effect[tier.judged]) if np.isnan(within) else within
    effect, error, loss, least = (np.zeros(parents) for _ in range(4))
    by_run = by_run.of_parents(np.where(tier.judged, tier.parent, -1), parents)
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
    return Tier(
        level, effect, error, above, judged, loss, least, by_run, chronic, tested, tier.single, rounding=tier.rounding
    )
