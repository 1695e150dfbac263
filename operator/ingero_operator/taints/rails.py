"""The rails: which node may be marked now, which must be released, and what stops the rest. Pure.

A mark is added only when every rail holds; it is removed whenever a reason to remove it is there, outside of every
budget. One call decides from what is seen now; nothing is replayed.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ingero_operator.api.v1alpha1 import Mode
from ingero_operator.conditions import Finding, no, unknown, yes
from ingero_operator.taints.memory import DAY, MAX_RECORDS, Memory, Record, Streak
from ingero_operator.taints.nodes import EFFECTS, STRENGTH, ZONE, Mark, NodeView

ALLOWED: Final = "TaintingAllowed"


@dataclass(frozen=True, kw_only=True)
class Rails:
    """The settings of the rails; times in seconds."""

    mode: Mode = Mode.OBSERVE
    max_nodes: int = 2
    max_percent: int = 10
    confirm_for: float = 600.0
    confirm_windows: int = 6
    recover_for: float = 600.0
    min_healthy_percent: int = 80
    interval: float = 300.0
    storm_cooldown: float = 900.0
    ttl: float = DAY
    probation: float = 21_600.0
    quiet: float = 1_800.0
    max_per_day: int = 3
    hands_off: float = DAY
    min_node_age: float = 1_800.0
    domain_label: str = "nvidia.com/gpu.clique"
    stale_intervals: float = 3.0


@dataclass(frozen=True, kw_only=True)
class Accused:
    """What Fleet says about one node that it calls a straggler."""

    active: bool
    since: float | None = None
    windows: int = 0
    score: float | None = None
    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Fleet's latest answer. `received`: when, by our clock, its statistics were new."""

    tick: str
    received: float
    interval: float = 10.0
    quorum: bool = True
    panic: bool = False
    coverage_low: bool = False
    threshold: bool = True
    accused: Mapping[str, Accused] = field(default_factory=dict)
    well: frozenset[str] = frozenset()
    """Nodes known to be active and not accused in these statistics."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything that is seen at one moment."""

    owner: str
    """Uid of the FleetCluster."""
    nodes: Mapping[str, NodeView]
    """Nodes that the FleetCluster watches, and any other that it has marked or remembers."""
    watched: frozenset[str]
    """Names of the nodes that it watches."""
    evidence: Evidence | None = None
    overlap: Mapping[str, str] = field(default_factory=dict)
    """Nodes that another FleetCluster watches too, with its name."""
    paused: str = ""
    """Who asks for a pause."""
    deleting: bool = False


