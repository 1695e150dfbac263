"""Finds nodes that fell behind their peers so slowly that they were never accused, over a whole history. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_analyze.replay.behind import Behind, behind
from ingero_analyze.replay.numbering import CohortMembers, CohortTick, longer
from ingero_detect.audit.audit_tiers import robust_spread
from ingero_detect.grouped import Floats, Ints, grouped_median

LEAST: Final = 0.05
"""Loss that is said, log units, which is also how far the node is behind its peers at the end."""

OUTLYING: Final = 6.0
"""Standard deviations of the changes of its peers that a node changed by more than."""

LEAST_DEVIATION: Final = 0.005
"""These deviations are taken to be at least so large, log units."""

FEWEST_NODES: Final = 6
"""Nodes of a cohort whose changes tell what is usual."""

FEWEST_BLOCKS: Final = 8
BLOCK_SECONDS: Final = 3600.0
BLOCK_TICKS: Final = 30
"""Blocks that a history needs, and how long one is at least: an hour and so many ticks."""

SHORT_BLOCKS: Final = 16
"""Blocks that a shorter history needs, which are shorter than an hour. Loads wander for hours: so what counts then is
the plain standard deviation, which one other node that changed makes larger, where the robust one is smaller."""

MOST_BLOCKS: Final = 512
"""Blocks that are kept; then two become one."""

LARGEST: Final = 0.5
"""What a tick is off the usual distance from the peers counts as at most this, log units: stops are no drift."""

FEWEST_ALIKE: Final = 3
"""Nodes that were as fast as one at first, and show whether it is behind. Where they are fewer, all nodes do."""


Block = tuple[float, Floats]
"""The middle of a block, seconds, and by number of a node the mean of its distances."""


@dataclass(frozen=True)
class Drift:
    """Numbers of a node and its cohort; the share of its rate that it lost between two times, seconds."""

    node: int
    cohort: int
    lost: float
    since: float
    until: float


class Drifts:
    """Distances of nodes from the common level of their cohort, averaged over blocks of time.

    The level is what the nodes move by together: it stays where it is when nodes of another kind join or leave.
    """

    def __init__(self, tick_seconds: float, members: CohortMembers) -> None:
        self._ticks, self._long = BLOCK_TICKS, max(BLOCK_TICKS, round(BLOCK_SECONDS / tick_seconds))
        self._members = members
        self._sum, self._count, self._usual = np.zeros(0), np.zeros(0), np.zeros(0)
        self._total, self._ticks_of, self._first = np.zeros(0), np.zeros(0), np.zeros(0)
        self._blocks: list[Block] = []
        self._tick, self._begun = 0, 0.0

    def note(self, now: float, seen: CohortTick) -> None:
        """Add a tick."""
        if len(seen.logs):
            place, members = seen.place, len(self._members)
            self._sum, self._count, self._total, self._ticks_of = (
                longer(each, members, 0.0) for each in (self._sum, self._count, self._total, self._ticks_of)
            )
            self._first, self._usual = (longer(each, members, np.nan) for each in (self._first, self._usual))
            self._total[place] += np.clip(seen.logs - seen.middle[seen.cohort], -LARGEST, LARGEST)
            self._ticks_of[place] += 1
            self._sum[place] += self._distances(seen)
            self._count[place] += 1
            self._first[place] = np.fmin(self._first[place], now)
        self._begun = self._begun if self._tick else now
        self._tick += 1
        if self._tick == self._ticks:
            self._close(now)

    def _distances(self, seen: CohortTick) -> Floats:
        """From the common level, which is `middle` where no node is known yet; follows the usual distances."""
        place, cohort, logs, middle = seen.place, seen.cohort, seen.logs, seen.middle
        off = logs - self._usual[place]
        known = np.isfinite(off)
        moved = grouped_median(off[known], cohort[known], len(middle))[1]
        level = np.where(np.isfinite(moved), moved, middle)[cohort]
        usual = np.where(known, self._usual[place], logs - level)
        off = np.clip(logs - level - usual, -LARGEST, LARGEST)
        self._usual[place] = usual + off / np.minimum(self._ticks_of[place], self._long)
        return usual + off

    def found(self) -> list[Drift]:
        """Nodes that lost more than their peers, by number."""
        blocks, ticks = self._blocks, self._ticks
        while ticks < self._long and len(blocks) >= 2 * SHORT_BLOCKS:
            blocks, ticks = _in_pairs(blocks), 2 * ticks
        short = ticks < self._long
        fewest = SHORT_BLOCKS if short else FEWEST_BLOCKS
        if len(blocks) < fewest:
            return []
        times = np.array([time for time, _ in blocks])
        table = np.full((len(self._members), len(times)), np.nan)
        for column, (_, block) in enumerate(blocks):
            table[: len(block), column] = block
        pairs = self._members.pairs
        drifts = []
        for cohort in np.unique(pairs[:, 1]).tolist():
            rows = np.flatnonzero((pairs[:, 1] == cohort) & (np.isfinite(table).sum(axis=1) >= fewest))
            if len(rows) >= FEWEST_NODES:
                drifts += _of_cohort(pairs[rows, 0], cohort, table[rows], times, short)
        return sorted(drifts, key=lambda drift: drift.node)

    def behind(self) -> list[Behind]:
        """Nodes that are behind in their cohorts one after another, by number."""
        pairs = self._members.pairs
        with np.errstate(invalid="ignore", divide="ignore"):
            level = self._total / self._ticks_of
        return behind(pairs[:, 0], pairs[:, 1], level, self._ticks_of.astype(np.int64), self._first)

    def _close(self, now: float) -> None:
        """End a block; its value is missing where a node worked in less than half of it."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(2 * self._count >= self._ticks, self._sum / self._count, np.nan)
        self._blocks.append(((self._begun + now) / 2, mean))
        self._sum, self._count, self._tick = np.zeros_like(self._sum), np.zeros_like(self._count), 0
        if len(self._blocks) >= MOST_BLOCKS:
            self._blocks, self._ticks = _in_pairs(self._blocks), 2 * self._ticks


