"""Applies a taint policy to a history in simulated time, with the function that the operator decides by. Pure.

Time advances by Fleet's statistics. Statistics between which nothing can change are skipped; the result is the same.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ingero_contract.values import NodeState
from ingero_kit.settings import SettingsError
from ingero_operator.api.base import seconds
from ingero_operator.api.v1alpha1 import FleetClusterSpec, Mode, Taints
from ingero_operator.preview.history import COLLECTIVES, FLEET, Accusation, History, longest_gap
from ingero_operator.taints.model import STALE_INTERVALS, Accused, ClusterObservation, Decision, Evidence
from ingero_operator.taints.nodes import NodeView
from ingero_operator.taints.policy import decide
from ingero_operator.taints.state import DAY, TaintState
from ingero_operator.taints.tracking import after_write

OWNER: Final = "preview"
PANIC_FRACTION: Final = 0.5
"""Fleet's default of `PANIC_SETTING`."""
PANIC_SETTING: Final = "processors.ingero.panic.straggler_fraction"
"""The share of accused nodes beyond which Fleet panics."""


@dataclass(frozen=True, kw_only=True)
class ReplaySetup:
    """What besides the history decides: the policy, and the settings of Fleet that its evidence depends on."""

    taints: Taints
    interval: float
    """Seconds between two statistics."""
    least_active: int
    coverage: float
    expected: int
    actionable: bool
    """Whether late ranks count."""
    selector: Mapping[str, str]
    panic_fraction: float = PANIC_FRACTION
    paused: str = ""

    @classmethod
    def from_spec(cls, spec: FleetClusterSpec, paused: str = "") -> "ReplaySetup":
        """The setup of a FleetCluster. `paused`: why tainting is paused, besides the pauses in its spec."""
        return cls(
            taints=spec.taints,
            interval=seconds(spec.fleet.push_interval),
            least_active=spec.fleet.quorum.statistical_min,
            coverage=spec.fleet.quorum.coverage_percent / 100,
            expected=spec.fleet.quorum.expected_nodes,
            actionable=spec.fleet.collectives.actionable,
            selector=spec.agents.node_selector,
            panic_fraction=_panic_fraction(spec),
            paused="; ".join([*spec.taints.pause_requests, *([paused] if paused else [])]),
        )


def _panic_fraction(spec: FleetClusterSpec) -> float:
    """Fleet's setting, as in `spec.fleet.settings`. Raises `SettingsError` for a value that Fleet refuses."""
    text = next((item.value for item in spec.fleet.settings if item.name == PANIC_SETTING), None)
    if text is None:
        return PANIC_FRACTION
    try:
        fraction = float(text)
    except ValueError:
        fraction = math.nan
    if not 0 < fraction <= 1:
        raise SettingsError(f"spec.fleet.settings: {PANIC_SETTING} is {text!r} instead of a number above 0, up to 1")
    return fraction


@dataclass(frozen=True, kw_only=True)
class Taint:
    """A taint that the policy would have set."""

    node: str
    begin: float
    end: float | None = None
    """`None` while it lasts at the end of the window."""
    effects: tuple[str, ...]
    """Its effects, one after the other; an empty one is the annotation alone."""
    reason: str = ""
    """Why it was removed."""
    pods: frozenset[str] | None = None
    """Pods on the node that verdicts of that time name; `None` when the record names none."""


@dataclass(frozen=True, kw_only=True)
class NodeOutcome:
    """What became of one accused node."""

    node: str
    accusations: int
    kinds: tuple[str, ...]
    """What it was accused of."""
    accused: float
    """Seconds."""
    tainted: float
    """Seconds."""
    stopped: Mapping[str, float]
    """Seconds by the policy check that prevented the taint."""
    messages: Mapping[str, str]
    """The latest message of each of these checks."""


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """What a policy would have done."""

    mode: Mode
    taints: tuple[Taint, ...]
    nodes: tuple[NodeOutcome, ...]
    most: int
    """Most nodes tainted at once."""
    decisions: int


