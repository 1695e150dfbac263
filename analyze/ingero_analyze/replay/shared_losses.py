"""Tells accusations of losses that peers have as well, as deep and as long, from those of stragglers. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.nodes.codes import is_accused
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.observation import Edge
from ingero_detect.nodes.verdicts import Axis

LENGTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Ticks over which losses are averaged."""

SHARE: Final = 0.5
FEWEST: Final = 2
"""Share of its peers, and peers, that have had such a loss when it tells nothing about a node."""

AS_DEEP: Final = 0.9
"""Share of a loss, log units, that theirs have at least: equal losses differ by their noise."""

FEWEST_KNOWN: Final = 8
EXTREME: Final = 4.9
"""Peers whose worst losses tell how they are distributed, and standard deviations of these by which a loss that ended
by itself is below their mean where it is no chance: a Gumbel variable (Gumbel 1958) is so in one of 1,000 cases."""

FAULTY: Final = 0.25
"""Share of its peers that may have been accused of faults: what these lost would hide other faults. Where more were
accused, nodes lose as much by chance."""

APART: Final = 2.0
"""How many times as large as the worst loss of any other peer these are: losses that all have differ less."""

CALM_TICKS: Final = 60
"""Ticks after a common move of a cohort before its losses count: a job that starts shows nothing about others."""

MOST_NODES: Final = 20_000
"""Nodes up to which losses are followed: 4 KiB each."""


@dataclass
class _Accusation:
    """Number and group of a node; the sum of its residuals over so many ticks before it was accused; and those of the
    ticks since then with their times, no more than count."""

    place: int
    group: int
    total: float = 0.0
    ticks: int = 0
    later: list[tuple[float, float]] = field(default_factory=list)

    def add(self, now: float, residual: float) -> None:
        """Add a tick."""
        if len(self.later) < 2 * LENGTHS[-1]:
            self.later.append((now, residual))

    def ended(self, recovered: float | None) -> "_Accusation":
        """What it was when it ended: the ticks in which the node had recovered are none of it."""
        of_loss = [residual for at, residual in self.later if recovered is None or at < recovered]
        return _Accusation(self.place, self.group, self.total + sum(of_loss), self.ticks + len(of_loss))


