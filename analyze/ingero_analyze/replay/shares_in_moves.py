"""Tells whether a node's share in a change of all is beyond what shares differ by. Pure.

Nodes do not follow a change of all alike: the phase that comes next, another batch size, or a limit of power costs
each another share of its rate. So a node that lost more than the others is slow only if no healthy node of a cohort
whose shares differ so can be so low.
"""

from typing import Final

import numpy as np

from ingero_analyze.replay.recent_ticks import RecentTicks
from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Floats, Ints
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

NOTHING: Final = float(np.log(10.0))
"""Log of how many times less than the others a node does that has stopped if it goes on: that is no share."""

FEWEST: Final = 3
"""Nodes whose shares tell how much these differ."""


class SharesInMoves:
    """The rates of all nodes in the last ticks, on the log scale."""

    def __init__(self) -> None:
        self._recent = RecentTicks(KEPT)

    def note(self, now: float, memory: ColumnStore) -> None:
        """Add a tick that the detector has judged."""
        working = memory.node("learned") & (memory.node("absent") == 0) & (memory.node("value") > 0)
        self._recent.note(now, memory, working, np.log(memory.node("value")[working]))

    def usual(
        self,
        node: NodeKey,
        peers: list[NodeKey],
        moved: float,
        since: float,
        until: float,
        behind: float | None = None,
    ) -> bool:
        """Whether a node, one of its `peers`, lost no more than a healthy one may since its onset, or is not alone in
        that, in a change of all that began at `moved`. It ended, or the loss, at `until`; seconds. Of a node that is
        accused because it is `behind` its peers, log units, the change must have brought about half of that."""
        numbers = self._recent.numbers
        if node not in numbers:
            return False
        rows = [numbers[one] for one in peers if one in numbers]
        change = self._change(np.array(rows), moved, since, until)
        own = change[rows.index(numbers[node])]
        change = change[np.isfinite(change)]
        if not np.isfinite(own) or len(change) < FEWEST:
            return False
        lost = np.median(change) - change
        if behind is not None and np.median(change) - own < ALIKE * behind:
            return False
        if np.count_nonzero(lost >= ALIKE * (np.median(change) - own)) > 1:
            return True
        if np.isinf(until) and np.median(change) - own > NOTHING:
            return False
        chance = outlier_chances(-change, LEAST_SPREAD, OF_SINGLE_VALUES, -np.atleast_1d(own))[0]
        return bool(chance * len(change) > MOST_FALSE)

    def _change(self, places: Ints, moved: float, since: float, until: float) -> Floats:
        """By node what it gained, log units; NaN where that is not known."""
        when, rank = self._recent.when, self._recent.rank()
        during = (when >= since) & (when < until)
        during &= rank > int(np.count_nonzero(when >= since)) - 1 - AFTER
        settled = (when >= moved) & (when < since)
        settled &= rank < int(np.count_nonzero(when >= moved)) - SETTLED
        earlier = settled if np.count_nonzero(settled) >= SETTLED else when < moved
        first = int(rank[earlier].min(initial=KEPT))
        earlier &= rank < first + BEFORE
        return self._recent.means(places, during) - self._recent.means(places, earlier)
