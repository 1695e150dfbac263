"""Which marks must go, become weaker, or may stay longer: never held up by a budget. Pure."""

from dataclasses import replace

from ingero_operator.api.v1alpha1 import Mode
from ingero_operator.taints.facts import Rails, Step, World
from ingero_operator.taints.memory import OVERRIDDEN, Memory, Record
from ingero_operator.taints.nodes import EFFECTS, STRENGTH, Mark, NodeView


def removals(
    rails: Rails, world: World, memory: Memory, trusted: bool, confirmed: frozenset[str], now: float
) -> list[Step]:
    """Everything that must go, or become weaker, or may stay longer."""
    steps = []
    for node in sorted(world.nodes.values(), key=lambda item: item.name):
        mark, record = node.mark, memory.records.get(node.name)
        if record is not None and record.releasing == OVERRIDDEN and record.verdict in node.strays:
            steps.append(Step(verb="remove", node=node.name, uid=node.uid, reason=OVERRIDDEN))
            continue
        if mark is None or mark.owner != world.owner:
            continue
        reason = _reason_to_go(rails, world, memory, node, mark, record, trusted, now)
        if reason:
            steps.append(Step(verb="remove", node=node.name, uid=node.uid, reason=reason))
            continue
        ceiling = EFFECTS[rails.mode]
        if STRENGTH[mark.effect] > STRENGTH[ceiling]:
            weaker = replace(mark, effect=ceiling)
            steps.append(Step(verb="lower", node=node.name, uid=node.uid, reason="ModeLowered", mark=weaker))
        elif now >= mark.expires - rails.ttl / 4 and node.name in confirmed and not mark.probation:
            longer = replace(mark, expires=now + rails.ttl)
            steps.append(Step(verb="renew", node=node.name, uid=node.uid, reason="StillConfirmed", mark=longer))
        elif now >= mark.expires and mark.effect == "NoSchedule" and not mark.probation:
            weaker = replace(mark, effect="PreferNoSchedule", probation=True, expires=now + rails.probation)
            steps.append(Step(verb="lower", node=node.name, uid=node.uid, reason="Probation", mark=weaker))
    return steps


def _reason_to_go(
    rails: Rails,
    world: World,
    memory: Memory,
    node: NodeView,
    mark: Mark,
    record: Record | None,
    trusted: bool,
    now: float,
) -> str:
    if world.deleting:
        return "Deleted"
    if rails.mode is Mode.OBSERVE:
        return "ModeLowered"
    if mark.node_uid != node.uid:
        return "OtherMachine"
    if node.excluded or node.control_plane or node.name not in world.watched:
        return "Excluded"
    if record is None or not record.verdict:
        return OVERRIDDEN
    well = memory.well.get(node.name)
    if trusted and well is not None and now - well >= rails.recover_for:
        return "Recovered"
    over = now >= mark.expires and (mark.effect != "NoSchedule" or mark.probation)
    still = node.name in memory.accused and not mark.probation and trusted
    return "Expired" if over and not still else ""


def noted(memory: Memory, steps: list[Step]) -> Memory:
    """Write down what is about to be weakened, so that a restart in between does not take it for somebody's no."""
    records = dict(memory.records)
    for step in steps:
        record = records.get(step.node)
        if record is None:
            continue
        if step.verb == "remove" and record.verdict:
            records[step.node] = replace(record, releasing=step.reason)
        elif step.verb == "lower" and step.mark:
            records[step.node] = replace(record, effect=step.mark.effect)
    return replace(memory, records=records)
