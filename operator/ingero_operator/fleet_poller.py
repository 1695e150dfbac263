"""Asking Fleet: who is a straggler, and are the nodes that we hold well again. One question at a time per Fleet."""

import asyncio
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ingero_contract import routes
from ingero_contract.values import NodeState
from ingero_kit.clock import Clock
from ingero_operator.taints.model import Accused, Evidence, is_stale
from ingero_operator.taints.nodes import moment
from ingero_operator.tasks import Tasks
from ingero_operator.untrusted_http import NoResponse, get_json, open_session

OwnerKey = tuple[str, str, str]
ASK_SECONDS: Final = 5.0
MAX_ANSWER: Final = 2 << 20
"""Bytes of one answer. Decoded it may take thirty times as much, for a moment, one answer at a time."""
NODE_BYTES: Final = 16 << 10
"""Bytes of an answer about nodes that were asked for by name, for each of them."""
MAX_NODES: Final = 5_000
"""Nodes in one answer; a Fleet that accuses more has no answer that could be acted on."""
LONGEST_PAUSE: Final = 60.0
SHARE: Final = 4.0
"""Times that an answer took until its Fleet is asked again: a slow one must not keep the others waiting."""
AT_ONCE: Final = 16
"""Fleets that are being asked at the same time."""
PATIENCE: Final = 3
"""Questions without an answer after which Fleet counts as unreachable."""
FAULT: Final = "asking it failed by a fault of the operator, which its log has; please report it"
MOST_COST: Final = 1e15
"""An hour's cost beyond which nobody's money is meant."""
MANY: Final = 100
"""Fleets beyond which those that nobody acts on are asked once a minute."""


@dataclass(frozen=True, kw_only=True)
class PollRequest:
    """What to ask of whom."""

    url: str
    cluster: str
    token: str | None = None
    authority: str | None = None
    """PEM of who signed Fleet's certificate."""
    held: frozenset[str] = frozenset()
    """Nodes whose recovery would release them."""
    urgent: bool = True
    """The answer may lead to an action."""
    otlp: str = ""
    """Where it is told of marks."""
    interval: float = math.inf
    """How often Fleet computes its statistics, by the spec: what it says itself makes no evidence last longer."""


@dataclass(frozen=True, kw_only=True)
class PollResult:
    """What came back: evidence, figures for people, or why there is none."""

    evidence: Evidence | None = None
    threshold: float | None = None
    active: int = 0
    expected: int = 0
    cost: dict[str, Any] | None = None
    """`status.cost`, rounded to what is shown."""
    failure: str = ""
    """Why the latest questions have no answer; everything else is older then."""
    stale: bool = False
    """Fleet answers, and its statistics do not get on."""

    @property
    def current(self) -> bool:
        """Whether this tells how things are now."""
        return self.evidence is not None and not self.failure and not self.stale

    def shown(self) -> tuple[Any, ...]:
        """What a change of which is news."""
        evidence = self.evidence
        facts: tuple[Any, ...] = ()
        if evidence:
            facts = (evidence.quorum, evidence.panic, evidence.coverage_low, frozenset(evidence.accused))
        threshold = None if self.threshold is None else f"{self.threshold:.2f}"
        return self.failure, self.stale, facts, threshold, self.active, self.expected, self.cost


_Name = Annotated[str, Field(min_length=1, max_length=253)]
_Text = Annotated[str, Field(max_length=256)]
_Number = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=10**9)]


class _Payload(BaseModel):
    """Base of what Fleet says. Only what is read here is checked; whatever else it says is left alone."""

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
    verdict: _Verdict | None = None


class _Counts(_Payload):
    active: _Count = 0
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


class _Nodes(_Payload):
    nodes: Annotated[list[_Node], Field(max_length=MAX_NODES)]


