"""Ranks that stand still, alone or together, while all others wait, such as those of a host that is a stage."""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ingero_detect.ranks.diagnosis import diagnose
from ingero_detect.ranks.imbalance import Diagnosis

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, as_timeline

STAGES, WIDTH = 4, 4
RANKS = STAGES * WIDTH


def pipeline(
    rng: np.random.Generator, idle: npt.NDArray[np.float64], slower: npt.NDArray[np.float64], recorded: bool = True
) -> Diagnosis:
    """Stages that hand each other one batch, forward and back, in each step, and a norm of all ranks at its end.

    `idle`: seconds by (rank, step) in which a rank does nothing before it computes; `slower`: factors of its compute.
    Without `recorded` there are no rows of the exchanges between stages.
    """
    ranks, width = len(idle), len(idle) // STAGES
    table, now, stage = Table(), np.zeros(ranks), np.arange(ranks) // width
    for step in range(idle.shape[1]):
        for op, order in (("forward", range(STAGES)), ("backward", range(STAGES - 1, -1, -1))):
            ready = np.zeros(width)
            for place, at in enumerate(order):
                own = np.flatnonzero(stage == at)
                if place and recorded:
                    waits = np.maximum(ready - now[own], 1e-4)
                    table.add(rank=own, op=f"recv_{op}", kind="collective", start=now[own], duration=waits, step=step,
                              stage=stage[own], group=[f"{op} {rank}" for rank in own], seq=step)  # fmt: skip
                if place:
                    now[own] = np.maximum(now[own] + 1e-4, ready)
                if op == "forward":
                    now[own] += idle[own, step]
                seconds = 0.02 * slower[own, step] * (1 + 0.02 * rng.normal(size=width))
                table.add(rank=own, op=op, kind="compute", start=now[own], duration=seconds, step=step,
                          stage=stage[own], group="", seq="")  # fmt: skip
                now[own] += seconds
                ready = now[own].copy()
        end = now.max() + 1e-3
        table.add(rank=np.arange(ranks), op="norm", kind="collective", start=now, duration=end - now, step=step,
                  stage=stage, group="all", seq=step)  # fmt: skip
        now = np.full(ranks, end)
    return diagnose(as_timeline(table))


def of_stage(rng: np.random.Generator, steps: int, ranks: list[int]) -> npt.NDArray[np.float64]:
    """Stalls of some ranks, by another time in each step."""
    idle = np.zeros((RANKS, steps))
    idle[ranks] = rng.exponential(0.03, steps) * rng.uniform(0.95, 1.05, (len(ranks), steps))
    return idle


@pytest.mark.parametrize("ranks", [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]], ids=str)
def test_a_stage_that_stands_still_while_all_others_wait_is_named(ranks: list[int]) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        found = pipeline(rng, of_stage(rng, 24, ranks), np.ones((RANKS, 24)))

        assert (sorted(found.ranks), found.evidence["by"]) == (ranks, "idle_together")


@pytest.mark.parametrize("ranks", [[4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]], ids=str)
def test_stages_that_stand_still_for_the_same_time_in_every_step_are_possible(ranks: list[int]) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        idle = np.zeros((RANKS, 24))
        idle[ranks] = 0.05
        found = pipeline(rng, idle, np.ones((RANKS, 24)))

        assert (found.ranks, found.evidence["by"], found.evidence["possible"]) == ((), "slower_part", ranks)
        assert not pipeline(rng, idle, np.ones((RANKS, 24)), recorded=False).ranks


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_a_rank_alone_in_its_stage_that_stands_still_in_some_steps_is_named(rank: int) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        idle = np.zeros((STAGES, 60))
        idle[rank] = 0.05 * (rng.random(60) < 0.4) * rng.uniform(0.8, 1.2, 60)
        found = pipeline(rng, idle, np.ones((STAGES, 60)))

        assert (found.ranks, found.evidence["by"]) == ((rank,), "idle")


def test_uneven_or_slower_stages_of_one_rank_that_pause_in_turn_are_not_named() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        idle = np.where(rng.random((STAGES, 60)) < 0.1, 0.05, 0.0)

        assert not pipeline(rng, idle, np.repeat([[1.0], [1.0], [1.2], [1.4]], 60, axis=1)).ranks


def test_the_begin_of_an_epoch_at_which_all_pause_hides_nobody() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        idle = of_stage(rng, 40, [8, 9, 10, 11])
        idle[:, [13, 27]] += 0.5

        assert sorted(pipeline(rng, idle, np.ones((RANKS, 40))).ranks) == [8, 9, 10, 11]


def test_pauses_of_single_ranks_hide_no_stage_that_stands_still_in_many_steps() -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        idle = of_stage(rng, 60, [8, 9, 10, 11]) + 0.05 * (rng.random((RANKS, 60)) < 0.08)

        assert sorted(pipeline(rng, idle, np.ones((RANKS, 60))).ranks) == [8, 9, 10, 11]


