"""Inputs and outputs of a taint decision: evidence, observation, steps. `v1alpha1.Taints` is the policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ingero_operator.conditions import Condition
from ingero_operator.taints.nodes import NodeView, StragglerTaint
from ingero_operator.taints.state import TaintState

STALE_INTERVALS: Final = 3.0
"""Age of statistics, in their intervals, from which they are too old to act on."""


@dataclass(frozen=True, kw_only=True)
class Accused:
    """Fleet's finding on one node that it accuses of straggling."""

    active: bool
    since: float | None = None
    windows: int = 0
    score: float | None = None
    threshold: float | None = None
    severity: float | None = None
    """Share of its own rate that the node lost, or of the job's time that is lost to its rank, by `kind`; without it
    score and threshold apply."""
    kind: str = ""
    """Fleet's name of the finding, such as `late_rank`."""
    several_agents: bool = False
    """Whether several agents report as the node, so that the finding may be about any of them, or none."""

    @property
    def judged(self) -> bool:
        """Whether the finding is about this node at work."""
        return self.active and not self.several_agents


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Fleet's latest response. `received`: when, on the operator's clock, its statistics were new."""

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
    log_problem: str = ""
    """Why the shared log of Fleet's replicas does not allow new taints; empty when it does or there is none."""


def is_stale(evidence: Evidence, now: float) -> bool:
    """Whether the statistics are too old to act on."""
    return not now - evidence.received < STALE_INTERVALS * evidence.interval


@dataclass(frozen=True, kw_only=True)
class ClusterObservation:
    """Everything that is observed at one moment."""

    owner: str
    """Uid of the FleetCluster."""
    nodes: Mapping[str, NodeView]
    """Nodes that the FleetCluster watches, and others that carry its taint or have a record."""
    watched: frozenset[str]
    """Names of the nodes that it watches."""
    evidence: Evidence | None = None
    overlap: Mapping[str, str] = field(default_factory=dict)
    """Nodes that another FleetCluster watches too, with the name of that FleetCluster."""
    refused: frozenset[str] = frozenset()
    """Nodes whose taint the API server refused recently."""
    paused: str = ""
    """Why tainting is paused; empty when it is not."""
    node_policy_missing: str = ""
    """Why the admission policy for nodes is not in force; empty when it is."""
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
    """The taint after the write; `None` to remove it."""
    removed: str = ""
    """Verdict of the taint that is removed."""

    @property
    def verdict(self) -> str:
        """The verdict that the step is about."""
        return self.taint.verdict if self.taint else self.removed

    @property
    def strengthens(self) -> bool:
        """Whether the step taints the node, or more strongly than before."""
        return self.verb in ("add", "raise")

    @property
    def weakens(self) -> bool:
        """Whether the step releases the node, wholly or in part."""
        return self.verb in ("remove", "lower")


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """An accused node, and the first policy check that prevents its taint; `Next` when none does."""

    node: str
    check: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Override:
    """A taint of the operator that another writer removed."""

    node: str
    uid: str
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The result of a decision: what to write, what to remember, and what to show."""

    state: TaintState
    steps: tuple[Step, ...]
    allowed: Condition
    checks: tuple[CheckResult, ...]
    used: int
    budget: int
    confirmed: int
    accused: tuple[str, ...]
    """Names of the nodes, in order."""
    overrides: tuple[Override, ...] = ()
    found_done: tuple[Step, ...] = ()
    """Steps that an earlier process wrote and did not report."""
