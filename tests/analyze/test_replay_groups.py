"""Nodes of several jobs or models of GPU that no column tells, and chores that go round."""

from pathlib import Path

import numpy as np
import pytest

from ingero_analyze.replay.hidden_groups import hidden_groups

from .test_replay_excused import Rates, healthy, judged, named

KINDS = np.arange(12) % 2 == 0


def two_models() -> Rates:
    """All nodes are slower in pauses of 15 ticks: half of them by a fifth, and the others by 45 %."""
    rates = healthy(130)
    for begin in (35, 70):
        rates[begin : begin + 15] *= np.where(KINDS, 0.8, 0.55)
    return rates


def two_jobs() -> Rates:
    """Half of the nodes do first more and then less for 25 ticks."""
    rates = healthy(115)
    rates[40:65, KINDS] *= 1.4
    rates[80:105, KINDS] *= 0.7
    return rates


def changed(*changes: tuple[int, slice, float]) -> Rates:
    """Nodes change their rate for good."""
    rates = healthy(130)
    for begin, nodes, level in changes:
        rates[begin:, nodes] *= level
    return rates


@pytest.mark.parametrize(
    ("rates", "cohorts"),
    [
        (two_models(), 2),
        (two_jobs(), 2),
        (changed((45, slice(0, 4), 0.75), (90, slice(4, 8), 0.7)), 3),
    ],
    ids=["models", "jobs", "three jobs"],
)
def test_groups_that_change_their_load_apart_are_judged_by_themselves(
    tmp_path: Path, rates: Rates, cohorts: int
) -> None:
    found = judged(tmp_path, rates)

    assert named(found) == []
    assert found["summary"]["cohorts"] == cohorts
    assert any("each group is compared by itself" in note for note in found["summary"]["notes"])


def test_nodes_that_work_too_little_are_no_groups() -> None:
    levels = np.full((20, 12), np.nan)
    levels[:8] = 1.0

    assert not hidden_groups(levels).any()


def test_a_straggler_in_such_a_group_is_accused(tmp_path: Path) -> None:
    rates = two_models()
    rates[100:, 3] *= 0.8

    found = judged(tmp_path, rates)
    assert [(one["node"], one["cohort"]) for one in found["episodes"]] == [("n3", "group 1")]


def test_a_quarter_of_the_nodes_that_loses_alike_again_and_again_is_accused(tmp_path: Path) -> None:
    rates = healthy(200)
    for begin in (40, 100, 160):
        rates[begin : begin + 30, :3] *= 0.75

    assert named(judged(tmp_path, rates)) == ["n0", "n1", "n2"]


def test_racks_that_become_slow_one_after_another_are_no_jobs() -> None:
    levels = 0.01 * np.random.default_rng(3).normal(size=(30, 16))
    levels[12:, :4] -= 0.3
    levels[18:, 4:8] -= 0.3
    assert not hidden_groups(levels).any()

    levels[22:, 4:8] += 0.6
    assert len(set(hidden_groups(levels))) == 3


@pytest.mark.parametrize(("changes", "groups"), [((0.4, -0.3), 3), ((-0.3, -0.3), 1)])
def test_jobs_that_follow_one_another_after_silence_are_told_from_racks_that_came_back_slow(
    changes: tuple[float, float], groups: int
) -> None:
    levels = 0.01 * np.random.default_rng(3).normal(size=(30, 16))
    for begin, nodes, change in zip((10, 18), (slice(0, 4), slice(4, 8)), changes, strict=True):
        levels[begin:, nodes] += change
        levels[begin : begin + 2, nodes] = np.nan

    assert len(set(hidden_groups(levels))) == groups


def days(shift: float) -> Rates:
    """Levels of 16 nodes in three days of 100 blocks; the days of the last six begin later by a share of a day."""
    later = np.where(np.arange(16) < 10, 0.0, shift)
    load = 0.3 * np.cos(2 * np.pi * (np.arange(300)[:, None] / 100 - later))
    return np.asarray(load + 0.01 * np.random.default_rng(3).normal(size=(300, 16)))


@pytest.mark.parametrize(("shift", "groups"), [(0.0, 1), (0.2, 2), (0.5, 2)])
def test_nodes_whose_days_begin_later_are_a_group(shift: float, groups: int) -> None:
    levels = days(shift)
    levels[140:, 3] -= 0.7

    group = hidden_groups(levels)
    assert len(set(group)) == groups
    assert len(set(group[:10])) == len(set(group[10:])) == 1


@pytest.mark.parametrize("duty", [0.3, 0.5, 0.7])
def test_a_rack_that_fails_again_and_again_is_no_group(duty: float) -> None:
    levels = days(0.0)
    levels[np.arange(300) % 50 >= 50 * (1 - duty), 12:] -= 0.3
    assert not hidden_groups(levels).any()

    levels[150:, 12:] -= 0.2
    assert not hidden_groups(levels).any()


def chores(times: int, nodes: int = 12, depth: float = 0.75) -> Rates:
    """One node after another does less for ten ticks, again every 120 ticks."""
    rates = healthy()
    for node in range(nodes):
        for turn in range(times):
            begin = 40 + 10 * node + 120 * turn
            rates[begin : begin + 10, node] *= depth
    return rates


def test_what_half_of_the_nodes_lose_again_and_again_is_a_routine(tmp_path: Path) -> None:
    found = judged(tmp_path, chores(2))

    assert (named(found), named(found, "routine")) == ([], sorted(f"n{node}" for node in range(12)))


@pytest.mark.parametrize("how", ["once each", "few nodes", "a longer loss", "a deeper loss"])
def test_a_loss_that_is_no_routine_is_accused(tmp_path: Path, how: str) -> None:
    rates = chores(1 if how == "once each" else 2, nodes=4 if how == "few nodes" else 12)
    if how == "a longer loss":
        rates[250:300, 2] *= 0.75
    elif how == "a deeper loss":
        rates[250:260, 2] *= 0.5
    accused = named(judged(tmp_path, rates))

    assert len(accused) == {"once each": 12, "few nodes": 4}.get(how, 1) and "n2" in accused