class SharedLosses:
    """The worst mean residual of every node over some ticks, in which it worked and was not accused.

    `_sums`: by node the sums of its residuals up to each of its last ticks.
    """

    def __init__(self) -> None:
        self._numbers = NodeNumbers()
        self._sums = np.zeros((0, LENGTHS[-1] + 1))
        self._when = np.zeros((0, LENGTHS[-1]))
        self._worst = np.zeros((0, len(LENGTHS)))
        self._count, self._group = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._since_move = np.zeros(0, np.int64)
        self._open: dict[NodeKey, tuple[float, _Accusation]] = {}
        self._done: dict[tuple[NodeKey, float], _Accusation] = {}
        self._accused = set[int]()

    def note(self, now: float, memory: ColumnStore, edges: Iterable[Edge]) -> None:
        """Add a tick that the detector has judged."""
        if len(memory.names) > MOST_NODES:
            return
        place = self._places(memory.roster())
        judged = memory.node("learned") & (memory.node("absent") == 0) & (memory.node("grace") <= 0)
        judged &= (memory.node("group") >= 0) & np.isfinite(memory.node("residual"))
        residual = memory.node("residual").astype(np.float64)
        calm = self._calm(memory)[memory.node("group")]
        free = np.flatnonzero(judged & calm & ~is_accused(memory.node("state")))
        self._follow(now, place[free], residual[free])
        self._group[place] = memory.node("group")
        for node, (_, accusation) in self._open.items():
            slot = memory.slot(node)
            if slot is not None and judged[slot]:
                accusation.add(now, float(residual[slot]))
        for edge in edges:
            verdict = edge.verdict
            node, slot = node_key(verdict.cluster, verdict.node), memory.slot(node_key(verdict.cluster, verdict.node))
            if edge.what == "accused" and slot is not None:
                since = now if verdict.since is None else verdict.since
                self._accused.add(int(place[slot]))
                self._open[node] = since, self._begun(int(place[slot]), since, float(residual[slot]))
            elif edge.what == "cleared" and node in self._open:
                since, accusation = self._open.pop(node)
                self._done[node, since] = accusation.ended(verdict.recovered)

    def shared(self, episode: Episode) -> bool:
        """Whether half of the peers of an accused node have had such a loss without being accused, or it ended by
        itself, as the node is well at least when the history ends, and their worst losses make it likely that one of
        them comes to it by chance."""
        first = episode.first
        found = self._done.get(episode.key) or self._open.get(episode.node, (0.0, None))[1]
        well = episode.last.recovered
        found = found and found.ended(well)
        if first.axis is not Axis.OWN or found is None or not 0 < found.ticks < 2 * LENGTHS[-1]:
            return False
        row = int(np.searchsorted(LENGTHS, found.ticks, side="right")) - 1
        peers = np.flatnonzero((self._group == found.group) & (self._count >= 2 * LENGTHS[row]))
        peers, mean = peers[peers != found.place], found.total / found.ticks
        worst = self._worst[peers, row]
        if np.count_nonzero(worst <= AS_DEEP * mean) >= max(FEWEST, SHARE * len(worst)):
            return True
        worst = _without_faulty(worst, np.isin(peers, list(self._accused)))
        return well is not None and len(worst) >= FEWEST_KNOWN and mean >= _worst_by_chance(worst)

    def _begun(self, place: int, since: float, residual: float) -> _Accusation:
        """A new accusation, with what the node has lost since its onset, this tick included."""
        ticks, now = int(np.count_nonzero(self._when[place] >= since)), int(self._count[place])
        before = self._sums[place, now % len(self._sums.T)] - self._sums[place, (now - ticks) % len(self._sums.T)]
        return _Accusation(place, int(self._group[place]), float(before) + residual, ticks + 1)

    def _calm(self, memory: ColumnStore) -> Bools:
        """By group: whether it made no common move lately."""
        moved = memory.group("moved") != 0
        if len(self._since_move) != len(moved):
            self._since_move = np.full(len(moved), CALM_TICKS)
        self._since_move = np.where(moved, 0, self._since_move + 1)
        calm: Bools = self._since_move > CALM_TICKS
        return calm

    def _follow(self, now: float, place: Ints, residual: Floats) -> None:
        """Add the residuals of a tick to the means over the last ticks of their nodes."""
        count, kept = self._count[place], len(self._sums.T)
        total = self._sums[place, count % kept] + residual
        lengths = np.array(LENGTHS)
        mean = (total[:, None] - self._sums[place[:, None], (count[:, None] + 1 - lengths) % kept]) / lengths
        mean[count[:, None] + 1 < lengths] = 0.0
        self._worst[place] = np.minimum(self._worst[place], mean)
        self._sums[place, (count + 1) % kept] = total
        self._when[place, count % len(self._when.T)] = now
        self._count[place] += 1

    def _places(self, names: Sequence[NodeKey]) -> Ints:
        """Numbers of nodes by slot, entering new ones."""
        places, nodes = self._numbers.of(names), len(self._numbers)
        self._sums, self._worst = (longer(each, nodes, 0.0, axis=0) for each in (self._sums, self._worst))
        self._when = longer(self._when, nodes, -np.inf, axis=0)
        self._count, self._group = longer(self._count, nodes, 0), longer(self._group, nodes, -1)
        return places


def _without_faulty(worst: Floats, accused: Bools) -> Floats:
    """The worst losses of peers, without those of the accused ones that chance does not bring about in the others."""
    if not accused.any() or accused.mean() > FAULTY or np.count_nonzero(~accused) < FEWEST_KNOWN:
        return worst
    others = worst[~accused]
    return worst[~accused | (worst >= min(_worst_by_chance(others), APART * float(others.min())))]


def _worst_by_chance(worst: Floats) -> float:
    """The worst loss that chance brings about, from the `worst` ones of two peers or more, log units."""
    return float(worst.mean() - EXTREME * worst.std(ddof=1))
