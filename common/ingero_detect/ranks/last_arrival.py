"""How often each rank arrives last; significant also where a rank is late in some steps only. Pure."""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, row_medians
from ingero_detect.threshold import MAD_TO_SIGMA

MAX_AUTOCORRELATION: Final = 0.97
"""Lag-1 autocorrelation of steps above which the error is not increased further."""

FAR_SIGMAS: Final = 6.0
"""Usual deviations from the median of a step by which the last rank is behind the one before it in a stall."""

SAME_STEPS: Final = 0.75
"""Share of the steps in which one of two rows is far, from which on they have one cause if both are far."""


USUAL_COSTS: Final = 2.0
"""How many times as much as usual a step costs at most that counts for a habit of being last."""


def variance_inflation(product: float, power: float, steps: int) -> float:
    """Variance of a sum of steps relative to independent steps, from a lag-1 autocorrelation corrected for bias.

    Kendall 1954. `product`: sum of products of neighbouring values; `power`: sum of squares; both about the middle.
    """
    if not power > 0:
        return 1.0
    ratio = product / power
    ratio = min(max((steps * ratio + 1) / max(steps - 4, 1), 0.0), MAX_AUTOCORRELATION)
    return (1 + ratio) / (1 - ratio)


def residuals_by_step(values: Floats, alike: Ints, fewest: int = 2) -> Floats:
    """Every value minus the median of its step over ranks that do the same work, if there are at least `fewest`."""
    found = values.copy()
    for kind in np.unique(alike).tolist():
        members = alike == kind
        if members.sum() >= fewest:
            found[members] -= median_by_step(values[members])
    return found


def median_by_step(values: Floats) -> Floats:
    """Median over rows by step; NaN for a step without values."""
    found = np.full(values.shape[1], np.nan)
    known = np.isfinite(values).any(axis=0)
    found[known] = row_medians(values[:, known].T)
    return found


def _tables(values: Floats, alike: Ints) -> Iterator[tuple[Ints, Floats]]:
    """The rows of each kind, and their values in the steps that nearly all of them have."""
    for kind in np.unique(alike).tolist():
        members = np.flatnonzero(alike == kind)
        table = values[members]
        yield members, table[:, np.isfinite(table).sum(axis=0) >= max(2, 0.8 * len(members))]


def frequently_last(
    values: Floats, alike: Ints, chance: float, stretch: Floats, whole: bool = True
) -> tuple[Bools, Floats]:
    """Ranks that are last among ranks with the same work more often than `chance` allows, and the mean cost per step.

    Without a fault every rank is last equally often (binomial). `stretch` is, by rank, the variance of a sum of steps
    relative to independent steps; it is increased for a rank that is last in runs. The cost of a step is the distance
    from the last rank to the one before it, without what single steps exceed the others by.

    Of a `whole` timeline the same is asked of those steps alone in which the last rank is far behind, as whoever is
    last in the other steps tells nothing. Stalls that last for several steps count less, stalls in a rhythm do not.
    Their cost counts if they are too many; a rank that is only last too often, by little, has pauses like others.
    """
    often, cost = np.zeros(len(values), np.bool_), np.zeros(len(values))
    for members, table in _tables(values, alike):
        steps = table.shape[1]
        if len(members) < 2 or not steps:
            continue
        usual = MAD_TO_SIGMA * float(np.nanmedian(np.abs(table - median_by_step(table))))
        table = np.where(np.isfinite(table), table, -np.inf)
        last = table.argmax(axis=0)
        second = np.partition(table, -2, axis=0)[-2]
        gap = table[last, np.arange(steps)] - second
        far = gap > FAR_SIGMAS * usual
        for number, rank in enumerate(members.tolist()):
            was = last == number
            own = at_most_repeated(np.where(was, gap, 0.0), _needed(len(members), chance))
            if _too_often(was, steps, len(members), chance, partial(_in_runs, stretch=stretch[rank])):
                often[rank], cost[rank] = True, _usual_cost(own)
            if whole and _too_often(was & far, int(far.sum()), len(members), chance, long_variance_inflation):
                often[rank], cost[rank] = True, max(float(cost[rank]), float(np.where(far, own, 0.0).mean()))
    return often, cost


def _usual_cost(costs: Floats) -> float:
    """Mean cost of a step in which a rank is among the last too often, each at most twice as large as usual.

    So pauses that strike all ranks now and then are not added to a habit of being last by a hair.
    """
    above = costs[costs > 0]
    return float(np.minimum(costs, USUAL_COSTS * np.median(above)).mean()) if len(above) else 0.0


def at_most_repeated(costs: Floats, times: int) -> Floats:
    """Costs (of each row), each at most as large as so many of them are.

    So a single pause is not added to a habit of being last by a hair.
    """
    place = -min(times, costs.shape[-1])
    found: Floats = np.minimum(costs, np.partition(costs, place, axis=-1)[..., place, None])
    return found


def _needed(ranks: float, chance: float) -> int:
    """How often a rank has to be last in a row so that chance does not explain it."""
    return math.ceil(math.log(1 / chance) / math.log(ranks))


