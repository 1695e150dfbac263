"""Nodes of another kind, which no column tells, are told by levels of their speed; faulty ones are not."""

import numpy as np
import pytest

from ingero_detect.audit.node_kinds import NodeKinds, node_kinds

CHIPS = 4


NO_GROUPS = np.zeros(0, np.int64)


def kinds(level: np.ndarray, seed: int, group: np.ndarray = NO_GROUPS) -> NodeKinds:
    """Of nodes with these levels: chips differ by 1.2 %, values by 0.5 %, three runs."""
    random = np.random.default_rng(seed)
    chips = CHIPS * len(level)
    unit, run = np.divmod(np.arange(3 * chips), 3)
    effect = np.repeat(level, CHIPS) + 0.012 * random.normal(size=chips)
    values = effect[unit] + 0.005 * random.normal(size=len(unit))
    return node_kinds(values, unit, run, np.arange(chips) // CHIPS, group)


@pytest.mark.parametrize("distance", [0.08, 0.4])
@pytest.mark.parametrize("slower", [4, 12, 20, 30])
def test_kinds_are_found_wherever_their_nodes_are(slower: int, distance: float) -> None:
    right = 0
    for seed in range(5):
        level = np.random.default_rng(seed).permutation(distance * (np.arange(40 if slower > 4 else 24) < slower))
        right += np.array_equal(kinds(level, seed).of_unit, np.repeat(level > 0, CHIPS))

    assert right >= 4


def test_a_kind_of_few_nodes_that_happen_to_be_alike_is_told_from_a_far_one() -> None:
    assert all(len(kinds(0.4 * (np.arange(16) >= 4), seed).slower) == 2 for seed in range(16))


def test_up_to_four_kinds_are_found_with_their_distances() -> None:
    found = kinds(np.array([0.0, 0.1, 0.3, 0.6])[[0] * 10 + [1] * 12 + [2] * 20 + [3] * 8], 1)

    assert np.bincount(found.of_unit).tolist() == [40, 48, 80, 32]
    assert found.slower == pytest.approx((-0.3, -0.2, 0.0, 0.3), abs=0.01)


def test_faulty_nodes_are_of_no_kind_of_their_own() -> None:
    different = np.zeros(40)
    different[:8] = [0.08, 0.11, 0.13, 0.16, 0.19, 0.24, 0.3, 0.4]

    assert kinds(different, 1).slower == (0.0,)
    assert kinds(0.2 * (np.arange(40) < 5), 1).slower == (0.0,), "an eighth of the nodes"


def test_a_tenth_of_the_nodes_are_a_kind_if_they_are_alike_and_near() -> None:
    right, faulty = 0, 0
    for seed in range(20):
        some = np.random.default_rng(seed).permutation(60) < 6
        right += np.array_equal(kinds(0.07 * some, seed).of_unit, np.repeat(some, CHIPS))
        losses = np.where(some, np.random.default_rng(seed).uniform(0.04, 0.14, 60), 0.0)
        faulty += len(kinds(losses, seed).slower) > 1

    assert right >= 15
    assert faulty <= 1


def test_healthy_nodes_are_of_one_kind_however_they_are_distributed() -> None:
    random = np.random.default_rng(3)
    levels = [0.02 * np.asarray(draw(40)) for _ in range(8) for draw in (
        random.standard_normal, random.random, random.standard_exponential, lambda n: random.standard_t(3, n),
    )]  # fmt: skip

    assert sum(len(kinds(level, seed).slower) > 1 for seed, level in enumerate(levels)) <= 1


def test_without_nodes_or_with_few_chips_there_is_one_kind() -> None:
    values, unit = np.array([0.0, 0.5] * 20), np.arange(40)

    assert node_kinds(values, unit, np.full(40, -1), np.full(40, -1), NO_GROUPS).slower == (0.0,)
    assert node_kinds(values[:20], unit[:20], np.full(20, -1), np.arange(20) // 2, NO_GROUPS).slower == (0.0,)


def test_a_slow_rack_is_no_kind_where_enough_racks_are_told_to_judge_it() -> None:
    nodes = np.arange(64)
    slow = 0.08 * (nodes // 8 == 2)

    assert len(kinds(slow, 1, nodes // 8).slower) == 1
    assert len(kinds(slow, 1, nodes // 16).slower) == 2
    assert len(kinds(slow, 1, nodes % 8).slower) == 2
    assert len(kinds(slow, 1).slower) == 2
    assert len(kinds(0.08 * (nodes // 16 == 2), 1, nodes // 16 + 4 * (nodes // 8 % 2)).slower) == 2


def test_a_slow_rack_beside_another_kind_leaves_that_kind() -> None:
    nodes = np.arange(64)

    found = kinds(0.3 * (nodes >= 40) + 0.08 * (nodes // 8 == 2), 1, nodes // 8)

    assert np.array_equal(found.of_unit, np.repeat(nodes >= 40, CHIPS))
