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
from ingero_operator.cache import OwnerKey
from ingero_operator.cluster import ApiError
from ingero_operator.desk import Desk, is_paused, key_from, stamp_seconds
from ingero_operator.failures import What, explain
from ingero_operator.inquiry import Answer
from ingero_operator.kinds import FLEET_CLUSTER, NODE
from ingero_operator.recorder import Happening
from ingero_operator.taints import edits, testimony
from ingero_operator.taints.counts import attempted, done
from ingero_operator.taints.facts import Decision, Rails, Step, World
from ingero_operator.taints.memory import OVERRIDDEN, Memory, Record, from_status, to_status
from ingero_operator.taints.nodes import NodeView, remover, view
from ingero_operator.taints.rails import decide
from ingero_operator.taints.removals import noted
from ingero_operator.trouble import Trouble
from ingero_operator.witness import Listener

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

    def held(self, key: OwnerKey) -> frozenset[str]:
        """Nodes that carry the mark of a FleetCluster, as far as is remembered."""
        _, memory = self.memories.get(key, ("", Memory()))
        return frozenset(name for name, record in memory.records.items() if record.verdict)

    def forget(self, key: OwnerKey) -> None:
        """Drop what is remembered of a FleetCluster that is gone."""
        for store in (self.memories, self.history, self.budgets, self.desk.sight.interest):
            store.pop(key, None)

    async def keep(self, resource: Manifest, spec: FleetClusterSpec, answer: Answer | None) -> Report:
        """Decide, note, act, and say what happened. What the API server refuses is a failure of the resource, and
        holds up no other node."""
        key, desk, uid = key_from(resource), self.desk, resource["metadata"]["uid"]
        memory = self._memory(resource)
        world = self._world(resource, spec, memory, answer)
        rails = rails_of(spec, desk.config.taints)
        decision = decide(rails, world, memory, desk.clock())
        self._tidy(key, decision)
        leaving = [step for step in decision.steps if _weakens(step)]
        if leaving:
            with desk.failures.guarded(key, _noting(key)):
                await self._note(resource, noted(memory, leaving))
            if desk.failures.failed(key, _noting(key)):  # releasing waits for nothing
                log.warning("release_not_noted", owner=key[2])
        before, told = memory, list[tuple[Step, str]]()
        # What is about to be removed is remembered from here on: a write whose answer is lost is found done later,
        # and taken for our own.
        memory = decision.memory
        self.memories[key] = uid, memory
        for step in decision.steps:
            if desk.failures.rests(key, _what(step)):
                continue
            memory, written = await self._guarded(resource, spec, rails, memory, step, answer)
            told += [written] if written else []
            self.memories[key] = uid, memory
        memory = await self._unfinished(resource, memory, {step.node for step in leaving})
        memory = await self._name(decision, memory)
        self.memories[key] = uid, memory
        # People hear of it when every node is released that shall be, and before the status says that it is over.
        await desk.tell(resource, self._overridden(key, decision, memory))
        for step in decision.settled:
            known = before.records.get(step.node, Record(uid="")).verdict
            await self._tell(resource, step, step.mark.verdict if step.mark else known)
        for step, verdict in told:
            await self._tell(resource, step, verdict)
        if rails.mode is not Mode.OBSERVE and world.watched:
            await desk.guard.holds(min(world.watched))  # said long before the first mark
        world = self._world(resource, spec, memory, answer)
        remaining = frozenset(name for name, node in world.nodes.items() if _ours(node, uid, memory))
        decision = replace(decision, used=len(remaining))
        accused = answer.evidence.accused if answer and answer.evidence else {}
        desk.sight.interest[key] = frozenset(accused) | frozenset(memory.records)
        self.budgets[key] = (decision.used, decision.budget)
        return Report(
            decision=decision,
            status=self._status(resource, rails, memory, decision),
            remaining=remaining,
            again=CHECK_SECONDS if remaining else None,
        )

    def _tidy(self, key: OwnerKey, decision: Decision) -> None:
        """Failures of steps that nobody wants any more are over when their rest is."""
        failures = self.desk.failures
        wanted = {_what(step)[1] for step in decision.steps}
        failures.only(key, GROUP, wanted | failures.resting(key, GROUP))
        if not any(_weakens(step) for step in decision.steps):
            failures.over(key, _noting(key))

    async def _guarded(
        self,
        resource: Manifest,
        spec: FleetClusterSpec,
        rails: Rails,
        memory: Memory,
        step: Step,
        answer: Answer | None,
    ) -> tuple[Memory, tuple[Step, str] | None]:
        """One step: what is to be remembered, and the step as it was written with its verdict, if it was."""
        key, failures, what = key_from(resource), self.desk.failures, _what(step)
        try:
            memory, written = await self._act(resource, spec, rails, memory, step, answer)
        except ApiError as error:
            trouble = explain(f"Node {step.node}", error)
            if not error.transient:
                words = f"Node {step.node} was not changed: {error.message}"
                trouble = Trouble("TaintRefused", words, stalls=False)
            # An API server that has just started refuses what it allows a moment later: no release rests for long.
            rest = None if error.transient or _weakens(step) else REFUSED_SECONDS
            longest = RELEASE_SECONDS if _weakens(step) else math.inf
            failures.add(key, what, trouble, transient=error.transient, rest=rest, longest=longest)
            return attempted(memory, step, self.desk.clock()) if error.transient else memory, None
        if written is not None or not failures.rests(key, what):
            failures.over(key, what)
        return memory, written

    async def _unfinished(self, resource: Manifest, memory: Memory, leaving: set[str]) -> Memory:
        """Releases that were begun and are no longer wanted: whoever takes such a mark away later is not us."""
        uid, nodes, records = resource["metadata"]["uid"], self.desk.sight.nodes, dict(memory.records)
        for name, record in memory.records.items():
            begun = record.verdict and record.releasing not in ("", OVERRIDDEN) and name not in leaving
            if not begun or name not in nodes or not _ours(nodes[name], uid, memory):
                continue
            with contextlib.suppress(ApiError):  # asked again next time
                live = await self.desk.api.get(NODE, None, name)
                mark = view(live).mark if live is not None else None
                if mark is not None and mark.owner == uid:
                    records[name] = replace(record, releasing="")
        return replace(memory, records=records)

    async def _name(self, decision: Decision, memory: Memory) -> Memory:
        """Who took marks away, as far as the API server knows it."""
        records = dict(memory.records)
        for item in decision.overrides:
            live: Manifest | None = None
            with contextlib.suppress(ApiError):  # a name is nothing to fail for
                live = await self.desk.api.get(NODE, None, item.node)
            managed = live["metadata"].get("managedFields") if live else None
            if item.node in records:
                records[item.node] = replace(records[item.node], overridden_by=remover(managed or [], MANAGER) or "")
        return replace(memory, records=records)

    def _overridden(self, key: OwnerKey, decision: Decision, memory: Memory) -> list[Happening]:
        happenings = []
        for item in decision.overrides:
            who = memory.records.get(item.node, Record(uid="")).overridden_by or "somebody"
            words = (
                f"Node {item.node}: our mark was removed by {who}; the node is left alone for spec.taints.handsOff"
            )
            happenings.append(
                Happening("Warning", "TaintOverridden", words, once=f"overridden/{item.node}/{item.verdict}")
            )
            self._write_history(key, f"{item.node}: our mark was removed by {who}")
        return happenings

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
        ours = {name: node for name, node in sight.nodes.items() if _ours(node, uid, memory)}
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
            refused=frozenset(
                name.removeprefix(MARK) for name in self.desk.failures.resting(key, GROUP) if name.startswith(MARK)
            ),
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
        memory: Memory,
        step: Step,
        answer: Answer | None,
    ) -> tuple[Memory, tuple[Step, str] | None]:
        """One step: decided again on the node as it is now, at most three times."""
        desk, key, uid = self.desk, key_from(resource), resource["metadata"]["uid"]
        if step.verb in ("add", "raise"):
            if not await desk.guard.holds(step.node):
                return memory, None
            try:
                await self._rehearse(resource)
            except ApiError as error:
                if error.transient:
                    raise
                words = f"Node {step.node} was not marked, as the status could not tell of it: {error.message}"
                desk.failures.add(
                    key, _what(step), Trouble("TaintRefused", words, stalls=False), rest=REFUSED_SECONDS
                )
                log.warning("status_refused", owner=key[2], node=step.node, reason=error.message)
                return memory, None
        if step.verb == "add" and TAINT_FINALIZER not in (resource["metadata"].get("finalizers") or []):
            await self._finalizer(resource)
        verdict = step.mark.verdict if step.mark else memory.records.get(step.node, Record(uid="")).verdict
        doubt: ApiError | None = None
        for _ in range(TRIES):
            live = await desk.api.get(NODE, None, step.node)
            if live is None:
                return (done(memory, replace(step, mark=None), desk.clock()) if not step.mark else memory), None
            desk.sight.take(NODE.name, "MODIFIED", live)
            if step.verb in ("add", "raise"):
                fresh = decide(rails, self._world(resource, spec, memory, answer), memory, desk.clock())
                again = next((item for item in fresh.steps if (item.verb, item.node) == (step.verb, step.node)), None)
                if again is None or not desk.leads():
                    return memory, None
                step = again
            patch = edits.patch(live, step.uid, uid, step.mark, "" if step.mark else verdict)
            if patch is None:
                return memory, None
            try:
                written = await desk.api.patch(NODE, None, step.node, patch)
            except ApiError as error:
                if error.status == 409 or (error.status == 422 and "rejected our request" in error.message):
                    continue
                if not error.transient or not _weakens(step):
                    raise
                doubt = error  # perhaps it was written all the same: the node says so
                continue
            desk.sight.take(NODE.name, "MODIFIED", written)
            count = (step.verb, step.reason)
            desk.node_writes[count] = desk.node_writes.get(count, 0) + 1
            now = desk.clock()
            verdict = step.mark.verdict if step.mark else verdict
            memory = done(memory, step, now)
            self._write_history(key, f"{stamp_seconds(now)} {describe(step, verdict).message}")
            log.info("node", verb=step.verb, node=step.node, reason=step.reason, owner=key[2], verdict=verdict)
            return memory, (step, verdict)
        if doubt is not None:
            raise doubt
        return memory, None

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


def _ours(node: NodeView, owner: str, memory: Memory) -> bool:
    """Whether a mark of this owner, or what is left of one, is on a node."""
    if node.mark is not None and node.mark.owner == owner:
        return True
    record = memory.records.get(node.name)
    return record is not None and record.uid == node.uid and record.verdict in node.strays


def _weakens(step: Step) -> bool:
    return step.verb in ("remove", "lower")


def _what(step: Step) -> What:
    """A step among failures; a refused mark never holds up its release."""
    return GROUP, f"{'release of ' if _weakens(step) else MARK}{step.node}"


def _noting(key: OwnerKey) -> What:
    return "look", f"status of {key[0]} {key[2]}"
