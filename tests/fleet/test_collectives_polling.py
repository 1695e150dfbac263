"""Between two ticks: the late rank is named as soon as agents reported it, and no other."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ingero_contract import attributes
from ingero_contract.identifiers import node_key
from ingero_fleet.collectives.polling import poll_between_ticks
from ingero_fleet.collectives.tracker import CollectivesTracker, polls_per_tick
from ingero_fleet.processor_settings import NcclConfig
from ingero_kit.clock import rfc3339
from ingero_kit.otlp_receiver import Push
from ingero_testing.collectives import BEGIN, Chain, Job, feed, named

TICK = 5.0
POLLS_PER_TICK = 4
LATE_NODE = "node-7"


def verdicts(tracker: CollectivesTracker, now: float) -> list[str]:
    return [item["verdict"] for item in tracker.answer(None, now)["communicators"]]


@pytest.mark.parametrize(("tick", "poll", "polls"), [(5.0, 1.0, 4), (5.0, 2.0, 2), (1.0, 1.0, 0), (1.0, 5.0, 0)])
def test_polls_fill_the_time_between_two_ticks(tick: float, poll: float, polls: int) -> None:
    assert polls_per_tick(tick, poll) == polls


def test_a_poll_names_the_late_rank_before_the_tick_and_the_tick_counts_from_then() -> None:
    sent: list[Push] = []
    tracker, job = CollectivesTracker(NcclConfig(), export_logs=sent.append, polls=POLLS_PER_TICK), Job(8)
    feed(tracker, job.pushes(40), BEGIN)
    tracker.judge(BEGIN)
    job.late_ms = {5: 5.0}
    feed(tracker, job.pushes(25), BEGIN + 3)
    tracker.early_poll(BEGIN + 3)

    assert verdicts(tracker, BEGIN + 3) == ["culprit"]
    early = tracker.stragglers[node_key("c", "node-5")]
    assert (early["windows"], early["since"]) == (1, rfc3339(BEGIN + 3))
    tracker.judge(BEGIN + 5)
    tracker.judge(BEGIN + 10)
    later = tracker.stragglers[node_key("c", "node-5")]
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


def test_polls_leave_to_the_tick_what_it_would_have_found_without_them() -> None:
    sent: list[list[Push]] = [[], []]
    trackers = [CollectivesTracker(NcclConfig(), export.append, polls=POLLS_PER_TICK) for export in sent]
    job = Job(8, late_ms={5: 3.0})
    for tick in range(3):
        for second in range(5):
            now = BEGIN + TICK * tick + second
            bodies = job.pushes(10, drop=0.1, seq=tick > 0)
            for tracker in trackers:
                feed(tracker, bodies, now)
            trackers[0].early_poll(now)
        for tracker in trackers:
            tracker.judge(BEGIN + TICK * (tick + 1))

    polled, plain = (tracker.answer(None, BEGIN + 15) for tracker in trackers)
    assert trackers[0].polls["done"] == 15
    assert [{**item, "since": ""} for item in polled.pop("culprits")] == [
        {**item, "since": ""} for item in plain.pop("culprits")
    ]
    assert polled == plain
    assert [push.body for push in sent[0]] == [push.body for push in sent[1]]


def test_a_poll_without_news_or_with_too_much_of_it_is_left_to_the_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, job = CollectivesTracker(NcclConfig(), polls=POLLS_PER_TICK), Job(8, late_ms={5: 5.0})
    tracker.early_poll(BEGIN)
    feed(tracker, job.pushes(20), BEGIN)
    tracker.early_poll(BEGIN + 1)
    tracker.early_poll(BEGIN + 2)
    assert tracker.polls["done"] == 1
    monkeypatch.setattr("ingero_fleet.collectives.tracker.MAX_POLL_POINTS", 200)
    feed(tracker, job.pushes(10), BEGIN + 3)
    tracker.early_poll(BEGIN + 3)
    assert tracker.polls["done"] == 1
    tracker.judge(BEGIN + 5)
    assert named(tracker) == {"node-5"}


def test_the_chance_of_error_is_shared_by_all_polls_of_a_tick() -> None:
    """Ten collectives are enough for a tick alone, not for one poll of a hundred."""
    found = []
    for polls in (0, 99):
        tracker = CollectivesTracker(NcclConfig(error=5e-8), polls=polls)
        feed(tracker, Job(8, jitter_ms=0.1, late_ms={5: 5.0}).pushes(10), BEGIN)
        tracker.early_poll(BEGIN)
        found.append(named(tracker))

    assert found == [{"node-5"}, set()]


def moments(chain: Chain, slow: tuple[int, ...]) -> Iterator[tuple[float, int]]:
    """When which node pushes, in order: every second, slow ones with a tick; then -1 for a poll, -2 for a tick."""
    due = {node: BEGIN + chain.random.uniform(0, 1) for node in range(chain.NODES)}
    due[-1], due[-2] = BEGIN + chain.random.uniform(0, 1), BEGIN + chain.random.uniform(0, TICK)
    while (moment := min(due.values())) < chain.moment:
        who = min(due, key=due.__getitem__)
        yield moment, who
        due[who] += TICK if who in slow or who == -2 else 1.0


@pytest.mark.parametrize("slow", [(), (0, 1, 2, 4), (3,), (7,)])
def test_a_node_that_is_held_up_elsewhere_is_never_named_however_its_peers_report(slow: tuple[int, ...]) -> None:
    """The bridge comes late to the second communicator; the first one's agents may report the reason later."""
    after = []
    for seed in range(12):
        chain, tracker = Chain(seed), CollectivesTracker(NcclConfig(), polls=POLLS_PER_TICK)
        chain.run(int(chain.random.integers(20, 120)), {})
        hurt = chain.moment
        chain.run(90, {7: 5.0})
        first = None
        for moment, who in moments(chain, slow):
            if who >= 0:
                feed(tracker, [chain.push(who, moment)], moment)
            elif who == -1:
                tracker.early_poll(moment)
            else:
                tracker.judge(moment)
            assert named(tracker) <= {LATE_NODE}
            assert not tracker.stragglers or moment > hurt
            first = first or (moment if tracker.stragglers else None)
        after.append(first - hurt if first else np.inf)

    assert max(after) < (10 if slow else 5)


