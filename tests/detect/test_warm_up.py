"""The first steps of a job, which are longer than all others."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingero_detect.ranks.diagnosis import diagnose
from ingero_detect.ranks.timeline import Timeline
from ingero_detect.ranks.warm_up import warm_up_steps, without_first_steps

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, as_timeline


def recorded(
    steps: int, warm_up: tuple[float, ...] = (20.0,), idle: tuple[int, ...] = (), slow: tuple[int, ...] = (),
    late_at_first: tuple[int, ...] = (), seed: int = 0,
) -> Timeline:  # fmt: skip
    """Eight ranks that compute 0.8 s and meet; in the first steps each takes so many times as long, give or take a
    fifth. `idle` ranks do nothing for 0.2 s of each step, `slow` ones compute a quarter longer, and ranks that are
    `late_at_first` do nothing for 10 s of the first step."""
    rng, table, ranks, begin = np.random.default_rng(seed), Table(), np.arange(8), 0.0
    for step in range(steps):
        times = warm_up[step] * rng.uniform(0.8, 1.2, 8) if step < len(warm_up) else np.ones(8)
        pause = 0.2 * np.isin(ranks, idle) + 10.0 * (np.isin(ranks, late_at_first) & (step == 0))
        compute = 0.8 * times * rng.normal(1, 0.01, 8) * np.where(np.isin(ranks, slow), 1.25, 1.0)
        arrival = begin + pause + compute
        end = arrival.max() + 0.1
        table.add(rank=ranks, op="step", kind="compute", start=begin + pause, duration=compute, step=step, group="",
                  seq="")  # fmt: skip
        table.add(rank=ranks, op="all-reduce", kind="collective", start=arrival, duration=end - arrival, step=step,
                  group="dp", seq=step)  # fmt: skip
        begin = end
    return as_timeline(table)


@pytest.mark.parametrize("warm_up", [(3.0,), (20.0,), (6.0, 4.0)])
def test_half_of_the_ranks_that_stand_still_are_possible_also_after_a_warm_up(warm_up: tuple[float, ...]) -> None:
    found = diagnose(recorded(10, warm_up, idle=(0, 1, 2, 3)))

    assert (str(found.cause), found.evidence["possible"]) == ("unknown", [0, 1, 2, 3])
    assert (found.evidence["warm_up_steps"], found.evidence["steps"]) == (len(warm_up), 10 - len(warm_up))


@pytest.mark.parametrize("warm_up", [(), (20.0,)])
def test_a_slow_rank_of_a_short_recording_is_named_with_and_without_a_warm_up(warm_up: tuple[float, ...]) -> None:
    found = diagnose(recorded(6, warm_up, slow=(5,)))

    assert (str(found.cause), found.ranks) == ("node", (5,))
    assert found.evidence.get("warm_up_steps", 0) == len(warm_up)
    assert found.seconds_lost_per_step == pytest.approx(0.2, rel=0.1)


def test_healthy_ranks_are_not_accused_of_a_warm_up() -> None:
    for seed in range(20):
        assert diagnose(recorded(12, (15.0, 3.0), seed=seed)).ranks == ()


def test_a_first_step_in_which_most_ranks_wait_for_few_is_no_warm_up() -> None:
    assert warm_up_steps(recorded(20, (), late_at_first=(3,))) == 0
    assert warm_up_steps(recorded(20, (), late_at_first=(0, 1, 2, 3, 4, 5, 6, 7))) == 0


def test_a_warm_up_is_short_and_leaves_steps_to_judge() -> None:
    assert warm_up_steps(recorded(3)) == 0
    assert warm_up_steps(recorded(4)) == 1
    assert warm_up_steps(recorded(6, (20.0, 20.0))) == 2
    assert warm_up_steps(recorded(4, (20.0, 20.0))) == 0
    assert warm_up_steps(recorded(16, (20.0,) * 7)) == 4


def test_a_longer_first_part_with_more_operations_is_no_warm_up() -> None:
    line = recorded(12, ())
    again = np.tile(np.flatnonzero((line.step == 0) & ~line.collective), 4)
    rows = np.concatenate((again, np.arange(len(line.rank))))
    names = ("rank", "step", "op", "collective", "start", "duration", "instance", "stage", "data_parallel", "group")

    assert warm_up_steps(replace(line, **{name: getattr(line, name)[rows] for name in names})) == 0


def test_what_is_left_begins_with_the_next_step() -> None:
    line = recorded(4, (20.0,))
    rest = without_first_steps(line, 1)

    assert (rest.steps, len(rest.rank), rest.step.min(), rest.step.max()) == (3, 48, 0, 2)
    assert without_first_steps(line, 0) is line
