"""Asking Fleet: who is a straggler, and are the nodes that we hold well again. One question at a time per Fleet."""

import asyncio
import heapq
import json
import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from ingero_contract import routes
from ingero_contract.values import NodeState
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_operator.taints.facts import Accused, Evidence
from ingero_operator.taints.nodes import moment

log = get(__name__)

Key = tuple[str, str, str]
ASK_SECONDS: Final = 5.0
MAX_ANSWER: Final = 8 << 20
LONGEST_PAUSE: Final = 60.0
PATIENCE: Final = 3
"""Questions without an answer after which Fleet counts as unreachable."""
MANY: Final = 100
"""Fleets beyond which those that nobody acts on are asked once a minute."""


@dataclass(frozen=True, kw_only=True)
class Question:
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


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back: evidence, figures for people, or why there is none."""

    evidence: Evidence | None = None
    threshold: float | None = None
    active: int = 0
    expected: int = 0
    cost: dict[str, Any] | None = None
    """`status.cost`, rounded to what is shown."""
    failure: str = ""

    def shown(self) -> tuple[Any, ...]:
        """What a change of which is news."""
        evidence = self.evidence
        facts: tuple[Any, ...] = ()
        if evidence:
            facts = (evidence.quorum, evidence.panic, evidence.coverage_low, frozenset(evidence.accused))
        threshold = None if self.threshold is None else f"{self.threshold:.2f}"
        return bool(self.failure), facts, threshold, self.active, self.expected, self.cost


def read(stragglers: dict[str, Any], nodes: list[dict[str, Any]], now: float, before: Evidence | None) -> Answer:
    """Fleet's answers as evidence. Pure; raises `ValueError` for an answer that is none."""
    try:
        tick, by_verdict = str(stragglers["generated_at"]), stragglers.get("decided_by") == "verdict"
        accused = {
            str(item["node_id"]): Accused(
                active=item["state"] == NodeState.ACTIVE,
                since=moment(item.get("since")) or None,
                windows=int(item.get("windows") or 0),
                score=None if by_verdict else item.get("score"),
                threshold=None if by_verdict else item.get("threshold"),
                severity=(item.get("verdict") or {}).get("severity") if by_verdict else None,
            )
            for item in stragglers["stragglers"]
        }
        well = frozenset(
            str(item["node_id"]) for item in nodes if item["state"] == NodeState.ACTIVE and not item["straggler"]
        )
        threshold = stragglers.get("threshold")
        evidence = Evidence(
            tick=tick,
            received=before.received if before is not None and before.tick == tick else now,
            interval=float(stragglers["interval_seconds"]),
            quorum=bool(stragglers["quorum_met"]),
            panic=bool(stragglers["panic"]),
            coverage_low=bool(stragglers["coverage_low"]),
            threshold=by_verdict or threshold is not None or bool(accused),
            accused=accused,
            well=well - set(accused),
        )
        counts = stragglers.get("nodes") or {}
        return Answer(
            evidence=evidence,
            threshold=float(threshold) if threshold is not None else None,
            active=int(counts.get("active", 0)),
            expected=int(counts.get("expected", 0)),
            cost=_cost(stragglers.get("cost")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"Fleet's answer cannot be read: {error!r}") from None


def _cost(told: Any) -> dict[str, Any] | None:
    """Fleet's sums as `status.cost`; nothing where nothing has a price.

    Nothing either where they cannot be read: what a straggler costs must not decide whether it is seen. Waiting moves
    with every tick, so two digits of it are told.
    """
    try:
        cost, waiting = float(told["cost_per_hour"]), float(told["waiting_per_hour"])
        unpriced, currency = int(told["gpus_without_rate"]), str(told["currency"])[:16]
    except (KeyError, TypeError, ValueError):
        return None
    out: dict[str, Any] = {}
    if 0 < cost < math.inf and 0 <= waiting < math.inf:
        out = {"currency": currency, "perHour": f"{cost:.2f}", "waitingPerHour": _two_digits(waiting)}
    if unpriced > 0:
        out["gpusWithoutRate"] = unpriced
    return out or None


def _two_digits(amount: float) -> str:
    rounded = float(f"{amount:.2g}")
    return f"{rounded:.{0 if rounded >= 10 else 1 if rounded >= 1 else 2}f}"


@dataclass
class _State:
    question: Question
    answer: Answer | None = None
    failures: int = 0
    due: float = 0.0
    serial: int = 0


@dataclass
class Inquirer:
    """Asks every Fleet in turn and says which answers are news."""

    clock: Clock
    longest: float
    per_second: float
    news: Callable[[Key], None]
    states: dict[Key, _State] = field(default_factory=dict)
    asked: int = 0
    failed: int = 0
    _heap: list[tuple[float, int, Key]] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _serial: int = 0

    def watch(self, key: Key, question: Question) -> None:
        """Ask this of a resource's Fleet from now on."""
        state = self.states.get(key)
        if state is None:
            self.states[key] = state = _State(question)
            self._plan(key, state, 0.0)
        elif state.question != question:
            changed = state.question.url != question.url or state.question.token != question.token
            state.question = question
            if changed:
                self._plan(key, state, 0.0)

    def forget(self, key: Key) -> None:
        """Stop asking."""
        self.states.pop(key, None)

    def answer(self, key: Key) -> Answer | None:
        """The latest answer."""
        state = self.states.get(key)
        return state.answer if state else None

    def question(self, key: Key) -> Question | None:
        """What is asked of a resource's Fleet."""
        state = self.states.get(key)
        return state.question if state else None

    def _plan(self, key: Key, state: _State, delay: float) -> None:
        self._serial += 1
        state.due, state.serial = self.clock() + delay, self._serial
        heapq.heappush(self._heap, (state.due, self._serial, key))
        self._wake.set()

    async def run(self) -> None:
        """Ask until cancelled; never more a second than agreed."""
        gate = asyncio.Semaphore(16)
        running: set[asyncio.Task[None]] = set()
        try:
            async with aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=ASK_SECONDS), connector=aiohttp.TCPConnector(limit=32)
            ) as session:
                while True:
                    key = await self._next()
                    await gate.acquire()
                    task = asyncio.create_task(self._ask(session, key))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    task.add_done_callback(lambda _: gate.release())
                    await asyncio.sleep(1 / self.per_second)
        finally:
            for task in running:
                task.cancel()

    async def _next(self) -> Key:
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

    async def _ask(self, session: aiohttp.ClientSession, key: Key) -> None:
        state = self.states.get(key)
        if state is None:
            return
        before, question = state.answer, state.question
        self.asked += 1
        try:
            answer = await self._question(session, question, before.evidence if before else None)
            state.failures = 0
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, ssl.SSLError) as error:
            self.failed += 1
            state.failures += 1
            old = before or Answer()
            # One question that goes astray is not news; the evidence ages all the same.
            answer = (
                old
                if before is not None and state.failures < PATIENCE
                else Answer(
                    evidence=old.evidence,
                    threshold=old.threshold,
                    active=old.active,
                    expected=old.expected,
                    cost=old.cost,
                    failure=str(error) or type(error).__name__,
                )
            )
        if self.states.get(key) is not state:
            return
        state.answer = answer
        pause = min(LONGEST_PAUSE, self.longest * 2 ** min(state.failures, 5)) if state.failures else self.longest
        if answer.evidence and not state.failures:
            pause = min(self.longest, max(0.2, answer.evidence.interval / 2))
            if len(self.states) > MANY and not question.urgent and not question.held:
                pause = LONGEST_PAUSE
        self._plan(key, state, pause)
        live = bool(answer.evidence and answer.evidence.accused) or bool(question.held)
        if before is None or answer.shown() != before.shown() or live:
            self.news(key)

    async def _question(self, session: aiohttp.ClientSession, question: Question, before: Evidence | None) -> Answer:
        headers = {"Authorization": f"Bearer {question.token}"} if question.token else {}
        trust: ssl.SSLContext | bool = True
        if question.authority:
            trust = ssl.create_default_context(cadata=question.authority)

        async def ask(path: str, parameters: list[tuple[str, str]]) -> dict[str, Any]:
            async with session.get(question.url + path, params=parameters, headers=headers, ssl=trust) as answer:
                if answer.status != 200:
                    raise ValueError(f"Fleet answers {answer.status} for {path}")
                if (answer.content_length or 0) > MAX_ANSWER:
                    raise ValueError(f"Fleet's answer to {path} is larger than {MAX_ANSWER} bytes")
                return _decode(await answer.read())

        cluster = (routes.CLUSTER_PARAMETER, question.cluster)
        stragglers = await ask(routes.FLEET_STRAGGLERS, [cluster])
        nodes: list[dict[str, Any]] = []
        if question.held:
            names = [(routes.NODE_PARAMETER, name) for name in sorted(question.held)[:200]]
            nodes = list((await ask(routes.FLEET_VERDICTS, [cluster, *names])).get("nodes", []))
        return read(stragglers, nodes, self.clock(), before)


def _decode(raw: bytes) -> dict[str, Any]:
    tree = json.loads(raw)
    if not isinstance(tree, dict):
        raise ValueError("Fleet's answer is not an object")
    return tree
