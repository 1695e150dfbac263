"""Requests to Fleet, and its responses as evidence. Pure.

Tenants choose the image that responds, so a response is validated before anything is read from it.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ingero_contract.values import NodeState
from ingero_kit.clock import rfc3339
from ingero_operator.api.status import LateRank
from ingero_operator.conditions import Condition
from ingero_operator.forwarding import Forwarding, parse_exporters
from ingero_operator.job_hangs import parse_hangs
from ingero_operator.network_health import NetworkState, parse_network
from ingero_operator.taints.model import Accused, Evidence, is_stale
from ingero_operator.taints.nodes import moment
from ingero_operator.untrusted_http import NoResponse

MAX_NODES: Final = 5_000
"""Most nodes in one response; a response that accuses more nodes is not acted on."""
SHOWN_RANKS: Final = 20
"""Late ranks that the status lists at most."""
SHOWN_AGENTS: Final = 5
"""Nodes with several agents that the condition names at most."""
MOST_COST: Final = 1e15
"""Cost per hour above which an amount is treated as an error."""


@dataclass(frozen=True, kw_only=True)
class PollRequest:
    """How a Fleet is polled."""

    url: str
    cluster: str
    token: str | None = None
    authority: str | None = None
    """PEM of the CA that signed Fleet's certificate."""
    tainted: frozenset[str] = frozenset()
    """Tainted nodes, which recovery would release."""
    urgent: bool = True
    """Whether the result may lead to an action."""
    otlp: str = ""
    """Fleet's OTLP receiver, for taint events."""
    replicas: tuple[str, ...] = ()
    """IP addresses of the replicas that share a log; each is asked how it follows the log."""
    replicas_wanted: int = 0
    """How many replicas share a log; 0 without a shared log."""
    interval: float = math.inf
    """How often Fleet computes its statistics, by the spec. A longer interval in its response does not make evidence
    valid for longer."""


@dataclass(frozen=True, kw_only=True)
class SeveralAgents:
    """Nodes as which several agents report: how many, and the first of them."""

    count: int = 0
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Whether most nodes that work are in the warm-up of Fleet's detector: then `since` is set."""

    since: str = ""
    until: str = ""
    refusal: str = ""
    """Why Fleet could not use its snapshot; empty if it had none."""


@dataclass(frozen=True, kw_only=True)
class PollResult:
    """The result of polling: evidence, figures for users, or why there is none."""

    evidence: Evidence | None = None
    threshold: float | None = None
    active: int = 0
    expected: int = 0
    reporting: int | None = None
    """Nodes that report: active, idle or calibrating; `None` where Fleet does not say."""
    late_ranks: tuple[dict[str, Any], ...] = ()
    """`status.lateRanks`: which ranks the collectives wait for, the costliest first."""
    cost: dict[str, Any] | None = None
    """`status.cost`, rounded to what is shown."""
    warm_up: WarmUp | None = None
    """`None` where Fleet does not say."""
    forwarding: Forwarding | None = None
    """Whether Fleet delivers what it forwards."""
    network: NetworkState | None = None
    """Whether a part of the network is slow; `None` where Fleet has no topology."""
    several_agents: SeveralAgents | None = None
    """Nodes as which several agents report; `None` where Fleet does not say."""
    hangs: tuple[str, ...] | None = None
    """Jobs that hang, in words; `None` where agents watch no job."""
    log: tuple[Condition, ...] = ()
    """Conditions of the shared log and its replicas; empty without one."""
    log_figures: dict[str, Any] | None = None
    """`status.log`."""
    failure: str = ""
    """Why the latest polls failed; all other fields are from an earlier poll then."""
    stale: bool = False
    """Fleet answers, but its statistics are no longer updated."""

    @property
    def current(self) -> bool:
        """Whether the result describes the present."""
        return self.evidence is not None and not self.failure and not self.stale

    def visible(self) -> tuple[Any, ...]:
        """The part that users or decisions depend on: a reconcile is due when it changes."""
        evidence = self.evidence
        facts: tuple[Any, ...] = ()
        if evidence:
            facts = (evidence.quorum, evidence.panic, evidence.coverage_low, frozenset(evidence.accused))
        threshold = None if self.threshold is None else f"{self.threshold:.2f}"
        return (
            self.failure, self.stale, facts, threshold, self.active, self.expected, self.reporting == 0, self.cost,
            self.late_ranks,
            self.forwarding and self.forwarding.visible(), self.network, self.hangs, self.log, self.warm_up,
            self.several_agents,
        )  # fmt: skip


