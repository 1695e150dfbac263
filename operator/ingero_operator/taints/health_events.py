"""Decides which health events NVSentinel should have of the conditions `ingero.io/Straggler`. Pure.

An event is stored only (`STORE_ONLY`): NVSentinel keeps and exports it, and does nothing to the node. Fields and
values are those of NVSentinel's `health_event.proto`.
"""

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Final

from ingero_contract.kubernetes import STRAGGLER_CONDITION
from ingero_operator.taints.model import Accused
from ingero_operator.taints.node_conditions import sentence_of
from ingero_operator.taints.nodes import NodeView, moment

RECENT_SECONDS: Final = 3600.0
"""Age of a transition up to which it is exported by an operator that has just started."""

Exported = MutableMapping[str, tuple[str, str]]
"""Status and transition time of the condition that was exported last, by uid of the node."""


@dataclass(frozen=True, kw_only=True)
class HealthEvent:
    """One transition of one node. `key` is the same whenever the same transition is exported again."""

    key: str
    node: str
    healthy: bool
    message: str
    time: float
    """Of the transition, seconds since the epoch."""
    metadata: Mapping[str, str] = field(default_factory=dict)


def health_events(
    nodes: Iterable[NodeView], fleet_cluster: str, accused: Mapping[str, Accused], exported: Exported, now: float
) -> list[HealthEvent]:
    """The events for conditions that differ from what was exported, which is updated. `fleet_cluster`: its name.

    A condition that is Unknown says nothing. A condition that was True and is gone counts as recovered.
    """
    found = []
    for node in nodes:
        before, condition = exported.get(node.uid), node.condition
        if condition is None:
            exported.pop(node.uid, None)
            if before is not None and before[0] == "True":
                message = "the condition was removed: the node is no longer watched"
                found.append(_event(node, True, "NotWatched", message, now, fleet_cluster, None))
            continue
        state = condition.status, condition.since
        if condition.status not in ("True", "False") or state == before:
            continue
        exported[node.uid] = state
        since = moment(condition.since)
        if before is None and now - since > RECENT_SECONDS:
            continue
        healthy = condition.status == "False"
        item = None if healthy else accused.get(node.name)
        message = sentence_of(item) if item else f"{STRAGGLER_CONDITION} is {condition.status}: {condition.reason}"
        found.append(_event(node, healthy, condition.reason, message, since, fleet_cluster, item))
    return found


def _event(
    node: NodeView, healthy: bool, reason: str, message: str, time: float, fleet_cluster: str, item: Accused | None
) -> HealthEvent:
    metadata = {"reason": reason, "fleetCluster": fleet_cluster}
    if item is not None:
        numbers = {"severity": item.severity, "score": item.score, "threshold": item.threshold, "since": item.since}
        metadata |= {
            "kind": item.kind,
            **{name: f"{value:g}" for name, value in numbers.items() if value is not None},
        }
    key = f"{node.uid}.{'healthy' if healthy else 'straggler'}.{time:.0f}"
    return HealthEvent(key=key, node=node.name, healthy=healthy, message=message, time=time, metadata=metadata)
