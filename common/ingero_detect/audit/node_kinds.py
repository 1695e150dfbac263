"""Which nodes are of one kind, such as one model of GPU, where no column tells it: by levels of their speed. Pure.

Nodes of another kind are no faults. They are told from faulty ones by their levels:
they are many, slow by the same share, and nothing is between them and the others.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ingero_detect.audit.audit_tiers import FEWEST_PARENTS, FEWEST_UNITS, SMALLEST_SPREAD, robust_spread
from ingero_detect.audit.chip_effects import unit_effects
from ingero_detect.audit.chip_levels import (
    ALIKE,
    ALIKE_IF_SMALL,
    FEW,
    LEVELS_APART,
    SMALL_DISTANCE,
    SMALL_SHARE,
    SPLIT_SHARE,
)
from ingero_detect.grouped import Floats, Ints, grouped_median

KIND_SHARE: Final = 0.15
KIND_MEMBERS: Final = 3
"""Least share and number of nodes of one kind."""

SMALL_KIND: Final = 5
"""Least number of nodes of one that has `SMALL_SHARE` of all, is hardly wider than the other, and near."""

MOST_KINDS: Final = 4

LEAST_DISTANCE: Final = 0.02
"""Kinds that differ by less are judged as one."""

SAME_SHARE: Final = 0.05
"""Spread of the slower kind, relative to its distance from the faster one, that is none: all are slow by the same."""

MOST_VALUES: Final = 1000
"""Of more nodes, as many are looked at, evenly from the slowest to the fastest."""


@dataclass(frozen=True)
class NodeKinds:
    """`of_unit`: the kind of every unit's node, from 0 for the fastest. `slower`: by kind, than the largest one."""

    of_unit: Ints
    slower: tuple[float, ...] = (0.0,)


def node_kinds(slowness: Floats, unit: Ints, run: Ints, node: Ints, group: Ints) -> NodeKinds:
    """The kinds; one if no more are clear, or where nodes are not known. The arguments are as in a `Population`.

    A small slow kind that is one of the groups, such as a rack, is none where there are enough groups to judge it.
    """
    nodes = int(node.max(initial=-1)) + 1
    one = NodeKinds(np.zeros(len(node), np.int64))
    if nodes < 2 * KIND_MEMBERS:
        return one
    fit = unit_effects(slowness, unit, run, len(node))
    usable = np.isfinite(fit.effect) & (fit.count > 0)
    if usable.sum() < 2 * FEWEST_UNITS or (node[usable] < 0).any():
        return one
    level = grouped_median(fit.effect[usable], node[usable], nodes)[1]
    known = np.isfinite(level)
    borders = _without_groups(_borders(np.sort(level[known])), level[known], group[known] if len(group) else group)
    kind = np.where(usable, np.searchsorted(borders, np.nan_to_num(level[node])), 0)
    chips = np.bincount(kind[usable], minlength=len(borders) + 1)
    if chips.min() < FEWEST_UNITS:
        return one
    levels = grouped_median(fit.effect[usable], kind[usable], len(chips))[1]
    return NodeKinds(kind, tuple((levels - levels[chips.argmax()]).tolist()))


