"""Turns edges of the detector into episodes: one accusation from its onset to its end. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log1p
from typing import Any

from ingero_contract.identifiers import NodeKey, node_key
from ingero_contract.values import VerdictState
from ingero_detect.nodes.observation import Edge
from ingero_detect.nodes.verdicts import Kind, Verdict


@dataclass(frozen=True)
class Episode:
    """One accusation. `first`: the verdict at the alarm; `last`: the latest; `ended` once the node was cleared.

    One of a node that was silent until the detector forgot it has not ended: nobody saw it recover.
    """

    first: Verdict
    last: Verdict
    ended: bool = False

    @property
    def node(self) -> NodeKey:
        """Key of the accused node."""
        return node_key(self.first.cluster, self.first.node)

    @property
    def key(self) -> tuple[NodeKey, float]:
        """Its node and onset, seconds, which no two episodes share."""
        return self.node, self.first.since or 0.0

    @property
    def cohort(self) -> tuple[str, str]:
        """Its cluster, and its cohort at the accusation as verdicts write it."""
        return self.first.cluster, self.first.cohort

    @property
    def end(self) -> float | None:
        """Estimated time of recovery, `None` while the episode lasts."""
        return self.last.recovered if self.ended else None

    @property
    def severity(self) -> float:
        """The share of its rate that the node lost, 0 to 1: the larger of that at the accusation and at last; the
        last one of a node that had stopped, or nearly so, and worked again slowly."""
        fell = self.first.kind in (Kind.STOPPED, Kind.COLLAPSE) and self.last.kind is Kind.SLOW
        return self.last.severity if fell else max(self.first.severity, self.last.severity)

    @property
    def lost(self) -> float:
        """The largest known loss, log units; at most that of a node that does 1 % of what is expected."""
        return -log1p(-min(max(self.first.severity, self.last.severity), 0.99))

    @property
    def lasting(self) -> float:
        """What the node lost for long, log units: the smaller loss of those at the accusation and at its end, where
        one may be a stop, or while it goes on of those at last and in the last tick."""
        now = None if self.ended else self.last.residual
        earlier = self.first.severity if now is None else 1.0
        loss = -log1p(-min(earlier, self.last.severity, 0.99))
        return loss if now is None else min(loss, max(0.0, -now))

    def to_json(self) -> dict[str, Any]:
        """The episode as `replay` prints it."""
        evidence = self.first.to_json()
        last = self.last.to_json()
        return {
            "node": self.first.node,
            "cluster": self.first.cluster,
            "cohort": self.first.cohort,
            "kind": str(self.last.kind),
            "start": evidence["since"],
            "detected": evidence["detected"],
            "end": last["recovered"] if self.ended else None,
            "severity": round(self.severity, 6),
            "evidence": evidence,
        }


@dataclass
class Episodes:
    """Collects edges. `open` by node; `done` in the order in which they ended."""

    open: dict[NodeKey, Episode] = field(default_factory=dict)
    done: list[Episode] = field(default_factory=list)

    def add(self, edges: Iterable[Edge]) -> None:
        """Add the edges of a tick."""
        for edge in edges:
            verdict = edge.verdict
            node = node_key(verdict.cluster, verdict.node)
            if edge.what == "accused":
                self.open[node] = Episode(verdict, verdict)
            elif node in self.open:
                episode, cleared = self.open[node], edge.what == "cleared"
                forgotten = cleared and verdict.kind is Kind.NONE
                self.open[node] = Episode(
                    episode.first, episode.last if forgotten else verdict, cleared and not forgotten
                )
                if cleared:
                    self.done.append(self.open.pop(node))

    def refresh(self, verdicts: Iterable[Verdict]) -> None:
        """Update open episodes that had no edge."""
        for verdict in verdicts:
            node = node_key(verdict.cluster, verdict.node)
            if node in self.open and verdict.state is not VerdictState.HEALTHY:
                self.open[node] = Episode(self.open[node].first, verdict)

    def all(self) -> list[Episode]:
        """Every episode by onset, then node."""
        return in_order([*self.done, *self.open.values()])


def in_order(episodes: Iterable[Episode]) -> list[Episode]:
    """Episodes by onset, then node."""
    return sorted(
        episodes, key=lambda episode: (episode.first.since or 0.0, episode.first.cluster, episode.first.node)
    )
