"""Replicas on one log: one verdict wherever it is asked for, through ends, absences and losses of the log."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from ingero_fleet import state_machine
from ingero_fleet.processor_settings import ProcessorsConfig
from ingero_fleet.replication.agreement import Agreement
from ingero_fleet.replication.log_bodies import BatchHead, Marker
from ingero_fleet.replication.replicated_state import HASH_TICKS, NUMBERS_KEPT
from ingero_fleet.score_table import ScoreTable
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_testing.collectives import Job
from ingero_testing.memory_log import MemoryLog
from ingero_testing.replicas import PROCESSORS, ReplicaMember, eventually, following, same

INTERVAL = 10.0


class Member(ReplicaMember):
    """A replica whose clock is that of the log."""

    def __init__(
        self, shared: MemoryLog, name: str, rules: str = "v1", processors: ProcessorsConfig = PROCESSORS
    ) -> None:
        self.shared = shared
        super().__init__(shared, lambda: shared.now, name, rules, processors)

    async def level(self) -> None:
        await eventually(lambda: self.replica.at.sequence == self.shared.last)


async def rounds(
    cutter: Member, members: list[Member], count: int, slow: dict[int, float] | None = None, *, reports: bool = True
) -> None:
    """So many push intervals: nodes report to the members in turn, and one of them cuts the tick."""
    for number in range(count):
        for node in range(7 if reports else 0):
            members[(node + number) % len(members)].report(node, 100.0 * (slow or {}).get(node, 1.0) + node % 3)
        for one in members:
            await one.replica.publisher.publish()
        cutter.shared.now += INTERVAL
        await cutter.level()
        assert await cutter.replica.cut("tick")
        for one in members:
            await one.level()


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_two_replicas_that_each_receive_half_give_one_verdict() -> None:
    async def story() -> None:
        shared = MemoryLog()
        a, b = members = Member(shared, "a"), Member(shared, "b")
        async with following(*members):
            await rounds(a, [a, b], 10)
            await rounds(b, [a, b], 4, {3: 0.4})
            assert a.line(3) == b.line(3) and a.line(3).startswith("straggler")
            assert a.line(2) == b.line(2) == "healthy"
            assert same(a, b)
            assert a.engine.snapshot is not None and a.engine.health()[1]["replicas"] == 2

    run(story())


def test_findings_are_exported_by_who_cuts_and_again_by_the_next_if_that_is_not_known() -> None:
    async def story() -> None:
        shared = MemoryLog()
        a, b = Member(shared, "a"), Member(shared, "b")
        async with following(a, b):
            await rounds(a, [a, b], 10)
            await rounds(a, [a, b], 4, {3: 0.4})
            assert len(a.exported) == 1 and not b.exported
            await rounds(b, [a, b], 1, {3: 0.4})
            assert not b.exported, "the marker of the tick after it said that it was exported"
            await rounds(b, [a, b], 5)
            cleared = [push.body for push in b.exported]
            assert cleared
            a.exported.clear()
            before = len(b.exported)
            for _ in range(6):
                if len(b.exported) == before:
                    await rounds(b, [a, b], 1, {1: 0.4})
            assert len(b.exported) > before
            before = len(b.exported)
            await rounds(a, [a, b], 1, {1: 0.4})
            last = b.exported[before - 1].body
            assert last in [push.body for push in a.exported], "the cutter may have ended before it exported"

    run(story())


def test_a_replica_that_starts_loads_the_snapshot_and_replays_the_rest() -> None:
    async def story() -> None:
        shared = MemoryLog()
        a, b, late = Member(shared, "a"), Member(shared, "b"), Member(shared, "late")
        async with following(a, b):
            await rounds(a, [a, b], HASH_TICKS + 3, {5: 0.4})
            await eventually(lambda: bool(shared.snapshots))
            assert shared.snapshots[0].name.startswith(f"{HASH_TICKS}-")
            shared.discard(20)
            assert await late.replica._load(lambda ticks, state_hash: True)
            async with following(late):
                await late.level()
                assert late.replica.outcomes["gaps"] == 0
                await rounds(late, [a, b, late], 2)
                assert same(a, b, late)

    run(story())


def test_a_replica_with_another_state_loads_the_one_that_most_have() -> None:
    async def story() -> None:
        shared = MemoryLog()
        a, b, odd = members = [Member(shared, name) for name in ("a", "b", "odd")]
        async with following(*members):
            await rounds(a, members, HASH_TICKS)
            await eventually(lambda: bool(shared.snapshots))
            await rounds(a, members, 3)
            slots = odd.state.machine.detector.detector.memory.node("baseline")
            slots[2] += 1e-9
            await rounds(a, members, HASH_TICKS - 1)
            assert odd.replica.outcomes["states_differed"] == 1
            assert a.replica.outcomes["states_differed"] == b.replica.outcomes["states_differed"] == 0
            await rounds(b, members, 1)
            assert same(*members)

    run(story())


def test_while_the_log_is_away_the_last_results_stand_and_fleet_is_healthy() -> None:
    async def story() -> None:
        shared = MemoryLog()
        a, b = Member(shared, "a"), Member(shared, "b")
        async with following(a, b):
            await rounds(a, [a, b], 10)
            before = a.cache
            shared.set_away(True)
            shared.now += 20 * INTERVAL
            assert not await a.replica.cut("tick")
            healthy, facts = a.engine.health()
            assert healthy and facts["log"].startswith("away since")
            assert a.cache is before
            shared.set_away(False)
            await rounds(b, [a, b], 5)
            assert a.line(2) == "healthy" and same(a, b)
            assert not a.exported and not b.exported, "nobody is accused because of a gap"

    run(story())


def test_a_log_that_was_deleted_goes_on_from_the_most_advanced_replica() -> None:
    async def story() -> None:
        shared = MemoryLog()
        a, b = Member(shared, "a"), Member(shared, "b")
        async with following(a, b):
            await rounds(a, [a, b], 10)
        async with following(a):
            await rounds(a, [a], 2)
            shared.rewind(0)
            await eventually(lambda: a.replica.outcomes["gaps"] == 1)
            await rounds(a, [a], 1)
            async with following(b):
                await b.level()
                await rounds(a, [a, b], 3)
                assert b.state.machine.ticks == a.state.machine.ticks == 16
                assert same(a, b)

    run(story())


def test_an_older_copy_of_the_log_counts_nothing_twice() -> None:
    async def story() -> None:
        shared = MemoryLog()
        a, b = Member(shared, "a"), Member(shared, "b")
        async with following(a, b):
            await rounds(a, [a, b], 10)
            for _ in range(NUMBERS_KEPT + 6):
                a.report(0)
                await a.replica.publisher.publish()
            await a.level()
            await b.level()
            ticks, pushes = a.state.machine.ticks, a.state.machine.table.view("pushes").sum()
            shared.rewind(shared.last - 5)
            await eventually(lambda: a.replica.outcomes["gaps"] == b.replica.outcomes["gaps"] == 1)
            await a.level()
            await b.level()
            assert a.state.machine.ticks == ticks
            await rounds(a, [a, b], 2)
            assert a.state.machine.ticks == ticks + 2 and same(a, b)
            assert a.state.machine.table.view("pushes").sum() == pushes + 14

    run(story())


def test_rules_that_were_superseded_do_not_judge_and_the_newer_ones_continue() -> None:
    async def story() -> None:
        shared = MemoryLog()
        old = Member(shared, "old")
        other = PROCESSORS.ingero.model_copy(update={"panic": PROCESSORS.ingero.panic.model_copy()})
        new = Member(shared, "new", "v2", PROCESSORS.model_copy(update={"ingero": other}))
        async with following(old):
            await rounds(old, [old], HASH_TICKS + 1)
            await eventually(lambda: bool(shared.snapshots))
            assert await new.replica._load(lambda ticks, state_hash: True)
            async with following(new):
                await new.level()
                await rounds(new, [old, new], 2)
                assert old.state.parked and old.state.superseded and not new.state.parked
                assert not old.replica._may_cut() and new.replica._may_cut()
                ticks = old.state.machine.ticks
                await rounds(new, [old, new], 2)
                assert old.state.machine.ticks == ticks == HASH_TICKS + 1

    run(story())


def test_a_rolling_upgrade_migrates_the_state_and_gives_one_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = MemoryLog()
        old, new = Member(shared, "old"), Member(shared, "new", "v2")
        async with following(old):
            await rounds(old, [old], HASH_TICKS)
            await eventually(lambda: bool(shared.snapshots))
            # The new version keeps the state in another form.
            monkeypatch.setattr(
                state_machine, "MIGRATIONS", {state_machine.VERSION: lambda state: {**state, "version": 101}}
            )
            monkeypatch.setattr(state_machine, "VERSION", 101)
            assert await new.replica._load(lambda ticks, state_hash: True)
            assert new.state.machine.detector.detector.ticks == HASH_TICKS, "nothing is learnt anew"
            published = asyncio.create_task(old.replica.verdicts.keep_following())
            async with following(new):
                await new.level()
                named = await _states(new, old)
                assert old.state.parked and not new.state.parked
            published.cancel()
        assert any(line.startswith("straggler") for line in named)

    run(story())


async def _states(cutter: Member, parked: Member) -> set[str]:
    """What both answer to a node that works at 0.4 of its speed; they must not differ after any tick."""
    found = set()
    for _ in range(4):
        await rounds(cutter, [parked, cutter], 1, {3: 0.4})
        await eventually(lambda: parked.replica.verdicts.ticks == cutter.state.machine.ticks)
        assert {parked.line(node) == cutter.line(node) for node in range(7)} == {True}
        found.add(cutter.line(3))
    return found


def test_late_ranks_are_found_through_the_log() -> None:
    async def story() -> None:
        shared = MemoryLog()
        a, b = Member(shared, "a"), Member(shared, "b")
        async with following(a, b):
            await rounds(a, [a, b], 2)
            job = Job(late_ms={3: 30.0}, seed=1)
            for rank, body in enumerate(job.pushes(100)):
                (a, b)[rank % 2].replica.publisher.observe(Push(Signal.METRICS, "protobuf", body), shared.now)
            await rounds(b, [a, b], 1)
            assert set(a.state.machine.collectives.stragglers) == {("c", "node-3")}
            assert same(a, b)

    run(story())


def test_a_message_on_which_a_step_fails_is_left_out_by_every_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        shared = MemoryLog()
        a, b = Member(shared, "a"), Member(shared, "b")
        async with following(a, b):
            await rounds(a, [a, b], 3)
            with monkeypatch.context() as broken:
                broken.setattr(ScoreTable, "expire", lambda table, now: 1 // 0)
                assert await a.replica._log.cut("a-x", Marker("tick", 4, "a", "v1", 0).encode(), a.replica.at.marker)
                await a.level()
                await b.level()
            await rounds(b, [a, b], 2)
            assert a.replica.outcomes["failed_messages"] == b.replica.outcomes["failed_messages"] == 1
            assert a.state.machine.ticks == 5 and a.state.markers == 6 and same(a, b)

    run(story())


def test_states_are_compared_once_all_that_judge_were_heard() -> None:
    agreement = Agreement()
    for name, state_hash in (("a", "1"), ("b", "2")):
        agreement.note(BatchHead(name, 12, 12, state_hash), 0.0)
    agreement.note(BatchHead("parked", 5), 0.0)
    agreement.note(BatchHead("c", 12), 0.0)
    assert not agreement.differs(BatchHead("b", 12, 12, "2"), 0.0)
    agreement.note(BatchHead("c", 12, 12, "1"), 1.0)
    assert agreement.differs(BatchHead("b", 12, 12, "2"), 0.0)
    assert not agreement.differs(BatchHead("a", 12, 12, "1"), 0.0)
    assert not agreement.differs(BatchHead("new", 3), 0.0)


def test_replicas_wait_for_the_cutter_and_for_each_other_only_while_those_are_level_and_heard() -> None:
    agreement = Agreement()
    for name in "abc":
        agreement.note(BatchHead(name, 12), 9.8)
    assert [agreement.place(name, "b", 12, 9.6) for name in "bac"] == [0, 1, 2]
    agreement.note(BatchHead("a", 12), 10.2)
    agreement.note(BatchHead("c", 12), 10.2)
    assert [agreement.place(name, "b", 12, 10.0) for name in "ac"] == [0, 1], "nobody waits for a cutter that ended"
    assert [agreement.place(name, "a", 12, 10.0) for name in "ac"] == [0, 1], "nor for another one"
    agreement.note(BatchHead("new", 3), 10.2)
    agreement.note(BatchHead("aa", 11), 10.2)
    assert agreement.place("c", "a", 12, 10.0) == 1, "nor for one that has not caught up"
    assert agreement.place("unheard", "a", 12, 10.0) == 2
