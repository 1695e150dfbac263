"""Sends requests in the background, a bounded number at a time, and retries each until it is accepted or too old."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from ingero_kit.backoff import Backoff
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_operator.tasks import Tasks

log = get(__name__)

WAITING: Final = 1000
"""Most requests that wait for an answer or a retry; further ones are dropped."""
KEPT_SECONDS: Final = 900.0
"""How long a request is retried."""
CONCURRENT: Final = 8
"""Most concurrent requests."""


class TryAgain(Exception):
    """The request was not accepted now; the message says why."""


class Refused(Exception):
    """The request will never be accepted; the message says why."""


@dataclass
class RetryingExporter:
    """Counts what was `sent`, and what was `lost`: refused, too old, or more than may wait."""

    clock: Clock
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=60.0))
    kept_seconds: float = KEPT_SECONDS
    tasks: Tasks = field(default_factory=Tasks)
    sent: int = 0
    lost: int = 0
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT))

    def __len__(self) -> int:
        return len(self._running)

    def start(self, name: str, send: Callable[[], Awaitable[None]]) -> bool:
        """Call `send` in the background until it raises neither `TryAgain` nor `Refused`; whether there was room."""
        if len(self._running) >= WAITING:
            self._lose(name, "too many wait")
            return False
        task = self.tasks.start(name, self._deliver(name, send))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return True

    def _lose(self, name: str, why: str) -> None:
        self.lost += 1
        log.warning("not_delivered", what=name, reason=why)

    async def _deliver(self, name: str, send: Callable[[], Awaitable[None]]) -> None:
        until = self.clock() + self.kept_seconds
        for attempt in itertools.count():
            try:
                async with self._limit:
                    await send()
            except TryAgain as failure:
                delay = self.backoff.delay(attempt)
                if self.clock() + delay > until:
                    self._lose(name, str(failure))
                    return
                await asyncio.sleep(delay)
            except Refused as refusal:
                self._lose(name, str(refusal))
                return
            else:
                self.sent += 1
                return
