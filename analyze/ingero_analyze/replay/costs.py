"""What accusations cost: the hours in which an accused node reported, times the share that it lost. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ingero_analyze.replay.silences import Silences
from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.episodes import Episode
from ingero_detect.observation import Edge

HOUR: Final = 3600.0


@dataclass(frozen=True)
class Presence:
    """How long an accused node was there: seconds with reports, and its last report until it was cleared."""

    reported: float
    last_report: float


class Presences:
    """The presences of all episodes, by node and onset. Silence costs nothing, however long it lasts."""

    def __init__(self, silences: Silences, tick_seconds: float) -> None:
        self._silences, self._tick_seconds = silences, tick_seconds
        self._begun: dict[NodeKey, tuple[float, float]] = {}
        self._ended: dict[tuple[NodeKey, float], Presence] = {}

    def note(self, now: float, edges: Iterable[Edge]) -> None:
        """Add the edges of a tick that the silences know already."""
        for edge in edges:
            verdict = edge.verdict
            node = node_key(verdict.cluster, verdict.node)
            if edge.what == "accused":
                since = now if verdict.since is None else verdict.since
                ticks, _ = self._silences.reports(node)
                self._begun[node] = since, ticks * self._tick_seconds - (now - since)
            elif edge.what == "cleared" and node in self._begun:
                since, _ = self._begun[node]
                well = 0.0 if verdict.recovered is None else now - verdict.recovered
                self._ended[node, since] = self._until(node, well)
                del self._begun[node]

    def of(self, episode: Episode) -> Presence:
        """The presence of an episode, as of the last tick if it goes on."""
        node = episode.node
        since = episode.first.since or 0.0
        return self._ended.get((node, since)) or self._until(node, 0.0)

    def begin_earlier(self, episode: Episode, since: float, ticks: int) -> None:
        """Let an episode begin so many reports earlier."""
        node = episode.node
        more = ticks * self._tick_seconds
        if ended := self._ended.pop((node, episode.first.since or 0.0), None):
            self._ended[node, since] = Presence(ended.reported + more, ended.last_report)
        else:
            self._begun[node] = since, self._begun[node][1] - more

    def _until(self, node: NodeKey, well: float) -> Presence:
        """The presence from a node's onset to now, without the last seconds in which it was `well`."""
        since, before = self._begun[node]
        ticks, last = self._silences.reports(node)
        reported = ticks * self._tick_seconds - before - well
        return Presence(min(max(0.0, reported), max(0.0, last - well - since)), last)
