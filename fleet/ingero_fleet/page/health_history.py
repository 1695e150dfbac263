"""Health of every node over the latest ticks, one byte per node and tick. Pure state: snapshots in, bytes out.

A byte is 0 for an absent node, 1 calibrating, 2 idle, 3 stopped, 16 to 127 a straggler, 128 to 255 a
healthy node; within the two ranges it grows with the score.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_contract.identifiers import NodeKey
from ingero_fleet.score_table import CALIBRATING, IDLE
from ingero_fleet.tick_snapshot import TickSnapshot

TICKS: Final = 120
"""Ticks that are kept for up to 34,000 nodes."""

MOST_BYTES: Final = 1 << 22
"""Memory for them, bytes; with more nodes, fewer ticks are kept."""

FEWEST: Final = 16
"""Fewest ticks that are kept, whatever the number of nodes."""

MAX_NODES: Final = 20_000
"""Nodes on the page; with more, stragglers come first and the rest is counted."""

CALIBRATING_LEVEL, IDLE_LEVEL, STOPPED_LEVEL, STRAGGLER_LEVEL, HEALTHY_LEVEL = 1, 2, 3, 16, 128


class HealthHistory:
    """Nodes by row of the score map. `layout` changes with the nodes that are shown or their order."""

    def __init__(self) -> None:
        self.layout = 0
        self.times: list[float] = []
        self.order: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.nodes: list[NodeKey] = []
        self.cohorts: list[str] = []
        self.hidden = 0
        self._levels = np.zeros((TICKS, 0), np.uint8)
        self._at = 0
        self._names: list[NodeKey] = []
        self._arranged: list[npt.NDArray[Any]] = []

    def add(self, snapshot: TickSnapshot, cohort_names: list[str]) -> None:
        """Add a tick; `cohort_names` are those of the snapshot's cohorts, with a message."""
        names = snapshot.scores.names
        length = len(names)
        if length > self._levels.shape[1]:
            self._widen(max(1024, length + length // 8))
        if names is not self._names:
            changed = [row for row, (old, new) in enumerate(zip(self._names, names, strict=False)) if old is not new]
            self._levels[:, changed] = 0
        self._at = (self._at + 1) % len(self._levels)
        self._levels[self._at] = 0
        self._levels[self._at, :length] = levels(snapshot)
        self.times = [*self.times, snapshot.tick.now][-len(self._levels) :]
        if self._differs(snapshot):
            self._arrange(snapshot, cohort_names)
        self._names = names

    def _differs(self, snapshot: TickSnapshot) -> bool:
        """Whether nodes came or went, changed their cohort or, where not all are shown, what they are accused of."""
        columns = snapshot.scores.columns
        rows = columns["alive"].nonzero()[0]
        what = [rows, columns["cohort"][rows], snapshot.straggling[rows] if len(rows) > MAX_NODES else rows[:0]]
        same = snapshot.scores.names is self._names and all(map(np.array_equal, what, self._arranged))
        self._arranged = what
        return not same

    def _arrange(self, snapshot: TickSnapshot, cohort_names: list[str]) -> None:
        columns, names = snapshot.scores.columns, snapshot.scores.names
        rows = np.flatnonzero(columns["alive"])
        self.hidden = max(0, len(rows) - MAX_NODES)
        if self.hidden:
            rows = np.sort(rows[np.argsort(~snapshot.straggling[rows], kind="stable")][:MAX_NODES])
        cohort = columns["cohort"]
        shown = rows.tolist()
        nodes = [names[row] for row in shown]
        known = [cohort_names[int(cohort[row])] for row in shown]
        keys = [(key[0], name) for key, name in zip(snapshot.scores.cohorts, cohort_names, strict=True)]
        ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
        rank = np.array([ranks[key] for key in keys], np.int64)[cohort[rows]] if keys else rows
        # numpy sorts without the GIL, Python's own sort would block other threads
        order = np.lexsort((np.array([name for _, name in nodes], np.str_), rank)).tolist()
        arranged = [nodes[place] for place in order]
        cohorts = [known[place] for place in order]
        if arranged != self.nodes or cohorts != self.cohorts:
            self.layout += 1
        self.nodes, self.cohorts = arranged, cohorts
        self.order = rows[order] if order else np.zeros(0, np.int64)

    def latest(self) -> bytes:
        """The latest tick, a byte for each node in order."""
        return bytes(self._levels[self._at, self.order])

    def all(self) -> bytes:
        """Every tick that is kept, the oldest first."""
        return self._levels[np.ix_(self._kept(), self.order)].tobytes()

    def _kept(self) -> npt.NDArray[np.int64]:
        """The lines of the ticks that are kept, the oldest first."""
        return np.arange(self._at - len(self.times) + 1, self._at + 1) % len(self._levels)

    def _widen(self, nodes: int) -> None:
        """Allocate space for more nodes; drop the oldest ticks where that exceeds the memory limit."""
        ticks = min(TICKS, max(FEWEST, MOST_BYTES // nodes))
        self.times = self.times[-ticks:]
        old = self._levels[self._kept()]
        self._levels = np.zeros((ticks, nodes), np.uint8)
        self._levels[: len(old), : old.shape[1]] = old
        self._at = len(old) - 1


def levels(snapshot: TickSnapshot) -> npt.NDArray[np.uint8]:
    """The byte of every row at one tick."""
    columns = snapshot.scores.columns
    straggling = snapshot.straggling
    score = np.clip(np.nan_to_num(columns["score"]), 0.0, 1.0)
    level: npt.NDArray[np.uint8] = np.where(
        straggling, STRAGGLER_LEVEL + 111 * score, HEALTHY_LEVEL + 127 * score
    ).astype(np.uint8)
    level[columns["state"] == CALIBRATING] = CALIBRATING_LEVEL
    level[columns["state"] == IDLE] = IDLE_LEVEL
    level[snapshot.stopped] = STOPPED_LEVEL
    level[~columns["alive"]] = 0
    return level