def _in_pairs(blocks: list[Block]) -> list[Block]:
    """Two blocks as one; where one of them has no value, the other one's. Of an odd number the first is left out."""
    pairs = zip(blocks[len(blocks) % 2 :: 2], blocks[len(blocks) % 2 + 1 :: 2], strict=True)
    return [((a + b) / 2, _mean(longer(one, len(two), np.nan), two)) for (a, one), (b, two) in pairs]


def _mean(one: Floats, two: Floats) -> Floats:
    return np.where(np.isnan(one), two, np.where(np.isnan(two), one, (one + two) / 2))


def _of_cohort(nodes: Ints, cohort: int, table: Floats, times: Floats, short: bool) -> list[Drift]:
    """Those of a cohort; `table`: by node and block the distance from the peers. `short`: of blocks below an hour."""
    quarter = max(2, table.shape[1] // 4)
    first, last = np.full(len(nodes), np.nan), np.full(len(nodes), np.nan)
    for row, line in enumerate(table):
        there = line[np.isfinite(line)]
        first[row], last[row] = np.median(there[:quarter]), np.median(there[-quarter:])
    change = last - first
    usual = float(np.median(change))
    deviation = max(LEAST_DEVIATION, robust_spread(change))
    lost = usual - change
    found = []
    for row in np.flatnonzero(lost > max(LEAST, OUTLYING * deviation)).tolist():
        if short and lost[row] <= OUTLYING * float(np.delete(change, row).std()):
            continue
        alike = np.abs(first - first[row]) < LEAST
        peers = alike if np.count_nonzero(alike) > FEWEST_ALIKE else np.ones(len(nodes), np.bool_)
        if last[row] > np.median(last[peers]) - LEAST:
            continue
        high = np.flatnonzero(table[row] > first[row] - 0.2 * lost[row])
        low = np.flatnonzero(table[row] < first[row] - 0.8 * lost[row])
        since = times[high[high < low[0]][-1]] if len(low) and (high < low[0]).any() else times[0]
        until = times[low[0]] if len(low) else times[-1]
        found.append(Drift(int(nodes[row]), cohort, float(-np.expm1(-lost[row])), float(since), float(until)))
    return found
