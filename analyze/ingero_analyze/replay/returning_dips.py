"""Sees nodes whose short losses come back, so that the first of them was no pause. Pure.

A detector takes what a node does in its first hours for usual, and waits longer for each loss after one that ended by
itself. What came later tells, when the whole history is known.
"""

import numpy as np

from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import grouped_median
from ingero_detect.nodes.column_store import ColumnStore


class ReturningDips:
    """Nodes of whose work short losses once took more than a `band`, log units, and twice what they took of that of
    the median of its cohort, averaged as the detector does."""

    def __init__(self, band: float) -> None:
        self._band = -float(np.expm1(-band))
        self._seen = set[NodeKey]()

    def note(self, memory: ColumnStore) -> None:
        """Add a tick that the detector has judged."""
        share, group = memory.node("dips"), memory.node("group")
        rows = np.flatnonzero((share > self._band) & (group >= 0))
        if not len(rows):
            return
        judged = memory.node("learned") & (memory.node("absent") == 0) & (group >= 0)
        _, usual = grouped_median(share[judged].astype(np.float64), group[judged], int(group.max()) + 1)
        usual = np.nan_to_num(usual[group[rows]])
        self._seen |= {memory.names[row] for row in rows[share[rows] > self._band + 2 * usual].tolist()}

    def seen(self, node: NodeKey) -> bool:
        """Whether those of a node did."""
        return node in self._seen
