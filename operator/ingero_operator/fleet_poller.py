"""Polls every Fleet for stragglers and for the recovery of tainted nodes, one request at a time for each Fleet."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import aiohttp
from pydantic import ValidationError
from yarl import URL

from ingero_contract import routes
from ingero_kit.clock import Clock
from ingero_operator.cache import OwnerKey
from ingero_operator.fleet_answers import PollRequest, PollResult, parse_response
from ingero_operator.log_conditions import ReplicaLog, log_conditions, log_figures, taint_problem
from ingero_operator.taints.model import Evidence
from ingero_operator.tasks import Tasks
from ingero_operator.untrusted_http import NoResponse, get_json, open_session
from ingero_operator.workqueue import DelayQueue

POLL_SECONDS: Final = 5.0
"""Longest time of one poll."""
MAX_ANSWER: Final = 2 << 20
"""Most bytes of one response. Decoding briefly takes up to thirty times as much, for one response at a time."""
NODE_BYTES: Final = 16 << 10
"""Most bytes per node of a response about nodes that were requested by name."""
LONGEST_PAUSE: Final = 60.0
REST_FACTOR: Final = 4.0
"""Pause after a poll, in multiples of its duration: a slow Fleet must not delay the others."""
CONCURRENT: Final = 16
"""Most concurrent polls."""
TOLERATED_FAILURES: Final = 3
"""Failed polls in a row after which Fleet counts as unreachable."""
FAULT: Final = "polling it failed by a fault of the operator, which its log has; please report it"
FULL_PACE_FLEETS: Final = 100
"""Number of Fleets above which those without possible actions are polled once a minute."""


@dataclass
class _State:
    poll_request: PollRequest
    result: PollResult | None = None
    failures: int = 0


@dataclass
class FleetPoller:
    """Polls every Fleet in turn and reports which results changed."""

    clock: Clock
    longest: float
    per_second: float
    on_change: Callable[[OwnerKey], None]
    states: dict[OwnerKey, _State] = field(default_factory=dict)
    tasks: Tasks = field(default_factory=Tasks)
    polls: int = 0
    failed: int = 0
    _waiting: DelayQueue[OwnerKey] = field(default_factory=DelayQueue)

    def watch(self, key: OwnerKey, poll_request: PollRequest) -> None:
        """Poll a resource's Fleet from now on."""
        state = self.states.get(key)
        if state is None:
            self.states[key] = _State(poll_request)
            self._waiting.add(key)
        elif state.poll_request != poll_request:
            old, state.poll_request = state.poll_request, poll_request
            if (old.url, old.token, old.authority) != (poll_request.url, poll_request.token, poll_request.authority):
                self._waiting.add(key)

    def forget(self, key: OwnerKey) -> None:
        """Stop polling."""
        self.states.pop(key, None)
        self._waiting.discard(key)

    def result(self, key: OwnerKey) -> PollResult | None:
        """The latest result; `None` before the first."""
        state = self.states.get(key)
        return state.result if state else None

    def poll_request(self, key: OwnerKey) -> PollRequest | None:
        """The request by which a resource's Fleet is polled."""
        state = self.states.get(key)
        return state.poll_request if state else None

    async def run(self) -> None:
        """Poll until cancelled; never more often in a second than `per_second`."""
        limit = asyncio.Semaphore(CONCURRENT)
        running: set[asyncio.Task[None]] = set()
        for key in self.states:  # also Fleets whose poll an earlier run started
            self._waiting.add(key)
        try:
            async with open_session(POLL_SECONDS, 2 * CONCURRENT) as session:
                while True:
                    key = await self._waiting.next()
                    await limit.acquire()
                    task = self.tasks.start("fleet poll", self._poll_one(session, key))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    task.add_done_callback(lambda _: limit.release())
                    await asyncio.sleep(1 / self.per_second)
        finally:
            for task in running:
                task.cancel()

    async def _poll_one(self, session: aiohttp.ClientSession, key: OwnerKey) -> None:
        """Poll one Fleet, and plan the next poll whatever the result."""
        state = self.states.get(key)
        if state is None:
            return
        before, poll_request, began = state.result, state.poll_request, self.clock()
        self.polls += 1
        log_state: LogState | None = None
        try:
            log_state = await ask_replicas(session, poll_request)
            result = await self._poll(session, poll_request, before.evidence if before else None)
            state.failures = 0
        except Exception as error:
            if not isinstance(error, NoResponse):
                self.tasks.failed("fleet poll", error)
            self.failed += 1
            state.failures += 1
            result = _after_failure(before, state.failures, str(error) if isinstance(error, NoResponse) else FAULT)
        if self.states.get(key) is not state:
            return
        state.result = result = with_log(result, log_state)
        self._waiting.add(key, max(self._pause(state), REST_FACTOR * (self.clock() - began)))
        live = bool(result.evidence and result.evidence.accused) or bool(poll_request.tainted)
        if before is None or result.visible() != before.visible() or live:
            self.on_change(key)

    def _pause(self, state: _State) -> float:
        """Seconds until the next poll, by the last result."""
        result, poll_request = state.result, state.poll_request
        if state.failures:
            return min(LONGEST_PAUSE, self.longest * 2.0 ** min(state.failures, 5))
        if len(self.states) > FULL_PACE_FLEETS and not poll_request.urgent and not poll_request.tainted:
            return LONGEST_PAUSE
        if result is None or result.evidence is None:
            return self.longest
        return min(self.longest, max(0.2, result.evidence.interval / 2))

    async def _poll(
        self, session: aiohttp.ClientSession, poll_request: PollRequest, before: Evidence | None
    ) -> PollResult:
        headers = {"Authorization": f"Bearer {poll_request.token}"} if poll_request.token else {}

        async def fetch(path: str, limit: int, *more: tuple[str, str]) -> dict[str, Any]:
            try:
                return await get_json(
                    session, poll_request.url + path, limit=limit, headers=headers, authority=poll_request.authority,
                    parameters=[(routes.CLUSTER_PARAMETER, poll_request.cluster), *more],
                )  # fmt: skip
            except NoResponse as failure:
                raise NoResponse(f"{failure} ({path})") from None

        nodes = None
        if poll_request.tainted:
            names = [(routes.NODE_PARAMETER, name) for name in sorted(poll_request.tainted)[:200]]
            nodes = await fetch(routes.FLEET_VERDICTS, NODE_BYTES * (1 + len(names)), *names)
        return parse_response(
            await fetch(routes.FLEET_STRAGGLERS, MAX_ANSWER), nodes, poll_request, self.clock(), before
        )


