"""The rails: which node may be marked now, which must be released, and what stops the rest. Pure.

A mark is added only when every rail holds; it is removed whenever a reason to remove it is there, outside of every
budget. One call decides from what is seen now; nothing is replayed.
"""

from dataclasses import replace
from typing import Final

from ingero_operator.api.v1alpha1 import Mode
from ingero_operator.conditions import Finding, no, unknown, yes
from ingero_operator.taints.additions import Scene, additions
from ingero_operator.taints.counts import compared, counted, is_confirmed
from ingero_operator.taints.facts import Decision, Evidence, Rails, World, is_stale
from ingero_operator.taints.memory import Memory
from ingero_operator.taints.nodes import NodeView
from ingero_operator.taints.removals import noted, removals

ALLOWED: Final = "TaintingAllowed"


def trustworthy(rails: Rails, evidence: Evidence | None, now: float) -> Finding:
    """Whether the evidence may be acted on; if not, why."""
    if evidence is None:
        return unknown(ALLOWED, "NoEvidence", "Fleet has not answered yet; nothing is tainted")
    if is_stale(evidence, now, rails.stale_intervals):
        return no(ALLOWED, "StaleEvidence", "Fleet's statistics are old; nothing is tainted on old evidence")
    if not evidence.quorum:
        return no(ALLOWED, "NoQuorum", "too few active nodes to compare with each other")
    if evidence.panic:
        return no(
            ALLOWED, "Panic", "too large a share of the cluster straggles: the picture is at fault, not the nodes"
        )
    if evidence.coverage_low:
        return no(ALLOWED, "LowCoverage", "too few of the expected nodes report")
    if not evidence.threshold:
        return no(ALLOWED, "NoThreshold", "Fleet has published no threshold")
    return yes(ALLOWED, "Allowed", "every rail of the cluster holds")


def decide(rails: Rails, world: World, memory: Memory, now: float) -> Decision:
    """One decision."""
    memory, overrides, settled = compared(rails, world, memory, now)
    trust = trustworthy(rails, world.evidence, now)
    memory = counted(world, memory, trust.holds, now)
    evidence = world.evidence
    accused = {name: item for name, item in (evidence.accused if evidence else {}).items() if name in world.watched}
    confirmed = [name for name in accused if is_confirmed(rails, accused[name], memory.accused.get(name), now)]
    leaving = removals(rails, world, memory, trust.holds, frozenset(confirmed), now)
    memory = noted(memory, leaving)
    base = [node for node in world.nodes.values() if node.name in world.watched and _countable(node)]
    budget = min(rails.max_nodes, rails.max_percent * len(base) // 100)
    marked = {
        node.name: node for node in world.nodes.values() if node.mark is not None and node.mark.owner == world.owner
    }
    candidates = [name for name, item in accused.items() if item.active and name not in marked]
    if trust.holds and budget and len(candidates) > 2 * budget:
        memory = replace(memory, storm_until=now + rails.storm_cooldown)
    allowed = _allowed(rails, world, memory, trust, budget, len(candidates), now)
    step, lines = additions(
        Scene(
            rails=rails, world=world, memory=memory, allowed=allowed, accused=accused, confirmed=frozenset(confirmed),
            base=base, marked=marked, budget=budget, leaving=frozenset(item.node for item in leaving), now=now,
        )
    )  # fmt: skip
    return Decision(
        memory=memory,
        steps=(*leaving, *((step,) if step else ())),
        allowed=allowed,
        lines=lines,
        used=len(marked),
        budget=budget,
        confirmed=len(confirmed),
        accused=len(accused),
        overrides=overrides,
        settled=settled,
    )


def _countable(node: NodeView) -> bool:
    return node.gpu and not node.control_plane and not node.excluded


def _allowed(
    rails: Rails, world: World, memory: Memory, trust: Finding, budget: int, candidates: int, now: float
) -> Finding:
    """The rails of the whole cluster, in the order in which a person should read them."""
    if rails.mode is Mode.OBSERVE:
        return no(ALLOWED, "Observing", "spec.taints.mode is Observe: stragglers are shown and left alone")
    if world.deleting:
        return no(ALLOWED, "Deleting", "the resource is being deleted: marks are only removed")
    if world.paused:
        return no(ALLOWED, "Paused", f"paused: {world.paused}")
    if world.unguarded:
        return no(ALLOWED, "Unguarded", world.unguarded)
    if not trust.holds:
        return trust
    if budget == 0:
        return no(
            ALLOWED, "NoBudget",
            f"the budget is 0: min({rails.max_nodes}, {rails.max_percent} % of the eligible nodes rounded down)",
        )  # fmt: skip
    if candidates > 2 * budget:
        return no(ALLOWED, "Storm", f"{candidates} nodes at once point to one common cause; none is tainted")
    if now < memory.storm_until:
        return no(ALLOWED, "Storm", "many nodes straggled at once a while ago; waiting for spec.taints.stormCooldown")
    if world.overlap:
        name, other = min(world.overlap.items())
        return no(ALLOWED, "Overlap", f"{other} watches {name} and others too; neither of the two taints such nodes")
    return trust