def parse_response(
    stragglers: dict[str, Any],
    nodes: dict[str, Any] | None,
    poll_request: PollRequest,
    now: float,
    before: Evidence | None,
) -> PollResult:
    """Fleet's answers as evidence. Pure; raises `Unanswered` for what is no answer to this question."""
    try:
        payload = _Stragglers.model_validate(stragglers)
        others = _Nodes.model_validate(nodes).nodes if nodes is not None else []
    except ValidationError as error:
        raise NoResponse(f"its answer cannot be read: {_first_problem(error)}") from None
    for cluster in (payload.cluster_id, *(node.cluster_id for node in others)):
        if cluster not in (poll_request.cluster, None):
            raise NoResponse(f"it speaks of cluster {str(cluster)[:63]!r} when asked for {poll_request.cluster!r}")
    by_verdict = payload.decided_by == "verdict"
    accused = {
        item.node_id: Accused(
            active=item.state == NodeState.ACTIVE,
            since=moment(item.since) or None,
            windows=item.windows or 0,
            score=None if by_verdict else item.score,
            threshold=None if by_verdict else item.threshold,
            severity=item.verdict.severity if by_verdict and item.verdict else None,
        )
        for item in payload.stragglers
    }
    healthy = frozenset(node.node_id for node in others if node.state == NodeState.ACTIVE and not node.straggler)
    evidence = Evidence(
        tick=payload.generated_at,
        received=before.received if before is not None and before.tick == payload.generated_at else now,
        interval=min(payload.interval_seconds, poll_request.interval),
        quorum=payload.quorum_met,
        panic=payload.panic,
        coverage_low=payload.coverage_low,
        threshold=by_verdict or payload.threshold is not None or bool(accused),
        accused=accused,
        healthy=(healthy & poll_request.held) - set(accused),
    )
    counts = payload.nodes or _Counts()
    return PollResult(
        evidence=evidence,
        threshold=payload.threshold,
        active=counts.active,
        expected=counts.expected,
        cost=_cost(stragglers.get("cost")),
        stale=is_stale(evidence, now),
    )


def _first_problem(error: ValidationError) -> str:
    """The first thing that is wrong, with its place and without what was sent."""
    problem = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, problem['loc']))[:100]}: {problem['msg']}"