def _after_failure(before: PollResult | None, failures: int, why: str) -> PollResult:
    """The result after a failed poll. A few failures are tolerated, while the evidence ages."""
    if before is not None and failures < TOLERATED_FAILURES:
        return before
    return replace(before or PollResult(), failure=why)


MAX_LOG_ANSWER: Final = 16 << 10
"""Most bytes of one answer."""


@dataclass(frozen=True, kw_only=True)
class LogState:
    """What the replicas that were asked answered."""

    answers: tuple[ReplicaLog, ...]
    wanted: int


async def ask_replicas(session: aiohttp.ClientSession, request: PollRequest) -> LogState | None:
    """Ask every known replica, or any one while none is known by address; `None` without a shared log."""
    if not request.replicas_wanted:
        return None
    service = URL(request.url)
    urls = [service.with_host(address) for address in request.replicas] or [service]
    found = await asyncio.gather(*(_ask(session, request, url, service.host) for url in urls))
    return LogState(answers=tuple(item for item in found if item), wanted=request.replicas_wanted)


async def _ask(
    session: aiohttp.ClientSession, request: PollRequest, url: URL, server_name: str | None
) -> ReplicaLog | None:
    """One replica's answer; `None` where there is none that can be read."""
    headers = {"Authorization": f"Bearer {request.token}"} if request.token else {}
    try:
        answer = await get_json(
            session, str(url.with_path(routes.FLEET_LOG)), limit=MAX_LOG_ANSWER, headers=headers,
            authority=request.authority, server_name=server_name,
        )  # fmt: skip
        return ReplicaLog.model_validate(answer)
    except (NoResponse, ValidationError):
        return None


def with_log(result: PollResult, state: LogState | None) -> PollResult:
    """The result with what the replicas answered about the log. Pure."""
    if state is None:
        return replace(result, log=(), log_figures=None)
    conditions = log_conditions(state.answers)
    evidence = result.evidence and replace(result.evidence, log_problem=taint_problem(conditions))
    return replace(result, log=conditions, log_figures=log_figures(state.answers, state.wanted), evidence=evidence)
