"""Nodes that report at other intervals than most, rows at the end of long steps, and exporters that hang."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.replay.recorded_history import NotRegular, RecordedHistory
from ingero_analyze.replay.report_intervals import interval_for_most, silence_by_chance, slow_steps
from ingero_analyze.replay.stuck_values import filled_values, stuck_values
from ingero_fleet.cli import main

START = 1_767_225_600
"""2026-01-01, seconds."""

Row = tuple[float, str, float]
NOBODY = np.zeros(8, np.int64)
"""By source the number of the only cohort."""


def judged(folder: Path, measure: str, rows: Iterable[Row]) -> dict[str, Any]:
    lines = [f"{time:.3f},{node},{value:.6g}\n" for time, node, value in sorted(rows)]
    (folder / "history.csv").write_text(f"time,node,{measure}\n" + "".join(lines))
    done = CliRunner().invoke(main, ["replay", str(folder / "history.csv"), "--json"])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def accused(found: dict[str, Any]) -> set[str]:
    return {episode["node"] for episode in found["episodes"]}


def steps(seed: int, factor: float, measure: str, since: float = 3000.0) -> Iterable[Row]:
    """Rows at the end of each node's own steps of 12 s, which take longer at n3 by a factor after some time."""
    random = np.random.default_rng(seed)
    for node in range(8):
        time = START + 12 * random.random()
        while time < START + 6000:
            seconds = 12 * float(np.exp(0.03 * random.normal()))
            seconds *= factor if node == 3 and time >= START + since else 1.0
            time += seconds
            yield time, f"n{node}", seconds if measure == "step_time" else 4096 / seconds


@pytest.mark.parametrize(
    ("measure", "factor", "seed"), [("step_time", 3.0, 0), ("tokens_per_second", 6.0, 1), ("step_time", 25.0, 2)]
)
def test_a_node_whose_rows_are_rare_because_its_steps_are_long_is_named(
    tmp_path: Path, measure: str, factor: float, seed: int
) -> None:
    found = judged(tmp_path, measure, steps(seed, factor, measure))

    (episode,) = found["episodes"]
    assert episode["node"] == "n3"
    assert episode["start"] == pytest.approx(START + 3000, abs=60)
    assert episode["severity"] == pytest.approx(1 - 1 / factor, abs=0.1)


@pytest.mark.parametrize("seed", range(1))
def test_a_node_whose_steps_are_long_from_the_first_row_is_named(tmp_path: Path, seed: int) -> None:
    assert accused(judged(tmp_path, "step_time", steps(seed, 6.0, "step_time", since=0))) == {"n3"}


def test_a_replica_that_happens_to_come_back_with_a_rate_that_fits_ends_no_long_step() -> None:
    """Of 8 absences of 12 ticks, one ends with a twelfth of the usual rate, and the others with half of it."""
    tick, source = np.tile(np.arange(100.0), 8), np.repeat(np.arange(8), 100)
    time, rate = tick + np.where(tick >= 50, 12.0, 0.0), np.ones(800)
    back = np.flatnonzero(tick == 50)
    rate[back] = [1 / 12, *[0.5] * 7]

    assert not slow_steps(time, source, rate, NOBODY).any()
    rate[back] = 1 / 12
    assert np.flatnonzero(slow_steps(time, source, rate, NOBODY)).tolist() == back.tolist()


def test_rows_after_an_outage_are_no_long_steps() -> None:
    time = np.concatenate((np.arange(0, 100, 10.0), np.arange(200, 300, 10.0)))
    rate = np.ones(20)
    assert not slow_steps(time, np.zeros(20, np.int64), rate, NOBODY).any()


def scraped(seed: int, intervals: dict[int, Iterable[tuple[float, float, float]]], loss: float) -> Iterable[Row]:
    """Rates at intervals: by node from, until, seconds. n3 loses a share after three hours."""
    random = np.random.default_rng(seed)
    for node, parts in intervals.items():
        for since, until, every in parts:
            for time in np.arange(since + every * random.random(), until, every):
                slow = node == 3 and time >= 10_800
                yield START + float(time), f"n{node}", 100 * np.exp(0.03 * random.normal()) * (1 - loss * slow)


