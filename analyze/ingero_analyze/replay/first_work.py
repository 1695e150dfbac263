"""Since when nodes are slow that are found to be slow from the start: since their first work. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.grouped import Ints
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.observation import ACTIVE, Edge, Observation
from ingero_detect.nodes.verdicts import Axis

MORE_TICKS: Final = RESUME_TICKS
"""Working ticks after the warm-up within which evidence against a node that was slow in it begins."""


class FirstWork:
    """When nodes worked first, and in how many ticks since then."""

    def __init__(self, warmup: int, tick_seconds: float) -> None:
        self._most, self._tick_seconds = warmup + MORE_TICKS, tick_seconds
        self._numbers = NodeNumbers()
        self._first, self._count = np.zeros(0), np.zeros(0, np.int64)

    def note(self, now: float, seen: Observation) -> None:
        """Add a tick."""
        works = (np.asarray(seen.state) == ACTIVE) & (np.asarray(seen.value) > 0)
        here = self._places(seen.names)[works]
        self._first[here] = np.where(self._count[here] > 0, self._first[here], now)
        self._count[here] += 1

    def onset(self, now: float, edge: Edge) -> Edge:
        """An accusation of this tick with its onset at the node's first work, if evidence against it, in comparison
        with its peers, began as soon as its warm-up allowed: what it was warmed up with is slow as well."""
        verdict = edge.verdict
        if edge.what != "accused" or verdict.axis is not Axis.PEERS or verdict.since is None:
            return edge
        place = self._numbers[node_key(verdict.cluster, verdict.node)]
        before = self._count[place] - (now - verdict.since) / self._tick_seconds
        if before > self._most:
            return edge
        return replace(edge, verdict=replace(verdict, since=float(self._first[place])))

    def _places(self, names: Sequence[NodeKey]) -> Ints:
        """Numbers of nodes, entering new ones."""
        places, nodes = self._numbers.of(names), len(self._numbers)
        self._first, self._count = longer(self._first, nodes, np.nan), longer(self._count, nodes, 0)
        return places