Verb = Literal["add", "raise", "lower", "renew", "remove"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One write to one node."""

    verb: Verb
    node: str
    uid: str
    reason: str
    mark: Mark | None = None
    """The mark as it shall be; nothing to remove it."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One accused node, and the rail that stops it."""

    node: str
    rail: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Override:
    """Somebody took our mark away."""

    node: str
    uid: str
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, what to remember, and what to show."""

    memory: Memory
    steps: tuple[Step, ...]
    allowed: Finding
    lines: tuple[Line, ...]
    used: int
    budget: int
    confirmed: int
    accused: int
    overrides: tuple[Override, ...] = ()
    settled: tuple[Step, ...] = ()
    """Steps that an earlier process wrote without living to tell."""


def trustworthy(rails: Rails, evidence: Evidence | None, now: float) -> Finding:
    """Whether the evidence may be acted on; if not, why."""
    if evidence is None:
        return unknown(ALLOWED, "NoEvidence", "Fleet has not answered yet; nothing is tainted")
    age = now - evidence.received
    if age >= rails.stale_intervals * evidence.interval:
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
    memory, overrides, settled = _compared(rails, world, memory, now)
    trust = trustworthy(rails, world.evidence, now)
    memory = _counted(world, memory, trust.holds, now)
    evidence = world.evidence
    accused = {name: item for name, item in (evidence.accused if evidence else {}).items() if name in world.watched}
    confirmed = [name for name in accused if is_confirmed(rails, accused[name], memory.accused.get(name), now)]
    removals = _removals(rails, world, memory, trust.holds, frozenset(confirmed), now)
    memory = _noted(memory, removals)
    base = [node for node in world.nodes.values() if node.name in world.watched and _countable(node)]
    budget = min(rails.max_nodes, rails.max_percent * len(base) // 100)
    marked = {
        node.name: node for node in world.nodes.values() if node.mark is not None and node.mark.owner == world.owner
    }
    candidates = [name for name, item in accused.items() if item.active and name not in marked]
    if trust.holds and budget and len(candidates) > 2 * budget:
        memory = replace(memory, storm_until=now + rails.storm_cooldown)
    allowed = _allowed(rails, world, memory, trust, budget, len(candidates), now)
    step, lines = _additions(
        rails, world, memory, allowed, accused, frozenset(confirmed), base, marked, budget, removals, now
    )
    return Decision(
        memory=memory,
        steps=(*removals, *((step,) if step else ())),
        allowed=allowed,
        lines=lines,
        used=len(marked),
        budget=budget,
        confirmed=len(confirmed),
        accused=len(accused),
        overrides=overrides,
        settled=settled,
    )


def done(memory: Memory, step: Step, now: float) -> Memory:
    """What to remember after a step was written."""
    records = dict(memory.records)
    record = records.get(step.node, Record(uid=step.uid))
    if step.mark is None:
        records[step.node] = replace(record, verdict="", effect="", releasing="", released=now)
        return replace(memory, records=records)
    tainted = record.tainted
    if step.verb == "add":
        tainted = (*(time for time in tainted if now - time < DAY), now)[-8:]
    records[step.node] = replace(
        record, uid=step.uid, verdict=step.mark.verdict, effect=step.mark.effect, tainted=tainted
    )
    last = now if step.verb in ("add", "raise") else memory.last_taint
    return replace(memory, records=records, last_taint=last)


def is_confirmed(rails: Rails, item: Accused, streak: Streak | None, now: float) -> bool:
    """Whether an accusation has held long enough, in our own count and in Fleet's."""
    return (
        streak is not None
        and item.active
        and streak.windows >= rails.confirm_windows
        and item.windows >= rails.confirm_windows
        and now - streak.since >= rails.confirm_for
    )


def _compared(
    rails: Rails, world: World, memory: Memory, now: float
) -> tuple[Memory, tuple[Override, ...], tuple[Step, ...]]:
    """Bring records and nodes together: adopt marks, finish releases, respect what somebody else removed."""
    records: dict[str, Record] = {}
    overrides: list[Override] = []
    settled: list[Step] = []
    last_taint = memory.last_taint
    for name, record in memory.records.items():
        node = world.nodes.get(name)
        if node is None or node.uid != record.uid:
            # Another machine, or none: what was remembered of the old one says nothing about it.
            if node is None and not record.verdict and not record.idle(now, rails.quiet):
                records[name] = record
            continue
        mark = node.mark if node.mark is not None and node.mark.owner == world.owner else None
        if record.verdict and (mark is None or (record.effect and not mark.effect)):
            if record.releasing:
                settled.append(Step(verb="remove", node=name, uid=node.uid, reason=record.releasing))
                record = replace(record, verdict="", effect="", releasing="", released=now)
            else:
                overrides.append(Override(node=name, uid=node.uid, verdict=record.verdict))
                record = replace(record, verdict="", effect="", released=now, hands_off_until=now + rails.hands_off)
        if not record.idle(now, rails.quiet):
            records[name] = record
    for node in world.nodes.values():
        mark = node.mark
        if mark is None or mark.owner != world.owner:
            continue
        record = records.get(node.name, Record(uid=node.uid))
        if record.verdict != mark.verdict and record.hands_off_until <= now:
            tainted = (*(time for time in record.tainted if now - time < DAY and time != mark.since), mark.since)[-8:]
            records[node.name] = replace(record, verdict=mark.verdict, effect=mark.effect, tainted=tainted)
            last_taint = max(last_taint, mark.since)
            settled.append(Step(verb="add", node=node.name, uid=node.uid, reason="Confirmed", mark=mark))
        elif record.verdict:
            records[node.name] = replace(record, effect=mark.effect if not record.releasing else record.effect)
    return replace(memory, records=records, last_taint=last_taint), tuple(overrides), tuple(settled)


def _counted(world: World, memory: Memory, trusted: bool, now: float) -> Memory:
    """Count windows of accusation and of health; evidence that cannot be trusted breaks every count."""
    evidence = world.evidence
    if not trusted or evidence is None:
        return replace(memory, accused={}, well={}, tick=evidence.tick if evidence else "")
    if evidence.tick == memory.tick:
        kept = {name: streak for name, streak in memory.accused.items() if _same_machine(world, name, streak)}
        return replace(memory, accused=kept)
    streaks: dict[str, Streak] = {}
    for name, item in evidence.accused.items():
        node = world.nodes.get(name)
        if node is None or not item.active or (item.since is not None and item.since < node.created):
            continue
        before = memory.accused.get(name)
        if before is not None and _same_machine(world, name, before):
            streaks[name] = replace(before, windows=before.windows + 1)
        else:
            streaks[name] = Streak(uid=node.uid, provider_id=node.provider_id, since=now, windows=1)
    well = {name: memory.well.get(name, now) for name in evidence.well if name not in evidence.accused}
    return replace(memory, accused=streaks, well=well, tick=evidence.tick)


def _same_machine(world: World, name: str, streak: Streak) -> bool:
    node = world.nodes.get(name)
    return node is not None and (node.uid, node.provider_id) == (streak.uid, streak.provider_id)


def _removals(
    rails: Rails, world: World, memory: Memory, trusted: bool, confirmed: frozenset[str], now: float
) -> list[Step]:
    """Everything that must go, or become weaker, or may stay longer."""
    steps = []
    for node in sorted(world.nodes.values(), key=lambda item: item.name):
        mark = node.mark
        if mark is None or mark.owner != world.owner:
            continue
        record = memory.records.get(node.name)
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
        return "Overridden"
    well = memory.well.get(node.name)
    if trusted and well is not None and now - well >= rails.recover_for:
        return "Recovered"
    over = now >= mark.expires and (mark.effect != "NoSchedule" or mark.probation)
    still = node.name in memory.accused and not mark.probation and trusted
    return "Expired" if over and not still else ""


def _noted(memory: Memory, steps: list[Step]) -> Memory:
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


def _additions(
    rails: Rails,
    world: World,
    memory: Memory,
    allowed: Finding,
    accused: Mapping[str, Accused],
    confirmed: frozenset[str],
    base: list[NodeView],
    marked: Mapping[str, NodeView],
    budget: int,
    removals: list[Step],
    now: float,
) -> tuple[Step | None, tuple[Line, ...]]:
    """At most one new or stronger mark, and a line for every accused node."""
    if not accused:
        return None, ()
    blocked = allowed if not allowed.holds and allowed.reason != "Overlap" else None
    leaving = {step.node for step in removals}
    zones = Counter(node.labels.get(ZONE, "") for node in marked.values())
    domains = Counter(domain for node in marked.values() if (domain := node.labels.get(rails.domain_label, "")))
    healthy = sum(_schedulable(node, marked) for node in base)
    least = math.ceil(rails.min_healthy_percent * len(base) / 100)
    lines: list[Line] = []
    chosen: Step | None = None

    def order(name: str) -> tuple[float, float, str]:
        streak = memory.accused.get(name)
        return (streak.since if streak else math.inf, accused[name].score or 0.0, name)

    for name in sorted(accused, key=order):
        node, item = world.nodes.get(name), accused[name]
        if node is None:
            lines.append(Line(node=name, rail="Unknown", message="there is no Node of this name"))
            continue
        held = marked.get(name)
        if held is not None and held.mark is not None:
            stronger = (
                name in confirmed
                and name not in leaving
                and STRENGTH[held.mark.effect] < STRENGTH[EFFECTS[rails.mode]]
                and not held.mark.probation
            )
            if not stronger:
                lines.append(Line(node=name, rail="Held", message=held.mark.effect or "annotated"))
                continue
        rail = _rail(rails, world, memory, node, item, name in confirmed, now)
        if rail is None and blocked is not None:
            rail = (blocked.reason, blocked.message)
        if rail is None and held is None:
            rail = _room(
                rails, node, budget, len(marked), zones, domains, len(memory.records), name in memory.records
            )
        leaves = EFFECTS[rails.mode] and not (held is not None and held.mark is not None and held.mark.effect)
        if rail is None and leaves and healthy - 1 < least:
            rail = "MinHealthy", f"{healthy} of {len(base)} eligible nodes are well and {least} must stay so"
        if rail is None and now - memory.last_taint < rails.interval:
            rail = "Rate", "one node at a time: waiting for spec.taints.interval"
        if rail is None and chosen is not None:
            rail = "Rate", f"{chosen.node} goes first"
        if rail is None:
            chosen = _step(rails, world, node, item, held, memory.accused[name], now)
            rail = "Next", chosen.mark.effect if chosen.mark and chosen.mark.effect else "annotation"
        lines.append(Line(node=name, rail=rail[0], message=rail[1]))
    return chosen, tuple(lines)


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
        windows=streak.windows,
    )
    return Step(verb="add", node=node.name, uid=node.uid, reason="Confirmed", mark=mark)


