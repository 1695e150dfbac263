"""What unequal work explains of the order in which ranks arrive at collectives. Pure.

All ranks leave a collective together, so a rank arrives at the next one later by what its work takes longer. How long
an amount of work takes is learnt from waits alone: from their differences within collectives, less each rank's own
mean, so that neither a slow step nor a slow rank changes it. The slope of the learnt curve is never negative and
changes linearly between knots. (`ingero_detect.ranks.work` reads durations from a timeline and needs no such detour.)

In all tables rows are collectives and columns are ranks; NaN where nothing is known.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, row_medians
from ingero_detect.threshold import MAD_TO_SIGMA

KNOTS: Final = 4
"""Amounts of work at which the slope is learnt."""

REFINEMENTS: Final = 3

ROBUST_SIGMAS: Final = 2.0
"""A wait that deviates more counts with this deviation only."""

MARGIN_SIGMAS: Final = 4.0
"""Standard errors by which the learnt time may be wrong."""

PERSISTENT_ERROR: Final = 0.2
"""Part of the time explained by a rank's usual work that may be wrong, as amounts of work are not exact."""

LEAST_DIFFERENCE: Final = 0.01
"""Amounts of work that differ less, relative to the larger, are equal."""

MOST_FITTED: Final = 4_096
"""Points from which a curve is learnt; of more, every second, third and so on collective counts."""

ROUNDS_OF_MEANS: Final = 3
"""Subtractions of the means of rows and columns; the first is exact where nothing is missing."""

_TINY: Final = 1e-9


def told(work: Floats) -> Bools:
    """By collective, whether half of its ranks, at least two, tell their work."""
    return np.asarray(2 * np.isfinite(work).sum(axis=1) >= max(4, work.shape[1]))


def differing(work: Floats) -> Bools:
    """By collective, whether some ranks do more work than others."""
    least, most = np.fmin.reduce(work, axis=1), np.fmax.reduce(work, axis=1)
    return np.asarray(most - least > LEAST_DIFFERENCE * most)


@dataclass(frozen=True)
class WorkCurve:
    """How long work takes, by slopes at knots, milliseconds for each unit; `covariance` is that of the slopes."""

    knots: Floats
    slopes: Floats
    covariance: Floats


@dataclass(frozen=True)
class ExplainedTime:
    """By how many milliseconds ranks arrive later because of their work, and by how much that may be wrong.

    All is relative to `usual`, the median work of each collective. `beyond`: more work than was ever seen; then
    `expected` is that of the most that was seen.
    """

    work: Floats
    usual: Floats
    expected: Floats
    margin: Floats
    beyond: Bools

    def certain(self) -> Floats:
        """The part that is certain."""
        return np.asarray(np.sign(self.expected) * np.maximum(np.abs(self.expected) - self.margin, 0.0))

    def at_least(self, rank: int) -> Floats:
        """The least that the work of one rank explains."""
        expected, margin = self.expected[:, rank], self.margin[:, rank]
        more = np.maximum(expected - margin, 0.0)
        return np.asarray(np.where(self.work[:, rank] > self.usual, more, np.minimum(expected, 0.0)))

    def at_most(self, rank: int) -> Floats:
        """The most that the work of one rank may explain, or infinity; less work than usual explains nothing.

        A rank that always has less work need not arrive earlier: figures of different ranks may not be comparable.
        """
        mean = float(np.nan_to_num(self.expected[:, rank]).mean())
        persistent = PERSISTENT_ERROR * mean if mean > 0 else -mean
        bound = self.expected[:, rank] + self.margin[:, rank] + persistent
        bound = np.where(self.beyond[:, rank], np.inf, bound)
        return np.asarray(np.where(self.work[:, rank] > self.usual, bound, np.minimum(bound, max(0.0, -mean))))


