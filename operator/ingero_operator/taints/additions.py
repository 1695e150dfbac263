"""Decides which node may be tainted now, and which policy check prevents each of the others. Pure."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ingero_operator.api.base import seconds
from ingero_operator.api.v1alpha1 import Mode, Taints
from ingero_operator.conditions import Condition
from ingero_operator.taints.model import Accused, CheckResult, ClusterObservation, Step
from ingero_operator.taints.nodes import EFFECTS, STRENGTH, ZONE, NodeView, StragglerTaint
from ingero_operator.taints.state import DAY, MAX_RECORDS, Streak, TaintState
from ingero_operator.taints.tracking import may_be_tainted


@dataclass(frozen=True, kw_only=True)
class CheckInputs:
    """Inputs that the checks of all accused nodes share."""

    policy: Taints
    observed: ClusterObservation
    state: TaintState
    allowed: Condition
    """Whether the checks of the whole cluster pass, besides the mode."""
    accused: Mapping[str, Accused]
    confirmed: frozenset[str]
    base: list[NodeView]
    """Nodes on which budget and minimum of healthy nodes are computed."""
    tainted: Mapping[str, NodeView]
    """Nodes that carry the FleetCluster's taint."""
    budget: int
    leaving: frozenset[str]
    """Nodes whose taint is removed or changed in this decision."""
    now: float


def additions(inputs: CheckInputs) -> tuple[Step | None, tuple[CheckResult, ...]]:
    """At most one new or stronger taint, and a result for every accused node."""
    policy, accused, tainted = inputs.policy, inputs.accused, inputs.tainted
    if not accused:
        return None, ()
    capacity = _Capacity(inputs)
    checks: list[CheckResult] = []
    chosen: Step | None = None

    def order(name: str) -> tuple[float, float, str]:
        streak = inputs.state.accused.get(name)
        return (streak.since if streak else math.inf, _standing(accused[name]), name)

    for name in sorted(accused, key=order):
        node, current = inputs.observed.nodes.get(name), tainted.get(name)
        if node is None:
            checks.append(CheckResult(node=name, check="Unknown", message="there is no Node of this name"))
            continue
        if current is not None and current.taint is not None and not _may_rise(inputs, name, current.taint):
            checks.append(CheckResult(node=name, check="Tainted", message=current.taint.effect or "annotated"))
            continue
        check = _failed_check(inputs, node, accused[name]) or capacity.first_failed(node, current)
        if check is None and inputs.now - inputs.state.last_taint < seconds(policy.interval):
            check = "Rate", "one node at a time: waiting for spec.taints.interval"
        if check is None and chosen is not None:
            check = "Rate", f"{chosen.node} goes first"
        if check is None and policy.mode is Mode.OBSERVE:
            check = "Observing", "every other check passes: a mode that taints would act now"
        if check is None:
            chosen = _step(inputs, node, accused[name], current)
            check = "Next", chosen.taint.effect if chosen.taint and chosen.taint.effect else "annotation"
        checks.append(CheckResult(node=name, check=check[0], message=check[1]))
    return chosen, tuple(checks)


def _may_rise(inputs: CheckInputs, name: str, taint: StragglerTaint) -> bool:
    return (
        name in inputs.confirmed
        and name not in inputs.leaving
        and STRENGTH[taint.effect] < STRENGTH[EFFECTS[inputs.policy.mode]]
        and not taint.probation
    )


def _step(inputs: CheckInputs, node: NodeView, item: Accused, current: NodeView | None) -> Step:
    policy, streak = inputs.policy, inputs.state.accused[node.name]
    effect, expires = EFFECTS[policy.mode], inputs.now + seconds(policy.ttl)
    if current is not None and current.taint is not None:
        stronger = replace(current.taint, effect=effect, expires=expires)
        return Step(verb="raise", node=node.name, uid=node.uid, reason="Confirmed", taint=stronger)
    taint = StragglerTaint(
        owner=inputs.observed.owner,
        verdict=_verdict(inputs.observed.owner, node, streak),
        effect=effect,
        since=inputs.now,
        expires=expires,
        node_uid=node.uid,
        score=item.score,
        threshold=item.threshold,
        severity=item.severity,
        kind=item.kind,
        windows=streak.windows,
    )
    return Step(verb="add", node=node.name, uid=node.uid, reason="Confirmed", taint=taint)


def _verdict(owner: str, node: NodeView, streak: Streak | None) -> str:
    """Identity of one uninterrupted accusation of one machine; empty without one."""
    if streak is None:
        return ""
    return hashlib.sha256(f"{owner}/{node.uid}/{streak.since:.3f}".encode()).hexdigest()[:8]


