"""Nodes that fall behind their peers over days, too slowly for the detector, whose baseline follows them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingero_analyze.replay.drifts import MOST_BLOCKS, Drift, Drifts
from ingero_analyze.replay.numbering import CohortMembers
from ingero_testing.replays import shown_twice

Floats = np.ndarray[Any, np.dtype[np.float64]]

MINUTE = 60.0


def drifts(rates: Floats, tick_seconds: float = MINUTE, cohorts: int = 1) -> list[Drift]:
    """Those of a table of rates by tick and node."""
    members = CohortMembers()
    found = Drifts(tick_seconds, members)
    ticks, nodes = rates.shape
    cohort = np.arange(nodes) * cohorts // nodes
    for tick in range(ticks):
        there = np.isfinite(rates[tick])
        seen = members.tick(np.flatnonzero(there), cohort[there], rates[tick, there])
        found.note(tick * tick_seconds, seen)
    return found.found()


def fleet(seed: int, nodes: int = 12, ticks: int = 2400) -> Floats:
    """Nodes that differ by 3 %, with noise of 2 % and a load that rises and falls daily."""
    random = np.random.default_rng(seed)
    load = 1 + 0.4 * np.sin(np.arange(ticks) * 2 * np.pi / 1440)
    rates = load[:, None] * np.exp(random.normal(0, 0.02, (ticks, nodes)) + random.normal(0, 0.03, nodes))
    return np.asarray(rates)


def falling(rates: Floats, node: int, loss: float) -> Floats:
    """The rates with a node that loses so much between tick 600 and 1800."""
    rates[:, node] *= 1 - np.interp(np.arange(len(rates)), [600, 1800], [0, loss])
    return rates


@pytest.mark.parametrize("cohorts", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_a_node_that_loses_a_tenth_within_a_day_is_found_with_the_time(seed: int, cohorts: int) -> None:
    rates = fleet(seed)
    rates[:, 3] /= rates[:, 3].mean() / rates.mean()

    (drift,) = drifts(falling(rates, 3, 0.1), cohorts=cohorts)

    assert (drift.node, drift.cohort, drift.lost) == (3, 0, pytest.approx(0.1, abs=0.02))
    assert 600 * MINUTE <= drift.since < drift.until <= 1860 * MINUTE


@pytest.mark.parametrize("seed", range(5))
def test_healthy_nodes_do_not_drift(seed: int) -> None:
    random = np.random.default_rng(seed)
    joined = fleet(seed)
    joined[: random.integers(100, 1000), 5] = np.nan
    joined[1200:, :4] = np.nan
    phases = fleet(seed) * np.repeat(np.exp(random.normal(0, 0.03, (8, 12))), 300, axis=0)

    for rates in (fleet(seed), joined, phases, fleet(seed) ** 0, fleet(seed, nodes=5), fleet(seed, ticks=300)):
        assert drifts(rates) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_lasting_loss_within_a_few_hours_is_found(seed: int) -> None:
    rates = fleet(seed, ticks=600)
    rates[300:, 3] *= 0.93

    (drift,) = drifts(rates, tick_seconds=15)

    assert (drift.node, drift.lost) == (3, pytest.approx(0.07, abs=0.02))
    assert drift.since == pytest.approx(300 * 15, abs=31 * 15)


@pytest.mark.parametrize("seed", range(4))
def test_loads_that_wander_for_hours_make_no_drift_within_these(seed: int) -> None:
    random, load = np.random.default_rng(seed), np.zeros((500, 16))
    for tick in range(500):
        load[tick] = 0.995 * load[tick - 1] + random.normal(0, 0.05 if tick == 0 else 0.005, 16)

    assert drifts(np.exp(load), tick_seconds=15) == []


def test_what_all_nodes_lose_is_no_drift() -> None:
    rates = fleet(0) * np.interp(np.arange(2400), [600, 1800], [1, 0.8])[:, None]

    assert drifts(rates) == []


def test_blocks_are_bounded_and_become_longer() -> None:
    rates = falling(fleet(1), 3, 0.2)
    long = np.repeat(rates, 7, axis=0)

    (drift,) = drifts(long, tick_seconds=MINUTE * 60)

    assert len(long) // 30 > MOST_BLOCKS
    assert (drift.node, drift.lost) == (3, pytest.approx(0.2, abs=0.03))


def test_a_drift_is_told_in_the_text_and_in_json_and_nobody_is_accused(tmp_path: Path) -> None:
    rates = falling(fleet(2), 3, 0.1)
    file = tmp_path / "history.csv"
    lines = [f"{tick * 60},n{node},{rates[tick, node]:.4f}" for tick in range(0, 2400, 5) for node in range(12)]
    file.write_text("\n".join(["time,node,rate", *lines]))

    found, table = shown_twice(str(file))

    (drift,) = found["summary"]["drifts"]
    assert found["episodes"] == []
    assert (drift["node"], drift["severity"]) == ("n3", pytest.approx(0.1, abs=0.02))
    assert "n3 lost 10 % against its peers between" in table.stdout


def two_kinds(seed: int) -> Floats:
    """Five of twelve nodes do more than twice as much as the others."""
    rates = fleet(seed)
    rates[:, :5] *= 2.2
    return rates


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("node", [3, 9])
def test_a_node_of_either_kind_that_falls_behind_its_like_is_found(seed: int, node: int) -> None:
    rates = falling(two_kinds(seed), node, 0.15)

    (drift,) = drifts(rates)

    assert (drift.node, drift.lost) == (node, pytest.approx(0.15, abs=0.03))


@pytest.mark.parametrize("seed", range(3))
def test_nodes_of_another_kind_that_join_or_leave_make_no_drift(seed: int) -> None:
    joining, leaving, slower = (two_kinds(seed) for _ in range(3))
    joining[:900, :5] = joining[:900, 8] = np.nan
    leaving[1500:, 5:] = np.nan
    slower[:900, 4:] = np.nan

    for rates in (joining, leaving, slower, joining[:, ::-1]):
        assert drifts(rates) == []
