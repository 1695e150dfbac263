"""Acts on what the rails say: reads nodes afresh, writes marks, tells people. The only room here that is not pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ingero_contract.kubernetes import MANAGER, TAINT_FINALIZER
from ingero_kit.logs import get
from ingero_operator.api.base import seconds
from ingero_operator.api.v1alpha1 import FleetClusterSpec, Mode
from ingero_operator.cache import OwnerKey
from ingero_operator.cluster import ApiError
from ingero_operator.desk import Desk, is_paused, key_from, stamp_seconds
from ingero_operator.inquiry import Answer
from ingero_operator.kinds import FLEET_CLUSTER, NODE
from ingero_operator.recorder import Happening
from ingero_operator.taints import edits, testimony
from ingero_operator.taints.counts import done
from ingero_operator.taints.facts import Decision, Rails, Step, World
from ingero_operator.taints.memory import Memory, Record, from_status, to_status
from ingero_operator.taints.nodes import NodeView
from ingero_operator.taints.rails import decide
from ingero_operator.trouble import Trouble
from ingero_operator.witness import Listener

log = get(__name__)

Manifest = dict[str, Any]

TRIES: Final = 3
SHOWN: Final = 20
CHECK_SECONDS: Final = 30.0
REFUSED_SECONDS: Final = 300.0
"""Rest of a node whose write the API server refused for good: somebody has to change a right or a policy first."""


def rails_of(spec: FleetClusterSpec, allowed: bool) -> Rails:
    """The settings of the rails; nothing beyond Observe where the operator was started without taints."""
    taints = spec.taints
    return Rails(
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
        hands_off=seconds(taints.hands_off),
        min_node_age=seconds(taints.min_node_age),
        domain_label=taints.domain_label,
    )


@dataclass
class Report:
    """What one look came to."""

    decision: Decision
    status: Manifest
    troubles: list[Trouble]
    remaining: frozenset[str]
    """Nodes that still carry our mark."""
    again: float | None = None


@dataclass
class Keeper:
    """Keeps the memory of every FleetCluster and the marks on its nodes."""

    desk: Desk
    memories: dict[OwnerKey, tuple[str, Memory]] = field(default_factory=dict)
    history: dict[OwnerKey, list[str]] = field(default_factory=dict)
    budgets: dict[OwnerKey, tuple[int, int]] = field(default_factory=dict)
    refused: dict[OwnerKey, dict[str, tuple[float, str]]] = field(default_factory=dict)
    """Nodes whose write was refused: until when they rest, and in which words."""

    def held(self, key: OwnerKey) -> frozenset[str]:
        """Nodes that carry the mark of a FleetCluster, as far as is remembered."""
        _, memory = self.memories.get(key, ("", Memory()))
        return frozenset(name for name, record in memory.records.items() if record.verdict)

    def forget(self, key: OwnerKey) -> None:
        """Drop what is remembered of a FleetCluster that is gone."""
        for store in (self.memories, self.history, self.budgets, self.refused, self.desk.sight.interest):
            store.pop(key, None)

    async def keep(self, resource: Manifest, spec: FleetClusterSpec, answer: Answer | None) -> Report:
        """Decide, note, act, and say what happened."""
        key, desk = key_from(resource), self.desk
        memory = self._memory(resource)
        self.refused[key] = {
            node: item for node, item in self.refused.get(key, {}).items() if item[0] > desk.clock()
        }  # fmt: skip
        world = self._world(resource, spec, memory, answer)
        rails = rails_of(spec, desk.config.taints)
        decision = decide(rails, world, memory, desk.clock())
        happenings = [await self._overridden(item.node, item.verdict) for item in decision.overrides]
        await desk.tell(resource, happenings)
        if decision.overrides:
            decision = replace(decision, memory=self._name_overriders(decision, happenings))
        for step in decision.settled:
            before = memory.records.get(step.node, Record(uid=""))
            await self._tell(resource, step, step.mark.verdict if step.mark else before.verdict)
        memory = decision.memory
        for item in decision.overrides:
            self._write_history(key, f"{item.node}: our mark was removed by somebody else")
        if any(step.verb in ("remove", "lower") for step in decision.steps):
            try:
                await self._note(resource, memory)
            except ApiError as error:  # releasing waits for nothing
                log.warning("release_not_noted", owner=key[2], reason=error.message)
        for step in decision.steps:
            memory = await self._act(resource, spec, rails, world, memory, step, answer)
        self.memories[key] = (resource["metadata"]["uid"], memory)
        if rails.mode is not Mode.OBSERVE and world.watched:
            await desk.guard.holds(min(world.watched))  # said long before the first mark
        world = self._world(resource, spec, memory, answer)
        decision = replace(
            decision,
            used=sum(_ours(node, world.owner) for node in world.nodes.values()),
        )
        accused = answer.evidence.accused if answer and answer.evidence else {}
        desk.sight.interest[key] = frozenset(accused) | frozenset(memory.records)
        self.budgets[key] = (decision.used, decision.budget)
        remaining = frozenset(name for name, node in world.nodes.items() if _ours(node, world.owner))
        return Report(
            decision=decision,
            status=self._status(resource, rails, memory, decision),
            troubles=[Trouble("TaintRefused", words, stalls=False) for _, words in self.refused[key].values()],
            remaining=remaining,
            again=CHECK_SECONDS if remaining else None,
        )

    def _memory(self, resource: Manifest) -> Memory:
        key, uid = key_from(resource), resource["metadata"]["uid"]
        known = self.memories.get(key)
        if known is None or known[0] != uid:
            stored = (resource.get("status") or {}).get("taints") or {}
            known = (uid, from_status(stored))
            self.memories[key] = known
            self.history[key] = list(stored.get("history") or ())
        return known[1]

    def _world(self, resource: Manifest, spec: FleetClusterSpec, memory: Memory, answer: Answer | None) -> World:
        key, sight = key_from(resource), self.desk.sight
        uid = resource["metadata"]["uid"]
        watched = sight.watched(spec.agents.node_selector)
        ours = {name: node for name, node in sight.nodes.items() if _ours(node, uid)}
        remembered = {name: sight.nodes[name] for name in memory.records if name in sight.nodes}
        reasons = [*spec.taints.pause_requests]
        if is_paused(resource):
            reasons.append("the resource carries the annotation ingero.io/paused")
        if self.desk.config.pause_taints:
            reasons.append("the operator was started with --pause-taints")
        accused = answer.evidence.accused if answer and answer.evidence else {}
        return World(
            owner=uid,
            nodes={**watched, **ours, **remembered},
            watched=frozenset(watched),
            evidence=answer.evidence if answer else None,
            overlap=self._overlap(key, [name for name in accused if name in watched]),
            paused="; ".join(reasons)[:400],
            unguarded=self.desk.guard.missing,
            refused=frozenset(self.refused.get(key, ())),
            deleting="deletionTimestamp" in resource["metadata"],
        )

    def _overlap(self, key: OwnerKey, names: list[str]) -> Mapping[str, str]:
        """Which of these nodes another FleetCluster watches as well."""
        if not names:
            return {}
        sight, found = self.desk.sight, {}
        for other in sight.cache.keys("FleetCluster"):
            if other == key:
                continue
            body = sight.cache.get(other) or {}
            agents = (body.get("spec") or {}).get("agents") or {}
            selector = agents.get("nodeSelector") or {"nvidia.com/gpu.present": "true"}
            for name in names:
                if selector.items() <= sight.nodes[name].labels.items():
                    found[name] = f"FleetCluster {other[1]}/{other[2]}"
        return found

    async def _note(self, resource: Manifest, memory: Memory) -> None:
        """Write down what is about to be weakened, before it is."""
        before = (resource.get("status") or {}).get("taints") or {}
        after = {**before, **to_status(memory)}
        if after != before:
            await self.desk.write_status(resource, {**(resource.get("status") or {}), "taints": after})

    async def _rehearse(self, resource: Manifest) -> None:
        """A dry run of a write of the status: what a mark must be remembered by can be written down."""
        metadata, taints = resource["metadata"], (resource.get("status") or {}).get("taints") or {}
        body = {"status": {"taints": {**taints, "lastTaintTime": stamp_seconds(self.desk.clock())}}}
        await self.desk.api.merge(
            FLEET_CLUSTER, metadata["namespace"], metadata["name"], body, sub="status", dry_run=True
        )

    async def _act(
        self,
        resource: Manifest,
        spec: FleetClusterSpec,
        rails: Rails,
        world: World,
        memory: Memory,
        step: Step,
        answer: Answer | None,
    ) -> Memory:
        """One step: decided again on the node as it is now, at most three times."""
        desk, key = self.desk, key_from(resource)
        if step.node in self.refused[key]:
            return memory
        if step.verb in ("add", "raise"):
            if not await desk.guard.holds(step.node):
                return memory
            try:
                await self._rehearse(resource)
            except ApiError as error:
                if error.transient:
                    raise
                words = f"Node {step.node} was not marked, as the status could not tell of it: {error.message}"
                self.refused[key][step.node] = (desk.clock() + REFUSED_SECONDS, words)
                log.warning("status_refused", owner=key[2], node=step.node, reason=error.message)
                return memory
        if step.verb == "add" and TAINT_FINALIZER not in (resource["metadata"].get("finalizers") or []):
            await self._finalizer(resource)
        for _ in range(TRIES):
            live = await desk.api.get(NODE, None, step.node)
            if live is None:
                return done(memory, replace(step, mark=None), desk.clock()) if not step.mark else memory
            desk.sight.take(NODE.name, "MODIFIED", live)
            if step.verb in ("add", "raise"):
                fresh = decide(rails, self._world(resource, spec, memory, answer), memory, desk.clock())
                again = next((item for item in fresh.steps if (item.verb, item.node) == (step.verb, step.node)), None)
                if again is None or not desk.leads():
                    return memory
                step = again
            patch = edits.patch(live, step.uid, world.owner, step.mark)
            if patch is None:
                return memory
            try:
                written = await desk.api.patch(NODE, None, step.node, patch)
            except ApiError as error:
                if error.status == 409 or (error.status == 422 and "rejected our request" in error.message):
                    continue
                if error.transient:
                    raise
                words = f"Node {step.node} was not changed: {error.message}"
                self.refused[key][step.node] = (desk.clock() + REFUSED_SECONDS, words)
                return memory
            desk.sight.take(NODE.name, "MODIFIED", written)
            count = (step.verb, step.reason)
            desk.node_writes[count] = desk.node_writes.get(count, 0) + 1
            now = desk.clock()
            verdict = step.mark.verdict if step.mark else memory.records.get(step.node, Record(uid="")).verdict
            memory = done(memory, step, now)
            self._write_history(key, f"{stamp_seconds(now)} {describe(step, verdict).message}")
            log.info("node", verb=step.verb, node=step.node, reason=step.reason, owner=key[2], verdict=verdict)
            await self._tell(resource, step, verdict)
            return memory
        return memory

    async def _tell(self, resource: Manifest, step: Step, verdict: str) -> None:
        """Events on resource and node, and a record for whoever Fleet forwards to. They come before the status that
        says that the step is over: whoever starts anew finds the step unfinished and tells it, and nobody hears it
        twice."""
        told = describe(step, verdict)
        question = self.desk.inquirer.question(key_from(resource))
        if question and question.otlp:
            request = testimony.record(
                step, cluster=question.cluster, owner=resource["metadata"]["uid"], verdict=verdict,
                words=told.message, identity=told.once, now=self.desk.clock(),
            )  # fmt: skip
            listener = Listener(url=question.otlp, token=question.token, authority=question.authority)
            self.desk.witness.tell(listener, request)
        node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": step.node, "uid": step.uid}}
        await self.desk.tell(resource, [told])
        await self.desk.recorder.tell(node, told)

    async def _finalizer(self, resource: Manifest) -> None:
        metadata = resource["metadata"]
        body = {
            "metadata": {
                "finalizers": [*(metadata.get("finalizers") or []), TAINT_FINALIZER],
                "resourceVersion": metadata["resourceVersion"],
            }
        }
        answer = await self.desk.api.merge(FLEET_CLUSTER, metadata["namespace"], metadata["name"], body)
        self.desk.sight.cache.put(FLEET_CLUSTER.name, answer)
        metadata["finalizers"] = answer["metadata"]["finalizers"]
        metadata["resourceVersion"] = answer["metadata"]["resourceVersion"]

    async def _overridden(self, node: str, verdict: str) -> Happening:
        """Who took our mark away, as far as the node's field managers tell."""
        live = await self.desk.api.get(NODE, None, node) or {"metadata": {}}
        entries = [
            entry
            for entry in live["metadata"].get("managedFields", [])
            if entry.get("manager") != MANAGER and entry.get("subresource") != "status" and entry.get("time")
        ]
        entries.sort(key=lambda entry: str(entry["time"]))
        who = str(entries[-1]["manager"]) if entries else "somebody"
        words = f"Node {node}: our mark was removed by {who}; the node is left alone for spec.taints.handsOff"
        return Happening("Warning", "TaintOverridden", words, once=f"overridden/{node}/{verdict}")

    def _name_overriders(self, decision: Decision, happenings: list[Happening]) -> Memory:
        records = dict(decision.memory.records)
        for item, told in zip(decision.overrides, happenings, strict=True):
            who = told.message.split(" was removed by ", 1)[1].split(";", 1)[0]
            if item.node in records:
                records[item.node] = replace(records[item.node], overridden_by=who)
        return replace(decision.memory, records=records)

    def _write_history(self, key: OwnerKey, text: str) -> None:
        self.history[key] = [text[:256], *self.history.get(key, [])][:SHOWN]

    def _status(self, resource: Manifest, rails: Rails, memory: Memory, decision: Decision) -> Manifest:
        history = self.history.get(key_from(resource), [])
        out = {"mode": str(rails.mode), "used": f"{decision.used}/{decision.budget}", **to_status(memory)}
        if history:
            out["history"], out["lastAction"] = history, history[0]
        if decision.lines:
            out["preview"] = [
                {"node": line.node, "rail": line.rail, "message": line.message[:256]}
                for line in decision.lines[:SHOWN]
            ]
            if len(decision.lines) > SHOWN:
                out["more"] = len(decision.lines) - SHOWN
        return out


def describe(step: Step, verdict: str) -> Happening:
    """A step for people; the verdict makes it a happening that cannot be told twice."""
    once = f"{step.verb}/{step.node}/{verdict}/{step.reason}"
    if step.mark is None:
        return Happening("Normal", "Released", f"Node {step.node} was released: {step.reason}", once)
    effect = step.mark.effect or "annotation only"
    facts = ""
    if step.mark.severity is not None:
        facts = f"; it lost {step.mark.severity:.0%} of its own rate, for {step.mark.windows} windows"
    elif step.mark.score is not None and step.mark.threshold is not None:
        facts = f"; score {step.mark.score:.3f} below {step.mark.threshold:.3f} for {step.mark.windows} windows"
    if step.verb == "add":
        return Happening("Warning", "Tainted", f"Node {step.node} was marked ({effect}){facts}", once)
    if step.verb == "renew":
        once += f"/{step.mark.expires:.0f}"
    words = {"raise": "MarkRaised", "lower": "MarkLowered", "renew": "MarkRenewed"}
    return Happening("Normal", words[step.verb], f"Node {step.node}: {effect} ({step.reason})", once)


def _ours(node: NodeView, owner: str) -> bool:
    return node.mark is not None and node.mark.owner == owner
