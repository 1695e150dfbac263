"""Bounds what is on its way at the same time, by number and by bytes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class InFlight:
    """At most `messages` and `size` bytes at once; a single larger one goes alone."""

    def __init__(self, messages: int, size: int) -> None:
        self._messages, self._size = messages, size
        self._count = self._bytes = 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def room(self, size: int) -> AsyncGenerator[None]:
        """Wait until there is room for `size` bytes, and use it while the block runs."""
        async with self._freed:
            await self._freed.wait_for(
                lambda: not self._count or (self._count < self._messages and self._bytes + size <= self._size)
            )
            self._count += 1
            self._bytes += size
        try:
            yield
        finally:
            self._count -= 1
            self._bytes -= size
            async with self._freed:
                self._freed.notify_all()
