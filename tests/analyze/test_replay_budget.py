"""How many false accusations are allowed for a recorded history."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_fleet.cli import main


def replayed(folder: Path, hours: float, *flags: str, slow: float = 0.7) -> tuple[list[str], dict[str, Any]]:
    """Who is named, and the summary, of 12 nodes with 100 rows each in so many hours; n3 is slow from the middle."""
    rates = 100 * np.exp(np.random.default_rng(1).normal(0, 0.015, (100, 12)))
    rates[50:, 3] *= slow
    lines = [f"{hours * 36 * tick},n{node},{rates[tick, node]:.4f}\n" for tick, node in np.ndindex(rates.shape)]
    (folder / "history.csv").write_text("time,node,rate\n" + "".join(lines))
    done = CliRunner().invoke(main, ["replay", str(folder / "history.csv"), "--json", *flags])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    return sorted({one["node"] for one in found["episodes"]}), found["summary"]


def test_a_long_history_has_no_larger_budget_than_a_hundredth_of_a_false_accusation(tmp_path: Path) -> None:
    named, about = replayed(tmp_path, 50.0)

    assert named == ["n3"]
    assert about["budget"] * about["node_hours"] == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize(
    ("hours", "slow", "flags", "budget"),
    [(1.0, 0.7, [], 0.0001), (50.0, 1.0, [], 0.0001), (50.0, 0.7, ["--budget", "0.001"], 0.001)],
)
def test_short_and_healthy_histories_have_the_usual_budget_and_a_given_one_stays(
    tmp_path: Path, hours: float, slow: float, flags: list[str], budget: float
) -> None:
    named, about = replayed(tmp_path, hours, *flags, slow=slow)

    assert (named, about["budget"]) == (["n3"] if slow < 1 else [], budget)
