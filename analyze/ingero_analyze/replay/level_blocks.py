"""Levels of nodes in blocks of ticks, against the median of their cohorts. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay.numbering import CohortMembers, CohortTick, longer
from ingero_detect.grouped import Floats, Ints, row_medians
from ingero_detect.threshold import MAD_TO_SIGMA, MEDIAN_ERROR

BLOCK_TICKS: Final = 20
"""Ticks of a block, over which the level of a node is a median; it works in half of them at least."""


@dataclass(frozen=True)
class LevelBlock:
    """By number of a node in its cohort its level, log units, and the standard error of that; NaN without a level."""

    level: Floats
    error: Floats


class BlockOfTicks:
    """Collects the values of nodes over so many ticks."""

    def __init__(self, members: CohortMembers, ticks: int) -> None:
        self._members = members
        self._block, self._tick = np.full((ticks, 0), np.nan), 0

    def add(self, place: Ints, values: Floats) -> Floats | None:
        """Add a tick; the block that ends with it, (ticks, members), NaN where a node did not work."""
        if len(place):
            self._block = longer(self._block, len(self._members), np.nan)
            self._block[self._tick, place] = values
        self._tick += 1
        if self._tick < len(self._block):
            return None
        block, self._block, self._tick = self._block, np.full_like(self._block, np.nan), 0
        return block


def levels_of(block: Floats) -> tuple[Floats, Ints, Ints]:
    """The levels of nodes in a block, NaN of those that work in less than half of it; which have one, and the ticks
    in which each node works."""
    ticks = np.isfinite(block).sum(axis=0)
    here = np.flatnonzero(2 * ticks >= len(block))
    level = np.full(len(ticks), np.nan)
    if len(here):
        level[here] = row_medians(block[:, here].T)
    return level, here, ticks


class KeptLevels:
    """Levels of nodes by block, 4 bytes each, up to `most` of them; none once there would be more."""

    def __init__(self, members: CohortMembers, most: int) -> None:
        self._members, self._most, self._blocks = members, most, list[npt.NDArray[np.float32]]()
        self.full = False
        """Whether there were too many."""

    def add(self, level: Floats) -> None:
        """Add a block."""
        self.full |= len(self._members) * (len(self._blocks) + 1) > self._most
        if self.full:
            self._blocks.clear()
        else:
            self._blocks.append(level.astype(np.float32))

    def table(self) -> Floats:
        """By block and node; NaN where a node was not there yet."""
        nodes = len(self._members.pairs)
        rows = [longer(level, nodes, np.nan) for level in self._blocks]
        return np.array(rows, np.float64).reshape(len(rows), nodes)


class LevelBlocks:
    """The levels of nodes against the median of their cohorts, block by block."""

    def __init__(self, members: CohortMembers) -> None:
        self._block = BlockOfTicks(members, BLOCK_TICKS)

    def add(self, seen: CohortTick) -> LevelBlock | None:
        """Add a tick; the block that ends with it."""
        block = self._block.add(seen.place, seen.logs - seen.middle[seen.cohort])
        if block is None:
            return None
        level, here, ticks = levels_of(block)
        error = np.full(len(level), np.nan)
        if len(here):
            spread = MAD_TO_SIGMA * row_medians(np.abs(block[:, here] - level[here]).T)
            error[here] = MEDIAN_ERROR * spread / np.sqrt(ticks[here])
        return LevelBlock(level, error)
