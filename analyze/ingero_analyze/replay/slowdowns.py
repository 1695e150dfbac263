"""Tells nodes that follow a slowdown of all unevenly from stragglers: what followed says which they were. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.observation import Edge
from ingero_detect.nodes.verdicts import Axis

LEAST: Final = 0.05
"""Loss of three quarters of a cohort that is a slowdown of all, log units."""

MOST_ALIKE: Final = 2.0
"""A node is explained by another one that is accused in the same slowdown, if it loses no more than so many times,
log units, what that one does. A single node, or one that is far worse, may be what slows the others."""

LEARNT_TICKS: Final = 60
"""Ticks in which nodes learn what a slowdown does to them; accusations that begin later have another cause."""

AT_ONCE: Final = 2.5
"""Ticks before the end of a slowdown from which on a node that does not follow the others has its onset."""

KEPT: Final = 24
"""Ticks of a cohort's past that are kept; all but the last few say what it did before."""

SETTLING: Final = 6

MOST_NODES: Final = 20_000
"""Nodes up to which slowdowns are followed."""


@dataclass
class Slowdown:
    """A cohort that moved together at a time: its level before, what three quarters of it lost at most, log units,
    and until when it was low, seconds; `ended` once it was back."""

    begun: float
    before: float
    lost: float
    until: float
    ended: bool = False


class Slowdowns:
    """What whole cohorts lost, and which accusations that explains."""

    def __init__(self, tick_seconds: float) -> None:
        self._tick_seconds = tick_seconds
        self._wait = (RESUME_TICKS + 0.5) * tick_seconds
        self._past = np.full((KEPT, 0), np.nan)
        self._ticks = 0
        self._of: dict[tuple[str, ...], list[Slowdown]] = {}
        self._low: dict[int, Slowdown] = {}
        self._groups: dict[tuple[NodeKey, float], tuple[str, ...]] = {}

    def note(self, now: float, memory: ColumnStore, edges: Iterable[Edge]) -> None:
        """Add a tick that the detector has judged."""
        if len(memory.names) > MOST_NODES:
            return
        working = memory.node("learned") & (memory.node("absent") == 0) & (memory.node("group") >= 0)
        group, value = memory.node("group")[working], memory.node("value")[working]
        with np.errstate(divide="ignore"):
            level = _upper_quartile(np.log(value) - memory.node("baseline")[working], group, len(memory.groups))
        if len(level) < self._past.shape[1]:
            self._past, self._low = np.full((KEPT, 0), np.nan), {}
        if more := len(level) - self._past.shape[1]:
            self._past = np.hstack((self._past, np.full((KEPT, more), np.nan)))
        begins = (memory.group("moved") != 0) & np.isfinite(level)
        for number in np.flatnonzero(begins).tolist():
            if number not in self._low:
                self._begin(now, memory, number, float(level[number]))
        for number, slowdown in list(self._low.items()):
            self._follow(slowdown, now, float(level[number]))
            if slowdown.ended:
                del self._low[number]
        self._past[self._ticks % KEPT] = level
        self._ticks += 1
        for edge in edges:
            verdict = edge.verdict
            node = node_key(verdict.cluster, verdict.node)
            slot = memory.slot(node)
            if edge.what == "accused" and slot is not None and verdict.axis is Axis.OWN:
                since = now if verdict.since is None else verdict.since
                self._groups[node, since] = memory.groups[int(memory.node("group")[slot])]

    def explained(self, episodes: Iterable[Episode]) -> set[tuple[NodeKey, float]]:
        """Node and onset of accusations that slowdowns explain: of nodes that came back last, and of several that
        lost more than most."""
        found: list[tuple[tuple[NodeKey, float], Slowdown, float]] = []
        explained: set[tuple[NodeKey, float]] = set()
        for episode in episodes:
            key = _, since = episode.key
            for slowdown in self._of.get(self._groups.get(key, ()), ()):
                if self._came_back_last(slowdown, since, episode.last.recovered):
                    explained.add(key)
                elif self._together(slowdown, since, episode.last.recovered):
                    found.append((key, slowdown, episode.lost))
        for key, slowdown, lost in found:
            others = [loss for other, theirs, loss in found if theirs is slowdown and other[0] != key[0]]
            if others and lost <= MOST_ALIKE * max(others):
                explained.add(key)
        return explained

    def _came_back_last(self, slowdown: Slowdown, since: float, end: float | None) -> bool:
        """Whether a node was only late when the others were back."""
        first, last = slowdown.until - AT_ONCE * self._tick_seconds, slowdown.until + self._wait
        return slowdown.ended and end is not None and first <= since <= last and end <= last

    def _together(self, slowdown: Slowdown, since: float, end: float | None) -> bool:
        """Whether a node fell with all others, and was well when they were."""
        learnt = slowdown.begun + LEARNT_TICKS * self._tick_seconds
        if not slowdown.begun - self._wait <= since <= min(learnt, slowdown.until + self._wait):
            return False
        if end is None:
            return not slowdown.ended
        return not slowdown.ended or end <= slowdown.until + self._wait

    def _begin(self, now: float, memory: ColumnStore, number: int, level: float) -> None:
        """A cohort moves together: it is a slowdown if three quarters of it lost something."""
        order = (self._ticks + np.arange(KEPT - SETTLING)) % KEPT
        earlier = self._past[order, number]
        earlier = earlier[np.isfinite(earlier)]
        if not len(earlier):
            return
        before = float(np.median(earlier))
        if before - level >= LEAST:
            slowdown = self._low[number] = Slowdown(now, before, 0.0, now)
            self._of.setdefault(memory.groups[number], []).append(slowdown)

    def _follow(self, slowdown: Slowdown, now: float, level: float) -> None:
        lost = slowdown.before - level
        if not np.isfinite(lost):
            return
        if now - slowdown.begun <= self._wait:
            slowdown.lost = max(slowdown.lost, lost)
        slowdown.ended = lost <= 0.5 * slowdown.lost
        if not slowdown.ended:
            slowdown.until = now


def _upper_quartile(values: Floats, group: Ints, groups: int) -> Floats:
    """By group; NaN where there is none."""
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    some: Bools = count > 0
    quartile = np.full(groups, np.nan)
    begins = np.cumsum(count) - count
    quartile[some] = values[order][(begins + (0.75 * (count - 1)).astype(np.int64))[some]]
    return quartile
