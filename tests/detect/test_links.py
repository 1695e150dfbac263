"""Which part of a network explains the groups whose collectives are slow."""

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import pytest

from ingero_detect.network.links import (
    FEWEST_OF_JOB,
    GroupExcess,
    RankPort,
    compared_groups,
    explain,
    path_elements,
    work_elements,
)
from ingero_detect.network.slow_links import explain_doubtfully

PORTS = {
    node * 2 + rail: RankPort(f"node-{node}", f"nic-{rail}", (f"leaf-{node // 2}-{rail}", f"spine-{rail}"))
    for node in range(4)
    for rail in range(2)
}
GROUPS = [
    (0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6), (5, 7), (0, 4), (1, 5), (2, 6), (3, 7), (0, 6), (1, 7),
]  # fmt: skip
"""Inside of nodes, within pods and between pods; both rails."""


def causes(slow: Set[tuple[int, ...]], unclear: Set[tuple[int, ...]] = frozenset()) -> list[list[tuple[str, str]]]:
    groups = [
        GroupExcess(
            len(ranks), ranks, 0.5 if ranks in slow else 0.0, 1.0 if ranks in unclear else 0.01, ranks in slow
        )
        for ranks in GROUPS
    ]
    return [list(cause) for cause in explain(groups, [path_elements(ranks, PORTS) for ranks in GROUPS])]


def using(kind: str, name: str) -> set[tuple[int, ...]]:
    return {ranks for ranks in GROUPS if (kind, name) in path_elements(ranks, PORTS)}


@pytest.mark.parametrize(
    "element",
    [
        ("nic", "node-0/nic-0"),
        ("pair", "node-0/nic-0 - node-1/nic-0"),
        ("switch", "leaf-0-0"),
        ("interconnect", "node-1"),
        ("gpu", "2"),
        ("node", "node-2"),
    ],
)
def test_an_element_is_named_from_the_groups_that_use_it(element: tuple[str, str]) -> None:
    assert causes(using(*element)) == [[element]]


def test_elements_that_the_same_groups_use_stay_possible() -> None:
    assert causes(using("switch", "spine-0")) == [
        [("link", "leaf-0-0 - spine-0"), ("link", "leaf-1-0 - spine-0"), ("switch", "spine-0")]
    ]


def doubtful(slow: dict[tuple[int, tuple[int, ...]], float], groups: Sequence[tuple[int, tuple[int, ...]]]) -> Any:
    """What is possible of groups by operation and ranks, of which some have an excess."""
    excesses = [GroupExcess(op, ranks, slow.get((op, ranks), 0.0), 0.01, (op, ranks) in slow) for op, ranks in groups]
    paths = [path_elements(ranks, PORTS) for _, ranks in groups]
    assert not explain(excesses, paths)
    return explain_doubtfully(excesses, paths)


def test_one_slow_direction_of_a_pair_is_possible_although_the_other_one_is_healthy() -> None:
    pairs = [(0, 2), (1, 3), (4, 6), (5, 7)]

    causes, doubt = doubtful({(0, (0, 2)): 9.0}, [(op, pair) for op in (0, 1) for pair in pairs])

    assert causes == ((("pair", "node-0/nic-0 - node-1/nic-0"),),)
    assert "direction" in doubt


def test_rings_that_all_cross_a_switch_do_not_clear_it() -> None:
    rings = [(0, (0, 2, 4, 6)), (0, (6, 4, 2, 0)), (1, (0, 2)), (1, (2, 0)), (1, (4, 6)), (1, (6, 4))]

    causes, doubt = doubtful({(1, (0, 2)): 4.0, (1, (2, 0)): 4.0}, rings)

    assert ("switch", "leaf-0-0") in causes[0] and ("switch", "leaf-1-0") not in causes[0]
    assert "alike" in doubt


def test_the_slowest_groups_are_explained_where_nothing_explains_all_of_them() -> None:
    slow: dict[tuple[int, tuple[int, ...]], float] = {
        (2, (0, 1)): 19.0,
        (3, (5, 7)): 0.8,
        (3, (0, 4)): 0.8,
        (3, (2, 6)): 0.8,
    }

    causes, doubt = doubtful(slow, [(2, ranks) for ranks in GROUPS[:4]] + [(3, ranks) for ranks in GROUPS[4:]])

    assert causes == ((("interconnect", "node-0"),),)
    assert "slowest" in doubt


def test_two_causes_at_once_are_both_named() -> None:
    found = causes(using("nic", "node-0/nic-0") | using("interconnect", "node-3"))

    assert sorted(found) == [[("interconnect", "node-3")], [("nic", "node-0/nic-0")]]


def test_nothing_is_named_that_a_healthy_group_uses() -> None:
    assert causes({(0, 1), (2, 3), (4, 6), (1, 7)}) == []


def test_a_group_that_is_too_noisy_contradicts_nothing() -> None:
    slow = using("nic", "node-0/nic-0")

    assert causes(slow - {(0, 6)}, unclear={(0, 6)}) == [[("nic", "node-0/nic-0")]]


