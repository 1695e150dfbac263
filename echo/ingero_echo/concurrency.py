"""Limits how many questions run at once; the others wait. On the event loop's thread only."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from ingero_echo.errors import EchoApiError

MAX_WAITING: Final = 64
"""Maximum of waiting questions of one caller."""

MAX_WAITING_ALL: Final = 512
"""Maximum of waiting questions."""

STUCK_AFTER: Final = 30.0
"""Seconds that a query may run beyond its timeout before it counts as one that cannot be cancelled. DuckDB has such
states (https://github.com/duckdb/duckdb/issues/24961); they occupy a thread until the process ends."""


@dataclass
class ConcurrencyLimiter:
    """Limits the questions that run at once, first come, first served.

    Where several questions may run, one caller has at most all places but one, and as many turns in the queue: its
    other questions wait outside, so that a caller with many questions does not delay others.
    """

    places: int
    max_wait: float
    """Longest time that a question waits, seconds."""
    clock: Callable[[], float] = time.monotonic
    _waiting: Counter[str] = field(default_factory=Counter)
    _running: dict[object, float] = field(default_factory=dict)
    _shares: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    """By caller, for those with questions."""
    _questions: Counter[str] = field(default_factory=Counter)
    """Running and waiting ones by caller."""

    def __post_init__(self) -> None:
        self._all = asyncio.Semaphore(self.places)

    @property
    def waiting(self) -> int:
        """Number of waiting questions."""
        return self._waiting.total()

    @property
    def running(self) -> int:
        """Number of running questions."""
        return len(self._running)

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncIterator[None]:
        """Hold a place, after waiting for one; raises `EchoApiError` when that takes too long or too many wait."""
        if self._waiting[caller] >= MAX_WAITING or self.waiting >= MAX_WAITING_ALL:
            raise _busy("too many questions wait")
        share = self._shares.setdefault(caller, asyncio.Semaphore(max(1, self.places - 1)))
        key = object()
        self._questions[caller] += 1
        try:
            async with AsyncExitStack() as stack:
                self._waiting[caller] += 1
                try:
                    async with asyncio.timeout(self.max_wait):
                        await stack.enter_async_context(share)
                        await stack.enter_async_context(self._all)
                except TimeoutError:
                    raise _busy(f"no place became free within {self.max_wait:g} s") from None
                finally:
                    self._waiting[caller] -= 1
                self._running[key] = self.clock()
                yield
        finally:
            self._running.pop(key, None)
            self._questions[caller] -= 1
            if not self._questions[caller]:
                del self._questions[caller], self._waiting[caller], self._shares[caller]

    def stuck(self, now: float, timeout: float) -> bool:
        """Whether a query still runs long after it was cancelled. Its thread is freed only by a restart."""
        return any(now - since > timeout + STUCK_AFTER for since in list(self._running.values()))


def _busy(reason: str) -> EchoApiError:
    return EchoApiError("busy", reason, "ask again in a moment", status=429, retry_seconds=1)
