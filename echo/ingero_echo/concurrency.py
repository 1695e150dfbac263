"""Limits how many questions run at once; the others wait in a fair queue. On the event loop's thread only."""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from ingero_echo.errors import ApiError

MAX_WAITING: Final = 64
"""Maximum of waiting questions of one caller."""

MAX_WAITING_ALL: Final = 512
"""Maximum of waiting questions."""

STUCK_AFTER: Final = 30.0
"""Seconds that a query may run beyond its timeout before it counts as one that cannot be cancelled. DuckDB has such
states (https://github.com/duckdb/duckdb/issues/24961); they occupy a thread until the process ends."""


@dataclass
class ConcurrencyLimiter:
    """Limits the questions that run at once. Callers take turns, so that a caller with many questions does not delay
    others. Where several questions may run, one caller never has all places."""

    places: int
    max_wait: float
    """Longest time that a question waits, seconds."""
    clock: Callable[[], float] = time.monotonic
    _running: dict[object, tuple[str, float]] = field(default_factory=dict)
    _held: Counter[str] = field(default_factory=Counter)
    _queues: OrderedDict[str, deque[asyncio.Future[None]]] = field(default_factory=OrderedDict)
    """Waiting questions by caller. The first caller is served next, then moves to the end."""

    @property
    def waiting(self) -> int:
        """Number of waiting questions."""
        return sum(map(len, self._queues.values()))

    @property
    def running(self) -> int:
        """Number of running questions."""
        return len(self._running)

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncIterator[None]:
        """Hold a place, after waiting for one; raises `ApiError` when that takes too long or too many wait."""
        if self._queues or not self._room(caller):
            await self._wait(caller)
        else:
            self._held[caller] += 1
        key = object()
        self._running[key] = (caller, self.clock())
        try:
            yield
        finally:
            del self._running[key]
            self._give_back(caller)

    def stuck(self, now: float, timeout: float) -> bool:
        """Whether a query still runs long after it was cancelled. Its thread is freed only by a restart."""
        return any(now - since > timeout + STUCK_AFTER for _, since in list(self._running.values()))

    def _room(self, caller: str) -> bool:
        return self._held.total() < self.places and self._held[caller] < max(1, self.places - 1)

    async def _wait(self, caller: str) -> None:
        queue = self._queues.get(caller)
        if (queue is not None and len(queue) >= MAX_WAITING) or self.waiting >= MAX_WAITING_ALL:
            raise _busy("too many questions wait")
        if queue is None:
            queue = self._queues[caller] = deque()
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(mine)
        self._serve()
        try:
            async with asyncio.timeout(self.max_wait):
                await mine
        except BaseException as error:
            if mine.done() and not mine.cancelled():
                self._give_back(caller)
            else:
                self._leave(caller, mine)
            if isinstance(error, TimeoutError):
                raise _busy(f"no place became free within {self.max_wait:g} s") from None
            raise

    def _leave(self, caller: str, mine: asyncio.Future[None]) -> None:
        queue = self._queues.get(caller)
        if queue is not None and mine in queue:
            queue.remove(mine)
            if not queue:
                del self._queues[caller]

    def _give_back(self, caller: str) -> None:
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        self._serve()

    def _serve(self) -> None:
        """Give free places to waiting questions, one caller after the other."""
        for caller in list(self._queues):
            queue = self._queues.get(caller)
            if queue is None or not self._room(caller):
                continue
            mine = queue.popleft()
            self._queues.move_to_end(caller)
            if not queue:
                del self._queues[caller]
            self._held[caller] += 1
            mine.set_result(None)


def _busy(reason: str) -> ApiError:
    return ApiError("busy", reason, "ask again in a moment", status=429, retry_seconds=1)