@pytest.mark.parametrize(("slow", "found"), [(4, 4), (3, 3), (5, 0), (0, 0)])
def test_groups_are_slow_also_where_they_are_half_of_like_groups(slow: int, found: int) -> None:
    rng = np.random.default_rng(1)
    members = [(2 * place, 2 * place + 1) for place in range(8)]
    usual = np.where(np.arange(8) < slow, 1.5, 1.0)[:, None]

    groups = compared_groups([0] * 8, members, usual * np.exp(0.03 * rng.normal(size=(8, 30))))

    assert [group.slow for group in groups] == [place < found for place in range(8)]


@pytest.mark.parametrize(("longer", "slow"), [(1.0, []), (1.3, []), (2.0, [1])])
@pytest.mark.parametrize("groups", [2, 3])
def test_of_two_or_three_like_groups_the_far_slower_one_is_found_in_a_recording(
    groups: int, longer: float, slow: list[int]
) -> None:
    seconds = np.random.default_rng(1).lognormal(0, 0.2, (groups, 40))
    seconds[1] *= longer
    members = [(4 * number, 4 * number + 1) for number in range(groups)]

    found = compared_groups([0] * groups, members, seconds, FEWEST_OF_JOB)

    assert [number for number, group in enumerate(found) if group.slow] == slow
    assert not compared_groups([0] * groups, members, seconds), "Fleet compares four or more"


def test_a_stage_that_is_slow_in_two_operations_is_as_possible_as_its_switch() -> None:
    stage = np.arange(8) // 4
    groups = [
        GroupExcess(op, ranks, 0.5 * (ranks[0] >= 4), 0.01, ranks[0] >= 4)
        for op in (1, 2)
        for ranks in ((0, 2), (1, 3), (4, 6), (5, 7))
    ]
    ports = {rank: RankPort(f"node-{rank // 2}", f"nic-{rank % 2}", (f"leaf-{rank // 4}",)) for rank in range(8)}
    paths = [path_elements(group.ranks, ports) | work_elements(group, {1, 2}, ("stage", stage)) for group in groups]

    (cause,) = explain(groups, paths)

    assert {("stage", "1"), ("switch", "leaf-1")} <= set(cause)


@pytest.mark.parametrize("leaf", range(4))
def test_the_switch_of_one_stage_is_not_cleared_by_pairs_that_are_all_slow_alike(leaf: int) -> None:
    """Four stages of four hosts, each on a switch of its own: all pairs of two neighbouring stages are slow alike."""
    rng = np.random.default_rng(leaf)
    ports = {rank: RankPort(f"node-{rank}", "nic-0", (f"leaf-{rank // 4}", "spine-0")) for rank in range(16)}
    members = [(rank, rank + 4) for rank in range(12)]
    usual = np.array([1.5 if leaf in (first // 4, last // 4) else 1.0 for first, last in members])[:, None]
    groups = compared_groups([0] * 12, members, usual * np.exp(0.03 * rng.normal(size=(12, 30))))

    (cause,) = explain(groups, [path_elements(group.ranks, ports) for group in groups])

    assert ("switch", f"leaf-{leaf}") in cause and ("link", f"leaf-{leaf} - spine-0") in cause


def test_half_of_like_groups_may_differ_a_little() -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        usual = np.exp(0.05 * rng.normal(size=(8, 1)))
        members = [(2 * place, 2 * place + 1) for place in range(8)]

        groups = compared_groups([0] * 8, members, usual * np.exp(0.03 * rng.normal(size=(8, 30))))

        assert sum(group.slow for group in groups) < 4


def test_a_node_with_a_single_nic_is_not_named_for_its_nic() -> None:
    ports = {rank: RankPort(f"node-{rank}", "nic-0", ("leaf",)) for rank in range(6)}
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4), (4, 5)]
    groups = [GroupExcess(0, pair, 0.5 * (0 in pair), 0.01, 0 in pair) for pair in pairs]

    (cause,) = explain(groups, [path_elements(pair, ports) for pair in pairs])

    assert cause == (("gpu", "0"), ("nic", "node-0/nic-0"))


@pytest.mark.parametrize("seed", range(5))
def test_a_group_that_is_slow_now_and_then_is_slow(seed: int) -> None:
    rng = np.random.default_rng(seed)
    members = [(2 * place, 2 * place + 1) for place in range(16)]
    seconds = np.exp(0.05 * rng.normal(size=(16, 32)))
    seconds[6] *= np.where(rng.random(32) < 0.5, 3.0, 1.0)

    groups = compared_groups([0] * 16, members, seconds)

    assert [place for place, group in enumerate(groups) if group.slow] == [6]
    assert groups[6].excess > 0.3


def test_groups_that_are_slow_in_turn_are_not_slow() -> None:
    members = [(2 * place, 2 * place + 1) for place in range(16)]
    for seed in range(40):
        rng = np.random.default_rng(seed)
        seconds = np.exp(0.05 * rng.normal(size=(16, 32)))
        seconds[rng.integers(0, 16, 32), np.arange(32)] *= 3.0

        assert not any(group.slow for group in compared_groups([0] * 16, members, seconds))
