"""How rows fall into ticks: intervals between rows, times that jitter around an edge, and numbers of steps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ingero_analyze.replay.tick_grid import fitting, phase
from ingero_fleet.cli import main

START = 1_767_225_600
"""2026-01-01, seconds."""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)], terminal_width=300)


def judged(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def history(folder: Path, moment: Callable[[int, float], float], name: str = "time", ticks: int = 160) -> Path:
    """Eight nodes of which n2 loses 30 % from tick 100 on; `moment`: of a tick's number and a normal number."""
    random = np.random.default_rng(7)
    rows = []
    for tick in range(ticks):
        for node in range(8):
            rate = 100 * np.exp(0.02 * random.normal()) * (0.7 if node == 2 and tick >= 100 else 1)
            rows.append((moment(tick, random.normal()), f"n{node}", rate))
    rows.sort()
    file = folder / "history.csv"
    file.write_text(f"{name},node,rate\n" + "".join(f"{time:.3f},{node},{rate:.2f}\n" for time, node, rate in rows))
    return file


@pytest.mark.parametrize("jitter", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("offset", [0.0, 15.0, 29.9])
def test_times_that_jitter_around_the_edge_of_a_tick_lose_no_node_hours(
    tmp_path: Path, jitter: float, offset: float
) -> None:
    found = judged(history(tmp_path, lambda tick, normal: START + offset + 30 * tick + jitter * normal))

    (episode,) = found["episodes"]
    assert found["summary"]["node_hours"] == pytest.approx(8 * 130 * 30 / 3600, rel=0.01)
    assert episode["start"] == pytest.approx(START + offset + 100 * 30, abs=5 * jitter)
    assert episode["detected"] - episode["start"] <= 30 + 6 * jitter


@pytest.mark.parametrize("interval", [1.0, 6.0, 7.0, 12.0, 18.5, 60.0])
def test_a_tick_of_a_short_history_is_the_interval_between_rows(tmp_path: Path, interval: float) -> None:
    found = judged(history(tmp_path, lambda tick, normal: START + interval * tick))

    assert found["summary"]["parameters"]["tick_seconds"] == interval
    assert found["summary"]["node_hours"] == pytest.approx(8 * 130 * interval / 3600, rel=0.01)
    assert [episode["node"] for episode in found["episodes"]] == ["n2"]


@pytest.mark.parametrize(
    ("tick", "interval", "found"),
    [(5, 4, 5), (5, 5.05, 5), (5, 6, 6), (5, 7.126, 7.13), (5, 59.6, 60), (10, 14.2, 14.2), (10, 30.2, 30)],
)
def test_the_tick_of_an_interval(tick: float, interval: float, found: float) -> None:
    assert fitting(tick, interval) == found


def test_rows_that_are_everywhere_in_a_tick_leave_its_edge_where_it_is() -> None:
    assert phase(np.random.default_rng(1).uniform(0, 3e4, 10_000), 30.0) == 0.0


@pytest.mark.parametrize(("name", "every"), [("step", 1), ("_step", 50), ("iteration", 1), ("train/global_step", 50)])
def test_numbers_of_steps_are_ticks_where_there_is_no_time(tmp_path: Path, name: str, every: int) -> None:
    file = history(tmp_path, lambda tick, normal: every * tick, name)

    found, text = judged(file), run(file).stdout

    (episode,) = found["episodes"]
    assert (episode["node"], episode["start"]) == ("n2", 100 * every)
    assert found["summary"]["parameters"]["tick_seconds"] == every
    assert "times are numbers of steps" in text
    assert f"160 ticks of {every} step" in text
    assert f"{59 * every:,} steps and on" in text
    assert "node-hours" not in text


def test_a_tick_of_several_steps_can_be_asked_for(tmp_path: Path) -> None:
    found = judged(history(tmp_path, lambda tick, normal: tick, "step"), "--tick", "4")

    assert found["summary"]["parameters"]["tick_seconds"] == 4


def test_a_time_since_the_start_comes_before_the_number_of_the_step(tmp_path: Path) -> None:
    file = history(tmp_path, lambda tick, normal: 10 * tick + abs(normal), "_runtime")
    lines = file.read_text().splitlines()
    file.write_text(
        "\n".join([f"{lines[0]},_step", *(f"{line},{place // 8}" for place, line in enumerate(lines[1:]))])
    )

    found = judged(file)

    assert found["summary"]["columns"]["used"]["time"] == ["_runtime"]
    assert [episode["node"] for episode in found["episodes"]] == ["n2"]


@pytest.mark.parametrize(("scale", "doubted"), [(1, True), (1000, False)])
def test_seconds_in_a_column_named_milliseconds_are_in_doubt(tmp_path: Path, scale: int, doubted: bool) -> None:
    file = history(tmp_path, lambda tick, _: (START + 60 * tick) * scale, "time_ms", ticks=40)

    doubts = judged(file)["summary"]["doubts"]

    assert any("seem to be seconds since 1970" in doubt for doubt in doubts) == doubted


def test_milliseconds_since_a_start_are_not_in_doubt(tmp_path: Path) -> None:
    file = history(tmp_path, lambda tick, _: 60_000.0 * tick, "time_ms", ticks=40)

    assert judged(file)["summary"]["doubts"] == []
