"""What the rails read and what they answer: settings, evidence, the world at one moment, steps. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ingero_operator.api.v1alpha1 import Mode
from ingero_operator.conditions import Condition
from ingero_operator.taints.nodes import NodeView, StragglerTaint
from ingero_operator.taints.state import DAY, TaintState

STALE_INTERVALS: Final = 3.0
"""Age of statistics, in their intervals, from which on nothing is done because of them."""


@dataclass(frozen=True, kw_only=True)
class TaintPolicy:
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
    override_cooldown: float = DAY
    min_node_age: float = 1_800.0
    domain_label: str = "nvidia.com/gpu.clique"
    stale_intervals: float = STALE_INTERVALS


@dataclass(frozen=True, kw_only=True)
class Accused:
    """What Fleet says about one node that it calls a straggler."""

    active: bool
    since: float | None = None
    windows: int = 0
    score: float | None = None
    threshold: float | None = None
    severity: float | None = None
    """Share of its own rate that it lost, where Fleet's detector decides; score and threshold otherwise."""


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
    healthy: frozenset[str] = frozenset()
    """Nodes known to be active and not accused in these statistics."""


def is_stale(evidence: Evidence, now: float, intervals: float = STALE_INTERVALS) -> bool:
    """Whether statistics are too old to be acted on."""
    return not now - evidence.received < intervals * evidence.interval


@dataclass(frozen=True, kw_only=True)
class Observation:
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
    refused: frozenset[str] = frozenset()
    """Nodes that the API server would not let us mark a moment ago."""
    paused: str = ""
    """Who asks for a pause."""
    unguarded: str = ""
    """That nothing but our own care bounds what we write to nodes."""
    deleting: bool = False


Verb = Literal["add", "raise", "lower", "renew", "remove"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One write to one node."""

    verb: Verb
    node: str
    uid: str
    reason: str
    taint: StragglerTaint | None = None
    """The mark as it shall be; nothing to remove it."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One accused node, and the rail that stops it."""

    node: str
    check: str
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

    state: TaintState
    steps: tuple[Step, ...]
    allowed: Condition
    checks: tuple[CheckResult, ...]
    used: int
    budget: int
    confirmed: int
    accused: int
    overrides: tuple[Override, ...] = ()
    found_done: tuple[Step, ...] = ()
    """Steps that an earlier process wrote without living to tell."""
