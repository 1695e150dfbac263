"""Nodes that are a little slower than their peers from the first row."""

from pathlib import Path

import numpy as np
import pytest

from ingero_testing.replays import replayed


@pytest.mark.parametrize(
    ("slow", "share", "accused"), [([3], 0.88, ["n3"]), ([3, 5], 0.88, []), ([3], 0.94, [])]
)  # fmt: skip
def test_a_node_a_tenth_slower_than_all_of_its_peers_is_named_if_it_is_alone(
    tmp_path: Path, slow: list[int], share: float, accused: list[str]
) -> None:
    rng = np.random.default_rng(5)
    rates = 100 * np.exp(rng.normal(0, 0.01, 16) + rng.normal(0, 0.015, (200, 16)))
    rates[:, slow] *= share
    rows = [f"{30 * tick},n{node},{rate:.3f}" for (tick, node), rate in np.ndenumerate(rates)]
    (tmp_path / "history.csv").write_text("\n".join(["time,node,rate", *rows]) + "\n")

    found = replayed(str(tmp_path / "history.csv"))["episodes"]

    assert [one["node"] for one in found] == accused
    assert all(one["kind"] == "slow_from_start" and one["start"] == 0 for one in found)


def test_a_node_that_was_repaired_is_not_accused_later_of_what_it_lost_before(tmp_path: Path) -> None:
    """Two nodes are slow until each is repaired: the second one is alone at its level since the first one is well."""
    rates = 100 * np.exp(0.015 * np.random.default_rng(1).normal(size=(240, 12)))
    rates[:100, 0] *= 0.6
    rates[:150, 1] *= 0.7
    rates[140:, 4] *= 0.65
    rows = [f"{30 * tick},n{node},{rate:.3f}" for (tick, node), rate in np.ndenumerate(rates)]
    (tmp_path / "history.csv").write_text("\n".join(["time,node,rate", *rows]) + "\n")

    found = replayed(str(tmp_path / "history.csv"))["episodes"]

    assert [(one["node"], one["detected"] < 150 * 30) for one in found] == [("n1", True), ("n4", True)]
