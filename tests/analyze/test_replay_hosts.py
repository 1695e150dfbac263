"""Hosts whose GPUs are judged one by one: what all GPUs of a host have in common since the beginning."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner

from ingero_fleet.cli import main

TICKS, HOSTS, GPUS = 80, 8, 4
Factors = npt.NDArray[np.float64]


def judged(folder: Path, factor: Factors) -> list[dict[str, Any]]:
    """Episodes of a history with a row a minute for each GPU, whose rate has this factor, (hosts, GPUs)."""
    noise = np.random.default_rng(3).normal(0, 0.015, (TICKS, HOSTS, GPUS))
    rates = 100 * factor * np.exp(noise)
    lines = [f"{60 * t},h{h},{g},{rates[t, h, g]:.4f}\n" for t, h, g in np.ndindex(rates.shape)]
    (folder / "history.csv").write_text("time,host,gpu,rate\n" + "".join(lines))
    done = CliRunner().invoke(main, ["replay", str(folder / "history.csv"), "--json"])
    assert done.exit_code == 0, done.stderr
    episodes: list[dict[str, Any]] = json.loads(done.stdout)["episodes"]
    return episodes


def test_a_host_all_of_whose_gpus_are_slow_from_the_start_is_named_since_its_first_row(tmp_path: Path) -> None:
    factor = np.ones((HOSTS, GPUS))
    factor[2] = 0.7

    episodes = judged(tmp_path, factor)

    assert [one["node"] for one in episodes] == ["h2/0", "h2/1", "h2/2", "h2/3"]
    assert {(one["kind"], one["start"]) for one in episodes} == {("slow_from_start", 0.0)}
    assert all(one["severity"] == pytest.approx(0.3, abs=0.02) for one in episodes)
    assert all(one["lost_node_hours"] == pytest.approx(0.3 * TICKS / 60, rel=0.1) for one in episodes)


def test_two_hosts_that_are_slow_alike_from_the_start_have_another_role(tmp_path: Path) -> None:
    factor = np.ones((HOSTS, GPUS))
    factor[[2, 5]] = 0.7

    assert judged(tmp_path, factor) == []


def test_a_single_slow_gpu_is_named_alone(tmp_path: Path) -> None:
    factor = np.ones((HOSTS, GPUS))
    factor[2, 1] = 0.6

    episodes = judged(tmp_path, factor)

    assert [(one["node"], one["start"]) for one in episodes] == [("h2/1", 0.0)]
