"""Ranks that do different work: who is late beyond it is named, who only has more to do is not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_contract import attributes
from ingero_fleet.collectives import unequal_work
from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_fleet.processor_settings import NcclConfig
from ingero_fleet.state_codec import encode_state, hash_of, sealed, unsealed
from ingero_testing.collectives import BEGIN, Job, Lengths, feed, named

VARYING = Lengths(0.3)
LONGER = Lengths(0.3, skew=0.3)
NEVER = Lengths(0.0, skew=0.1)


def tracked(job: Job, ticks: int = 3, steps: int = 20, **how: Any) -> CollectivesTracker:
    tracker = CollectivesTracker(NcclConfig())
    for tick in range(ticks):
        feed(tracker, job.pushes(steps, **how), BEGIN + 5 * tick)
        tracker.judge(BEGIN + 5 * tick)
    return tracker


def verdict(tracker: CollectivesTracker) -> str:
    return str(tracker.answer("c", BEGIN + 10)["communicators"][0]["verdict"])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lengths", [VARYING, LONGER, Lengths(0.3, quadratic=1.0), Lengths(0.3, 0.0, 0.3, 1.0)])
def test_more_work_is_no_lateness_and_lateness_is_seen_beside_it(lengths: Lengths, seed: int) -> None:
    assert named(tracked(Job(lengths=lengths, seed=seed))) == set()
    assert named(tracked(Job(lengths=lengths, late={seed: 0.08}, seed=seed))) == {f"node-{seed}"}
    assert named(tracked(Job(lengths=lengths, late={7: 0.08}, seed=seed))) == {"node-7"}, "the one with most work"


def test_without_the_work_the_rank_with_longer_sequences_is_named() -> None:
    tracker = tracked(Job(lengths=Lengths(0.1, skew=0.3), tells=False))

    assert named(tracker) == {"node-7"}
    assert all(window.work is None for window in tracker.windows.values())


def test_work_that_never_varies_within_ranks_is_unknown_unless_a_rank_is_late_without_more_of_it() -> None:
    tracker = tracked(Job(lengths=NEVER))

    assert named(tracker) == set()
    assert verdict(tracker).startswith("unknown: rank 7 came last in")
    assert named(tracked(Job(lengths=NEVER, late={2: 0.2}))) == {"node-2"}


def test_equal_work_changes_no_answer() -> None:
    for late in ({}, {3: 0.05}):
        answers = []
        for tells in (True, False):
            tracker = tracked(Job(lengths=Lengths(0.0), late=late, tells=tells))
            answers.append((tracker.answer(None, BEGIN + 10), tracker.stragglers))
        assert answers[0] == answers[1]


def test_a_figure_that_explains_nothing_excuses_nobody() -> None:
    job = Job(lengths=Lengths(0.0), late={3: 0.05})
    random = np.random.default_rng(0)
    tracker = CollectivesTracker(NcclConfig())
    for tick in range(3):
        job._told = lambda place, rank: int(random.integers(1000, 9000))  # type: ignore[method-assign]
        feed(tracker, job.pushes(20), BEGIN + 5 * tick)
        tracker.judge(BEGIN + 5 * tick)

    assert named(tracker) == {"node-3"}


@pytest.mark.parametrize("late", [3, 0])
def test_ranks_that_do_not_tell_their_work_are_never_named_and_hide_nobody(late: int) -> None:
    job = Job(lengths=VARYING, late={late: 0.6})
    told = job._told
    job._told = lambda place, rank: None if rank == 0 else told(place, rank)  # type: ignore[method-assign]
    tracker = tracked(job)

    assert named(tracker) == ({"node-3"} if late else set())
    assert verdict(tracker).startswith("culprit" if late else "unknown: rank 0 came last")


def test_lost_points_and_several_collectives_of_a_step_are_no_obstacle() -> None:
    assert named(tracked(Job(lengths=LONGER, per_step=4, late={2: 0.1}), drop=0.02)) == {"node-2"}
    assert named(tracked(Job(lengths=LONGER, per_step=4), drop=0.02)) == set()


@pytest.mark.parametrize("value", [-5, -(1 << 62), "many"])
def test_a_figure_that_is_no_amount_counts_as_untold(value: int | str) -> None:
    job = Job(late_ms={3: 5.0})
    bodies = job.pushes(30)
    marked = []
    for body in bodies:
        request = ExportMetricsServiceRequest.FromString(body)
        for point in request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points:
            added = point.attributes.add(key=attributes.WORK)
            if isinstance(value, str):
                added.value.string_value = value
            else:
                added.value.int_value = value
        marked.append(request.SerializeToString())
    tracker = CollectivesTracker(NcclConfig())
    feed(tracker, marked, BEGIN)
    tracker.judge(BEGIN)

    assert named(tracker) == {"node-3"}
    assert all(window.work is None for window in tracker.windows.values())


def test_a_restored_tracker_continues_with_equal_state() -> None:
    def hashed(tracker: CollectivesTracker) -> str:
        return hash_of(encode_state(tracker.state()))

    job = Job(lengths=LONGER, late={2: 0.08})
    first, second = CollectivesTracker(NcclConfig()), CollectivesTracker(NcclConfig())
    for tick in range(4):
        bodies = job.pushes(10)
        feed(first, bodies, BEGIN + 5 * tick)
        if tick == 2:
            second.restore(unsealed(sealed(encode_state(first.state()))))
        elif tick > 2:
            feed(second, bodies, BEGIN + 5 * tick)
        for one in (first, second) if tick > 1 else (first,):
            one.judge(BEGIN + 5 * tick)

    assert named(first) == named(second) == {"node-2"}
    assert hashed(first) == hashed(second)


def test_tables_of_work_are_bounded_and_without_room_nobody_is_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unequal_work, "MOST_CELLS", 8 * 40)
    monkeypatch.setattr(unequal_work, "MOST_CELLS_IN_ALL", 8 * 47)
    tracker = CollectivesTracker(NcclConfig())
    jobs = [
        Job(lengths=Lengths(0.1, skew=0.3), seed=seed, comm=f"{seed:016x}", cluster=f"c{seed}") for seed in (0, 1)
    ]
    for tick in range(3):
        for job in jobs:
            feed(tracker, job.pushes(30), BEGIN + 5 * tick)
        tracker.judge(BEGIN + 5 * tick)

    kept = [len(window.work) for window in tracker.windows.values() if window.work is not None]
    assert kept == [40, unequal_work.FEWEST - 1]
    assert named(tracker) == set()


def test_old_collectives_take_their_work_along() -> None:
    tracker = tracked(Job(lengths=VARYING), ticks=1)
    tracker.judge(BEGIN + 61)

    (window,) = tracker.windows.values()
    assert window.work is not None
    assert len(window.work) == 0
    again = Job(lengths=replace(VARYING), tells=False)
    again.done = 20
    feed(tracker, again.pushes(20), BEGIN + 62)
    tracker.judge(BEGIN + 65)
    assert window.work is None, "work is no longer told"


def test_ranks_whose_figures_mean_other_amounts_are_not_named() -> None:
    job = Job(lengths=VARYING)
    told = job._told
    job._told = lambda place, rank: (told(place, rank) or 0) // (2 if rank < 2 else 1)  # type: ignore[method-assign]

    assert named(tracked(job)) == set()
