"""Applies the decisions of `policy`: re-reads nodes, writes and reports taints. The only module with I/O here."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from ingero_contract.kubernetes import MANAGER
from ingero_contract.values import GPU_THROTTLED, LATE_RANK
from ingero_kit.logs import get
from ingero_operator.api.v1alpha1 import FleetClusterSpec, Mode, Taints
from ingero_operator.api_client import ApiError
from ingero_operator.audit_exporter import OtlpTarget
from ingero_operator.cache import OwnerKey
from ingero_operator.context import ReconcileContext
from ingero_operator.errors import ReconcileError
from ingero_operator.events import KubernetesEvent
from ingero_operator.failures import REFUSED, Operation, OperationKind, explain
from ingero_operator.finalizer import has_finalizer, set_finalizer
from ingero_operator.fleet_answers import PollResult
from ingero_operator.kinds import FLEET_CLUSTER, NODE, Manifest
from ingero_operator.resources import is_deleting, is_paused, key_from, soonest
from ingero_operator.taints import audit_events, patches
from ingero_operator.taints.condition_writer import ConditionWriter
from ingero_operator.taints.model import ClusterObservation, Decision, Step
from ingero_operator.taints.node_conditions import straggling
from ingero_operator.taints.nodes import NodeView, node_view, remover
from ingero_operator.taints.policy import decide
from ingero_operator.taints.removals import note_releases
from ingero_operator.taints.state import (
    OVERRIDDEN,
    NodeTaintRecord,
    TaintState,
    from_status,
    timestamp_seconds,
    to_status,
)
from ingero_operator.taints.tracking import after_attempt, after_write

log = get(__name__)

WRITE_TRIES: Final = 3
SHOWN: Final = 20
"""Most rows of preview and history in the status."""
CHECK_SECONDS: Final = 30.0
RELEASE_SECONDS: Final = 5.0
"""Longest pause before a failed release is retried."""


@dataclass(frozen=True, kw_only=True)
class TaintReport:
    """The result of reconciling taints."""

    decision: Decision
    status: Manifest
    """`status.taints`."""
    remaining: frozenset[str]
    """Nodes that still carry the FleetCluster's taint, or a condition that it has to remove."""
    finalizer: bool
    """Whether the FleetCluster needs its finalizer."""
    check_after: float | None = None
    """Seconds to the next reconcile."""


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """What one reconcile starts from."""

    resource: Manifest
    spec: FleetClusterSpec
    policy: Taints
    result: PollResult | None

    @cached_property
    def key(self) -> OwnerKey:
        return key_from(self.resource)

    @cached_property
    def uid(self) -> str:
        return str(self.resource["metadata"]["uid"])


