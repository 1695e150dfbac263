"""Finds groups of nodes whose load changes apart from the others', as that of jobs or models of GPU that no column
tells. Pure.

A group of faulty nodes loses and recovers. One that does something else also gains on the others, or follows what all
do by another amount every time, or takes turns with the others at being ahead; and where several groups changed, each
against all others, they do something else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ingero_analyze.replay.level_blocks import BlockOfTicks, KeptLevels, levels_of
from ingero_analyze.replay.numbering import CohortMembers, CohortTick
from ingero_detect.grouped import Bools, Floats, Ints, row_medians
from ingero_detect.threshold import MAD_TO_SIGMA

BLOCK_TICKS: Final = 5
"""Ticks of a block, over which the level of a node is a median."""

FEWEST: Final = 3
"""Nodes of a group: fewer are not compared with each other, and may as well be faulty."""

FEWEST_GROUPS: Final = 3
"""Groups that changed each at a time of its own: one that did may be faulty, as the nodes of a rack, or repaired."""

FIRST: Final = 6
"""Blocks from whose median it is told what a group gained and lost: a history begins with the warm-up."""

LEAST: Final = 0.05
SPREADS: Final = 4.0
"""What groups change by against each other, log units, and in standard deviations of nodes of one group, at least."""

LASTING: Final = 4
"""Blocks that a gain or loss lasts, one after another: longer than nodes need to come up."""

FEWEST_TURNS: Final = 3
"""Times that the lead changes where groups take turns, both ways in either half of the history: two whole cycles."""

FEWEST_MOVES: Final = 4
"""Common moves, down or up, that groups follow by different amounts, as those of two pauses."""

OFTEN: Final = 2 / 3
"""Share of the common moves, the first one among them, that they follow so."""

OWN_SIDE: Final = 0.8
"""Share of the nodes of each group that are at its level and not at that of the other one while these are apart."""

MOST_LEVELS: Final = 4_000_000
MOST_NODES: Final = 1_000
"""Nodes times blocks up to which levels are kept, 4 bytes each, and nodes of a cohort that are told apart."""


class NodeLevels:
    """Levels of nodes by block, log units."""

    def __init__(self, members: CohortMembers) -> None:
        self._members = members
        self._block = BlockOfTicks(members, BLOCK_TICKS)
        self._levels = KeptLevels(members, MOST_LEVELS)

    def note(self, seen: CohortTick) -> None:
        """Add a tick."""
        if not self._levels.full and (block := self._block.add(seen.place, seen.logs)) is not None:
            self._levels.add(levels_of(block)[0])

    def found(self) -> dict[tuple[int, int], int]:
        """The group of each node in its cohort, by their numbers; only of cohorts that have several."""
        found: dict[tuple[int, int], int] = {}
        for cohort, nodes, levels in self.of_cohorts():
            if len(nodes) >= 2 * FEWEST and (group := hidden_groups(levels)).any():
                found |= {(node, cohort): int(of) for node, of in zip(nodes, group, strict=True)}
        return found

    def of_cohorts(self) -> Iterator[tuple[int, list[int], Floats]]:
        """Cohorts of up to `MOST_NODES` nodes, the numbers of these, and their levels by block."""
        pairs, levels = self._members.pairs, self._levels.table()
        for cohort in np.unique(pairs[:, 1]).tolist() if len(levels) > FIRST else ():
            inside = np.flatnonzero(pairs[:, 1] == cohort)
            if len(inside) <= MOST_NODES:
                yield cohort, pairs[inside, 0].tolist(), levels[:, inside]


def hidden_groups(levels: Floats) -> Ints:
    """The group of every node, from 0, of levels by block and node, log units; NaN where there is none."""
    group = np.zeros(levels.shape[1], np.int64)
    often = 2 * np.isfinite(levels).sum(axis=0) >= len(levels)
    many = np.flatnonzero(often)
    parts = [many] if not (several := _several(levels[:, many])) else [many[part] for part in several]
    often[:] = False
    for number, part in enumerate(parts):
        group[part], often[part] = number, True
    while parts:
        part = parts.pop()
        if (split := _split(levels[:, part])) is not None:
            group[part[split]] = group.max() + 1
            parts += [part[split], part[~split]]
    if group.any():
        group = _nearest(levels, group, often)
    return group


def _split(levels: Floats) -> Bools | None:
    """Which nodes belong to another group than the rest, if there is one."""
    if levels.shape[1] < 2 * FEWEST:
        return None
    usual = np.nanmedian(levels, axis=0)
    common = row_medians(levels - usual)
    apart = levels - usual - common[:, None]
    side = _Two.of(apart, _sides(np.nan_to_num(apart))).nearer(apart)
    if min(np.count_nonzero(side), np.count_nonzero(~side)) < FEWEST:
        return None
    two = _Two.of(apart, side)
    own_work = two.gain_and_lose() or two.follow_differently(common) or two.take_turns(apart, side)
    return side if two.apart() and own_work else None


def _several(levels: Floats) -> list[Ints]:
    """Three groups or more, of nearly all nodes, that changed against each other; none if there are fewer."""
    if levels.shape[1] < FEWEST * FEWEST_GROUPS:
        return []
    step = np.diff(levels - row_medians(levels)[:, None], axis=0)
    step = np.abs(step[np.isfinite(step)])
    least = max(LEAST, SPREADS * MAD_TO_SIGMA * float(np.median(step))) if len(step) else np.inf
    waiting, found = np.arange(levels.shape[1]), list[Ints]()
    alone = 0
    while len(waiting) and alone <= (1 - OWN_SIDE) * levels.shape[1]:
        first = levels[:, waiting[0]]
        alike = np.array([not _changed(levels[:, node] - first, least) for node in waiting.tolist()])
        part, waiting = waiting[alike], waiting[~alike]
        if len(part) < FEWEST:
            alone += len(part)
        elif any(not _changed(_level(levels, part) - _level(levels, other), least) for other in found):
            return []
        else:
            found.append(part)
    enough = len(found) >= FEWEST_GROUPS and not len(waiting)
    return found if enough and not _fail(levels, found, least) else []


def _fail(levels: Floats, groups: list[Ints], least: float) -> bool:
    """Whether half of the nodes are of one group, and no other one ever gained on that: racks that fail one after
    another do that, too."""
    largest = max(groups, key=len)
    if 2 * len(largest) < levels.shape[1]:
        return False
    gains = (_level(levels, group) - _level(levels, largest) for group in groups if group is not largest)
    return not any(_lasts(gain - np.nanmedian(gain[:FIRST]) > least) for gain in gains)


def _level(levels: Floats, nodes: Ints) -> Floats:
    """By block what some nodes do."""
    of_nodes = levels[:, nodes]
    return row_medians(of_nodes - np.nanmedian(of_nodes, axis=0))


def _changed(difference: Floats, least: float) -> bool:
    """Whether a difference by block was at once, or after a time in which it is not known, another one than at first,
    and was so for a while: loads that wander are no work of their own."""
    known = np.isfinite(difference)
    if np.count_nonzero(known) <= FIRST:
        return False
    change = np.nan_to_num(np.abs(difference - np.median(difference[known][:FIRST])))
    last = np.maximum.accumulate(np.where(known, np.arange(len(known)), 0))
    return float(np.abs(_moves(difference[last])).max()) > least and _lasts(change > least)


def _sides(apart: Floats) -> Bools:
    """The best division by what nodes do alike: the leading eigenvector of their correlations, cut where squares are
    least."""
    spread = apart.std(axis=0)
    unit = apart / np.maximum(spread, 1e-9)
    vector = np.linalg.eigh(unit.T @ unit)[1][:, -1]
    order = np.argsort(vector)
    sums, n = np.cumsum(vector[order]), len(order)
    size = np.arange(FEWEST, n - FEWEST + 1)
    between = sums[size - 1] ** 2 / size + (sums[-1] - sums[size - 1]) ** 2 / (n - size)
    side = np.zeros(n, np.bool_)
    side[order[: int(size[between.argmax()])]] = True
    return side


@dataclass(frozen=True)
class _Two:
    """Two groups: by block the levels of both, log units; what the first one was ahead by at first; by what nodes
    differ from their own; and by block whether most nodes are at their own level, and not where they would be if the
    groups had not changed against each other."""

    one: Floats
    other: Floats
    first: float
    spread: float
    clear: Bools

    @classmethod
    def of(cls, apart: Floats, side: Bools, first: float | None = None) -> "_Two":
        """From the distances of all nodes from the common level, by block, and the side of each; `first`: another
        lead to compare with than that at first."""
        one, other = (row_medians(apart[:, part]) for part in (side, ~side))
        difference = one - other
        together = difference[np.isfinite(difference)][:FIRST]
        if first is None:
            first = float(np.median(together)) if len(together) else 0.0
        own, its = (
            np.where(side, of_one[:, None], of_other[:, None])
            for of_one, of_other in ((one, other), (other + first, one - first))
        )
        off = np.abs(apart - own)
        known = np.isfinite(off)
        nearer = known & (off < np.abs(apart - its))
        clear = np.ones(len(apart), np.bool_)
        for part in (side, ~side):
            clear &= nearer[:, part].sum(axis=1) >= np.maximum(1, OWN_SIDE * known[:, part].sum(axis=1))
        return cls(one, other, first, MAD_TO_SIGMA * float(np.median(off[known])), clear)

    @property
    def _difference(self) -> Floats:
        return self.one - self.other

    @property
    def _least(self) -> float:
        return max(LEAST, SPREADS * self.spread)

    def nearer(self, apart: Floats) -> Bools:
        """By node whether it is mostly nearer to the first group; a single long loss of it counts as little."""
        most = 2 * self._least
        off, its = (
            np.nanmean(np.minimum(np.abs(apart - level[:, None]), most), axis=0) for level in (self.one, self.other)
        )
        nearer: Bools = off < its
        return nearer

    def apart(self) -> bool:
        """Whether the groups are anywhere apart."""
        difference = self._difference[np.isfinite(self._difference)]
        return len(difference) > FIRST and float(np.ptp(difference)) > self._least

    def gain_and_lose(self) -> bool:
        """Whether one group was ahead of the other by more than at first, and behind it by more as well."""
        difference = self._difference
        known = np.isfinite(difference)
        change = np.where(known, difference - self.first, 0.0)
        return all(_lasts(known & self.clear & (way > self._least)) for way in (change, -change))

    def take_turns(self, apart: Floats, side: Bools) -> bool:
        """Whether each of them was ahead of the other again and again, by more than usual, as where their days begin
        at different times. A group that fails again and again is mostly at its best, or at its worst."""
        usual = float(np.nanquantile(self._difference, 0.5, method="inverted_cdf"))
        two = _Two.of(apart, side, usual)
        change = np.nan_to_num(two._difference - usual)
        ahead, behind = (_spells(two.clear & (way > two._least)) for way in (change, -change))
        turns = sorted([(start, 1) for start in ahead] + [(start, -1) for start in behind])
        throughout = {(2 * start >= len(change), way) for start, way in turns}
        often = sum(way != before for (_, way), (_, before) in pairwise(turns))
        return often >= FEWEST_TURNS and len(throughout) == 4

    def follow_differently(self, common: Floats) -> bool:
        """Whether they followed most moves of all by different amounts."""
        first, second = (_moves(level + common) for level in (self.one, self.other))
        smaller = np.where(first * second > 0, np.minimum(np.abs(first), np.abs(second)), 0.0)
        moves = _single(smaller, LEAST)
        clear = np.convolve(self.clear, np.ones(3, np.int64), "same") > 0
        differently = (clear & (np.abs(first - second) > self._least))[moves]
        enough = np.count_nonzero(differently) >= max(FEWEST_MOVES, OFTEN * len(moves))
        return bool(enough and differently[0])


def _moves(level: Floats) -> Floats:
    """By block, what the level is after it more than before it; 0 where that is not known."""
    moves = np.zeros(len(level))
    moves[1:-1] = level[2:] - level[:-2]
    return np.nan_to_num(moves)


def _single(size: Floats, least: float) -> Ints:
    """The blocks with the largest moves, of those that follow one another."""
    large = size >= least
    edges = np.flatnonzero(np.diff(np.concatenate(([False], large, [False])).astype(np.int8)))
    return np.array([start + int(size[start:stop].argmax()) for start, stop in edges.reshape(-1, 2)], np.int64)


def _lasts(blocks: Bools) -> bool:
    return bool(_spells(blocks))


def _spells(blocks: Bools) -> list[int]:
    """Where those begin that last."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], blocks, [False])).astype(np.int8)))
    return [start for start, stop in edges.reshape(-1, 2).tolist() if stop - start >= LASTING]


def _nearest(levels: Floats, group: Ints, known: Bools) -> Ints:
    """By node the group whose level it was mostly nearest to; `group`: of those that are `known`."""
    usual = np.nanmedian(levels[:, known], axis=0)
    off = levels[:, known] - usual
    of_group = np.stack([row_medians(off[:, group[known] == one]) for one in range(group.max() + 1)])
    found = []
    for node in levels.T:
        off = node - of_group
        here = np.isfinite(off).all(axis=0)
        off = np.abs(off[:, here] - np.median(off[:, here], axis=1, keepdims=True)) if here.any() else off[:, :0]
        found.append(int(np.minimum(off, 2 * LEAST).sum(axis=1).argmin()))
    return np.array(found, np.int64)
