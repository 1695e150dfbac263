"""Finds nodes that went silent and came back together with other work: jobs that no column tells apart. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Bools, Floats, Ints, row_medians
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.observation import ABSENT, ACTIVE, Observation
from ingero_detect.nodes.verdicts import Axis
from ingero_detect.threshold import MAD_TO_SIGMA, MEDIAN_ERROR

KEPT: Final = 10
"""Working ticks of a node whose median is its level; that after a return begins once it has warmed up."""

LATER: Final = RESUME_TICKS + KEPT
"""Ticks after a return when levels are compared."""

FEWEST: Final = 3
"""Ticks of a level, nodes that worked on, and nodes of a cohort that came back again and again, at least."""

FEWEST_TOGETHER: Final = 2
"""Nodes that came back together, at least."""

TOGETHER: Final = 2
"""Ticks within which nodes come back together."""

SHARE: Final = 0.75
"""Share of the nodes that came back together whose level has changed, if they began another job."""

STAYED: Final = 0.25
"""Share of the cohort that worked on meanwhile, at least: a job of all that starts again shows who is slow in it."""

OFTEN: Final = 2
"""Such returns of each of half of the nodes of a cohort, from which on it is no cohort."""

FEWEST_TIMES: Final = 2
"""Times at which nodes of a cohort came back so, to levels other than their first ones: a single one may be damage,
and its repair."""

LEAST: Final = 0.05
ERRORS: Final = 4.0
"""Change of a node's level against the nodes that worked on, log units, and in standard errors, at least."""

MOST_NODES: Final = 2_000
"""Nodes up to which they are followed: a vector of levels is kept for every time at which one fell silent."""


@dataclass(frozen=True)
class _Return:
    """A node that worked for the last time before the tick `stopped`, and again since the tick `resumed`."""

    place: int
    stopped: int
    resumed: int


