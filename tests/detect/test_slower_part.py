"""A half of the ranks that is slower than the other half."""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ingero_detect.ranks.diagnosis import diagnose
from ingero_detect.ranks.imbalance import Diagnosis
from ingero_detect.ranks.slower_part import part_slower_since, stalls_without_operations
from ingero_detect.ranks.timeline import Timeline

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, as_timeline, interleaved, layered


def of_slow_ranks(slow: tuple[int, ...], seed: int, slower: float = 0.0, idle: float = 0.0) -> Diagnosis:
    return diagnose(as_timeline(layered(np.random.default_rng(seed), 1, 8, culprit=slow, slower=slower, idle=idle)))


@pytest.mark.parametrize("how", [{"slower": 0.2}, {"idle": 0.1}], ids=["computes longer", "stands still"])
@pytest.mark.parametrize("slow", [(0, 1, 2, 3), (1, 4, 6, 7), (2, 3, 5)])
def test_a_slower_half_of_the_ranks_is_possible(slow: tuple[int, ...], how: dict[str, float]) -> None:
    for seed in range(3):
        found = of_slow_ranks(slow, seed, **how)

        assert (str(found.cause), found.ranks) == ("unknown", ())
        by = "slower_part" if "slower" in how else "late_part"
        assert (found.evidence["by"], found.evidence["possible"]) == (by, list(slow))
        assert found.seconds_lost_per_step == pytest.approx(0.08 if "slower" in how else 0.1, rel=0.3)


def test_a_slower_half_is_possible_although_each_of_its_ranks_varies_much() -> None:
    rng = np.random.default_rng(0)
    found = diagnose(as_timeline(layered(rng, 1, 8, steps=12, culprit=(0, 1, 2, 3), slower=0.12, jitter=0.1)))

    assert (found.ranks, found.evidence["possible"]) == ((), [0, 1, 2, 3])


@pytest.mark.parametrize("slow", [(0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4)])
def test_a_minority_that_is_faster_accuses_nobody(slow: tuple[int, ...]) -> None:
    assert str(of_slow_ranks(slow, 0, slower=0.2).cause) == "none"


def test_ranks_that_are_alike_have_no_slower_half() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        assert str(diagnose(as_timeline(layered(rng, 1, 8, steps=20, jitter=0.1))).cause) == "none"


@pytest.mark.parametrize("late", [0.3, 1.0])
def test_half_of_a_stage_is_compared_with_its_other_half(late: float) -> None:
    found = diagnose(as_timeline(interleaved(np.random.default_rng(0), culprit=(4, 5), late=late)))

    assert {*found.ranks, *found.evidence.get("possible", ())} == {4, 5}


def test_two_stages_that_are_equally_heavy_are_uneven_too() -> None:
    for seed in range(3):
        slow = tuple(range(8))
        found = diagnose(as_timeline(interleaved(np.random.default_rng(seed), culprit=slow, late=0.4)))

        assert (str(found.cause), found.ranks) == ("stage_imbalance", ())
        assert found.evidence["stages"] == [0, 1]
        assert found.evidence["stage_ranks"] == list(slow)


def of_changed_ranks(changed: tuple[int, ...], by: float, seed: int, steps: int = 10) -> Diagnosis:
    """Eight ranks of which some compute as many times as long from the middle on."""
    columns = layered(np.random.default_rng(seed), 1, 8, steps=steps).arrays()
    later = np.isin(columns["rank"].astype(int), changed) & (columns["step"].astype(int) >= steps // 2)
    duration = columns["duration"].astype(float) * np.where(later & (columns["op"] == "layer"), by, 1.0)
    return diagnose(
        as_timeline(Table({name: [column] for name, column in (columns | {"duration": duration}).items()}))
    )


@pytest.mark.parametrize("steps", [8, 10, 14])
def test_half_of_the_ranks_that_become_slow_within_few_steps_are_possible(steps: int) -> None:
    for seed in range(3):
        found = of_changed_ranks((4, 5, 6, 7), 1.2, seed, steps)

        assert (str(found.cause), found.ranks) == ("unknown", ())
        assert (found.evidence["by"], found.evidence["possible"]) == ("slower_part", [4, 5, 6, 7])


def test_ranks_are_not_slow_because_the_others_became_faster() -> None:
    for seed in range(3):
        assert "possible" not in of_changed_ranks((4, 5, 6, 7), 0.85, seed).evidence


def test_changes_of_ranks_that_wander_are_no_slower_part() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        seconds = 1 + 0.02 * np.cumsum(rng.normal(size=(12, 12)), axis=1)

        assert part_slower_since(seconds, np.zeros(12, np.int64), 1.5) is None


def test_ranks_that_share_sequences_of_changing_length_are_no_slower_part() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        seconds = np.exp(0.2 * rng.normal(size=(2, 10))).repeat(4, axis=0) + 0.005 * rng.normal(size=(8, 10))

        assert part_slower_since(seconds, np.zeros(8, np.int64), 1.5) is None


def logged(stall: npt.NDArray[np.float64], seed: int) -> Timeline:
    """As a log without starts: each rank computes, and waits in sends and receives for whoever did nothing."""
    ranks, steps = stall.shape
    rng = np.random.default_rng(seed)
    compute = 0.8 + 0.01 * rng.normal(size=(ranks, steps))
    spent = np.stack([compute, (compute + stall).max(axis=0) + 0.2 - compute - stall])
    rank, step = (np.tile(each.ravel(), 2) for each in np.indices((ranks, steps)))
    sends = np.repeat([False, True], ranks * steps)
    start = np.cumsum(spent, axis=0) - spent + np.cumsum(spent.sum(axis=0), axis=1) - spent.sum(axis=0)
    none = np.full(len(rank), -1)
    return Timeline(
        ranks, steps, rank, step, sends.astype(np.int64), sends, start.ravel(), spent.ravel(),
        np.where(sends, step, -1), none, none, sends=sends,
    )  # fmt: skip


@pytest.mark.parametrize("stalled", [[5], [4, 5, 6, 7]])
def test_ranks_of_a_log_that_record_less_while_all_others_wait_are_possible(stalled: list[int]) -> None:
    for seed in range(3):
        stall = np.zeros((16, 30))
        stall[np.array(stalled)[:, None], np.random.default_rng(seed).permutation(30)[:10]] = 0.4
        found = stalls_without_operations(logged(stall, seed), 1.0)

        assert found is not None
        assert (str(found.cause), found.ranks, found.evidence["possible"]) == ("unknown", (), stalled)


def test_time_that_all_ranks_of_a_log_do_not_record_now_and_then_is_nobodys() -> None:
    """But by the chance of one in twenty with which pauses of all ranks strike one so often."""
    found = [
        stalls_without_operations(
            logged(np.floor(np.random.default_rng(seed).random((16, 30)) + 0.1).astype(np.float64) * 0.4, seed), 1.0
        )
        for seed in range(20)
    ]

    assert sum(one is not None for one in found) <= 1