CHANGED = dict.fromkeys(range(8), ((0.0, 5000.0, 15.0), (5000.0, 21_600.0, 60.0)))
MIXED = {node: ((0.0, 21_600.0, 60.0 if node % 4 == 3 else 10.0),) for node in range(8)}


@pytest.mark.parametrize("intervals", [CHANGED, MIXED], ids=["changed", "mixed"])
def test_a_tick_fits_intervals_that_change_or_differ(
    tmp_path: Path, intervals: dict[int, Iterable[tuple[float, float, float]]]
) -> None:
    found = judged(tmp_path, "rate", scraped(0, intervals, 0.2))

    assert accused(found) == {"n3"}
    assert found["summary"]["parameters"]["tick_seconds"] == 60
    assert accused(judged(tmp_path, "rate", scraped(0, intervals, 0.0))) == set()


def test_outages_and_a_single_slow_reporter_leave_the_tick_as_it_is() -> None:
    random = np.random.default_rng(0)
    time, source = [], []
    for number in range(20):
        there = np.arange(0, 20_000, 600.0 if number == 7 else 10.0)
        outage = random.uniform(0, 10_000)
        there = there[(there < outage) | (there > outage + 5000)]
        time.append(there)
        source.append(np.full(len(there), number))
    assert interval_for_most(np.concatenate(time), np.concatenate(source), 10.0) == 10.0


