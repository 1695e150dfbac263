"""Writes the conditions that `node_conditions` decides on to the status of nodes."""

from dataclasses import dataclass, field
from typing import Final

from ingero_contract.kubernetes import CONDITION_MANAGER
from ingero_kit.logs import get
from ingero_operator.api.v1alpha1 import Taints
from ingero_operator.api_client import ApiError
from ingero_operator.cache import OwnerKey
from ingero_operator.context import ReconcileContext
from ingero_operator.errors import ReconcileError
from ingero_operator.failures import REFUSED, Operation, OperationKind, explain
from ingero_operator.finalizer import has_finalizer, set_finalizer
from ingero_operator.kinds import NODE, Manifest
from ingero_operator.resources import is_deleting, is_paused, key_from
from ingero_operator.scopes import scope_of
from ingero_operator.taints.health_events import health_events
from ingero_operator.taints.model import ClusterObservation
from ingero_operator.taints.node_conditions import ConditionWrite, condition_writes
from ingero_operator.taints.nodes import NodeView
from ingero_operator.taints.state import TaintState

log = get(__name__)

MOST_WRITES: Final = 100
"""Most writes in one reconcile; the rest follows in the next one."""
MOST_FAILURES: Final = 3
"""Failed writes after which a reconcile tries no other node."""
POLICY: Final = "admission policy"
FINALIZER: Final = "finalizer"
NEXT_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 30.0


@dataclass
class ConditionWriter:
    """Keeps the condition of every watched node as the evidence says."""

    context: ReconcileContext
    _fresh_at: dict[OwnerKey, float] = field(default_factory=dict)
    """When the evidence of a FleetCluster was last new; without any, when it was first expected."""
    _exported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """See `health_events.Exported`."""

    async def reconcile(
        self, resource: Manifest, policy: Taints, observed: ClusterObservation, state: TaintState
    ) -> float | None:
        """Write what differs; returns the seconds to the next reconcile."""
        key, now = key_from(resource), self.context.clock()
        if not policy.condition and not has_finalizer(resource):
            return None
        fresh_at = observed.evidence.received if observed.evidence else self._fresh_at.get(key, now)
        self._fresh_at[key] = fresh_at
        nodes = self._own_nodes(resource, policy)
        writes = condition_writes(nodes, policy, observed, state, fresh_at, now)
        failures = self.context.failures
        failures.retain(key, OperationKind.CONDITION, {POLICY, FINALIZER, *(write.node.name for write in writes)})
        due = [
            write
            for write in writes
            if not failures.backs_off(key, Operation(OperationKind.CONDITION, write.node.name))
        ]
        deleting = is_deleting(resource)
        self._export(key, nodes, observed, now)
        if not due or not self.context.leads() or (is_paused(resource) and not deleting):
            return CHECK_SECONDS if policy.condition else None
        if await self._policy_in_force(key, due[0].node.name) and await self._finalized(resource):
            await self._write(key, due[:MOST_WRITES], now)
            self._export(key, nodes, observed, now)
        return NEXT_SECONDS if len(due) > MOST_WRITES else CHECK_SECONDS

    def remaining(self, resource: Manifest, policy: Taints) -> frozenset[str]:
        """Nodes whose condition this FleetCluster has to remove."""
        if not has_finalizer(resource) or (policy.condition and not is_deleting(resource)):
            return frozenset()
        return frozenset(node.name for node in self._own_nodes(resource, policy) if node.condition is not None)

    def forget(self, key: OwnerKey) -> None:
        """Drop what is known of a deleted FleetCluster."""
        self._fresh_at.pop(key, None)

    def _own_nodes(self, resource: Manifest, policy: Taints) -> list[NodeView]:
        """The nodes that this FleetCluster watches or that carry the condition, without those of other FleetClusters:
        of several that watch a node, the first by name writes."""
        key, informer = key_from(resource), self.context.informer
        asks = policy.condition and not is_deleting(resource)
        mine = scope_of(resource).selector if asks else None
        others = [(other, scope.selector) for other, scope in informer.scopes.others(key) if scope.conditions]
        found = []
        for node in informer.nodes.values():
            watches = mine is not None and mine.items() <= node.labels.items()
            if not watches and node.condition is None:
                continue
            if not any(
                selector.items() <= node.labels.items() and not (watches and key < other)
                for other, selector in others
            ):
                found.append(node)
        return found

    async def _policy_in_force(self, key: OwnerKey, node: str) -> bool:
        """Whether the admission policy for the status of nodes is in force."""
        policy, operation = self.context.status_admission, Operation(OperationKind.CONDITION, POLICY)
        in_force = await policy.in_force(node)
        if policy.missing:
            self.context.failures.add(
                key, operation, ReconcileError("NodePolicyMissing", policy.missing, stalls=False)
            )
        else:
            self.context.failures.resolve(key, operation)
        return in_force

    async def _finalized(self, resource: Manifest) -> bool:
        """Set the finalizer before the first condition; whether it is there, or no longer needed."""
        if is_deleting(resource) or has_finalizer(resource):
            return True
        with self.context.failures.guarded(key_from(resource), Operation(OperationKind.CONDITION, FINALIZER)):
            await set_finalizer(self.context.api, self.context.informer.cache, resource, True)
        return has_finalizer(resource)

    def _export(self, key: OwnerKey, nodes: list[NodeView], observed: ClusterObservation, now: float) -> None:
        """Export transitions of the conditions of these nodes to NVSentinel, if it is configured."""
        exporter, known = self.context.health_events, self.context.informer.nodes
        if exporter is None or not self.context.leads():
            return
        latest = [known[node.name] for node in nodes if node.name in known]
        accused = observed.evidence.accused if observed.evidence else {}
        for event in health_events(latest, f"{key[1]}/{key[2]}", accused, self._exported, now):
            exporter.export(event)
        if len(self._exported) > len(known):
            for uid in self._exported.keys() - {node.uid for node in known.values()}:
                del self._exported[uid]

    async def _write(self, key: OwnerKey, writes: list[ConditionWrite], now: float) -> None:
        context, failed = self.context, 0
        for write in writes:
            operation = Operation(OperationKind.CONDITION, write.node.name)
            try:
                response = await context.api.apply(NODE, write.body(now), "status", manager=CONDITION_MANAGER)
            except ApiError as error:
                if error.status in (404, 409):
                    continue  # another machine or none: the watch will say
                reported = explain(f"condition of Node {write.node.name}", error)
                backoff = None if error.transient else REFUSED
                context.failures.add(key, operation, reported, transient=error.transient, backoff=backoff)
                failed += 1
                if failed >= MOST_FAILURES:
                    return
                continue
            context.failures.resolve(key, operation)
            context.informer.on_event(NODE.name, "MODIFIED", response)
            what = write.condition
            log.info(
                "condition_written", node=write.node.name, owner=key[2], status=what.status if what else "removed"
            )