def frequently_far(values: Floats, alike: Ints, chance: float, alone: float = 0.0) -> tuple[Bools, Floats]:
    """Rows that are far above like ones more often than `chance` allows, and the mean cost per step.

    Several rows may be far above the others in one step, such as the ranks of a host. Without a fault all rows are
    equally often among them (binomial with the mean probability, which is at least as wide as with one for each
    number of far rows; Hoeffding 1956). Rows that are far in the same steps belong together: of so many rows, one of
    the sets of that size is found by `chance`, or by the chance `alone` if no other row is ever far. The cost of a
    step is the distance to the highest row that is not far.
    """
    often, cost = np.zeros(len(values), np.bool_), np.zeros(len(values))
    for members, table in _tables(values, alike):
        apart = table - median_by_step(table)
        apart = np.where(np.isfinite(apart), apart, 0.0)
        far = apart > FAR_SIGMAS * MAD_TO_SIGMA * float(np.median(np.abs(apart))) if apart.size else apart > 0
        some = far.any(axis=0)
        if not some.any():
            continue
        one_of = 1 / float(far[:, some].mean())
        gap = np.where(far, apart - np.where(far, -np.inf, apart).max(axis=0), 0.0)
        cost[members] = gap.mean(axis=1)
        for number, row in enumerate(members.tolist()):
            sure = max(chance, alone / len(members)) if far[number][some].all() else chance
            own = sure * max(1, int(_shares_steps(far, number).sum()))
            often[row] = _too_often(far[number], int(some.sum()), one_of, own, long_variance_inflation)
        _join(often, far, members)
    return often, cost


def frequently_among_last(
    values: Floats, alike: Ints, share: float, chance: float, stretch: Floats
) -> tuple[Bools, Floats]:  # fmt: skip
    """Ranks that are among this share of the last ones more often than `chance` allows, and the mean cost per step.

    So ranks of a host are found that are late together by a different time in each step. `stretch` as of
    `frequently_last`. The cost of a step is the distance to the last rank that is not among them.
    """
    often, cost = np.zeros(len(values), np.bool_), np.zeros(len(values))
    for members, table in _tables(values, alike):
        count = int(share * len(members))
        if count < 2 or not table.shape[1]:
            continue
        table = np.where(np.isfinite(table), table, -np.inf)
        next_one = np.partition(table, -count - 1, axis=0)[-count - 1]
        among = table > next_one
        own = at_most_repeated(np.where(among, table - next_one, 0.0), _needed(len(members) / count, chance))
        cost[members] = [_usual_cost(costs) for costs in own]
        for number, rank in enumerate(members.tolist()):
            often[rank] = _too_often(
                among[number], table.shape[1], len(members) / count, chance, partial(_in_runs, stretch=stretch[rank])
            )
        _join(often, among, members)
    return often, cost


def _join(often: Bools, far: Bools, members: Ints) -> None:
    """Add the rows that are far in the same steps as one that is found."""
    for row in np.flatnonzero(often[members]).tolist():
        often[members[_shares_steps(far, row)]] = True


def _shares_steps(far: Bools, row: int) -> Bools:
    """Which rows are far in about the same steps as one of them, which is."""
    return np.asarray((far & far[row]).sum(axis=1) >= SAME_STEPS * np.maximum((far | far[row]).sum(axis=1), 1))


def _in_runs(happens: Bools, stretch: float) -> float:
    """Variance of a number of events relative to independent ones: that of the steps, or more for runs."""
    apart = happens - happens.mean()
    own = variance_inflation(float(apart[1:] @ apart[:-1]), float(apart @ apart), len(happens))
    return max(float(stretch), own)


def _too_often(happens: Bools, among: int, ranks: float, chance: float, inflation: Callable[[Bools], float]) -> bool:
    """Whether a rank is last in more of so many steps than `chance` allows, given how those follow one another."""
    times = int(happens.sum())
    if times * ranks <= among:
        return False
    runs = inflation(happens)
    return times / runs >= min_last_count(max(1, int(among / runs)), ranks, chance)


def long_variance_inflation(happens: Bools) -> float:
    """Variance of a number of events relative to independent ones, from autocorrelations up to a quarter of the time.

    Newey and West 1987. Unlike that of one lag it is not taken in by a rhythm, whose number varies less.
    """
    apart = happens - happens.mean()
    power, steps = float(apart @ apart), len(happens)
    lags = np.arange(1, steps // 4 + 1)
    if not power > 0 or not len(lags):
        return 1.0
    found = np.array([float(apart[lag:] @ apart[:-lag]) for lag in lags.tolist()]) / power + 1 / steps
    return max(1.0, 1 + 2 * float((1 - lags / (len(lags) + 1)) @ found))


@lru_cache(maxsize=1024)
def min_last_count(steps: int, ranks: float, chance: float) -> int:
    """The smallest number of last arrivals that one of `ranks` ranks reaches with at most this chance; binomial."""
    p = 1 / ranks
    number = np.arange(steps + 1)
    factorials = np.append(0.0, np.cumsum(np.log(number[1:])))
    ways = factorials[-1] - factorials - factorials[::-1]
    logs = ways + number * np.log(p) + (steps - number) * np.log1p(-p)
    tail = np.cumsum(np.exp(logs)[::-1])[::-1]
    enough = np.flatnonzero(tail <= chance)
    return int(enough[0]) if len(enough) else steps + 1
