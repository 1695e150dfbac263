"""Which node may be marked now, and the rail that stops each of the others. Pure."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ingero_operator.conditions import Finding
from ingero_operator.taints.facts import Accused, Line, Rails, Step, World
from ingero_operator.taints.memory import DAY, MAX_RECORDS, Memory, Streak
from ingero_operator.taints.nodes import EFFECTS, STRENGTH, ZONE, Mark, NodeView


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What one look at all accused nodes has in common."""

    rails: Rails
    world: World
    memory: Memory
    allowed: Finding
    accused: Mapping[str, Accused]
    confirmed: frozenset[str]
    base: list[NodeView]
    """Nodes that count for budget and floor."""
    marked: Mapping[str, NodeView]
    """Nodes that carry our mark."""
    budget: int
    leaving: frozenset[str]
    """Nodes whose mark goes or changes in this decision."""
    now: float


def additions(scene: Scene) -> tuple[Step | None, tuple[Line, ...]]:
    """At most one new or stronger mark, and a line for every accused node."""
    rails, accused, marked = scene.rails, scene.accused, scene.marked
    if not accused:
        return None, ()
    room = _Room(scene)
    lines: list[Line] = []
    chosen: Step | None = None

    def order(name: str) -> tuple[float, float, str]:
        streak = scene.memory.accused.get(name)
        return (streak.since if streak else math.inf, _standing(accused[name]), name)

    for name in sorted(accused, key=order):
        node, held = scene.world.nodes.get(name), marked.get(name)
        if node is None:
            lines.append(Line(node=name, rail="Unknown", message="there is no Node of this name"))
            continue
        if held is not None and held.mark is not None and not _may_rise(scene, name, held.mark):
            lines.append(Line(node=name, rail="Held", message=held.mark.effect or "annotated"))
            continue
        rail = _rail(scene, node, accused[name]) or room.stops(node, held)
        if rail is None and scene.now - scene.memory.last_taint < rails.interval:
            rail = "Rate", "one node at a time: waiting for spec.taints.interval"
        if rail is None and chosen is not None:
            rail = "Rate", f"{chosen.node} goes first"
        if rail is None:
            chosen = _step(rails, scene.world, node, accused[name], held, scene.memory.accused[name], scene.now)
            rail = "Next", chosen.mark.effect if chosen.mark and chosen.mark.effect else "annotation"
        lines.append(Line(node=name, rail=rail[0], message=rail[1]))
    return chosen, tuple(lines)


def _may_rise(scene: Scene, name: str, mark: Mark) -> bool:
    return (
        name in scene.confirmed
        and name not in scene.leaving
        and STRENGTH[mark.effect] < STRENGTH[EFFECTS[scene.rails.mode]]
        and not mark.probation
    )


def _step(
    rails: Rails, world: World, node: NodeView, item: Accused, held: NodeView | None, streak: Streak, now: float
) -> Step:
    if held is not None and held.mark is not None:
        stronger = replace(held.mark, effect=EFFECTS[rails.mode], expires=now + rails.ttl)
        return Step(verb="raise", node=node.name, uid=node.uid, reason="Confirmed", mark=stronger)
    identity = f"{world.owner}/{node.uid}/{streak.since:.3f}"
    mark = Mark(
        owner=world.owner,
        verdict=hashlib.sha256(identity.encode()).hexdigest()[:8],
        effect=EFFECTS[rails.mode],
        since=now,
        expires=now + rails.ttl,
        node_uid=node.uid,
        score=item.score,
        threshold=item.threshold,
        severity=item.severity,
        windows=streak.windows,
    )
    return Step(verb="add", node=node.name, uid=node.uid, reason="Confirmed", mark=mark)


