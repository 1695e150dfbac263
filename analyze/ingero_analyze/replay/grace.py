"""Since when nodes are slow that were so when they began again: the detector waits some ticks before it judges them.
Pure."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.observation import Edge
from ingero_detect.nodes.verdicts import Axis

SHARE: Final = 0.5
"""Share of the loss, log units, with which a node is accused, that it had in every tick since its onset, at least."""

LONGEST: Final = 3.5
"""Ticks without a report of the node between two of these."""


class Grace:
    """What nodes lost in the last ticks in which they were not judged because they began again."""

    def __init__(self, tick_seconds: float) -> None:
        self._tick_seconds = tick_seconds
        self._before = np.zeros(0, np.bool_)
        self._ticks: dict[NodeKey, list[tuple[float, float]]] = {}
        self.begun: dict[tuple[NodeKey, float], list[float]] = {}
        """By node and onset the times of ticks before it in which the node had lost as much, first one first."""

    def slow_since(self, episode: Episode) -> float | None:
        """The onset of an episode, or the earlier time since when its node was slow and not judged, seconds."""
        return next(iter(self.begun.get(episode.key, ())), episode.first.since)

    def note(self, now: float, memory: ColumnStore, edges: Iterable[Edge]) -> None:
        """Add a tick that the detector has judged."""
        for edge in edges:
            if edge.what == "accused":
                self._accused(edge)
        waits = memory.node("grace") > 0
        before = np.zeros(len(waits), np.bool_)
        before[: len(self._before)] = self._before[: len(waits)]
        names, residual = memory.names, memory.node("residual")
        for slot in np.flatnonzero((waits | before) & (memory.node("absent") == 0)).tolist():
            ticks = self._ticks.setdefault(names[slot], [])
            if not before[slot]:
                ticks.clear()
            ticks.append((now, float(residual[slot])))
        self._before = waits

    def _accused(self, edge: Edge) -> None:
        verdict = edge.verdict
        node, since = node_key(verdict.cluster, verdict.node), verdict.since
        if since is None or verdict.axis not in (Axis.OWN, Axis.STATE) or verdict.residual is None:
            return
        low: list[float] = []
        for time, residual in reversed(self._ticks.get(node, ())):
            if time >= since:
                continue
            if (
                residual > SHARE * verdict.residual
                or (low[-1] if low else since) - time > LONGEST * self._tick_seconds
            ):
                break
            low.append(time)
        if low:
            self.begun[node, since] = low[::-1]
