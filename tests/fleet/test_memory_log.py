"""The log in memory, which stands for the real one in tests of replicas, keeps the same rules."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ingero_fleet.replication.ordered_log import LogAway, LogGap, LogMessage, OrderedLog
from ingero_testing.memory_log import MemoryLog


async def take(reader: AsyncIterator[LogMessage | LogGap], count: int) -> list[LogMessage | LogGap]:
    return [await anext(reader) for _ in range(count)]


def test_two_readers_get_one_order_with_times_that_never_go_back() -> None:
    async def story() -> None:
        log = MemoryLog(now=50.0)
        shared: OrderedLog = log
        await shared.publish("batch", "a-1", b"one")
        await shared.publish("batch", "a-1", b"one")
        log.now = 40.0
        assert await shared.cut("tick-1", b"m", after=0)
        assert not await shared.cut("tick-1", b"other", after=0)
        both = [await take(shared.follow(0), 2) for _ in range(2)]
        assert both[0] == both[1] == [
            LogMessage(1, 50.0, "batch", "a-1", b"one"),
            LogMessage(2, 50.0, "marker", "tick-1", b"m"),
        ]  # fmt: skip
        assert await take(shared.follow(1, 50.0), 1) == both[0][1:]

    asyncio.run(story())


def test_lost_and_rewound_messages_are_a_gap() -> None:
    async def story() -> None:
        log = MemoryLog()
        for number in range(4):
            await log.publish("push", f"a-{number}", b"")
        reader = log.follow(1)
        log.discard(2)
        assert (await take(reader, 2))[0] == LogGap(expected=2, first=3)
        log.rewind(0)
        await log.publish("push", "b-1", b"")
        gap, message = await take(reader, 2)
        assert gap == LogGap(expected=4, first=1)
        assert isinstance(message, LogMessage) and (message.sequence, message.key) == (1, "b-1")

    asyncio.run(story())


def test_an_absent_log_raises_and_its_readers_wait() -> None:
    async def story() -> None:
        log = MemoryLog()
        log.set_away(True)
        with pytest.raises(LogAway):
            await log.publish("push", "a-1", b"")
        assert log.health().away_since is not None
        waiting = asyncio.ensure_future(anext(aiter(log.follow(0))))
        log.set_away(False)
        for number in range(3):
            await log.save_snapshot(f"s-{number}", b"state")
        assert [one.name async for one in log.load_snapshots()] == ["s-2", "s-1"]
        await log.publish("push", "a-2", b"")
        found = await waiting
        assert isinstance(found, LogMessage) and found.key == "a-2"

    asyncio.run(story())
