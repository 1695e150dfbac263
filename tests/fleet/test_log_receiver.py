"""A Fleet that only receives: its nodes are judged by others, and it answers as those do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ingero_contract.identifiers import node_key
from ingero_fleet.replication.agreement import Agreement
from ingero_fleet.replication.log_bodies import BatchHead, decode_reports, encode_reports
from ingero_fleet.replication.log_receiver import LogReceiver
from ingero_fleet.replication.parts import KEY, pack
from ingero_fleet.replication.published_verdicts import PART, VerdictParts, decode_verdicts, encode_verdicts
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.verdict_cache import NodeVerdicts, VerdictCache
from ingero_kit.health_report import HealthReport
from ingero_testing.memory_log import MemoryLog
from ingero_testing.replicas import PROCESSORS, eventually, following, same
from tests.fleet.test_replica import INTERVAL, Member, rounds, run

CACHE = VerdictCache(
    ("workload_type",),
    {("c", "train"): 0.75},
    NodeVerdicts("healthy", {node_key("c", "n3"): "straggler;kind=own"}, 5.0),
)


class ReceivingMember:
    """A receiver without sockets: what it received and answers."""

    def __init__(self, shared: MemoryLog, name: str) -> None:
        self.shared, self.caches = shared, list[VerdictCache]()
        self.table = ScoreTable.of(PROCESSORS.ingero)
        self.receiver = LogReceiver(shared, self.table, lambda: shared.now, INTERVAL, name, self.caches.append)

    def report(self, node: int, rate: float) -> None:
        report = HealthReport(node_id=f"n{node}", cluster_id="c", score=0.9, rate=rate, workload_type="train")
        assert not isinstance(self.table.observe(report, self.shared.now), str)

    async def has(self, count: int) -> None:
        """Wait until so many verdict caches have come."""
        await eventually(lambda: len(self.caches) >= count)

    def line(self, node: int) -> str:
        verdicts = self.caches[-1].verdicts
        return verdicts.overrides.get(node_key("c", f"n{node}"), verdicts.default)


@asynccontextmanager
async def receiving(*members: ReceivingMember) -> AsyncIterator[None]:
    """The receivers follow the verdicts; the test publishes for them."""
    tasks = [asyncio.create_task(one.receiver.verdicts.keep_following()) for one in members]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def received_rounds(
    cutter: Member, members: list[Member], receivers: list[ReceivingMember], count: int, slow: float = 1.0
) -> None:
    """So many push intervals in which all nodes report to the receivers; node 3 works at `slow` of its rate."""
    for number in range(count):
        for node in range(7):
            one = receivers[(node + number) % len(receivers)]
            one.report(node, 100.0 * (slow if node == 3 else 1.0) + node % 3)
        for one in receivers:
            await one.receiver.publisher.publish()
        goal = {one: len(one.caches) + 1 for one in receivers}
        await rounds(cutter, members, 1, reports=False)
        for one in receivers:
            await one.has(goal[one])


def test_nodes_of_receivers_are_judged_by_the_replicas_and_get_their_answers() -> None:
    async def story() -> None:
        shared = MemoryLog()
        a, b = members = [Member(shared, "a"), Member(shared, "b")]
        receivers = [ReceivingMember(shared, "r1"), ReceivingMember(shared, "r2")]
        async with following(*members), receiving(*receivers):
            await received_rounds(a, members, receivers, 10)
            await received_rounds(b, members, receivers, 4, slow=0.4)
            for one in receivers:
                assert one.line(3) == a.line(3) == b.line(3) and one.line(3).startswith("straggler")
                assert one.line(2) == "healthy"
                assert one.caches[-1].thresholds == a.cache.thresholds != {}
                assert one.receiver.health()[0] and not one.receiver.verdicts.is_stale
            assert same(a, b)
            facts = a.engine.health()[1]
            assert facts["replicas"] == 2 and facts["receivers_only"] == 2

    run(story())


def test_without_new_verdicts_the_last_ones_stand_and_reports_are_not_lost_on_the_judges() -> None:
    async def story() -> None:
        shared = MemoryLog()
        a, receiver = Member(shared, "a"), ReceivingMember(shared, "r")
        async with receiving(receiver):
            async with following(a):
                await received_rounds(a, [a], [receiver], 10)
                await received_rounds(a, [a], [receiver], 6, slow=0.4)
                accused = receiver.line(3)
                assert accused.startswith("straggler")
            for _ in range(100):
                for node in range(7):
                    receiver.report(node, 100.0 * (0.4 if node == 3 else 1.0) + node % 3)
                await receiver.receiver.publisher.publish()
                shared.now += INTERVAL
            healthy, facts = receiver.receiver.health()
            assert healthy and facts["verdicts_stale"] and facts["verdicts_age_seconds"] == 100 * INTERVAL
            assert receiver.line(3) == accused
            a.exported.clear()
            async with following(a):
                await a.level()
                await received_rounds(a, [a], [receiver], 5, slow=0.4)
                assert receiver.line(3).startswith("straggler") and not a.exported, "nobody is accused or cleared"
                assert a.state.machine.table.view("alive").sum() == 7
                await received_rounds(a, [a], [receiver], 10)
                assert receiver.line(3) == "healthy"

    run(story())


def test_a_replica_that_does_not_judge_answers_by_the_verdicts_of_those_that_do() -> None:
    async def story() -> None:
        shared = MemoryLog()
        old, new = Member(shared, "old"), Member(shared, "new", "v2")
        follower = asyncio.create_task(old.replica.verdicts.keep_following())
        async with following(old, new):
            await rounds(old, [old, new], 10)
            await rounds(new, [old, new], 11)
            assert old.state.parked and not new.state.parked
            await rounds(new, [old, new], 4, {3: 0.4})
            await eventually(lambda: old.line(3).startswith("straggler"))
            assert old.line(3) == new.line(3) and old.line(2) == "healthy"
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)

    run(story())


def test_a_receiver_is_unready_until_it_has_verdicts_unless_the_log_is_away() -> None:
    shared = MemoryLog()
    receiver = ReceivingMember(shared, "r").receiver
    assert not receiver.health()[0]
    shared.set_away(True)
    assert receiver.health()[0]
    shared.set_away(False)
    receiver.verdicts.take(encode_verdicts(7, CACHE))
    assert receiver.health()[0] and receiver.health()[1]["ticks"] == 7


def test_late_and_damaged_verdicts_are_left_out_and_counted() -> None:
    shared = MemoryLog()
    one = ReceivingMember(shared, "r")
    verdicts = one.receiver.verdicts
    for body in (
        b"", b"[]", b"{}", b'{"ticks":1}', encode_verdicts(3, CACHE)[:-9],
        encode_verdicts(3, CACHE).replace(b'"default":"healthy"', b'"default":7'),
    ):  # fmt: skip
        verdicts.take(body)
    assert one.receiver.outcomes["verdicts_refused"] == 6 and not one.caches
    verdicts.take(encode_verdicts(9, CACHE))
    verdicts.take(encode_verdicts(8, CACHE))
    assert one.receiver.outcomes["verdicts_late"] == 1 and len(one.caches) == 1
    shared.now += 4 * INTERVAL
    verdicts.take(encode_verdicts(2, CACHE))
    assert len(one.caches) == 2, "after a loss of all state, ticks count from the start"


def test_verdicts_arrive_as_they_were_sent_as_of_their_arrival() -> None:
    ticks, cache = decode_verdicts(encode_verdicts(12, CACHE), 50.0)
    assert ticks == 12 and cache.by == CACHE.by and cache.thresholds == CACHE.thresholds
    assert cache.verdicts == NodeVerdicts("healthy", CACHE.verdicts.overrides, 50.0)


def test_verdicts_of_several_parts_are_joined_and_those_with_a_missing_part_left_out() -> None:
    body = bytes(range(256)) * 20
    headers, parts = pack(body, 100)
    assert len(parts) > 2
    joined = VerdictParts()

    def message(number: int, key: str = "a-1") -> dict[str, str]:
        return headers | {KEY: key, PART: f"{number}/{len(parts)}"}

    found = [joined.add(message(number), part) for number, part in enumerate(parts, 1)]
    assert found == [None] * (len(parts) - 1) + [body]
    assert not any(joined.add(message(number), part) for number, part in enumerate(parts, 1) if number != 2)
    assert not any(joined.add(message(1 + n, f"a-{n}"), part) for n, part in enumerate(parts))
    with pytest.raises(ValueError, match="number of its part"):
        joined.add({}, b"x")


def test_a_batch_of_an_older_version_comes_from_a_replica_that_judges() -> None:
    batch = ScoreTable.of(PROCESSORS.ingero).take_fresh(1)
    old = encode_reports(BatchHead("a", 1), batch, 0.0).replace(b',"judges":true', b"")
    old = (len(old) - 4 - len(old[old.index(b"}") + 1 :])).to_bytes(4, "big") + old[4:]
    assert decode_reports(old, 0.0)[0] == BatchHead("a", 1)
    only = encode_reports(BatchHead("r", 0, judges=False), batch, 0.0)
    assert decode_reports(only, 0.0)[0].judges is False


def test_receivers_take_no_part_in_the_comparison_of_states() -> None:
    agreement = Agreement()
    for number in range(2000):
        agreement.note(BatchHead(f"r{number}", 0, judges=False), float(number))
    agreement.note(BatchHead("a", 12, 12, "1"), 2000.0)
    assert set(agreement.alive(0.0)) == {"a"}
    assert agreement.receivers(0.0) == 1024 and agreement.receivers(1995.0) == 5
