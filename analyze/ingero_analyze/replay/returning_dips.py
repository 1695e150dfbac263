"""Sees nodes whose short losses come back, so that the first of them was no pause. Pure.

A detector takes what a node does in its first hours for usual, and waits longer for each loss after one that ended by
itself. What came later tells, when the whole history is known.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Ints, grouped_median
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.column_store import ColumnStore

FAR: Final = 5.0
"""Standard deviations beyond which a tick is one of a loss: noise is there in one of millions."""

FEWEST_TICKS: Final = 2
"""Ticks of such a loss at least; it ends within `RESUME_TICKS`."""

FEWEST: Final = 3
LONG: Final = 8
"""Losses of a node that come back, and their ticks together, at least: two may be chance, and three of two ticks as
many checkpoints."""

MOST_FALSE: Final = 0.01
"""Chance that a node of a cohort has so many where all have them alike, for the whole cohort."""

OF_NONE: Final = 0.5
"""Losses that peers without any are taken to have had together (Jeffreys' estimate)."""

MOST_NODES: Final = 20_000
"""Nodes up to which losses are counted."""


class ReturningDips:
    """Nodes of whose work short losses once took more than a `band`, log units, and twice what they took of that of
    the median of its cohort, averaged as the detector does; and how many short losses each node had.

    `_run`: ticks of its present loss; `_times`, `_ticks`: losses that have ended, and how long they were together.
    """

    def __init__(self, band: float) -> None:
        self._own_band, self._band = band, -float(np.expm1(-band))
        self._seen = set[NodeKey]()
        self._numbers = NodeNumbers()
        self._run, self._times, self._ticks, self._group = (np.zeros(0, np.int64) for _ in range(4))

    def note(self, memory: ColumnStore) -> None:
        """Add a tick that the detector has judged."""
        self._count(memory)
        share, group = memory.node("dips"), memory.node("group")
        rows = np.flatnonzero((share > self._band) & (group >= 0))
        if not len(rows):
            return
        judged = memory.node("learned") & (memory.node("absent") == 0) & (group >= 0)
        _, usual = grouped_median(share[judged].astype(np.float64), group[judged], int(group.max()) + 1)
        usual = np.nan_to_num(usual[group[rows]])
        self._seen |= {memory.names[row] for row in rows[share[rows] > self._band + 2 * usual].tolist()}

    def seen(self, node: NodeKey) -> bool:
        """Whether those of a node did, or it had more of them than chance brings where all of its cohort do."""
        if node in self._seen:
            return True
        if node not in self._numbers:
            return False
        place = self._numbers[node]
        inside = self._group == self._group[place]
        times, nodes = int(self._times[place]), int(np.count_nonzero(inside))
        if times < FEWEST or self._ticks[place] < LONG or nodes < 2:
            return False
        expected = (int(self._times[inside].sum()) - times + OF_NONE) / (nodes - 1)
        return nodes * _as_many(times, expected) <= MOST_FALSE

    def _count(self, memory: ColumnStore) -> None:
        """Follow the losses of every node; ticks in which its cohort moves, or it begins again, tell nothing."""
        if len(memory.names) > MOST_NODES:
            return
        place, group = self._places(memory.roster()), memory.node("group")
        residual = memory.node("residual")
        judged = memory.node("learned") & (memory.node("absent") == 0) & (memory.node("grace") <= 0) & (group >= 0)
        judged &= np.isfinite(residual) & (memory.group("moved") == 0)[group]
        low = judged & (residual < -np.maximum(self._own_band, FAR * memory.node("scale")))
        self._group[place] = group
        self._run[place[low]] += 1
        over = place[judged & ~low]
        short = over[(self._run[over] >= FEWEST_TICKS) & (self._run[over] <= RESUME_TICKS)]
        self._times[short] += 1
        self._ticks[short] += self._run[short]
        self._run[over] = 0

    def _places(self, names: Sequence[NodeKey]) -> Ints:
        """Numbers of nodes by slot, entering new ones."""
        places, nodes = self._numbers.of(names), len(self._numbers)
        self._run, self._times, self._ticks = (longer(one, nodes, 0) for one in (self._run, self._times, self._ticks))
        self._group = longer(self._group, nodes, -1)
        return places


def _as_many(times: int, expected: float) -> float:
    """Chance that a Poisson variable comes to so many or more."""
    return max(0.0, 1 - sum(math.exp(-expected) * expected**k / math.factorial(k) for k in range(times)))
