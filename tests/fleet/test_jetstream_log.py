"""The shared log on real NATS servers: one order, one marker, gaps that are seen, absence that is waited out."""

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingero_fleet.log_settings import NatsConfig
from ingero_fleet.replication.jetstream import JetStreamLog
from ingero_fleet.replication.ordered_log import LogAway, LogGap, LogMessage
from scripts.nats_servers import NatsServers, nats_servers

SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with nats_servers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


@asynccontextmanager
async def connected(servers: NatsServers, prefix: str, **changes: Any) -> AsyncIterator[JetStreamLog]:
    log = JetStreamLog(NatsConfig(servers=tuple(servers.urls), prefix=prefix, max_bytes=64 << 20, **changes))
    log.start()
    try:
        async with asyncio.timeout(SECONDS):
            yield log
    finally:
        await log.stop()


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


async def take(reader: AsyncIterator[LogMessage | LogGap], count: int) -> list[LogMessage | LogGap]:
    return [await anext(reader) for _ in range(count)]


def test_all_readers_get_one_order_and_repeats_only_once(server: NatsServers) -> None:
    async def story() -> None:
        async with connected(server, "order") as one, connected(server, "order") as two:
            bodies = [os.urandom(3000), b"x" * 100_000, b""]
            await asyncio.gather(*(one.publish("batch", f"a-{n}", body) for n, body in enumerate(bodies)))
            await two.publish("push", "b-1", b"push")
            await two.publish("push", "b-1", b"push")
            assert await one.cut("tick-1", b"marker", after=0)
            found = await take(one.follow(0), 5)
            assert found == await take(two.follow(0), 5)
            messages = [one for one in found if isinstance(one, LogMessage)]
            assert [message.sequence for message in messages] == [1, 2, 3, 4, 5]
            assert {message.key: message.body for message in messages if message.kind == "batch"} == {
                f"a-{n}": body for n, body in enumerate(bodies)
            }
            assert [(one.kind, one.key) for one in messages[3:]] == [("push", "b-1"), ("marker", "tick-1")]
            times = [message.time for message in messages]
            assert times == sorted(times)
            later = await take(one.follow(3, not_before=times[-1] + 3600), 2)
            assert {one.time for one in later if isinstance(one, LogMessage)} == {times[-1] + 3600}

    run(story)


def test_exactly_one_of_several_cuts_wins(server: NatsServers) -> None:
    async def story() -> None:
        async with connected(server, "cuts") as one, connected(server, "cuts") as two:
            await one.publish("batch", "a-1", b"")
            last = 0
            reader = two.follow(0)
            await take(reader, 1)
            for tick in range(5):
                won = await asyncio.gather(*(log.cut(f"tick-{tick}", b"", last) for log in (one, two, one, two)))
                assert sorted(won) == [False, False, False, True]
                (marker,) = await take(reader, 1)
                assert isinstance(marker, LogMessage) and marker.key == f"tick-{tick}"
                last = marker.sequence

    run(story)


def test_a_body_above_the_largest_message_comes_as_it_was(server: NatsServers) -> None:
    async def story() -> None:
        body = os.urandom(3 << 20)
        async with connected(server, "large") as log:
            reader = log.follow(0)
            await asyncio.gather(log.publish("push", "a-1", body), log.publish("push", "a-2", body[::-1]))
            live = await take(reader, 2)
            assert {one.key: one.body for one in live if isinstance(one, LogMessage)} == {
                "a-1": body,
                "a-2": body[::-1],
            }
            last = live[-1]
            assert isinstance(last, LogMessage)
            # A reader that begins between the parts and the last of them gets the same message.
            assert await take(log.follow(last.sequence - 1), 1) == [last]
            with pytest.raises(ValueError, match="does not fit"):
                await log.cut("tick-1", body, after=0)

    run(story)


def test_discarded_messages_are_a_gap_and_markers_go_on(server: NatsServers) -> None:
    async def story() -> None:
        async with connected(server, "old") as log:
            assert await _cut(log, "tick-1", 0)
            for number in range(5):
                await log.publish("batch", f"a-{number}", b"")
            await log._connection.jetstream.purge_stream("old-log", seq=4)
            gap, message = await take(log.follow(1), 2)
            assert gap == LogGap(expected=2, first=4)
            assert isinstance(message, LogMessage) and message.sequence == 4
            assert await log.cut("tick-2", b"", after=1)
            assert not await log.cut("tick-2", b"", after=1)

    run(story)