def test_hosts_that_stand_still_in_turn_are_not_named() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        idle = np.repeat((rng.random((STAGES, 24)) < 0.2) * rng.exponential(0.05, (STAGES, 24)), WIDTH, axis=0)

        assert not pipeline(rng, idle, np.ones((RANKS, 24))).ranks


@pytest.mark.parametrize("slow", [3, 12])
def test_ranks_that_do_nothing_because_they_wait_for_what_is_not_recorded_are_not_named(slow: int) -> None:
    """All exchanges between stages lack, so victims of a rank that computes longer in some steps do nothing."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        slower = np.ones((RANKS, 24))
        slower[slow] += 2 * (rng.random(24) < 0.5) * rng.random(24)

        assert set(pipeline(rng, np.zeros((RANKS, 24)), slower, recorded=False).ranks) <= {slow}


def test_a_stage_that_becomes_slower_is_named_and_one_that_always_was_is_uneven() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        later, always = np.ones((RANKS, 40)), np.ones((RANKS, 40))
        later[4:8, 20:], always[4:8] = 1.2, 1.5

        assert sorted(pipeline(rng, np.zeros((RANKS, 40)), later).ranks) == [4, 5, 6, 7]
        uneven = pipeline(rng, np.zeros((RANKS, 40)), always)
        assert (str(uneven.cause), uneven.ranks) == ("stage_imbalance", ())
        assert uneven.evidence["stage_ranks"] == [4, 5, 6, 7]
        assert uneven.evidence["operations_over_others"] == 1.0


def experts(idle: npt.NDArray[np.float64], rng: np.random.Generator) -> Table:
    """Ranks that pause for `idle` seconds by (rank, step), compute for uneven numbers of tokens, and then meet."""
    ranks, steps = idle.shape
    table, now, rank = Table(), np.zeros(ranks), np.arange(ranks)
    for step in range(steps):
        now = now + idle[:, step]
        for name, seconds in (("attention", 0.4 + 0.004 * rng.normal(size=ranks)),
                              ("experts", 0.5 * np.exp(0.15 * rng.normal(size=ranks)))):  # fmt: skip
            table.add(rank=rank, op=name, kind="compute", start=now, duration=seconds, step=step, group="", seq="")
            now = now + seconds
        end = now.max() + 0.02
        table.add(rank=rank, op="all_to_all", kind="collective", start=now, duration=end - now, step=step,
                  group="all", seq=step)  # fmt: skip
        now = np.full(ranks, end)
    return table


@pytest.mark.parametrize("often", [0.4, 1.0])
def test_a_rank_that_waits_for_its_data_is_named_although_uneven_tokens_hide_it(often: float) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        idle = np.zeros((16, 40))
        idle[5] = 0.25 * (rng.random(40) < often) * rng.uniform(0.8, 1.2, 40)
        found = diagnose(as_timeline(experts(idle, rng)))

        named = {*found.ranks, *(rank for other in found.evidence.get("also", ()) for rank in other["ranks"])}
        assert named == {5}


def test_seven_stalls_of_half_of_the_ranks_are_too_few_but_possible() -> None:
    half = list(range(8))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        idle = np.zeros((16, 28))
        idle[half] = 0.5 * (np.arange(28) % 4 == 2) * rng.uniform(0.8, 1.2, 28)
        found = diagnose(as_timeline(experts(idle, rng)))

        assert (found.ranks, found.evidence["by"], found.evidence["possible"]) == ((), "few_stalls", half)


def test_a_rank_that_does_nothing_is_not_named_where_no_exchange_between_stages_is_recorded() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        idle = np.zeros((16, 40))
        idle[5] = 0.25 * (rng.random(40) < 0.4) * rng.uniform(0.8, 1.2, 40)
        columns = experts(idle, rng).arrays()
        columns["stage"] = columns["rank"] // 4

        assert not diagnose(as_timeline(Table({name: [column] for name, column in columns.items()}))).ranks


def test_uneven_tokens_and_pauses_of_any_rank_name_nobody() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        idle = np.where(rng.random((16, 40)) < 0.02, 0.3, 0.0)

        assert not diagnose(as_timeline(experts(idle, rng))).ranks


def test_where_only_collectives_are_recorded_the_rest_is_no_pause() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        columns = experts(np.zeros((16, 40)), rng).arrays()
        kept = columns["kind"] == "collective"

        assert not diagnose(as_timeline(Table({name: [column[kept]] for name, column in columns.items()}))).ranks


def test_a_rank_that_stands_still_is_named_beside_one_that_computes_longer() -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        idle, slower = np.zeros((RANKS, 30)), np.ones((RANKS, 30))
        idle[2] = 0.02 + rng.exponential(0.01, 30)
        slower[9] = 1.3

        found = pipeline(rng, idle, slower)

        assert (found.cause, sorted(found.ranks)) == ("node", [2, 9])
        assert [other["by"] for other in found.evidence["also"]] in (["idle"], ["compute"])