def _borders(ordered: Floats) -> Floats:
    """Values up to which every kind but the slowest reaches, of sorted values."""
    step = -(-len(ordered) // MOST_VALUES)
    thin = ordered[::step]
    for kinds in range(MOST_KINDS, 1, -1):
        sizes = partition(thin, kinds)
        if sizes and _are_kinds(thin, sizes):
            return np.asarray(thin[np.cumsum(sizes)[:-1] - 1] + thin[np.cumsum(sizes)[:-1]]) / 2
    return np.zeros(0)


def _without_groups(borders: Floats, level: Floats, group: Ints) -> Floats:
    """The borders without those of slow kinds that are exactly one group each, and too few to be a kind otherwise."""
    if not len(group) or len(np.unique(group[group >= 0])) < FEWEST_PARENTS:
        return borders
    kind = np.searchsorted(borders, level)
    kept = np.ones(len(borders), np.bool_)
    for one in range(1, len(borders) + 1):
        its = group[kind == one]
        alone = its[0] >= 0 and np.array_equal(group == its[0], kind == one)
        kept[one - 1] = not alone or len(its) >= KIND_SHARE * len(level)
    return borders[kept]


def partition(ordered: Floats, parts: int) -> list[int]:
    """Sizes of the parts of sorted values within which the squares are least (Fisher 1958), each of the least size.

    Empty if there are too few values. As in `two_levels`, the outermost ones are taken for as far as the next one.
    """
    n = len(ordered)
    least = max(KIND_MEMBERS, int(np.ceil(min(KIND_SHARE * n, max(SMALL_KIND, SMALL_SHARE * n)))))
    if n < parts * least:
        return []
    inner = _inner(ordered)
    sums, squares = (np.concatenate(([0.0], np.cumsum(values))) for values in (inner, inner**2))
    best = np.full((parts + 1, n + 1), np.inf)
    best[0, 0] = 0.0
    start = np.zeros((parts + 1, n + 1), np.int64)
    for part in range(1, parts + 1):
        for end in range(part * least, n + 1):
            begin = np.arange((part - 1) * least, end - least + 1)
            size = end - begin
            within = squares[end] - squares[begin] - (sums[end] - sums[begin]) ** 2 / size
            cost = best[part - 1, begin] + within
            place = int(cost.argmin())
            best[part, end], start[part, end] = cost[place], begin[place]
    ends = [n]
    for part in range(parts, 0, -1):
        ends.append(int(start[part, ends[-1]]))
    return np.diff(ends[::-1]).tolist()


def _inner(ordered: Floats) -> Floats:
    """The values, with the outermost ones as far as the next one: single faulty nodes do not make a kind wide."""
    ends = max(2, int(np.ceil(SPLIT_SHARE * len(ordered))))
    return np.clip(ordered, ordered[ends - 1], ordered[-ends])


def _are_kinds(ordered: Floats, sizes: list[int]) -> bool:
    """Whether neighbours are clearly apart, and the slower one is not far wider, by chance at least: faults differ by
    their losses."""
    ends = np.cumsum(sizes)[:-1]
    whole = np.split(ordered, ends)
    for (faster, slower), both in zip(pairwise(np.split(_inner(ordered), ends)), pairwise(whole), strict=True):
        n = len(faster) + len(slower)
        within = np.sqrt((len(faster) * faster.var() + len(slower) * slower.var()) / n)
        distance = float(slower.mean() - faster.mean())
        clear = distance > LEVELS_APART * (1 + FEW / np.sqrt(n)) * max(float(within), SMALLEST_SPREAD)
        usual, its = (max(_spread(part), SMALLEST_SPREAD) for part in (faster, slower))
        alike = its <= max(ALIKE * (1 + FEW / np.sqrt(len(slower))) * usual, SAME_SHARE * distance)
        if min(len(faster), len(slower)) < KIND_SHARE * len(ordered):
            alike &= distance <= SMALL_DISTANCE and _are_as_wide(*sorted(both, key=len))
        if distance < LEAST_DISTANCE or not clear or not alike:
            return False
    return True


def _are_as_wide(fewer: Floats, more: Floats) -> bool:
    """Whether a small kind is hardly wider than the other one, but for chance."""
    most = ALIKE_IF_SMALL * (1 + 1 / np.sqrt(len(fewer)))
    return bool(fewer.std(ddof=1) <= most * max(_spread(more), SMALLEST_SPREAD))


def _spread(values: Floats) -> float:
    """A robust spread; of few values, which it would often miss, the standard deviation."""
    return robust_spread(values) if len(values) >= FEWEST_UNITS else float(values.std(ddof=1))
