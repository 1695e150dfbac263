"""One replica: publishes what it received, applies what the log returns, and cuts ticks when they are due.

Nobody leads: the log admits one marker of those that several replicas cut at the same time. While the log is away no
tick is cut; pushes are still answered from the last results, so that nobody is accused or cleared by the absence.
"""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Final

from ingero_detect.nodes.column_store import SnapshotError
from ingero_fleet.collectives.polling import MAX_POLL_LOAD
from ingero_fleet.engine import POLLS_PER_TICK, Engine
from ingero_fleet.replication.agreement import Agreement
from ingero_fleet.replication.log_bodies import BatchHead, Marker, MarkerKind
from ingero_fleet.replication.ordered_log import LogAway, LogGap, LogMessage, OrderedLog
from ingero_fleet.replication.persistent_task import persist
from ingero_fleet.replication.published_verdicts import encode_verdicts
from ingero_fleet.replication.publisher import FLUSHES_PER_TICK, ReportPublisher
from ingero_fleet.replication.replicated_state import HASH_TICKS, Applied, Position, ReplicatedState
from ingero_fleet.replication.verdict_follower import VerdictFollower
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.state_machine import TickResult
from ingero_fleet.verdict_cache import VerdictCache
from ingero_kit.clock import rfc3339
from ingero_kit.logs import get
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal

log = get(__name__)

RANK_DELAY: Final = 0.1
"""Push intervals by which each further replica waits longer before it cuts a tick that is due."""

SILENT: Final = 0.4
"""Push intervals without a batch after which no replica waits for another one. Ten are published in each."""

AWAY_PAUSE: Final = 0.1
"""Longest pause in seconds before a marker is cut again that the log did not confirm."""

MARKERS_KEPT: Final = 256
"""Markers whose findings are kept in case the replica that exports them ends before it has."""


