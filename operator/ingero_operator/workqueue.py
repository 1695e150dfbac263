"""A work queue of keys to reconcile: each queued at most once, one run per key at a time, back-off on failure."""

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from ingero_kit.backoff import Backoff
from ingero_kit.logs import get

log = get(__name__)

HINT_SECONDS: Final = 10.0
"""Longest delay of a run that is requested for a key whose last run failed."""

Key = TypeVar("Key", bound=Hashable)
Worker = Callable[[Key], Awaitable[float | None]]
"""Reconciles one key; may return the seconds after which it wants to be called again."""


class WorkQueue(Generic[Key]):
    """A queue of dirty keys. A key that becomes dirty during its run is run once more."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self.backoff = backoff or Backoff(first=1.0, longest=300.0, jitter=0.3)
        self.failures: dict[Key, int] = {}
        self._failed_at: dict[Key, float] = {}
        self._hinted: set[Key] = set()
        self.done = 0
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._number = 0
        self._running: set[Key] = set()
        self._again: dict[Key, float] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due) + len(self._running)

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Request a run; an earlier run that is already scheduled stays."""
        due = asyncio.get_running_loop().time() + delay
        if key in self._running:
            self._again[key] = min(due, self._again.get(key, due))
            return
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        self._number += 1
        heapq.heappush(self._heap, (due, self._number, key))
        self._wake.set()

    def hint(self, key: Key) -> None:
        """Request a run because of an event that recurs: a key that failed waits for the end of its back-off, but no
        longer than `HINT_SECONDS`."""
        if key in self._running:
            self._hinted.add(key)
            return
        failed = self._failed_at.get(key)
        rest = 0.0 if failed is None else failed + HINT_SECONDS - asyncio.get_running_loop().time()
        self.add(key, max(0.0, rest))

    def forget(self, key: Key) -> None:
        """Drop the state of a deleted key."""
        self.failures.pop(key, None)
        self._failed_at.pop(key, None)
        self._due.pop(key, None)
        self._again.pop(key, None)
        self._hinted.discard(key)

    def idle(self) -> bool:
        """Whether nothing runs and nothing is due now."""
        now = asyncio.get_running_loop().time()
        return not self._running and not any(due <= now for due in self._due.values())

    async def _next(self) -> Key:
        while True:
            now = asyncio.get_running_loop().time()
            while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
                heapq.heappop(self._heap)
            if self._heap and self._heap[0][0] <= now:
                _, _, key = heapq.heappop(self._heap)
                del self._due[key]
                self._running.add(key)
                return key
            self._wake.clear()
            timeout = self._heap[0][0] - now if self._heap else None
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _serve(self, worker: Worker[Key]) -> None:
        while True:
            key = await self._next()
            again: float | None = None
            try:
                again = await worker(key)
                self.failures.pop(key, None)
                self._failed_at.pop(key, None)
            except Exception as error:
                count = self.failures[key] = self.failures.get(key, 0) + 1
                self._failed_at[key] = asyncio.get_running_loop().time()
                again = self.backoff.delay(count - 1, random.random())
                log.warning(
                    "reconcile_failed", key=str(key), tries=count, again_in=round(again, 1), reason=str(error)
                )
                if not getattr(error, "expected", False):
                    log.debug("reconcile_failed_where", exc_info=True)
            finally:
                self._running.discard(key)
                self.done += 1
                dirty = self._again.pop(key, None)
                if dirty is not None:
                    self.add(key, max(0.0, dirty - asyncio.get_running_loop().time()))
                if again is not None:
                    self.add(key, again)
                if key in self._hinted:
                    self._hinted.discard(key)
                    self.hint(key)

    async def run(self, worker: Worker[Key], workers: int = 8) -> None:
        """Work until cancelled."""
        tasks = [asyncio.create_task(self._serve(worker)) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
