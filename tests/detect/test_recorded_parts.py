"""Ranks that wait in operations without a record do nothing, as do those that stall; the recording cannot tell."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ingero_detect.ranks.diagnosis import diagnose
from ingero_detect.ranks.recorded_parts import recorded_parts

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, as_timeline, interleaved

REPLICAS, WIDTH, STEPS = 8, 2, 32
RANKS = REPLICAS * WIDTH


def meet(
    table: Table, now: npt.NDArray[np.float64], step: int, op: str, groups: list[list[int]], transfer: float = 1e-3
) -> None:  # fmt: skip
    """A collective of each of the groups, which ends for all its members `transfer` seconds after the last came."""
    for number, members in enumerate(groups):
        own = np.array(members)
        end = now[own].max() + transfer
        table.add(rank=own, op=op, kind="collective", start=now[own], duration=end - now[own], step=step,
                  group=f"{op} {number}", seq=step)  # fmt: skip
        now[own] = end


def job(stalls: npt.NDArray[np.float64], seed: int, recorded: bool, norm: float = 1e-3) -> Table:
    """Ranks that pause for `stalls` seconds by (rank, step), and meet in tensor groups, data groups, and a norm.

    Without `recorded` there are no rows of the tensor groups. `norm`: seconds of that operation after the last came.
    """
    rng, table, unseen, now = np.random.default_rng(seed), Table(), Table(), np.zeros(RANKS)
    tensor = [list(range(first, first + WIDTH)) for first in range(0, RANKS, WIDTH)]
    data = [list(range(place, RANKS, WIDTH)) for place in range(WIDTH)]
    for step in range(STEPS):
        now = now + stalls[:, step]
        for op, groups, rows in (
            ("forward", tensor, table if recorded else unseen),
            ("backward", tensor, table if recorded else unseen),
            ("gradient", data, table),
        ):
            seconds = 0.1 * (1 + 0.01 * rng.normal(size=RANKS))
            table.add(rank=np.arange(RANKS), op=f"compute_{op}", kind="compute", start=now, duration=seconds,
                      step=step, group="", seq="")  # fmt: skip
            now = now + seconds
            meet(rows, now, step, f"all_reduce_{op}", groups)
        meet(table, now, step, "norm", [list(range(RANKS))], norm)
    return table


def stalls_of(ranks: list[int], seed: int) -> npt.NDArray[np.float64]:
    """Pauses of some ranks at the same time, by another time in each step."""
    found = np.zeros((RANKS, STEPS))
    found[ranks] = np.random.default_rng(seed).exponential(0.06, STEPS)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_stalls_is_named_where_its_tensor_group_is_recorded_and_its_peer_never(seed: int) -> None:
    stalls = stalls_of([5], seed)

    assert diagnose(as_timeline(job(stalls, seed, recorded=True))).ranks == (5,)
    unseen = diagnose(as_timeline(job(stalls, seed, recorded=False)))
    assert (str(unseen.cause), unseen.ranks) == ("unknown", ())
    assert (unseen.evidence["by"], unseen.evidence["possible"]) == ("act_as_one", [4, 5])


@pytest.mark.parametrize("seed", range(5))
def test_ranks_that_stall_together_are_named_where_recorded_groups_connect_them(seed: int) -> None:
    stalls = stalls_of([4, 5], seed)

    assert sorted(diagnose(as_timeline(job(stalls, seed, recorded=True))).ranks) == [4, 5]
    unseen = diagnose(as_timeline(job(stalls, seed, recorded=False)))
    assert (unseen.ranks, unseen.evidence["possible"]) == ((), [4, 5])


@pytest.mark.parametrize("slow", [3, 8])
def test_a_rank_that_computes_longer_is_named_without_its_tensor_group(slow: int) -> None:
    columns = job(np.zeros((RANKS, STEPS)), 0, recorded=False)
    line = as_timeline(columns)
    mine = ~line.collective & (line.rank == slow)
    line.duration[mine] *= 1.2

    assert diagnose(line).ranks == (slow,)


def test_parts_are_what_recorded_groups_connect() -> None:
    still = np.zeros((RANKS, STEPS))
    complete, lacking = (as_timeline(job(still, 0, recorded)) for recorded in (True, False))

    assert set(recorded_parts(complete, 0.3).tolist()) == {0}
    assert recorded_parts(lacking, 0.3).tolist() == [rank % WIDTH for rank in range(RANKS)]


def test_operations_of_all_ranks_connect_them_if_they_are_more_than_a_norm() -> None:
    sharded = as_timeline(job(np.zeros((RANKS, STEPS)), 0, recorded=False, norm=0.03))

    assert set(recorded_parts(sharded, 0.33).tolist()) == {0}


def waits(table: Table, left_out: tuple[str, ...] = ()) -> Table:
    """The collectives of a table alone, without operations of these names."""
    arrays = table.arrays()
    chosen = (arrays["kind"] == "collective") & ~np.isin(arrays["op"], left_out)
    return Table(
        {name: [column[chosen]] for name, column in arrays.items() if name not in ("stage", "data_parallel")}
    )


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("culprit", "since", "replicas"), [(9, 0, 4), (14, 12, 4), (5, 0, 2), (-1, 0, 4), (-1, 0, 2)]
)
def test_without_sends_the_replica_of_a_slow_rank_of_a_pipeline_is_possible_and_its_schedule_accuses_nobody(
    culprit: int, since: int, replicas: int, norm: bool
) -> None:
    table = interleaved(
        np.random.default_rng(7), replicas=replicas, parts=4, steps=24, late=0.3, culprit=culprit, since=since,
        norm=norm,
    )  # fmt: skip

    found = diagnose(as_timeline(waits(table, ("send", "recv"))))

    assert found.ranks == ()
    late = [rank for rank in range(4 * replicas) if culprit >= 0 and rank % replicas == culprit % replicas]
    assert found.evidence.get("possible", []) == late


@pytest.mark.parametrize(("heavy", "possible"), [(0.4, [12, 13, 14, 15]), (0.0, None)])
def test_waits_of_all_operations_show_a_stage_for_which_all_others_wait(
    heavy: float, possible: list[int] | None
) -> None:
    table = interleaved(np.random.default_rng(3), parts=4, steps=16, heavy=heavy, norm=True)
    line = replace(as_timeline(waits(table)), stage=as_timeline(waits(table)).rank // 4)

    found = diagnose(line)

    assert (found.ranks, found.evidence.get("possible")) == ((), possible)
