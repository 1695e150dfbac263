"""The policy: which nodes may be tainted now, which must be released, and what prevents the rest. Pure.

A taint is added only when every check passes. It is removed as soon as there is a reason to remove it; no budget
limits removals. One call decides from the present observation; nothing is replayed.
"""

from dataclasses import replace
from typing import Final

from ingero_operator.api.base import seconds
from ingero_operator.api.v1alpha1 import Mode, Taints
from ingero_operator.conditions import Condition, no, unknown, yes
from ingero_operator.taints.additions import CheckInputs, additions
from ingero_operator.taints.model import ClusterObservation, Decision, Evidence, is_stale
from ingero_operator.taints.nodes import NodeView
from ingero_operator.taints.removals import note_releases, removals
from ingero_operator.taints.state import TaintState
from ingero_operator.taints.tracking import count_windows, is_confirmed, match_records, may_be_tainted

ALLOWED: Final = "TaintingAllowed"
_OBSERVING: Final = no(ALLOWED, "Observing", "spec.taints.mode is Observe: stragglers are shown and left alone")


def trustworthy(policy: Taints, evidence: Evidence | None, now: float) -> Condition:
    """Whether the operator may act on the evidence; if not, why."""
    if evidence is None:
        return unknown(ALLOWED, "NoEvidence", "Fleet has not answered yet; nothing is tainted")
    if is_stale(evidence, now):
        return no(ALLOWED, "StaleEvidence", "Fleet's statistics are old; nothing is tainted on old evidence")
    if evidence.log_problem:
        return no(ALLOWED, "LogNotReady", f"nothing is tainted: {evidence.log_problem}")
    if not evidence.quorum:
        return no(ALLOWED, "NoQuorum", "too few active nodes to compare with each other")
    if evidence.panic:
        return no(ALLOWED, "Panic", "too large a share of the cluster straggles to be a fault of the nodes")
    if evidence.coverage_low:
        return no(ALLOWED, "LowCoverage", "too few of the expected nodes report")
    if not evidence.threshold:
        return no(ALLOWED, "NoThreshold", "Fleet has published no threshold")
    return yes(ALLOWED, "Allowed", "every check of the cluster passes")


def decide(policy: Taints, observed: ClusterObservation, state: TaintState, now: float) -> Decision:
    """Make one decision."""
    state, overrides, found_done = match_records(policy, observed, state, now)
    trust = trustworthy(policy, observed.evidence, now)
    state = count_windows(observed, state, trust.holds, now)
    evidence = observed.evidence
    accused = {
        name: item for name, item in (evidence.accused if evidence else {}).items() if name in observed.watched
    }
    confirmed = [name for name in accused if is_confirmed(policy, accused[name], state.accused.get(name), now)]
    leaving = removals(policy, observed, state, trust.holds, frozenset(confirmed), now)
    state = note_releases(state, leaving)
    base = [node for node in observed.nodes.values() if node.name in observed.watched and _countable(node)]
    budget = min(policy.budget.max_nodes, policy.budget.max_percent * len(base) // 100)
    tainted = {
        node.name: node
        for node in observed.nodes.values()
        if node.taint is not None and node.taint.owner == observed.owner
    }
    candidates = [name for name, item in accused.items() if may_be_tainted(policy, item) and name not in tainted]
    if trust.holds and budget and len(candidates) > 2 * budget:
        state = replace(state, storm_until=now + seconds(policy.storm_cooldown))
    limits = _limits(policy, observed, state, trust, budget, len(candidates), now)
    step, checks = additions(
        CheckInputs(
            policy=policy, observed=observed, state=state, allowed=limits, accused=accused,
            confirmed=frozenset(confirmed), base=base, tainted=tainted, budget=budget,
            leaving=frozenset(item.node for item in leaving), now=now,
        )
    )  # fmt: skip
    return Decision(
        state=state,
        steps=(*leaving, *((step,) if step else ())),
        allowed=_OBSERVING if policy.mode is Mode.OBSERVE else limits,
        checks=checks,
        used=len(tainted),
        budget=budget,
        confirmed=len(confirmed),
        accused=tuple(sorted(accused)),
        overrides=overrides,
        found_done=found_done,
    )


def _countable(node: NodeView) -> bool:
    return node.gpu and not node.control_plane and not node.excluded


def _limits(
    policy: Taints,
    observed: ClusterObservation,
    state: TaintState,
    trust: Condition,
    budget: int,
    candidates: int,
    now: float,
) -> Condition:
    """The checks of the whole cluster besides the mode, in the order in which users should see them."""
    if observed.deleting:
        return no(ALLOWED, "Deleting", "the resource is being deleted: taints are only removed")
    if observed.paused:
        return no(ALLOWED, "Paused", f"paused: {observed.paused}")
    if observed.node_policy_missing:
        return no(ALLOWED, "NodePolicyMissing", observed.node_policy_missing)
    if not trust.holds:
        return trust
    if budget == 0:
        limits = f"min({policy.budget.max_nodes}, {policy.budget.max_percent} % of the eligible nodes rounded down)"
        return no(ALLOWED, "NoBudget", f"the budget is 0: {limits}")
    if candidates > 2 * budget:
        return no(ALLOWED, "Storm", f"{candidates} nodes at once point to one common cause; none is tainted")
    if now < state.storm_until:
        return no(ALLOWED, "Storm", "many nodes straggled at once a while ago; waiting for spec.taints.stormCooldown")
    if observed.overlap:
        name, other = min(observed.overlap.items())
        return no(ALLOWED, "Overlap", f"{other} watches {name} and others too; neither of the two taints such nodes")
    return trust
