"""Which groups of ranks are compared with each other."""

import numpy as np
import pytest

from ingero_detect.network.group_families import families
from ingero_detect.network.links import compared_groups

Members = tuple[int, ...]


def lines(shape: tuple[int, ...], axis: int) -> list[Members]:
    """The groups along one axis of a grid of ranks."""
    ranks = np.moveaxis(np.arange(np.prod(shape)).reshape(shape), axis, -1)
    return [tuple(row) for row in ranks.reshape(-1, shape[axis]).tolist()]


def seconds(groups: list[Members], usual: list[float], steps: int = 24) -> np.ndarray:
    noise = np.random.default_rng(1).normal(0, 0.01, (len(groups), steps))
    return np.asarray(np.array(usual)[:, None] * np.exp(noise))


@pytest.mark.parametrize("shape", [(8, 8), (4, 4), (4, 4, 4), (5, 5, 5), (2, 8, 8)])
def test_the_lines_of_a_grid_are_set_apart_whatever_their_order(shape: tuple[int, ...]) -> None:
    axes = [axis for axis in range(len(shape)) if shape[axis] > 2]
    groups = [(axis, ranks) for axis in axes for ranks in lines(shape, axis)]
    random = np.random.default_rng(3)
    mixed = [groups[place] for place in random.permutation(len(groups))]
    levels = np.array([0.5 * axis for axis, _ in mixed])

    found = families([ranks for _, ranks in mixed], levels)

    assert len(found) == len(axes)
    assert all(len({mixed[place][0] for place in places}) == 1 for places in found)


def test_ranks_in_any_order_are_set_apart_by_duration_where_nothing_connects_the_parts() -> None:
    random = np.random.default_rng(4)
    groups = []
    for stage in range(3):
        name = random.permutation(16) + 16 * stage
        for axis in (0, 1):
            groups += [(axis, tuple(sorted(name[list(ranks)].tolist()))) for ranks in lines((4, 4), axis)]

    found = families([ranks for _, ranks in groups], np.array([1.0 * axis for axis, _ in groups]))

    assert sorted(map(len, found)) == [12, 12]
    assert all(len({groups[place][0] for place in places}) == 1 for places in found)


def test_pairs_of_a_pipeline_that_take_equally_long_stay_comparable() -> None:
    hops = [(rank, rank + 1) for rank in range(7)]

    assert families(hops, np.zeros(7)) == [list(range(7))]


def test_pairs_of_nodes_stay_comparable_although_some_of_them_are_slow() -> None:
    pairs = [(one, (one + step) % 12) for step in (1, 3) for one in range(12)]
    slow = np.array([bool({4, 5, 6} & set(pair)) for pair in pairs])

    assert len(families(pairs, 0.3 * slow)) == 1


@pytest.mark.parametrize("slow", [3, 11])
@pytest.mark.parametrize("ratio", [1.0, 3.0, 0.4])
def test_the_slow_one_of_equally_large_groups_is_found(slow: int, ratio: float) -> None:
    groups = lines((8, 8), 0) + lines((8, 8), 1)
    usual = [1.0] * 8 + [ratio] * 8
    usual[slow] *= 3

    found = compared_groups([0] * 16, groups, seconds(groups, usual))

    assert [group.ranks for group in found if group.slow] == [groups[slow]]
    assert len(found) == 16


def test_groups_with_too_few_of_their_family_are_not_compared() -> None:
    groups = lines((3, 3), 0) + lines((3, 3), 1)

    assert compared_groups([0] * 6, groups, seconds(groups, [1.0] * 3 + [3.0] * 3)) == []
