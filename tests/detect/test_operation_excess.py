"""A rank that needs longer in some of its operations only has more to do there, and is not named."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ingero_detect.diagnosis import diagnose
from ingero_detect.imbalance import Diagnosis

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, as_timeline, pipeline

OPS = ["backward", "forward", "grads-sync"]
"""Operations of `pipeline` in the order of their numbers."""


def lengthened(seed: int, factors: dict[tuple[int, str], float | npt.NDArray[np.float64]], **extra: Any) -> Diagnosis:
    """The verdict on a pipeline of two stages by eight replicas, some of whose ranks need longer in an operation.

    A factor for each of the 50 steps, or one for all.
    """
    columns = pipeline(np.random.default_rng(seed), stages=2, replicas=8, heavy=0.0, jitter=0.01).arrays()
    waits = columns["kind"] == "collective"
    for (rank, op), factor in factors.items():
        rows = (columns["rank"] == rank) & (columns["op"] == op)
        before = columns["duration"][rows].astype(float)
        columns["duration"] = columns["duration"].astype(float)
        columns["duration"][rows] = before * factor
        more = columns["duration"][rows] - before
        columns["duration"][waits & (columns["rank"] != rank)] += np.repeat(more, 15)
    table = Table({name: [column] for name, column in {**columns, **extra}.items()})
    return diagnose(as_timeline(table))


@pytest.mark.parametrize("factor", [1.15, 1.3, 1.6])
def test_a_rank_that_is_longer_in_one_operation_is_possible_and_the_operation_is_said(factor: float) -> None:
    for seed in range(5):
        found = lengthened(seed, {(5, "backward"): factor})

        assert (str(found.cause), found.ranks) == ("unknown", ())
        assert found.evidence["possible"] == [5]
        assert list(found.evidence["longer_in"]["5"]) == [OPS.index("backward")]
        assert found.evidence["as_fast_as_peers_in"] == {"5": [OPS.index("forward")]}


@pytest.mark.parametrize("factor", [1.05, 1.3])
def test_a_rank_that_is_longer_in_all_it_computes_is_named(factor: float) -> None:
    for seed in range(5):
        found = lengthened(seed, {(5, "backward"): factor, (5, "forward"): factor})

        assert (str(found.cause), found.ranks) == ("node", (5,))
        assert set(found.evidence["longer_in"]["5"]) == {OPS.index("backward"), OPS.index("forward")}


def test_a_slow_rank_is_named_beside_one_that_has_more_to_do() -> None:
    found = lengthened(1, {(5, "backward"): 1.3, (6, "backward"): 1.4, (6, "forward"): 1.4})

    assert found.ranks == (6,)
    assert [item["possible"] for item in found.evidence["also"] if item["kind"] == "unknown"] == [[5]]


def test_a_host_that_stands_still_within_one_operation_in_some_steps_is_named() -> None:
    for seed in range(5):
        stalls = np.where(np.random.default_rng(seed).random(50) < 0.5, 1.6, 1.0)

        assert lengthened(seed, {(5, "backward"): stalls}).ranks == (5,)


def test_a_rank_that_needs_longer_for_the_same_work_is_named_although_it_does_in_one_operation_only() -> None:
    same = np.where(pipeline(np.random.default_rng(0), 2, 8).arrays()["kind"] == "compute", 4096.0, np.nan)

    assert lengthened(1, {(5, "backward"): 1.3}, work=same).ranks == (5,)
