"""Finds losses that half of a cohort has again and again, alike and each node at its own time: a chore that goes
round, as backups and scrubs of disks do. Pure."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Bools
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.verdicts import Axis

SHARE: Final = 0.5
FEWEST: Final = 3
"""Share of the nodes of a cohort, and nodes, that have such losses."""

OFTEN: Final = 2
"""Losses of each of these nodes: a single one may be a fault."""

ALIKE: Final = 0.3
"""Share of the median loss, log units, and of the median length, by which they differ at most; lengths may also
differ by half of `RESUME_TICKS`, and an accusation may last twice as much longer until a recovery is seen."""

AT_ONCE: Final = 0.25
"""Share of these nodes whose losses begin together, at most: those of a rack or a part of the network do."""

TOGETHER: Final = 2.5
"""Ticks within which they do."""


def routines(episodes: Sequence[Episode], last: float, tick_seconds: float) -> set[tuple[NodeKey, float]]:
    """Node and onset of accusations, by own history, of what half of the nodes have again and again.

    `last`: the time of the last tick, seconds.
    """
    found: set[tuple[NodeKey, float]] = set()
    cohorts: dict[tuple[str, str], list[Episode]] = {}
    for episode in episodes:
        if episode.first.axis is Axis.OWN and episode.first.since is not None:
            cohorts.setdefault(episode.cohort, []).append(episode)
    for inside in cohorts.values():
        size = max(episode.first.cohort_size for episode in inside)
        alike = _alike(inside, max(FEWEST, SHARE * size), last, tick_seconds)
        for number in np.flatnonzero(alike).tolist():
            found.add(inside[number].key)
    return found


def _alike(episodes: Sequence[Episode], fewest: float, last: float, tick_seconds: float) -> Bools:
    """Which episodes of a cohort are of a loss that so many of its nodes have again and again."""
    names = [episode.first.node for episode in episodes]
    since = np.array([episode.first.since for episode in episodes], np.float64)
    end = np.array([episode.last.recovered or np.nan for episode in episodes], np.float64)
    loss = np.array([episode.lost for episode in episodes])
    lasted, ended = np.where(np.isfinite(end), end, last) - since, np.isfinite(end)
    nobody = np.zeros(len(episodes), np.bool_)
    if not ended.any():
        return nobody
    usual, longest = float(np.median(loss[ended])), float(np.median(lasted[ended]))
    differ = max(ALIKE * longest, RESUME_TICKS / 2 * tick_seconds)
    alike = (np.abs(loss - usual) <= ALIKE * usual) & (lasted <= longest + 2 * differ)
    whole = alike & ended & (np.abs(lasted - longest) <= differ)
    times = np.unique(np.array(names)[whole], return_counts=True)[1]
    often = np.count_nonzero(times >= OFTEN)
    begins = np.sort(since[whole])
    window = np.searchsorted(begins, begins + TOGETHER * tick_seconds) - np.arange(len(begins))
    if often < fewest or window.max(initial=0) > max(1.0, AT_ONCE * often):
        return nobody
    return alike
