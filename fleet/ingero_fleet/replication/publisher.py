"""Publishes what one Fleet received: reports ten times in a push interval, pushes with collectives or taints as they
came."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final

from ingero_fleet.receivers.messages import encode_push
from ingero_fleet.replication.log_bodies import BatchHead, encode_reports
from ingero_fleet.replication.ordered_log import LogAway, OrderedLog
from ingero_fleet.score_table import ScoreTable
from ingero_kit.clock import Clock
from ingero_kit.otlp_receiver import Push

FLUSHES_PER_TICK: Final = 10
"""How often in a push interval fresh reports are published."""

BATCH_NODES: Final = 4000
"""Most nodes in one message."""

MAX_PUSH_BYTES: Final = 64 << 20
"""Pushes with collectives or taints that may wait to be published; the oldest are dropped and counted."""


class ReportPublisher:
    """`observe` takes pushes for the log, `keep_publishing` sends them with the fresh reports of a score map."""

    def __init__(
        self, shared: OrderedLog, receiving: ScoreTable, head: Callable[[], BatchHead], clock: Clock,
        interval: float, outcomes: Counter[str],
    ) -> None:  # fmt: skip
        """`head` is what each batch says of its sender, whose name must be new for every process."""
        self.collect_reports: Callable[[], Awaitable[None]] | None = None
        """Awaited before reports are published: collects those of the receiver processes."""
        self._log, self._receiving, self._head, self._clock = shared, receiving, head, clock
        self._interval, self._outcomes = interval, outcomes
        self._sender = head().replica
        self._pushes: deque[tuple[str, bytes]] = deque()
        self._push_bytes = 0
        self._number = 0

    def observe(self, push: Push, now: float) -> None:
        """Take a push with collectives or taints; it is published soon."""
        body = encode_push(push, now)
        self._pushes.append((self._key(), body))
        self._push_bytes += len(body)
        while self._push_bytes > MAX_PUSH_BYTES:
            self._push_bytes -= len(self._pushes.popleft()[1])
            self._outcomes["pushes_dropped"] += 1

    def _key(self) -> str:
        self._number += 1
        return f"{self._sender}-{self._number}"

    async def publish(self) -> None:
        """Publish what was received since the last call; raises `LogAway`."""
        if self.collect_reports:
            await self.collect_reports()
        now = self._clock()
        self._receiving.expire(now)
        while True:
            # Before every batch: messages with much lower numbers than those before them count as repeated.
            await self._publish_pushes()
            batch = self._receiving.take_fresh(BATCH_NODES)
            await self._log.publish("batch", self._key(), encode_reports(self._head(), batch, now))
            if len(batch.names) < BATCH_NODES:
                return

    async def _publish_pushes(self) -> None:
        while self._pushes:
            key, body = self._pushes[0]
            await self._log.publish("push", key, body)
            if self._pushes and self._pushes[0][0] == key:
                self._pushes.popleft()
                self._push_bytes -= len(body)

    async def keep_publishing(self) -> None:
        """Publish until cancelled."""
        while True:
            await asyncio.sleep(self._interval / FLUSHES_PER_TICK)
            try:
                await self.publish()
            except LogAway:
                # Reports of this call are lost. Each node has sent a newer one by the time that the log is back.
                self._outcomes["flushes_lost"] += 1

    async def hand_over(self, seconds: float) -> None:
        """Publish what was received last, before this process ends, as far as the log takes it in time."""
        with contextlib.suppress(LogAway, TimeoutError):
            await asyncio.wait_for(self.publish(), seconds)
