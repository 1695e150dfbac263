"""What every node did over the latest ticks: value, expectation, evidence and alarm level. Pure state."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_contract.identifiers import NodeKey
from ingero_fleet.page.health_history import FEWEST, MAX_NODES, TICKS
from ingero_fleet.tick_snapshot import TickSnapshot, rounded

POINT: Final = np.dtype([("value", "f4"), ("expected", "f4"), ("evidence", "f2"), ("level", "f2")])
"""One node at one tick; not a number where nothing is known."""

MOST_BYTES: Final = 1 << 23
"""Memory for them: 120 ticks of 5,800 nodes, fewer ticks of more nodes, nothing above `MAX_NODES`."""

MOST_EVIDENCE: Final = 60_000.0
"""What the type of the evidence can represent."""

PEERS: Final = {"low": 0.1, "median": 0.5, "high": 0.9}
"""Quantiles of the nodes of the same cohort."""


class NodeHistory:
    """Points by row of the score map."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._points = np.full((TICKS, 0), np.nan, POINT)
        self._at = 0
        self._names: list[NodeKey] = []
        self._cohorts: npt.NDArray[np.int32] = np.zeros(0, np.int32)

    def add(self, snapshot: TickSnapshot) -> None:
        """Add a tick."""
        names = snapshot.scores.names
        if len(names) > MAX_NODES:
            self.times, self._names, self._points = [], [], np.full((TICKS, 0), np.nan, POINT)
            return
        if len(names) > self._points.shape[1]:
            self._widen(max(64, len(names) + len(names) // 8))
        if names is not self._names:
            changed = [row for row, (old, new) in enumerate(zip(self._names, names, strict=False)) if old is not new]
            self._points[:, changed] = np.full((), np.nan, POINT)
        self._at = (self._at + 1) % len(self._points)
        self._points[self._at] = np.full((), np.nan, POINT)
        self._points[self._at, : len(names)] = points(snapshot)
        self.times = [*self.times, snapshot.tick.now][-len(self._points) :]
        columns = snapshot.scores.columns
        self._names, self._cohorts = names, np.where(columns["alive"], columns["cohort"], -1)

    def answer(self, node: NodeKey) -> dict[str, Any]:
        """The columns of one node and the quantiles of its peers, a number or `None` for each of `times`."""
        empty: dict[str, Any] = {"times": [], "peers": {}, **{name: [] for name in POINT.names or ()}}
        if node not in self._names:
            return empty
        row = self._names.index(node)
        kept = np.arange(self._at - len(self.times) + 1, self._at + 1) % len(self._points)
        own = self._points[kept, row]
        peers = np.flatnonzero(self._cohorts == self._cohorts[row])
        values = np.sort(self._points["value"][np.ix_(kept, peers[peers != row])], axis=1)
        known = np.isfinite(values).sum(axis=1)
        return {
            "times": self.times,
            **{name: listed(own[name]) for name in POINT.names or ()},
            "peers": {name: listed(_quantile(values, known, share)) for name, share in PEERS.items()},
        }

    def _widen(self, nodes: int) -> None:
        ticks = min(TICKS, max(FEWEST, MOST_BYTES // (nodes * POINT.itemsize)))
        self.times = self.times[-ticks:]
        old = self._points[np.arange(self._at - len(self.times) + 1, self._at + 1) % len(self._points)]
        self._points = np.full((ticks, nodes), np.nan, POINT)
        self._points[: len(old), : old.shape[1]] = old
        self._at = len(old) - 1


def points(snapshot: TickSnapshot) -> npt.NDArray[np.void]:
    """The points of every row at one tick."""
    scores, findings = snapshot.scores.columns, snapshot.findings
    found = np.full(len(snapshot.scores.names), np.nan, POINT)
    if findings is None:
        found["value"] = np.where(np.isfinite(scores["rate"]), scores["rate"], scores["score"])
        found[~scores["alive"]] = np.full((), np.nan, POINT)
        return found
    rows = np.flatnonzero(scores["alive"] & (findings.slots >= 0))
    slots, view = findings.slots[rows], findings.view
    columns, groups = view.columns, view.columns["group"][slots]
    point = np.full(len(rows), np.nan, POINT)
    point["value"] = columns["value"][slots]
    point["expected"] = np.exp(columns["expected"][slots])
    point["evidence"] = np.minimum(np.fmax(columns["slow"][slots], columns["below"][slots]), MOST_EVIDENCE)
    judged = groups >= 0
    point["level"][judged] = np.minimum(view.levels[groups[judged]], MOST_EVIDENCE)
    found[rows] = point
    return found


def listed(values: npt.NDArray[Any]) -> list[float | None]:
    """Numbers for JSON."""
    return [rounded(float(value), 4) for value in values]


def _quantile(values: npt.NDArray[Any], known: npt.NDArray[np.int64], share: float) -> npt.NDArray[Any]:
    """The quantile of each line, whose first `known` numbers are finite and sorted."""
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    place = np.maximum(known - 1, 0) * share
    found: npt.NDArray[Any] = values[np.arange(len(values)), np.round(place).astype(np.int64)]
    return found
