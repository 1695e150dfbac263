"""Finds nodes that gain for good, each at a time of its own: jobs that no column tells apart. Pure.

A fault takes a node below its first level, and a repair takes it back; a new kind of work takes it anywhere. So what
nodes of a cohort gain shows what those that lost as much may have done.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ingero_analyze.replay.level_blocks import KeptLevels, LevelBlock
from ingero_analyze.replay.numbering import CohortMembers
from ingero_detect.grouped import Floats, Ints, row_medians
from ingero_detect.threshold import MAD_TO_SIGMA

LEAST: Final = 0.03
ERRORS: Final = 5.0
SPREADS: Final = 6.0
"""What levels differ by at least: log units, standard errors, and standard deviations of what the levels of a cohort
change by from block to block."""

LASTING: Final = 2
"""Blocks of a level, at least."""

SHARE: Final = 0.1
FEWEST: Final = 2
"""Share of the nodes of a cohort, and nodes, that gain where they do different work."""

APART: Final = 2
"""Blocks between the first and the last of these gains, at least: what nodes gain at once is one event."""

AS_MUCH: Final = 2 / 3
"""Share of a loss, log units, that one of them gains at least where it tells nothing: where work changes both ways, a
loss is no larger than the largest gain half of the time, and hardly ever by so much."""

MOST_LEVELS: Final = 4_000_000
"""Nodes times blocks up to which levels are kept, 4 bytes each."""


@dataclass(frozen=True)
class CohortGains:
    """What nodes of a cohort gained for good: the number of each, the block, the size, log units; and how many nodes
    were there for long enough to gain."""

    node: Ints
    block: Ints
    size: Floats
    nodes: int

    def excuse(self, node: int, lost: float) -> bool:
        """Whether nodes beside this one do different work, and have gained as much as it has lost, log units."""
        others = self.node != node
        gainers = len(np.unique(self.node[others]))
        if gainers < max(FEWEST, SHARE * self.nodes) or int(np.ptp(self.block[others])) < APART:
            return False
        return float(self.size[others].max()) >= AS_MUCH * lost


class Gains:
    """Levels of nodes by block, log units."""

    def __init__(self, members: CohortMembers) -> None:
        self._members = members
        self._levels, self._errors = (KeptLevels(members, MOST_LEVELS) for _ in range(2))

    def note(self, block: LevelBlock) -> None:
        """Add a block."""
        self._levels.add(block.level)
        self._errors.add(block.error)

    def found(self) -> Mapping[int, CohortGains]:
        """By number of a cohort what its nodes gained; only of cohorts where some did."""
        pairs = self._members.pairs
        levels, errors = self._levels.table(), self._errors.table()
        found: dict[int, CohortGains] = {}
        for cohort in np.unique(pairs[:, 1]).tolist() if len(levels) else ():
            inside = np.flatnonzero(pairs[:, 1] == cohort)
            row, block, size = gains(levels[:, inside], errors[:, inside])
            if len(row):
                long = np.isfinite(levels[:, inside]).sum(axis=0) >= 2 * LASTING
                found[cohort] = CohortGains(pairs[inside[row], 0], block, size, int(np.count_nonzero(long)))
        return found


def gains(levels: Floats, errors: Floats) -> tuple[Ints, Ints, Floats]:
    """Nodes, blocks and sizes of lasting gains to above the first level of a node. Levels by block and node, log
    units, and their standard errors; NaN where there is none."""
    change = np.diff(levels, axis=0, prepend=np.nan)
    usual = np.nan_to_num(row_medians(change))
    own = levels - np.cumsum(usual)[:, None]
    off = np.abs(change - usual[:, None])
    off = off[np.isfinite(off)]
    least = max(LEAST, SPREADS * MAD_TO_SIGMA * float(np.median(off))) if len(off) else np.inf
    found = [
        (row, block, size)
        for row, (node, error) in enumerate(zip(own.T, errors.T, strict=True))
        for block, size in _of_node(node, error, least)
    ]
    return (
        np.array([row for row, _, _ in found], np.int64), np.array([block for _, block, _ in found], np.int64),
        np.array([size for _, _, size in found], np.float64),
    )  # fmt: skip


def _of_node(level: Floats, error: Floats, least: float) -> list[tuple[int, float]]:
    """Blocks and sizes of the gains of a node."""
    blocks = np.flatnonzero(np.isfinite(level))
    level, error = level[blocks], error[blocks]
    jumps = np.abs(np.diff(level)) > np.maximum(least, ERRORS * np.hypot(error[1:], error[:-1]))
    edges = [0, *(np.flatnonzero(jumps) + 1).tolist(), len(level)]
    lasting = [
        (int(blocks[start]), float(np.median(level[start:stop])))
        for start, stop in pairwise(edges) if stop - start >= LASTING
    ]  # fmt: skip
    return [
        (block, now - before)
        for (_, before), (block, now) in pairwise(lasting)
        if min(now - before, now - lasting[0][1]) > least
    ]