@dataclass
class TaintController:
    """Keeps the taint state of every FleetCluster and the taints on its nodes."""

    context: ReconcileContext
    states: dict[OwnerKey, tuple[str, TaintState]] = field(default_factory=dict)
    history: dict[OwnerKey, list[str]] = field(default_factory=dict)
    budgets: dict[OwnerKey, tuple[int, int]] = field(default_factory=dict)
    writes: dict[tuple[str, str], int] = field(default_factory=dict)
    """Number of writes to nodes by verb and reason."""
    conditions: ConditionWriter = field(init=False)

    def __post_init__(self) -> None:
        self.conditions = ConditionWriter(self.context)

    async def reconcile(self, resource: Manifest, spec: FleetClusterSpec, result: PollResult | None) -> TaintReport:
        """Decide, record the releases, write, report. A refusal of the API server becomes a failure of the resource
        and delays no other node."""
        policy = spec.taints
        if not self.context.config.taints:
            policy = policy.model_copy(update={"mode": Mode.OBSERVE, "condition": False})
        current = _Pass(resource=resource, spec=spec, policy=policy, result=result)
        before = self._load_state(current)
        observed = self._observe(current, before)
        decision = decide(policy, observed, before, self.context.clock())
        await self._note_releases(current, before, decision)
        state, written = await self._write(current, decision)
        await self._announce(current, state, decision, written)
        checked = await self.conditions.reconcile(resource, policy, self._observe(current, state), state)
        if policy.mode is not Mode.OBSERVE and observed.watched:
            # Checked in every reconcile: a missing admission policy is reported long before the first taint.
            await self.context.admission.in_force(min(observed.watched))
        return self._report(current, state, decision, checked)

    def tainted_nodes(self, key: OwnerKey, spec: FleetClusterSpec) -> frozenset[str]:
        """Nodes whose recovery must be observed: they carry the taint of a FleetCluster or its condition is True."""
        _, state = self.states.get(key, ("", TaintState()))
        tainted = frozenset(name for name, record in state.records.items() if record.verdict)
        if not spec.taints.condition:
            return tainted
        return tainted | straggling(self.context.informer.watched(spec.agents.node_selector))

    def forget(self, key: OwnerKey) -> None:
        """Drop the state of a deleted FleetCluster."""
        self.conditions.forget(key)
        for store in (self.states, self.history, self.budgets, self.context.informer.interest):
            store.pop(key, None)

    # Observe

    def _load_state(self, current: _Pass) -> TaintState:
        """The state of the previous reconcile or, from the status, of the previous process."""
        known = self.states.get(current.key)
        if known is None or known[0] != current.uid:
            stored = (current.resource.get("status") or {}).get("taints") or {}
            known = (current.uid, from_status(stored))
            self.states[current.key] = known
            self.history[current.key] = list(stored.get("history") or ())
        return known[1]

    def _observe(self, current: _Pass, state: TaintState) -> ClusterObservation:
        informer, key, result = self.context.informer, current.key, current.result
        watched = informer.watched(current.spec.agents.node_selector)
        ours = {name: node for name, node in informer.nodes.items() if _is_ours(node, current.uid, state)}
        remembered = {name: informer.nodes[name] for name in state.records if name in informer.nodes}
        reasons = [*current.spec.taints.pause_requests]
        if is_paused(current.resource):
            reasons.append("the resource carries the annotation ingero.io/paused")
        if self.context.config.pause_taints:
            reasons.append("the operator was started with --pause-taints")
        accused = result.evidence.accused if result and result.evidence else {}
        return ClusterObservation(
            owner=current.uid,
            nodes={**watched, **ours, **remembered},
            watched=frozenset(watched),
            evidence=result.evidence if result else None,
            overlap=self._overlap(key, [name for name in accused if name in watched]),
            paused="; ".join(reasons)[:400],
            node_policy_missing=self.context.admission.missing,
            refused=self.context.failures.backing_off(key, OperationKind.TAINT),
            deleting=is_deleting(current.resource),
        )

    def _overlap(self, key: OwnerKey, names: list[str]) -> Mapping[str, str]:
        """Which of these nodes another FleetCluster watches as well."""
        if not names:
            return {}
        informer, found = self.context.informer, {}
        for other, scope in informer.scopes.others(key):
            for name in names:
                if scope.selector.items() <= informer.nodes[name].labels.items():
                    found[name] = f"FleetCluster {other[1]}/{other[2]}"
        return found

    # Note

    async def _note_releases(self, current: _Pass, before: TaintState, decision: Decision) -> None:
        """Record the releases that are about to be written, so that a later process does not take them for a removal
        by a user. A release does not wait for this to succeed."""
        key, failures, noting = current.key, self.context.failures, _noting(current.key)
        for kind in (OperationKind.TAINT, OperationKind.RELEASE):
            needed = {step.node for step in decision.steps if _operation(step).kind is kind}
            failures.retain(key, kind, needed | failures.backing_off(key, kind))
        releases = [step for step in decision.steps if step.weakens]
        if not releases:
            failures.resolve(key, noting)
            return
        with failures.guarded(key, noting):
            status = current.resource.get("status") or {}
            stored = status.get("taints") or {}
            after = {**stored, **to_status(note_releases(before, releases))}
            if after != stored:
                await self.context.status.write(current.resource, {**status, "taints": after})
        if failures.failed(key, noting):
            log.warning("release_not_noted", owner=key[2])

    # Write

    async def _write(self, current: _Pass, decision: Decision) -> tuple[TaintState, list[Step]]:
        """Write every step separately, and cancel the records of releases that are no longer wanted."""
        written: list[Step] = []
        # From here on the state contains the removals to come: a write whose response is lost is found on the node
        # later and recognised as the operator's own.
        state = self._keep(current, decision.state)
        for step in decision.steps:
            if not self.context.failures.backs_off(current.key, _operation(step)):
                state, done = await self._try_step(current, state, step)
                written += [done] if done else []
                self._keep(current, state)
        releasing = {step.node for step in decision.steps if step.weakens}
        state = await self._cancel_releases(current, state, releasing)
        state = await self._name_removers(decision, state)
        return self._keep(current, state), written

    def _keep(self, current: _Pass, state: TaintState) -> TaintState:
        self.states[current.key] = current.uid, state
        return state

    async def _try_step(self, current: _Pass, state: TaintState, step: Step) -> tuple[TaintState, Step | None]:
        """One step: the state after it, and the step as it was written, if it was."""
        failures, operation = self.context.failures, _operation(step)
        try:
            state, written = await self._write_step(current, state, step)
        except ApiError as error:
            reported = explain(f"Node {step.node}", error)
            if not error.transient:
                reported = _refused(f"Node {step.node} was not changed: {error.message}")
            # A starting API server may refuse what it allows a moment later.
            backoff = None if error.transient or step.weakens else REFUSED
            longest = RELEASE_SECONDS if step.weakens else math.inf
            failures.add(
                current.key, operation, reported, transient=error.transient, backoff=backoff, longest=longest
            )
            return self.states[current.key][1], None
        if written is not None or not failures.backs_off(current.key, operation):
            failures.resolve(current.key, operation)
        return state, written

    async def _write_step(self, current: _Pass, state: TaintState, step: Step) -> tuple[TaintState, Step | None]:
        """Write one step after deciding it again on the re-read node; retry a few times on conflicting writes."""
        context = self.context
        if step.strengthens and not await self._may_taint(current, step):
            return state, None
        if step.verb == "add" and not has_finalizer(current.resource):
            await set_finalizer(context.api, context.informer.cache, current.resource, True)
        unknown_outcome: ApiError | None = None
        for _ in range(WRITE_TRIES):
            live = await context.api.get(NODE, None, step.node)
            if live is None:
                gone = after_write(state, replace(step, taint=None), context.clock())
                return (state if step.taint else gone), None
            context.informer.on_event(NODE.name, "MODIFIED", live)
            if step.strengthens:
                confirmed = self._decide_again(current, state, step)
                if confirmed is None or not context.leads():
                    return state, None
                step = confirmed
            patch = patches.patch(live, step.uid, current.uid, step.taint, step.removed)
            if patch is None:
                return state, None
            try:
                response = await context.api.patch(NODE, None, step.node, patch)
            except ApiError as error:
                if error.status == 409 or (error.status == 422 and "rejected our request" in error.message):
                    continue
                if error.transient and step.strengthens:
                    self._keep(current, after_attempt(state, step, context.clock()))
                if not error.transient or not step.weakens:
                    raise
                unknown_outcome = error  # it may have been written: the node will show it
                continue
            context.informer.on_event(NODE.name, "MODIFIED", response)
            return self._after_write(current, state, step), step
        if unknown_outcome is not None:
            raise unknown_outcome
        return state, None

    async def _may_taint(self, current: _Pass, step: Step) -> bool:
        """Whether the admission policy is in force and the status can record the taint, by a dry run. Raises
        `ApiError`."""
        if not await self.context.admission.in_force(step.node):
            return False
        metadata = current.resource["metadata"]
        taints = (current.resource.get("status") or {}).get("taints") or {}
        body = {"status": {"taints": {**taints, "lastTaintTime": timestamp_seconds(self.context.clock())}}}
        try:
            await self.context.api.merge(
                FLEET_CLUSTER, metadata["namespace"], metadata["name"], body, sub="status", dry_run=True
            )
        except ApiError as error:
            if error.transient:
                raise
            reported = _refused(
                f"Node {step.node} was not tainted, because the status could not record it: {error.message}"
            )
            self.context.failures.add(current.key, _operation(step), reported, backoff=REFUSED)
            log.warning("status_refused", owner=current.key[2], node=step.node, reason=error.message)
            return False
        return True

    def _decide_again(self, current: _Pass, state: TaintState, step: Step) -> Step | None:
        """The same step, decided from what is known now; `None` when it is no longer right."""
        decision = decide(current.policy, self._observe(current, state), state, self.context.clock())
        return next((item for item in decision.steps if (item.verb, item.node) == (step.verb, step.node)), None)

    def _after_write(self, current: _Pass, state: TaintState, step: Step) -> TaintState:
        now, count = self.context.clock(), (step.verb, step.reason)
        self.writes[count] = self.writes.get(count, 0) + 1
        self._add_history(current.key, f"{timestamp_seconds(now)} {describe(step).message}")
        log.info(
            "node_written", verb=step.verb, node=step.node, reason=step.reason, owner=current.key[2],
            verdict=step.verdict,
        )  # fmt: skip
        return after_write(state, step, now)

    async def _cancel_releases(self, current: _Pass, state: TaintState, releasing: set[str]) -> TaintState:
        """Drop started releases that are no longer wanted: a later removal by a user then counts as an override."""
        nodes, records = self.context.informer.nodes, dict(state.records)
        for name, record in state.records.items():
            begun = record.verdict and record.releasing not in ("", OVERRIDDEN) and name not in releasing
            if not begun or name not in nodes or not _is_ours(nodes[name], current.uid, state):
                continue
            with contextlib.suppress(ApiError):  # the next reconcile reads it again
                live = await self.context.api.get(NODE, None, name)
                taint = node_view(live).taint if live is not None else None
                if taint is not None and taint.owner == current.uid:
                    records[name] = replace(record, releasing="")
        return replace(state, records=records)

    async def _name_removers(self, decision: Decision, state: TaintState) -> TaintState:
        """Record who removed the operator's taints, as far as the API server knows it."""
        records = dict(state.records)
        for item in decision.overrides:
            live: Manifest | None = None
            with contextlib.suppress(ApiError):  # the name is optional
                live = await self.context.api.get(NODE, None, item.node)
            managed = live["metadata"].get("managedFields") if live else None
            if item.node in records:
                records[item.node] = replace(records[item.node], overridden_by=remover(managed or [], MANAGER) or "")
        return replace(state, records=records)

    # Report

    async def _announce(self, current: _Pass, state: TaintState, decision: Decision, written: list[Step]) -> None:
        """Send Events and audit records after every release, and before the status records the step as finished.

        A process that restarts finds the step unfinished and reports it; nothing is reported twice."""
        overridden = [self._overridden(current.key, item.node, item.verdict, state) for item in decision.overrides]
        await self.context.recorder.record(current.resource, *overridden)
        for step in (*decision.found_done, *written):
            await self._announce_step(current, step)

    def _overridden(self, key: OwnerKey, node: str, verdict: str, state: TaintState) -> KubernetesEvent:
        who = state.records.get(node, NodeTaintRecord(uid="")).overridden_by or "another writer"
        what = f"the operator's taint was removed by {who}"
        self._add_history(key, f"{node}: {what}")
        message = f"Node {node}: {what}; the node is left alone for spec.taints.handsOff"
        return KubernetesEvent("Warning", "TaintOverridden", message, once=f"overridden/{node}/{verdict}")

    async def _announce_step(self, current: _Pass, step: Step) -> None:
        event = describe(step)
        request = self.context.fleet_poller.poll_request(current.key)
        if request and request.otlp:
            record = audit_events.log_request(
                step, cluster=request.cluster, owner=current.uid,
                message=event.message, identity=event.once, now=self.context.clock(),
            )  # fmt: skip
            target = OtlpTarget(url=request.otlp, token=request.token, authority=request.authority)
            self.context.audit_exporter.export(target, record)
        node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": step.node, "uid": step.uid}}
        await self.context.recorder.record(current.resource, event)
        await self.context.recorder.record(node, event)

    def _report(self, current: _Pass, state: TaintState, decision: Decision, checked: float | None) -> TaintReport:
        observed, result = self._observe(current, state), current.result
        remaining = frozenset(name for name, node in observed.nodes.items() if _is_ours(node, current.uid, state))
        conditioned = self.conditions.remaining(current.resource, current.policy)
        decision = replace(decision, used=len(remaining))
        accused = result.evidence.accused if result and result.evidence else {}
        self.context.informer.interest[current.key] = frozenset(accused) | frozenset(state.records)
        self.budgets[current.key] = (decision.used, decision.budget)
        return TaintReport(
            decision=decision,
            status=self._status(current, state, decision),
            remaining=remaining | conditioned,
            finalizer=bool(remaining or conditioned) or current.policy.condition,
            check_after=soonest(CHECK_SECONDS if remaining else None, checked),
        )

    def _status(self, current: _Pass, state: TaintState, decision: Decision) -> Manifest:
        history = self.history.get(current.key, [])
        out = {
            "mode": str(current.policy.mode), "used": f"{decision.used}/{decision.budget}", **to_status(state)
        }  # fmt: skip
        if history:
            out["history"], out["lastAction"] = history, history[0]
        if decision.checks:
            out["preview"] = [
                {"node": item.node, "check": item.check, "message": item.message[:256]}
                for item in decision.checks[:SHOWN]
            ]
            if len(decision.checks) > SHOWN:
                out["more"] = len(decision.checks) - SHOWN
        return out

    def _add_history(self, key: OwnerKey, text: str) -> None:
        self.history[key] = [text[:256], *self.history.get(key, [])][:SHOWN]


