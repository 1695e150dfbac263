"""Tells nodes that follow a move of all unevenly from stragglers: what followed says which they were. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ingero_analyze.replay.common_levels import above_baselines
from ingero_analyze.replay.shares_in_moves import AFTER, SharesInMoves
from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.observation import Edge
from ingero_detect.nodes.verdicts import Axis

LEAST: Final = 0.05
"""Change of three quarters of a cohort, down or up, that is a move of all, log units."""

LEARNT_TICKS: Final = 60
"""Ticks in which nodes learn what a move does to them; accusations that begin later have another cause."""

AT_ONCE: Final = 2.5
"""Ticks before the end of a move from which on a node that does not follow the others has its onset."""

KEPT: Final = 24
"""Ticks of a cohort's past that are kept; all but the last few say what it did before."""

SETTLING: Final = 6
"""Ticks that a move takes; what begins within them is part of it."""

MOST_NODES: Final = 20_000
"""Nodes up to which moves are followed."""

DOWN, UP = 0, 1

Onset = tuple[NodeKey, float]
"""Node and onset, seconds."""


@dataclass
class CommonMove:
    """A cohort that moved together at a time, `way` up or down: its level before, how far three quarters of it moved
    at least, log units, and until when it was there, seconds; `ended` once it was back."""

    begun: float
    way: int
    before: float
    far: float
    until: float
    ended: bool = False


@dataclass
class _AccusedInMove:
    """A node that was accused after a move of its cohort, its onset and since when it was as slow as that, which is
    earlier where it was not judged at first; the nodes of the cohort, and how far it was behind them, log units, if
    it was accused of that and not of a change."""

    node: NodeKey
    since: float
    slow: float
    peers: list[NodeKey]
    behind: float | None = None
    moves: list[CommonMove] = field(default_factory=list)
    recovered: float = np.inf


