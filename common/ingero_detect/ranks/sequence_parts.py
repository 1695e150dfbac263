"""Removes from a timeline what the parts of a long sequence explain, if they are more work from rank to rank. Pure.

Ranks in a ring each compute a part of a sequence. Under a causal mask the attention of a part is the longer the later
it is, unless the parts are cut so that all are equal. So the compute of ranks increases along the ring, by the same
amount from each rank to the next one, in every step and every ring. Slow chips do not look so. What follows this line
is taken out of durations and waits, as for work that is known; what a rank is above its own place on it remains.
"""

from itertools import combinations
from typing import Final

import numpy as np

from ingero_detect.grouped import Floats, Ints
from ingero_detect.ranks.calm_compute import kinds_of_groups
from ingero_detect.ranks.last_arrival import residuals_by_step
from ingero_detect.ranks.shared_data import DataGroups
from ingero_detect.ranks.timeline import FEWEST_STEPS, Timeline, sum_by_rank_and_step, well_covered_steps
from ingero_detect.ranks.work import EqualWork, with_shorter_operations
from ingero_detect.threshold import MAD_TO_SIGMA

FEWEST_PLACES: Final = 3
FEWEST_PLACES_OF_FEW: Final = 4
FEW_RINGS: Final = 2
"""Ranks of a ring, and of one of so few rings, that show a line."""

NEAR: Final = 0.12
"""Share of the whole increase by which a place may be off the line."""

SMALLEST_INCREASE: Final = 0.03
SMALLEST_OF_ONE: Final = 0.1
"""Increase from the first to the last place, relative to the mean, from which it is one; of a single ring."""

ALONG: Final = 0.75
"""Share of the rings along which compute must increase by half of that at least."""

CLEAR: Final = 6.0
"""Usual differences between ranks of one place that the increase must exceed."""


def without_unequal_parts(line: Timeline, shared: DataGroups, alike: Ints) -> EqualWork | None:
    """The timeline as it would be with equal parts; `None` where parts are equal, or do not increase along rings."""
    computes = ~line.collective
    raw = sum_by_rank_and_step(line, computes, line.duration)
    steps = well_covered_steps(raw)
    if steps.sum() < FEWEST_STEPS or not np.isfinite(raw[:, steps]).any(axis=1).all():
        return None
    for rings in kinds_of_groups(shared, alike):
        place = _places(rings)
        if place is None:
            continue
        whole = _table(_relative(raw[:, steps], rings), rings, place)
        chosen = _clean_rings(whole)
        if not _increases(whole, _profile(whole, chosen)):
            continue
        scale = np.ones(len(line.rank))
        for op in np.unique(line.op[computes]).tolist():
            rows = computes & (line.op == op)
            table = sum_by_rank_and_step(line, rows, line.duration)[:, steps]
            if np.isfinite(table).mean() < 0.8 or not np.isfinite(table).any(axis=1).all():
                continue
            usual = _line(_profile(_table(_relative(table, rings), rings, place), chosen))
            scale[rows] = (usual.mean() / usual)[place][line.rank[rows]]
        return with_shorter_operations(line, scale)
    return None


def _places(rings: Ints) -> Ints | None:
    """By rank, its place in its ring; `None` where rings differ in size or are too small."""
    sizes = np.bincount(rings)
    fewest = FEWEST_PLACES_OF_FEW if len(sizes) <= FEW_RINGS else FEWEST_PLACES
    if sizes.min() != sizes.max() or sizes[0] < fewest:
        return None
    place = np.empty(len(rings), np.int64)
    place[np.argsort(rings, kind="stable")] = np.tile(np.arange(sizes[0]), len(sizes))
    return place


def _relative(table: Floats, rings: Ints) -> Floats:
    """By rank, by which share it computes longer than the median of its ring in the same step."""
    apart = residuals_by_step(table, rings)
    return np.asarray(np.nanmedian(apart / np.maximum(table - apart, 1e-12), axis=1))


def _table(relative: Floats, rings: Ints, place: Ints) -> Floats:
    """The values by (ring, place)."""
    table = np.empty((int(rings.max()) + 1, int(place.max()) + 1))
    table[rings, place] = relative
    return table


def _clean_rings(table: Floats) -> Ints:
    """The rings whose median is the usual one: all; of two the straighter one, as a rank of the other may be slow."""
    if len(table) != FEW_RINGS:
        return np.arange(len(table))
    return np.array([int(np.argmin([np.abs(1 + own - _line(own)).max() for own in table]))])


def _profile(table: Floats, rings: Ints) -> Floats:
    """The usual value of each place over these rings."""
    return np.asarray(np.median(table[rings], axis=0))


def _line(profile: Floats) -> Floats:
    """One plus a straight line through most places: the median of the slopes between all pairs (Theil and Sen)."""
    slope = float(np.median([(profile[b] - profile[a]) / (b - a) for a, b in combinations(range(len(profile)), 2)]))
    steep = slope * np.arange(len(profile))
    return np.asarray(np.maximum(1 + steep + np.median(profile - steep), 0.1))


def _increases(table: Floats, profile: Floats) -> bool:
    """Whether compute increases along all rings, by the same from place to place and beyond what ranks differ by."""
    line = _line(profile)
    whole = float(line[-1] - line[0])
    off = int((np.abs(1 + profile - line) > NEAR * whole).sum())
    if whole < (SMALLEST_OF_ONE if len(table) == 1 else SMALLEST_INCREASE) or off > (len(profile) - 2) // 4:
        return False
    own = 1 + table - line
    spread = MAD_TO_SIGMA * float(np.median(np.abs(own - np.median(own))))
    along = np.median(np.diff(table, axis=1), axis=1)
    return whole > CLEAR * spread and float(np.mean(along > 0.5 * whole / (len(profile) - 1))) >= ALONG
