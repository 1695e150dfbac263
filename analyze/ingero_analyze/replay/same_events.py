"""Finds accusations that belong to an event of many nodes most of which are excused, or that is like others that are:
one event has one cause. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from ingero_analyze.replay.stops import did_nothing
from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Bools
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.episodes import Episode

TOGETHER: Final = 1.5
"""Ticks within which the losses of one event begin, or stops are seen, where chance had a node low before."""

ALIKE: Final = 0.1
"""What they differ by at most: log units, and share of the loss."""

MOST: Final = 2 / 3
FEWEST_HOSTS: Final = 3
"""Share of the hosts of such an event that is excused at least, and hosts."""

FEW_HOSTS: Final = 2
FEWEST_EVENTS: Final = 2
"""Hosts that stop together where so many other such stops are excused, each of `FEWEST_HOSTS`: jobs end there."""

R = TypeVar("R")


def excused_with_others(
    accused: Sequence[Episode], excused: Mapping[R, Sequence[Episode]], hosts: Mapping[NodeKey, NodeKey],
    last: float, tick_seconds: float, end_of_job: R, *, several_jobs: bool,
) -> dict[tuple[NodeKey, float], R]:  # fmt: skip
    """By node and onset the reason for which most of those are `excused` whose losses began and ended when that of an
    `accused` node did, and were as large; and `end_of_job` where it stopped with others as some that are excused did
    at other times, or with several where groups show that there are `several_jobs`.

    `hosts`: by node that is a GPU its host; `last`: the time of the last tick, seconds."""
    reasons = [(reason, episode) for reason, episodes in excused.items() for episode in episodes]
    if not accused:
        return {}
    events = _Events([*(episode for _, episode in reasons), *accused], hosts, last, tick_seconds)
    is_excused = np.arange(len(reasons) + len(accused)) < len(reasons)
    ends = _ends_of_jobs(events, is_excused)
    found: dict[tuple[NodeKey, float], R] = {}
    for number, episode in enumerate(accused, len(reasons)):
        same = events.same(number)
        together, with_it = events.hosts(same), events.hosts(same & is_excused)
        if together >= FEWEST_HOSTS and with_it >= MOST * together:
            of = np.flatnonzero(same & is_excused).tolist()
            found[episode.key] = Counter(reasons[place][0] for place in of).most_common(1)[0][0]
        elif events.stops[same].all() and (
            (several_jobs and together >= FEWEST_HOSTS)
            or (together >= FEW_HOSTS and events.times(ends & events.elsewhere(number)) >= FEWEST_EVENTS)
        ):
            found[episode.key] = end_of_job
    return found


def excused_before(
    accused: Sequence[Episode], excused: Mapping[R, Sequence[Episode]], hosts: Mapping[NodeKey, NodeKey],
    last: float, tick_seconds: float,
) -> dict[tuple[NodeKey, float], R]:  # fmt: skip
    """By node and onset the reason for which a loss that covers that of an `accused` node is `excused`, with those of
    two hosts or more, where all nodes were compared with each other and not by groups: a job whose nodes are not all
    of one group loses against the rest of it what it lost against all."""
    reasons = [(reason, episode) for reason, episodes in excused.items() for episode in episodes]
    events = _Events([episode for _, episode in reasons], hosts, last, tick_seconds)
    covers: dict[NodeKey, list[tuple[R, Episode]]] = {}
    for number, (reason, episode) in enumerate(reasons):
        if events.hosts(events.same(number)) >= FEW_HOSTS:
            covers.setdefault(episode.node, []).append((reason, episode))
    found: dict[tuple[NodeKey, float], R] = {}
    for episode in accused:
        since, end = episode.first.since or 0.0, last if episode.end is None else episode.end
        for reason, one in covers.get(episode.node, ()):
            until = last if one.end is None else one.end + RESUME_TICKS * tick_seconds
            begun = (one.first.since or 0.0) - TOGETHER * tick_seconds
            if begun <= since and end <= until and episode.lasting <= one.lasting + ALIKE * (1 + one.lasting):
                found[episode.key] = reason
    return found


class _Events:
    """Accusations with their cohorts, hosts, onsets and ends, seconds, and lasting losses, log units; and which
    stopped."""

    def __init__(
        self, episodes: Sequence[Episode], hosts: Mapping[NodeKey, NodeKey], last: float, tick_seconds: float
    ) -> None:
        numbers: dict[object, int] = {}
        self._host, self._cohort = (
            np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
            for keys in ([hosts.get(one.node, one.node) for one in episodes], [one.cohort for one in episodes])
        )
        self._since = np.array([one.first.since or 0.0 for one in episodes])
        self._detected = np.array([one.first.detected or 0.0 for one in episodes])
        self._end = np.array([last if one.end is None else one.end for one in episodes])
        self._lost = np.array([one.lasting for one in episodes])
        self.stops = np.array([did_nothing(one.first) for one in episodes], np.bool_)
        self._tick = tick_seconds

    def same(self, number: int) -> Bools:
        """Which belong to the event of one."""
        near = [np.abs(of - of[number]) <= TOGETHER * self._tick for of in (self._since, self._detected)]
        same: Bools = (
            (self._cohort == self._cohort[number])
            & (near[0] | (near[1] & self.stops & self.stops[number]))
            & (np.abs(self._end - self._end[number]) <= RESUME_TICKS * self._tick)
            & (np.abs(self._lost - self._lost[number]) <= ALIKE * (1 + self._lost[number]))
        )
        return same

    def elsewhere(self, number: int) -> Bools:
        """Which are of the same cohort at other times than one."""
        apart = np.abs(self._since - self._since[number]) > RESUME_TICKS * self._tick
        others: Bools = apart & (self._cohort == self._cohort[number])
        return others

    def hosts(self, which: Bools) -> int:
        """The number of their hosts."""
        return len(np.unique(self._host[which]))

    def times(self, which: Bools) -> int:
        """At how many times they began."""
        apart = np.diff(np.sort(self._since[which])) > TOGETHER * self._tick
        return int(which.any()) + int(np.count_nonzero(apart))


def _ends_of_jobs(events: _Events, excused: Bools) -> Bools:
    """Which accusations are excused that many hosts had which stopped together."""
    found = np.zeros(len(excused), np.bool_)
    for number in np.flatnonzero(excused & events.stops).tolist():
        found[number] = found[number] or events.hosts(events.same(number) & excused & events.stops) >= FEWEST_HOSTS
    return found
