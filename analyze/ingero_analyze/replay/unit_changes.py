"""Finds rows in another unit than those beside them, such as milliseconds among seconds, and converts them. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ingero_detect.audit.audit_tiers import robust_spread
from ingero_detect.grouped import Bools, Floats, Ints, grouped_median

TIMES: Final = np.log([60.0, 1e3, 3600.0, 1e6, 1e9])
OTHERS: Final = np.sort(np.append(TIMES, np.log([1024.0, 1024.0**2])))
"""Logs of the factors by which values differ that are written in two units of one quantity: of time, or prefixes."""

PERCENT: Final = float(np.log(100.0))
TINY: Final = 1e-9
LEAST_PERCENT: Final = float(np.log(20.0))
"""Logs: what shares are at most, and at least in the middle, where they are written as percent and as parts of 1."""

FAR: Final = float(np.log(50.0))
"""Log of the factor by which the values of two units differ at least."""

SIDE: Final = 20
"""Rows in the usual unit, before or after, with which one in another unit is compared."""

FEWEST: Final = 5
FEWEST_USUAL: Final = 2 * SIDE
FEWEST_PEERS: Final = 3
"""What tells another unit at least: rows in it, rows in the usual one, or else peers."""

AGREEING: Final = 0.9
"""Share of the rows that are as far away which one factor has to explain."""

DEVIATIONS: Final = 3.0
NEAREST, FURTHEST, FURTHEST_OF_PEERS = 0.01, 0.1, 0.3
"""How far from a factor (log units) the rows may be: standard deviations of the node's values, or of what peers
differ by, within limits."""

OUTLYING: Final = 0.5
"""Log of the factor by which values differ from the usual ones that do not tell how much these vary."""

LEAST_SPREAD, MOST_SPREAD = 0.2, 3.0
"""How much the values in the other unit vary, as a multiple of what is usual: a node that has stopped, or repeats a
value, varies otherwise than one that works."""


@dataclass(frozen=True)
class OtherUnit:
    """Rows of a source in another unit: by what its values are multiplied there, and from when to when."""

    source: int
    factor: float
    rows: int
    since: float
    until: float


def in_one_unit(
    time: Floats, source: Ints, value: Floats, cohort: Ints, tick: float, of_times: bool
) -> tuple[Floats, list[OtherUnit]]:
    """The values in the unit that is usual in their cohort, and which of them were in another one.

    A node that becomes 1,000 times slower from one row to the next, to within the error of a mean, and then varies as
    it did before, reports milliseconds. One that fails has no reason to stop at such a number. Rows are sorted by
    source and time; `value` is NaN where a node does not work; `cohort`: by source; `tick`: seconds;
    `of_times`: whether the values are those of times.
    """
    working = np.flatnonzero(value > 0)
    when, who, logs = time[working], source[working], np.log(value[working])
    found, converted = list[OtherUnit](), value.copy()
    order = np.argsort(cohort[who], kind="stable")
    for here in np.split(order, np.flatnonzero(np.diff(cohort[who[order]])) + 1) if len(order) else ():
        for rows, factor in _of_cohort(when[here], who[here], logs[here], tick, of_times):
            places = working[here[rows]]
            converted[places] /= factor
            first, last = places[0], places[-1]
            found.append(OtherUnit(int(source[first]), factor, len(places), float(time[first]), float(time[last])))
    return converted, found


def _of_cohort(time: Floats, source: Ints, logs: Floats, tick: float, of_times: bool) -> Iterator[tuple[Ints, float]]:
    """Rows of a source that are in another unit than is usual in the cohort, and by what their values are
    multiplied. `time`, `source`, `logs`: of the rows of the cohort."""
    edges = np.flatnonzero(np.diff(source, prepend=-1, append=-1)).tolist()
    parts = [slice(start, stop) for start, stop in pairwise(edges)]
    medians = np.array([np.median(logs[part]) for part in parts])
    level = _middle(medians)
    distance = logs - level
    if not (np.abs(distance) > FAR / 2).any():
        return
    factors = TIMES if of_times else OTHERS
    if not of_times and _are_shares(logs, distance):
        factors = np.sort(np.append(factors, PERCENT))
    if len(parts) >= FEWEST_PEERS:
        distance -= _common(time, distance, tick, factors)
    peers = _UsualNodes.of([distance[part] for part in parts])
    for part in parts:
        own = distance[part]
        for far in (own > FAR / 2, own < -FAR / 2):
            if np.count_nonzero(far) >= FEWEST and (factor := _factor(logs[part], own, far, peers, factors)):
                yield part.start + np.flatnonzero(far & (np.abs(own - np.log(factor)) <= FAR / 2)), factor


def _are_shares(logs: Floats, distance: Floats) -> bool:
    """Whether values far from one another can be parts of 1 and percent; `distance`: from the level of the cohort."""
    above = distance > (-FAR if np.any(distance < -FAR / 2) else FAR) / 2
    high, low = logs[above], logs[~above]
    return bool(low.max() <= TINY and high.max() <= PERCENT + TINY and np.median(high) >= LEAST_PERCENT)


def _common(time: Floats, distance: Floats, tick: float, factors: Floats) -> Floats:
    """By row how far all rows of its tick are from the level of the cohort, whatever unit each of them is in."""
    logs = np.concatenate((-factors[::-1], [0.0], factors))
    nearest = np.searchsorted((logs[1:] + logs[:-1]) / 2, distance)
    ticks, of = np.unique(np.floor(time / tick), return_inverse=True)
    return grouped_median(distance - logs[nearest], of, len(ticks))[1][of]


@dataclass(frozen=True)
class _UsualNodes:
    """The nodes of a cohort that have its usual unit: what they differ by, how much one varies, how many they are."""

    between: float
    within: float
    count: int

    @classmethod
    def of(cls, distances: list[Floats]) -> "_UsualNodes":
        """By node how far its rows are from the level of the cohort."""
        medians = np.array([np.median(each) for each in distances])
        usual = np.flatnonzero(np.abs(medians) <= FAR / 2)
        within = [_spread(distances[place]) for place in usual.tolist()]
        return cls(robust_spread(medians[usual]), float(np.median(within)), len(usual))


def _factor(logs: Floats, own: Floats, far: Bools, peers: _UsualNodes, factors: Floats) -> float | None:
    """By what the values that are far away are multiplied, if one of the factors explains them. `logs`: of the values
    of a source; `own`: how far they are from those of the cohort; `far`: the rows."""
    usual = np.abs(own) <= FAR / 2
    if np.count_nonzero(usual) >= FEWEST_USUAL:
        moves, spread = _moves(own, far, usual)
        limit = min(max(DEVIATIONS * spread, NEAREST), FURTHEST)
    elif peers.count >= FEWEST_PEERS:
        moves, spread = own[far], peers.within
        limit = min(max(DEVIATIONS * peers.between, FURTHEST), FURTHEST_OF_PEERS)
    else:
        return None
    if len(moves) < FEWEST or not spread:
        return None
    middle = _middle(moves)
    steps = np.copysign(factors, middle)
    nearest = steps[np.argmin(np.abs(steps - middle))]
    agreeing = np.abs(moves - middle) <= OUTLYING
    varies = np.std(moves[agreeing]) <= MOST_SPREAD * spread and _spread(logs[far]) >= LEAST_SPREAD * spread
    if varies and np.mean(agreeing) >= AGREEING and abs(nearest - middle) <= limit:
        return float(np.exp(nearest))
    return None


def _moves(own: Floats, far: Bools, usual: Bools) -> tuple[Floats, float]:
    """How far rows are from the usual ones next to them, of those that have such within `SIDE` rows, and the standard
    deviation of the usual ones."""
    places, rows = np.flatnonzero(usual), np.flatnonzero(far)
    medians = np.median(np.lib.stride_tricks.sliding_window_view(own[places], SIDE), axis=1)
    spread = _spread(own[places][SIDE:] - medians[:-1])
    after = np.searchsorted(places, rows)
    ahead, behind = np.append(places, len(own) + SIDE)[after], np.append(-SIDE - 1, places)[after]
    earlier = ((rows - behind <= ahead - rows) | (after > len(places) - SIDE)) & (after >= SIDE)
    start = np.where(earlier, after - SIDE, after)
    near = (np.where(earlier, rows - behind, ahead - rows) <= SIDE) & (start < len(medians))
    return own[rows[near]] - medians[start[near]], spread


def _spread(logs: Floats) -> float:
    """The standard deviation of what is near the middle one: values may stand at a bound."""
    return float(np.std(logs[np.abs(logs - _middle(logs)) <= OUTLYING]))


def _middle(values: Floats) -> float:
    """The median; of two values in the middle the lower one, as between those of two units there is none."""
    return float(np.sort(values)[(len(values) - 1) // 2])