def test_a_deleted_log_is_a_gap_for_everybody_and_is_made_again(server: NatsServers) -> None:
    async def story() -> None:
        async with connected(server, "gone") as one, connected(server, "gone") as two:
            readers = [one.follow(0), two.follow(0)]
            for number in range(4):
                await one.publish("batch", f"a-{number}", b"")
            for reader in readers:
                await take(reader, 4)
            await one._connection.jetstream.delete_stream("gone-log")
            await two.publish("batch", "b-1", b"after")
            for reader in readers:
                gap, message = await take(reader, 2)
                assert gap == LogGap(expected=5, first=1)
                assert isinstance(message, LogMessage) and (message.sequence, message.body) == (1, b"after")
            assert one.stats.events["gap"] == 1

    run(story)


def test_the_last_two_snapshots_are_kept(server: NatsServers) -> None:
    async def story() -> None:
        async with connected(server, "snaps") as log:
            assert [one async for one in log.load_snapshots()] == []
            states = {f"snap-{n}": os.urandom(1_500_000) for n in range(4)}
            for name, data in states.items():
                await log.save_snapshot(name, data)
            found = [one async for one in log.load_snapshots()]
            assert [one.name for one in found] == ["snap-3", "snap-2"]
            assert all(one.data == states[one.name] for one in found)
            # What a save leaves that was cut off is removed by the next but one.
            await log._connection.jetstream.publish("$O.snaps-snapshots.C.orphan", b"x" * 1000)
            await log.save_snapshot("snap-4", b"four")
            await log.save_snapshot("snap-5", b"five")
            info = await log._connection.jetstream.stream_info("OBJ_snaps-snapshots", subjects_filter=">")
            assert info.state.subjects and not any("orphan" in one for one in info.state.subjects)
            assert [one.name async for one in log.load_snapshots()] == ["snap-5", "snap-4"]

    run(story)


async def arrives(log: JetStreamLog, body: bytes, waiting: "asyncio.Future[bytes]") -> None:
    """Publish verdicts until a follower, which may still be subscribing, has them."""
    for number in itertools.count():
        with contextlib.suppress(LogAway):
            await log.publish_verdicts(f"a-{number}", body)
        if (await asyncio.wait([waiting], timeout=0.1))[0]:
            return


def test_logs_with_their_own_prefixes_share_the_servers_and_nothing_else(server: NatsServers) -> None:
    async def story() -> None:
        async with connected(server, "east") as east, connected(server, "west") as west:
            followed = [asyncio.ensure_future(anext(log.follow_verdicts())) for log in (east, west)]
            for log, name in ((east, "east"), (west, "west")):
                for number in range(3):
                    await log.publish("batch", f"a-{number}", name.encode() * 300)
                assert await log.cut("tick-1", name.encode(), after=0)
                await log.save_snapshot("12-hash", name.encode())
            large = os.urandom(1_500_000)
            await arrives(east, large, followed[0])
            assert await followed[0] == large and not followed[1].done()
            await west._connection.jetstream.delete_stream("west-log")
            await west.publish("batch", "a-3", b"again")
            assert await west.cut("tick-2", b"west", after=0)
            found = await take(east.follow(0), 4)
            assert [one.body for one in found if isinstance(one, LogMessage)] == [b"east" * 300] * 3 + [b"east"]
            assert [one.data async for one in east.load_snapshots()] == [b"east"]
            assert [one.data async for one in west.load_snapshots()] == [b"west"]
            assert not await east.cut("tick-2", b"east", after=0) and await east.cut("tick-2", b"east", after=4)
            followed[1].cancel()

    run(story)


def test_verdicts_are_followed_again_when_the_servers_come_back(tmp_path: Path) -> None:
    async def story() -> None:
        with nats_servers(tmp_path) as servers:
            async with connected(servers, "back") as one, connected(servers, "back") as two:
                bodies = two.follow_verdicts()

                first = asyncio.ensure_future(anext(bodies))
                await arrives(one, b"one", first)
                assert await first == b"one"
                servers.kill(0)
                with pytest.raises(LogAway):
                    while True:
                        await one.publish_verdicts("a-x", b"lost")
                        await asyncio.sleep(0.01)
                servers.start(0)
                second = asyncio.ensure_future(anext(bodies))
                await arrives(one, b"two", second)
                assert await second == b"two"

    run(story)