_Name = Annotated[str, Field(min_length=1, max_length=253)]
_Text = Annotated[str, Field(max_length=256)]
_Number = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=10**9)]


class _Payload(BaseModel):
    """Base of the models of Fleet's responses. Only the fields that are read are validated; others are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class _Verdict(_Payload):
    severity: _Number | None = None


class _Straggler(_Payload):
    node_id: _Name
    state: _Text
    since: _Text | None = None
    windows: _Count | None = None
    score: _Number | None = None
    threshold: _Number | None = None
    kind: _Text = ""
    several_agents: bool = False
    verdict: _Verdict | None = None


class _LateRank(_Payload):
    node_id: _Name
    kind: _Text = ""
    comm: _Text = ""
    rank: _Count | None = None
    gpu: _Text | None = None
    pod: _Text | None = None
    job_id: _Text | None = None
    since: _Text | None = None
    share: _Number = 0.0


_Moment = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[0-9TZ:.+-]+$")]


class _Learning(_Payload):
    since: _Moment
    until: _Moment
    reason: _Text | None = None


class _NodeName(_Payload):
    node_id: _Name


class _SeveralAgents(_Payload):
    count: _Count
    nodes: Annotated[list[_NodeName], Field(max_length=MAX_NODES)]


class _Counts(_Payload):
    active: _Count = 0
    idle: _Count = 0
    calibrating: _Count = 0
    expected: _Count = 0


class _Stragglers(_Payload):
    cluster_id: _Text
    generated_at: _Text
    interval_seconds: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    decided_by: _Text = ""
    quorum_met: bool
    panic: bool
    coverage_low: bool
    threshold: _Number | None = None
    stragglers: Annotated[list[_Straggler], Field(max_length=MAX_NODES)]
    nodes: _Counts | None = None


class _Node(_Payload):
    cluster_id: _Text | None = None
    node_id: _Name
    state: _Text
    straggler: bool
    several_agents: bool = False


class _Nodes(_Payload):
    nodes: Annotated[list[_Node], Field(max_length=MAX_NODES)]


def parse_response(
    stragglers: dict[str, Any],
    nodes: dict[str, Any] | None,
    request: PollRequest,
    now: float,
    before: Evidence | None,
) -> PollResult:
    """Fleet's responses as evidence. Pure; raises `NoResponse` for a response that does not fit the request."""
    try:
        payload = _Stragglers.model_validate(stragglers)
        others = _Nodes.model_validate(nodes).nodes if nodes is not None else []
    except ValidationError as error:
        raise NoResponse(f"its answer cannot be read: {_first_problem(error)}") from None
    for cluster in (payload.cluster_id, *(node.cluster_id for node in others)):
        if cluster not in (request.cluster, None):
            raise NoResponse(f"it answers for cluster {str(cluster)[:63]!r} instead of {request.cluster!r}")
    by_verdict = payload.decided_by == "verdict"
    accused = {
        item.node_id: Accused(
            active=item.state == NodeState.ACTIVE,
            since=moment(item.since) or None,
            windows=item.windows or 0,
            score=None if by_verdict else item.score,
            threshold=None if by_verdict else item.threshold,
            severity=item.verdict.severity if by_verdict and item.verdict else None,
            kind=item.kind if by_verdict else "",
            several_agents=item.several_agents,
        )
        for item in payload.stragglers
    }
    healthy = frozenset(
        node.node_id
        for node in others
        if node.state == NodeState.ACTIVE and not node.straggler and not node.several_agents
    )
    evidence = Evidence(
        tick=payload.generated_at,
        received=before.received if before is not None and before.tick == payload.generated_at else now,
        interval=min(payload.interval_seconds, request.interval),
        quorum=payload.quorum_met,
        panic=payload.panic,
        coverage_low=payload.coverage_low,
        threshold=by_verdict or payload.threshold is not None or bool(accused),
        accused=accused,
        healthy=(healthy & request.tainted) - set(accused),
    )
    if before is not None and payload.generated_at < before.tick and not is_stale(before, now):
        evidence = before  # from a replica that is behind the one that answered last
    counts = payload.nodes or _Counts()
    return PollResult(
        evidence=evidence,
        threshold=payload.threshold,
        active=counts.active,
        expected=counts.expected,
        reporting=counts.active + counts.idle + counts.calibrating if payload.nodes else None,
        late_ranks=_late_ranks(stragglers.get("culprits")),
        cost=_cost(stragglers.get("cost")),
        warm_up=_warm_up(stragglers),
        forwarding=parse_exporters(stragglers.get("exporters")),
        network=parse_network(stragglers.get("network")),
        several_agents=_several_agents(stragglers.get("several_agents")),
        hangs=parse_hangs(stragglers.get("watched_jobs"), stragglers.get("hangs")),
        stale=is_stale(evidence, now),
    )


