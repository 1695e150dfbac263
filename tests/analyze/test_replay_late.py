"""Nodes whose values are dated wrongly or averaged, and so follow those of their cohort late."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.replay.wandering_loads import beyond_wandering, from_others
from ingero_detect.grouped import Floats
from ingero_fleet.cli import main

TICKS, NODES, LATE, SLOW = 600, 10, 4, 7
MOVES = ((150, 0.18), (240, -0.2), (330, 0.22), (430, -0.15), (500, 0.2))
"""When all nodes move, and by how much (log units)."""


def rates(seed: int, moves: tuple[tuple[int, float], ...] = MOVES) -> Floats:
    random = np.random.default_rng(seed)
    common = sum((np.where(np.arange(TICKS) >= tick, size, 0.0) for tick, size in moves), np.zeros(TICKS))
    return 100 * np.exp(common[:, None] + 0.015 * random.normal(size=(TICKS, NODES)))


def replay(folder: Path, values: Floats) -> Any:
    lines = [f"{30 * tick},n{node},{value:.4f}" for (tick, node), value in np.ndenumerate(values) if value > 0]
    (folder / "history.csv").write_text("\n".join(("time,node,rate", *lines)) + "\n")
    done = CliRunner().invoke(main, ["replay", str(folder / "history.csv"), "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def accused(found: Any) -> set[str]:
    return {episode["node"] for episode in found["episodes"]}


def averaged(values: Floats, length: int) -> Floats:
    return np.convolve(np.concatenate((np.full(length - 1, values[0]), values)), np.full(length, 1 / length), "valid")


def late(values: Floats, how: int) -> None:
    """Make one node late by so many ticks, or early, or averaged over as many where it is 0."""
    own = values[:, LATE]
    values[:, LATE] = averaged(own, 20) if how == 0 else own[np.clip(np.arange(TICKS) - how, 0, TICKS - 1)]


@pytest.mark.parametrize("how", [10, -10, 0])
def test_a_node_whose_values_are_late_or_averaged_is_not_accused_and_hides_nobody(tmp_path: Path, how: int) -> None:
    values = rates(1)
    values[360:, SLOW] *= 0.75
    late(values, how)

    found = replay(tmp_path, values)

    assert accused(found) == {f"n{SLOW}"}
    assert {one["node"] for one in found["summary"]["late"]} <= {f"n{LATE}"}


def test_the_lists_and_the_table_say_whose_values_are_late(tmp_path: Path) -> None:
    values = rates(2)
    late(values, 12)

    assert {one["node"] for one in replay(tmp_path, values)["summary"]["late"]} == {f"n{LATE}"}
    text = CliRunner().invoke(main, ["replay", str(tmp_path / "history.csv")], terminal_width=300).stdout
    assert "nobody was accused" in text and "as where a clock is off" in text


def test_a_node_that_is_late_and_slow_is_named(tmp_path: Path) -> None:
    values = rates(3)
    late(values, 10)
    values[370:420, LATE] *= 0.7

    assert f"n{LATE}" in accused(replay(tmp_path, values))


def test_a_node_that_follows_one_move_late_is_named(tmp_path: Path) -> None:
    values = rates(4, ((150, -0.15), (300, 0.3)))
    values[300:330, LATE] *= np.exp(-0.3)

    assert accused(replay(tmp_path, values)) == {f"n{LATE}"}


def wandering(seed: int, ticks: int = 800, nodes: int = 12) -> Floats:
    """Shares of a load that wander by 10 %, each back towards its mean within 200 ticks, under noise of 2 %."""
    random = np.random.default_rng(seed)
    logs = np.empty((ticks, nodes))
    logs[0] = random.normal(size=nodes)
    for tick in range(1, ticks):
        logs[tick] = 0.995 * logs[tick - 1] + (1 - 0.995**2) ** 0.5 * random.normal(size=nodes)
    rates: Floats = 100 * np.exp(0.1 * logs + 0.02 * random.normal(size=(ticks, nodes)))
    return rates


def apart(values: Floats) -> tuple[Floats, Floats]:
    """What the first node does from the others, and what the others do."""
    logs = np.log(values)
    return logs[:, 0] - np.median(logs[:, 1:], axis=1), from_others(logs[:, 1:], 20)


@pytest.mark.parametrize("seed", range(4))
def test_a_loss_is_as_the_others_wander_only_if_it_comes_as_slowly(seed: int) -> None:
    values = wandering(seed)
    lowest = int(np.argmin(np.log(values[100:700, 0]))) + 100
    assert beyond_wandering(*apart(values), max(lowest - 60, 40), min(lowest + 60, 800)) is None

    values[400:, 0] *= 0.7
    assert beyond_wandering(*apart(values), 402, 800) == 402
    assert beyond_wandering(*apart(values), 400, 430) == 400
    assert beyond_wandering(*apart(values), 150, 800) == 400


def test_a_loss_among_few_ticks_or_nodes_is_not_said_to_wander() -> None:
    values = wandering(5)

    assert beyond_wandering(*apart(values[:, :3]), 400, 800) == 400
    assert beyond_wandering(*apart(values), 3, 800) == 3

    own, others = apart(values)
    own[300:400] = np.nan
    assert beyond_wandering(own, others, 404, 800) == 404


def test_a_drift_among_nodes_that_do_not_wander_stays_accused(tmp_path: Path) -> None:
    values = rates(6, ())
    values[200:, SLOW] *= np.exp(-0.4 * np.minimum(1, np.arange(400) / 200))

    assert accused(replay(tmp_path, values)) == {f"n{SLOW}"}


def test_nodes_whose_shares_of_a_load_wander_are_not_accused_for_that(tmp_path: Path) -> None:
    found = replay(tmp_path, wandering(7))

    assert not accused(found)
    assert found["summary"]["shared"]
