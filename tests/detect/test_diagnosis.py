"""How much evidence a rank needs, and what ranks lend one another."""

import itertools
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ingero_detect.ranks.calm_compute import data_peers
from ingero_detect.ranks.diagnosis import diagnose
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.last_arrival import min_last_count
from ingero_detect.ranks.late_waits import without_usual_chips
from ingero_detect.ranks.rank_outliers import (
    CHIP_SPREAD,
    moderated_errors,
    straggler_ranks,
    trimmed_mean,
    wander_of_means,
)
from ingero_detect.ranks.shared_data import DataGroups
from ingero_detect.ranks.stalls import late_together, stalling_rank
from ingero_detect.ranks.student import upper_quantile
from ingero_detect.ranks.timeline import Timeline

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, as_timeline, interleaved, layered, pipeline, ring, varying


def test_a_rank_late_by_as_much_as_its_jitter_is_named_mostly_and_an_innocent_never() -> None:
    found = [
        diagnose(as_timeline(ring(np.random.default_rng(seed), 8, jitter=0.05, culprit=5))) for seed in range(20)
    ]

    assert {rank for one in found for rank in one.ranks} == {5}
    assert sum(one.ranks == (5,) for one in found) >= 14


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8, 0.95])
def test_errors_are_what_means_differ_by_however_slowly_ranks_wander(memory: float) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(400, 100))
    for step in range(1, 100):
        values[:, step] = memory * values[:, step - 1] + np.sqrt(1 - memory**2) * values[:, step]

    mean, error = trimmed_mean(values)

    assert np.std(mean) / np.median(error) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(("walk", "seldom", "mostly"), [(0.0, 0.0, 0.05), (0.3, 0.7, 1.0)])
def test_independent_steps_that_seem_to_wander_widen_the_errors_little_and_walks_do(
    walk: float, seldom: float, mostly: float
) -> None:
    """`seldom` and `mostly`: bounds of the share of recordings in which errors grow by 40 % or more."""
    widened = 0
    for seed in range(400):
        steps = np.random.default_rng(seed).normal(size=(2, 8, 50))
        values = steps[0] + walk * np.cumsum(steps[1], axis=1)
        widened += bool(wander_of_means(values, 50) >= 1.4 * np.median(trimmed_mean(values)[1]))

    assert seldom <= widened / 400 <= mostly


def test_ranks_that_all_wander_slowly_beneath_their_noise_are_not_named() -> None:
    for seed in (0, 6, 12, 22):
        rng = np.random.default_rng(seed)
        phase = rng.uniform(0, 2 * np.pi, (16, 1))
        values = 1 + 0.02 * np.sin(2 * np.pi * np.arange(100) / 70 + phase) + 0.015 * rng.normal(size=(16, 100))
        chips = 0.01 * rng.normal(size=(16, 1))

        assert not straggler_ranks(values + chips, np.zeros(16, np.int64))[0].any()


@pytest.mark.parametrize("slower", [0.0, 0.2])
def test_of_ranks_whose_times_are_random_walks_one_is_named_only_if_it_changes_as_no_other_does(
    slower: float,
) -> None:
    found = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        walks = 1 + 0.005 * np.cumsum(rng.normal(size=(16, 40)), axis=1) + 0.01 * rng.normal(size=(16, 40))
        walks[3, 20:] += slower
        found.append(straggler_ranks(walks, np.zeros(16, np.int64))[0])

    assert np.delete(found, 3, axis=1).sum() == 0
    assert np.sum(found) == (8 if slower else 0)


def test_ranks_with_like_errors_know_them_better_together() -> None:
    error, freedom = moderated_errors(np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 0.98]), 50)

    assert error == pytest.approx(np.ones(8), abs=0.03)
    assert (freedom > 200).all()


def test_a_rank_that_is_noisier_than_the_others_keeps_its_error() -> None:
    error, freedom = moderated_errors(np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 2.0]), 50)

    assert (error[7], freedom[7]) == (2.0, 39.0)
    assert error[0] == pytest.approx(1.0, abs=0.03)


def test_ranks_of_all_kinds_of_noise_lend_little() -> None:
    own = np.exp(np.linspace(-1.5, 1.5, 16))

    error, _ = moderated_errors(own, 50)

    assert error == pytest.approx(own, rel=0.1)


@pytest.mark.parametrize(("ranks", "lasts"), [(8, 22), (64, 10)])
def test_how_often_the_last_has_to_be_last(ranks: int, lasts: int) -> None:
    assert min_last_count(50, ranks, 1e-6 / ranks) == lasts
    assert min_last_count(4, 8, 1e-6) == 5, "so few steps prove nothing"


@pytest.mark.parametrize(
    ("chance", "steps", "exact"), [(1e-3, 7.5, 5.893), (1e-4, 7.5, 9.678), (1e-4, 126.25, 3.862)]
)
def test_few_steps_need_more_as_in_students_table(chance: float, steps: float, exact: float) -> None:
    assert upper_quantile(chance, steps) == pytest.approx(exact, rel=0.04)


def stalling(rng: np.random.Generator, share: float, of: int) -> npt.NDArray[np.float64]:
    values = 0.01 * rng.normal(size=(16, 60))
    return values + 0.3 * (rng.random((16, 60)) < share) * (np.arange(16) < of)[:, None]


def test_a_rank_that_stalls_in_some_steps_only_is_named_and_stalls_of_all_are_nobodys() -> None:
    alike = np.zeros(16, np.int64)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        one, _ = straggler_ranks(stalling(rng, 0.5, of=1), alike)
        everybody, _ = straggler_ranks(stalling(rng, 0.02, of=16), alike)

        assert np.flatnonzero(one).tolist() == [0]
        assert not everybody.any()


