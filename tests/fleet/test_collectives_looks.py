"""Between two ticks: the culprit is named as soon as agents have told of it, and still nobody is named for it."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ingero_contract import attributes
from ingero_fleet.collectives.desk import CollectivesDesk
from ingero_fleet.collectives.looks import look_on, looks_in
from ingero_fleet.collectives.settings import NcclConfig
from ingero_kit.clock import rfc3339
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_testing.collectives import BEGIN, Chain, Job

TICK = 5.0
LOOKS = 4
CULPRIT = "node-7"


def feed(desk: CollectivesDesk, bodies: list[bytes], now: float) -> None:
    for body in bodies:
        desk.take(Push(Signal.METRICS, "protobuf", body), now)


def named(desk: CollectivesDesk) -> set[str]:
    return {node for _, node in desk.culprits}


def verdicts(desk: CollectivesDesk, now: float) -> list[str]:
    return [item["verdict"] for item in desk.answer(None, now)["communicators"]]


@pytest.mark.parametrize(("tick", "look", "looks"), [(5.0, 1.0, 4), (5.0, 2.0, 2), (1.0, 1.0, 0), (1.0, 5.0, 0)])
def test_looks_fill_the_time_between_two_ticks(tick: float, look: float, looks: int) -> None:
    assert looks_in(tick, look) == looks


def test_a_look_names_the_culprit_before_the_tick_and_the_tick_counts_from_then() -> None:
    sent: list[Push] = []
    desk, job = CollectivesDesk(NcclConfig(), tell=sent.append, looks=LOOKS), Job(8)
    feed(desk, job.pushes(40), BEGIN)
    desk.judge(BEGIN)
    job.late_ms = {5: 5.0}
    feed(desk, job.pushes(25), BEGIN + 3)
    desk.look(BEGIN + 3)

    assert verdicts(desk, BEGIN + 3) == ["culprit"]
    early = desk.culprits[("c", "node-5")]
    assert (early["windows"], early["since"]) == (1, rfc3339(BEGIN + 3))
    desk.judge(BEGIN + 5)
    desk.judge(BEGIN + 10)
    later = desk.culprits[("c", "node-5")]
    assert (later["windows"], later["since"]) == (2, rfc3339(BEGIN + 3))
    assert states(sent) == ["straggler"]


def states(sent: list[Push]) -> list[str]:
    found = []
    for push in sent:
        for block in ExportLogsServiceRequest.FromString(push.body).resource_logs:
            for record in block.scope_logs[0].log_records:
                pairs = {pair.key: pair.value.string_value for pair in record.attributes}
                found.append(pairs[attributes.VERDICT_STATE])
    return found


def test_looks_leave_to_the_tick_what_it_would_have_found_without_them() -> None:
    sent: list[list[Push]] = [[], []]
    desks = [CollectivesDesk(NcclConfig(), onward.append, looks=LOOKS) for onward in sent]
    job = Job(8, late_ms={5: 3.0})
    for tick in range(3):
        for second in range(5):
            now = BEGIN + TICK * tick + second
            bodies = job.pushes(10, drop=0.1, seq=tick > 0)
            for desk in desks:
                feed(desk, bodies, now)
            desks[0].look(now)
        for desk in desks:
            desk.judge(BEGIN + TICK * (tick + 1))

    looked, plain = (desk.answer(None, BEGIN + 15) for desk in desks)
    assert desks[0].looks["done"] == 15
    assert [{**item, "since": ""} for item in looked.pop("culprits")] == [
        {**item, "since": ""} for item in plain.pop("culprits")
    ]
    assert looked == plain
    assert [push.body for push in sent[0]] == [push.body for push in sent[1]]


def test_a_look_without_news_or_with_too_much_of_it_is_left_to_the_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, job = CollectivesDesk(NcclConfig(), looks=LOOKS), Job(8, late_ms={5: 5.0})
    desk.look(BEGIN)
    feed(desk, job.pushes(20), BEGIN)
    desk.look(BEGIN + 1)
    desk.look(BEGIN + 2)
    assert desk.looks["done"] == 1
    monkeypatch.setattr("ingero_fleet.collectives.desk.LOOK_POINTS", 200)
    feed(desk, job.pushes(10), BEGIN + 3)
    desk.look(BEGIN + 3)
    assert desk.looks["done"] == 1
    desk.judge(BEGIN + 5)
    assert named(desk) == {"node-5"}


def test_the_chance_of_error_is_shared_by_all_looks_of_a_tick() -> None:
    """Ten collectives are enough for a tick alone, not for one look of a hundred."""
    found = []
    for looks in (0, 99):
        desk = CollectivesDesk(NcclConfig(error=5e-8), looks=looks)
        feed(desk, Job(8, jitter_ms=0.1, late_ms={5: 5.0}).pushes(10), BEGIN)
        desk.look(BEGIN)
        found.append(named(desk))

    assert found == [{"node-5"}, set()]


def moments(chain: Chain, slow: tuple[int, ...]) -> Iterator[tuple[float, int]]:
    """When which node pushes, in order: every second, slow ones with a tick; then -1 for a look, -2 for a tick."""
    due = {node: BEGIN + chain.random.uniform(0, 1) for node in range(chain.NODES)}
    due[-1], due[-2] = BEGIN + chain.random.uniform(0, 1), BEGIN + chain.random.uniform(0, TICK)
    while (moment := min(due.values())) < chain.moment:
        who = min(due, key=due.__getitem__)
        yield moment, who
        due[who] += TICK if who in slow or who == -2 else 1.0


@pytest.mark.parametrize("slow", [(), (0, 1, 2, 4), (3,), (7,)])
def test_a_node_that_is_held_up_elsewhere_is_never_named_however_its_peers_tell(slow: tuple[int, ...]) -> None:
    """The bridge comes late to the second communicator; the first one's agents may tell of the reason later."""
    after = []
    for seed in range(12):
        chain, desk = Chain(seed), CollectivesDesk(NcclConfig(), looks=LOOKS)
        chain.run(int(chain.random.integers(20, 120)), {})
        hurt = chain.moment
        chain.run(90, {7: 5.0})
        first = None
        for moment, who in moments(chain, slow):
            if who >= 0:
                feed(desk, [chain.push(who, moment)], moment)
            elif who == -1:
                desk.look(moment)
            else:
                desk.judge(moment)
            assert named(desk) <= {CULPRIT}
            assert not desk.culprits or moment > hurt
            first = first or (moment if desk.culprits else None)
        after.append(first - hurt if first else np.inf)

    assert max(after) < (10 if slow else 5)