def replay(setup: ReplaySetup, history: History, known: Mapping[str, NodeView], *, skip: bool = True) -> ReplayResult:
    """Apply the policy to the history. `known`: nodes of the cluster by name, empty when none can be asked."""
    run = _Replay(setup, history, known)
    now = history.since
    while now < history.until:
        run.decide(now)
        following = run.following(now) if skip else now + setup.interval
        run.count(now, min(following, history.until))
        now = following
    return run.outcome()


def forget_past(node: NodeView) -> NodeView:
    """A node of the present with the facts that hold in the past too, as far as is known."""
    return replace(
        node, ready=True, cordoned=False, deleting=False, disrupted="", remediated="", taint=None,
        strays=frozenset(), foreign=False,
    )  # fmt: skip


@dataclass(frozen=True, order=True)
class _Change:
    """A change of the cluster. Ends come before begins of the same time."""

    time: float
    begins: bool
    what: str
    name: str
    number: int
    """Index of what begins or ends."""


class _Replay:
    """The simulated cluster and the state of the operator."""

    def __init__(self, setup: ReplaySetup, history: History, known: Mapping[str, NodeView]) -> None:
        self._setup, self._history = setup, history
        sources = (FLEET, COLLECTIVES) if setup.actionable else (FLEET,)
        self._accusations = [item for item in history.accusations if item.source in sources]
        self._lives = _lives(setup, history, self._accusations, known)
        self._begins = sorted(item.begin for item in self._accusations)
        self._changes = self._all_changes()
        self._times_of_changes = [change.time for change in self._changes]
        self._applied = 0
        self._nodes: dict[str, NodeView] = {}
        self._states: dict[str, str] = {}
        self._accused: dict[str, dict[int, Accusation]] = {}
        self._peak, self._heard = 0, history.since
        self._state = TaintState()
        self._decision: Decision | None = None
        self._taints: list[Taint] = []
        self._current: dict[str, int] = {}
        self._stopped: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._messages: dict[str, dict[str, str]] = defaultdict(dict)
        self._most = self._decisions = 0

    def _all_changes(self) -> list[_Change]:
        found: list[_Change] = []

        def add(what: str, name: str, number: int, begin: float, end: float | None) -> None:
            found.append(_Change(begin, True, what, name, number))
            if end is not None:
                found.append(_Change(end, False, what, name, number))

        for number, life in enumerate(self._lives):
            add("life", life.view.name, number, life.begin, life.end)
        for number, run in enumerate(self._history.runs):
            add("run", run.node, number, run.begin, None if run.end >= self._history.until else run.end)
        for number, item in enumerate(self._accusations):
            add("accusation", item.node, number, item.begin, item.end)
        return sorted(found)

    # One statistic

    def decide(self, now: float) -> None:
        """Make the operator's decision of this moment and apply it."""
        self._advance(now)
        decision = decide(self._setup.taints, self._observe(now), self._state, now)
        self._state, self._decision = decision.state, decision
        self._decisions += 1
        for step in decision.steps:
            self._state = after_write(self._state, step, now)
            self._nodes[step.node] = replace(self._nodes[step.node], taint=step.taint)
            if step.taint is None:
                self._close(step.node, now, step.reason)
            elif step.verb == "add":
                self._current[step.node] = len(self._taints)
                self._taints.append(Taint(node=step.node, begin=now, effects=(step.taint.effect,)))
            elif step.verb in ("raise", "lower"):
                place = self._current[step.node]
                item = self._taints[place]
                self._taints[place] = replace(item, effects=(*item.effects, step.taint.effect))
        self._most = max(self._most, len(self._current))

    def _advance(self, now: float) -> None:
        """Apply the changes up to now."""
        last = bisect_right(self._times_of_changes, now)
        for change in self._changes[self._applied : last]:
            self._hear(change.time)
            match change.what, change.begins:
                case "life", True:
                    self._nodes[change.name] = self._lives[change.number].view
                case "life", False:
                    self._nodes.pop(change.name, None)
                    self._close(change.name, change.time, "Left")
                case "run", True:
                    self._states[change.name] = self._history.runs[change.number].state
                case "run", False:
                    self._states.pop(change.name, None)
                case _, True:
                    self._accused.setdefault(change.name, {})[change.number] = self._accusations[change.number]
                case _:
                    self._accused[change.name].pop(change.number)
                    if not self._accused[change.name]:
                        del self._accused[change.name]
        self._applied = last
        self._hear(now)

    def _hear(self, now: float) -> None:
        """Note the time and the number of the reports that Fleet has received until now."""
        if self._states or not self._history.runs:
            self._heard = now
        self._peak = max(self._peak, len(self._states))

    def _state_of(self, name: str) -> str | None:
        """The state that a node reports; active where the record has no reports at all."""
        if not self._history.runs:
            return NodeState.ACTIVE if name in self._nodes else None
        return self._states.get(name)

    def _observe(self, now: float) -> ClusterObservation:
        nodes = {
            name: node if node.ready == (self._state_of(name) is not None) else replace(node, ready=not node.ready)
            for name, node in self._nodes.items()
        }
        self._nodes = nodes
        return ClusterObservation(
            owner=OWNER, nodes=nodes, watched=frozenset(nodes), evidence=self._evidence(now),
            paused=self._setup.paused,
        )  # fmt: skip

    def _evidence(self, now: float) -> Evidence:
        setup = self._setup
        states = self._states if self._history.runs else dict.fromkeys(self._nodes, str(NodeState.ACTIVE))
        active = sum(state == NodeState.ACTIVE for state in states.values())
        accused = {name: items for name, items in self._accused.items() if name in states}
        by_detector = sum(any(item.source == FLEET for item in items.values()) for items in accused.values())
        complete = bool(self._history.runs)
        return Evidence(
            tick=f"{self._heard:.3f}",
            received=self._heard,
            interval=setup.interval,
            quorum=active >= setup.least_active or not complete,
            panic=complete and by_detector > setup.panic_fraction * max(1, active),
            coverage_low=complete and len(states) < setup.coverage * (setup.expected or self._peak),
            accused={name: self._finding(name, items, now) for name, items in accused.items()},
            healthy=frozenset(
                name for name in self._current if states.get(name) == NodeState.ACTIVE and name not in self._accused
            ),
        )

    def _finding(self, name: str, items: Mapping[int, Accusation], now: float) -> Accused:
        detected = min(item.detected for item in items.values())
        onsets = [item.since for item in items.values() if item.since is not None]
        severities = [item.severity for item in items.values() if item.severity is not None]
        return Accused(
            active=self._state_of(name) == NodeState.ACTIVE,
            since=min(onsets, default=None),
            windows=1 + round((now - detected) / self._setup.interval),
            severity=max(severities, default=None),
            kind=next(iter(items.values())).kind,
        )

    def _close(self, name: str, now: float, reason: str) -> None:
        place = self._current.pop(name, None)
        if place is not None:
            self._taints[place] = replace(self._taints[place], end=now, reason=reason)

    # The next statistic

    def following(self, now: float) -> float:
        """The next time at which the decision may differ."""
        interval, waits = self._setup.interval, self._setup.taints.confirm_windows
        if not self._accused and not self._current:
            later = bisect_right(self._begins, now)
            return max(now + interval, self._grid(self._begins[later]) if later < len(self._begins) else math.inf)
        assert self._decision is not None
        if self._decision.steps or any(streak.windows < waits for streak in self._state.accused.values()):
            return now + interval
        due = [time for time in self._due() if time > now]
        change = self._times_of_changes[self._applied] if self._applied < len(self._changes) else math.inf
        # The statistic before a change counts too: a storm lasts for a while after the last one that showed it.
        times = [self._grid(min(due, default=math.inf)), self._grid(change), self._grid(change) - interval]
        return min(max(time, now + interval) for time in times)

    def _grid(self, time: float) -> float:
        """The first statistic at or after a time."""
        if math.isinf(time):
            return time
        since, interval = self._history.since, self._setup.interval
        number = math.ceil((time - since) / interval)
        return since + number * interval if since + number * interval >= time else since + (number + 1) * interval

    def _due(self) -> Iterator[float]:
        """Times at which the policy decides differently without any change of the cluster."""
        policy, state = self._setup.taints, self._state
        if not self._states:
            yield self._heard + STALE_INTERVALS * self._setup.interval
        yield state.last_taint + seconds(policy.interval)
        yield state.storm_until
        for streak in state.accused.values():
            yield streak.since + seconds(policy.confirm_for)
        for name in self._accused:
            if name in self._nodes:
                yield self._nodes[name].created + seconds(policy.min_node_age)
        for name in self._current:
            taint, healthy = self._nodes[name].taint, state.healthy.get(name)
            if taint is not None:
                yield taint.expires - seconds(policy.ttl) / 4
                yield taint.expires
            if healthy is not None:
                yield healthy + seconds(policy.recover_for)
        for record in state.records.values():
            yield record.released + seconds(policy.quiet)
            yield from (time + DAY for time in record.tainted)

    # The result

    def count(self, now: float, following: float) -> None:
        """Count the time until the next statistic for the checks that prevented taints."""
        assert self._decision is not None
        for result in self._decision.checks:
            if result.check not in ("Tainted", "Next"):
                self._stopped[result.node][result.check] += following - now
                self._messages[result.node][result.check] = result.message

    def outcome(self) -> ReplayResult:
        """The result, after the last statistic."""
        until = self._history.until
        taints = tuple(replace(item, pods=self._pods(item)) for item in self._taints)
        by_node: dict[str, list[Accusation]] = defaultdict(list)
        for item in self._accusations:
            by_node[item.node].append(item)
        nodes = tuple(
            NodeOutcome(
                node=name,
                accusations=len(items),
                kinds=tuple(sorted({item.kind for item in items if item.kind})),
                accused=sum(until_or(item.end, until) - item.begin for item in items),
                tainted=sum(until_or(taint.end, until) - taint.begin for taint in taints if taint.node == name),
                stopped=dict(sorted(self._stopped[name].items(), key=lambda pair: -pair[1])),
                messages=dict(self._messages[name]),
            )
            for name, items in sorted(by_node.items())
        )
        return ReplayResult(
            mode=self._setup.taints.mode, taints=taints, nodes=nodes, most=self._most, decisions=self._decisions
        )

    def _pods(self, taint: Taint) -> frozenset[str] | None:
        end = until_or(taint.end, self._history.until)
        found = {
            pod
            for item in self._history.accusations
            if item.node == taint.node and item.begin < end and until_or(item.end, end) >= taint.begin
            for pod in item.pods
        }
        return frozenset(found) or None