def test_a_loss_is_dated_where_half_of_the_rows_are_missing_at_random(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    rates = 1000 * np.exp(random.normal(0, 0.02, (300, 8)))
    rates[180:, 3] *= 0.75
    rates[random.random(rates.shape) < 0.5] = np.nan
    times, nodes = np.nonzero(np.isfinite(rates))
    rows = [(START + 10.0 * tick, f"n{node}", rates[tick, node]) for tick, node in zip(times, nodes, strict=True)]

    found = judged(tmp_path, "rate", rows)

    (episode,) = found["episodes"]
    assert episode["node"] == "n3"
    assert episode["start"] == pytest.approx(START + 1800, abs=40)
    assert found["summary"]["parameters"]["silent_ticks"] in range(8, 13)
    assert any("missing at random" in note for note in found["summary"]["notes"])


def test_outages_and_rows_of_every_second_tick_are_not_missing_at_random() -> None:
    second = np.arange(0.0, 2000.0, 10)
    outages = np.concatenate([np.arange(start, start + 200.0, 5) for start in range(0, 2000, 250)])
    time, source = np.concatenate((second, outages)), np.repeat([0, 1], [len(second), len(outages)])

    assert silence_by_chance(second, np.zeros(len(second), np.int64), 5.0) == 0
    assert silence_by_chance(outages, np.zeros(len(outages), np.int64), 5.0) <= 3
    assert interval_for_most(time, source, 5.0) == 5.0


def table(seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Rates of eight nodes in 700 ticks of a job that does half as much in each second block of 100 ticks."""
    random = np.random.default_rng(seed)
    phase = np.where(np.arange(700) // 100 % 2, 0.5, 1.0)
    return np.asarray(100 * phase[:, None] * np.exp(random.normal(0, 0.03, (700, 8))))


def rows_of(rates: np.ndarray[Any, np.dtype[np.float64]]) -> list[Row]:
    return [
        (START + 30.0 * tick, f"n{node}", float(rates[tick, node])) for tick in range(len(rates)) for node in range(8)
    ]


@pytest.mark.parametrize(("since", "seed"), [(190, 0), (225, 1), (275, 2)])
def test_an_exporter_that_hangs_accuses_nobody(tmp_path: Path, since: int, seed: int) -> None:
    rates = table(seed)
    rates[since:550, 5] = rates[since, 5]

    found = judged(tmp_path, "rate", rows_of(rates))

    assert accused(found) == set()
    (stuck,) = found["summary"]["stuck"]
    assert (stuck["node"], stuck["rows"], stuck["since"]) == ("n5", 550 - since, START + 30 * since)


def test_values_that_are_stuck_while_all_nodes_move_count_as_no_reports() -> None:
    moving = np.random.default_rng(4).normal(100, 0.5, (8, 400))
    moving[:, 190:] += 20
    moving[5, 200:240] = moving[5, 200]
    time, source = np.tile(np.arange(400.0), 8), np.repeat(np.arange(8), 400)

    (stuck,) = stuck_values(time, source, moving.ravel(), NOBODY)[1]

    assert (stuck.source, stuck.rows, stuck.since) == (5, 40, 200.0)


def test_a_history_is_read_as_a_whole_as_soon_as_it_is_seen_to_be_irregular(tmp_path: Path) -> None:
    rates, file = table(0), tmp_path / "history.csv"
    rates[100:, 5] = rates[100, 5]
    lines = [f"{time:.0f},{node},{rate:.6g}\n" for time, node, rate in rows_of(rates)]
    file.write_text("time,node,rate\n" + "".join(lines))
    judged_before = 0

    with pytest.raises(NotRegular):
        for _ in RecordedHistory([str(file)], 30.0).ticks():
            judged_before += 1

    assert judged_before < 150


@pytest.mark.parametrize("seed", range(2))
def test_a_clock_that_is_held_at_a_lower_value_is_named(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    clocks = 1980 - 15 * np.round(random.exponential(1.5, (500, 8)))
    clocks[250:, 5] = 1410

    assert accused(judged(tmp_path, "rate", rows_of(clocks))) == {"n5"}


@pytest.mark.parametrize("seed", range(5))
def test_values_that_are_held_between_scrapes_at_a_bound_or_by_a_stopped_node_are_not_stuck(seed: int) -> None:
    random = np.random.default_rng(seed)
    held = np.repeat(random.normal(100, 3, (8, 400)), 6, axis=1)
    bound = np.minimum(100, np.round(random.normal(101, 1.5, (8, 2400))))
    stopped = random.normal(100, 3, (8, 2400))
    stopped[3, 900:] = 0.1
    stopped[3, 1000::100] = 0.0  # what little it does stops as well when the others write a checkpoint
    for values in (held, bound, stopped):
        time, source = np.tile(np.arange(2400.0), 8), np.repeat(np.arange(8), 2400)
        assert stuck_values(time, source, values.ravel(), NOBODY)[1] == []


def test_values_that_are_filled_in_while_all_nodes_move_are_no_reports() -> None:
    random = np.random.default_rng(8)
    load = np.cumsum(random.normal(0, 0.02, 400))
    values = 1000 * np.exp(load[:, None] + random.normal(0, 0.01, (400, 4)))
    whole = np.rint(values / 40)
    for tick in range(40, 400, 20):
        values[tick + 1 : tick + 5, 2] = values[tick, 2]
    values[200:210, 3] = 500
    source = np.repeat(np.arange(4), 400)

    filled = filled_values(source, values.T.ravel()).reshape(4, 400)

    assert np.flatnonzero(filled.any(axis=1)).tolist() == [2]
    assert 60 <= np.count_nonzero(filled) <= 72
    assert not filled_values(source, whole.T.ravel()).any()


def test_a_node_whose_missing_values_are_filled_in_is_judged_by_the_others(tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    load = 0.15 * np.sin(np.arange(600) / 12)
    values = 1000 * np.exp(load[:, None] + random.normal(0, 0.015, (600, 8)))
    for node in (2, 5):
        for tick in range(40, 590, 23):
            values[tick + 1 : tick + 8, node] = values[tick, node]

    def rows() -> Iterable[Row]:
        return [(START + 10.0 * tick, f"n{node}", value) for (tick, node), value in np.ndenumerate(values)]

    assert accused(judged(tmp_path, "rate", rows())) == set()
    values[400:, 5] *= 0.75
    assert accused(judged(tmp_path, "rate", rows())) == {"n5"}
