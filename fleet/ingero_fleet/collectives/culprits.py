"""Who is accused now, one rank for each node, since when, and which of that has changed since it was last told."""

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from ingero_contract.values import LATE_RANK
from ingero_detect.column_store import NodeKey
from ingero_fleet.collectives import held_back
from ingero_fleet.collectives.batch import Columns
from ingero_fleet.collectives.held_back import Slow
from ingero_fleet.collectives.known import Known
from ingero_fleet.collectives.points import CommKey
from ingero_fleet.collectives.victims import Claim, without_victims
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
    """One for each desk. Every map holds at most one entry for each communicator that is or was lately known."""

    def __init__(self) -> None:
        self.now: dict[NodeKey, Culprit] = {}
        self._since: dict[NodeKey, tuple[float, int]] = {}
        self._claimed: dict[NodeKey, float] = {}
        self._told: dict[NodeKey, Culprit] = {}

    def renew(self, known: Known, waiting: Columns, now: float, slow: Slow) -> None:
        """At a tick: judge the communicators' findings together.

        `waiting` are the points that wait for others; `slow` says whose GPU is held back.
        """
        found, _ = self._find(known, waiting, now)
        for key in found.keys() & slow.cases.keys():
            found[key]["nvml"] = slow.cases[key].evidence()
        for key in slow.named.keys() - found.keys():
            found[key] = held_back.describe(known, slow.named[key][0], key, slow.named[key][1])
        before, self._since = self._since, {}
        for key in found:
            since, windows = before.get(key, (now, 0))
            self._since[key] = since, windows + 1
        self._keep(found)

    def add(self, known: Known, waiting: Columns, now: float) -> None:
        """Between two ticks: who is accused as well, and who turns out to be excused. Nobody else is let go."""
        found, claimed = self._find(known, waiting, now)
        for key in found:
            self._since.setdefault(key, (now, 0))
        self._keep({key: item for key, item in self.now.items() if key not in claimed} | found)

    def _keep(self, found: dict[NodeKey, Culprit]) -> None:
        for key, item in found.items():
            since, windows = self._since[key]
            item |= {"since": rfc3339(since), "windows": max(1, windows)}
        self.now = found

    def _find(self, known: Known, waiting: Columns, now: float) -> tuple[dict[NodeKey, Culprit], set[NodeKey]]:
        """Who is accused, and of whom it is claimed: victims of another's culprit are excused.

        So is, for as long as `waiting` holds its points of other communicators that are as old as the claim, a node
        that is not accused yet: what held it up may be among them.
        """
        claims: dict[str, list[Claim]] = {}
        for number, window in known.windows.items():
            window.excused = False
            if window.finding and window.finding.accused and now >= window.disputed_until:
                node, cluster = known.source(window, window.finding.rank).node, known.reader.comms[number].cluster
                if node:
                    claims.setdefault(cluster, []).append(Claim(number, node, window.finding.share))
        before, self._claimed = self._claimed, {}
        untold = Untold(known, waiting) if claims else None
        found: dict[NodeKey, Culprit] = {}
        for cluster, claimed in claims.items():
            stories = [known.story(number) for number in _concerned(known, cluster, claimed)]
            left = {claim.communicator for claim in without_victims(claimed, stories)}
            for claim in claimed:
                key = (cluster, claim.node)
                first = self._claimed[key] = before.get(key, now)
                early = key not in self.now and untold is not None and untold.by(key, claim.communicator, first)
                if claim.communicator not in left or early:
                    known.windows[claim.communicator].excused = True
                elif key not in found or claim.share > found[key]["share"]:
                    found[key] = describe(known, claim.communicator)
        return found, set(self._claimed)

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


class Untold:
    """By node, what others have yet to say of its collectives: since when its points wait, by communicator."""

    def __init__(self, known: Known, waiting: Columns) -> None:
        self._oldest: dict[NodeKey, dict[int, float]] = {}
        order = np.lexsort((waiting["received"], waiting["comm"], waiting["source"]))
        source, comm = waiting["source"][order], waiting["comm"][order]
        first = np.flatnonzero((np.diff(source, prepend=-1) != 0) | (np.diff(comm, prepend=-1) != 0))
        received = waiting["received"][order][first]
        for place, number, time in zip(source[first].tolist(), comm[first].tolist(), received.tolist(), strict=True):
            sender = known.reader.sources[place]
            self._oldest.setdefault((sender.cluster, sender.node), {})[number] = time

    def by(self, node: NodeKey, communicator: int, time: float) -> bool:
        """Whether points that a node had sent by then wait in a communicator other than this one."""
        oldest = self._oldest.get(node, {})
        return any(number != communicator and first <= time for number, first in oldest.items())


def _concerned(known: Known, cluster: str, claims: list[Claim]) -> list[int]:
    """Communicators with suspects in which one of the claims' nodes takes part."""
    nodes = {claim.node for claim in claims}
    theirs = [place for place, sender in enumerate(known.reader.sources)
              if sender.cluster == cluster and sender.node in nodes]  # fmt: skip
    return [
        number
        for number, window in known.windows.items()
        if window.suspects and known.reader.comms[number].cluster == cluster
        and np.isin(window.members, theirs).any()
    ]  # fmt: skip


def _place(item: Culprit | None) -> tuple[Any, ...] | None:
    return None if item is None else (item["kind"], item["comm"], item["ranks"], item["rank"])


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
        "nvml": None,
        "why": (
            f"Rank {finding.rank} came last in {finding.lasts} of the {finding.collectives} collectives that "
            f"cost the most; {100 * finding.share:.1f} % of the time was lost waiting for it alone."
        ),
    }
