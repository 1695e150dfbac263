"""Finds cohorts many of whose nodes work at one level after another, some of them above their first: jobs that no
column tells apart. Pure.

A fault takes a node below its first level, and a repair takes it back. A new kind of work takes it anywhere.
"""

from typing import Final

import numpy as np

from ingero_analyze.replay.level_blocks import KeptLevels, LevelBlock
from ingero_analyze.replay.numbering import CohortMembers
from ingero_detect.grouped import Bools, Floats, row_medians
from ingero_detect.threshold import MAD_TO_SIGMA

LEAST: Final = float(np.log(1.1))
ERRORS: Final = 5.0
SPREADS: Final = 6.0
"""What levels differ by at least: log units, standard errors, and standard deviations of what the levels of a cohort
change by from block to block."""

LASTING: Final = 2
"""Blocks of a level, at least."""

FEWEST_LEVELS: Final = 3
"""Different levels of a node: a node that changed once and back has two."""

SHARE: Final = 0.25
FEWEST_NODES: Final = 3
"""Share of the nodes of a cohort, and nodes, that have so many."""

MOST_LEVELS: Final = 4_000_000
"""Nodes times blocks up to which levels are kept, 4 bytes each."""


class ManyLevels:
    """Levels of nodes by block, log units."""

    def __init__(self, members: CohortMembers) -> None:
        self._members = members
        self._levels, self._errors = (KeptLevels(members, MOST_LEVELS) for _ in range(2))

    def note(self, block: LevelBlock) -> None:
        """Add a block."""
        self._levels.add(block.level)
        self._errors.add(block.error)

    def found(self) -> set[int]:
        """Numbers of the nodes in such cohorts."""
        pairs, found = self._members.pairs, set[int]()
        levels, errors = self._levels.table(), self._errors.table()
        if not len(levels):
            return found
        for cohort in np.unique(pairs[:, 1]).tolist():
            inside = np.flatnonzero(pairs[:, 1] == cohort)
            many = work_at_many_levels(levels[:, inside], errors[:, inside])
            long = np.isfinite(levels[:, inside]).sum(axis=0) >= FEWEST_LEVELS * LASTING
            if np.count_nonzero(many) >= max(FEWEST_NODES, SHARE * np.count_nonzero(long)):
                found |= set(pairs[inside, 0].tolist())
        return found


def work_at_many_levels(levels: Floats, errors: Floats) -> Bools:
    """Which nodes have several levels, one of them above their first. Levels by block and node, log units, and their
    standard errors; NaN where there is none."""
    change = np.diff(levels, axis=0, prepend=np.nan)
    usual = np.nan_to_num(row_medians(change))
    own = levels - np.cumsum(usual)[:, None]
    off = np.abs(change - usual[:, None])
    off = off[np.isfinite(off)]
    least = max(LEAST, SPREADS * MAD_TO_SIGMA * float(np.median(off))) if len(off) else np.inf
    return np.array([_many(node, error, least) for node, error in zip(own.T, errors.T, strict=True)], np.bool_)


def _many(level: Floats, error: Floats, least: float) -> bool:
    """Whether a node has several levels, one of them above its first."""
    known = np.isfinite(level)
    level, error = level[known], error[known]
    jumps = np.abs(np.diff(level)) > np.maximum(least, ERRORS * np.hypot(error[1:], error[:-1]))
    spells = np.split(level, np.flatnonzero(jumps) + 1)
    lasting = np.array([np.median(spell) for spell in spells if len(spell) >= LASTING])
    if len(lasting) < FEWEST_LEVELS or lasting.max() - lasting[0] <= least:
        return False
    return int(np.count_nonzero(np.diff(np.sort(lasting)) > least)) + 1 >= FEWEST_LEVELS
