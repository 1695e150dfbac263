"""Jobs whose steps are long and short by chance, with and without a loss of all nodes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_detect.grouped import Floats
from ingero_fleet.cli import main


def levels(seed: int, spread: float, ticks: int = 600) -> Floats:
    """Rates of four nodes whose steps have lengths in common, and noise of 1 % of their own."""
    random = np.random.default_rng(seed)
    lengths = random.normal(0, spread, (ticks, 1))
    return 100 * np.exp(lengths + 0.01 * random.normal(size=(ticks, 4)))


def slow_jobs(folder: Path, rates: Floats) -> Any:
    lines = [f"{10 * tick},n{node},{rate:.3f}" for (tick, node), rate in np.ndenumerate(rates)]
    (folder / "history.csv").write_text("\n".join(("time,node,rate", *lines)) + "\n")
    done = CliRunner().invoke(main, ["replay", str(folder / "history.csv"), "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["episodes"] == []
    return found["summary"]["job_slow"]


@pytest.mark.parametrize("seed", range(3))
def test_steps_of_all_lengths_are_no_slow_job(tmp_path: Path, seed: int) -> None:
    assert slow_jobs(tmp_path, levels(seed, 0.3)) == []


@pytest.mark.parametrize(("spread", "late", "error"), [(0.02, 3, 0.01), (0.2, 30, 0.08)])
def test_what_a_job_lost_is_told_once_and_is_right(tmp_path: Path, spread: float, late: int, error: float) -> None:
    rates = levels(3, spread)
    rates[300:] /= 1.3

    (job,) = slow_jobs(tmp_path, rates)

    assert abs(job["since"] / 10 - 300) <= late
    assert job["severity"] == pytest.approx(1 - 1 / 1.3, abs=error)


def test_a_phase_that_is_soon_over_lost_what_it_lost(tmp_path: Path) -> None:
    rates = levels(4, 0.02)
    rates[300:325] *= 0.6

    (job,) = slow_jobs(tmp_path, rates)

    assert job["severity"] == pytest.approx(0.4, abs=0.03)


def test_every_one_of_several_phases_is_told(tmp_path: Path) -> None:
    rates = levels(5, 0.02)
    rates[100:150] *= 0.6
    rates[180:230] *= 0.6
    rates[400:] *= 0.7

    jobs = slow_jobs(tmp_path, rates)

    assert [round(job["severity"], 1) for job in jobs] == [0.4, 0.4, 0.3]