def test_a_victim_is_excused_by_who_is_not_proven_to_be_late_yet() -> None:
    """A fault begins just before a tick, so that both communicators have about as much to show as is needed."""
    right = 0
    for seed in range(40):
        chain, tracker = Chain(seed), CollectivesTracker(NcclConfig())
        chain.run(100, {})
        for more in (int(chain.random.integers(8, 16)), 30):
            chain.run(more, {7: 5.0})
            feed(tracker, [chain.push(node, np.inf) for node in range(chain.NODES)], chain.moment)
            tracker.judge(chain.moment)
            assert named(tracker) <= {LATE_NODE}
        right += named(tracker) == {LATE_NODE}
        assert all(text != "culprit" or len(tracker.stragglers) for text in verdicts(tracker, chain.moment))

    assert right == 40


@pytest.mark.parametrize("jitter", [0.05, 1.0])
def test_a_victim_is_not_named_either_once_its_late_rank_is_cured(jitter: float) -> None:
    chain, tracker = Chain(jitter_ms=jitter), CollectivesTracker(NcclConfig(), polls=POLLS_PER_TICK)
    found = []
    for tick in range(18):
        chain.run(50, {7: 5.0} if 2 <= tick < 6 else {})
        feed(tracker, [chain.push(node, np.inf) for node in range(chain.NODES)], chain.moment)
        tracker.judge(chain.moment)
        assert named(tracker) <= {LATE_NODE}
        found.append(bool(tracker.stragglers))

    assert found[2:6] == [True] * 4
    assert not found[-1]


class Stumbling(CollectivesTracker):
    """Fails at its first poll."""

    def early_poll(self, now: float) -> None:
        if not self.polls["failed"]:
            raise RuntimeError("stumbled")
        super().early_poll(now)


def test_polls_go_on_after_one_that_failed() -> None:
    tracker = Stumbling(NcclConfig(), polls=POLLS_PER_TICK)
    feed(tracker, Job(8, late_ms={5: 5.0}).pushes(30), BEGIN)

    async def run() -> None:
        polling = asyncio.create_task(poll_between_ticks(tracker, lambda: BEGIN, 0.01))
        while not tracker.stragglers:
            await asyncio.sleep(0.01)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 30))

    assert named(tracker) == {"node-5"}
    assert tracker.polls["failed"] == 1