def _rail(
    rails: Rails, world: World, memory: Memory, node: NodeView, item: Accused, confirmed: bool, now: float
) -> tuple[str, str] | None:
    """The first rail of the node itself that stops it."""
    record = memory.records.get(node.name)
    streak = memory.accused.get(node.name)
    if not item.active:
        return "NotActive", "the node is not active; only active nodes are judged"
    if item.since is not None and item.since < node.created:
        return "Identity", "the verdict is older than this machine"
    if node.foreign or (node.mark is not None and node.mark.owner != world.owner):
        return "Foreign", "somebody else's straggler mark is on the node"
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
    if not confirmed:
        windows = streak.windows if streak else 0
        return "Confirming", f"{min(windows, rails.confirm_windows)} of {rails.confirm_windows} windows"
    return None


def _room(
    rails: Rails,
    node: NodeView,
    budget: int,
    used: int,
    zones: Mapping[str, int],
    domains: Mapping[str, int],
    records: int,
    known: bool,
) -> tuple[str, str] | None:
    """Whether there is room for one more mark."""
    if used >= budget:
        return "Budget", f"{used} of {budget} nodes are held"
    domain, zone = node.labels.get(rails.domain_label, ""), node.labels.get(ZONE, "")
    if domain and domains.get(domain, 0) >= 1:
        return "Domain", f"another node of {rails.domain_label}={domain} is held"
    if zone and zones.get(zone, 0) >= math.ceil(budget / 2):
        return "Zone", f"zone {zone} has its share of the budget"
    if records >= MAX_RECORDS and not known:
        return "RecordFull", "too many nodes to remember; a person should look at the cluster"
    return None


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
