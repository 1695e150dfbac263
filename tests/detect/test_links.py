"""Which part of a network explains the groups whose collectives are slow."""

from collections.abc import Set

import pytest

from ingero_detect.links import GroupExcess, RankPort, explain, path_elements

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


def test_two_causes_at_once_are_both_named() -> None:
    found = causes(using("nic", "node-0/nic-0") | using("interconnect", "node-3"))

    assert sorted(found) == [[("interconnect", "node-3")], [("nic", "node-0/nic-0")]]


def test_nothing_is_named_that_a_healthy_group_uses() -> None:
    assert causes({(0, 1), (2, 3), (4, 6), (1, 7)}) == []


def test_a_group_that_is_too_noisy_contradicts_nothing() -> None:
    slow = using("nic", "node-0/nic-0")

    assert causes(slow - {(0, 6)}, unclear={(0, 6)}) == [[("nic", "node-0/nic-0")]]


def test_a_node_with_a_single_nic_is_not_named_for_its_nic() -> None:
    ports = {rank: RankPort(f"node-{rank}", "nic-0", ("leaf",)) for rank in range(6)}
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4), (4, 5)]
    groups = [GroupExcess(0, pair, 0.5 * (0 in pair), 0.01, 0 in pair) for pair in pairs]

    (cause,) = explain(groups, [path_elements(pair, ports) for pair in pairs])

    assert cause == (("gpu", "0"), ("nic", "node-0/nic-0"))
