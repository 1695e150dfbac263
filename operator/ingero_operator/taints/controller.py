"""Acts on what the rails say: reads nodes afresh, writes marks, tells people. The only room here that is not pure."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ingero_contract.kubernetes import MANAGER, TAINT_FINALIZER
from ingero_kit.logs import get
from ingero_operator.api.base import seconds
from ingero_operator.api.v1alpha1 import FleetClusterSpec, Mode
from ingero_operator.api_client import ApiError
from ingero_operator.audit_exporter import OtlpTarget
from ingero_operator.cache import OwnerKey
from ingero_operator.context import ReconcileContext, is_paused, key_from, timestamp_seconds
from ingero_operator.errors import ReconcileError
from ingero_operator.events import Event
from ingero_operator.failures import Operation, explain
from ingero_operator.fleet_poller import PollResult
from ingero_operator.kinds import FLEET_CLUSTER, NODE
from ingero_operator.taints import audit_events, patches
from ingero_operator.taints.model import Decision, Observation, Step, TaintPolicy
from ingero_operator.taints.nodes import NodeView, node_view, remover
from ingero_operator.taints.policy import decide
from ingero_operator.taints.removals import note_releases
from ingero_operator.taints.state import OVERRIDDEN, Record, TaintState, from_status, to_status
from ingero_operator.taints.tracking import after_attempt, after_write

log = get(__name__)

Manifest = dict[str, Any]

TRIES: Final = 3
SHOWN: Final = 20
CHECK_SECONDS: Final = 30.0
GROUP: Final = "node"
MARK: Final = "mark of "
REFUSED_SECONDS: Final = 300.0
"""Rest of a node whose mark the API server refused for good: somebody has to change a right or a policy first."""
RELEASE_SECONDS: Final = 5.0
"""Longest rest of a release that failed."""


def policy_of(spec: FleetClusterSpec, allowed: bool) -> TaintPolicy:
    """The settings of the rails; nothing beyond Observe where the operator was started without taints."""
    taints = spec.taints
    return TaintPolicy(
        mode=taints.mode if allowed else Mode.OBSERVE,
        max_nodes=taints.budget.max_nodes,
        max_percent=taints.budget.max_percent,
        confirm_for=seconds(taints.confirm_for),
        confirm_windows=taints.confirm_windows,
        recover_for=seconds(taints.recover_for),
        min_healthy_percent=taints.min_healthy_percent,
        interval=seconds(taints.interval),
        storm_cooldown=seconds(taints.storm_cooldown),
        ttl=seconds(taints.ttl),
        probation=seconds(taints.probation),
        quiet=seconds(taints.quiet),
        max_per_day=taints.max_per_day,
        override_cooldown=seconds(taints.hands_off),
        min_node_age=seconds(taints.min_node_age),
        domain_label=taints.domain_label,
    )


@dataclass
class TaintReport:
    """What one look came to."""

    decision: Decision
    status: Manifest
    remaining: frozenset[str]
    """Nodes that still carry our mark."""
    again: float | None = None


@dataclass
class TaintController:
    """Keeps the memory of every FleetCluster and the marks on its nodes."""

    context: ReconcileContext
    states: dict[OwnerKey, tuple[str, TaintState]] = field(default_factory=dict)
    history: dict[OwnerKey, list[str]] = field(default_factory=dict)
    budgets: dict[OwnerKey, tuple[int, int]] = field(default_factory=dict)

    def held(self, key: OwnerKey) -> frozenset[str]:
        """Nodes that carry the mark of a FleetCluster, as far as is remembered."""
        _, state = self.states.get(key, ("", TaintState()))
        return frozenset(name for name, record in state.records.items() if record.verdict)

    def forget(self, key: OwnerKey) -> None:
        """Drop what is remembered of a FleetCluster that is gone."""
        for store in (self.states, self.history, self.budgets, self.context.informer.interest):
            store.pop(key, None)

    async def reconcile(self, resource: Manifest, spec: FleetClusterSpec, result: PollResult | None) -> TaintReport:
        """Decide, note, act, and say what happened. What the API server refuses is a failure of the resource, and
        holds up no other node."""
        key, context, uid = key_from(resource), self.context, resource["metadata"]["uid"]
        state = self._state(resource)
        observed = self._observe(resource, spec, state, result)
        policy = policy_of(spec, context.config.taints)
        decision = decide(policy, observed, state, context.clock())
        self._tidy(key, decision)
        leaving = [step for step in decision.steps if _weakens(step)]
        if leaving:
            with context.failures.guarded(key, _noting(key)):
                await self._note(resource, note_releases(state, leaving))
            if context.failures.failed(key, _noting(key)):  # releasing waits for nothing
                log.warning("release_not_noted", owner=key[2])
        before, written_steps = state, list[tuple[Step, str]]()
        # What is about to be removed is remembered from here on: a write whose answer is lost is found done later,
        # and taken for our own.
        state = decision.state
        self.states[key] = uid, state
        for step in decision.steps:
            if context.failures.backs_off(key, _what(step)):
                continue
            state, written = await self._guarded(resource, spec, policy, state, step, result)
            written_steps += [written] if written else []
            self.states[key] = uid, state
        state = await self._unfinished(resource, state, {step.node for step in leaving})
        state = await self._name(decision, state)
        self.states[key] = uid, state
        # People hear of it when every node is released that shall be, and before the status says that it is over.
        await context.record_events(resource, self._overridden(key, decision, state))
        for step in decision.found_done:
            known = before.records.get(step.node, Record(uid="")).verdict
            await self._announce(resource, step, step.taint.verdict if step.taint else known)
        for step, verdict in written_steps:
            await self._announce(resource, step, verdict)
        if policy.mode is not Mode.OBSERVE and observed.watched:
            await context.admission.in_force(min(observed.watched))  # said long before the first mark
        observed = self._observe(resource, spec, state, result)
        remaining = frozenset(name for name, node in observed.nodes.items() if _ours(node, uid, state))
        decision = replace(decision, used=len(remaining))
        accused = result.evidence.accused if result and result.evidence else {}
        context.informer.interest[key] = frozenset(accused) | frozenset(state.records)
        self.budgets[key] = (decision.used, decision.budget)
        return TaintReport(
            decision=decision,
            status=self._status(resource, policy, state, decision),
            remaining=remaining,
            again=CHECK_SECONDS if remaining else None,
        )

    def _tidy(self, key: OwnerKey, decision: Decision) -> None:
        """Failures of steps that nobody wants any more are over when their rest is."""
        failures = self.context.failures
        desired = {_what(step)[1] for step in decision.steps}
        failures.retain(key, GROUP, desired | failures.backing_off(key, GROUP))
        if not any(_weakens(step) for step in decision.steps):
            failures.resolve(key, _noting(key))

    async def _guarded(
        self,
        resource: Manifest,
        spec: FleetClusterSpec,
        policy: TaintPolicy,
        state: TaintState,
        step: Step,
        result: PollResult | None,
    ) -> tuple[TaintState, tuple[Step, str] | None]:
        """One step: what is to be remembered, and the step as it was written with its verdict, if it was."""
        key, failures, what = key_from(resource), self.context.failures, _what(step)
        try:
            state, written = await self._act(resource, spec, policy, state, step, result)
        except ApiError as error:
            reported = explain(f"Node {step.node}", error)
            if not error.transient:
                message = f"Node {step.node} was not changed: {error.message}"
                reported = ReconcileError("TaintRefused", message, stalls=False)
            # An API server that has just started refuses what it allows a moment later: no release rests for long.
            rest = None if error.transient or _weakens(step) else REFUSED_SECONDS
            longest = RELEASE_SECONDS if _weakens(step) else math.inf
            failures.add(key, what, reported, transient=error.transient, rest=rest, longest=longest)
            return after_attempt(state, step, self.context.clock()) if error.transient else state, None
        if written is not None or not failures.backs_off(key, what):
            failures.resolve(key, what)
        return state, written

    async def _unfinished(self, resource: Manifest, state: TaintState, leaving: set[str]) -> TaintState:
        """Releases that were begun and are no longer wanted: whoever takes such a mark away later is not us."""
        uid, nodes, records = resource["metadata"]["uid"], self.context.informer.nodes, dict(state.records)
        for name, record in state.records.items():
            begun = record.verdict and record.releasing not in ("", OVERRIDDEN) and name not in leaving
            if not begun or name not in nodes or not _ours(nodes[name], uid, state):
                continue
            with contextlib.suppress(ApiError):  # asked again next time
                live = await self.context.api.get(NODE, None, name)
                taint = node_view(live).taint if live is not None else None
                if taint is not None and taint.owner == uid:
                    records[name] = replace(record, releasing="")
        return replace(state, records=records)

    async def _name(self, decision: Decision, state: TaintState) -> TaintState:
        """Who took marks away, as far as the API server knows it."""
        records = dict(state.records)
        for item in decision.overrides:
            live: Manifest | None = None
            with contextlib.suppress(ApiError):  # a name is nothing to fail for
                live = await self.context.api.get(NODE, None, item.node)
            managed = live["metadata"].get("managedFields") if live else None
            if item.node in records:
                records[item.node] = replace(records[item.node], overridden_by=remover(managed or [], MANAGER) or "")
        return replace(state, records=records)

    def _overridden(self, key: OwnerKey, decision: Decision, state: TaintState) -> list[Event]:
        events = []
        for item in decision.overrides:
            who = state.records.get(item.node, Record(uid="")).overridden_by or "somebody"
            message = (
                f"Node {item.node}: our mark was removed by {who}; the node is left alone for spec.taints.handsOff"
            )
            events.append(Event("Warning", "TaintOverridden", message, once=f"overridden/{item.node}/{item.verdict}"))
            self._write_history(key, f"{item.node}: our mark was removed by {who}")
        return events

    def _state(self, resource: Manifest) -> TaintState:
        key, uid = key_from(resource), resource["metadata"]["uid"]
        known = self.states.get(key)
        if known is None or known[0] != uid:
            stored = (resource.get("status") or {}).get("taints") or {}
            known = (uid, from_status(stored))
            self.states[key] = known
            self.history[key] = list(stored.get("history") or ())
        return known[1]

    def _observe(
        self, resource: Manifest, spec: FleetClusterSpec, state: TaintState, result: PollResult | None
    ) -> Observation:
        key, informer = key_from(resource), self.context.informer
        uid = resource["metadata"]["uid"]
        watched = informer.watched(spec.agents.node_selector)
        ours = {name: node for name, node in informer.nodes.items() if _ours(node, uid, state)}
        remembered = {name: informer.nodes[name] for name in state.records if name in informer.nodes}
        reasons = [*spec.taints.pause_requests]
        if is_paused(resource):
            reasons.append("the resource carries the annotation ingero.io/paused")
        if self.context.config.pause_taints:
            reasons.append("the operator was started with --pause-taints")
        accused = result.evidence.accused if result and result.evidence else {}
        return Observation(
            owner=uid,
            nodes={**watched, **ours, **remembered},
            watched=frozenset(watched),
            evidence=result.evidence if result else None,
            overlap=self._overlap(key, [name for name in accused if name in watched]),
            paused="; ".join(reasons)[:400],
            unguarded=self.context.admission.missing,
            refused=frozenset(
                name.removeprefix(MARK)
                for name in self.context.failures.backing_off(key, GROUP)
                if name.startswith(MARK)
            ),
            deleting="deletionTimestamp" in resource["metadata"],
        )

    def _overlap(self, key: OwnerKey, names: list[str]) -> Mapping[str, str]:
        """Which of these nodes another FleetCluster watches as well."""
        if not names:
            return {}
        informer, found = self.context.informer, {}
        for other in informer.cache.keys("FleetCluster"):
            if other == key:
                continue
            body = informer.cache.get(other) or {}
            agents = (body.get("spec") or {}).get("agents") or {}
            selector = agents.get("nodeSelector") or {"nvidia.com/gpu.present": "true"}
            for name in names:
                if selector.items() <= informer.nodes[name].labels.items():
                    found[name] = f"FleetCluster {other[1]}/{other[2]}"
        return found

    async def _note(self, resource: Manifest, state: TaintState) -> None:
        """Write down what is about to be weakened, before it is."""
        before = (resource.get("status") or {}).get("taints") or {}
        after = {**before, **to_status(state)}
        if after != before:
            await self.context.write_status(resource, {**(resource.get("status") or {}), "taints": after})

    async def _rehearse(self, resource: Manifest) -> None:
        """A dry run of a write of the status: what a mark must be remembered by can be written down."""
        metadata, taints = resource["metadata"], (resource.get("status") or {}).get("taints") or {}
        body = {"status": {"taints": {**taints, "lastTaintTime": timestamp_seconds(self.context.clock())}}}
        await self.context.api.merge(
            FLEET_CLUSTER, metadata["namespace"], metadata["name"], body, sub="status", dry_run=True
        )

    async def _act(
        self,
        resource: Manifest,
        spec: FleetClusterSpec,
        policy: TaintPolicy,
        state: TaintState,
        step: Step,
        result: PollResult | None,
    ) -> tuple[TaintState, tuple[Step, str] | None]:
        """One step: decided again on the node as it is now, at most three times."""
        context, key, uid = self.context, key_from(resource), resource["metadata"]["uid"]
        if step.verb in ("add", "raise"):
            if not await context.admission.in_force(step.node):
                return state, None
            try:
                await self._rehearse(resource)
            except ApiError as error:
                if error.transient:
                    raise
                message = f"Node {step.node} was not marked, as the status could not tell of it: {error.message}"
                context.failures.add(
                    key, _what(step), ReconcileError("TaintRefused", message, stalls=False), rest=REFUSED_SECONDS
                )
                log.warning("status_refused", owner=key[2], node=step.node, reason=error.message)
                return state, None
        if step.verb == "add" and TAINT_FINALIZER not in (resource["metadata"].get("finalizers") or []):
            await self._finalizer(resource)
        verdict = step.taint.verdict if step.taint else state.records.get(step.node, Record(uid="")).verdict
        doubt: ApiError | None = None
        for _ in range(TRIES):
            live = await context.api.get(NODE, None, step.node)
            if live is None:
                return (
                    after_write(state, replace(step, taint=None), context.clock()) if not step.taint else state
                ), None
            context.informer.on_event(NODE.name, "MODIFIED", live)
            if step.verb in ("add", "raise"):
                fresh = decide(policy, self._observe(resource, spec, state, result), state, context.clock())
                again = next((item for item in fresh.steps if (item.verb, item.node) == (step.verb, step.node)), None)
                if again is None or not context.leads():
                    return state, None
                step = again
            patch = patches.patch(live, step.uid, uid, step.taint, "" if step.taint else verdict)
            if patch is None:
                return state, None
            try:
                written = await context.api.patch(NODE, None, step.node, patch)
            except ApiError as error:
                if error.status == 409 or (error.status == 422 and "rejected our request" in error.message):
                    continue
                if not error.transient or not _weakens(step):
                    raise
                doubt = error  # perhaps it was written all the same: the node says so
                continue
            context.informer.on_event(NODE.name, "MODIFIED", written)
            count = (step.verb, step.reason)
            context.node_writes[count] = context.node_writes.get(count, 0) + 1
            now = context.clock()
            verdict = step.taint.verdict if step.taint else verdict
            state = after_write(state, step, now)
            self._write_history(key, f"{timestamp_seconds(now)} {describe(step, verdict).message}")
            log.info("node", verb=step.verb, node=step.node, reason=step.reason, owner=key[2], verdict=verdict)
            return state, (step, verdict)
        if doubt is not None:
            raise doubt
        return state, None

    async def _announce(self, resource: Manifest, step: Step, verdict: str) -> None:
        """Events on resource and node, and a record for whoever Fleet forwards to. They come before the status that
        says that the step is over: whoever starts anew finds the step unfinished and tells it, and nobody hears it
        twice."""
        written_steps = describe(step, verdict)
        poll_request = self.context.fleet_poller.poll_request(key_from(resource))
        if poll_request and poll_request.otlp:
            request = audit_events.log_request(
                step, cluster=poll_request.cluster, owner=resource["metadata"]["uid"], verdict=verdict,
                message=written_steps.message, identity=written_steps.once, now=self.context.clock(),
            )  # fmt: skip
            target = OtlpTarget(url=poll_request.otlp, token=poll_request.token, authority=poll_request.authority)
            self.context.audit_exporter.export(target, request)
        node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": step.node, "uid": step.uid}}
        await self.context.record_events(resource, [written_steps])
        await self.context.recorder.record(node, written_steps)

    async def _finalizer(self, resource: Manifest) -> None:
        metadata = resource["metadata"]
        body = {
            "metadata": {
                "finalizers": [*(metadata.get("finalizers") or []), TAINT_FINALIZER],
                "resourceVersion": metadata["resourceVersion"],
            }
        }
        result = await self.context.api.merge(FLEET_CLUSTER, metadata["namespace"], metadata["name"], body)
        self.context.informer.cache.put(FLEET_CLUSTER.name, result)
        metadata["finalizers"] = result["metadata"]["finalizers"]
        metadata["resourceVersion"] = result["metadata"]["resourceVersion"]

    def _write_history(self, key: OwnerKey, text: str) -> None:
        self.history[key] = [text[:256], *self.history.get(key, [])][:SHOWN]

    def _status(self, resource: Manifest, policy: TaintPolicy, state: TaintState, decision: Decision) -> Manifest:
        history = self.history.get(key_from(resource), [])
        out = {"mode": str(policy.mode), "used": f"{decision.used}/{decision.budget}", **to_status(state)}
        if history:
            out["history"], out["lastAction"] = history, history[0]
        if decision.checks:
            out["preview"] = [
                {"node": result.node, "rail": result.check, "message": result.message[:256]}
                for result in decision.checks[:SHOWN]
            ]
            if len(decision.checks) > SHOWN:
                out["more"] = len(decision.checks) - SHOWN
        return out


def describe(step: Step, verdict: str) -> Event:
    """A step for people; the verdict makes it a happening that cannot be told twice."""
    once = f"{step.verb}/{step.node}/{verdict}/{step.reason}"
    if step.taint is None:
        return Event("Normal", "Released", f"Node {step.node} was released: {step.reason}", once)
    effect = step.taint.effect or "annotation only"
    model = ""
    if step.taint.severity is not None:
        model = f"; it lost {step.taint.severity:.0%} of its own rate, for {step.taint.windows} windows"
    elif step.taint.score is not None and step.taint.threshold is not None:
        model = f"; score {step.taint.score:.3f} below {step.taint.threshold:.3f} for {step.taint.windows} windows"
    if step.verb == "add":
        return Event("Warning", "Tainted", f"Node {step.node} was marked ({effect}){model}", once)
    if step.verb == "renew":
        once += f"/{step.taint.expires:.0f}"
    message = {"raise": "MarkRaised", "lower": "MarkLowered", "renew": "MarkRenewed"}
    return Event("Normal", message[step.verb], f"Node {step.node}: {effect} ({step.reason})", once)


def _ours(node: NodeView, owner: str, state: TaintState) -> bool:
    """Whether a mark of this owner, or what is left of one, is on a node."""
    if node.taint is not None and node.taint.owner == owner:
        return True
    record = state.records.get(node.name)
    return record is not None and record.uid == node.uid and record.verdict in node.strays


def _weakens(step: Step) -> bool:
    return step.verb in ("remove", "lower")


def _what(step: Step) -> Operation:
    """A step among failures; a refused mark never holds up its release."""
    return GROUP, f"{'release of ' if _weakens(step) else MARK}{step.node}"


def _noting(key: OwnerKey) -> Operation:
    return "look", f"status of {key[0]} {key[2]}"
