"""Values that move as one, as steps of a synchronised job do, name nobody, and the output says so."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.replay.reading import LOCKSTEP
from ingero_fleet.cli import main

Floats = np.ndarray[Any, np.dtype[np.float64]]


def replayed(folder: Path, seconds: Floats, jobs: int = 1) -> dict[str, Any]:
    """Steps of nodes by tick, as a table."""
    nodes = seconds.shape[1]
    file = folder / "history.csv"
    lines = [
        f"{tick * 10},n{node},{seconds[tick, node]:.5f},j{node * jobs // nodes}"
        for tick in range(len(seconds)) for node in range(nodes)
    ]  # fmt: skip
    file.write_text("\n".join(["time,node,step_time,job", *lines]) + "\n")
    done = CliRunner().invoke(main, ["replay", str(file), "--json"])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def computed(random: np.random.Generator) -> Floats:
    """Twelve ranks that compute for 0.8 s; rank 3 for a quarter longer from tick 80 on."""
    found = 0.8 * np.exp(random.normal(0, 0.02, (150, 12)))
    found[80:, 3] *= 1.25
    return np.asarray(found)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_steps_of_a_synchronised_job_are_in_doubt_where_nobody_is_accused(
    tmp_path: Path, seed: int, jobs: int
) -> None:
    random = np.random.default_rng(seed)
    parts = np.split(computed(random), jobs, axis=1)
    steps = np.concatenate([np.repeat(part.max(axis=1, keepdims=True), part.shape[1], 1) for part in parts], 1)

    found = replayed(tmp_path, steps + random.normal(0, 0.001, steps.shape), jobs)

    assert not found["episodes"]
    assert found["summary"]["doubts"] == [LOCKSTEP]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("common", [0.0, 0.1])
def test_independent_nodes_under_a_common_load_are_not(tmp_path: Path, seed: int, common: float) -> None:
    random = np.random.default_rng(seed)
    load = np.exp(common * np.sin(np.arange(150) / 25))[:, None]

    found = replayed(tmp_path, 0.8 * load * np.exp(random.normal(0, 0.005, (150, 12))))

    assert found["summary"]["doubts"] == []


def test_what_each_rank_computes_names_the_slow_one(tmp_path: Path) -> None:
    found = replayed(tmp_path, computed(np.random.default_rng(0)))

    assert [episode["node"] for episode in found["episodes"]] == ["n3"]
    assert found["summary"]["doubts"] == []
