"""Tells nodes that lost together with many others of their cohort, as those of a job that no column tells, from
stragglers. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from ingero_analyze.replay.recent_ticks import RecentTicks
from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.grouped import Bools, Ints
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.observation import Edge
from ingero_detect.nodes.verdicts import Axis

KEPT: Final = 128
"""Last ticks of which residuals are kept, 4 bytes for each node: a longer accusation is judged by these."""

BEFORE: Final = 20
"""Ticks before the onset of a loss that say what a node did until then."""

ALIKE: Final = 0.5
"""Share of a loss, log units, by which that of a companion differs at most: halfway to a node that lost nothing. As
the loss is significant at its accusation, hardly a node does that by chance."""

SHARE: Final = 0.3
FEWEST_HOSTS: Final = 3
"""Share of a cohort, and hosts, that lose together when no node is the cause: fewer may be a rack."""

WHILE_TICKS: Final = 60
MOST: Final = float(np.log(2))
"""Ticks until such a loss has ended, and what it is at most, log units: what jobs lose to each other for a while.
What lasts, or takes more, is named, however many nodes have it."""

MOST_NODES: Final = 20_000
"""Nodes up to which residuals are kept."""


class Companions:
    """The residuals of all nodes in the last ticks, log units, and who lost together with an accused node."""

    def __init__(self) -> None:
        self._recent = RecentTicks(KEPT)
        self._found: dict[tuple[NodeKey, float], tuple[list[NodeKey], int]] = {}

    def note(self, now: float, memory: ColumnStore, edges: Iterable[Edge]) -> None:
        """Add a tick that the detector has judged."""
        if len(memory.names) > MOST_NODES:
            return
        judged = memory.node("learned") & (memory.node("absent") == 0) & (memory.node("group") >= 0)
        place = self._recent.note(now, memory, judged, memory.node("residual")[judged])
        for edge in edges:
            verdict = edge.verdict
            node = node_key(verdict.cluster, verdict.node)
            slot = memory.slot(node)
            if edge.what == "accused" and slot is not None and verdict.axis in (Axis.OWN, Axis.STATE):
                since = now if verdict.since is None else verdict.since
                inside = np.flatnonzero(memory.node("group") == memory.node("group")[slot])
                alike, known = self._alike(place[inside], int(np.searchsorted(inside, slot)), since)
                names = [self._recent.numbers.names[one] for one in place[inside][alike].tolist()]
                self._found[node, since] = names, int(np.count_nonzero(known))

    def of(self, episode: Episode) -> list[NodeKey]:
        """The nodes that lost alike when a node was accused, itself included."""
        return self._found.get(episode.key, ([], 0))[0]

    def together(self, episode: Episode, hosts: Mapping[NodeKey, NodeKey], tick_seconds: float) -> bool:
        """Whether an accused node lost some of its rate for a while, together with so many others. `hosts`: by node
        that is a GPU its host."""
        since = episode.first.since or 0.0
        if episode.end is None or episode.end - since > WHILE_TICKS * tick_seconds or episode.lost > MOST:
            return False
        names, size = self._found.get(episode.key, ([], 0))
        return len({hosts.get(name, name) for name in names}) >= FEWEST_HOSTS and len(names) >= SHARE * size

    def _alike(self, places: Ints, node: int, since: float) -> tuple[Bools, Bools]:
        """Which nodes are as low as one of them since its loss began, and came there from a level like its own, as
        far as that is known; and which were judged since then."""
        during = self._recent.when >= since
        before = ~during & (self._recent.rank() < np.count_nonzero(during) + BEFORE)
        low, level = (self._recent.means(places, ticks) for ticks in (during, before))
        loss, change = -low[node], low - level
        alike: Bools = (low <= -ALIKE * loss) & ~(np.abs(change - change[node]) > ALIKE * loss)
        return alike & (low < 0), np.isfinite(low)
