"""An ordered log in memory, for several replicas in one event loop; tests break it on purpose."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from ingero_fleet.replication.ordered_log import (
    LogAway,
    LogGap,
    LogHealth,
    LogMessage,
    LogSnapshot,
    MessageKind,
)


class MemoryLog:
    """Every replica of a test uses the same one. `now` is its clock: seconds, set by the test."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self.away = False
        """While true, nothing is confirmed and readers get nothing."""
        self.first = 1
        self.messages: list[LogMessage] = []
        self.snapshots: list[LogSnapshot] = []
        self.gaps = 0
        self._keys: set[str] = set()
        self._verdicts: list[asyncio.Queue[bytes]] = []
        self._changed = asyncio.Event()

    @property
    def last(self) -> int:
        """Sequence of the last message; 0 if there never was one."""
        return self.first + len(self.messages) - 1

    def marker(self) -> int:
        """Sequence of the last marker; 0 without one."""
        return next((one.sequence for one in reversed(self.messages) if one.kind == "marker"), 0)

    async def publish(self, kind: MessageKind, key: str, body: bytes) -> None:
        await self._answer()
        if f"{kind} {key}" not in self._keys:
            self._keys.add(f"{kind} {key}")
            self._add(LogMessage(self.last + 1, self.now, kind, key, body))

    async def cut(self, key: str, body: bytes, after: int) -> bool:
        await self._answer()
        if self.marker() != after:
            return False
        self._add(LogMessage(self.last + 1, self.now, "marker", key, body))
        return True

    async def follow(self, after: int, not_before: float = 0.0) -> AsyncGenerator[LogMessage | LogGap]:
        gaps = self.gaps
        while True:
            changed = self._changed
            if self.away:
                await changed.wait()
            elif gaps != self.gaps or after > self.last or after + 1 < self.first:
                gaps, expected, after = self.gaps, after + 1, self.first - 1
                yield LogGap(expected, self.first)
            elif after < self.last:
                message = self.messages[after + 1 - self.first]
                after, not_before = message.sequence, max(not_before, message.time)
                yield message._replace(time=not_before)
            else:
                await changed.wait()

    async def save_snapshot(self, name: str, data: bytes) -> None:
        await self._answer()
        self.snapshots = [LogSnapshot(name, data), *(one for one in self.snapshots if one.name != name)][:2]

    async def load_snapshots(self) -> AsyncIterator[LogSnapshot]:
        await self._answer()
        for one in self.snapshots:
            yield one

    async def publish_verdicts(self, key: str, body: bytes) -> None:
        await self._answer()
        for queue in self._verdicts:
            queue.put_nowait(body)

    async def follow_verdicts(self) -> AsyncGenerator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._verdicts.append(queue)
        while True:
            yield await queue.get()

    def health(self) -> LogHealth:
        return LogHealth(self.now if self.away else None)

    def set_away(self, away: bool) -> None:
        """Have the log fail, or come back with all that it had."""
        self.away = away
        self._wake()

    def discard(self, through: int) -> None:
        """Drop the oldest messages, as a full log does."""
        del self.messages[: max(0, through + 1 - self.first)]
        self.first = max(self.first, through + 1)
        self._wake()

    def rewind(self, last: int) -> None:
        """Restore an older copy, in which `last` is the last message; with 0 the log is deleted and made again."""
        del self.messages[max(0, last + 1 - self.first) :]
        if last == 0:
            self.first = 1
        self.gaps += 1
        self._keys.clear()
        self._wake()

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise LogAway

    def _add(self, message: LogMessage) -> None:
        self.messages.append(message)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
