"""Accusations that end by themselves at once, and those of nodes that stop together: pauses, ends of jobs. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.episodes import Episode
from ingero_detect.verdicts import Axis, Kind

LONGEST_TICKS: Final = 2
LONGEST: Final = 300.0
LONGEST_SHORT_TICKS: Final = 3
"""Ticks that a pause lasts at most, and, where that is no more than so many seconds, so many."""

FEWEST_HOSTS: Final = 3
"""Hosts that stop when a job ends; fewer may have failed."""

TOGETHER: Final = 1.5
"""Ticks within which they stop."""

NOTHING: Final = 0.02
"""Share of the expected rate that is no work."""


def pauses(episodes: Sequence[Episode], tick_seconds: float) -> set[tuple[NodeKey, float]]:
    """Node and onset of the only accusation of a node, of a loss that ended by itself within a few ticks; its node
    may be well only since then when the history ends."""
    times = Counter(_node(episode) for episode in episodes)
    short = LONGEST_SHORT_TICKS * tick_seconds <= LONGEST
    longest = ((LONGEST_SHORT_TICKS if short else LONGEST_TICKS) + 0.25) * tick_seconds
    return {
        (_node(episode), episode.first.since)
        for episode in episodes
        if episode.first.axis in (Axis.OWN, Axis.STATE) and times[_node(episode)] == 1
        and episode.first.since is not None and episode.last.recovered is not None
        and episode.last.recovered - episode.first.since <= longest
    }  # fmt: skip


def ends_of_jobs(
    episodes: Sequence[Episode], hosts: Mapping[NodeKey, NodeKey], tick_seconds: float
) -> set[tuple[NodeKey, float]]:
    """Node and onset of accusations of nodes that did nothing any more since the same time as those of other hosts of
    their cohort, and are not slow in what they do now. `hosts`: by node that is a GPU its host."""
    cohorts: dict[tuple[str, str], list[tuple[float, NodeKey, bool]]] = {}
    for episode in episodes:
        if episode.first.kind is Kind.STOPPED and episode.first.since is not None:
            cohort = episode.first.cluster, episode.first.cohort
            cohorts.setdefault(cohort, []).append((episode.first.since, _node(episode), _works_slowly(episode)))
    found: set[tuple[NodeKey, float]] = set()
    for stops in cohorts.values():
        since = np.array([when for when, _, _ in stops])
        for when, node, slow in stops:
            together = np.flatnonzero(np.abs(since - when) <= TOGETHER * tick_seconds)
            stopped = [stops[place][1] for place in together.tolist()]
            if not slow and len({hosts.get(one, one) for one in stopped}) >= FEWEST_HOSTS:
                found.add((node, when))
    return found


def _works_slowly(episode: Episode) -> bool:
    """Whether a node that had stopped works again, and is not well at the end."""
    value, expected = episode.last.value or 0.0, episode.last.expected or np.inf
    return episode.end is None and value > NOTHING * expected


def _node(episode: Episode) -> NodeKey:
    return node_key(episode.first.cluster, episode.first.node)