def test_messages_of_others_are_left_out(server: NatsServers) -> None:
    async def story() -> None:
        async with connected(server, "rubbish") as log:
            await log.publish("batch", "a-1", b"before")
            jetstream = log._connection.jetstream
            for headers in (
                {"Ingero-Encoding": "zstd"},
                {"Ingero-Encoding": "unknown"},
                {"Ingero-Parts": "first"},
                {"Ingero-Parts": "1"},
            ):
                await jetstream.publish("rubbish.push", b"rubbish", headers=headers)
            await log.publish("batch", "a-2", b"after")
            found = await take(log.follow(0), 3)
            assert [one.body for one in found if isinstance(one, LogMessage)] == [b"before", b"after"]
            assert found[1] == LogGap(expected=5, first=6), "parts that are not there are missing messages"
            assert log.stats.events["unreadable"] == 3

    run(story)


def test_without_servers_nothing_is_confirmed_and_everything_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingero_fleet.replication.jetstream.PUBLISH_SECONDS", 0.5)

    async def story() -> None:
        with nats_servers(tmp_path) as servers:
            async with connected(servers, "away") as log:
                reader = log.follow(0)
                await log.publish("batch", "a-1", b"one")
                await take(reader, 1)
                servers.kill(0)
                with pytest.raises(LogAway):
                    await log.publish("batch", "a-2", b"two")
                with pytest.raises(LogAway):
                    await log.cut("tick-1", b"", after=0)
                with pytest.raises(LogAway):
                    await anext(aiter(log.load_snapshots()))
                assert log.health().away_since is not None
                waiting = asyncio.ensure_future(anext(reader))
                servers.start(0)
                async with asyncio.timeout(SECONDS):
                    while True:
                        try:
                            await log.publish("batch", "a-2", b"two")
                            break
                        except LogAway:
                            continue
                found = await waiting
                assert isinstance(found, LogMessage) and found.key == "a-2"
                assert log.health() == (None, 0)

    monkeypatch.setattr("ingero_fleet.replication.snapshot_bucket.LOAD_SECONDS", 0.5)
    run(story)


def test_a_killed_leader_costs_neither_order_nor_markers(tmp_path: Path) -> None:
    async def story() -> None:
        with nats_servers(tmp_path, count=3) as servers:
            async with (
                connected(servers, "three") as one,
                connected(servers, "three") as two,
                connected(servers, "three") as three,
            ):
                logs = [one, two, three]
                readers = [log.follow(0) for log in logs]
                await _publish(one, "a-0", b"")
                info = await one._connection.jetstream.stream_info("three-log")
                assert info.config.num_replicas == 3 and info.cluster and info.cluster.leader
                seen = [await take(reader, 1) for reader in readers]
                servers.kill(int(info.cluster.leader.removeprefix("n")))
                last = 0
                for tick in range(1, 4):
                    await asyncio.gather(*(_publish(log, f"{n}-{tick}", b"x") for n, log in enumerate(logs)))
                    won = await asyncio.gather(*(_cut(log, f"tick-{tick}", last) for log in logs))
                    assert sum(won) <= 1, "a cut that was not confirmed may be the one"
                    for found, reader in zip(seen, readers, strict=True):
                        found += await take(reader, 4)
                    marker = seen[0][-1]
                    assert isinstance(marker, LogMessage) and (marker.kind, marker.key) == ("marker", f"tick-{tick}")
                    last = marker.sequence
                assert seen[0] == seen[1] == seen[2]
                messages = [message for message in seen[0] if isinstance(message, LogMessage)]
                assert [message.sequence for message in messages] == list(range(1, 14))

    run(story)


async def _publish(log: JetStreamLog, key: str, body: bytes) -> None:
    """Publish until the log confirms it, under one key, so that it counts once."""
    while True:
        with contextlib.suppress(LogAway):
            return await log.publish("batch", key, body)


async def _cut(log: JetStreamLog, key: str, after: int) -> bool:
    """Cut until the log answers."""
    while True:
        try:
            return await log.cut(key, b"", after)
        except LogAway:
            continue


def test_a_single_fleet_imports_no_client_of_a_log() -> None:
    check = (
        "import sys, ingero_fleet.app, ingero_fleet.cli; sys.exit('nats' in sys.modules or 'nkeys' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], timeout=120).returncode == 0