def until_or(end: float | None, until: float) -> float:
    """An end, or the end of the window where it has not come."""
    return until if end is None else min(end, until)


@dataclass(frozen=True)
class _Life:
    """The time in which there was a node."""

    view: NodeView
    begin: float
    end: float | None


def _lives(
    setup: ReplaySetup, history: History, accusations: list[Accusation], known: Mapping[str, NodeView]
) -> list[_Life]:
    """The nodes of the window. Where the record shows a name earlier than the cluster's node of that name, there was
    another machine. A node that the cluster does not have is taken to be there while it reports or, where the record
    has no reports, all the time; no node has left because all reports end."""
    signs: dict[str, tuple[float, float]] = {}
    for run in history.runs:
        first, _ = signs.get(run.node, (run.begin, run.end))
        signs[run.node] = first, run.end
    if not history.runs:
        signs = {item.node: (history.since, history.until) for item in accusations}
    gap, out = longest_gap(setup.interval), []
    for name in sorted(signs.keys() | known.keys()):
        node = known.get(name)
        if node is not None and not setup.selector.items() <= node.labels.items():
            continue
        came = max(history.since, node.created) if node is not None else history.since
        if name in signs:
            first, last = signs[name]
            if node is None:
                end = None if last >= history.end - gap else last + gap
                out.append(_Life(NodeView(name=name, uid=name, labels={}), first, end))
            elif first < came - gap:
                out.append(_Life(NodeView(name=name, uid=f"{name}/earlier", labels={}), first, came))
        if node is not None and came < history.until:
            out.append(_Life(forget_past(node), came, None))
    return out
