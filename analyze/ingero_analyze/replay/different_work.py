"""Finds cohorts whose nodes change what they do, each at its own time: jobs that no column tells apart. Pure."""

from typing import Final

import numpy as np

from ingero_analyze.replay.numbering import CohortMembers, CohortTick, longer
from ingero_detect.grouped import grouped_median
from ingero_detect.threshold import MAD_TO_SIGMA, MEDIAN_ERROR

BLOCK_TICKS: Final = 20
"""Ticks of a block, over which the level of a node is a median; it works in half of them at least."""

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
        self._block = np.full((BLOCK_TICKS, 0), np.nan)
        self._level, self._error = np.zeros(0), np.zeros(0)
        self._jumps, self._blocks = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._tick = 0

    def note(self, seen: CohortTick) -> None:
        """Add a tick."""
        if len(seen.logs):
            members = len(self._members)
            self._block, self._level = (longer(each, members, np.nan) for each in (self._block, self._level))
            self._error = longer(self._error, members, 0.0)
            self._jumps, self._blocks = (longer(each, members, 0) for each in (self._jumps, self._blocks))
            self._block[self._tick, seen.place] = seen.logs - seen.middle[seen.cohort]
        self._tick += 1
        if self._tick == BLOCK_TICKS:
            self._close()

    def found(self) -> set[int]:
        """Numbers of the nodes in such cohorts."""
        pairs = self._members.pairs
        found: set[int] = set()
        for cohort in np.unique(pairs[self._jumps >= FEWEST_JUMPS, 1]).tolist():
            inside = (pairs[:, 1] == cohort) & (self._blocks > FEWEST_JUMPS)
            many = np.count_nonzero(self._jumps[inside] >= FEWEST_JUMPS)
            if many >= max(FEWEST_NODES, np.count_nonzero(inside) / 2):
                found |= set(pairs[pairs[:, 1] == cohort, 0].tolist())
        return found

    def _close(self) -> None:
        """End a block: count the nodes that are at another level than in their last one, unless most are."""
        block, self._tick = self._block, 0
        self._block = np.full_like(block, np.nan)
        here = np.flatnonzero(2 * np.isfinite(block).sum(axis=0) >= BLOCK_TICKS)
        if not len(here):
            return
        level = np.nanmedian(block[:, here], axis=0)
        spread = MAD_TO_SIGMA * np.nanmedian(np.abs(block[:, here] - level), axis=0)
        error = MEDIAN_ERROR * spread / np.sqrt(np.isfinite(block[:, here]).sum(axis=0))
        cohort = self._members.pairs[here, 1]
        change = level - self._level[here]
        known = np.isfinite(change)
        count, usual = grouped_median(change[known], cohort[known], int(cohort.max()) + 1)
        jumped = np.abs(change - usual[cohort]) > np.maximum(JUMP, ERRORS * np.hypot(error, self._error[here]))
        many = np.bincount(cohort[jumped], minlength=len(count))
        self._jumps[here] += jumped & (2 * many < count)[cohort]
        self._level[here], self._error[here] = level, error
        self._blocks[here] += 1
