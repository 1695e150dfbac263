"""Decides which condition `ingero.io/Straggler` a node should have. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ingero_contract.kubernetes import STRAGGLER_CONDITION
from ingero_contract.values import GPU_THROTTLED, LATE_RANK, SLOW_FROM_START
from ingero_operator.api.base import seconds
from ingero_operator.api.v1alpha1 import Taints
from ingero_operator.conditions import Condition, no, unknown, yes
from ingero_operator.kinds import Manifest
from ingero_operator.taints.model import Accused, ClusterObservation
from ingero_operator.taints.nodes import NodeView
from ingero_operator.taints.policy import trustworthy
from ingero_operator.taints.state import TaintState, timestamp_seconds
from ingero_operator.taints.tracking import is_confirmed

STALE_SECONDS: Final = 300.0
"""Age of evidence from which a condition is Unknown."""


@dataclass(frozen=True, kw_only=True)
class ConditionWrite:
    """One write to the status of one node."""

    node: NodeView
    condition: Condition | None
    """The condition after the write; `None` to remove it."""

    def body(self, now: float) -> Manifest:
        """The manifest to apply; it names the machine by its uid. A transition time changes only with the status."""
        body: Manifest = {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node.name, "uid": self.node.uid}
        }  # fmt: skip
        if self.condition is not None:
            present, time = self.node.condition, timestamp_seconds(now)
            same = present is not None and present.status == self.condition.status
            body["status"] = {
                "conditions": [
                    {
                        "type": self.condition.type,
                        "status": self.condition.status,
                        "reason": self.condition.reason,
                        "message": self.condition.message,
                        "lastTransitionTime": present.since if same and present and present.since else time,
                        "lastHeartbeatTime": time,
                    }
                ]
            }
        return body


def condition_writes(
    nodes: Iterable[NodeView],
    policy: Taints,
    observed: ClusterObservation,
    state: TaintState,
    fresh_at: float,
    now: float,
) -> list[ConditionWrite]:
    """The writes to `nodes`, which no other FleetCluster writes to. `fresh_at`: when the evidence was last new."""
    writes = []
    for node in sorted(nodes, key=lambda item: item.name):
        present = node.condition
        if not policy.condition or observed.deleting or node.name not in observed.watched or not _concerned(node):
            if present is not None:
                writes.append(ConditionWrite(node=node, condition=None))
            continue
        wanted = _wanted(node, policy, observed, state, fresh_at, now)
        if wanted is None or (present and (present.status, present.reason) == (wanted.status, wanted.reason)):
            continue
        writes.append(ConditionWrite(node=node, condition=wanted))
    return writes


def straggling(nodes: Mapping[str, NodeView]) -> frozenset[str]:
    """The nodes whose condition is True: their recovery has to be observed."""
    return frozenset(name for name, node in nodes.items() if node.condition and node.condition.status == "True")


def _concerned(node: NodeView) -> bool:
    return node.gpu and not node.control_plane and not node.excluded


def _wanted(
    node: NodeView, policy: Taints, observed: ClusterObservation, state: TaintState, fresh_at: float, now: float
) -> Condition | None:
    """The condition that follows from the evidence; `None` while the present one stays."""
    evidence, present = observed.evidence, node.condition
    if now - fresh_at >= STALE_SECONDS:
        message = "Fleet has had no current statistics for more than five minutes"
        return unknown(STRAGGLER_CONDITION, "StaleEvidence", message) if present else None
    if evidence is None or not trustworthy(policy, evidence, now).holds:
        return None
    item = evidence.accused.get(node.name)
    if item is not None:
        confirmed = is_confirmed(policy, item, state.accused.get(node.name), now)
        return yes(STRAGGLER_CONDITION, reason_of(item), sentence_of(item)) if confirmed else None
    if present and present.status == "True":
        healthy = state.healthy.get(node.name)
        if healthy is None or now - healthy < seconds(policy.recover_for):
            return None
    return no(STRAGGLER_CONDITION, "NotAccused", "current statistics do not accuse the node")


def reason_of(item: Accused) -> str:
    """The kind of a verdict in CamelCase, as reasons of conditions are."""
    words = "".join(letter if letter.isascii() and letter.isalnum() else " " for letter in item.kind).split()
    name = "".join(word[:1].upper() + word[1:] for word in words)[:64]
    return name if name[:1].isalpha() else "Slow"


def sentence_of(item: Accused) -> str:
    """Why a node is accused, in one sentence."""
    lost = f"{item.severity:.0%}" if item.severity is not None else ""
    if item.kind == LATE_RANK and lost:
        return f"the collectives of its job wait for a rank of the node, which costs {lost} of the job's time"
    if item.kind == GPU_THROTTLED and lost:
        return f"a throttled GPU of the node delays the collectives of its job, which costs {lost} of its time"
    if item.kind == SLOW_FROM_START and lost:
        return f"the node has been {lost} slower than its peers from the start"
    if item.kind == "stopped":
        return "the work of the node stopped while other nodes of its cohort continue"
    if lost:
        return f"the node lost {lost} of its own rate"
    if item.score is not None and item.threshold is not None:
        return f"the score {item.score:.3f} of the node is below the threshold {item.threshold:.3f}"
    return "Fleet accuses the node of straggling"
