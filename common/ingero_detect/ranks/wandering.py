"""Ranks that wander: what proves a level or a change where the steps of a recording follow one another. Pure.

A rank whose times wander slowly is far from its peers for a long time without a fault. Errors from its steps do not
show that, because they take noise of single steps for all there is, or the recording is too short to show how far it
wanders. Where means of other ranks over long stretches differ by more than independent steps explain, a rank is
proven late by what these ranks differ by (Student's distribution over ranks and independent stretches), or by a
change that is far larger than any change of the others over as many steps.
"""

from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.last_arrival import residuals_by_step
from ingero_detect.ranks.student import upper_quantiles

SURE_INFLATION: Final = 2.5
"""Variance of long means over that of independent steps up to which chance explains it."""

PARTS: Final = (2, 4)
"""Into how many stretches a recording is cut whose means show how ranks wander."""

CHANCE: Final = 1e-4
"""Chance that some rank of a healthy job is named."""

AROUND: Final = (4, 8)
"""Steps on either side of a change whose means are compared."""


def beyond_wander(standing: Bools, values: Floats, part: slice, alike: Ints) -> Bools:
    """Those of the `standing` ranks that are late in this part of the steps by more than others wander.

    All of them where others do not wander. `values` by (rank, step), `alike`: ranks with the same work.
    """
    own = residuals_by_step(values, alike)
    inflation = _inflation(own[~standing])
    steps = values.shape[1]
    if inflation < SURE_INFLATION:
        return standing
    excess, error, freedom = _over_others(own, part, standing, alike, inflation)
    if not freedom:
        return np.zeros(len(standing), np.bool_)
    needed = float(upper_quantiles(CHANCE / len(standing), np.array(freedom * max(1.0, steps / inflation))))
    return np.asarray(standing & ((excess > needed * error) | _changed(own, standing)))


def _inflation(values: Floats) -> float:
    """Variance of means over long stretches relative to that of independent steps, from all rows; 1 at least."""
    steps, found = values.shape[1], 1.0
    power = np.nanvar(values, axis=1, ddof=1)
    for parts in PARTS:
        length = steps // parts
        if length >= min(AROUND) and (power > 0).any():
            means = np.stack([np.nanmean(values[:, at * length : (at + 1) * length], axis=1) for at in range(parts)])
            between = (np.diff(means, axis=0) ** 2).mean(axis=0) / 2
            found = max(found, float(np.nanmean((between * length)[power > 0] / power[power > 0])))
    return found


def _over_others(
    own: Floats, part: slice, standing: Bools, alike: Ints, inflation: float
) -> tuple[Floats, Floats, int]:  # fmt: skip
    """By how much each rank is above the others with the same work that do not stand out, the error, its freedom.

    The error is what the means of the others differ by, or what those of so many steps would by all that they vary.
    """
    means = np.nanmean(own[:, part], axis=1)
    length = len(range(*part.indices(own.shape[1])))
    excess, size, freedom = np.zeros(len(means)), np.ones(len(means)), 0
    between, within = 0.0, list[float]()
    for kind in np.unique(alike).tolist():
        others = (alike == kind) & ~standing
        rest = means[others]
        if not len(rest):
            continue
        excess[alike == kind], size[alike == kind] = means[alike == kind] - rest.mean(), 1 + 1 / len(rest)
        between, freedom = between + float(((rest - rest.mean()) ** 2).sum()), freedom + len(rest) - 1
        within.append(float(np.nanvar(own[others])))
    variance = max(between / max(freedom, 1), float(np.mean(within or [0.0])) * min(1.0, inflation / length))
    return excess, np.sqrt(size * variance), freedom


def _changed(own: Floats, standing: Bools) -> Bools:
    """Ranks with a change between neighbouring stretches that is far larger than all others have."""
    found, steps = np.zeros(len(own), np.bool_), own.shape[1]
    for length in AROUND:
        if steps < 3 * length or standing.all():
            continue
        sums = np.cumsum(np.nan_to_num(np.pad(own, ((0, 0), (1, 0)))), axis=1)
        means = (sums[:, length:] - sums[:, :-length]) / length
        change = means[:, length:] - means[:, :-length]
        others = change[~standing]
        freedom = max(1.0, others.size / (2 * length))
        tried = len(own) * change.shape[1] * len(AROUND)
        needed = float(upper_quantiles(CHANCE / tried, np.array(freedom)))
        found |= change.max(axis=1) > needed * float(np.sqrt((others**2).mean()))
    return found