_LOST: Final = {
    LATE_RANK: "the job's time is lost to its rank", GPU_THROTTLED: "the job's time is lost to its throttled GPU"
}  # fmt: skip


def describe(step: Step) -> KubernetesEvent:
    """A step as an Event; the verdict is part of the identity that prevents a second Event."""
    once = f"{step.verb}/{step.node}/{step.verdict}/{step.reason}"
    if step.taint is None:
        return KubernetesEvent("Normal", "Released", f"Node {step.node} was released: {step.reason}", once)
    effect = step.taint.effect or "annotation only"
    facts = ""
    if step.taint.severity is not None:
        lost = _LOST.get(step.taint.kind, "its own rate is lost")
        facts = f"; {step.taint.severity:.0%} of {lost}, for {step.taint.windows} windows"
    elif step.taint.score is not None and step.taint.threshold is not None:
        score, threshold = step.taint.score, step.taint.threshold
        facts = f"; score {score:.3f} below {threshold:.3f} for {step.taint.windows} windows"
    if step.verb == "add":
        return KubernetesEvent("Warning", "Tainted", f"Node {step.node} was tainted ({effect}){facts}", once)
    if step.verb == "renew":
        once += f"/{step.taint.expires:.0f}"
    reasons = {"raise": "TaintRaised", "lower": "TaintLowered", "renew": "TaintRenewed"}
    return KubernetesEvent("Normal", reasons[step.verb], f"Node {step.node}: {effect} ({step.reason})", once)


def _refused(message: str) -> ReconcileError:
    return ReconcileError("TaintRefused", message, stalls=False)


def _is_ours(node: NodeView, owner: str, state: TaintState) -> bool:
    """Whether a node carries a taint of this owner, or the rest of one."""
    if node.taint is not None and node.taint.owner == owner:
        return True
    record = state.records.get(node.name)
    return record is not None and record.uid == node.uid and record.verdict in node.strays


def _operation(step: Step) -> Operation:
    """The failure key of a step; additions and releases have different keys, so a refused taint delays no release."""
    return Operation(OperationKind.RELEASE if step.weakens else OperationKind.TAINT, step.node)


def _noting(key: OwnerKey) -> Operation:
    return Operation(OperationKind.RELEASE_NOTE, f"status of {key[0]} {key[2]}")
