"""How slow each unit is over all runs, with the effects of the runs removed, robustly. Pure.

The model is additive on the log scale: a measurement is the effect of its unit, plus that of its run, plus noise.
Both effects are Huber's M-estimates, so that a bad run of a unit or a few slow units in a run move neither far.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ingero_detect.audit.job_values import are_of_jobs, often_together, unexplained
from ingero_detect.audit.own_noise import OwnNoise, own_noise
from ingero_detect.grouped import Bools, Floats, Ints, connected, grouped_median
from ingero_detect.threshold import MAD_TO_SIGMA

HUBER: Final = 1.5
"""Residuals beyond this many standard deviations count less."""

HUBER_VARIANCE: Final = 1.04
"""Variance of Huber's estimate relative to the mean, for normal noise."""

OWN_VARIANCE: Final = 1.4
"""The same for a unit with far more noise than the others: with their noise, its estimate is near the median."""

MEDIAN_VARIANCE: Final = 1.57
"""The same for the median."""

SHARED_UNITS: Final = (3, 2)
"""Fewest units of a run whose effect is separated from theirs. Pairs only where larger runs do not connect most of
them: the second test of two slow units looks like a slow run."""

CONNECTED_SHARE: Final = 0.8
"""Share of units that runs have to connect with each other; otherwise the effects of runs are not removed."""

ROUNDS: Final = 100
SETTLED: Final = 1e-7
OWN_NOISE_RUNS: Final = 5
"""Fewest runs from which a unit's own noise is estimated; below, that of all units is used."""

LEVELS: Final = 33
"""How many sizes of bad values are looked at; between them the more frequent one counts."""


