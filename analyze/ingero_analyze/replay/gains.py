"""Finds nodes that gain for good, each at a time of its own: jobs that no column tells apart. Pure.

A fault takes a node below its first level, and a repair takes it back; a new kind of work takes it anywhere. So what
nodes of a cohort gain shows what those that lost as much may have done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ingero_analyze.replay.level_blocks import BLOCK_TICKS, KeptLevels, LevelBlock
from ingero_analyze.replay.numbering import CohortMembers
from ingero_analyze.replay.own_work import Gain, repaired
from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Floats, Ints, row_medians
from ingero_detect.threshold import MAD_TO_SIGMA

LEAST: Final = 0.03
ERRORS: Final = 5.0
SPREADS: Final = 6.0
"""What levels differ by at least: log units, standard errors, and standard deviations of what the levels of a cohort
change by from block to block."""

LASTING: Final = 2
"""Blocks of a level, at least."""

MOST_LEVELS: Final = 4_000_000
"""Nodes times blocks up to which levels are kept, 4 bytes each."""


@dataclass(frozen=True)
class CohortGains:
    """What nodes of a cohort gained for good: the number of each, the block, the size, and how far they were above
    their first levels then, log units."""

    node: Ints
    block: Ints
    size: Floats
    above: Floats

    def of(self, names: Sequence[NodeKey]) -> list[Gain]:
        """The same by name. A level is one of most ticks of a block, so that it began in the middle of it at last."""
        return [
            Gain(names[node], (block - 0.5) * BLOCK_TICKS, (block + 0.5) * BLOCK_TICKS, size, above)
            for node, block, size, above in zip(
                self.node.tolist(), self.block.tolist(), self.size.tolist(), self.above.tolist(), strict=True
            )
        ]


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
            row, block, size, above = gains(levels[:, inside], errors[:, inside])
            if len(row):
                found[cohort] = CohortGains(pairs[inside[row], 0], block, size, above)
        return found


def gains(levels: Floats, errors: Floats) -> tuple[Ints, Ints, Floats, Floats]:
    """Nodes, blocks and sizes of lasting gains to above the first level of a node, and how far above, other than to
    where its peers are. Levels by block and node, log units, and their standard errors; NaN where there is none."""
    change = np.diff(levels, axis=0, prepend=np.nan)
    usual = np.nan_to_num(row_medians(change))
    own = levels - np.cumsum(usual)[:, None]
    off = np.abs(change - usual[:, None])
    off = off[np.isfinite(off)]
    least = max(LEAST, SPREADS * MAD_TO_SIGMA * float(np.median(off))) if len(off) else np.inf
    found = [
        (row, block, size, above)
        for row, (node, error) in enumerate(zip(own.T, errors.T, strict=True))
        for block, size, above in _of_node(node, error, least)
        if not repaired(levels[block, row], levels[block])
    ]
    return (
        np.array([one[0] for one in found], np.int64), np.array([one[1] for one in found], np.int64),
        np.array([one[2] for one in found], np.float64), np.array([one[3] for one in found], np.float64),
    )  # fmt: skip


def _of_node(level: Floats, error: Floats, least: float) -> list[tuple[int, float, float]]:
    """Blocks and sizes of the gains of a node, and how far above its first level it is since then."""
    blocks = np.flatnonzero(np.isfinite(level))
    level, error = level[blocks], error[blocks]
    jumps = np.abs(np.diff(level)) > np.maximum(least, ERRORS * np.hypot(error[1:], error[:-1]))
    edges = [0, *(np.flatnonzero(jumps) + 1).tolist(), len(level)]
    lasting = [
        (int(blocks[start]), float(np.median(level[start:stop])))
        for start, stop in pairwise(edges) if stop - start >= LASTING
    ]  # fmt: skip
    return [
        (block, now - before, now - lasting[0][1])
        for (_, before), (block, now) in pairwise(lasting)
        if min(now - before, now - lasting[0][1]) > least
    ]
