"""Tells cohorts whose nodes each have work of their own, which no column tells, from those that one job holds
together: by nodes that gain, and by how many change, each at a time of its own. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from ingero_analyze.replay.starts import Rest
from ingero_analyze.replay.stops import did_nothing, works_slowly
from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Floats
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.verdicts import Axis

SHARE: Final = 0.1
FEWEST: Final = 2
"""Share of the nodes of a cohort, and nodes, that gain where they do different work."""

APART: Final = 5
"""Ticks between the first and the last of these gains, at least: what nodes gain at once is one event."""

REPAIRED: Final = 0.15
TOGETHER: Final = 0.5
"""Distance from the median of a cohort, log units, as chips differ, and share of its nodes within that: a node that
comes to where its peers are may have been repaired, which is no such gain."""

AS_MUCH: Final = 2 / 3
"""Share of a loss, log units, that one of them gains at least where it tells nothing: where work changes both ways, a
loss is no larger than the largest gain half of the time, and hardly ever by so much."""

MOST: Final = 0.5
FEWEST_CHANGED: Final = 4
"""Share of the nodes of a cohort, and nodes, that changed for a while where changes are no faults, whose rate is far
lower: then one of a tenth need not gain."""

LASTING: Final = 12
"""Ticks that such a change lasts, at least: pauses and chores are shorter."""

TIMES: Final = 16
"""Times of such changes, at least, in a cohort of more than twice as many nodes."""

STEP: Final = float(np.log(1.2))
FEWEST_STEPS: Final = 2
"""What a node gains, log units, and how often, where more and more work is given to it."""

Cohort = tuple[str, str]
"""Cluster, and cohort as verdicts write it."""


@dataclass(frozen=True)
class Gain:
    """What a node gained, log units, between two ticks; `above`: its first level, as far as that is known."""

    node: NodeKey
    earliest: float
    latest: float
    size: float
    above: float = 0.0


@dataclass
class _Changes:
    """What the nodes of a cohort gained or lost at most, log units, 0 for a rest; and in which intervals of `APART`
    ticks such changes began."""

    largest: dict[NodeKey, float] = field(default_factory=dict)
    times: set[int] = field(default_factory=set)

    def add(self, node: NodeKey, size: float, tick: float | None = None) -> None:
        """Add one; without a tick, its time is not known so well."""
        self.largest[node] = max(size, self.largest.get(node, 0.0))
        if tick is not None:
            self.times.add(int(tick / APART))

    def usual(self, node: NodeKey, loss: float, size: int) -> bool:
        """Whether most nodes of a cohort of this size changed, each at a time of its own, and others than this one
        by about as much."""
        many = max(FEWEST_CHANGED, MOST * size)
        if len(self.largest) < many or len(self.times) < min(many, TIMES):
            return False
        return max(of for other, of in self.largest.items() if other != node) >= AS_MUCH * loss


class OwnWork:
    """What nodes of each cohort gained, lost, and when they rested. `jobs_known`: whether a column tells jobs."""

    def __init__(
        self, gains: Mapping[Cohort, Sequence[Gain]], episodes: Iterable[Episode],
        rests: Mapping[Cohort, Sequence[Rest]], tick_seconds: float, *, jobs_known: bool,
    ) -> None:  # fmt: skip
        self._gains, self._jobs_known = gains, jobs_known
        self._changes = {
            cohort: _Changes() for cohort, of in gains.items()
            if not jobs_known and _nodes(of) >= FEWEST
        }  # fmt: skip
        for episode in episodes:
            since, end = episode.first.since, episode.end
            own = episode.first.axis in (Axis.OWN, Axis.STATE)
            if own and since is not None and (end is None or end - since >= LASTING * tick_seconds):
                self._add(episode.cohort, episode.node, episode.lasting, since / tick_seconds)
        for cohort, of_cohort in rests.items():
            for node, stopped, resumed in of_cohort:
                if resumed - stopped >= LASTING * tick_seconds:
                    self._add(cohort, node, 0.0, stopped / tick_seconds)
        for cohort, found in gains.items():
            for gain in found:
                self._add(cohort, gain.node, gain.size)

    def given_more(self, episode: Episode) -> bool:
        """Whether a node that was slow from the start came to where its peers are step by step, as a new version that
        is given more and more of the traffic: a repair takes a node there at once."""
        own = [gain for gain in self._gains.get(episode.cohort, ()) if gain.node == episode.node]
        own = sorted((gain for gain in own if gain.above >= STEP), key=lambda gain: gain.earliest)
        up = all(after.above - before.above >= STEP for before, after in pairwise(own))
        return episode.first.axis is Axis.PEERS and up and len(own) >= FEWEST_STEPS

    def explains(self, episode: Episode) -> bool:
        """Whether nodes beside the accused one do work of their own, and it lost no more than they gain, or stopped
        between two jobs; or so many of them changed that its own change is no exception."""
        node, size = episode.node, episode.first.cohort_size
        gains = self._gains.get(episode.cohort, ())
        others = [gain for gain in gains if gain.node != node]
        often = _nodes(gains) >= SHARE * size and _nodes(others) >= FEWEST
        if often and _apart(others):
            if max(gain.size for gain in others) >= AS_MUCH * episode.lasting:
                return True
            if did_nothing(episode.first) and (episode.ended or not (self._jobs_known or works_slowly(episode))):
                return True
        changes = self._changes.get(episode.cohort)
        return changes is not None and changes.usual(node, episode.lasting, size)

    def _add(self, cohort: Cohort, node: NodeKey, size: float, tick: float | None = None) -> None:
        if cohort in self._changes:
            self._changes[cohort].add(node, size, tick)


def repaired(level: float, levels: Floats) -> bool:
    """Whether a node that gained may have been repaired. Its level and those of its cohort, log units; NaN: not
    known."""
    middle = np.nanmedian(levels)
    off = np.abs(levels[np.isfinite(levels)] - middle)
    return bool(abs(level - middle) <= REPAIRED and np.mean(off <= REPAIRED) >= TOGETHER)


def _nodes(gains: Iterable[Gain]) -> int:
    return len({gain.node for gain in gains})


def _apart(gains: Sequence[Gain]) -> bool:
    return max(gain.earliest for gain in gains) - min(gain.latest for gain in gains) >= APART