def learn_curve(waited: Floats, work: Floats) -> WorkCurve | None:
    """The curve of ranks that waited so many milliseconds; `None` if they all do equal work."""
    known = np.isfinite(work) & np.isfinite(waited)
    if not known.any():
        return None
    knots = np.quantile(work[known], np.linspace(0, 1, KNOTS))
    every = -(-work.size // MOST_FITTED)
    waited, work, known = waited[::every], work[::every], known[::every]
    knots = knots[np.append(True, np.diff(knots) > LEAST_DIFFERENCE * knots[1:])]
    if len(knots) < 2 or not known.any():
        return None
    basis = np.where(known[..., None], _basis(np.where(known, work, knots[0]), knots), 0.0)
    apart = _without_means(basis, known)[known]
    # A direction in which no rank's work varies gets no slope, and a very large error.
    floor = _TINY * float(np.square(basis - basis[known].mean(axis=0))[known].sum()) + _TINY**2
    gram = apart.T @ apart + floor * np.eye(len(knots))
    arrival = np.where(known, -waited, 0.0)
    target, slopes, sigma = arrival, np.zeros(len(knots)), 0.0
    for _ in range(REFINEMENTS):
        slopes = _not_negative(gram, apart.T @ _without_means(target[..., None], known)[known][:, 0])
        rest = _without_medians(np.where(known, arrival - basis @ slopes, np.nan))
        sigma = MAD_TO_SIGMA * float(np.median(np.abs(rest[known])))
        # So a rank that is late at times changes the curve no more than noise does.
        extreme = rest - np.clip(rest, -ROBUST_SIGMAS * sigma, ROBUST_SIGMAS * sigma)
        target = np.where(known, arrival - extreme, 0.0)
    return WorkCurve(knots, slopes, np.asarray(sigma**2 * np.linalg.inv(gram)))


def explained_time(curve: WorkCurve | None, work: Floats) -> ExplainedTime:
    """What a curve explains of the arrivals."""
    usual = row_medians(work)
    than = usual[:, None]
    if curve is None:
        unknown = np.where(_equal(work, than), 0.0, np.inf)
        return ExplainedTime(work, usual, np.zeros(work.shape), unknown, np.zeros(work.shape, np.bool_))
    low, high = curve.knots[0], curve.knots[-1]
    basis = _basis(np.clip(work, low, high), curve.knots) - _basis(np.clip(usual, low, high), curve.knots)[:, None]
    error = np.einsum("nrj,jk,nrk->nr", basis, curve.covariance, basis)
    margin = np.where(_equal(work, than), 0.0, MARGIN_SIGMAS * np.sqrt(np.maximum(error, 0.0)))
    return ExplainedTime(work, usual, basis @ curve.slopes, margin, work > high * (1 + LEAST_DIFFERENCE))


def steadied(waited: Floats, work: Floats) -> Floats:
    """The waits with the noise of ranks that always do more work reduced to that of the others.

    Noise grows with the work, so such a rank would be last more often although it is healthy.
    """
    middle = row_medians(waited)[:, None]
    apart = waited - middle
    own = row_medians(apart.T)
    above = apart - own
    # Longer waits are those of early arrivals, which lateness does not spread.
    spread = row_medians(np.where(above >= 0, above, np.nan).T)
    ratio = row_medians((work / np.maximum(row_medians(work), _TINY)[:, None]).T)
    calmer = np.maximum(row_medians(spread[None]) / np.maximum(spread, _TINY), 1 / np.maximum(ratio, _TINY))
    return np.asarray(middle + own + above * np.clip(calmer, 0.0, 1.0))


def _equal(work: Floats, other: Floats) -> Bools:
    return np.asarray(np.abs(work - other) <= LEAST_DIFFERENCE * np.maximum(work, other))


def _basis(work: Floats, knots: Floats) -> Floats:
    """By knot, the time of this much work if the slope is 1 there and 0 at the other knots."""
    found = np.zeros((*work.shape, len(knots)))
    for low in range(len(knots) - 1):
        width = knots[low + 1] - knots[low]
        part = np.clip((work - knots[low]) / width, 0.0, 1.0)
        found[..., low] += width * (part - part**2 / 2)
        found[..., low + 1] += width * part**2 / 2
    return found


def _without_means(table: Floats, known: Bools) -> Floats:
    """Values, 0 where they are not known, less the means of their rows and columns."""
    rows, columns = (np.maximum(known.sum(axis=axis, keepdims=True), 1)[..., None] for axis in (1, 0))
    for _ in range(1 if known.all() else ROUNDS_OF_MEANS):
        table = np.where(known[..., None], table - table.sum(axis=1, keepdims=True) / rows, 0.0)
        table = np.where(known[..., None], table - table.sum(axis=0, keepdims=True) / columns, 0.0)
    return table


def _without_medians(table: Floats) -> Floats:
    table = table - row_medians(table)[:, None]
    return table - row_medians(table.T)


def _not_negative(gram: Floats, product: Floats) -> Floats:
    """Least squares without negative slopes: those that would be negative are left out, the lowest first."""
    free, slopes = np.ones(len(product), np.bool_), np.zeros(len(product))
    while free.any():
        found = np.linalg.solve(gram[np.ix_(free, free)], product[free])
        if found.min() >= 0:
            slopes[free] = found
            break
        free[np.flatnonzero(free)[np.argmin(found)]] = False
    return slopes
