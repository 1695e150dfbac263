"""Levels of nodes in blocks of ticks, against the median of their cohorts. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_analyze.replay.numbering import CohortMembers, CohortTick, longer
from ingero_detect.grouped import Floats
from ingero_detect.threshold import MAD_TO_SIGMA, MEDIAN_ERROR

BLOCK_TICKS: Final = 20
"""Ticks of a block, over which the level of a node is a median; it works in half of them at least."""


@dataclass(frozen=True)
class LevelBlock:
    """By number of a node in its cohort its level, log units, and the standard error of that; NaN without a level."""

    level: Floats
    error: Floats


class LevelBlocks:
    """Collects the ticks of a block."""

    def __init__(self, members: CohortMembers) -> None:
        self._members = members
        self._block, self._tick = np.full((BLOCK_TICKS, 0), np.nan), 0

    def add(self, seen: CohortTick) -> LevelBlock | None:
        """Add a tick; the block that ends with it."""
        if len(seen.logs):
            self._block = longer(self._block, len(self._members), np.nan)
            self._block[self._tick, seen.place] = seen.logs - seen.middle[seen.cohort]
        self._tick += 1
        if self._tick < BLOCK_TICKS:
            return None
        block, self._block, self._tick = self._block, np.full_like(self._block, np.nan), 0
        ticks = np.isfinite(block).sum(axis=0)
        here = np.flatnonzero(2 * ticks >= BLOCK_TICKS)
        level, error = np.full(len(ticks), np.nan), np.full(len(ticks), np.nan)
        if len(here):
            level[here] = np.nanmedian(block[:, here], axis=0)
            spread = MAD_TO_SIGMA * np.nanmedian(np.abs(block[:, here] - level[here]), axis=0)
            error[here] = MEDIAN_ERROR * spread / np.sqrt(ticks[here])
        return LevelBlock(level, error)