def _cost(payload: Any) -> dict[str, Any] | None:
    """Fleet's sums as `status.cost`; nothing where nothing has a price.

    Nothing either where they cannot be read: what a straggler costs must not decide whether it is seen. Waiting moves
    with every tick, so two digits of it are told.
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


@dataclass
class _State:
    poll_request: PollRequest
    result: PollResult | None = None
    failures: int = 0
    due: float = 0.0
    serial: int = 0


@dataclass
class FleetPoller:
    """Asks every Fleet in turn and says which answers are news."""

    clock: Clock
    longest: float
    per_second: float
    on_change: Callable[[OwnerKey], None]
    states: dict[OwnerKey, _State] = field(default_factory=dict)
    tasks: Tasks = field(default_factory=Tasks)
    asked: int = 0
    failed: int = 0
    _heap: list[tuple[float, int, OwnerKey]] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _serial: int = 0

    def watch(self, key: OwnerKey, poll_request: PollRequest) -> None:
        """Ask this of a resource's Fleet from now on."""
        state = self.states.get(key)
        if state is None:
            self.states[key] = state = _State(poll_request)
            self._plan(key, state, 0.0)
        elif state.poll_request != poll_request:
            old, state.poll_request = state.poll_request, poll_request
            if (old.url, old.token, old.authority) != (poll_request.url, poll_request.token, poll_request.authority):
                self._plan(key, state, 0.0)

    def forget(self, key: OwnerKey) -> None:
        """Stop asking."""
        self.states.pop(key, None)

    def result(self, key: OwnerKey) -> PollResult | None:
        """The latest answer."""
        state = self.states.get(key)
        return state.result if state else None

    def poll_request(self, key: OwnerKey) -> PollRequest | None:
        """What is asked of a resource's Fleet."""
        state = self.states.get(key)
        return state.poll_request if state else None

    def _plan(self, key: OwnerKey, state: _State, delay: float) -> None:
        self._serial += 1
        state.due, state.serial = self.clock() + delay, self._serial
        heapq.heappush(self._heap, (state.due, self._serial, key))
        self._wake.set()

    async def run(self) -> None:
        """Ask until cancelled; never more a second than agreed."""
        gate = asyncio.Semaphore(AT_ONCE)
        running: set[asyncio.Task[None]] = set()
        for key, state in self.states.items():  # also those that were being asked when an earlier run ended
            self._plan(key, state, max(0.0, state.due - self.clock()))
        try:
            async with open_session(ASK_SECONDS, 2 * AT_ONCE) as session:
                while True:
                    key = await self._next()
                    await gate.acquire()
                    task = self.tasks.start("asking a Fleet", self._ask(session, key))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    task.add_done_callback(lambda _: gate.release())
                    await asyncio.sleep(1 / self.per_second)
        finally:
            for task in running:
                task.cancel()

    async def _next(self) -> OwnerKey:
        while True:
            now = self.clock()
            while self._heap:
                due, serial, key = self._heap[0]
                state = self.states.get(key)
                if state is None or state.serial != serial:
                    heapq.heappop(self._heap)
                elif due <= now:
                    heapq.heappop(self._heap)
                    return key
                else:
                    break
            self._wake.clear()
            timeout = self._heap[0][0] - now if self._heap else None
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _ask(self, session: aiohttp.ClientSession, key: OwnerKey) -> None:
        """Ask one Fleet, and plan the next question whatever comes of this one."""
        state = self.states.get(key)
        if state is None:
            return
        before, poll_request, began = state.result, state.poll_request, self.clock()
        self.asked += 1
        try:
            result = await self._poll(session, poll_request, before.evidence if before else None)
            state.failures = 0
        except Exception as error:
            if not isinstance(error, NoResponse):
                self.tasks.failed("asking a Fleet", error)
            self.failed += 1
            state.failures += 1
            result = _unanswered(before, state.failures, str(error) if isinstance(error, NoResponse) else FAULT)
        if self.states.get(key) is not state:
            return
        state.result = result
        self._plan(key, state, max(self._pause(state), SHARE * (self.clock() - began)))
        live = bool(result.evidence and result.evidence.accused) or bool(poll_request.held)
        if before is None or result.shown() != before.shown() or live:
            self.on_change(key)

    def _pause(self, state: _State) -> float:
        """How long a Fleet is left alone, by how it answered last."""
        result, poll_request = state.result, state.poll_request
        if state.failures:
            return min(LONGEST_PAUSE, self.longest * 2.0 ** min(state.failures, 5))
        if len(self.states) > MANY and not poll_request.urgent and not poll_request.held:
            return LONGEST_PAUSE
        if result is None or result.evidence is None:
            return self.longest
        return min(self.longest, max(0.2, result.evidence.interval / 2))

    async def _poll(
        self, session: aiohttp.ClientSession, poll_request: PollRequest, before: Evidence | None
    ) -> PollResult:
        headers = {"Authorization": f"Bearer {poll_request.token}"} if poll_request.token else {}

        async def payload(path: str, limit: int, *more: tuple[str, str]) -> dict[str, Any]:
            try:
                return await get_json(
                    session, poll_request.url + path, limit=limit, headers=headers, authority=poll_request.authority,
                    parameters=[(routes.CLUSTER_PARAMETER, poll_request.cluster), *more],
                )  # fmt: skip
            except NoResponse as failure:
                raise NoResponse(f"{failure} ({path})") from None

        nodes = None
        if poll_request.held:
            names = [(routes.NODE_PARAMETER, name) for name in sorted(poll_request.held)[:200]]
            nodes = await payload(routes.FLEET_VERDICTS, NODE_BYTES * (1 + len(names)), *names)
        return parse_response(
            await payload(routes.FLEET_STRAGGLERS, MAX_ANSWER), nodes, poll_request, self.clock(), before
        )


def _unanswered(before: PollResult | None, failures: int, why: str) -> PollResult:
    """What is known after a question without an answer. One that goes astray is not news; evidence ages all the
    same."""
    if before is not None and failures < PATIENCE:
        return before
    return replace(before or PollResult(), failure=why)
