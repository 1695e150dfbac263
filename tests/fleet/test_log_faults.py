"""Replicas on a real NATS server that is cut off, restored from an older copy or deleted, or whose clocks differ."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from ingero_fleet.log_settings import NatsConfig
from ingero_fleet.replication.jetstream import JetStreamLog
from ingero_kit.clock import SlewedClock
from ingero_testing.replicas import ReplicaMember, eventually, following, same
from ingero_testing.tcp_partition import TcpPartition
from scripts.nats_servers import NatsServers, nats_servers

HOUR = 3600.0
NODES = 7
SLOW = 3


class LoggedMember(ReplicaMember):
    """A replica with its own connection to the log, and a clock of its own."""

    def __init__(self, name: str, url: str, ahead: float = 0.0) -> None:
        self.ahead = ahead
        self.log = JetStreamLog(NatsConfig(servers=(url,), prefix="faults", max_bytes=16 << 20))
        super().__init__(self.log, SlewedClock(wall=lambda: time.time() + self.ahead), name)

    @property
    def ticks(self) -> int:
        return self.replica.at.ticks


@asynccontextmanager
async def connected(*members: LoggedMember) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for one in members:
            one.log.start()
            stack.push_async_callback(one.log.stop)
        await stack.enter_async_context(following(*members))
        yield


async def rounds(
    members: list[LoggedMember], count: int, slow: float = 1.0, nodes: Iterable[int] = range(NODES)
) -> None:
    """So many ticks: nodes report to the members in turn, and each member cuts in turn."""
    for number in range(count):
        for node in nodes:
            rate = (100.0 + node % 3) * (slow if node == SLOW else 1.0)
            members[(node + number) % len(members)].report(node, rate)
        await asyncio.gather(*(one.replica.publisher.publish() for one in members))
        cutter = members[number % len(members)]
        ticks = max(one.ticks for one in members)
        await eventually(lambda cutter=cutter: cutter.replica.at.sequence >= cutter.log.stats.last_known)  # type: ignore[misc]
        assert await cutter.replica.cut("tick")
        await eventually(lambda ticks=ticks: {one.ticks for one in members} == {ticks + 1})  # type: ignore[misc]


def accused(members: list[LoggedMember]) -> set[bool]:
    """What members answer to the slow node; all others must be healthy everywhere."""
    assert {one.line(node) for one in members for node in range(NODES) if node != SLOW} == {"healthy"}
    return {one.line(SLOW).startswith("straggler") for one in members}


def exports(members: list[LoggedMember]) -> int:
    """How many different findings were exported; a repeated one has the same event id."""
    return len({push.body for one in members for push in one.exported})


def restored(servers: NatsServers, data: Path, copy: Path) -> None:
    """Put an older copy in the place of what the server has stored."""
    servers.stop(0)
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    servers.start(0)


def test_three_replicas_agree_through_a_partition_an_older_copy_a_deletion_and_wrong_clocks(tmp_path: Path) -> None:
    async def story() -> None:
        with nats_servers(tmp_path) as servers:
            async with TcpPartition(servers.urls[0]) as link, asyncio.timeout(120):
                a = LoggedMember("a", servers.urls[0], HOUR)
                b = LoggedMember("b", servers.urls[0], -HOUR)
                c = LoggedMember("c", link.url)
                every = [a, b, c]
                async with connected(*every):
                    await rounds(every, 8)
                    assert accused(every) == {False}
                    a.ahead, b.ahead, c.ahead = -HOUR, 0.0, HOUR
                    await rounds(every, 5, slow=0.4)
                    assert accused(every) == {True} and same(*every) and exports(every) == 1
                    await partitioned(link, c, [a, b])
                    assert accused(every) == {True} and same(*every) and exports(every) == 1
                    await older_copy(servers, tmp_path, link, every)
                    await deleted(every)

    asyncio.run(story())


async def partitioned(link: TcpPartition, alone: LoggedMember, others: list[LoggedMember]) -> None:
    """The others go on; who is cut off answers as before, cuts nothing, and says since when.

    The slow node reports to that one alone: its silence clears it nowhere.
    """
    ticks, answers = alone.ticks, alone.cache
    link.cut()
    for node in range(NODES):
        alone.report(node, 50.0)
    publishing = asyncio.ensure_future(alone.replica.publisher.publish())
    await rounds(others, 5, nodes=set(range(NODES)) - {SLOW})
    assert not await alone.replica.cut("tick")
    await eventually(lambda: alone.replica.log_answer()["state"] == "away")
    assert alone.replica.log_answer()["away_since"] and alone.engine.health()[0]
    assert alone.ticks == ticks and alone.cache is answers and accused([alone, *others]) == {True}
    link.heal()
    await eventually(lambda: alone.ticks == others[0].ticks and alone.replica.log_answer()["away_since"] is None)
    await asyncio.wait([publishing])
    await rounds([alone, *others], 3, slow=0.4)


async def older_copy(servers: NatsServers, folder: Path, link: TcpPartition, members: list[LoggedMember]) -> None:
    """The log is restored from a copy of an earlier moment: nothing is counted twice, and it is shown."""
    data, copy = folder / "n0/data", folder / "copy"
    servers.stop(0)
    shutil.copytree(data, copy)
    servers.start(0)
    await back(members)
    await rounds(members, 3, slow=0.4)
    before, counted = members[0].ticks, pushes(members[0])
    *connected, apart = members
    last = apart.replica.at.sequence
    link.cut()
    restored(servers, data, copy)
    await shown(connected)
    assert {one.ticks for one in members} == {before} and accused(members) == {True}
    # By the time that the last one is back, the log is longer than it was.
    while connected[0].replica.at.sequence <= last:
        await connected[0].replica.publisher.publish()
    link.heal()
    await shown(members)
    await rounds(members, 2, slow=0.4)
    went_on(members, before + 2, counted + 2 * NODES)


async def deleted(members: list[LoggedMember]) -> None:
    """The stream is deleted: the next message makes it again, and all states are kept."""
    before, counted = members[0].ticks, pushes(members[0])
    await members[0].log._connection.jetstream.delete_stream("faults-log")
    for one in members:
        await one.replica.publisher.publish()
    await shown(members)
    await rounds(members, 2, slow=0.4)
    went_on(members, before + 2, counted + 2 * NODES)


async def back(members: list[LoggedMember]) -> None:
    await eventually(lambda: all(one.replica.log_answer()["away_since"] is None for one in members))


async def shown(members: list[LoggedMember]) -> None:
    """All say that the log was rewound."""
    await eventually(lambda: all(one.replica.log_answer()["rewound"] for one in members))
    await back(members)


def pushes(one: LoggedMember) -> int:
    return int(one.state.machine.table.view("pushes").sum())


def went_on(members: list[LoggedMember], ticks: int, counted: int) -> None:
    assert {one.ticks for one in members} == {ticks} and {pushes(one) for one in members} == {counted}
    assert same(*members) and accused(members) == {True} and exports(members) == 1
    assert not any(one.replica.log_answer()["rewound"] for one in members)
    assert not any(one.replica.outcomes["states_differed"] for one in members)
