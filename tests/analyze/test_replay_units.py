"""Rows in another unit than those beside them, and numbers that stand for a missing value."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.replay.unit_changes import in_one_unit
from ingero_detect.grouped import Floats
from ingero_fleet.cli import main

TICKS, NODES, FLAKY, SLOW, SINCE = 300, 8, 5, 2, 180
START = 1_767_225_600


def history(seed: int, loss: float = 1.0) -> Floats:
    """Rates of 8 nodes around 100, by tick and node, of which n2 keeps a share from tick 180 on."""
    random = np.random.default_rng(seed)
    rates = 100 * np.exp(0.02 * random.normal(size=(TICKS, NODES)) + 0.02 * random.normal(size=NODES))
    rates[200:] *= 1.15  # all together
    rates[SINCE:, SLOW] *= loss
    return rates


def replay(folder: Path, measure: str, values: Floats, *options: str) -> Any:
    rows = np.ndenumerate(values)
    lines = [f"{START + 30 * tick},n{node},{float(value)!r}" for (tick, node), value in rows]
    (folder / "history.csv").write_text("\n".join((f"time,node,{measure}", *lines)) + "\n")
    done = CliRunner().invoke(main, ["replay", str(folder / "history.csv"), *options])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout) if "--json" in options else done.stdout


def accused(found: Any) -> list[tuple[str, str]]:
    return [(episode["node"], episode["kind"]) for episode in found["episodes"]]


WINDOWS = {
    "for a while": slice(120, 210),
    "to the end": slice(150, None),
    "at first": slice(0, 140),
    "always": slice(None),
}


@pytest.mark.parametrize("loss", [1.0, 0.75])
@pytest.mark.parametrize("when", WINDOWS)
def test_milliseconds_among_seconds_are_converted_and_accuse_nobody(tmp_path: Path, when: str, loss: float) -> None:
    seconds = 100 / history(len(when), loss)
    seconds[WINDOWS[when], FLAKY] *= 1000

    found = replay(tmp_path, "step_seconds", seconds, "--json")

    assert accused(found) == ([("n2", "slow")] if loss < 1 else [])
    (unit,) = found["summary"]["other_unit"]
    rows = len(range(TICKS)[WINDOWS[when]])
    assert (unit["node"], unit["factor"], unit["rows"]) == ("n5", 1000, rows)
    assert unit["since"] == START + 30 * range(TICKS)[WINDOWS[when]][0]


@pytest.mark.parametrize(("factor", "measure"), [(0.01, "gpu_util"), (1 / 1024, "bandwidth"), (60.0, "rate")])
def test_other_units_of_single_rows_are_converted(tmp_path: Path, factor: float, measure: str) -> None:
    rates = history(3) * 0.5
    rates[np.random.default_rng(3).random(TICKS) < 0.2, FLAKY] *= factor

    text = replay(tmp_path, measure, rates)

    assert "nobody was accused" in text
    assert "values in another unit than those beside them were converted: n5 (" in text
    assert (f" divided by {factor:g}" if factor > 1 else f" multiplied by {1 / factor:g}") in text


def test_a_unit_that_all_nodes_change_accuses_nobody_and_hides_nobody(tmp_path: Path) -> None:
    rates = history(4, 0.75)
    rates[100:, : NODES // 2] *= 1000

    found = replay(tmp_path, "rate", rates, "--json")

    assert accused(found) == [("n2", "slow")]
    assert {one["node"] for one in found["summary"]["other_unit"]} <= {f"n{node}" for node in range(4)}


FAILURES: dict[str, Callable[[Floats], Floats]] = {
    "at a hundredth of what is no share": lambda rates: rates / 100,
    "at some other share": lambda rates: rates / 400,
    "at a hundredth that does not vary": lambda rates: np.full_like(rates, 1.0),
    "at a thousandth that varies much more": lambda rates: (rates / 100) ** 40 / 10,
    "entirely": np.zeros_like,
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_node_that_stops_is_no_change_of_unit(tmp_path: Path, how: str) -> None:
    rates = history(5)
    rates[SINCE:, SLOW] = FAILURES[how](rates[SINCE:, SLOW])

    found = replay(tmp_path, "rate", rates, "--json")

    assert accused(found)[0] == ("n2", "stopped")
    assert {node for node, _ in accused(found)} == {"n2"}
    assert found["summary"]["other_unit"] == []


def test_nodes_without_peers_are_compared_with_themselves() -> None:
    rates = history(6)[:, 0].copy()
    rates[50:90] *= 1000
    time, source = 30.0 * np.arange(float(TICKS)), np.zeros(TICKS, np.int64)

    converted, (unit,) = in_one_unit(time, source, rates, np.zeros(1, np.int64), 30.0, False)

    assert (round(unit.factor), unit.rows, unit.since, unit.until) == (1000, 40, 1500.0, 2670.0)
    assert converted.max() < 200
    assert in_one_unit(time, source, converted, np.zeros(1, np.int64), 30.0, False)[1] == []


@pytest.mark.parametrize("blank", [65535, 2**32 - 1, 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF2, 140737488355328.0])
def test_numbers_that_stand_for_no_value_are_no_reports(tmp_path: Path, blank: float) -> None:
    seconds = 100 / history(7)
    seconds[100:130, FLAKY] = blank

    found = replay(tmp_path, "step_seconds", seconds, "--json")

    assert accused(found) == []
    assert found["summary"]["without_value"]["count"] == 30