def _rail(scene: Scene, node: NodeView, item: Accused) -> tuple[str, str] | None:
    """The first rail of the node itself that stops it."""
    rails, world, memory, now = scene.rails, scene.world, scene.memory, scene.now
    record = memory.records.get(node.name)
    streak = memory.accused.get(node.name)
    if not item.active:
        return "NotActive", "the node is not active; only active nodes are judged"
    if item.since is not None and item.since < node.created:
        return "Identity", "the verdict is older than this machine"
    if node.foreign or (node.mark is not None and node.mark.owner != world.owner):
        return "Foreign", "somebody else's straggler mark is on the node"
    if node.name in world.refused:
        return "Refused", "the API server refused the mark a moment ago; an Event has its words"
    if node.name in world.overlap:
        return "Overlap", f"{world.overlap[node.name]} watches the node too"
    for bad, reason, message in (
        (not node.gpu, "NoGpu", "the node has no GPU"),
        (node.control_plane, "ControlPlane", "the node belongs to the control plane"),
        (node.excluded, "Excluded", "the node carries the label ingero.io/exclude"),
        (node.deleting, "Deleting", "the node is being deleted"),
        (not node.ready, "NotReady", "the node is not ready"),
        (node.cordoned, "Cordoned", "the node is cordoned already"),
        (bool(node.disrupted), "Disrupted", f"the node is on its way out: {node.disrupted}"),
        (bool(node.remediated), "Remediated", f"another controller works on the node: {node.remediated}"),
        (now - node.created < rails.min_node_age, "TooYoung", "the node is younger than spec.taints.minNodeAge"),
    ):
        if bad:
            return reason, message
    if record is not None and now < record.hands_off_until:
        return "HandsOff", "somebody removed our mark; spec.taints.handsOff has not passed"
    if record is not None and record.released and now - record.released < rails.quiet:
        return "Quiet", "the node was released a while ago; spec.taints.quiet has not passed"
    if record is not None and sum(now - time < DAY for time in record.tainted) >= rails.max_per_day:
        return "Flapping", "tainted too often in 24 hours: a person should look at it"
    if node.name not in scene.confirmed:
        windows = streak.windows if streak else 0
        return "Confirming", f"{min(windows, rails.confirm_windows)} of {rails.confirm_windows} windows"
    return None


class _Room:
    """Whether there is room for one more mark."""

    def __init__(self, scene: Scene) -> None:
        marked, rails = scene.marked.values(), scene.rails
        self._scene = scene
        self._zones = Counter(node.labels.get(ZONE, "") for node in marked)
        self._domains = Counter(domain for node in marked if (domain := node.labels.get(rails.domain_label, "")))
        self._healthy = sum(_schedulable(node, scene.marked) for node in scene.base)
        self._least = math.ceil(rails.min_healthy_percent * len(scene.base) / 100)

    def stops(self, node: NodeView, held: NodeView | None) -> tuple[str, str] | None:
        """The first rail of the cluster that stops a node."""
        scene = self._scene
        if not scene.allowed.holds and scene.allowed.reason != "Overlap":
            return scene.allowed.reason, scene.allowed.message
        full = self._full(node) if held is None else None
        if full is not None:
            return full
        leaves = EFFECTS[scene.rails.mode] and not (held is not None and held.mark is not None and held.mark.effect)
        if leaves and self._healthy - 1 < self._least:
            words = f"{self._healthy} of {len(scene.base)} eligible nodes are well and {self._least} must stay so"
            return "MinHealthy", words
        return None

    def _full(self, node: NodeView) -> tuple[str, str] | None:
        budget, label, records = self._scene.budget, self._scene.rails.domain_label, self._scene.memory.records
        if len(self._scene.marked) >= budget:
            return "Budget", f"{len(self._scene.marked)} of {budget} nodes are held"
        domain, zone = node.labels.get(label, ""), node.labels.get(ZONE, "")
        if domain and self._domains[domain] >= 1:
            return "Domain", f"another node of {label}={domain} is held"
        if zone and self._zones[zone] >= math.ceil(budget / 2):
            return "Zone", f"zone {zone} has its share of the budget"
        if len(records) >= MAX_RECORDS and node.name not in records:
            return "RecordFull", "too many nodes to remember; a person should look at the cluster"
        return None


def _standing(item: Accused) -> float:
    """How well a node does, for choosing the worst first."""
    return -item.severity if item.severity is not None else (item.score or 0.0)


def _schedulable(node: NodeView, marked: Mapping[str, NodeView]) -> bool:
    held = node.name in marked and node.mark is not None and bool(node.mark.effect)
    return (
        node.ready
        and not node.cordoned
        and not node.deleting
        and not node.disrupted
        and not node.foreign
        and not held
    )
