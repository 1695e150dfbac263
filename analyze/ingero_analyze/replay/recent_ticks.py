"""Values of all nodes in the last ticks, of which accusations are compared with those of other nodes. Pure."""

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.nodes.column_store import ColumnStore


class RecentTicks:
    """The last `kept` ticks, 4 bytes each for every node. `when`: by column the time of its tick, seconds."""

    def __init__(self, kept: int) -> None:
        self.numbers = NodeNumbers()
        self.when = np.full(kept, -np.inf)
        self._past: npt.NDArray[np.float32] = np.zeros((0, kept), np.float32)
        self._tick = 0

    def note(self, now: float, memory: ColumnStore, known: Bools, values: Floats) -> Ints:
        """Add a tick with the `values` of the nodes that are `known`; the places of all nodes of the roster."""
        place = self.numbers.of(memory.roster())
        self._past = longer(self._past, len(self.numbers), np.nan, axis=0)
        column = self._tick % len(self.when)
        self._past[:, column], self.when[column] = np.nan, now
        self._past[place[known], column] = values
        self._tick += 1
        return place

    def rank(self) -> Ints:
        """By column how many ticks came after it."""
        return (self._tick - 1 - np.arange(len(self.when))) % len(self.when)

    def means(self, places: Ints, ticks: Bools) -> Floats:
        """By node at one of the `places`, its mean in the columns `ticks`; NaN where there is none."""
        values = self._past[places][:, ticks]
        known = np.isfinite(values)
        with np.errstate(invalid="ignore"):
            means: Floats = np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1)
        return means
