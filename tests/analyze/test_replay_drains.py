"""Nodes whose load is taken away before they are: no slow nodes, unlike those that are slow and then die."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_fleet.cli import main

LOSS: dict[str, list[float]] = {
    "drained": [0.9, 0.74, 0.58, 0.42, 0.26, 0.1],
    "without load at the end": [0.5, 0.1, 0.0, 0.0],
    "slow until dead": [0.7] * 40,
    "slow for a short time until dead": [0.6] * 10,
    "slow for long until hung": [0.7] * 300 + [0.1] * 3,
}
"""Shares of its usual rate that a node has in its last ticks."""

BACK: dict[str, list[float]] = {
    "comes up": [0.1, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9],
    "is stopped still": [0.01] * 100,
}
"""Shares that a node has when it comes back."""


def history(folder: Path, how: Sequence[str], back: bool, returns: str = "") -> Path:
    """Jobs of eight nodes in 700 ticks of 5 s; n3 of each goes after tick 500, each in another way."""
    rates = 100 * np.exp(0.03 * np.random.default_rng(3).normal(size=(700, len(how), 8)))
    for job, shares in enumerate(map(LOSS.__getitem__, how)):
        rates[500 - len(shares) : 500, job, 3] *= shares
    rates[500 : 600 if back else None, :, 3] = np.nan
    shares = BACK.get(returns, [])
    rates[600 : 600 + len(shares), :, 3] *= np.reshape(shares, (-1, 1))
    lines = [
        f"{5 * tick},{how[job]}: n{node},{job},{rates[tick, job, node]:.3f}\n"
        for tick, job, node in np.argwhere(np.isfinite(rates)).tolist()
    ]
    (folder / "history.csv").write_text("time,node,job,rate\n" + "".join(lines))
    return folder / "history.csv"


@pytest.mark.parametrize("back", [True, False])
def test_a_node_that_is_drained_is_said_and_not_accused(tmp_path: Path, back: bool) -> None:
    done = CliRunner().invoke(main, ["replay", str(history(tmp_path, list(LOSS), back)), "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)

    drained = ["drained", "without load at the end"]
    said = [(one["node"], one["last_report"]) for one in found["summary"]["drained"]]
    assert sorted(said) == [(f"{how}: n3", 2495) for how in drained]
    accused = sorted(one["node"] for one in found["episodes"])
    assert accused == sorted(f"{how}: n3" for how in LOSS if how not in drained)


@pytest.mark.parametrize("returns", BACK)
def test_a_node_that_is_drained_is_well_when_it_is_back_and_a_stopped_one_is_not(
    tmp_path: Path, returns: str
) -> None:
    done = CliRunner().invoke(main, ["replay", str(history(tmp_path, ["drained"], True, returns)), "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)

    assert [one["node"] for one in found["summary"]["drained"]] == (["drained: n3"] if returns == "comes up" else [])
    assert [one["node"] for one in found["episodes"]] == ([] if returns == "comes up" else ["drained: n3"])


def test_the_table_says_who_was_drained(tmp_path: Path) -> None:
    file = history(tmp_path, ["drained"], back=True)
    done = CliRunner().invoke(main, ["replay", str(file)], terminal_width=300)

    assert "nobody was accused" in done.stdout
    assert (
        "as one that is drained does: Fleet names it while it falls, but it was no slow node: drained: n3 at 2495"
        in done.stdout
    )
