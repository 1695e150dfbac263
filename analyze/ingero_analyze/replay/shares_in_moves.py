"""Tells whether a node's share in a change of all is beyond what shares differ by. Pure.

Nodes do not follow a change of all alike: the phase that comes next, another batch size, or a limit of power costs
each another share of its rate. So a node that lost more than the others is slow only if no healthy node of a cohort
whose shares differ so can be so low.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Bools, Floats
from ingero_detect.healthy_spread import OF_SINGLE_VALUES, outlier_chances
from ingero_detect.nodes.column_store import ColumnStore

KEPT: Final = 160
"""Last ticks of which rates are kept, 4 bytes each for every node."""

BEFORE: Final = 20
"""Ticks before a change, or before an onset within a phase, that say what nodes did until then."""

SETTLED: Final = 6
"""Ticks that a node was in the new phase before its onset, from which on it is compared with what it did there."""

AFTER: Final = 60
"""Ticks since its onset that say what a node lost."""

MOST_FALSE: Final = 0.02
"""Chance that one of the nodes of a healthy cohort is found in a change of all."""

LEAST_SPREAD: Final = 0.01
"""Standard deviation, log units, that shares in a change are assumed to have at least."""

ALIKE: Final = 0.5
"""Share of what a node lost more than most, log units, that another one lost as well where that is no fault: several
nodes are another kind of hardware, or have another role in the new phase. A single node may be what slows all."""

FEWEST: Final = 3
"""Nodes whose shares tell how much these differ."""


class SharesInMoves:
    """The rates of all nodes in the last ticks, on the log scale."""

    def __init__(self) -> None:
        self._numbers = NodeNumbers()
        self._past: npt.NDArray[np.float32] = np.zeros((0, KEPT), np.float32)
        self._when = np.full(KEPT, -np.inf)
        self._tick = 0

    def note(self, now: float, memory: ColumnStore) -> None:
        """Add a tick that the detector has judged."""
        place = self._numbers.of(memory.roster())
        self._past = longer(self._past, len(self._numbers), np.nan, axis=0)
        working = memory.node("learned") & (memory.node("absent") == 0) & (memory.node("value") > 0)
        column = self._tick % KEPT
        self._past[:, column], self._when[column] = np.nan, now
        self._past[place[working], column] = np.log(memory.node("value")[working])
        self._tick += 1

    def usual(self, node: NodeKey, peers: list[NodeKey], moved: float, since: float, until: float) -> bool:
        """Whether a node, one of its `peers`, lost no more than a healthy one may since its onset, or is not alone in
        that, in a change of all that began at `moved`. It ended, or the loss, at `until`; seconds."""
        if node not in self._numbers:
            return False
        rows = [self._numbers[one] for one in peers if one in self._numbers]
        change = self._change(self._past[rows], moved, since, until)
        own = change[rows.index(self._numbers[node])]
        change = change[np.isfinite(change)]
        if not np.isfinite(own) or len(change) < FEWEST:
            return False
        lost = np.median(change) - change
        if np.count_nonzero(lost >= ALIKE * (np.median(change) - own)) > 1:
            return True
        chance = outlier_chances(-change, LEAST_SPREAD, OF_SINGLE_VALUES, -np.atleast_1d(own))[0]
        return bool(chance * len(change) > MOST_FALSE)

    def _change(self, past: npt.NDArray[np.float32], moved: float, since: float, until: float) -> Floats:
        """By node what it gained, log units; NaN where that is not known."""
        during = (self._when >= since) & (self._when < until)
        during &= self._rank() > int(np.count_nonzero(self._when >= since)) - 1 - AFTER
        settled = (self._when >= moved) & (self._when < since)
        settled &= self._rank() < int(np.count_nonzero(self._when >= moved)) - SETTLED
        earlier = settled if np.count_nonzero(settled) >= SETTLED else self._when < moved
        first = int(self._rank()[earlier].min(initial=KEPT))
        earlier &= self._rank() < first + BEFORE
        return _means(past[:, during]) - _means(past[:, earlier])

    def _rank(self) -> npt.NDArray[np.int64]:
        """By column how many ticks came after it."""
        return (self._tick - 1 - np.arange(KEPT)) % KEPT


def _means(logs: npt.NDArray[np.float32]) -> Floats:
    """By node; NaN where there is none."""
    known: Bools = np.isfinite(logs)
    with np.errstate(invalid="ignore"):
        means: Floats = np.where(known, logs, 0.0).sum(axis=1) / known.sum(axis=1)
    return means
