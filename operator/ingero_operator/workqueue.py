"""A work queue of keys to reconcile: each queued at most once, one run per key at a time, back-off on failure."""

import asyncio
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


class DelayQueue(Generic[Key]):
    """Keys with a delay. Each is queued once, for the earliest of its times."""

    def __init__(self) -> None:
        self.due: dict[Key, tuple[float, asyncio.Handle]] = {}
        """When each key is due, on the clock of the event loop."""
        self.ready: set[Key] = set()
        """Keys that are due now."""
        self._ready: asyncio.Queue[Key] = asyncio.Queue()

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Queue a key; one that is already due earlier stays as it is."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        if key in self.due and self.due[key][0] <= due:
            return
        self.discard(key)
        self.due[key] = due, loop.call_at(due, self._release, key)
        if delay <= 0:
            self.ready.add(key)

    def _release(self, key: Key) -> None:
        self.ready.add(key)
        self._ready.put_nowait(key)

    def discard(self, key: Key) -> None:
        """Take a key out of the queue."""
        if key in self.due:
            self.due.pop(key)[1].cancel()
            self.ready.discard(key)

    async def next(self) -> Key:
        """Wait for the next key that is due, and take it out."""
        while (key := await self._ready.get()) not in self.due:
            pass
        self.discard(key)
        return key


class WorkQueue(Generic[Key]):
    """A queue of dirty keys. A key that becomes dirty during its run is run once more."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self.backoff = backoff or Backoff(first=1.0, longest=300.0, jitter=0.3)
        self.failures: dict[Key, int] = {}
        self.done = 0
        self.waiting: DelayQueue[Key] = DelayQueue()
        self._failed_at: dict[Key, float] = {}
        self._running: set[Key] = set()
        self._again: dict[Key, float] = {}
        self._hinted: set[Key] = set()

    def __len__(self) -> int:
        """Keys that are due or run; those that wait for a delay are not among them."""
        return len(self.waiting.ready) + len(self._running)

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Request a run; an earlier run that is already scheduled stays."""
        if key in self._running:
            due = asyncio.get_running_loop().time() + delay
            self._again[key] = min(due, self._again.get(key, due))
        else:
            self.waiting.add(key, delay)

    def hint(self, key: Key) -> None:
        """Request a run because of an event that recurs: a key that failed waits for the end of its back-off, but no
        longer than `HINT_SECONDS`."""
        if key in self._running:
            self._hinted.add(key)
            return
        failed = self._failed_at.get(key)
        rest = 0.0 if failed is None else failed + HINT_SECONDS - asyncio.get_running_loop().time()
        self.add(key, max(0.0, rest))

    async def _serve(self, worker: Worker[Key]) -> None:
        while True:
            key = await self.waiting.next()
            self._running.add(key)
            again: float | None = None
            try:
                again = await worker(key)
                self.failures.pop(key, None)
                self._failed_at.pop(key, None)
            except Exception as error:
                count = self.failures[key] = self.failures.get(key, 0) + 1
                self._failed_at[key] = asyncio.get_running_loop().time()
                again = self.backoff.delay(count - 1)
                log.warning(
                    "reconcile_failed", key=str(key), tries=count, again_in=round(again, 1), reason=str(error)
                )
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
        await asyncio.gather(*(self._serve(worker) for _ in range(workers)))
