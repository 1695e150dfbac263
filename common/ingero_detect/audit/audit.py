"""Which GPUs, nodes and groups of nodes are chronically slower than their like, at a false-discovery rate. Pure.

Units of a population (one model, one benchmark) are compared with each other. A unit is slow if its effect over all
runs is an outlier among the effects of healthy units, and its loss is large enough to matter. A node, or a group such
as a rack, is judged by most of its members, so that one slow member does not accuse it; members of a node that is at
another level than most, named or not, are compared with each other. All hypotheses of all populations and levels
share one false-discovery rate (Benjamini and Hochberg 1995).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from ingero_detect.audit.audit_results import AuditResult, Population, PopulationResult, SlowUnit
from ingero_detect.audit.audit_tiers import (
    CHRONIC_RUNS,
    FEWEST_COMPARED,
    FEWEST_UNITS,
    SMALLEST_SPREAD,
    UNIFORM,
    AuditLevel,
    Tier,
    parents_of,
    robust_spread,
)
from ingero_detect.audit.chip_effects import UnitEffects, unit_effects
from ingero_detect.audit.chip_levels import chip_levels, in_whole_nodes
from ingero_detect.audit.level_changes import LevelChange, level_changes, stale
from ingero_detect.audit.node_kinds import KIND_MEMBERS, KIND_SHARE
from ingero_detect.audit.node_runs import lost_in_runs
from ingero_detect.audit.place_levels import place_levels
from ingero_detect.audit.wrong_values import doubtful, doubtful_units, too_fast
from ingero_detect.discoveries import adjusted_chances
from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.healthy_spread import Shape

LEAST_SHARE: Final = 0.2
"""Least part of the false-discovery rate that a level has, however few nodes there are (weights: Genovese 2006)."""

FAR: Final = 6.0
"""Spreads of the other nodes by which one is at another level, although nobody is named."""

NEARLY: Final = 0.1
"""Share of healthy fleets in which a node that is said to be slower is so by chance."""

SAME_LEVEL: Final = 2.0
"""Spreads of the other nodes that those of one kind differ by at most."""

TOO_MANY: Final = 0.25
CLEAR: Final = 2.0
"""Share of chips that are no outliers any more, if they lose half as much as the least one that is named, and so many
spreads."""

FEWEST_JOBS: Final = 5
"""Jobs of a chip or node from which their median is judged as one, and not as a single value."""

FEWEST_NOTED: Final = 3
"""Runs before and since a change from which it is worth saying."""

TOGETHER: Final = ": judge them together with a file of the whole fleet"

OF_JOBS: Final = (
    "all that took part in a run have one value, that of the job, which the slowest of them makes: what jobs differ "
    "by is not removed, and who is named is slow in most of its jobs, whoever else took part"
)

INTERVAL: Final = 1.96


class _Judged:
    """One population: its levels, from chips upwards, and what is said about it."""

    def __init__(self, population: Population, fdr: float, smallest: float) -> None:
        self.population = population
        nodes = len(population.group)
        groups = int(population.group.max(initial=-1)) + 1
        fit = self._fit(fdr, smallest)
        usable = np.isfinite(fit.effect) & (fit.count > 0)
        centre = float(np.median(fit.effect[usable])) if usable.any() else 0.0
        implausible = too_fast(fit.effect, usable, fit.count, population.rounding)
        usable &= ~implausible
        doubted = doubtful(fit.effect, usable, fit.count)
        usable &= ~doubted
        self._doubtful = doubtful_units(doubted, fit.effect, centre, usable, population.node)
        self.centre, self.tiers, self.refused = centre, list[Tier](), ""
        self.usable, notes = usable, []
        self._levels, self._many = chip_levels(fit.effect, usable & False, population.node, 0.0), (0, 0, 0.0)
        self._places, self._offset = np.zeros(0), np.zeros(len(fit.effect))
        self._implausible = tuple(
            (number, float(np.expm1(centre - fit.effect[number]))) for number in np.flatnonzero(implausible).tolist()
        )
        if fit.of_jobs:
            notes.append(OF_JOBS)
        if fit.apart:
            notes.append(f"{fit.apart} measurements of runs that connect too few chips, left out")
        if usable.sum() < FEWEST_UNITS:
            self.refused = (
                f"only {usable.sum()} can be compared, and fewer than {FEWEST_UNITS} show no usual spread" + TOGETHER
            )
        else:
            rounding = 0.0 if fit.noise > population.rounding else population.rounding
            self._levels = chip_levels(fit.effect, usable, population.node, rounding)
            self._offset = self._levels.offset + self._of_places(fit)
            fit = fit.relative_to(self._offset) if self._offset.any() else fit
            error = np.hypot(np.nan_to_num(np.where(usable, fit.error, 0.0)), rounding * UNIFORM)
            effect = np.where(usable, fit.effect, 0.0)
            single = bool(np.median(fit.count[usable]) < 2)
            several = usable & (fit.count >= CHRONIC_RUNS)
            enough = several.any() and bool(np.median(fit.count[several]) >= (FEWEST_JOBS if fit.of_jobs else 3))
            few = not enough or (fit.of_jobs and not fit.partners_vary)
            distance = np.abs(fit.by_run.values - fit.effect[fit.by_run.of])
            away = (distance * (fit.count / np.maximum(fit.count - 1, 1))[fit.by_run.of])[several[fit.by_run.of]]
            chips = Tier(
                AuditLevel.CHIP, effect, error, population.node, usable, effect, effect, fit.by_run, fit.chronic,
                True, single, few, rounding, fit.own.freedom, float(away.max(initial=0.0)),
                fit.of_jobs,
            )  # fmt: skip
            self.tiers = [chips]
            above_chips = [(AuditLevel.NODE, nodes, population.group), (AuditLevel.GROUP, groups, None)]
            if population.of_nodes:
                above_chips = [(AuditLevel.GROUP, nodes, None)]
            for level, count, above in above_chips:
                by_run = self.tiers[-1].by_run
                if self.tiers[-1] is chips:
                    by_run = replace(by_run, values=by_run.values + self._of_node_runs)
                parents = np.full(count, -1) if above is None else above
                tier = parents_of(self.tiers[-1], by_run, level, count, parents)
                if not tier.judged.any():
                    break
                if not tier.tested and tier.judged.sum() > 1:
                    named_if = "most members are slow"
                    named_if += " or it is far from all others" if tier.judged.sum() >= FEWEST_COMPARED else ""
                    notes.append(f"{tier.judged.sum()} {level}s, too few to compare: named if {named_if}")
                self.tiers.append(tier)
        self.notes = tuple(notes)
        self.named: list[Bools] = [np.zeros(len(tier.effect), np.bool_) for tier in self.tiers]
        self._set_apart = [np.zeros_like(named) for named in self.named]
        self._known: list[Bools | None] = [None for _ in self.tiers]
        self._members_say = [np.ones(len(tier.effect)) for tier in self.tiers]
        self.adjusted: list[Floats] = [np.ones(len(tier.effect)) for tier in self.tiers]

    def _fit(self, fdr: float, smallest: float) -> UnitEffects:
        """The effects of units; of those that have become slower or faster for good, since then."""
        slowness, unit, run = self.population.slowness, self.population.unit, self.population.run
        units = len(self.population.node)
        fit = unit_effects(slowness, unit, run, units)
        self._whole, self._changes = fit.by_run, dict[int, LevelChange]()
        if fit.runs:
            self._changes = self._changes_of_chips(fdr, smallest)
            kept = ~stale(self._changes, unit, run)
            slowness, unit, run = slowness[kept], unit[kept], run[kept]
            fit = fit if kept.all() else unit_effects(slowness, unit, run, units)
        self.fit, self._of_node_runs = fit, np.zeros(len(fit.by_run.values))
        if fit.runs:
            self._without_node_runs(slowness, unit, run)
        return self.fit

    def _without_node_runs(self, slowness: Floats, unit: Ints, run: Ints) -> None:
        """Fit the chips without what whole nodes lose in single runs, which is kept for the nodes."""
        lost = lost_in_runs(self.fit.by_run, self.population.node, self.fit.noise)
        if lost.any():
            slowness = slowness.copy()
            slowness[self.fit.used] -= lost
            self.fit, self._of_node_runs = unit_effects(slowness, unit, run, len(self.population.node)), lost

    def _of_places(self, fit: UnitEffects) -> Floats:
        """By chip, how much slower those at its place in the node are; 0 where levels of chips tell them apart."""
        place = self.population.place
        if place is None or fit.of_jobs or self._levels.distance:
            return np.zeros(len(fit.effect))
        self._places = place_levels(fit.effect, self.usable, self.population.node, place)
        return np.append(self._places, 0.0)[place]

    def _changes_of_chips(self, fdr: float, smallest: float) -> dict[int, LevelChange]:
        """By chip the change of its group or its node, of which the medians of single runs change, or its own one."""
        node, group = self.population.node, self.population.group
        chips = np.arange(len(node))
        of_group = np.where(node >= 0, np.append(group, -1)[node], -1)
        found = dict[int, LevelChange]()
        for parent in (of_group, node, chips):
            parents = int(parent.max(initial=-1)) + 1
            several = np.bincount(parent[parent >= 0], minlength=parents) > 1
            asked = several if parent is not chips else np.ones(parents, np.bool_)
            for number, change in level_changes(
                self._whole.of_parents(parent, parents), asked, fdr, smallest
            ).items():
                for chip in np.flatnonzero(parent == number).tolist():
                    found.setdefault(chip, change)
        return found

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

    def _nearly(self, place: int, smallest: float) -> Bools:
        """Not named, but so slow that chance makes one of them in few fleets; chips with one value are said apart."""
        tier, known = self.tiers[place], self._known[place]
        if not tier.tested or known is None:
            return np.zeros(len(tier.effect), np.bool_)
        seldom = tier.chance * tier.judged.sum() <= NEARLY
        most = ~tier.alone & ~self.fit.own.far if tier.level is AuditLevel.CHIP else tier.least >= 0.5 * tier.loss
        slow = tier.judged & (tier.below >= smallest) & most & tier.chronically_slow()
        nearly: Bools = slow & seldom & ~self.named[place] & ~known
        return nearly

    def apart(self, smallest: float) -> tuple[tuple[AuditLevel, int, float], ...]:
        """What is not named, but slower than most: faults, or nodes and groups of a kind that no label tells."""
        return tuple(
            (tier.level, number, float(-np.expm1(float(np.median(tier.loss[tier.judged])) - tier.loss[number])))
            for place, tier in enumerate(self.tiers)
            for number in np.flatnonzero(self._set_apart[place] | self._nearly(place, smallest)).tolist()
        )

    def accept(self, adjusted: Sequence[Floats], fdr: float, smallest: float, top: int) -> None:
        """Name what is significant and large enough, on the levels from `top` upwards."""
        for place, (tier, found) in enumerate(zip(self.tiers, adjusted, strict=True)):
            self.adjusted[place][tier.judged] = found
            if place >= top:
                enough = tier.judged & (self.adjusted[place] <= fdr) & (tier.below >= smallest)
                most = tier.level is AuditLevel.CHIP or tier.least >= 0.5 * tier.loss
                self.named[place] = enough & most & tier.chronically_slow()
        if not top and self.tiers:
            self._leave_out_many()
        self._set_apart[1:] = [self._apart(place, smallest) for place in range(1, len(self.tiers))]

    def _leave_out_many(self) -> None:
        """Name no chips if those that are slow are too many to be outliers, and no nodes that are made of them.

        Nodes all of whose chips are slow are counted apart, if they are more than chance makes.
        """
        chips = self.tiers[0]
        if not self.named[0].any():
            return
        loss = chips.effect - float(np.median(chips.effect[chips.judged]))
        least = max(0.5 * float(loss[self.named[0]].min()), CLEAR * robust_spread(loss[chips.judged]))
        slow = chips.judged & (loss >= least)
        free = chips.judged & ~in_whole_nodes(slow, chips.judged, chips.parent)
        if slow[free].sum() < TOO_MANY * free.sum():
            return
        self._many = (int(slow[free].sum()), int(free.sum()), float(np.median(loss[slow & free])))
        self.named[0] &= ~free
        for place, named in enumerate(self.named[1:], 1):
            for number in np.flatnonzero(named).tolist():
                named[number] = free[self._members(place, np.array([number]))].mean() < 0.5

    def result(self, fdr: float, smallest: float) -> PopulationResult:
        """What is said about the population as a whole; the spread is that of units that are not named."""
        quiet = self.usable.copy()
        for place in range(len(self.tiers) - 1, -1, -1):
            quiet[self._members(place, np.flatnonzero(self.named[place]))] = False
        quiet = quiet if quiet.any() else self.usable
        effects = self.fit.effect[quiet & ~self._levels.away] if self.tiers else self.fit.effect[quiet]
        centre = float(np.median(effects)) if len(effects) else self.centre
        effects = (self.fit.effect - self._offset)[quiet]
        nodes = len(np.unique(self.population.node[self.usable & (self.population.node >= 0)]))
        groups = int(self.population.group.max(initial=-1)) + 1
        nodes, groups = (0, nodes) if self.population.of_nodes else (nodes, groups)
        later = self._later(fdr, smallest) if self.fit.runs else ()
        spread = robust_spread(effects)
        return PopulationResult(
            self.population.name, int(self.usable.sum()), nodes, groups, spread, self.fit, centre, self.refused,
            self.notes + self._of_many(smallest), self.apart(smallest), self._implausible,
            self._unsteady(smallest, later), self._alone(fdr, smallest),
            later, self._recovered(centre, max(smallest, FAR * spread)),
            tuple(np.flatnonzero(self._levels.away).tolist()) if abs(self._levels.distance) >= smallest else (),
            tuple(
                (place, float(-np.expm1(-self._places[place])))
                for place in np.flatnonzero(np.abs(self._places) >= smallest).tolist()
            ),
            self._doubtful,
        )  # fmt: skip

    def _of_many(self, smallest: float) -> tuple[str, ...]:
        """Notes on chips at another level than most, and on slow ones that are too many."""
        found = list[str]()
        distance, few = self._levels.distance, f"{self._levels.away.sum()} of {self.usable.sum()} chips"
        if abs(distance) >= smallest:
            how, faults = ("slower", "faults, or ") if distance > 0 else ("faster", "")
            found.append(
                f"{few} are {-100 * np.expm1(-abs(distance)):.1f} % {how}, at a level of their own: "
                "too many to be outliers, so every chip is compared with those of its level; "
                f"{faults}of another kind that no column tells"
            )
        slow, chips, loss = self._many
        if slow:
            found.append(
                f"{slow} of {chips} chips are slower, half of them by {-100 * np.expm1(-loss):.1f} % or more: too "
                "many to be outliers, so none is named; faults, or of another kind that no column tells"
            )
        return tuple(found)

    def _alone(self, fdr: float, smallest: float) -> tuple[tuple[int, float], ...]:
        """Chips that would be named if their only value were certain."""
        if not self.tiers:
            return ()
        chips, covered = self.tiers[0], self._known[0]
        found = chips.alone & ~self.named[0] & (chips.unusual * chips.judged.sum() <= fdr) & (chips.below >= smallest)
        found &= ~covered if covered is not None else True
        return tuple((number, float(-np.expm1(-chips.below[number]))) for number in np.flatnonzero(found).tolist())

    def _unsteady(
        self, smallest: float, later: tuple[tuple[AuditLevel, int, LevelChange], ...]
    ) -> tuple[tuple[int, float, float], ...]:
        """Chips whose values scatter far more than those of others, but for those that have become slower."""
        if not self.tiers or self.fit.of_jobs:
            return ()
        found = self.usable & self.fit.own.far & (self.fit.own.spread >= smallest)
        found[[number for level, number, _ in later if level is AuditLevel.CHIP]] = False
        return tuple(
            (number, float(self.fit.own.spread[number]), float(-np.expm1(-self.tiers[0].below[number])))
            for number in np.flatnonzero(found).tolist()
        )

    def _later(self, fdr: float, smallest: float) -> tuple[tuple[AuditLevel, int, LevelChange], ...]:
        """What has become slower and is not named, without members of what has."""
        found = list[tuple[AuditLevel, int, LevelChange]]()
        inside = np.zeros(0, np.bool_)
        values = [self._whole]
        for below, tier in pairwise(self.tiers):
            values.append(values[-1].of_parents(np.where(below.judged, below.parent, -1), len(tier.effect)))
        for place in range(len(self.tiers) - 1, -1, -1):
            tier = self.tiers[place]
            above = inside[tier.parent] & (tier.parent >= 0) if len(inside) else np.zeros(len(tier.effect), np.bool_)
            inside = above | self.named[place]
            for number, change in level_changes(values[place], tier.judged & ~inside, fdr, smallest).items():
                if change.loss > 0 and min(change.before, change.later) >= FEWEST_NOTED:
                    found.append((tier.level, number, change))
                    inside[number] = True
        return tuple(found)

    def _recovered(self, centre: float, least: float) -> tuple[tuple[int, LevelChange], ...]:
        """Chips that are faster since some run, lost `least` or more before, and are not named."""
        found = list[tuple[int, LevelChange]]()
        for number, change in self._changes.items() if self.tiers else ():
            before = (self._whole.of == number) & (self._whole.run < change.run)
            was = float(np.median(self._whole.values[before])) - centre if before.any() else 0.0
            if change.loss < 0 and was >= least and change.before >= FEWEST_NOTED and not self.named[0][number]:
                found.append((number, change))
        return tuple(found)

    def _since(self, members: Ints) -> int | None:
        """The run from which most of the chips are slow, if they were not before."""
        runs = sorted(
            change.run
            for number in members.tolist()
            if (change := self._changes.get(number)) and change.lasting and change.loss > 0
        )
        return runs[len(runs) // 2] if 2 * len(runs) > len(members) else None

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

    def _slow_members(self, place: int, item: int) -> tuple[tuple[int, ...], int]:
        """Members on the level below that lose at least half of what the item does, and how many there are."""
        if not place:
            return (), 0
        below = self.tiers[place - 1]
        of_it = below.judged & (below.parent == item)
        loss = below.loss - float(np.median(below.loss[below.judged]))
        slow = np.flatnonzero(of_it & (loss >= 0.5 * self.tiers[place].below[item]))
        return tuple(slow.tolist()), int(of_it.sum())

    def _finding(self, number: int, level: AuditLevel, place: int, item: int, spread: float) -> SlowUnit:
        tier, members = self.tiers[place], self._members(place, np.array([item]))
        below = tier.below[item] + (max(self._levels.offset[item], 0.0) if level is AuditLevel.CHIP else 0.0)
        error = tier.error[item] if level is not AuditLevel.CHIP or self.fit.count[item] > 1 else spread
        if not error > 0:
            error = spread
        count = int(self.fit.count[members].sum())
        chronic = float(tier.chronic[item]) if tier.by_run.count[item] >= CHRONIC_RUNS else None
        freedom = float(self.fit.own.freedom[item]) if level is AuditLevel.CHIP else np.inf
        within = Shape(freedom, 0.0).value(INTERVAL) * error
        low, middle, high = (1 - np.exp(-(below + side * within)) for side in (-1, 0, 1))
        return SlowUnit(
            number, level, item, float(middle), float(low), float(high), float(tier.chance[item]),
            float(self.adjusted[place][item]), tuple(members.tolist()), *self._slow_members(place, item), count,
            chronic, self._since(members),
        )  # fmt: skip


def audit(populations: Sequence[Population], fdr: float = 0.05, min_loss: float = 0.02) -> AuditResult:
    """Judge all populations together. `min_loss`: share of the usual speed below which a loss is not reported."""
    smallest = -float(np.log1p(-min_loss))
    judged = [_Judged(population, fdr, smallest) for population in populations]
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
