"""Finds cohorts whose nodes change what they do, each at its own time: jobs that no column tells apart. Pure."""

from typing import Final

import numpy as np

from ingero_analyze.replay.level_blocks import LevelBlock
from ingero_analyze.replay.numbering import CohortMembers, longer
from ingero_detect.grouped import grouped_median

JUMP: Final = float(np.log(1.5))
"""Change of a node's level from one block to the next, beyond the median of such changes, log units."""

FEWEST_NODES: Final = 3
"""Nodes that change so, at least; half of the cohort does."""

ERRORS: Final = 5.0
"""Standard errors of these levels that a change exceeds at least."""

FEWEST_JUMPS: Final = 2
"""Changes of a node alone that are no single event."""


class DifferentWork:
    """Counts how often nodes change their level alone, while most of their cohort keeps its own."""

    def __init__(self, members: CohortMembers) -> None:
        self._members = members
        self._level, self._error = np.zeros(0), np.zeros(0)
        self._jumps, self._blocks = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def note(self, block: LevelBlock) -> None:
        """Add a block: count the nodes that are at another level than in their last one, unless most are."""
        here = np.flatnonzero(np.isfinite(block.level))
        if not len(here):
            return
        members = len(block.level)
        self._level, self._error = longer(self._level, members, np.nan), longer(self._error, members, 0.0)
        self._jumps, self._blocks = (longer(each, members, 0) for each in (self._jumps, self._blocks))
        level, error = block.level[here], block.error[here]
        cohort = self._members.pairs[here, 1]
        change = level - self._level[here]
        known = np.isfinite(change)
        count, usual = grouped_median(change[known], cohort[known], int(cohort.max()) + 1)
        jumped = np.abs(change - usual[cohort]) > np.maximum(JUMP, ERRORS * np.hypot(error, self._error[here]))
        many = np.bincount(cohort[jumped], minlength=len(count))
        self._jumps[here] += jumped & (2 * many < count)[cohort]
        self._level[here], self._error[here] = level, error
        self._blocks[here] += 1

    def found(self) -> set[int]:
        """Numbers of the nodes in such cohorts."""
        pairs = self._members.pairs
        jumps, blocks = (longer(each, len(pairs), 0) for each in (self._jumps, self._blocks))
        found: set[int] = set()
        for cohort in np.unique(pairs[jumps >= FEWEST_JUMPS, 1]).tolist():
            inside = (pairs[:, 1] == cohort) & (blocks > FEWEST_JUMPS)
            many = np.count_nonzero(jumps[inside] >= FEWEST_JUMPS)
            if many >= max(FEWEST_NODES, np.count_nonzero(inside) / 2):
                found |= set(pairs[pairs[:, 1] == cohort, 0].tolist())
        return found