class Replica:
    """One for each Fleet that judges by a shared log. `publisher` takes pushes for the log; `run` does the rest."""

    def __init__(
        self, engine: Engine, state: ReplicatedState, shared: OrderedLog, receiving: ScoreTable, name: str,
        export: Callable[[Push], None],
    ) -> None:  # fmt: skip
        """`receiving` is the score map of this replica's receivers; `name` must be new for every process."""
        self.state = state
        self.at = state.position()
        """Where it is in the log. `state` itself may be changing in the worker."""
        self.name = name
        self.outcomes: Counter[str] = Counter()
        """Markers lost to others, gaps, reloads, messages that were dropped, by name."""
        self._engine, self._log, self._export = engine, shared, export
        self._interval = engine.config.push_interval
        self._agreement = Agreement()
        self._head = BatchHead(name, 0)
        self.publisher = ReportPublisher(
            shared, receiving, lambda: self._head, engine.clock, self._interval, self.outcomes
        )
        self.verdicts = VerdictFollower(shared, engine.clock, self._interval, self.outcomes, self._adopt_if_parked)
        self._next_tick = time.monotonic() + self._interval
        self._next_poll = 0.0
        self._marked = time.monotonic()
        self._rewound = False
        self._loading = False
        self._saving: asyncio.Task[None] | None = None
        self._exported = 0
        self._unexported: deque[tuple[int, list[Push]]] = deque(maxlen=MARKERS_KEPT)
        self._applied = asyncio.Event()
        engine.waits, engine.starts_unready = self._waits, True
        engine.facts.append(self.facts)

    # Health

    def facts(self) -> dict[str, Any]:
        """Facts for Fleet's health page."""
        away = self._log.health().away_since
        return {
            "replica": self.name,
            "replicas": len(self._living()),
            "receivers_only": self._agreement.receivers(self._recently()),
            "log": f"away since {rfc3339(away)}" if away else "ok",
            "log_sequence": self.at.sequence,
            "state_hash": self._head.state_hash,
            "state_hash_tick": self._head.hashed,
            "parked": self.at.parked,
            "log_messages": dict(self.state.outcomes),
            "replication": dict(self.outcomes),
        }

    def log_answer(self) -> dict[str, Any]:
        """How this replica follows the log, and its state of the last comparison."""
        health, senders = self._log.health(), len(self._living()) + self._agreement.receivers(self._recently())
        state = "ok"
        if health.away_since is not None:
            state = "away"
        elif self._loading:
            state = "reseeding"
        elif not self.at.ticks or health.lag > 3 * FLUSHES_PER_TICK * max(1, senders):
            state = "catching_up"
        return {
            "replica": self.name,
            "state": state,
            "away_since": rfc3339(health.away_since) if health.away_since is not None else None,
            "lag": health.lag,
            "state_hash": self._head.state_hash,
            "state_hash_tick": self._head.hashed,
            "rules": self.state.rules,
            "parked": self.at.parked,
            "rewound": self._rewound,
        }

    def _waits(self) -> bool:
        return self._log.health().away_since is not None

    def _living(self) -> dict[str, BatchHead]:
        return self._agreement.alive(self._recently())

    def _recently(self) -> float:
        return time.monotonic() - 3 * self._interval

    # Applying

    async def run(self) -> None:
        """Load the latest snapshot, then publish, follow and cut until cancelled."""
        while not await self._load(lambda ticks, state_hash: True):
            await asyncio.sleep(self._interval / FLUSHES_PER_TICK)
        async with asyncio.TaskGroup() as group:
            tasks = (
                self.publisher.keep_publishing, self.verdicts.keep_following, self.keep_following, self._keep_cutting,
            )  # fmt: skip
            for task in tasks:
                group.create_task(persist(task, self._interval / FLUSHES_PER_TICK, self.outcomes))

    async def keep_following(self) -> None:
        """Apply what the log returns until cancelled."""
        while True:
            messages = self._log.follow(self.at.sequence, self.at.now)
            async with contextlib.aclosing(messages):
                await self._follow(messages)

    async def _follow(self, messages: AsyncIterator[LogMessage | LogGap]) -> None:
        """Apply messages until the state was replaced by a snapshot."""
        async for item in messages:
            if isinstance(item, LogGap):
                if await self._bridge(item):
                    return
                continue
            judged = not self.at.parked
            applied, self.at = await self._in_worker(self._step, item)
            if judged and self.verdicts.cache:
                self._adopt_if_parked(self.verdicts.cache)
            if applied.head:
                self._agreement.note(applied.head, time.monotonic())
            if applied.marker:
                await self._announce(applied, applied.marker)
            if await self._reloaded(applied):
                return

    def _step(self, message: LogMessage) -> tuple[Applied, Position]:
        try:
            applied = self.state.apply(message)
        except Exception:
            # It fails alike on every replica, and the next message is tried.
            self.outcomes["failed_messages"] += 1
            log.exception("log_message_failed", sequence=message.sequence, kind=message.kind)
            applied = Applied()
        ticks = self.state.machine.ticks
        if applied.result and ticks % HASH_TICKS == 0:
            self._head = BatchHead(self.name, ticks, ticks, self.state.state_hash())
        elif self._head.ticks != ticks:
            self._head = BatchHead(self.name, ticks, self._head.hashed, self._head.state_hash)
        return applied, self.state.position()

    async def _announce(self, applied: Applied, marker: Marker) -> None:
        now = time.monotonic()
        own = marker.by == self.name
        self._marked, self._rewound = now, False
        if applied.result:
            self._next_tick = max(self._next_tick if own else now, now - self._interval / 2) + self._interval
            self._engine.announce(_as_of(applied.result, self._engine.clock()))
            await self._in_worker(self._engine.call_listeners, applied.result.snapshot)
        elif applied.judged_early:
            self._next_tick = now + self._interval
        self._hand_on(applied.findings, marker, own)
        self._applied.set()
        if applied.result and own:
            await self._publish_verdicts(applied.result)
        if applied.result and own and self._head.ticks == self._head.hashed:
            name, data = await self._snapshot()
            if self._saving is None or self._saving.done():
                self._saving = asyncio.create_task(self._save(name, data))

    async def _publish_verdicts(self, result: TickResult) -> None:
        """Send the answers of a tick to the receivers that do not judge. They get the next ones if these are lost."""
        body = await self._in_worker(encode_verdicts, self.at.ticks, result.verdict_cache)
        try:
            await self._log.publish_verdicts(f"{self.name}-{self.at.ticks}", body)
        except LogAway:
            self.outcomes["verdicts_lost"] += 1

    def _adopt_if_parked(self, cache: VerdictCache) -> None:
        """While this replica does not judge, answer pushes by the verdicts of those that do."""
        if self.at.parked:
            for publish in self._engine.publish:
                publish(cache)

    def _hand_on(self, findings: list[Push], marker: Marker, own: bool) -> None:
        """Export findings if this replica cut the marker, those included that nobody is known to have exported."""
        while self._unexported and self._unexported[0][0] <= marker.exported:
            self._unexported.popleft()
        if not own:
            self._unexported.append((marker.number, findings))
            return
        for _, earlier in self._unexported:
            self._send([push for push in earlier if push.signal is Signal.LOGS])
        self._unexported.clear()
        self._send(findings)
        self._exported = marker.number

    def _send(self, findings: list[Push]) -> None:
        for push in findings:
            self._export(push)

    async def _in_worker(self, step: Callable[..., Any], *values: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._engine.worker, step, *values)

    # Snapshots

    async def _snapshot(self) -> tuple[str, bytes]:
        """Name and bytes of the present state."""
        return f"{self.at.ticks}-{self._head.state_hash}", await self._in_worker(self.state.snapshot)

    async def _save(self, name: str, data: bytes) -> None:
        try:
            await self._log.save_snapshot(name, data)
        except LogAway:
            self.outcomes["snapshots_lost"] += 1

    async def _load(self, wanted: Callable[[int, str], bool]) -> bool:
        """Load the newest snapshot that is wanted, by ticks and state hash; `False` if the log did not answer."""
        self._loading = True
        try:
            async for one in self._log.load_snapshots():
                ticks, _, state_hash = one.name.partition("-")
                if not ticks.isdecimal() or not wanted(int(ticks), state_hash):
                    continue
                try:
                    await self._in_worker(self.state.restore, one.data)
                    self.at = self.state.position()
                    log.info("state_restored", snapshot=one.name, sequence=self.at.sequence)
                    self.outcomes["snapshots_loaded"] += 1
                    self._head = BatchHead(self.name, int(ticks), int(ticks), state_hash)
                    break
                except SnapshotError as error:
                    log.warning("snapshot_refused", snapshot=one.name, reason=str(error))
        except LogAway:
            return False
        finally:
            self._loading = False
        return True

    async def _reloaded(self, applied: Applied) -> bool:
        """Load another replica's state if this one missed a marker, or differs from what most replicas have."""
        loaded, ticks = self.outcomes["snapshots_loaded"], self.at.ticks
        if applied.missed:
            await self._load(lambda saved, _: saved >= ticks)
        elif applied.head and self._agreement.differs(self._head, self._recently()):
            tick, chosen = self._head.hashed, self._agreement.chosen(self._head.hashed)
            log.error("state_differs", tick=tick, own=self._head.state_hash, chosen=chosen)
            self.outcomes["states_differed"] += 1
            await self._load(lambda saved, state_hash: saved < tick or (saved == tick and state_hash == chosen))
        return self.outcomes["snapshots_loaded"] != loaded

    async def _bridge(self, gap: LogGap) -> bool:
        """Go on after messages that are lost; returns whether another state was loaded."""
        self.outcomes["gaps"] += 1
        log.error("log_gap", expected=gap.expected, first=gap.first)
        if gap.first > gap.expected:
            loaded, ticks = self.outcomes["snapshots_loaded"], self.at.ticks
            await self._load(lambda saved, _: saved > ticks)
            return self.outcomes["snapshots_loaded"] != loaded
        # The log was deleted or restored from an older copy. The state is kept; what the log repeats changes nothing.
        self.state.sequence, self.state.marker, self._rewound = gap.first - 1, 0, True
        self.at = self.state.position()
        self._marked = time.monotonic()
        return False

    # Markers

    async def _keep_cutting(self) -> None:
        while True:
            left = self._next_tick + self._delay() - time.monotonic()
            if left > 0 or not self._may_cut():
                pause = self._interval / POLLS_PER_TICK
                await asyncio.sleep(min(left, pause) if left > 0 else pause)
                if self.at.cut_by == self.name and not self.at.parked:
                    await self._poll_between_ticks()
            else:
                await self.cut("tick")

    def _delay(self) -> float:
        """Seconds that this replica leaves to those before it."""
        since = time.monotonic() - SILENT * self._interval
        return RANK_DELAY * self._interval * self._agreement.place(self.name, self.at.cut_by, self.at.ticks, since)

    def _may_cut(self) -> bool:
        silence = time.monotonic() - self._marked
        if self._rewound and silence < 3 * self._interval:
            ahead = max((head.ticks for head in self._living().values()), default=0)
            return silence >= self._interval and self.at.ticks >= ahead
        return not (self.at.parked and self.at.superseded) or silence > 3 * self._interval

    async def _poll_between_ticks(self) -> None:
        machine = self.state.machine
        if len(await self._in_worker(machine.fallen)):
            await self.cut("early_poll")
        elif machine.polls and time.monotonic() >= self._next_poll and machine.collectives.has_new_points:
            began = time.monotonic()
            await self.cut("collectives_poll")
            took = (time.monotonic() - began) / MAX_POLL_LOAD
            self._next_poll = began + max(machine.collectives.config.poll_interval, took)

    async def cut(self, kind: MarkerKind) -> bool:
        """Cut a marker, and wait until one was applied; returns whether it was the own one."""
        if self._rewound:
            await self._save(*await self._snapshot())
        at = self.at
        marker = Marker(kind, at.markers + 1, self.name, self.state.rules, max(self._exported, at.exported))
        self._applied.clear()
        try:
            won = await self._log.cut(f"{self.name}-{kind}-{marker.number}", marker.encode(), at.marker)
        except LogAway:
            self.outcomes["markers_lost"] += 1
            await asyncio.sleep(min(AWAY_PAUSE, self._interval / POLLS_PER_TICK))
            return False
        if not won:
            self.outcomes["markers_of_others"] += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._applied.wait(), self._interval)
        return won


def _as_of(result: TickResult, now: float) -> TickResult:
    """The result with a verdict cache as of this replica's time, on which its nodes were first seen."""
    cache = result.verdict_cache
    return replace(result, verdict_cache=replace(cache, verdicts=replace(cache.verdicts, as_of=now)))
