"""Bad input to the question which rank is late: the answer may become unknown, never a victim."""

from typing import Any

import pytest

from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_fleet.processor_settings import NcclConfig
from ingero_testing.collectives import BEGIN, Job, feed


def named(tracker: CollectivesTracker) -> set[tuple[str, str, int]]:
    return {(cluster, node, item["rank"]) for (cluster, node), item in tracker.stragglers.items()}


def verdicts(tracker: CollectivesTracker, now: float = BEGIN) -> list[str]:
    return [item["verdict"] for item in tracker.answer(None, now)["communicators"]]


@pytest.mark.parametrize("late", [{}, {5: 5.0}])
@pytest.mark.parametrize("seq", [True, False])
def test_clocks_ten_seconds_apart_make_no_victim(seq: bool, late: dict[int, float]) -> None:
    found = []
    for seed in range(20):
        tracker, job = CollectivesTracker(NcclConfig()), Job(8, late_ms=late, clock_seconds=10.0, seed=seed)
        for tick in range(6):
            feed(tracker, job.pushes(50, seq=seq), BEGIN + 5 * tick)
            tracker.judge(BEGIN + 5 * tick)
            found.append(named(tracker))

    right = {("c", "node-5", 5)} if late else set()
    assert all(item <= right for item in found)
    if seq:
        assert found[-1] == right


def test_a_clock_that_goes_back_makes_no_victim() -> None:
    tracker, job = CollectivesTracker(NcclConfig()), Job(8, late_ms={5: 5.0})
    for tick in range(4):
        job.moment -= 12.0
        feed(tracker, job.pushes(50), BEGIN + 5 * tick)
        tracker.judge(BEGIN + 5 * tick)
        assert named(tracker) <= {("c", "node-5", 5)}


def test_a_restarted_job_that_numbers_anew_is_judged_on() -> None:
    tracker, job = CollectivesTracker(NcclConfig(window=128)), Job(8, late_ms={5: 5.0})
    for tick in range(3):
        feed(tracker, job.pushes(60), BEGIN + 5 * tick)
        tracker.judge(BEGIN + 5 * tick)
    assert named(tracker) == {("c", "node-5", 5)}
    job.done, job.late_ms = 0, {2: 5.0}
    for tick in range(3, 7):
        feed(tracker, job.pushes(60, node="new-{}"), BEGIN + 5 * tick)
        tracker.judge(BEGIN + 5 * tick)

    assert named(tracker) == {("c", "new-2", 2)}


def test_a_rank_that_restarts_alone_makes_no_victim_and_the_late_rank_is_still_named() -> None:
    tracker, job = CollectivesTracker(NcclConfig(window=128)), Job(8, late_ms={5: 5.0})
    for tick in range(12):
        bodies = job.pushes(50)
        if tick >= 2:
            # Rank 3 counts from 0 again: what it says fits nobody else's collectives.
            job.done -= 100
            bodies[3] = Job(8, seed=tick).pushes(50)[3] if tick == 2 else b""
            job.done += 100
        feed(tracker, bodies, BEGIN + 10 * tick)
        tracker.judge(BEGIN + 10 * tick)
        assert named(tracker) <= {("c", "node-5", 5)}

    assert named(tracker) == {("c", "node-5", 5)}
    assert tracker.outcomes["partial"] > 0
    assert tracker.outcomes["incomplete"] > 0


@pytest.mark.parametrize("other", [{"cluster": "d"}, {"ranks": 4}, {"comm": "f" * 16}])
def test_communicators_that_differ_in_cluster_size_or_hash_are_kept_apart(other: dict[str, Any]) -> None:
    tracker = CollectivesTracker(NcclConfig())
    feed(tracker, Job(8, late_ms={5: 5.0}, seed=1).pushes(60), BEGIN)
    feed(tracker, Job(**{"ranks": 8, **other}, late_ms={}, seed=2).pushes(60), BEGIN)
    tracker.judge(BEGIN)

    assert len(tracker.windows) == 2
    assert named(tracker) == {("c", "node-5", 5)}


@pytest.mark.parametrize("mixed", [False, True])
def test_two_communicators_of_one_hash_on_the_same_nodes_are_unknown(mixed: bool) -> None:
    tracker = CollectivesTracker(NcclConfig())
    one = Job(8, late_ms={5: 5.0}, seed=1).pushes(60)
    # The other one waits far less: whoever is mistaken for a member of it would seem late.
    two = Job(8, jitter_ms=0.01, step_ms=50, seed=2).pushes(60)
    for rank in range(8):
        pair = [one[rank], two[rank]]
        feed(tracker, pair[::-1] if mixed and rank == 3 else pair, BEGIN)
    tracker.judge(BEGIN)

    assert named(tracker) == set()
    assert all("share this hash" in text for text in verdicts(tracker))
    assert tracker.outcomes["repeated"] == 8 * 60


def test_what_is_sent_again_is_no_dispute() -> None:
    tracker = CollectivesTracker(NcclConfig())
    bodies = Job(8, late_ms={5: 5.0}).pushes(60)
    feed(tracker, [*bodies, *bodies[2:4]], BEGIN)
    tracker.judge(BEGIN)

    assert named(tracker) == {("c", "node-5", 5)}
    assert tracker.outcomes["repeated"] == 2 * 60


def test_among_ten_thousand_communicators_the_late_rank_is_named_and_one_more_is_counted() -> None:
    tracker = CollectivesTracker(NcclConfig())
    healthy = Job(2, seed=1, comm="0" * 16).pushes(3)
    for number in range(9_999):
        name = f"{number:016x}".encode()
        feed(tracker, [body.replace(b"0" * 16, name) for body in healthy], BEGIN)
    feed(tracker, Job(2, late_ms={1: 9.0}, comm="c" * 16).pushes(60, node="host-{}"), BEGIN)
    feed(tracker, Job(2, late_ms={1: 9.0}, comm="d" * 16).pushes(1), BEGIN)
    tracker.judge(BEGIN)

    assert len(tracker.windows) == 10_000
    assert named(tracker) == {("c", "host-1", 1)}
    assert sum(tracker.reader.refused.values()) == 2
    assert len(tracker.answer(None, BEGIN, 5)["communicators"]) == 5