@dataclass(frozen=True)
class RunValues:
    """Values of units in runs, without the effects of runs: each of the unit `of` in the run `run` (-1: not known).

    `count` has the number of values by unit.
    """

    values: Floats
    of: Ints
    run: Ints
    count: Ints

    def of_parents(self, parent: Ints, parents: int) -> "RunValues":
        """By parent and run, the median of its members (`parent` by unit; -1: none).

        Where runs are not known, the largest values of all members count as one run, the second largest as another.
        """
        kept = parent[self.of] >= 0
        values, of, run = self.values[kept], self.of[kept], self.run[kept]
        unknown = np.flatnonzero(run < 0)
        order = unknown[np.lexsort((-values[unknown], of[unknown]))]
        run[order] = run.max(initial=-1) + 1 + np.arange(len(order)) - np.searchsorted(of[order], of[order])
        pairs, place = np.unique(run * parents + parent[of], return_inverse=True)
        median = grouped_median(values, place, len(pairs))[1]
        return RunValues(median, pairs % parents, pairs // parents, np.bincount(pairs % parents, minlength=parents))

    def share_above(self, level: Floats) -> Floats:
        """By unit, the share of its values that are above its level."""
        above = (self.values > level[self.of]).astype(np.float64)
        return np.bincount(self.of, above, minlength=len(self.count)) / np.maximum(self.count, 1)


@dataclass(frozen=True)
class UnitEffects:
    """By unit: effect, standard error (NaN if unknown), number of measurements, share of them that are as slow.

    `noise` is the standard deviation of one measurement, NaN if no unit has two. `run_spread` is the spread of the
    effects of runs, 0 if these were not removed. `apart`: measurements of runs that connect too few units, left out.
    `by_run`: every measurement that is used, without the effect of its run. `own`: how much units scatter that do so
    more than the others; their errors have its freedom. `of_jobs`: the units of a run have one value, that of a job;
    `partners_vary`: most of them meet no other one often. `used`: which of the measurements given `by_run` has.
    """

    effect: Floats
    error: Floats
    count: Ints
    chronic: Floats
    noise: float
    run_spread: float
    runs: int
    apart: int
    by_run: RunValues
    own: OwnNoise
    used: Bools
    of_jobs: bool = False
    partners_vary: bool = False

    def relative_to(self, level: Floats) -> "UnitEffects":
        """The effects as if every unit were faster by its level."""
        effect, found = self.effect - level, self.by_run
        by_run = replace(found, values=found.values - level[found.of])
        return replace(self, effect=effect, by_run=by_run, chronic=_chronic(effect, by_run))


def unit_effects(slowness: Floats, unit: Ints, run: Ints, units: int) -> UnitEffects:
    """Fit the additive model. `slowness` is logarithmic, larger is slower; `run` is -1 where it is not known.

    A unit without usable measurements has the effect NaN.
    """
    if are_of_jobs(slowness, unit, run):
        return _of_jobs(slowness, unit, run, units)
    used, runs = _comparable(unit, run, units)
    y, i = slowness[used], unit[used]
    present, j = np.unique(run[used], return_inverse=True) if runs else (np.zeros(0), np.zeros(len(y), np.int64))
    runs = len(present)
    count = np.bincount(i, minlength=units)
    of_run = grouped_median(y, j, max(runs, 1))[1] if runs else np.zeros(1)
    of_run = of_run - float(np.median(of_run)) if runs else of_run
    effect = np.zeros(units)
    noise = np.nan
    for _ in range(ROUNDS):
        before = effect
        scale = _noise(y - effect[i] - of_run[j], count, max(runs, 1), i)
        effect = _huber(y - of_run[j], i, units, before, scale)
        if runs:
            of_run = _huber(y - effect[i], j, runs, of_run, np.nan)
            of_run = of_run - float(np.median(of_run))
        noise = scale
        if np.nanmax(np.abs(effect - before), initial=0.0) < SETTLED:
            break
    residual = y - effect[i] - of_run[j]
    noise = _noise(residual, count, max(runs, 1), i)
    own = own_noise(y - of_run[j], i, count, noise)
    error = np.where(
        own.spread > 0, own.spread * np.sqrt(OWN_VARIANCE / np.maximum(count, 1)), _errors(residual, i, count, noise)
    )
    by_run = RunValues(y - of_run[j], i, run[used], count)
    chronic = _chronic(effect, by_run)
    spread = float(MAD_TO_SIGMA * np.median(np.abs(of_run - np.median(of_run)))) if runs else 0.0
    return UnitEffects(effect, error, count, chronic, noise, spread, runs, int((~used).sum()), by_run, own, used)


def _of_jobs(slowness: Floats, unit: Ints, run: Ints, units: int) -> UnitEffects:
    """Effects where every unit has the values of its jobs: their medians, without those that another one explains.

    A healthy unit is slow in the jobs that it shares with a slow one, and these show nothing about its noise.
    """
    known = run >= 0
    vary = bool(known.any()) and not often_together(unit[known], run[known])
    kept = unexplained(slowness, unit, run, units)
    slowness, unit, run = slowness[kept], unit[kept], run[kept]
    count, effect = grouped_median(slowness, unit, units)
    noise = float(MAD_TO_SIGMA * np.median(np.abs(slowness - effect[unit])))
    error = np.where(count > 0, noise * np.sqrt(MEDIAN_VARIANCE / np.maximum(count, 1)), np.nan)
    by_run = RunValues(slowness, unit, run, count)
    own = OwnNoise(np.zeros(units), np.full(units, np.inf), np.zeros(units, np.bool_))
    return UnitEffects(
        effect, error, count, _chronic(effect, by_run), noise, 0.0, 0, 0, by_run, own, kept, True, vary
    )  # fmt: skip


def _chronic(effect: Floats, by_run: RunValues) -> Floats:
    """By unit, the share of its measurements that are nearer to its effect than to the usual one."""
    return by_run.share_above(0.5 * (effect + float(np.nanmedian(effect))))


def _comparable(unit: Ints, run: Ints, units: int) -> tuple[Bools, int]:
    """Measurements to use, and the number of runs whose effects are removed (0 for none).

    Runs are removed if at least two of them, each of several units, connect most units with each other.
    """
    everything = np.ones(len(unit), np.bool_)
    runs = int(run.max(initial=-1)) + 1
    if runs < 2:
        return everything, 0
    pairs = np.unique(np.stack((run, unit)), axis=1)
    size = np.bincount(pairs[0, pairs[0] >= 0], minlength=runs)
    for fewest in SHARED_UNITS:
        shared = size >= fewest
        edges = (run >= 0) & shared[run]
        label = connected(np.stack((run[edges], unit[edges])), units)
        sizes = np.bincount(label[np.unique(unit)], minlength=units)
        largest = int(sizes.argmax())
        if shared.sum() >= 2 and sizes[largest] >= CONNECTED_SHARE * len(np.unique(unit)):
            return edges & (label[unit] == largest), runs
    return everything, 0


def _noise(residual: Floats, count: Ints, runs: int, unit: Ints) -> float:
    """Standard deviation of a measurement, from units with at least two; corrected for the fitted effects."""
    several = count[unit] > 1
    n = int(several.sum())
    freedom = n - int((count > 1).sum()) - (runs - 1)
    if n < 4 or freedom < 2:
        return float("nan")
    deviation = residual[several]
    robust = MAD_TO_SIGMA * float(np.median(np.abs(deviation)))
    clipped = np.clip(deviation, -3 * robust, 3 * robust) if robust > 0 else deviation
    return float(np.sqrt((clipped**2).sum() / freedom))


def _huber(values: Floats, group: Ints, groups: int, start: Floats, scale: float) -> Floats:
    """One reweighting of Huber's estimate of each group's location; of groups with up to two values, the mean."""
    count, median = grouped_median(values, group, groups)
    distance = np.abs(values - median[group])
    own = MAD_TO_SIGMA * grouped_median(distance, group, groups)[1]
    scales = own if np.isnan(scale) else np.full(groups, scale)
    origin = np.where(np.isfinite(start) & (np.abs(start - median) <= scales), start, median)
    bound = HUBER * np.maximum(np.nan_to_num(scales), 1e-12)
    weight = np.minimum(1.0, bound[group] / np.maximum(np.abs(values - origin[group]), 1e-12))
    weight = np.where(count[group] <= 2, 1.0, weight)
    total = np.bincount(group, weight, minlength=groups)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.bincount(group, weight * values, minlength=groups) / total
    return np.where(total > 0, found, np.nan)


def _errors(residual: Floats, unit: Ints, count: Ints, noise: float) -> Floats:
    """Standard error of each effect; a unit that is noisier than the others has its own."""
    bound = 4 * noise if np.isfinite(noise) else np.inf
    own = np.sqrt(
        np.bincount(unit, np.clip(residual, -bound, bound) ** 2, minlength=len(count)) / np.maximum(count - 1, 1)
    )
    usual = np.where(count >= OWN_NOISE_RUNS, np.maximum(own, noise), noise)
    found: Floats = usual * np.sqrt(HUBER_VARIANCE / np.maximum(count, 1))
    return found


def bad_value_chances(
    found: RunValues, asked: Ints, level: Floats, centre: float, telling: Bools, prior: float
) -> Floats:
    """The chance that most values of a unit are as slow as they are because single values are bad, not the unit.

    `asked`: units; `level`: what each is compared with; `centre`: the usual value. Values are bad independently of
    each other (binomial), as often as those of the `telling` units of which most are not bad. Of "most are slow" and
    "all are slow", the one that chance explains less counts.
    """
    order = np.lexsort((-found.values, found.of))
    first = np.searchsorted(found.of[order], asked)
    usual = found.values - centre
    chances = []
    for least in (found.count[asked] // 2 + 1, found.count[asked]):
        reached = found.values[order][first + least - 1] - level
        steps = np.unique(np.quantile(reached, np.linspace(0, 1, LEVELS)))
        bad = np.array([_bad_share(usual >= step, found, telling, prior) for step in steps])
        share = bad[np.searchsorted(steps, reached, side="right") - 1]
        chances.append(binomial_upper_tail(least, found.count[asked], share))
    tests = np.where(found.count[asked] > 2, 2, 1)
    explained: Floats = np.minimum(1.0, tests * np.minimum(*chances))
    return explained


def _bad_share(bad: Bools, found: RunValues, telling: Bools, prior: float) -> float:
    """Share of bad values of the `telling` units of which most are not bad; `prior` more of both kinds are added."""
    times = np.bincount(found.of, bad, minlength=len(found.count))
    well = telling & (2 * times <= found.count)
    return float((times[well].sum() + prior) / max(found.count[well].sum() + 2 * prior, 1.0))


def binomial_upper_tail(least: Ints, trials: Ints, chance: Floats) -> Floats:
    """The chance of at least `least` successes of `trials`, of which each has `chance` (not 0)."""
    most = int(trials.max(initial=0))
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, most + 1)))))
    times = np.arange(most + 1)
    n, p = trials[:, None], np.clip(chance, 1e-300, 1 - 1e-12)[:, None]
    rest = np.maximum(n - times, 0)
    logs = log_factorial[n] - log_factorial[times] - log_factorial[rest] + times * np.log(p) + rest * np.log1p(-p)
    found: Floats = np.where((times >= least[:, None]) & (times <= n), np.exp(logs), 0.0).sum(axis=1)
    return np.minimum(found, 1.0)
