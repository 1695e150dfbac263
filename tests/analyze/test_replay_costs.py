"""What accusations cost: only hours in which the accused node reported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_fleet.cli import main
from ingero_testing.replays import shown_twice

MINUTE = 60
SLOW_FROM = 60


def history(folder: Path, silent: range, who: str, after: float, ticks: int = 360, step: int = MINUTE) -> Path:
    """Six nodes, a row every `step` seconds; n2 loses 20 % from tick 60 on, and `after` after the silence.

    In the `silent` ticks n2 ("one") or all nodes ("all") have no rows.
    """
    random = np.random.default_rng(1)
    lines = ["time,node,rate"]
    for tick in range(ticks):
        for node in range(6):
            if tick in silent and (who == "all" or node == 2):
                continue
            lost = 0.2 if silent.start > tick >= SLOW_FROM else after if tick >= silent.stop else 0.0
            rate = 100 * np.exp(random.normal(0, 0.02)) * (1 - (lost if node == 2 else 0.0))
            lines.append(f"{tick * step},n{node},{rate:.2f}")
    file = folder / "history.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def replayed(file: Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["replay", str(file), "--json"])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("who", ["one", "all"])
def test_silence_of_an_accused_node_costs_nothing(tmp_path: Path, who: str) -> None:
    found = replayed(history(tmp_path, range(160, 260), who, after=0.2))

    assert {episode["node"] for episode in found["episodes"]} == {"n2"}
    assert found["summary"]["lost_node_hours"] == pytest.approx(0.2 * 200 / 60, rel=0.1)


def test_an_accused_node_that_never_comes_back_costs_until_its_last_report(tmp_path: Path) -> None:
    file = history(tmp_path, range(160, 360), "one", after=0.2)

    found, table = shown_twice(str(file))
    (episode,) = found["episodes"]
    assert (episode["kind"], episode["end"]) == ("slow", None)
    assert episode["lost_node_hours"] == pytest.approx(0.2 * 100 / 60, rel=0.1)
    assert "1:39:00, then silent" in table.stdout


@pytest.mark.parametrize(("after", "kinds"), [(0.0, ["slow"]), (0.4, ["slow", "slow_from_start"])])
def test_the_episode_of_a_node_that_was_away_for_more_than_a_day_is_kept(
    tmp_path: Path, after: float, kinds: list[str]
) -> None:
    found = replayed(history(tmp_path, range(160, 520), "one", after, ticks=620, step=5 * MINUTE))

    first = found["episodes"][0]
    assert [episode["kind"] for episode in found["episodes"]] == kinds
    assert (first["end"], first["severity"]) == (None, pytest.approx(0.2, abs=0.02))
    assert first["lost_node_hours"] == pytest.approx(0.2 * 500 / 60, rel=0.03)


@pytest.mark.parametrize(("now", "kind", "severity"), [(0.8, "slow", 0.2), (1.0, "stopped", 0.98)])
def test_a_node_that_stopped_and_works_again_slowly_loses_what_it_does_now(
    tmp_path: Path, now: float, kind: str, severity: float
) -> None:
    rates = 100 * np.exp(0.02 * np.random.default_rng(1).normal(size=(160, 6)))
    rates[60:80, 2], rates[80:, 2] = 0, now * rates[80:, 2]
    rows = [f"{60 * tick},n{node},{rates[tick, node]:.2f}" for tick in range(160) for node in range(6)]
    (tmp_path / "history.csv").write_text("\n".join(["time,node,rate", *rows]))

    (episode,) = replayed(tmp_path / "history.csv")["episodes"]

    assert (episode["node"], episode["kind"]) == ("n2", kind)
    assert episode["severity"] == pytest.approx(severity, abs=0.02)
    assert (episode["end"] is None) == (now < 1)
    assert 60 * episode["lost_node_hours"] == pytest.approx(20 + 80 * (1 - now), rel=0.03)
