"""A rank that needs longer in some of its operations only has more to do there, and is not named."""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ingero_detect.ranks.diagnosis import diagnose
from ingero_detect.ranks.imbalance import Diagnosis

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, as_timeline, pipeline, ring

OPS = ["backward-attention", "backward-experts", "forward-attention", "forward-experts", "grads-sync"]
"""Operations of `lengthened` in the order of their numbers."""


def lengthened(
    seed: int,
    factors: dict[tuple[int, str], float | npt.NDArray[np.float64]],
    work: bool = False,
    own_names: tuple[int, str] = (-1, ""),
) -> Diagnosis:
    """The verdict on a pipeline of two stages by eight replicas, some of whose ranks need longer in operations.

    Its passes are two operations each, of half the time. Factors are by rank and by the beginning of the operations'
    names: one for each of the 50 steps, or one for all. With `work` it is known, and the same for all. A rank has
    `own_names` for the operations that so begin.
    """
    columns = pipeline(np.random.default_rng(seed), stages=2, replicas=8, heavy=0.0, jitter=0.01).arrays()
    passes = columns["kind"] == "compute"
    columns["duration"] = np.where(passes, 0.5, 1.0) * columns["duration"].astype(float)
    second = {name: column[passes] for name, column in columns.items()}
    second["start"] = second["start"].astype(float) + second["duration"].astype(float)
    names = columns["op"].astype(str)
    second["op"] = np.char.add(names[passes], "-experts")
    columns["op"] = np.where(passes, np.char.add(names, "-attention"), names)
    columns = {name: np.concatenate([column, second[name]]) for name, column in columns.items()}
    waits, duration = columns["kind"] == "collective", columns["duration"].astype(float)
    for (rank, begin), factor in factors.items():
        rows = (columns["rank"] == rank) & np.char.startswith(columns["op"].astype(str), begin)
        more = duration[rows].reshape(-1, 50) * (np.asarray(factor) - 1)
        duration[rows] += more.ravel()
        duration[waits & (columns["rank"] != rank)] += np.repeat(more.sum(axis=0), 15)
    columns["duration"] = duration
    other = (columns["rank"] == own_names[0]) & np.char.startswith(columns["op"].astype(str), own_names[1])
    columns["op"] = np.where(other, np.char.add("own-", columns["op"].astype(str)), columns["op"].astype(str))
    if work:
        columns["work"] = np.where(waits, np.nan, 4096.0)
    return diagnose(as_timeline(Table({name: [column] for name, column in columns.items()})))


EXPERTS = [OPS.index("backward-experts"), OPS.index("forward-experts")]
ATTENTION = [OPS.index("backward-attention"), OPS.index("forward-attention")]


@pytest.mark.parametrize("factor", [1.15, 1.3, 1.6])
def test_a_rank_with_more_to_do_in_some_operations_is_possible_and_they_are_said(factor: float) -> None:
    for seed in range(5):
        found = lengthened(seed, {(5, "backward-experts"): factor, (5, "forward-experts"): factor})

        assert (str(found.cause), found.ranks) == ("unknown", ())
        assert found.evidence["possible"] == [5]
        assert sorted(found.evidence["longer_in"]["5"]) == EXPERTS
        assert sorted(found.evidence["as_fast_as_peers_in"]["5"]) == ATTENTION


@pytest.mark.parametrize("factor", [1.3, 1.6])
def test_a_rank_that_is_longer_in_one_operation_is_named_and_the_operation_is_said(factor: float) -> None:
    """A host that waits for its data in every step lengthens one operation as well."""
    for seed in range(5):
        found = lengthened(seed, {(5, "forward-experts"): factor})

        assert (str(found.cause), found.ranks) == ("node", (5,))
        assert list(found.evidence["longer_in"]["5"]) == [OPS.index("forward-experts")]


def with_more(seed: int, share: float, often: float) -> Diagnosis:
    """The verdict on a ring of ranks, one of which does something more, in such a share of the steps."""
    columns = ring(np.random.default_rng(seed), 8, late=0.0, jitter=0.01).arrays()
    waits, duration = columns["kind"] == "collective", columns["duration"].astype(float)
    more = np.where(np.random.default_rng(seed).random(50) < often, share, 0.0)
    own = ~waits & (columns["rank"] == 5)
    duration[waits & (columns["rank"] != 5)] += np.repeat(more, 7)
    rows = {name: column[own][more > 0] for name, column in columns.items()}
    rows["start"] = rows["start"].astype(float) + duration[own][more > 0]
    rows |= {"op": np.full(len(rows["rank"]), "sampling"), "duration": more[more > 0]}
    columns["start"] = columns["start"].astype(float) + np.where(
        waits & (columns["rank"] == 5), more[columns["step"].astype(int)], 0.0
    )
    columns["duration"] = duration
    return diagnose(as_timeline(Table({name: [column, rows[name]] for name, column in columns.items()})))


@pytest.mark.parametrize("often", [1.0, 0.6])
def test_what_peers_never_do_is_more_to_do(often: float) -> None:
    for seed in range(5):
        found = with_more(seed, 0.1, often)

        assert (str(found.cause), found.ranks, found.evidence["possible"]) == ("unknown", (), [5])
        assert list(found.evidence["longer_in"]["5"]) == [2]


@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
def test_a_rank_that_is_longer_in_a_kernel_of_its_own_instead_of_that_of_its_peers_is_named() -> None:
    for seed in range(5):
        found = lengthened(seed, {(5, "forward-experts"): 1.6}, own_names=(5, "forward-experts"))

        assert (str(found.cause), found.ranks) == ("node", (5,))


@pytest.mark.parametrize("factor", [1.05, 1.3])
def test_a_rank_that_is_longer_in_all_it_computes_is_named(factor: float) -> None:
    for seed in range(5):
        found = lengthened(seed, {(5, "backward"): factor, (5, "forward"): factor})

        assert (str(found.cause), found.ranks) == ("node", (5,))
        assert sorted(found.evidence["longer_in"]["5"]) == sorted(EXPERTS + ATTENTION)


def test_a_slow_rank_is_named_beside_one_that_has_more_to_do() -> None:
    more = {(5, "backward-experts"): 1.3, (5, "forward-experts"): 1.3}
    found = lengthened(1, {**more, (6, "backward"): 1.4, (6, "forward"): 1.4})

    assert found.ranks == (6,)
    assert [item["possible"] for item in found.evidence["also"] if item["kind"] == "unknown"] == [[5]]


def test_a_host_that_stands_still_within_operations_in_some_steps_is_named() -> None:
    for seed in range(5):
        stalls = np.where(np.random.default_rng(seed).random(50) < 0.5, 1.6, 1.0)

        assert lengthened(seed, {(5, "backward"): stalls}).ranks == (5,)


def test_a_rank_that_needs_longer_for_the_same_work_is_named_although_it_does_in_some_operations_only() -> None:
    assert lengthened(1, {(5, "backward-experts"): 1.3, (5, "forward-experts"): 1.3}, work=True).ranks == (5,)
