"""Accusations that end by themselves at once, and those of nodes that stop together, or one after another as most do:
pauses, ends of jobs. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ingero_analyze.replay.starts import Rest
from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Floats
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.verdicts import Axis, Kind, Verdict

LONGEST_TICKS: Final = 2
LONGEST: Final = 300.0
LONGEST_SHORT_TICKS: Final = 3
"""Ticks that a pause lasts at most, and, where that is no more than so many seconds, so many."""

FEWEST_HOSTS: Final = 3
FEW_HOSTS: Final = 2
"""Hosts that stop when a job ends: fewer may have failed, unless so many have shown at another time that jobs end."""

TOGETHER: Final = 1.5
"""Ticks within which they stop."""

SHARE: Final = 0.5
"""Share of the hosts of a cohort, three at least, each of which stopped at a time of its own and worked again: that
is how these nodes work."""

AS_LONG: Final = 0.25
"""Share of the length of a stop that theirs have at least: the time that a node waits for a job differs."""

NOTHING: Final = 0.02
"""Share of the expected rate that is no work."""


def pauses(episodes: Sequence[Episode], tick_seconds: float) -> set[tuple[NodeKey, float]]:
    """Node and onset of the only accusation of a node, of a loss that ended by itself within a few ticks; its node
    may be well only since then when the history ends."""
    times = Counter(episode.node for episode in episodes)
    short = LONGEST_SHORT_TICKS * tick_seconds <= LONGEST
    longest = ((LONGEST_SHORT_TICKS if short else LONGEST_TICKS) + 0.25) * tick_seconds
    return {
        (episode.node, episode.first.since)
        for episode in episodes
        if episode.first.axis in (Axis.OWN, Axis.STATE) and times[episode.node] == 1
        and episode.first.since is not None and episode.last.recovered is not None
        and episode.last.recovered - episode.first.since <= longest
    }  # fmt: skip


def ends_of_jobs(
    episodes: Sequence[Episode], rests: Mapping[tuple[str, str], Sequence[Rest]],
    hosts: Mapping[NodeKey, NodeKey], last: float, tick_seconds: float,
) -> set[tuple[NodeKey, float]]:  # fmt: skip
    """Node and onset of accusations of nodes that did nothing any more since the same time as those of other hosts of
    their cohort, or for a while as half of these did as well, each at its own time, and are not slow in what they do
    now. `rests`: by cluster and cohort when nodes did nothing for a while. `hosts`: by node that is a GPU its host.
    `last`: the time of the last tick, seconds."""
    cohorts: dict[tuple[str, str], list[Episode]] = {}
    for episode in episodes:
        if episode.first.kind is Kind.STOPPED and episode.first.since is not None:
            cohorts.setdefault(episode.cohort, []).append(episode)
    found: set[tuple[NodeKey, float]] = set()
    for cohort, stops in cohorts.items():
        names, of_cohort = [episode.node for episode in stops], rests.get(cohort, ())
        numbers: dict[NodeKey, int] = {}
        host, resting = (
            np.array([numbers.setdefault(hosts.get(name, name), len(numbers)) for name in nodes], np.int64)
            for nodes in (names, [node for node, _, _ in of_cohort])
        )
        begun = np.array([start for _, start, _ in of_cohort], np.float64)
        rest = np.array([stop for _, _, stop in of_cohort], np.float64) - begun
        since = np.array([episode.first.since for episode in stops], np.float64)
        end = np.array([episode.end or np.nan for episode in stops], np.float64)
        length = np.where(np.isfinite(end), end, last) - since
        alike = [np.abs(since - one) <= TOGETHER * tick_seconds for one in since]
        hosts_alike = np.array([len(np.unique(host[together])) for together in alike], np.int64)
        many = max(FEWEST_HOSTS, SHARE * max(episode.first.cohort_size for episode in stops))
        for number, episode in enumerate(stops):
            shown = bool((hosts_alike[~alike[number]] >= FEWEST_HOSTS).any())
            usual = (rest >= AS_LONG * length[number]) & (resting != host[number])
            often = min(len(np.unique(resting[usual])), _times(begun[usual], TOGETHER * tick_seconds)) + 1 >= many
            if not works_slowly(episode) and (often or hosts_alike[number] >= (FEW_HOSTS if shown else FEWEST_HOSTS)):
                found.add((names[number], float(since[number])))
    return found


def did_nothing(verdict: Verdict) -> bool:
    """Whether a node did nothing when a verdict said so."""
    idle = (verdict.value or 0.0) <= NOTHING * (verdict.expected or np.inf)
    return verdict.kind is Kind.STOPPED or (verdict.axis is Axis.OWN and idle)


def _times(since: Floats, apart: float) -> int:
    """How many times these are, of which those no further apart than `apart` are one."""
    return int(np.count_nonzero(np.diff(np.sort(since)) > apart)) + bool(len(since))


def works_slowly(episode: Episode) -> bool:
    """Whether a node that had stopped works again, and is not well at the end."""
    value, expected = episode.last.value or 0.0, episode.last.expected or np.inf
    return episode.last.recovered is None and value > NOTHING * expected
