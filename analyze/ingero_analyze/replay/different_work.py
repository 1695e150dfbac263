"""Finds cohorts whose nodes change what they do, each at its own time: jobs that no column tells apart. Pure."""

from typing import Final

import numpy as np

from ingero_detect.grouped import Floats, Ints, grouped_median
from ingero_detect.threshold import MAD_TO_SIGMA

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

MEDIAN_ERROR: Final = 1.2533
"""Standard error of the median of n normal values, in standard deviations, times the root of n."""


class DifferentWork:
    """Counts how often nodes change their level alone, while most of their cohort keeps its own."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], int] = {}
        self._block = np.full((BLOCK_TICKS, 0), np.nan)
        self._level, self._error = np.zeros(0), np.zeros(0)
        self._jumps, self._blocks = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._tick = 0
        self._last = (b"", b""), np.zeros(0, np.int64)

    def note(self, node: Ints, cohort: Ints, value: Floats) -> None:
        """Add a tick: by row the number of a node, its cohort, and its value."""
        known = np.isfinite(value) & (value > 0)
        node, cohort, logs = node[known], cohort[known], np.log(value[known])
        if len(logs):
            middle = grouped_median(logs, cohort, int(cohort.max()) + 1)[1]
            place = self._places(node, cohort)
            self._block[self._tick, place] = logs - middle[cohort]
        self._tick += 1
        if self._tick == BLOCK_TICKS:
            self._close()

    def found(self) -> set[int]:
        """Numbers of the nodes in such cohorts."""
        pairs = np.array(list(self._pairs), np.int64).reshape(-1, 2)
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
        cohort = np.array(list(self._pairs), np.int64).reshape(-1, 2)[here, 1]
        change = level - self._level[here]
        known = np.isfinite(change)
        count, usual = grouped_median(change[known], cohort[known], int(cohort.max()) + 1)
        jumped = np.abs(change - usual[cohort]) > np.maximum(JUMP, ERRORS * np.hypot(error, self._error[here]))
        many = np.bincount(cohort[jumped], minlength=len(count))
        self._jumps[here] += jumped & (2 * many < count)[cohort]
        self._level[here], self._error[here] = level, error
        self._blocks[here] += 1

    def _places(self, node: Ints, cohort: Ints) -> Ints:
        """Numbers of nodes in their cohorts, entering new ones; the same as of the last tick for the same rows."""
        key = node.tobytes(), cohort.tobytes()
        if key != self._last[0]:
            both = zip(node.tolist(), cohort.tolist(), strict=True)
            found = np.array([self._pairs.setdefault(pair, len(self._pairs)) for pair in both], np.int64)
            more = len(self._pairs) - len(self._level)
            self._level = np.append(self._level, np.full(more, np.nan))
            self._error = np.append(self._error, np.zeros(more))
            self._jumps, self._blocks = (
                np.append(each, np.zeros(more, np.int64)) for each in (self._jumps, self._blocks)
            )
            self._block = np.hstack((self._block, np.full((BLOCK_TICKS, more), np.nan)))
            self._last = key, found
        return self._last[1]
