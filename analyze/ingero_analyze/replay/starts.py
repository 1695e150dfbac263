"""Tells nodes that came up after they did nothing from slow ones: what followed says which they were. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import filled
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.observation import ABSENT, ACTIVE, Observation

LONGEST: Final = 1800.0
"""Seconds, or `RESUME_TICKS` if these are longer, in which a node comes up."""

FEWEST_TICKS: Final = 2
"""Ticks without work that are a stop, where the node reports in one of them; silence takes longer."""

UP_TICKS: Final = 4
"""Ticks in a row at its usual rate, and at that of its peers, after which a node has come up."""

Ints = npt.NDArray[np.int64]

Rest = tuple[NodeKey, float, float]
"""A node that did nothing from one time to another, seconds."""


@dataclass
class Start:
    """A node did nothing from `stopped`, and has worked since `resumed`, seconds. `silent`: it reported nothing;
    `cohort`: the number of the one for which it works; `up`: when it had come up, if that was seen."""

    stopped: float
    resumed: float
    silent: bool
    cohort: int
    up: float = np.inf


def longest_start(tick_seconds: float) -> float:
    """Seconds in which a node comes up at most."""
    return max(LONGEST, RESUME_TICKS * tick_seconds)


class Starts:
    """When nodes began to work, after they did nothing or were silent for more than so many `ticks`."""

    def __init__(self, ticks: int) -> None:
        self._ticks = ticks
        self._tick = 0
        self._by_node: dict[NodeKey, list[Start]] = {}
        self._numbers = NodeNumbers()
        self._worked, self._reported = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._stopped = np.zeros(0)
        self._usual = np.zeros(0, np.int64)
        self._starting: dict[NodeKey, Start] = {}

    def note(self, now: float, seen: Observation) -> None:
        """Add a tick. One without any node is nobody's."""
        state, value = np.asarray(seen.state), np.asarray(seen.value, np.float64)
        reported = state != ABSENT
        if not reported.any():
            return
        self._tick += 1
        places = self._places(seen.names)
        working = reported & (state == ACTIVE) & (value > 0)
        works, cohort = places[working], np.asarray(seen.cohort)[working]
        idle = self._tick - 1 - self._worked
        stood = self._reported > self._worked
        begins = (idle > self._ticks) | (stood & (idle >= FEWEST_TICKS))
        for place, number in zip(works[begins[works]].tolist(), cohort[begins[works]].tolist(), strict=True):
            name = self._numbers.names[place]
            start = self._starting[name] = Start(float(self._stopped[place]), now, not stood[place], number)
            self._by_node.setdefault(name, []).append(start)
            self._usual[place] = 0
        self._stopped[self._worked == self._tick - 1] = now
        self._reported[places[reported]] = self._tick
        self._worked[works] = self._tick

    def judged(self, now: float, memory: ColumnStore, band: float) -> None:
        """Add what the detector found in that tick: who is no more than a `band`, log units, behind its own history
        and its peers."""
        if not self._starting:
            return
        level = filled(memory.group("level"), 0.0)
        for name, start in list(self._starting.items()):
            slot, place = memory.slot(name), self._numbers[name]
            if slot is None or self._worked[place] != self._tick or memory.node("absent")[slot]:
                self._usual[place] = 0
                continue
            expected = memory.node("baseline")[slot] + level[memory.node("group")[slot]]
            own = np.log(memory.node("value")[slot]) - expected
            usual = memory.node("learned")[slot] and min(own, memory.node("residual")[slot]) >= -band
            self._usual[place] = self._usual[place] + 1 if usual else 0
            if self._usual[place] >= UP_TICKS:
                start.up = now
                del self._starting[name]

    def rests(self) -> dict[int, list[Rest]]:
        """By number of a cohort when its nodes did nothing after they had worked, and worked again."""
        found: dict[int, list[Rest]] = {}
        for node, starts in self._by_node.items():
            for one in starts:
                if np.isfinite(one.stopped):
                    found.setdefault(one.cohort, []).append((node, one.stopped, one.resumed))
        return found

    def came_up(self, episode: Episode, tick_seconds: float) -> Start | None:
        """The start that explains an episode: the node did nothing before it fell behind, and soon was well.

        A node that has come up falls behind for another reason.

        A node that stopped by itself, and said so, did it when the episode began, and not before.
        """
        since, end = episode.first.since, episode.last.recovered
        if since is None or end is None or end - since > longest_start(tick_seconds):
            return None
        first, some = since - (RESUME_TICKS + 0.5) * tick_seconds, 1.5 * tick_seconds
        for one in self._by_node.get(episode.node, ()):
            before = one.stopped < (since + some if one.silent else since - some)
            if before and first <= one.resumed <= end and since <= one.up:
                return one
        return None

    def _places(self, names: Sequence[NodeKey]) -> Ints:
        """Numbers of nodes, entering new ones, which did nothing before."""
        places, nodes = self._numbers.of(names), len(self._numbers)
        self._worked, self._reported = longer(self._worked, nodes, 0), longer(self._reported, nodes, 0)
        self._stopped = longer(self._stopped, nodes, -np.inf)
        self._usual = longer(self._usual, nodes, 0)
        return places
