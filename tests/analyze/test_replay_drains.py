"""Nodes whose load is taken away before they are: no slow nodes, unlike those that are slow and then die."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_fleet.cli import main

LOSS: dict[str, list[float]] = {
    "drained": [0.9, 0.74, 0.58, 0.42, 0.26, 0.1],
    "without load at the end": [0.5, 0.1, 0.0, 0.0],
    "slow, then dead": [0.7] * 40,
    "slow for a short time, then dead": [0.6] * 10,
    "slow for hours, then hung": [0.7] * 300 + [0.1] * 3,
}
"""Shares of its usual rate that a node has in its last ticks."""


def judged(folder: Path, shares: list[float], back: bool) -> dict[str, Any]:
    """16 nodes in 900 ticks of 20 s; n3 goes after tick 500."""
    rates = 100 * np.exp(0.03 * np.random.default_rng(3).normal(size=(900, 16)))
    rates[500 - len(shares) : 500, 3] *= shares
    gone = slice(500, 600 if back else None)
    rates[gone, 3] = np.nan
    lines = [
        f"{20 * tick},n{node},{rates[tick, node]:.3f}\n" for tick, node in np.argwhere(np.isfinite(rates)).tolist()
    ]
    (folder / "history.csv").write_text("time,node,rate\n" + "".join(lines))
    done = CliRunner().invoke(main, ["replay", str(folder / "history.csv"), "--json"])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize("how", LOSS)
def test_a_node_that_is_drained_is_said_and_not_accused(tmp_path: Path, how: str, back: bool) -> None:
    found = judged(tmp_path, LOSS[how], back)

    drained = [(one["node"], one["last_report"]) for one in found["summary"]["drained"]]
    if how in ("drained", "without load at the end"):
        assert (found["episodes"], drained) == ([], [("n3", 9980)])
    else:
        assert ([one["node"] for one in found["episodes"]], drained) == (["n3"], [])


def test_the_table_says_who_was_drained(tmp_path: Path) -> None:
    judged(tmp_path, LOSS["drained"], back=True)
    done = CliRunner().invoke(main, ["replay", str(tmp_path / "history.csv")], terminal_width=300)

    assert "nobody was accused" in done.stdout
    assert (
        "as one that is drained does: Fleet names it while it falls, but it was no slow node: n3 at 9980"
        in done.stdout
    )
