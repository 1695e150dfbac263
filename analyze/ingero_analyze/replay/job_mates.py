"""Tells by the times at which nodes fall which of them work for one job that no column tells, so that what such nodes
lose together is no straggler's. Pure.

A checkpoint, an evaluation, or a stall of its data takes all nodes of a job at one time, and no others. A rack that
flaps does that as well; so there must be several such groups, each with times of its own, and most nodes that fall
again and again must be in one.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Bools, Ints
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.episodes import Episode

LEAST: Final = 0.05
SPREADS: Final = 6.0
"""What a node loses from one tick to the next when it falls, log units, and relative to the mean of what it usually
changes by from tick to tick, at least: 4.8 standard deviations of these changes where noise is normal."""

CLIPPED: Final = 0.2
"""Most that a change counts in that mean, log units."""

WARMUP: Final = 20
"""Changes that it is known from."""

WITHIN: Final = 1
"""Ticks by which the falls of one event differ, at most."""

FEWEST: Final = 3
"""Falls that two nodes of a job have at the same times."""

BY_CHANCE: Final = 1e-4
"""Chance that two nodes with falls at times of their own have so many of them together, at most."""

OFTEN: Final = 2 / 3
"""Share of the falls that a node has with any other which it has with each of its job, and of a group which are so
connected with each of its nodes."""

SHARE: Final = 0.5
FEWEST_GROUPS: Final = 2
"""Share of the nodes of a cohort that fell so often which are in such groups, and groups."""

MOST_NODES: Final = 1_000
"""Nodes up to which pairs are counted, 8 bytes each."""


class JobMates:
    """How often nodes fell, and how often two of them at one time.

    `_fell`: the tick of the last fall of each node.
    """

    def __init__(self) -> None:
        self._numbers = NodeNumbers()
        self._tick = 0
        self._past, self._usual = np.zeros(0), np.zeros(0)
        self._changes, self._falls = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._fell, self._group = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._both: npt.NDArray[np.int64] = np.zeros((0, 0), np.int64)

    def note(self, memory: ColumnStore) -> None:
        """Add a tick that the detector has judged."""
        if len(memory.names) > MOST_NODES:
            return
        self._tick += 1
        place, group = self._places(memory.roster()), memory.node("group")
        judged = memory.node("learned") & (memory.node("absent") == 0) & (group >= 0)
        judged &= np.isfinite(memory.node("residual"))
        rows = np.flatnonzero(judged & (memory.group("moved") == 0)[group])
        here = place[rows]
        change = np.full(len(self._past), np.nan)
        change[here] = memory.node("residual")[rows] - self._past[here]
        self._past[:] = np.nan
        self._past[here] = memory.node("residual")[rows]
        self._group[here] = group[rows]
        enough = (self._changes >= WARMUP) & (self._tick - self._fell > WITHIN + 1)
        low = enough & (change < -np.maximum(LEAST, SPREADS * self._usual))
        self._count(np.flatnonzero(low))
        known = np.flatnonzero(np.isfinite(change))
        self._changes[known] += 1
        size = np.minimum(np.abs(change[known]), CLIPPED)
        self._usual[known] += (size - self._usual[known]) / self._changes[known]

    def found(self, hosts: Mapping[NodeKey, NodeKey]) -> dict[NodeKey, list[NodeKey]]:
        """The others of its job by node, of cohorts where jobs are told so. `hosts`: by node that is a GPU
        its host; GPUs of one host are no job."""
        names, found = self._numbers.names, dict[NodeKey, list[NodeKey]]()
        host = [hosts.get(name, name) for name in names]
        for cohort in np.unique(self._group[self._group >= 0]).tolist():
            inside = np.flatnonzero(self._group == cohort)
            groups = [inside[group] for group in self._groups(inside)]
            groups = [group for group in groups if len({host[node] for node in group.tolist()}) > 1]
            often = np.count_nonzero(self._falls[inside] >= FEWEST)
            if len(groups) < FEWEST_GROUPS or sum(map(len, groups)) < SHARE * often:
                continue
            for group in groups:
                found |= {
                    names[node]: [names[one] for one in group.tolist() if one != node] for node in group.tolist()
                }
        return found

    def _count(self, fallen: Ints) -> None:
        """Enter the falls of a tick."""
        earlier = np.flatnonzero((self._fell > 0) & (self._tick - self._fell <= WITHIN))
        self._falls[fallen] += 1
        self._fell[fallen] = self._tick
        self._both[np.ix_(fallen, fallen)] += 1
        self._both[np.ix_(fallen, earlier)] += 1
        self._both[np.ix_(earlier, fallen)] += 1

    def _groups(self, inside: Ints) -> list[Ints]:
        """Groups of the nodes of a cohort that fall together, by their numbers in it."""
        both, falls = self._both[np.ix_(inside, inside)], self._falls[inside]
        np.fill_diagonal(both, 0)
        alike = (both >= FEWEST) & _unlikely(both, falls, self._changes[inside])
        often = both >= OFTEN * both.max(axis=1, initial=0)[:, None]
        alike &= often & often.T
        waiting, found = np.ones(len(inside), np.bool_), list[Ints]()
        for node in range(len(inside)):
            if waiting[node] and alike[node].any():
                group = _connected(alike, node)
                waiting[group] = False
                part = alike[np.ix_(group, group)]
                if (part.sum(axis=1) >= OFTEN * (len(group) - 1)).all():
                    found.append(group)
        return found

    def _places(self, names: Sequence[NodeKey]) -> Ints:
        """Numbers of nodes by slot, entering new ones."""
        places, nodes = self._numbers.of(names), len(self._numbers)
        self._past, self._usual = longer(self._past, nodes, np.nan), longer(self._usual, nodes, 0.0)
        self._changes, self._falls = longer(self._changes, nodes, 0), longer(self._falls, nodes, 0)
        self._fell, self._group = longer(self._fell, nodes, -WITHIN - 2), longer(self._group, nodes, -1)
        self._both = longer(longer(self._both, nodes, 0, axis=0), nodes, 0, axis=1)
        return places


def lost_with_job(
    episode: Episode, mates: Sequence[NodeKey], alike: Sequence[NodeKey],
    episodes: Mapping[NodeKey, Sequence[Episode]], last: float, tick_seconds: float,
) -> bool:  # fmt: skip
    """Whether a node lost what its job did, for as long as that. `mates`: the others of its job; `alike`: nodes that
    lost alike when it was accused; `episodes`: the accusations by node; `last`: the time of the last tick, seconds.

    Where no mate was accused, they lost it until then.
    """
    since, end = episode.first.since or 0.0, episode.end or last
    if not mates or len(set(mates) & set(alike)) < OFTEN * len(mates):
        return False
    others = [other for mate in mates for other in episodes.get(mate, ())]
    times = np.array([(other.first.since or 0.0, other.end or last) for other in others]).reshape(-1, 2)
    until = times[(times[:, 0] < end) & (times[:, 1] > since), 1]
    lasted = float(until.max(initial=episode.first.detected or since))
    return end - lasted <= RESUME_TICKS * tick_seconds


def _connected(alike: Bools, node: int) -> Ints:
    """All that are connected with a node, itself included."""
    reached = np.zeros(len(alike), np.bool_)
    reached[node] = True
    while (more := reached | alike[reached].any(axis=0)).sum() > reached.sum():
        reached = more
    return np.flatnonzero(reached)


def _unlikely(both: Ints, falls: Ints, ticks: Ints) -> Bools:
    """By two nodes whether they hardly have so many falls together by chance (bound of Chernoff for a binomial)."""
    few = np.maximum(1, np.minimum.outer(falls, falls))
    many, length = np.maximum.outer(falls, falls), np.maximum(1, np.minimum.outer(ticks, ticks))
    expected = np.clip((2 * WITHIN + 1) * many / length, 1e-9, 1 - 1e-9)
    share = np.clip(both / few, 1e-9, 1 - 1e-9)
    divergence = share * np.log(share / expected) + (1 - share) * np.log((1 - share) / (1 - expected))
    unlikely: Bools = (share > expected) & (few * divergence >= -np.log(BY_CHANCE))
    return unlikely
