"""Finds nodes that gain, each at a time of its own, by the mirrored test, which knows nothing but the sign from the
test that accuses (target-decoy competition; Barber and Candès 2015). Pure.

It sees a gain as soon as an accusation could come, also in a short history, but not for long: nodes that gain learn
that. `gains` has what lasts.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_analyze.replay.own_work import Cohort, Gain, repaired
from ingero_contract.identifiers import NodeKey
from ingero_detect.nodes.codes import is_accused
from ingero_detect.nodes.cohorts import cohort_name
from ingero_detect.nodes.column_store import ColumnStore

LASTING: Final = 12
"""Ticks that a gain lasts, at least: after a pause a node may do more for a moment."""

MOST_NODES: Final = 20_000
"""Nodes up to which gains are followed."""


class MirroredGains:
    """By cohort what nodes gained, as far as the mirrored test reached the level of an alarm.

    `_ticks`, `_total`: by node how long there has been evidence of a gain, and the sum of its residuals since then.
    """

    def __init__(self) -> None:
        self._numbers = NodeNumbers()
        self._tick = 0
        self._ticks, self._sure = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._total = np.zeros(0)
        self._found: dict[Cohort, dict[NodeKey, Gain]] = {}

    def note(self, memory: ColumnStore) -> None:
        """Add a tick that the detector has judged."""
        if len(memory.names) > MOST_NODES:
            return
        self._tick += 1
        place, group = self._numbers.of(memory.roster()), memory.node("group")
        nodes = len(self._numbers)
        self._ticks, self._sure = longer(self._ticks, nodes, 0), longer(self._sure, nodes, 0)
        self._total = longer(self._total, nodes, 0.0)
        judged = memory.node("learned") & (memory.node("absent") == 0) & (group >= 0)
        gaining = judged & (memory.node("fast") > 0) & ~is_accused(memory.node("state"))
        still = place[judged & ~gaining]
        self._ticks[still], self._sure[still], self._total[still] = 0, 0, 0.0
        rows = np.flatnonzero(gaining)
        here = place[rows]
        self._ticks[here] += 1
        self._total[here] += memory.node("residual")[rows]
        self._sure[here] |= memory.node("fast")[rows] > memory.group("alarm")[group[rows]]
        for row in rows[(self._sure[here] > 0) & (self._ticks[here] >= LASTING)].tolist():
            values = memory.node("value")
            peers = np.log(values[judged & (group == group[row]) & (values > 0)])
            if values[row] > 0 and not repaired(float(np.log(values[row])), peers):
                self._enter(memory, row, int(place[row]))

    def found(self) -> Mapping[Cohort, list[Gain]]:
        """By cohort the largest gain of each node."""
        return {cohort: list(gains.values()) for cohort, gains in self._found.items()}

    def _enter(self, memory: ColumnStore, row: int, node: int) -> None:
        key = memory.groups[int(memory.node("group")[row])]
        of_cohort = self._found.setdefault((key[0], cohort_name(key)), {})
        ticks, size = int(self._ticks[node]), float(self._total[node] / self._ticks[node])
        name, begun = self._numbers.names[node], self._tick - ticks
        known = of_cohort.get(name)
        if known is None or size > known.size:
            of_cohort[name] = Gain(name, begun, begun, size)
