"""Who is accused now, one rank for each node, since when, and which of that has changed since it was last told."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from ingero_contract.values import LATE_RANK
from ingero_detect.memory import NodeKey
from ingero_fleet.collectives.attribution import Claim, without_victims
from ingero_fleet.collectives.known import Known
from ingero_fleet.collectives.points import CommKey
from ingero_kit.clock import rfc3339

MAX_EDGES: Final = 1_000
"""Changes that one tick tells; the rest is told by the next ones."""

Culprit = dict[str, Any]
"""An accusation as the APIs answer it."""

What = Literal["accused", "cleared", "withdrawn"]


@dataclass(frozen=True)
class Edge:
    """A change of what is said about a node. `withdrawn`: nothing is seen of its communicator any more."""

    what: What
    culprit: Culprit
    time: float


class Culprits:
    """One for each desk. Both maps hold at most one entry for each communicator that is or was lately known."""

    def __init__(self) -> None:
        self.now: dict[NodeKey, Culprit] = {}
        self._since: dict[NodeKey, tuple[float, int]] = {}
        self._told: dict[NodeKey, Culprit] = {}

    def renew(self, known: Known, now: float) -> None:
        """Judge the communicators' findings together: victims of another's culprit are acquitted."""
        claims: dict[str, list[Claim]] = {}
        for number, window in known.windows.items():
            if not window.finding or not window.finding.accused or now < window.disputed_until:
                continue
            node, cluster = known.source(window, window.finding.rank).node, known.reader.comms[number].cluster
            claim = Claim(number, node, window.finding.share, known.waiting(window))
            claims.setdefault(cluster, []).append(claim)
        found: dict[NodeKey, Culprit] = {}
        for cluster, claimed in claims.items():
            for claim in without_victims(claimed):
                worse = found.get((cluster, claim.node))
                if claim.node and (worse is None or claim.share > worse["share"]):
                    found[(cluster, claim.node)] = describe(known, claim.communicator)
        before, self._since = self._since, {}
        for key, item in found.items():
            since, windows = before.get(key, (now, 0))
            self._since[key] = since, windows + 1
            item |= {"since": rfc3339(since), "windows": windows + 1}
        self.now = found

    def edges(self, known: Known, now: float) -> list[Edge]:
        """What has changed since this was last asked; another rank of a node that was accused is a change."""
        gone = [item for node, item in self._told.items() if node not in self.now]
        seen = (
            {known.reader.comms[number] for number, window in known.windows.items() if window.finding} if gone else ()
        )
        # What is over comes first, so that what was told and is not taken back cannot pile up.
        changed: list[Edge] = []
        for item in gone:
            key = CommKey(item["cluster_id"], item["comm"], item["ranks"])
            changed.append(Edge("cleared" if key in seen else "withdrawn", item, now))
        changed += [
            Edge("accused", item, now)
            for node, item in self.now.items()
            if _place(self._told.get(node)) != _place(item)
        ]
        return self._note(changed[:MAX_EDGES])

    def withdraw(self, now: float) -> list[Edge]:
        """Everything that was said is taken back, because nobody watches any more."""
        return self._note([Edge("withdrawn", item, now) for item in self._told.values()])

    def _note(self, edges: list[Edge]) -> list[Edge]:
        for edge in edges:
            node = (edge.culprit["cluster_id"], edge.culprit["node_id"])
            if edge.what == "accused":
                self._told[node] = edge.culprit
            else:
                del self._told[node]
        return edges


def _place(item: Culprit | None) -> tuple[Any, ...] | None:
    return None if item is None else (item["comm"], item["ranks"], item["rank"])


def describe(known: Known, number: int) -> Culprit:
    """The accusation of a communicator that has one, in words and figures; `lag_ms` in milliseconds."""
    window, key = known.windows[number], known.reader.comms[number]
    finding = window.finding
    assert finding is not None
    source = known.source(window, finding.rank)
    return {
        "cluster_id": key.cluster,
        "kind": LATE_RANK,
        "comm": key.hash,
        "ranks": key.ranks,
        "rank": finding.rank,
        "node_id": source.node,
        "pod": source.pod or None,
        "share": round(finding.share, 6),
        "lag_ms": round(float(window.lag[finding.rank]), 6),
        "lasts": finding.lasts,
        "collectives": finding.collectives,
        "chance": finding.chance,
        "why": (
            f"Rank {finding.rank} came last in {finding.lasts} of the {finding.collectives} collectives that "
            f"cost the most; {100 * finding.share:.1f} % of the time was lost waiting for it alone."
        ),
    }
