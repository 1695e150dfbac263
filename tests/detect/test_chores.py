"""What the first rank does for the whole job in every N-th step makes nobody late."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ingero_detect.ranks.diagnosis import diagnose
from ingero_detect.ranks.imbalance import Diagnosis

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, as_timeline

RANKS, STEPS = 8, 60


def job(
    pauses: npt.NDArray[np.float64], rng: np.random.Generator, slow: int | None = None, recorded: bool = False,
    told: bool = False,
) -> Diagnosis:  # fmt: skip
    """The verdict on ranks that do something else for so long, by (rank, step), before they compute and meet.

    `slow`: a rank that computes 15 % longer; `recorded`: what they do is an operation of its own; `told`: whose name
    says that it is a chore.
    """
    table, now, rank = Table(), np.zeros(RANKS), np.arange(RANKS)
    for step in range(STEPS):
        busy = np.flatnonzero(pauses[:, step])
        if recorded and len(busy):
            table.add(rank=busy, op="save_checkpoint", kind="compute", start=now[busy], duration=pauses[busy, step],
                      step=step, group="", seq="")  # fmt: skip
        now = now + pauses[:, step]
        for name in ("forward", "backward"):
            seconds = 0.4 + 0.004 * rng.normal(size=RANKS)
            if slow is not None:
                seconds[slow] *= 1.15
            table.add(rank=rank, op=name, kind="compute", start=now, duration=seconds, step=step, group="", seq="")
            now = now + seconds
        end = now.max() + 0.02
        table.add(rank=rank, op="all_reduce", kind="collective", start=now, duration=end - now, step=step,
                  group="all", seq=step)  # fmt: skip
        now = np.full(RANKS, end)
    line = as_timeline(table)
    chores = np.isin(table.arrays()["op"], "save_checkpoint") if told else None
    return diagnose(replace(line, chores=chores))


def pauses_of(rank: int, steps: slice | list[int], seconds: float = 1.0) -> npt.NDArray[np.float64]:
    found = np.zeros((RANKS, STEPS))
    found[rank, steps] = seconds
    return found


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(("every", "lead"), [(3, 0), (4, 0), (5, 0), (10, 0), (20, 0), (10, RANKS - 1)])
def test_checkpoints_of_the_first_rank_and_logs_of_the_last_one_accuse_nobody_and_are_said(
    every: int, lead: int, recorded: bool
) -> None:
    for seed in range(2):
        found = job(pauses_of(lead, slice(every - 1, None, every)), np.random.default_rng(seed), recorded=recorded)

        assert (str(found.cause), found.ranks) == ("none", ())
        chores = found.evidence["chores"]
        assert (chores["ranks"], chores["every"]) == ([lead], [every])
        assert chores["seconds_per_step"] == pytest.approx(1 / every, rel=0.01)


@pytest.mark.parametrize("slow", [None, 5])
def test_a_restart_may_shift_the_rhythm_of_checkpoints(slow: int | None) -> None:
    pauses = pauses_of(0, [9, 19, 29, 38, 48, 58])
    pauses[:, 34] += 90.0
    found = job(pauses, np.random.default_rng(3), slow)

    assert (str(found.cause), found.ranks) == (("none", ()) if slow is None else ("node", (slow,)))
    assert (found.evidence["chores"]["ranks"], found.evidence["chores"]["every"]) == ([0], [10])


@pytest.mark.parametrize("seed", range(4))
def test_stalls_at_random_before_and_after_a_restart_are_no_chore(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pauses = pauses_of(0, rng.choice(STEPS - 1, 8, replace=False).tolist())
    pauses[:, 34] += 90.0

    assert "chores" not in job(pauses, rng).evidence


def test_a_chore_that_only_the_waits_of_the_others_show_accuses_nobody() -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        table = Table()
        late = pauses_of(0, slice(9, None, 10)) + 0.01 * rng.random((RANKS, STEPS))
        for step in range(STEPS):
            table.add(rank=np.arange(RANKS), op="all_reduce", kind="collective", start=2.0 * step + late[:, step],
                      duration=1.1 - late[:, step], step=step, group="all", seq=step)  # fmt: skip
        found = diagnose(as_timeline(table))

        assert (str(found.cause), found.evidence["chores"]["every"]) == ("none", [10])


@pytest.mark.parametrize("waits", [("all_reduce",), ("all_reduce", "recv")])
def test_a_chore_that_no_pause_shows_as_in_tables_of_times_of_steps_accuses_nobody(waits: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    table, now, rank = Table(), np.zeros(RANKS), np.arange(RANKS)
    for step in range(STEPS):
        compute = 0.8 + 0.01 * rng.random(RANKS)
        late = compute + 0.4 * (rank == 0) * (step % 4 == 3)
        blocked = late.max() - late + 0.02
        table.add(rank=rank, op="forward", kind="compute", start=now, duration=compute, step=step, group="", seq="")
        now = now + compute
        for wait in waits:
            table.add(rank=rank, op=wait, kind="collective", start=now, duration=blocked / len(waits), step=step,
                      group=wait, seq=step)  # fmt: skip
            now = now + blocked / len(waits)
    found = diagnose(as_timeline(table))

    assert (str(found.cause), found.evidence["chores"]["every"]) == ("none", [4])


def test_a_chore_of_which_rows_are_lost_is_taken_out_in_pairs_of_tensor_groups_too() -> None:
    rng = np.random.default_rng(0)
    table, now, rank = Table(), np.zeros(RANKS), np.arange(RANKS)
    for step in range(STEPS):
        now[0] += 1.0 * (step % 10 == 9)
        for name, group in (("forward", rank // 2), ("backward", rank % 2)):
            seconds = 0.4 + 0.004 * rng.normal(size=RANKS)
            kept = rng.random(RANKS) > 0.05
            table.add(rank=rank[kept], op=name, kind="compute", start=now[kept], duration=seconds[kept], step=step,
                      group="", seq="")  # fmt: skip
            now = now + seconds
            end = np.array([now[group == own].max() for own in group]) + 0.02
            table.add(rank=rank, op=f"reduce_{name}", kind="collective", start=now, duration=end - now, step=step,
                      group=np.char.add(name, group.astype(str)), seq=step)  # fmt: skip
            now = end
    found = diagnose(as_timeline(table))

    assert (str(found.cause), found.evidence["chores"]["every"]) == ("none", [10])


def test_logs_and_checkpoints_in_rhythms_of_their_own_are_both_chores() -> None:
    both = pauses_of(0, slice(2, None, 7), 0.2) + pauses_of(0, slice(6, None, 20), 2.0)

    found = job(both, np.random.default_rng(0))

    assert (str(found.cause), found.evidence["chores"]["every"]) == ("none", [7, 20])


def test_ranks_that_write_their_parts_of_a_checkpoint_with_the_first_one_are_not_named() -> None:
    parts = pauses_of(0, slice(9, None, 10)) + pauses_of(4, slice(9, None, 10), 1.4)

    found = job(parts, np.random.default_rng(0))

    assert (str(found.cause), found.evidence["chores"]["ranks"]) == ("none", [0, 4])


def test_a_rank_that_is_slow_is_named_beside_checkpoints_that_cost_more() -> None:
    for seed in range(3):
        found = job(pauses_of(0, slice(4, None, 5), 2.0), np.random.default_rng(seed), slow=3)

        assert found.ranks == (3,)


@pytest.mark.parametrize("slow", [None, 5])
def test_checkpoints_that_their_name_tells_accuse_nobody_on_any_rank_in_any_steps(slow: int | None) -> None:
    found = job(pauses_of(3, [7, 11, 50]), np.random.default_rng(1), slow, recorded=True, told=True)

    assert found.ranks == (() if slow is None else (slow,)) and (slow or str(found.cause) == "none")
    assert found.evidence["chores"]["ranks"] == [3]
    assert found.evidence["chores"]["seconds_per_step"] == pytest.approx(3 / STEPS)


def test_what_most_ranks_do_or_one_in_most_steps_is_no_chore_whatever_its_name() -> None:
    often = pauses_of(3, slice(None), 0.2)
    shared = 0.1 + pauses_of(3, slice(None), 0.2)

    for pauses in (often, shared):
        found = job(pauses, np.random.default_rng(1), recorded=True, told=True)

        assert "chores" not in found.evidence
        assert str(found.cause) != "none" and 3 in (*found.ranks, *found.evidence.get("possible", ()))


def test_stalls_in_a_rhythm_on_another_rank_are_no_chore() -> None:
    found = job(pauses_of(5, slice(4, None, 5)), np.random.default_rng(0))

    assert found.ranks == (5,) and "chores" not in found.evidence


def test_stalls_of_the_first_rank_without_a_rhythm_or_in_half_of_the_steps_are_no_chore() -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        for steps in (np.flatnonzero(rng.random(STEPS) < 0.3).tolist(), list(range(1, STEPS, 2))):
            found = job(pauses_of(0, steps), rng)

            assert found.ranks == (0,) and "chores" not in found.evidence


@pytest.mark.parametrize("seed", [51, 87, 206])
def test_steps_at_equal_distances_among_many_at_random_are_no_chore(seed: int) -> None:
    rng = np.random.default_rng(seed)

    found = job(pauses_of(0, np.flatnonzero(rng.random(STEPS) < 0.3).tolist()), rng)

    assert found.ranks == (0,) and "chores" not in found.evidence


@pytest.mark.parametrize(("every", "named"), [(1, (0,)), (4, ())], ids=["in every step", "logs in some steps"])
def test_where_buckets_of_gradients_stand_for_steps_what_the_first_rank_does_in_each_real_step_is_no_chore(
    every: int, named: tuple[int, ...]
) -> None:
    rng, table, now, rank = np.random.default_rng(4), Table(), np.zeros(RANKS), np.arange(RANKS)
    for number in range(20 * 6):
        step, bucket = divmod(number, 6)
        seconds = (0.03 if bucket else 0.13) * (1 + 0.01 * rng.normal(size=RANKS))
        seconds[0] += 0.05 * (bucket == 0 and step % every == 0)
        now = now + seconds
        end = now.max() + 0.004
        table.add(rank=rank, op="all_reduce", kind="collective", start=now, duration=end - now, step=number,
                  group="all", seq=number)  # fmt: skip
        now = np.full(RANKS, end)

    assert diagnose(as_timeline(table)).ranks == named
