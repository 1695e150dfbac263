"""Decides which taints must be removed or weakened, or may stay longer. No budget limits this. Pure."""

from dataclasses import replace

from ingero_operator.api.base import seconds
from ingero_operator.api.v1alpha1 import Mode, Taints
from ingero_operator.taints.model import ClusterObservation, Step
from ingero_operator.taints.nodes import EFFECTS, STRENGTH, NodeView, StragglerTaint
from ingero_operator.taints.state import OVERRIDDEN, NodeTaintRecord, TaintState


def removals(
    policy: Taints,
    observed: ClusterObservation,
    state: TaintState,
    trusted: bool,
    confirmed: frozenset[str],
    now: float,
) -> list[Step]:
    """Steps that remove, weaken or renew taints."""
    steps = []
    for node in sorted(observed.nodes.values(), key=lambda item: item.name):
        taint, record = node.taint, state.records.get(node.name)
        known = record.verdict if record is not None else ""
        if record is not None and record.releasing == OVERRIDDEN and known in node.strays:
            reason = OVERRIDDEN
        elif taint is None or taint.owner != observed.owner:
            continue
        else:
            reason = _reason_to_go(policy, observed, state, node, taint, record, trusted, now)
        if reason or taint is None:
            steps.append(Step(verb="remove", node=node.name, uid=node.uid, reason=reason, removed=known))
            continue
        ceiling = EFFECTS[policy.mode]
        if STRENGTH[taint.effect] > STRENGTH[ceiling]:
            weaker = replace(taint, effect=ceiling)
            steps.append(Step(verb="lower", node=node.name, uid=node.uid, reason="ModeLowered", taint=weaker))
        elif now >= taint.expires - seconds(policy.ttl) / 4 and node.name in confirmed and not taint.probation:
            longer = replace(taint, expires=now + seconds(policy.ttl))
            steps.append(Step(verb="renew", node=node.name, uid=node.uid, reason="StillConfirmed", taint=longer))
        elif now >= taint.expires and taint.effect == "NoSchedule" and not taint.probation:
            weaker = replace(
                taint, effect="PreferNoSchedule", probation=True, expires=now + seconds(policy.probation)
            )
            steps.append(Step(verb="lower", node=node.name, uid=node.uid, reason="Probation", taint=weaker))
    return steps


def _reason_to_go(
    policy: Taints,
    observed: ClusterObservation,
    state: TaintState,
    node: NodeView,
    taint: StragglerTaint,
    record: NodeTaintRecord | None,
    trusted: bool,
    now: float,
) -> str:
    if observed.deleting:
        return "Deleted"
    if policy.mode is Mode.OBSERVE:
        return "ModeLowered"
    if taint.node_uid != node.uid:
        return "OtherMachine"
    if node.excluded or node.control_plane or node.name not in observed.watched:
        return "Excluded"
    if record is None or not record.verdict:
        return OVERRIDDEN
    healthy = state.healthy.get(node.name)
    if trusted and healthy is not None and now - healthy >= seconds(policy.recover_for):
        return "Recovered"
    over = now >= taint.expires and (taint.effect != "NoSchedule" or taint.probation)
    still = node.name in state.accused and not taint.probation and trusted
    return "Expired" if over and not still else ""


def note_releases(state: TaintState, steps: list[Step]) -> TaintState:
    """Record the taint that is about to be weakened, so that a later process does not take it for a user's change."""
    records = dict(state.records)
    for step in steps:
        record = records.get(step.node)
        if record is None:
            continue
        if step.verb == "remove" and record.verdict:
            records[step.node] = replace(record, releasing=step.reason)
        elif step.verb == "lower" and step.taint:
            records[step.node] = replace(record, effect=step.taint.effect)
    return replace(state, records=records)
