"""Computes the residuals of all nodes, what they differ from what was expected of them, and how much these vary."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Groups, Ints, Singles, clipped, filled, singles
from ingero_detect.nodes.autocorrelation import Autocorrelation, autocorrelation
from ingero_detect.nodes.codes import is_accused
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.counted_events import noise_of_counts, on_root_scale, share_of_unit
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.reference import Reference, find_reference, of_the_others

MAX_DEVIATION: Final = 7.0
"""Limit of residuals, log units."""

NOTHING: Final = 4.0
"""Residuals below minus this (2 % of the usual rate) count as this: of what a job does while it starts or ends, the
logarithm is noise."""

_RECENT: Final = 64
"""Samples that tell how much the nodes of a cohort scatter at present."""

_CHANCE_GROWTH: Final = 1.25
"""What the recent spread exceeds the lasting one by without meaning: three standard errors of so many samples."""

_CERTAIN_GROWTH: Final = 1.5
_GROWTH_SLOPE: Final = 4.0
"""What the recent spread exceeds the lasting one by when the noise has certainly grown, and how fast the whole excess
then counts: from two thirds more than usual."""

_GROWN: Final = 1.5
"""That factor from which the noise counts as grown: then it has grown by about two thirds."""

RISE_TICKS: Final = 16
"""Ticks over which a node's rises above its baseline are averaged."""

_USUAL_RISE: Final = 0.282
"""Mean of such a rise, standard deviations, in independent normal noise. In autoregressive noise it is smaller by the
root of what is new in every tick."""

_CERTAIN_RISE: Final = 2.45
"""What rises exceed the usual by when the noise of a node has certainly grown. A node that stays above its baseline
for a while, as under a load that wanders, rises twice as much, and chance adds to that."""

LATE_PHASE_COUNT: Final = 10
"""Samples that a baseline is worth once the job has entered a new phase."""


@dataclass(frozen=True)
class Residuals:
    """Nodes judged in a tick, arrays by node; `index` selects their columns, `group` those of their groups.

    `gap`: residual against own history minus the reference; `sigma`: its standard deviation from tick to tick, which
    has just grown if the node is `restless`; `scale`: the same in the long run. All are in log units, like `logs`,
    `baseline` and, by group, `level`.
    `new`: in a new phase of the job, for which baselines are still learnt; `known`: ticks that `baseline` was learnt
    from. `ready`: its grace after a return is over; `fresh`: not held; `eligible`: fresh and with enough peers. By
    group, `usual`: the mean `scale`; `recent`: the spread of the last ticks; `grown`: it has grown at once; `median`:
    medians; `past`: how residuals depend on earlier ones; `drift`: the loss that adds no evidence, standard
    deviations. `share`: one event as a share of those expected, where they are so few that residuals are those of
    roots, else 0; None if no cohort counts events.
    """

    index: slice | Ints
    group: Ints
    logs: Floats
    baseline: Floats
    new: Bools
    known: Ints
    level: Floats
    gap: Singles
    sigma: Singles
    restless: Bools
    scale: Singles
    usual: Floats
    recent: Floats
    grown: Bools
    accused: Bools
    ready: Bools
    fresh: Bools
    eligible: Bools
    reference: Reference
    median: Callable[[Floats | Singles], Floats]
    past: Autocorrelation
    drift: Floats
    share: Floats | None = None