def _first_problem(error: ValidationError) -> str:
    """The first validation error: its location, without the value that was sent."""
    problem = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, problem['loc']))[:100]}: {problem['msg']}"


def _warm_up(payload: dict[str, Any]) -> WarmUp | None:
    """Whether Fleet's detector learns; `None` where that is missing or unreadable, which must hide no straggler."""
    if "learning" not in payload:
        return None
    if payload["learning"] is None:
        return WarmUp()
    with suppress(ValidationError):
        found = _Learning.model_validate(payload["learning"])
        refusal = "".join(filter(str.isprintable, found.reason or ""))
        return WarmUp(since=found.since, until=found.until, refusal=refusal)
    return None


def _several_agents(payload: Any) -> SeveralAgents | None:
    """Nodes with several agents; `None` where that is missing or unreadable, which must hide no straggler."""
    try:
        found = _SeveralAgents.model_validate(payload)
    except ValidationError:
        return None
    nodes = ("".join(filter(str.isprintable, node.node_id)) for node in found.nodes[:SHOWN_AGENTS])
    return SeveralAgents(count=found.count, nodes=tuple(nodes))


def _late_ranks(payload: Any) -> tuple[dict[str, Any], ...]:
    """The late ranks of a response; those that cannot be read are left out, as they must not hide a straggler.

    Their share of time changes with every tick, so it is rounded to one digit.
    """
    found: list[_LateRank] = []
    for item in payload[:MAX_NODES] if isinstance(payload, list) else ():
        with suppress(ValidationError):
            found.append(_LateRank.model_validate(item))
    found.sort(key=lambda one: (-one.share, one.node_id))
    return tuple(_as_status(one) for one in found[:SHOWN_RANKS])


def _as_status(one: _LateRank) -> dict[str, Any]:
    since = moment(one.since)
    shown = LateRank(
        node=one.node_id, rank=one.rank, gpu=one.gpu or None, kind=one.kind or None,
        communicator=one.comm or None, pod=one.pod, job=one.job_id,
        since=rfc3339(since) if since else None, lost_percent=float(f"{100 * one.share:.1g}"),
    )  # fmt: skip
    return shown.model_dump(by_alias=True, exclude_none=True)


def _cost(payload: Any) -> dict[str, Any] | None:
    """Fleet's sums as `status.cost`; `None` where nothing has a price or the sums cannot be read.

    An unreadable cost must not hide a straggler. The cost of waiting changes with every tick, so it is rounded to two
    digits.
    """
    try:
        cost, waiting = float(payload["cost_per_hour"]), float(payload["waiting_per_hour"])
        unpriced, currency = int(payload["gpus_without_rate"]), str(payload["currency"])[:16]
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    out: dict[str, Any] = {}
    if 0 < cost < MOST_COST and 0 <= waiting < MOST_COST:
        out = {"currency": currency, "perHour": f"{cost:.2f}", "waitingPerHour": _two_digits(waiting)}
    if unpriced > 0:
        out["gpusWithoutRate"] = unpriced
    return out or None


def _two_digits(amount: float) -> str:
    rounded = float(f"{amount:.2g}")
    return f"{rounded:.{0 if rounded >= 10 else 1 if rounded >= 1 else 2}f}"