@pytest.mark.parametrize("ranks", [4, 16, 64])
def test_a_habit_of_being_last_by_a_hair_and_a_few_pauses_name_nobody(ranks: int) -> None:
    for seed in range(10):
        values = 1 + np.random.default_rng(seed).normal(0.0, 0.005, (ranks, 200))
        values[2] += 0.01
        values[2, [30, 110, 170]] += 10.0

        named, _ = straggler_ranks(values, np.zeros(ranks, np.int64))

        assert not named.any()


@pytest.mark.parametrize("habitual", [(2,), (2, 8, 10)], ids=["one rank", "some ranks"])
def test_pauses_that_strike_all_ranks_are_not_the_cost_of_a_habit_of_being_last_by_a_hair(
    habitual: tuple[int, ...],
) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        values = 1 + rng.normal(0.0, 0.005, (16, 300))
        values[list(habitual)] += 0.01
        values += rng.uniform(0.1, 1.0, values.shape) * (rng.random(values.shape) < 0.07)

        named, _ = straggler_ranks(values, np.zeros(16, np.int64))

        assert not named.any()


def test_pauses_do_not_hide_a_rank_that_is_late_in_every_step() -> None:
    values = 1 + np.random.default_rng(1).normal(0.0, 0.005, (16, 200))
    values[2] += 0.04
    values[2, [30, 110, 170]] += 10.0

    named, excess = straggler_ranks(values, np.zeros(16, np.int64))

    assert np.flatnonzero(named).tolist() == [2]
    assert excess[2] > 0.03


def test_ranks_of_a_slow_host_are_all_named_although_the_first_steps_are_uneven() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        values = 0.005 * rng.normal(size=(16, 20)) + 0.1 * (np.arange(16) < 4)[:, None]
        values[2] += 0.06
        values[:, :4] += 0.3 * rng.normal(size=(16, 4))

        named, _ = straggler_ranks(values, np.zeros(16, np.int64))

        assert np.flatnonzero(named).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("steps", [7, 8, 12])
@pytest.mark.parametrize("stages", [1, 4])
def test_a_rank_that_is_late_by_a_different_time_in_each_of_few_steps_is_named(steps: int, stages: int) -> None:
    alike = np.arange(16) * stages // 16
    for seed in range(10):
        rng = np.random.default_rng(seed)
        values = 0.005 * rng.normal(size=(16, steps))
        late = values.copy()
        late[14] += rng.uniform(0.12, 0.25, steps)
        paused = values + 0.5 * (rng.random(values.shape) < 0.05)

        assert np.flatnonzero(straggler_ranks(late, alike)[0]).tolist() == [14]
        assert not straggler_ranks(paused, alike)[0].any()


def test_what_all_have_in_common_in_a_step_hides_nobody() -> None:
    rng = np.random.default_rng(1)
    values = 0.01 * rng.normal(size=(8, 40)) + 0.3 * rng.normal(size=40)
    values[3] += 0.04

    found, excess = straggler_ranks(values, np.zeros(8, np.int64))

    assert np.flatnonzero(found).tolist() == [3]
    assert excess[3] == pytest.approx(0.04, abs=0.01)


@pytest.mark.parametrize(("tensor", "data"), [(4, 2), (4, 4), (8, 2)])
def test_a_rank_that_waits_for_its_data_is_named_without_its_tensor_group(tensor: int, data: int) -> None:
    for seed in range(5):
        table = layered(np.random.default_rng(seed), tensor, data, idle=0.04, culprit=5)

        found = diagnose(as_timeline(table))

        assert (str(found.cause), found.ranks) == ("node", (5,))
        assert found.seconds_lost_per_step == pytest.approx(0.04, rel=0.2)


def test_a_difference_that_costs_next_to_nothing_names_nobody_however_many_exchanges_show_it() -> None:
    for seed in range(20):
        table = layered(np.random.default_rng(seed), 1, 4, steps=100, layers=6, culprit=seed % 4, slower=0.007)

        assert str(diagnose(as_timeline(table)).cause) == "none"