def compute_residuals(
    memory: ColumnStore, parameters: Parameters, groups: Groups, index: slice | Ints, logs: Floats, fresh: Bools
) -> Residuals:
    """Compute the residuals of the nodes in `index` from their log rates; nodes that are not `fresh` are held."""
    group = memory.node("group")[index].astype(np.int64)
    spread = filled(memory.group("scale"), 0.0)
    level = filled(memory.group("level"), 0.0)
    new = (memory.node("relearn")[index] > 0) & ~memory.group("back")[group]
    baseline, known = memory.node("baseline")[index].copy(), memory.node("count")[index]
    if new.any():
        baseline += np.where(new, memory.node("sofar")[index], 0.0)
        in_phase = LATE_PHASE_COUNT + parameters.warmup - memory.node("relearn")[index]
        known = np.where(new, np.minimum(known, in_phase), known)
    residual = singles(logs - baseline - level[group])
    share = share_of_unit(memory, group, baseline + level[group])
    if share is not None:
        residual = np.where(share > 0, on_root_scale(residual, share), residual)
    residual = clipped(residual, -NOTHING, MAX_DEVIATION)
    tolerance = np.maximum(parameters.own_band, 3 * spread)
    count = np.bincount(group, minlength=len(memory.groups))

    def median(values: Floats | Singles) -> Floats:
        return groups.median(values, index, count)

    def quartiles(values: Singles, members: Ints) -> tuple[Floats, Floats]:
        return groups.median_and_upper_quartile(values, index, members)

    accused = is_accused(memory.node("state"))[index]
    reference = find_reference(residual, group, count, accused, quartiles, tolerance)
    gap = residual - singles(reference.level)[group]
    rows, correction = of_the_others(reference, residual, group, accused, spread)
    gap[rows] -= correction
    recent = _recent_spread(memory, reference)
    past = autocorrelation(memory)
    sigma, restless = _sigma(memory, index, group, spread, past)
    if share is not None:
        sigma = np.maximum(sigma, noise_of_counts(share))
    scale, usual, grown = _long_run_scale(parameters, sigma, group, reference, recent, past)
    return Residuals(
        index=index,
        group=group,
        logs=logs,
        baseline=baseline,
        new=new,
        known=known,
        level=level,
        gap=gap,
        sigma=sigma,
        restless=restless,
        scale=scale,
        usual=usual,
        recent=recent,
        grown=grown,
        accused=accused,
        ready=memory.node("grace")[index] <= 0,
        fresh=fresh,
        eligible=(reference.count >= parameters.min_peers)[group] & fresh,
        reference=reference,
        median=median,
        past=past,
        drift=past.drift(parameters.drift),
        share=share,
    )


def _sigma(
    memory: ColumnStore, index: slice | Ints, group: Ints, spread: Floats, past: Autocorrelation
) -> tuple[Singles, Bools]:
    """The node's own noise, mixed with the cohort's spread while there are few samples of the node, and whether that
    has just grown.

    Noise of one node that has just grown counts at once, if the node rises above its baseline as well: a straggler
    only falls, and rises back to it.
    """
    own = memory.node("own")[index]
    trust = singles(np.minimum(memory.node("count")[index], 300))
    sigma = np.sqrt((trust * own**2 + singles(30 * spread**2)[group]) / (trust + 30))
    floored: Singles = np.maximum(sigma, 1e-12)
    usual = singles(_USUAL_RISE * np.sqrt(1 - past.lag_one))[group] * floored
    times = singles(memory.node("rise")[index]) / usual
    growth = singles(_growth(times, _CERTAIN_RISE))
    return floored * growth, growth > _GROWN


def _recent_spread(memory: ColumnStore, reference: Reference) -> Floats:
    """By group the spread of its faster nodes in the last ticks, from about `_RECENT` samples."""
    before = memory.group("recent")
    gain = clipped(reference.count / _RECENT, 0.0, 0.5)
    step = gain * (reference.upper - before)
    return np.where(np.isnan(reference.upper), before, np.where(np.isnan(before), reference.upper, before + step))


def _growth(times: Floats | Singles, certain: float) -> Floats:
    """The factor by which noise has just grown, which seems to be so many `times` the usual one: 1 unless that is
    more than chance brings, which is `certain` beyond."""
    factor: Floats = clipped(1 + _GROWTH_SLOPE * (times - certain), 1.0, np.maximum(times, 1.0))
    return factor


def _long_run_scale(
    parameters: Parameters, sigma: Singles, group: Ints, reference: Reference, recent: Floats, past: Autocorrelation
) -> tuple[Singles, Floats, Bools]:
    """The standard deviation including autocorrelation, never below half of the band; by group, the usual one and
    whether the noise has grown.

    Noise of all nodes that has just grown counts at once, beyond what the spread of a few nodes varies by chance.
    """
    stretch, least = np.sqrt(past.ratio), 0.5 * parameters.own_band
    recent = filled(recent, 0.0)
    usual = np.bincount(group, sigma, len(recent)) / np.maximum(reference.count, 1)
    growth = _growth(recent / np.maximum(usual, 1e-12), _CERTAIN_GROWTH)
    factor = growth * stretch
    floor = np.maximum(recent / _CHANCE_GROWTH * stretch, least)
    scale: Singles = np.maximum(sigma * singles(factor)[group], singles(floor)[group])
    if reference.common.any():
        scale = np.where(reference.common[group], np.maximum(scale, singles(reference.spread)[group]), scale)
    return scale, np.maximum(usual * factor, floor), growth > _GROWN
