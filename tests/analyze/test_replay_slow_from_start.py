"""Nodes that are slower than their peers from the first row."""

from pathlib import Path

import numpy as np

from ingero_testing.replays import replayed


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