@pytest.mark.parametrize(("late", "named"), [(0.1, (5,)), (0.0, ())])
def test_a_job_that_is_restarted_within_the_recording_hides_nobody(late: float, named: tuple[int, ...]) -> None:
    line = as_timeline(ring(np.random.default_rng(1), 8, late=late, culprit=5))
    whole = diagnose(line)

    found = diagnose(replace(line, start=line.start + 300.0 * (line.step >= line.steps // 2)))

    assert found.ranks == whole.ranks == named
    assert found.evidence["step_seconds"] == pytest.approx(whole.evidence["step_seconds"], rel=0.05)


def test_a_rank_whose_times_are_in_another_unit_makes_no_job_endlessly_slow() -> None:
    line = as_timeline(ring(np.random.default_rng(1), 8, late=0.0))
    scale = np.where(line.rank == 2, 1000.0, 1.0)

    found = diagnose(replace(line, start=line.start * scale, duration=line.duration * scale))

    assert found.ranks == () and 1.0 <= found.slowdown <= 100.0


@pytest.mark.parametrize("stages", [3, 4, 6])
def test_a_rank_alone_in_its_stage_is_not_late_because_its_place_in_the_pipeline_has_fewer_waits(stages: int) -> None:
    for seed in range(5):
        table = interleaved(np.random.default_rng(seed), stages, replicas=1, jitter=0.01, norm=True)

        assert str(diagnose(as_timeline(table)).cause) == "none"


@pytest.mark.parametrize("culprit", [0, 1, 2, 3])
def test_a_rank_alone_in_its_stage_that_became_slow_is_named_wherever_it_is(culprit: int) -> None:
    table = interleaved(np.random.default_rng(1), replicas=1, culprit=culprit, late=0.3, since=15, norm=True)

    assert diagnose(as_timeline(table)).ranks == (culprit,)


@pytest.mark.parametrize("culprit", [0, 3, 5, 7])
def test_a_rank_of_a_late_stage_is_named_although_it_waits_for_the_first_stage_like_its_peer(culprit: int) -> None:
    for seed in range(3):
        table = interleaved(np.random.default_rng(seed), replicas=2, parts=4, culprit=culprit, late=0.2, norm=True)

        found = diagnose(as_timeline(table))

        assert (str(found.cause), found.ranks) == ("node", (culprit,))
        assert found.evidence["lag_seconds"][str(culprit)] > 0


def without_groups_of_sends(table: Table) -> Timeline:
    """The timeline of a file that does not say which two ranks a send is between."""
    line, columns = as_timeline(table), table.arrays()
    sends = np.isin(columns["op"], ["send", "recv"])
    names = np.stack([columns["op"], columns["seq"].astype(str)])
    _, alike = np.unique(names, axis=1, return_inverse=True)
    instance = np.where(sends, line.instance.max() + 1 + alike.ravel(), line.instance)
    assert line.group is not None
    return replace(line, instance=instance, group=np.where(sends, -1, line.group), sends=sends)


def with_lost_rows(table: Table) -> Timeline:
    """The same without some rows of computing."""
    line = without_groups_of_sends(table)
    kept = line.collective | (np.arange(len(line.rank)) % 97 > 0)
    columns = {one.name: getattr(line, one.name) for one in fields(line)}
    rows: dict[str, Any] = {name: of[kept] for name, of in columns.items() if isinstance(of, np.ndarray)}
    return replace(line, **rows)


@pytest.mark.parametrize("read", [as_timeline, without_groups_of_sends, with_lost_rows])
@pytest.mark.parametrize(("longer", "pause"), [(0.3, 0.0), (0.0, 0.03)], ids=["computes longer", "pauses"])
def test_a_late_rank_of_a_pipeline_costs_what_bubbles_do_not_take_up(
    read: Callable[[Table], Timeline], longer: float, pause: float
) -> None:
    late, healthy = (
        read(interleaved(np.random.default_rng(1), 4, 3, 8, 12, culprit=culprit, late=longer, stall=pause, norm=True))
        for culprit in (4, -1)
    )

    found = diagnose(late)

    took = [float(np.ptp(line.start[line.rank == 0])) / line.steps for line in (late, healthy)]
    assert found.ranks == (4,)
    assert found.seconds_lost_per_step == pytest.approx(took[0] - took[1], rel=0.1)


@pytest.mark.parametrize("tensor", [1, 4])
def test_steps_that_are_long_on_all_ranks_are_no_imbalance_and_hide_nobody(tensor: int) -> None:
    for seed in range(5):
        healthy = layered(np.random.default_rng(seed), tensor, 8, warm=3)
        slow = layered(np.random.default_rng(seed), tensor, 8, warm=3, culprit=5, slower=0.1)

        assert str(diagnose(as_timeline(healthy)).cause) == "none"
        assert diagnose(as_timeline(slow)).ranks == (5,)


@pytest.mark.parametrize("tensor", [1, 4])
def test_a_rank_that_stands_still_in_some_steps_is_named_also_if_it_does_so_in_a_rhythm(tensor: int) -> None:
    rhythm = tuple(step for step in range(50) if step % 10 in (0, 7, 8, 9))
    for seed in range(5):
        chance = tuple(np.random.default_rng(seed).choice(50, 12, replace=False).tolist())
        for stall in (rhythm, chance):
            table = layered(np.random.default_rng(seed), tensor, 8, steps=50, culprit=5, stall=stall)

            assert diagnose(as_timeline(table)).ranks == (5,)


@pytest.mark.parametrize("steps", [20, 50])
def test_a_rank_that_grows_slower_during_the_recording_is_named(steps: int) -> None:
    for seed in range(10):
        columns = ring(np.random.default_rng(seed), 8, steps=steps, late=0.0, jitter=0.01).arrays()
        grows = (columns["kind"] == "compute") & (columns["rank"].astype(int) == 5)
        slower = np.where(grows, 1 + 0.2 * columns["step"].astype(int) / steps, 1.0)
        columns["duration"] = columns["duration"].astype(float) * slower

        assert diagnose(as_timeline(Table({name: [column] for name, column in columns.items()}))).ranks == (5,)


@pytest.mark.parametrize("length", [1, 4])
def test_pauses_that_strike_all_ranks_name_nobody_however_long_they_last(length: int) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        values = 0.01 * rng.normal(size=(8, 80))
        pauses = np.repeat(rng.random((8, 80 // length)) < 0.03, length, axis=1)

        found, _ = straggler_ranks(values + 0.3 * pauses, np.zeros(8, np.int64))

        assert not found.any()


@pytest.mark.parametrize(
    ("ranks", "steps", "lengths"), [(16, 40, (15, 9, 6)), (16, 100, (18, 15, 11)), (8, 20, (7, 5))]
)
def test_pauses_of_many_steps_that_strike_several_ranks_name_nobody(
    ranks: int, steps: int, lengths: tuple[int, ...]
) -> None:  # fmt: skip
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = 0.01 * rng.normal(size=(ranks, steps))
        for place, length in enumerate(lengths):
            begin = place * steps // len(lengths)
            values[place, begin : begin + length] += rng.uniform(0.2, 0.3)

        found, _ = straggler_ranks(values, np.zeros(ranks, np.int64))

        assert not found.any()


@pytest.mark.parametrize("begin", [0, 6, 13, 20])
def test_a_rank_that_is_slow_in_a_third_of_the_steps_is_named_wherever_they_are(begin: int) -> None:
    for seed in range(10):
        columns = layered(np.random.default_rng(seed), 1, 16, steps=30).arrays()
        step = columns["step"].astype(int)
        slow = (columns["op"] == "layer") & (columns["rank"] == 5) & (step >= begin) & (step < begin + 10)
        columns["duration"] = columns["duration"].astype(float) * np.where(slow, 1.2, 1.0)

        assert diagnose(as_timeline(Table({name: [column] for name, column in columns.items()}))).ranks == (5,)


def test_a_rank_that_grows_slow_is_named_beside_one_that_always_is() -> None:
    relative = 1 + 0.01 * np.random.default_rng(3).normal(size=(16, 40))
    relative[2] += 0.2
    relative[9, 25:] += 0.15

    flagged, _ = straggler_ranks(relative, np.zeros(16, np.int64))

    assert np.flatnonzero(flagged).tolist() == [2, 9]


@pytest.mark.parametrize(("late", "named"), [(0.1, (2,)), (0.0, ())])
def test_rows_that_are_lost_anywhere_neither_hide_a_rank_nor_accuse_one(late: float, named: tuple[int, ...]) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        columns = layered(rng, 1, 4, steps=12, slower=late, culprit=2, jitter=0.005).arrays()
        kept = rng.random(len(columns["rank"])) > 0.1

        found = diagnose(as_timeline(Table({name: [values[kept]] for name, values in columns.items()})))

        assert (found.ranks, found.evidence["steps"]) == (named, 12)


def test_a_rank_that_is_last_in_all_of_few_steps_is_possible_where_its_times_vary_too_much_to_prove_it() -> None:
    rng = np.random.default_rng(7)
    compute = 0.8 + 0.005 * rng.normal(size=(4, 8))
    compute[1] += 0.15 + 0.03 * rng.normal(size=8)

    found = diagnose(as_timeline(one_barrier({"forward": compute}, np.full(4, -1))))

    assert (found.cause, found.ranks) == ("unknown", ())
    assert (found.evidence["by"], found.evidence["possible"]) == ("few_steps", [1])


def test_the_slowest_of_chips_with_a_long_tail_are_seldom_named_and_a_slow_one_is() -> None:
    named, healthy = 0, 60
    for seed in range(healthy):
        rng = np.random.default_rng(seed)
        ranks = int(rng.choice([32, 64]))
        chips = 1 + 0.012 * rng.exponential(size=(ranks, 1)) + 0.005 * rng.normal(size=(ranks, 16))
        flagged, _ = straggler_ranks(chips, np.zeros(ranks, np.int64), chips=CHIP_SPREAD)
        named += bool(flagged.any())
        if seed < 10:
            chips[3] = 1.15 + 0.005 * rng.normal(size=16)
            slow, _ = straggler_ranks(chips, np.zeros(ranks, np.int64), chips=CHIP_SPREAD)
            assert slow[3]

    assert named <= 0.2 * healthy


@pytest.mark.parametrize("steps", [3, 5, 7])
def test_in_few_steps_the_slowest_of_chips_with_a_long_tail_is_possible_and_a_slow_one_is_named(steps: int) -> None:
    found = []
    for seed in range(60):
        rng = np.random.default_rng([steps, seed])
        ranks = int(rng.choice([8, 16, 32, 64]))
        chips = 1 + 0.03 * rng.exponential(size=(ranks, 1)) + 0.005 * rng.normal(size=(ranks, steps))
        found.append(straggler_ranks(chips, np.zeros(ranks, np.int64), chips=CHIP_SPREAD)[0].any())
        if seed < 20:
            like = 1 + 0.01 * rng.normal(size=(16, 1)) + 0.005 * rng.normal(size=(16, steps))
            like[3] += 0.3
            assert np.flatnonzero(straggler_ranks(like, np.zeros(16, np.int64), chips=CHIP_SPREAD)[0]).tolist() == [3]

    assert sum(found) <= 1


def test_ranks_that_wander_for_several_steps_are_not_named() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        values = 0.02 * rng.normal(size=(16, 30))
        for step in range(1, 30):
            values[:, step] = 0.9 * values[:, step - 1] + 0.44 * values[:, step]

        assert not straggler_ranks(values, np.zeros(16, np.int64))[0].any()


def of_one_host(rng: np.random.Generator, steps: int, noise: float) -> npt.NDArray[np.float64]:
    """Lateness of 16 ranks, of which the last four are late together by another time in each step, as of a loader."""
    values: npt.NDArray[np.float64] = noise * rng.normal(size=(16, steps))
    values[12:] += rng.exponential(0.2, steps) * rng.uniform(0.95, 1.05, (4, steps))
    return values


def test_ranks_of_a_host_that_are_among_the_last_in_nearly_all_steps_are_named() -> None:
    found = [
        np.flatnonzero(straggler_ranks(of_one_host(np.random.default_rng(seed), 40, 0.03), np.zeros(16, int))[0])
        for seed in range(20)
    ]

    assert {rank for ranks in found for rank in ranks.tolist()} == {12, 13, 14, 15}
    assert sum(len(ranks) == 4 for ranks in found) >= 18


@pytest.mark.parametrize(("ranks", "stalled"), [(8, 4), (16, 8), (32, 8)])
def test_ranks_of_one_host_that_stall_together_in_some_steps_are_possible(ranks: int, stalled: int) -> None:
    named = healthy = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = 0.01 * rng.normal(size=(ranks, 80))
        host = np.arange(ranks) >= ranks - stalled
        one = values + host[:, None] * (rng.random(80) < 0.25) * rng.uniform(0.2, 0.5, 80)
        found = late_together(one, 1.0)
        named += found is not None and found.evidence["possible"] == np.flatnonzero(host).tolist()
        struck = np.arange(ranks)[:, None] // stalled == rng.integers(ranks // stalled, size=80)
        any_host = values + struck * (rng.random(80) < 0.25) * rng.uniform(0.2, 0.5, 80)
        healthy += late_together(any_host, 1.0) is not None

    assert named >= 14
    assert healthy == 0


@pytest.mark.parametrize(("ranks", "stalls"), [(32, 5), (64, 4)])
def test_ranks_that_stall_together_in_few_steps_are_possible_if_nobody_else_ever_does(
    ranks: int, stalls: int
) -> None:
    alone, beside_others = 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = 0.01 * rng.normal(size=(ranks, 24))
        steps = rng.permutation(24)
        values[8:16, steps[:stalls]] += 0.5
        found = late_together(values, 1.0)
        alone += found is not None and found.evidence["possible"] == list(range(8, 16))
        values[16:24, steps[stalls : stalls + 3]] += 0.5
        beside_others += late_together(values, 1.0) is not None

    assert alone >= 15
    assert beside_others == 0


def test_in_few_steps_ranks_of_a_host_are_possible_and_pausing_ones_are_not() -> None:
    found = [late_together(of_one_host(np.random.default_rng(seed), 20, 0.03), 1.0) for seed in range(20)]

    assert {rank for one in found if one for rank in one.evidence["possible"]} == {12, 13, 14, 15}
    assert sum(one is not None for one in found) >= 15
    for seed in range(100):
        rng = np.random.default_rng(seed)
        pauses = (rng.random((4, 30)) < 0.2) * rng.exponential(0.3, (4, 30))
        values = 0.01 * rng.normal(size=(16, 30)) + pauses.repeat(4, axis=0)
        assert late_together(values, 1.0) is None


def one_barrier(compute: dict[str, npt.NDArray[np.float64]], replica: npt.NDArray[np.int64]) -> Table:
    """Operations with their seconds by (rank, step), then one collective of all ranks, in each step."""
    ranks, steps = next(iter(compute.values())).shape
    table, now, rank = Table(), np.zeros(ranks), np.arange(ranks)
    for step in range(steps):
        for op, seconds in compute.items():
            own = seconds[:, step]
            table.add(rank=rank, op=op, kind="compute", start=now, duration=own, step=step, group="", seq="",
                      data_parallel=replica)  # fmt: skip
            now = now + own
        end = now.max() + 0.05
        table.add(rank=rank, op="all-reduce", kind="collective", start=now, duration=end - now, step=step,
                  group="all", seq=step, data_parallel=replica)  # fmt: skip
        now = np.full(ranks, end)
    return table


@pytest.mark.parametrize("slower", [0.0, 0.15])
def test_a_slow_chip_shows_in_steady_operations_where_the_tokens_of_experts_hide_it(slower: float) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        load = 0.18 * rng.normal(size=(16, 24))
        for step in range(1, 24):
            load[:, step] = 0.9 * load[:, step - 1] + 0.44 * load[:, step]
        chip = (1 + slower * (np.arange(16) == 5))[:, None] * (1 + 0.01 * rng.normal(size=(3, 16, 24)))
        ops = {"attention": 0.3 * chip[0], "experts": 0.5 * chip[1] * np.exp(load), "attention_back": 0.3 * chip[2]}

        found = diagnose(as_timeline(one_barrier(ops, np.arange(16))))

        named = {*found.ranks, *(rank for other in found.evidence.get("also", ()) for rank in other["ranks"])}
        assert named == ({5} if slower else set())


@pytest.mark.parametrize("slower", [0.0, 0.12])
def test_a_slow_chip_shows_in_steady_places_of_a_step_where_all_that_computes_has_one_name(slower: float) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        chip = (1 + slower * (np.arange(16) == 5))[:, None] * (1 + 0.01 * rng.normal(size=(4, 16, 24)))
        load = np.exp(0.2 * rng.normal(size=(2, 16, 24)))
        ops = {f"{place}": 0.2 * chip[place] * (load[place // 2] if place % 2 else 1) for place in range(4)}
        table = one_barrier(ops, np.arange(16))
        table.columns["op"] = [np.where(np.isin(name, list(ops)), "compute", name) for name in table.columns["op"]]

        found = diagnose(as_timeline(table))

        named = {*found.ranks, *(rank for other in found.evidence.get("also", ()) for rank in other["ranks"])}
        assert named == ({5} if slower else set())


@pytest.mark.parametrize("around", [2, 4])
@pytest.mark.parametrize("slower", [0.0, 0.15])
def test_a_slow_chip_is_compared_with_ranks_that_share_its_sequences(around: int, slower: float) -> None:
    replica = np.arange(16) // around
    for seed in range(10):
        rng = np.random.default_rng(seed)
        length = np.exp(0.25 * rng.normal(size=(16 // around, 24)))[replica]
        chip = (1 + slower * (np.arange(16) == 5))[:, None] * (1 + 0.02 * rng.normal(size=(16, 24)))

        found = diagnose(as_timeline(one_barrier({"layer": 0.8 * chip * length}, replica)))

        named = {*found.ranks, *(rank for other in found.evidence.get("also", ()) for rank in other["ranks"])}
        assert named == ({5} if slower else set())


def test_ranks_that_share_data_are_found_among_groups_of_one_size() -> None:
    """Tensor groups and data groups of two ranks each: the former have the same sequences, the latter other ones."""
    rng = np.random.default_rng(0)
    ranks = np.arange(8)
    tensor, data = ranks // 2, ranks % 2 + ranks // 4 * 2
    groups = np.concatenate([part == np.arange(4)[:, None] for part in (tensor, data)])
    values = np.exp(0.25 * rng.normal(size=(4, 24)))[tensor] * (1 + 0.01 * rng.normal(size=(8, 24)))

    peers = data_peers(DataGroups(groups, np.zeros(8, np.int64)), values, np.zeros(8, np.int64))

    assert peers is not None and peers.tolist() == tensor.tolist()


def test_a_rank_with_a_longer_part_of_each_sequence_is_not_named_where_lengths_vary() -> None:
    """Rings over sequences with a causal mask: the later its part, the longer a rank is in attention alone."""
    replica, place = np.arange(16) // 4, np.arange(16) % 4
    for seed in range(10):
        rng = np.random.default_rng(seed)
        length = np.exp(0.25 * rng.normal(size=(4, 24)))[replica] * (1 + 0.01 * rng.normal(size=(16, 24)))
        part = (0.5 + (place + 0.5) / 4)[:, None] * length
        ops = {"attention": 0.2 * part, "mlp": 0.4 * length, "attention_back": 0.4 * part}

        found = diagnose(as_timeline(one_barrier(ops, replica)))

        assert not [*found.ranks, *(rank for other in found.evidence.get("also", ()) for rank in other["ranks"])]


def test_chips_of_small_stages_are_not_named_for_what_all_chips_differ_by() -> None:
    named = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        chip = np.exp(0.012 * rng.normal(size=(16, 1))) * (1 + 0.003 * rng.normal(size=(16, 30)))
        flagged, _ = straggler_ranks(0.8 * chip, np.arange(16) // 4)
        named += bool(flagged.any())

    assert named <= 4


@pytest.mark.parametrize(("slower", "named"), [(0.028, False), (0.06, True)])
def test_one_of_a_pair_is_not_slow_because_the_other_pairs_happen_to_be_alike(slower: float, named: bool) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        chip = (1 + slower * (np.arange(8) == 3))[:, None] * (1 + 0.003 * rng.normal(size=(8, 30)))
        flagged, _ = straggler_ranks(0.8 * chip, np.arange(8) // 2, chips=0.8 * CHIP_SPREAD)

        assert np.flatnonzero(flagged).tolist() == ([3] if named else [])


def test_a_rank_that_is_late_by_what_healthy_chips_differ_by_is_not_named_by_waits() -> None:
    late = Diagnosis(Cause.NODE, (2,), evidence={"by": "blocked_least", "excess_share_of_step": {"2": 0.03}})
    usual = np.array([True, True, True, True])

    assert without_usual_chips([late], np.array([0.0, 0.0, 0.02, 0.0]), usual) == []
    assert without_usual_chips([late], np.array([0.0, 0.0, 0.01, 0.0]), usual) == [late]
    assert without_usual_chips([late], np.array([0.0, 0.0, 0.02, 0.0]), ~usual) == [late]
    assert without_usual_chips([late], np.array([0.0, 0.0, 0.02, 0.0]), usual, 0.75) == [late]


def test_few_long_steps_that_are_all_of_one_rank_are_not_blamed_on_the_data() -> None:
    for seed in range(5):
        table = layered(np.random.default_rng(seed), 1, 8, steps=20)
        columns = table.arrays()
        odd = (columns["op"] == "layer") & (columns["rank"] == 5) & (columns["step"].astype(int) % 4 == 3)
        columns["duration"] = columns["duration"].astype(float) * np.where(odd, 1.4, 1.0)

        found = diagnose(as_timeline(Table({name: [column] for name, column in columns.items()})))

        assert str(found.cause) in ("unknown", "node")
        assert (found.ranks or tuple(found.evidence["possible"])) == (5,)


@pytest.mark.parametrize(("stages", "replicas", "tensor"), [(1, 4, 4), (4, 4, 1), (2, 8, 1)])
@pytest.mark.parametrize("part", [("compute", "collective"), "collective"])
@pytest.mark.parametrize("longer", [0.06, 0.2])
def test_ranks_whose_whole_replica_is_slow_are_not_named_and_no_label_is_needed(
    stages: int, replicas: int, tensor: int, part: str | tuple[str, ...], longer: float
) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        if tensor > 1:
            own = tuple(range(tensor, 2 * tensor))
            table = layered(rng, tensor, replicas, culprit=own, slower=longer)
        else:
            own = tuple(range(1, stages * replicas, replicas))
            table = interleaved(rng, stages, replicas, parts=4, steps=20, norm=True, culprit=own, late=longer)
        columns = table.arrays()
        kept = np.isin(columns["kind"], part)
        rows = {name: [column[kept]] for name, column in columns.items() if name != "data_parallel"}

        found = diagnose(as_timeline(Table(rows)))

        assert found.ranks == ()
        if longer > 0.1:
            assert (str(found.cause), tuple(found.evidence["possible"])) == ("unknown", own)
            assert found.seconds_lost_per_step > 0


@pytest.mark.parametrize("staged", [True, False])
def test_without_any_group_slow_ranks_at_like_places_of_the_job_may_be_a_replica(staged: bool) -> None:
    """So are tables of the times of steps, and recordings without a column of groups."""
    for slow, certain in (((1, 5, 9, 13), False), ((4, 5) if staged else (4, 5, 6, 7), True), ((5,), True)):
        rng = np.random.default_rng(0)
        if staged:
            table = interleaved(rng, 4, 4, steps=20, norm=True, culprit=slow, late=0.2)
        else:
            table = layered(rng, 1, 16, culprit=slow, slower=0.2)
        line = as_timeline(table)
        unknown = np.full(len(line.rank), -1, np.int64)

        found = diagnose(replace(line, group=unknown, data_parallel=unknown))

        named = found.ranks if certain else tuple(found.evidence["possible"])
        assert (sorted(named), found.ranks == ()) == (list(slow), not certain)


def test_a_rank_that_is_much_slower_than_its_slow_replica_is_named_and_the_others_are_not() -> None:
    for seed in range(3):
        columns = layered(np.random.default_rng(seed), 4, 4, culprit=(4, 5, 6, 7), slower=0.1).arrays()
        slow = (columns["op"] == "layer") & (columns["rank"].astype(int) == 6)
        columns["duration"] = columns["duration"].astype(float) * np.where(slow, 1.5, 1.0)

        found = diagnose(as_timeline(Table({name: [column] for name, column in columns.items()})))

        assert found.ranks == (6,)
        assert [other["possible"] for other in found.evidence["also"]] == [[4, 5, 7]]


def test_two_slow_ranks_of_one_stage_are_named_although_they_are_one_tensor_group() -> None:
    columns = interleaved(np.random.default_rng(1), 2, 8, steps=20, culprit=(2, 3), late=0.2).arrays()
    in_two = columns["kind"] == "compute"
    pair = columns["rank"].astype(int) // 2
    tensor = {name: column[in_two] for name, column in columns.items()}
    tensor |= {"op": np.full(in_two.sum(), "all-gather"), "kind": np.full(in_two.sum(), "collective"),
               "duration": np.full(in_two.sum(), 1e-4),
               "start": tensor["start"].astype(float) + tensor["duration"].astype(float),
               "group": np.char.add("tensor", pair[in_two].astype(str)),
               "seq": np.arange(in_two.sum())}  # fmt: skip

    found = diagnose(as_timeline(Table({name: [column, tensor[name]] for name, column in columns.items()})))

    assert sorted(found.ranks) == [2, 3]


@pytest.mark.parametrize("steps", [3, 5, 7])
def test_few_steps_name_a_rank_that_is_far_behind_in_all_of_them_and_clear_nobody(steps: int) -> None:
    for seed in range(10):
        late, healthy = (
            ring(np.random.default_rng(seed), 8, steps=steps, late=late, jitter=0.01, culprit=5)
            for late in (0.2, 0.0)
        )
        waits = late.arrays()
        kept = waits["kind"] == "collective"
        waiting = Table({name: [column[kept]] for name, column in waits.items()})

        found = diagnose(as_timeline(healthy))

        assert [diagnose(as_timeline(table)).ranks for table in (late, waiting)] == [(5,), (5,)]
        assert (str(found.cause), found.ranks, found.evidence["steps_needed"]) == ("unknown", (), 8)
        assert str(steps) in found.evidence["reason"]


@pytest.mark.parametrize("steps", [3, 5])
def test_of_four_ranks_few_steps_name_one_far_beyond_what_chips_differ_by_and_call_another_possible(
    steps: int,
) -> None:
    for seed in range(10):
        far, near, healthy = (
            diagnose(
                as_timeline(ring(np.random.default_rng(seed), 4, steps=steps, late=late, jitter=0.01, culprit=3))
            )
            for late in (0.5, 0.12, 0.0)
        )
        assert (str(far.cause), far.ranks) == ("node", (3,))
        assert (str(near.cause), near.ranks, near.evidence["possible"]) == ("unknown", (), [3])
        assert (str(healthy.cause), "possible" in healthy.evidence) == ("unknown", False)


@pytest.mark.parametrize("steps", [3, 5, 20])
def test_one_slow_rank_of_two_in_a_stage_makes_no_stage_uneven(steps: int) -> None:
    for seed in range(5):
        table = pipeline(np.random.default_rng(seed), 4, 2, steps, heavy=0.0, culprit=3, late=0.3)
        found = diagnose(as_timeline(table))

        assert str(found.cause) == ("node" if steps > 8 else "unknown")
        assert found.ranks == (3,) or 3 in found.evidence["possible"]


@pytest.mark.parametrize("steps", [3, 5, 7])
def test_few_steps_name_nobody_whose_sequences_happen_to_be_long_or_who_stalls_once(steps: int) -> None:
    for seed in range(40):
        lengths = varying(np.random.default_rng(seed), steps=steps, memory=0.98, skew=1.0).arrays()
        told = as_timeline(Table({name: [column] for name, column in lengths.items()}))
        rng = np.random.default_rng(seed)
        wander = 0.1 * rng.normal(size=(8, 1)) + 0.01 * rng.normal(size=(8, steps))
        once = 0.01 * rng.normal(size=(8, steps)) + 0.5 * (np.arange(8) == 2)[:, None] * (np.arange(steps) == 1)

        assert diagnose(told).ranks == ()
        assert not any(straggler_ranks(values, np.zeros(8, np.int64))[0].any() for values in (wander, once))


def test_in_two_steps_a_rank_that_is_far_behind_in_both_is_possible() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        both = 0.8 + 0.005 * rng.normal(size=(8, 1)) + 0.005 * rng.normal(size=(8, 2))
        once = both.copy()
        both[5] += 0.3
        once[5, 1] += 0.3
        found, paused = (
            diagnose(as_timeline(one_barrier({"forward": table}, np.full(8, -1)))) for table in (both, once)
        )

        assert (found.cause, found.ranks, found.evidence["possible"]) == ("unknown", (), [5])
        assert "8 are needed" in found.evidence["reason"]
        assert "possible" not in paused.evidence


def test_two_steps_or_one_rank_are_unknown_with_the_reason() -> None:
    two = diagnose(as_timeline(ring(np.random.default_rng(1), 8, steps=2, late=0.5)))
    single = diagnose(as_timeline(ring(np.random.default_rng(1), 1)))

    assert (str(two.cause), str(single.cause)) == ("unknown", "unknown")
    assert "8 are needed" in two.evidence["reason"]
    assert "one rank" in single.evidence["reason"]


@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize("stalls", [6, 7])
def test_a_rank_that_stands_still_in_too_few_steps_to_be_named_is_possible_with_what_that_costs(
    tensor: int, stalls: int
) -> None:
    stall = tuple(np.linspace(3, 37, stalls).astype(int).tolist())
    for seed in range(5):
        found = diagnose(as_timeline(layered(np.random.default_rng(seed), tensor, 8, culprit=5, stall=stall)))

        assert str(found.cause) in ("unknown", "node")
        assert (found.ranks or tuple(found.evidence["possible"])) == (5,)
        assert 0.5 < found.seconds_lost_per_step / (0.1 * stalls / 40) < 1.3


def test_pauses_of_several_ranks_make_no_rank_possible() -> None:
    for seed in range(20):
        late = 0.01 * np.random.default_rng(seed).normal(size=(8, 40))
        one = late.copy()
        late[[1, 1, 4, 6], [3, 12, 20, 31]] += 1.0
        one[1, [3, 12, 20, 31]] += 1.0

        assert stalling_rank(late, 1.0, set()) is None
        assert stalling_rank(one, 1.0, {1}) is None
        assert stalling_rank(one, 10.0, set()) is None, "it costs a hundredth of the time"
        assert (found := stalling_rank(one, 1.0, set())) is not None and found.evidence["possible"] == [1]


def stage_of_four(seed: int, stalls: dict[int, list[int]]) -> Diagnosis:
    """The verdict on four stages of four ranks, some of which stand still for half a step before steps."""
    steps, ranks = 30, np.arange(16)
    rng, table, begin = np.random.default_rng(seed), Table(), 100.0
    for step in range(steps):
        own = np.maximum(0.4 + 0.005 * rng.normal(size=16), 0.01)
        late = own + 0.5 * np.isin(ranks, [rank for rank, when in stalls.items() if step in when])
        for part, (name, group, seconds) in enumerate(
            [("stage", ranks // 4, 0.02), ("data", ranks % 4, 0.02), ("world", ranks * 0, 0.01)]
        ):
            end = np.array([late[group == one].max() for one in group]) + seconds
            table.add(rank=ranks, op=f"reduce-{name}", kind="collective", start=begin + late, duration=end - late,
                      step=step, group=np.char.add(name, group.astype(str)), seq=step, stage=ranks // 4)  # fmt: skip
            if not part:
                table.add(rank=ranks, op="compute", kind="compute", start=begin + late - own, duration=own, step=step,
                          group="", seq="", stage=ranks // 4)  # fmt: skip
            late = end
        begin += float(late.max())
    return diagnose(as_timeline(table))


@pytest.mark.parametrize("count", [10, 12])
def test_a_rank_for_which_the_whole_job_waits_now_and_then_is_named_although_its_stage_has_four_ranks(
    count: int,
) -> None:
    for seed in range(10):
        when = np.random.default_rng(seed).choice(30, count, replace=False).tolist()
        found = stage_of_four(seed, {5: when})

        assert (str(found.cause), found.ranks) == ("node", (5,))
        assert found.seconds_lost_per_step == pytest.approx(0.5 * count / 30, rel=0.1)


def test_pauses_that_strike_ranks_of_a_pipeline_in_turn_name_nobody() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        when: dict[int, list[int]] = {}
        for step in rng.choice(30, 12, replace=False).tolist():
            when.setdefault(int(rng.integers(16)), []).append(step)

        assert stage_of_four(seed, when).ranks == ()


@pytest.mark.parametrize("seed", range(5))
def test_the_ranks_of_a_host_that_stalls_by_very_different_times_are_named(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = 0.01 * rng.normal(size=(16, 30))
    values[4:8] += 0.3 * rng.exponential(size=30)

    flagged, _ = straggler_ranks(values, np.zeros(16, np.int64))

    assert np.flatnonzero(flagged).tolist() == [4, 5, 6, 7]


def test_hosts_whose_ranks_stall_together_at_random_are_not_named() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        pauses = (rng.random((4, 30)) < 0.2) * rng.exponential(0.3, (4, 30))

        flagged, _ = straggler_ranks(0.01 * rng.normal(size=(16, 30)) + pauses.repeat(4, axis=0), np.zeros(16, int))

        assert not flagged.any()


@pytest.mark.parametrize(("rings", "around"), [(1, 8), (2, 4), (4, 4)])
@pytest.mark.parametrize("slow", [None, 2])
def test_parts_of_sequences_that_are_more_work_along_each_ring_are_an_imbalance_and_hide_no_slow_chip(
    rings: int, around: int, slow: int | None
) -> None:
    """A causal mask over parts that were cut as they come: all compute has one name, and all steps are alike."""
    ranks = rings * around
    place, replica = np.arange(ranks) % around, np.arange(ranks) // around
    for seed in range(5):
        rng = np.random.default_rng(seed)
        chip = (1 + 0.15 * (np.arange(ranks) == slow))[:, None] * (1 + 0.01 * rng.normal(size=(ranks, 24)))
        table = one_barrier({"layer": 0.6 * chip * (0.8 + 0.6 * (place + 0.5) / around)[:, None]}, replica)
        add_ring(table, replica)

        found = diagnose(as_timeline(table))

        named = {*found.ranks, *(rank for other in found.evidence.get("also", ()) for rank in other["ranks"])}
        kinds = {str(found.cause), *(other["kind"] for other in found.evidence.get("also", ()))}
        assert named == (set() if slow is None else {slow})
        assert "sequence_imbalance" in kinds


def add_ring(table: Table, replica: npt.NDArray[np.int64]) -> None:
    """Exchanges without time, in 24 steps, of each rank with the one after it in its replica."""
    for one, step in itertools.product(range(len(replica)), range(24)):
        own = np.flatnonzero(replica == replica[one])
        pair = np.array([one, own[(one - own[0] + 1) % len(own)]])
        table.add(rank=pair, op="ring", kind="collective", start=np.full(2, 2.0 * step), duration=np.zeros(2),
                  step=step, group=f"pair {one}", seq=step, data_parallel=replica[pair])  # fmt: skip


def test_a_slow_chip_in_every_ring_is_no_increase_along_the_rings() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        chip = (1 + 0.15 * np.isin(np.arange(16), (1, 6)))[:, None] * (1 + 0.01 * rng.normal(size=(16, 24)))

        found = diagnose(as_timeline(one_barrier({"layer": 0.8 * chip}, np.arange(16) // 4)))

        assert set(found.ranks) == {1, 6}