class Slowdowns:
    """How whole cohorts moved, and which accusations that explains.

    `_past`: levels by way, tick and group.
    """

    def __init__(self, tick_seconds: float) -> None:
        self._tick_seconds = tick_seconds
        self._wait = (RESUME_TICKS + 0.5) * tick_seconds
        self._shares = SharesInMoves()
        self._past = np.full((2, KEPT, 0), np.nan)
        self._ticks, self._now = 0, -np.inf
        self._of: dict[int, list[CommonMove]] = {}
        self._waiting: list[_AccusedInMove] = []
        self._moves: dict[Onset, list[CommonMove]] = {}
        self._as_others: set[tuple[Onset, float]] = set()

    def note(
        self, now: float, memory: ColumnStore, edges: Iterable[Edge], begun: Mapping[Onset, Sequence[float]]
    ) -> None:
        """Add a tick that the detector has judged. `begun`: by node and onset the times before that at which it had
        lost as much and was not judged, seconds."""
        if len(memory.names) > MOST_NODES:
            return
        self._shares.note(now, memory)
        self._now = now
        logs, group = above_baselines(memory)
        groups = len(memory.groups)
        level = np.stack((_upper_quartile(logs, group, groups), _upper_quartile(-logs, group, groups)))
        if groups < self._past.shape[2]:
            self._past, self._of = np.full((2, KEPT, 0), np.nan), {}
        if more := groups - self._past.shape[2]:
            self._past = np.concatenate((self._past, np.full((2, KEPT, more), np.nan)), axis=2)
        begins = (memory.group("moved") != 0) & np.isfinite(level[0])
        for number in np.flatnonzero(begins).tolist():
            self._begin(now, number, level[:, number])
        for number, moves in self._of.items():
            for move in moves:
                self._follow(move, now, float(level[move.way, number]))
        self._past[:, self._ticks % KEPT] = level
        self._ticks += 1
        for edge in edges:
            self._note_edge(now, memory, edge, begun)
        self._compare_all(last=False)

    def explained(self, episodes: Iterable[Episode]) -> set[Onset]:
        """Node and onset of accusations that moves explain: of nodes that came back last, and of those that lost
        more than most, if that is within what nodes differ by in such a move."""
        self._compare_all(last=True)
        found: set[Onset] = set()
        for episode in episodes:
            key, end = episode.key, episode.last.recovered
            for move in self._moves.get(key, ()):
                followed = self._together(move, key[1], end) and (key, move.begun) in self._as_others
                if followed or self._came_back_last(move, key[1], end):
                    found.add(key)
        return found

    def _came_back_last(self, move: CommonMove, since: float, end: float | None) -> bool:
        """Whether a node was only late when the others were back."""
        first, last = move.until - AT_ONCE * self._tick_seconds, move.until + self._wait
        return move.ended and end is not None and first <= since <= last and end <= last

    def _together(self, move: CommonMove, since: float, end: float | None) -> bool:
        """Whether a node fell with all others, and was well when they were."""
        if not self._in_time(move, since):
            return False
        if end is None:
            return not move.ended
        return not move.ended or end <= move.until + self._wait

    def _in_time(self, move: CommonMove, since: float) -> bool:
        learnt = move.begun + LEARNT_TICKS * self._tick_seconds
        return move.begun - self._wait <= since <= min(learnt, move.until + self._wait)

    def _begin(self, now: float, number: int, level: Floats) -> None:
        """A cohort moves together: it is a move of all if three quarters of it changed, and none that goes on."""
        moves = self._of.setdefault(number, [])
        if moves and now - moves[-1].begun <= (SETTLING + 0.5) * self._tick_seconds:
            return
        order = (self._ticks + np.arange(KEPT - SETTLING)) % KEPT
        for way in (DOWN, UP):
            earlier = self._past[way, order, number]
            earlier = earlier[np.isfinite(earlier)]
            if len(earlier) and (before := float(np.median(earlier))) - level[way] >= LEAST:
                moves.append(CommonMove(now, way, before, 0.0, now))
                return

    def _follow(self, move: CommonMove, now: float, level: float) -> None:
        far = move.before - level
        if move.ended or not np.isfinite(far):
            return
        if now - move.begun <= self._wait:
            move.far = max(move.far, far)
        move.ended = far <= 0.5 * move.far
        if not move.ended:
            move.until = now

    def _note_edge(self, now: float, memory: ColumnStore, edge: Edge, begun: Mapping[Onset, Sequence[float]]) -> None:
        """Remember an accusation, with the moves before it, and when its node was well."""
        verdict = edge.verdict
        node = node_key(verdict.cluster, verdict.node)
        slot = memory.slot(node)
        if edge.what == "cleared":
            for one in self._waiting:
                if one.node == node and verdict.recovered is not None:
                    one.recovered = verdict.recovered
        if edge.what != "accused" or slot is None or verdict.axis not in (Axis.OWN, Axis.PEERS):
            return
        since = now if verdict.since is None else verdict.since
        number = int(memory.node("group")[slot])
        if moves := [move for move in self._of.get(number, ()) if move.until >= since - self._wait]:
            self._moves[node, since] = moves
            inside = np.flatnonzero(memory.node("group") == number).tolist()
            peers, behind = [memory.names[place] for place in inside], None
            if verdict.axis is Axis.PEERS and verdict.residual is not None:
                behind = -verdict.residual
            slow = min((since, *begun.get((node, since), ())))
            self._waiting.append(_AccusedInMove(node, since, slow, peers, behind, moves))

    def _compare_all(self, last: bool) -> None:
        """Compare with the others who was well again, or was accused for long enough; at the end all."""
        for one in list(self._waiting):
            long = self._now - one.since > AFTER * self._tick_seconds
            if not (last or long or np.isfinite(one.recovered)):
                continue
            self._waiting.remove(one)
            for move in one.moves:
                until = min(one.recovered, move.until + 0.5 * self._tick_seconds if move.ended else np.inf)
                if self._in_time(move, one.since) and self._shares.usual(
                    one.node, one.peers, move.begun, one.slow, until, one.behind
                ):
                    self._as_others.add(((one.node, one.since), move.begun))


def _upper_quartile(values: Floats, group: Ints, groups: int) -> Floats:
    """By group; NaN where there is none."""
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    some: Bools = count > 0
    quartile = np.full(groups, np.nan)
    begins = np.cumsum(count) - count
    quartile[some] = values[order][(begins + (0.75 * (count - 1)).astype(np.int64))[some]]
    return quartile