class OtherJobs:
    """When nodes came back together at other levels than before, while others of their cohort worked on."""

    def __init__(self, tick_seconds: float) -> None:
        self._seconds = tick_seconds
        self._numbers = NodeNumbers()
        self._past = np.full((KEPT, 0), np.nan)
        self._count, self._worked = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._resumed, self._cohort = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._before: dict[int, tuple[Floats, Floats]] = {}
        self._times: list[float] = []
        self._judged = -1
        self._returns: list[_Return] = []
        self._found: dict[NodeKey, list[tuple[int, float, float]]] = {}
        self._moved = np.zeros(0)
        self._at: dict[int, list[int]] = {}

    def note(self, now: float, seen: Observation) -> None:
        """Add a tick. One without any node is nobody's."""
        state, value = np.asarray(seen.state), np.asarray(seen.value, np.float64)
        if len(self._numbers) > MOST_NODES or not (state != ABSENT).any():
            return
        tick = len(self._times)
        self._times.append(now)
        places = self._places(seen.names)
        working = (state == ACTIVE) & (value > 0)
        here = places[working]
        known = self._count > 0
        stops = known & (self._worked == tick - 1)
        stops[here] = False
        if stops.any():
            self._before[tick] = self._levels()
        back = here[known[here] & (self._worked[here] < tick - 1)]
        self._returns += [_Return(place, int(self._worked[place]) + 1, tick) for place in back.tolist()]
        self._resumed[back], self._count[back] = tick, 0
        self._past[:, back] = np.nan
        self._past[self._count[here] % KEPT, here] = np.log(value[working])
        self._count[here] += 1
        self._worked[here] = tick
        self._cohort[here] = np.asarray(seen.cohort)[working]
        until = tick - LATER
        if any(self._judged < each.resumed <= until for each in self._returns):
            self._judge(until)

    def explained(self, episode: Episode) -> bool:
        """Whether a node was accused, by its own history, of what began as it came back to other work."""
        since = episode.first.since
        if since is None or episode.first.axis is not Axis.OWN:
            return False
        self._judge_all()
        wait = (RESUME_TICKS + 0.5) * self._seconds
        return any(
            len(self._at.get(cohort, ())) >= FEWEST_TIMES and stopped <= since <= resumed + wait
            for cohort, stopped, resumed in self._found.get(episode.node, ())
        )

    def mixed(self) -> set[NodeKey]:
        """Nodes of cohorts half of which came back so again and again: nobody knows what to compare them with."""
        self._judge_all()
        names = self._numbers.names
        often = np.array([len(self._found.get(name, ())) >= OFTEN for name in names], np.bool_)
        mixed: set[NodeKey] = set()
        for cohort in np.unique(self._cohort[often]).tolist():
            inside = self._cohort == cohort
            if np.count_nonzero(often & inside) >= max(FEWEST, np.count_nonzero(inside) / 2):
                mixed |= {names[place] for place in np.flatnonzero(inside).tolist()}
        return mixed

    def _judge_all(self) -> None:
        if self._judged < len(self._times):
            self._judge(len(self._times))

    def _judge(self, until: int) -> None:
        """Compare the levels of nodes that were back by then, before and after."""
        returns = [each for each in self._returns if each.resumed <= until + TOGETHER]
        resumed = np.array([each.resumed for each in returns], np.int64)
        cohort = self._cohort[[each.place for each in returns]]
        changes = self._changes(returns)
        for number in np.flatnonzero((changes != 0) & (resumed > self._judged) & (resumed <= until)).tolist():
            together = (np.abs(resumed - resumed[number]) <= TOGETHER) & (cohort == cohort[number])
            least = max(FEWEST_TOGETHER, SHARE * np.count_nonzero(together))
            if np.count_nonzero(changes[together]) >= least:
                self._enter(returns[number], float(changes[number]))
        self._judged = until
        self._returns = [each for each in self._returns if each.resumed > until - TOGETHER]
        absent = (self._count > 0) & (self._worked < len(self._times) - 1)
        needed = {*(self._worked[absent] + 1).tolist(), *(each.stopped for each in self._returns)}
        self._before = {tick: levels for tick, levels in self._before.items() if tick in needed}

    def _enter(self, one: _Return, change: float) -> None:
        """A node came back together with others to another level."""
        cohort = int(self._cohort[one.place])
        spell = cohort, self._times[one.stopped] - self._seconds / 2, self._times[one.resumed]
        self._found.setdefault(self._numbers.names[one.place], []).append(spell)
        self._moved[one.place] += change
        times = self._at.setdefault(cohort, [])
        other = abs(self._moved[one.place]) > abs(change) / 2
        if other and all(abs(one.resumed - tick) > TOGETHER for tick in times):
            times.append(one.resumed)

    def _changes(self, returns: Sequence[_Return]) -> Floats:
        """By how much the level of each node has changed that returned, log units, against the nodes of its cohort
        that worked on; 0 if that is little, or not known."""
        level, error = self._levels()
        found = np.zeros(len(returns))
        usual: dict[tuple[int, int, int], float] = {}
        for number, one in enumerate(returns):
            before, before_error = self._before[one.stopped]
            key = one.stopped, one.resumed, int(self._cohort[one.place])
            if key not in usual:
                usual[key] = self._usual(level[: len(before)] - before, *key)
            change = level[one.place] - before[one.place] - usual[key]
            if abs(change) > max(LEAST, ERRORS * np.hypot(error[one.place], before_error[one.place])):
                found[number] = change
        return found

    def _usual(self, changes: Floats, stopped: int, resumed: int, cohort: int) -> float:
        """The median change of the nodes of a cohort that worked from one tick to another; NaN if these are few."""
        nodes = len(changes)
        inside = (self._cohort == cohort)[:nodes]
        stayed = inside & (self._resumed[:nodes] < stopped) & (self._worked[:nodes] >= resumed) & np.isfinite(changes)
        few = np.count_nonzero(stayed) < max(FEWEST, STAYED * np.count_nonzero(inside))
        return np.nan if few else float(np.median(changes[stayed]))

    def _levels(self) -> tuple[Floats, Floats]:
        """The levels of all nodes, log units, over their last working ticks, and standard errors of these."""
        level, error = np.full(len(self._count), np.nan), np.full(len(self._count), np.nan)
        enough: Bools = self._count >= FEWEST
        past = self._past[:, enough]
        level[enough] = row_medians(past.T)
        spread = MAD_TO_SIGMA * row_medians(np.abs(past - level[enough]).T)
        error[enough] = MEDIAN_ERROR * spread / np.sqrt(np.minimum(self._count[enough], KEPT))
        return level, error

    def _places(self, names: Sequence[NodeKey]) -> Ints:
        """Numbers of nodes, entering new ones."""
        places, nodes = self._numbers.of(names), len(self._numbers)
        self._past = longer(self._past, nodes, np.nan)
        self._count, self._worked = longer(self._count, nodes, 0), longer(self._worked, nodes, -1)
        self._moved = longer(self._moved, nodes, 0.0)
        self._resumed, self._cohort = longer(self._resumed, nodes, 0), longer(self._cohort, nodes, -1)
        return places