def _failed_check(inputs: CheckInputs, node: NodeView, item: Accused) -> tuple[str, str] | None:
    """The first failing check of the node itself."""
    policy, observed, state, now = inputs.policy, inputs.observed, inputs.state, inputs.now
    record = state.records.get(node.name)
    streak = state.accused.get(node.name)
    if not item.active:
        return "NotActive", "the node is not active; only active nodes are judged"
    if item.several_agents:
        return "SeveralAgents", "several agents report as this node; give each its own node id, or stop all but one"
    if not may_be_tainted(policy, item):
        return (
            "SlowFromStart",
            "slower than its peers from the start: a fault or a role; see spec.taints.slowFromStart",
        )
    if item.since is not None and item.since < node.created:
        return "Identity", "the verdict is older than this machine"
    if node.foreign or (node.taint is not None and node.taint.owner != observed.owner):
        return "Foreign", "the node carries a straggler taint of another writer"
    if node.name in observed.refused:
        return "Refused", "it was refused recently and is tried again; its reason was reported"
    if node.name in observed.overlap:
        return "Overlap", f"{observed.overlap[node.name]} watches the node too"
    for bad, reason, message in (
        (not node.gpu, "NoGpu", "the node has no GPU"),
        (node.control_plane, "ControlPlane", "the node belongs to the control plane"),
        (node.excluded, "Excluded", "the node carries the label ingero.io/exclude"),
        (node.deleting, "Deleting", "the node is being deleted"),
        (not node.ready, "NotReady", "the node is not ready"),
        (node.cordoned, "Cordoned", "the node is cordoned already"),
        (bool(node.disrupted), "Disrupted", f"the node is about to be removed: {node.disrupted}"),
        (bool(node.remediated), "Remediated", f"another controller works on the node: {node.remediated}"),
        (
            now - node.created < seconds(policy.min_node_age),
            "TooYoung",
            "the node is younger than spec.taints.minNodeAge",
        ),
    ):
        if bad:
            return reason, message
    if record is not None and now < record.override_cooldown_until:
        return "HandsOff", "another writer removed the taint; spec.taints.handsOff has not passed"
    if record is not None and record.released and now - record.released < seconds(policy.quiet):
        return "Quiet", "the node was released recently; spec.taints.quiet has not passed"
    verdict = _verdict(observed.owner, node, streak)
    if record is not None and sum(now - time < DAY for time in record.earlier(verdict)) >= policy.max_per_day:
        return "Flapping", "tainted too often in 24 hours: please check the node"
    if node.name not in inputs.confirmed:
        windows = streak.windows if streak else 0
        return "Confirming", f"{min(windows, policy.confirm_windows)} of {policy.confirm_windows} windows"
    return None


class _Capacity:
    """The limits, and whether they allow one more taint."""

    def __init__(self, inputs: CheckInputs) -> None:
        tainted, policy = inputs.tainted.values(), inputs.policy
        self._inputs = inputs
        self._zones = Counter(node.labels.get(ZONE, "") for node in tainted)
        self._domains = Counter(domain for node in tainted if (domain := node.labels.get(policy.domain_label, "")))
        self._healthy = sum(_schedulable(node, inputs.tainted) for node in inputs.base)
        self._least = math.ceil(policy.min_healthy_percent * len(inputs.base) / 100)

    def first_failed(self, node: NodeView, current: NodeView | None) -> tuple[str, str] | None:
        """The first limit that a node would exceed."""
        inputs = self._inputs
        if not inputs.allowed.holds and inputs.allowed.reason != "Overlap":
            return inputs.allowed.reason, inputs.allowed.message
        full = self._full(node) if current is None else None
        if full is not None:
            return full
        left = self._healthy - (
            0 if current is not None and current.taint is not None and current.taint.effect else 1
        )
        if inputs.policy.mode is not Mode.ANNOTATE and left < self._least:
            message = (
                f"{self._healthy} of {len(inputs.base)} eligible nodes are healthy and {self._least} must stay so"
            )
            return "MinHealthy", message
        return None

    def _full(self, node: NodeView) -> tuple[str, str] | None:
        budget, label, records = self._inputs.budget, self._inputs.policy.domain_label, self._inputs.state.records
        if len(self._inputs.tainted) >= budget:
            return "Budget", f"{len(self._inputs.tainted)} of {budget} nodes are tainted"
        domain, zone = node.labels.get(label, ""), node.labels.get(ZONE, "")
        if domain and self._domains[domain] >= 1:
            return "Domain", f"another node of {label}={domain} is tainted"
        if zone and self._zones[zone] >= math.ceil(budget / 2):
            return "Zone", f"zone {zone} has its share of the budget"
        if len(records) >= MAX_RECORDS and node.name not in records:
            return "RecordFull", "too many nodes to remember; please check the cluster"
        return None


def _standing(item: Accused) -> float:
    """The order in which nodes are chosen, worst first."""
    return -item.severity if item.severity is not None else (item.score or 0.0)


def _schedulable(node: NodeView, tainted: Mapping[str, NodeView]) -> bool:
    current = node.name in tainted and node.taint is not None and bool(node.taint.effect)
    return (
        node.ready
        and not node.cordoned
        and not node.deleting
        and not node.disrupted
        and not node.foreign
        and not current
    )
