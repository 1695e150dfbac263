"""Restarts that cost few reports, or none: nodes that rise to their usual rate, and those that do not."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ingero_analyze.replay.warm_ups import warms_up
from ingero_testing.replays import replayed

LINE = [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.01]


@pytest.mark.parametrize(
    ("lost", "ticks"),
    [
        (LINE, 8),
        ([np.nan, *LINE], 9),
        ([0.9, 0.6, 0.4, 0.27, 0.18, 0.12, 0.08, 0.02], 7),
        (LINE[:6], None),
        ([0.8] * 8 + [0.0], None),
        ([0.8] * 5 + [0.5, 0.2, 0.0], None),
        ([0.2, 0.15, 0.1, 0.08, 0.07, 0.0], None),
        ([0.8, 0.4, 0.0], None),
        ([], None),
    ],
)
def test_a_node_warms_up_if_it_rises_from_a_large_loss_all_the_time(lost: list[float], ticks: int | None) -> None:
    assert warms_up(np.array(lost), 0.05) == ticks


def judged(folder: Path, rates: npt.NDArray[np.float64]) -> dict[str, Any]:
    """What is found in rows 10 s apart of nodes n0, n1, ...; without a number there is no row."""
    rows = [f"{10 * tick},n{node},{rates[tick, node]:.2f}" for tick, node in np.argwhere(np.isfinite(rates)).tolist()]
    (folder / "history.csv").write_text("\n".join(["time,node,rate", *rows]))
    return replayed(str(folder / "history.csv"))


def named(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(one["node"], round(one["start" if "start" in one else "since"] / 10)) for one in found]


@pytest.mark.parametrize("missing", [0, 2])
def test_a_node_that_warms_up_after_a_restart_of_a_few_ticks_is_said_and_not_accused(
    tmp_path: Path, missing: int
) -> None:
    rates = 900 * np.exp(np.random.default_rng(2).normal(0, 0.015, (300, 12)))
    rates[200 - missing : 200, 4] = np.nan
    rates[200:209, 4] *= np.exp(-np.array(LINE))

    found = judged(tmp_path, rates)

    assert (named(found["episodes"]), named(found["summary"]["came_up"])) == ([], [("n4", 200)])


@pytest.mark.parametrize("how", ["keeps its loss", "restarts again and again"])
def test_a_node_that_does_not_only_warm_up_once_is_accused(tmp_path: Path, how: str) -> None:
    rates = 900 * np.exp(np.random.default_rng(2).normal(0, 0.015, (400, 12)))
    if how == "keeps its loss":
        rates[200:209, 4] *= 0.6
    else:
        for start in range(200, 360, 20):
            rates[start : start + 9, 4] *= np.exp(-np.array(LINE))

    assert ("n4", 200) in named(judged(tmp_path, rates)["episodes"])
