"""What accusations cost: the share of its rate that an accused node lost, summed over the ticks in which it reported.
Pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ingero_analyze.replay.silences import Silences
from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.observation import Edge
from ingero_detect.nodes.verdicts import Axis

HOUR: Final = 3600.0

KEPT: Final = 1_024
"""Last ticks of an accusation of which the sums are kept: so long may it take to see that a node is well."""


@dataclass(frozen=True)
class Presence:
    """How long an accused node was there: seconds with reports, and its last report until it was cleared; and the
    seconds of work that it lost in these, where that is known by tick."""

    reported: float
    last_report: float
    lost: float | None = None


@dataclass
class _Loss:
    """Seconds of work that a node lost from its onset until it was accused, and since then, by the time of a tick."""

    before: float
    since: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, now: float, lost: float) -> None:
        """Add a tick."""
        self.since.append((now, lost + (self.since[-1][1] if self.since else 0.0)))

    def until(self, end: float | None) -> float:
        """All that was lost until then."""
        sums = [total for at, total in self.since if end is None or at < end] or [0.0]
        return max(0.0, self.before + sums[-1])


class Presences:
    """The presences of all episodes, by node and onset. Silence costs nothing, however long it lasts."""

    def __init__(self, silences: Silences, tick_seconds: float) -> None:
        self._silences, self._tick_seconds = silences, tick_seconds
        self._begun: dict[NodeKey, tuple[float, float]] = {}
        self._ended: dict[tuple[NodeKey, float], Presence] = {}
        self._losses: dict[NodeKey, _Loss] = {}

    def note(self, now: float, edges: Iterable[Edge]) -> None:
        """Add the edges of a tick that the silences know already."""
        for edge in edges:
            verdict = edge.verdict
            node = node_key(verdict.cluster, verdict.node)
            if edge.what == "accused":
                since = now if verdict.since is None else verdict.since
                ticks, _ = self._silences.reports(node)
                self._begun[node] = since, ticks * self._tick_seconds - (now - since)
                if verdict.axis is not Axis.PEERS:
                    self._losses[node] = _Loss(verdict.severity * self._until(node, 0.0).reported)
            elif edge.what == "cleared" and node in self._begun:
                since, _ = self._begun[node]
                well = 0.0 if verdict.recovered is None else now - verdict.recovered
                self._ended[node, since] = self._until(node, well, verdict.recovered)
                del self._begun[node]
                self._losses.pop(node, None)

    def judged(self, now: float, memory: ColumnStore) -> None:
        """Add what accused nodes lost in a tick by what the detector expects of them."""
        for node, loss in self._losses.items():
            slot = memory.slot(node)
            if slot is not None and not memory.node("absent")[slot] and np.isfinite(memory.node("residual")[slot]):
                loss.add(now, -float(np.expm1(memory.node("residual")[slot])) * self._tick_seconds)

    def of(self, episode: Episode) -> Presence:
        """The presence of an episode, as of the last tick if it goes on."""
        node = episode.node
        since = episode.first.since or 0.0
        return self._ended.get((node, since)) or self._until(node, 0.0)

    def begin_earlier(self, episode: Episode, since: float, ticks: int) -> None:
        """Let an episode begin so many reports earlier, later where that is negative."""
        node = episode.node
        more = ticks * self._tick_seconds
        if ended := self._ended.pop((node, episode.first.since or 0.0), None):
            lost = None if ended.lost is None else ended.lost + episode.severity * more
            self._ended[node, since] = Presence(ended.reported + more, ended.last_report, lost)
        else:
            if node in self._losses:
                self._losses[node].before += episode.severity * more
            self._begun[node] = since, self._begun[node][1] - more

    def _until(self, node: NodeKey, well: float, end: float | None = None) -> Presence:
        """The presence from a node's onset to now, without the last seconds in which it was `well`, since `end`."""
        since, before = self._begun[node]
        ticks, last = self._silences.reports(node)
        reported = ticks * self._tick_seconds - before - well
        loss = self._losses.get(node)
        lost = None if loss is None else loss.until(end)
        return Presence(min(max(0.0, reported), max(0.0, last - well - since)), last, lost)
