"""Fleets whose nodes follow a common load by different shares."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.replay.load_shares import load_shares
from ingero_contract.identifiers import node_key
from ingero_detect.grouped import Floats
from ingero_fleet.cli import main

SHARED = "shares of their own"


def rates(seed: int, ticks: int = 1000, nodes: int = 8, amplitude: float = 0.25) -> Floats:
    """Waves of 120 ticks, of which the nodes take between half of the amplitude and one and a half times that."""
    random = np.random.default_rng(seed)
    wave = np.sin(2 * np.pi * np.arange(ticks) / 120 + random.uniform(0, 6))
    part: Floats = 1 + amplitude * random.permutation(np.linspace(0.5, 1.5, nodes)) * wave[:, None]
    return 100 * part * np.exp(0.02 * random.normal(size=(ticks, nodes)))


def replay(folder: Path, values: Floats) -> Any:
    lines = [f"{30 * tick},n{node},{value:.4f}" for (tick, node), value in np.ndenumerate(values)]
    (folder / "history.csv").write_text("\n".join(("time,node,rate", *lines)) + "\n")
    done = CliRunner().invoke(main, ["replay", str(folder / "history.csv"), "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def blocks(values: Floats) -> Floats:
    """The logs of the medians of five ticks."""
    return np.log(np.median(values.reshape(-1, 5, values.shape[1]), axis=1))


def shares(values: Floats) -> Any:
    return load_shares(blocks(values), [node_key("", f"n{node}") for node in range(values.shape[1])])


@pytest.mark.parametrize("loss", [0.75, 0.85])
def test_a_loss_under_waves_that_nodes_follow_differently_is_named_at_its_onset(tmp_path: Path, loss: float) -> None:
    values = rates(1)
    values[500:, 3] *= loss

    found = replay(tmp_path, values)

    (episode,) = found["episodes"]
    assert episode["node"] == "n3"
    assert abs(episode["start"] / 30 - 500) <= 6
    assert episode["severity"] == pytest.approx(1 - loss, abs=0.05)
    assert any(SHARED in note for note in found["summary"]["notes"])


def test_a_day_that_nodes_follow_differently_accuses_nobody(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    day = np.sin(2 * np.pi * np.arange(1440) / 720)
    part: Floats = 1 + 0.35 * random.permutation(np.linspace(0.5, 1.5, 12)) * day[:, None]

    assert not replay(tmp_path, 100 * part * np.exp(0.02 * random.normal(size=part.shape)))["episodes"]


def test_nodes_that_follow_alike_have_no_shares() -> None:
    random = np.random.default_rng(3)
    load = 0.2 * np.sin(np.arange(1000) / 20)[:, None]

    assert shares(np.exp(load + 0.02 * random.normal(size=(1000, 8)))) is None
    assert shares(np.exp(0.02 * random.normal(size=(1000, 8)))) is None


def test_a_loss_that_comes_with_a_move_of_all_is_no_share() -> None:
    random = np.random.default_rng(4)
    move = np.where(np.arange(1000) >= 500, -0.2, 0.0)[:, None]
    values = np.exp(move + 0.02 * random.normal(size=(1000, 8)))
    values[500:, 2] *= 0.7

    assert shares(values) is None


def test_a_node_that_reaches_a_limit_from_some_time_on_has_no_share(tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    load = 1 + 0.4 * np.sin(2 * np.pi * np.arange(1000) / 120)
    values = 100 * np.repeat(load[:, None], 8, axis=1)
    values[500:, 4] = np.minimum(values[500:, 4], 95)
    values *= np.exp(0.02 * random.normal(size=values.shape))

    assert {episode["node"] for episode in replay(tmp_path, values)["episodes"]} == {"n4"}