def test_a_victim_is_excused_by_who_is_not_proven_to_be_late_yet() -> None:
    """A fault begins just before a tick, so that both communicators have about as much to show as is needed."""
    right = 0
    for seed in range(40):
        chain, desk = Chain(seed), CollectivesDesk(NcclConfig())
        chain.run(100, {})
        for more in (int(chain.random.integers(8, 16)), 30):
            chain.run(more, {7: 5.0})
            feed(desk, [chain.push(node, np.inf) for node in range(chain.NODES)], chain.moment)
            desk.judge(chain.moment)
            assert named(desk) <= {CULPRIT}
        right += named(desk) == {CULPRIT}
        assert all(text != "culprit" or len(desk.culprits) for text in verdicts(desk, chain.moment))

    assert right == 40


@pytest.mark.parametrize("jitter", [0.05, 1.0])
def test_a_victim_is_not_named_either_once_its_culprit_is_cured(jitter: float) -> None:
    chain, desk = Chain(jitter_ms=jitter), CollectivesDesk(NcclConfig(), looks=LOOKS)
    found = []
    for tick in range(18):
        chain.run(50, {7: 5.0} if 2 <= tick < 6 else {})
        feed(desk, [chain.push(node, np.inf) for node in range(chain.NODES)], chain.moment)
        desk.judge(chain.moment)
        assert named(desk) <= {CULPRIT}
        found.append(bool(desk.culprits))

    assert found[2:6] == [True] * 4
    assert not found[-1]


class Stumbling(CollectivesDesk):
    """Fails at its first look."""

    def look(self, now: float) -> None:
        if not self.looks["failed"]:
            raise RuntimeError("stumbled")
        super().look(now)


def test_looks_go_on_after_one_that_failed() -> None:
    desk = Stumbling(NcclConfig(), looks=LOOKS)
    feed(desk, Job(8, late_ms={5: 5.0}).pushes(30), BEGIN)

    async def run() -> None:
        looking = asyncio.create_task(look_on(desk, lambda: BEGIN, 0.01))
        while not desk.culprits:
            await asyncio.sleep(0.01)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 30))

    assert named(desk) == {"node-5"}
    assert desk.looks["failed"] == 1
