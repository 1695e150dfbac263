"""The accused ranks, one for each node, since when, and what has changed since the last export."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from ingero_contract.identifiers import NodeKey, node_key
from ingero_contract.values import LATE_RANK
from ingero_fleet.collectives import throttling
from ingero_fleet.collectives.batch import Columns
from ingero_fleet.collectives.communicators import Communicators
from ingero_fleet.collectives.excuses import Claim, without_victims
from ingero_fleet.collectives.long_waits import long_waits
from ingero_fleet.collectives.points import CommKey
from ingero_fleet.collectives.slow_transfers import slowed_communicators
from ingero_fleet.collectives.throttling import ThrottleFindings
from ingero_fleet.collectives.transfer_times import TransferTimes
from ingero_kit.clock import rfc3339

MAX_EDGES: Final = 1_000
"""Most changes that one tick exports; the next ticks export the rest."""

StragglerRank = dict[str, Any]
"""An accusation in the APIs' format."""

EdgeKind = Literal["accused", "cleared", "withdrawn"]


@dataclass(frozen=True)
class RankEdge:
    """A change of a node's accusation. `withdrawn`: its communicator is no longer seen."""

    what: EdgeKind
    straggler: StragglerRank
    time: float


class StragglerRanks:
    """One for each tracker. Every map holds at most one entry for each communicator that is or was recently known."""

    def __init__(self, transfers: TransferTimes | None = None) -> None:
        """`transfers`: excuse ranks of communicators whose collectives take longer than those of like ones."""
        self.now: dict[NodeKey, StragglerRank] = {}
        self._transfers = transfers
        self._since: dict[NodeKey, tuple[float, int]] = {}
        self._claimed: dict[NodeKey, float] = {}
        self._sent: dict[NodeKey, StragglerRank] = {}

    def state(self) -> dict[str, Any]:
        """Everything that later ticks depend on."""
        return {
            "now": list(self.now.items()), "since": list(self._since.items()), "claimed": list(self._claimed.items()),
            "sent": list(self._sent.items()),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self.now = {node_key(*node): item for node, item in state["now"]}
        self._since = {node_key(*node): (since, windows) for node, (since, windows) in state["since"]}
        self._claimed = {node_key(*node): time for node, time in state["claimed"]}
        self._sent = {node_key(*node): item for node, item in state["sent"]}

    def renew(self, communicators: Communicators, waiting: Columns, now: float, slow: ThrottleFindings) -> None:
        """At a tick: judge the findings of all communicators together.

        `waiting` are the points that wait for others; `slow` are the findings on throttled GPUs.
        """
        found, _ = self._find(communicators, waiting, now)
        for key in found.keys() & slow.cases.keys():
            found[key]["nvml"] = slow.cases[key].evidence()
        for key in sorted(slow.named.keys() - found.keys()):
            found[key] = throttling.describe(communicators, slow.named[key][0], key, slow.named[key][1])
        before, self._since = self._since, {}
        for key in found:
            since, windows = before.get(key, (now, 0))
            self._since[key] = since, windows + 1
        self._keep(found)

    def add(self, communicators: Communicators, waiting: Columns, now: float) -> None:
        """Between two ticks: add new accusations and remove excused ones. All others stay until the tick."""
        found, claimed = self._find(communicators, waiting, now)
        for key in found:
            self._since.setdefault(key, (now, 0))
        self._keep({key: item for key, item in self.now.items() if key not in claimed} | found)

    def _keep(self, found: dict[NodeKey, StragglerRank]) -> None:
        for key, item in found.items():
            since, windows = self._since[key]
            item |= {"since": rfc3339(since), "windows": max(1, windows)}
        self.now = found

    def _find(
        self, communicators: Communicators, waiting: Columns, now: float
    ) -> tuple[dict[NodeKey, StragglerRank], set[NodeKey]]:
        """The accused nodes, and all nodes with a claim against them: victims of another straggler or of a
        slow network are excused.

        A node that is not accused yet is also excused while `waiting` holds its points of other communicators that
        are as old as the claim: the cause of its delay may be among them.
        """
        claims: dict[str, list[Claim]] = {}
        for number, window in communicators.windows.items():
            window.excused = False
            if window.finding and window.finding.accused and now >= window.disputed_until:
                node, cluster = (
                    communicators.source(window, window.finding.rank).node,
                    communicators.reader.comms[number].cluster,
                )
                if node:
                    claims.setdefault(cluster, []).append(Claim(number, node, window.finding.share))
        before, self._claimed = self._claimed, {}
        pending = PendingPoints(communicators, waiting) if claims else None
        slowed = slowed_communicators(communicators, self._transfers) if claims and self._transfers else {}
        found: dict[NodeKey, StragglerRank] = {}
        for cluster, claimed in claims.items():
            longer = long_waits(communicators, cluster, {claim.node for claim in claimed})
            profiles = [
                communicators.wait_profile(number, slowed.get(number, 0.0), longer.get(number, {}))
                for number in _concerned(communicators, cluster, claimed, slowed.keys() | longer.keys())
            ]
            left = {claim.communicator for claim in without_victims(claimed, profiles)}
            for claim in claimed:
                key = node_key(cluster, claim.node)
                first = self._claimed[key] = before.get(key, now)
                early = key not in self.now and pending is not None and pending.by(key, claim.communicator, first)
                if claim.communicator not in left or early:
                    communicators.windows[claim.communicator].excused = True
                elif key not in found or claim.share > found[key]["share"]:
                    found[key] = describe(communicators, claim.communicator)
        return found, set(self._claimed)

    def edges(self, communicators: Communicators, now: float) -> list[RankEdge]:
        """Changes since the last call; another rank of a node that was accused is a change too."""
        gone = [item for node, item in self._sent.items() if node not in self.now]
        seen = (
            {communicators.reader.comms[number] for number, window in communicators.windows.items() if window.finding}
            if gone
            else ()
        )
        # Ended accusations come first, so that exported ones that are not withdrawn yet cannot pile up.
        changed: list[RankEdge] = []
        for item in gone:
            key = CommKey(item["cluster_id"], item["comm"], item["ranks"])
            changed.append(RankEdge("cleared" if key in seen else "withdrawn", item, now))
        changed += [
            RankEdge("accused", item, now)
            for node, item in self.now.items()
            if _place(self._sent.get(node)) != _place(item)
        ]
        return self._note(changed[:MAX_EDGES])

    def withdraw(self, now: float) -> list[RankEdge]:
        """Withdraw all accusations, because communicators are no longer observed."""
        return self._note([RankEdge("withdrawn", item, now) for item in self._sent.values()])

    def _note(self, edges: list[RankEdge]) -> list[RankEdge]:
        for edge in edges:
            node = (edge.straggler["cluster_id"], edge.straggler["node_id"])
            if edge.what == "accused":
                self._sent[node] = edge.straggler
            else:
                del self._sent[node]
        return edges


class PendingPoints:
    """By node and communicator: since when the node's points wait for those of other ranks."""

    def __init__(self, communicators: Communicators, waiting: Columns) -> None:
        self._oldest: dict[NodeKey, dict[int, float]] = {}
        order = np.lexsort((waiting["received"], waiting["comm"], waiting["source"]))
        source, comm = waiting["source"][order], waiting["comm"][order]
        first = np.flatnonzero((np.diff(source, prepend=-1) != 0) | (np.diff(comm, prepend=-1) != 0))
        received = waiting["received"][order][first]
        for place, number, time in zip(source[first].tolist(), comm[first].tolist(), received.tolist(), strict=True):
            sender = communicators.reader.sources[place]
            self._oldest.setdefault((sender.cluster, sender.node), {})[number] = time

    def by(self, node: NodeKey, communicator: int, time: float) -> bool:
        """Whether points that a node had sent by that time wait in a communicator other than this one."""
        oldest = self._oldest.get(node, {})
        return any(number != communicator and first <= time for number, first in oldest.items())


def _concerned(communicators: Communicators, cluster: str, claims: list[Claim], unusual: Set[int]) -> list[int]:
    """Communicators with suspects, or `unusual` ones, in which one of the claims' nodes takes part."""
    nodes = {claim.node for claim in claims}
    theirs = [place for place, sender in enumerate(communicators.reader.sources)
              if sender.cluster == cluster and sender.node in nodes]  # fmt: skip
    return [
        number
        for number, window in communicators.windows.items()
        if (window.suspects or number in unusual) and communicators.reader.comms[number].cluster == cluster
        and np.isin(window.members, theirs).any()
    ]  # fmt: skip


def _place(item: StragglerRank | None) -> tuple[Any, ...] | None:
    return None if item is None else (item["kind"], item["comm"], item["ranks"], item["rank"], item.get("gpu"))


def describe(communicators: Communicators, number: int) -> StragglerRank:
    """The accusation of a communicator that has one, with a message and figures; `lag_ms` in milliseconds."""
    window, key = communicators.windows[number], communicators.reader.comms[number]
    finding = window.finding
    assert finding is not None
    source = communicators.source(window, finding.rank)
    rank, gpu = communicators.member(window, finding.rank)
    who = gpu or f"Rank {rank}"
    return {
        "cluster_id": key.cluster,
        "kind": LATE_RANK,
        "comm": key.hash,
        "ranks": key.ranks,
        "rank": rank,
        "gpu": gpu,
        "node_id": source.node,
        "pod": source.pod or None,
        "job_id": source.job or None,
        "share": round(finding.share, 6),
        "lag_ms": round(float(window.lag[finding.rank]), 6),
        "lasts": finding.last_arrivals,
        "collectives": finding.collectives,
        "chance": finding.chance,
        "nvml": None,
        "why": (
            f"{who} came last in {finding.last_arrivals} of the {finding.collectives} collectives that "
            f"cost the most; {100 * finding.share:.1f} % of the time was lost waiting for it alone."
        ),
    }
