"""Timelines with rows that are lost, there twice, or of a rank that two processes claim."""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.diagnose.counted_steps import counted_steps
from ingero_analyze.diagnose.sources import Problems
from ingero_analyze.diagnose.timeline_reader import read_timelines
from ingero_fleet.cli import main

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, grid, interleaved, pipeline, ring

Columns = dict[str, np.ndarray[Any, Any]]


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def joined(*parts: Columns) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def diagnose(folder: Path, *tables: Columns, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    files = []
    for number, columns in enumerate(tables):
        files.append(folder / f"timeline-{number}.csv")
        files[-1].write_text(
            Table({name: [column] for name, column in columns.items() if name not in leave_out}).csv()
        )
    done = CliRunner().invoke(main, ["diagnose", *map(str, files), "--quiet"])
    assert done.exit_code == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert len(done.stderr.splitlines()) == len(answer["problems"]["first"])
    return answer


def verdict(answer: dict[str, Any]) -> tuple[str, list[int]]:
    return answer["kind"], answer["ranks"]


def with_text(columns: Columns, name: str, rows: Any, text: str) -> Columns:
    column = columns[name].astype("U32")
    column[rows] = text
    return {**columns, name: column}


def of_rank(columns: Columns, rank: int) -> Any:
    return columns["rank"].astype(int) == rank


JOBS: dict[str, Callable[[], Table]] = {
    "ring": lambda: ring(rng(), 8, late=0.0),
    "tensor and data": lambda: grid(rng(4), 4, 4, late=0.0, culprit=1),
    "pipeline": lambda: interleaved(rng(), parts=4, steps=16, culprit=0, late=0.0),
}
UNSAID = [(), ("step",), ("seq",), ("step", "seq")]


@cache
def columns_of(job: str) -> Columns:
    return JOBS[job]().arrays()


@pytest.mark.parametrize("leave_out", UNSAID)
@pytest.mark.parametrize("job", JOBS)
def test_a_rank_that_is_in_the_file_twice_counts_once(tmp_path: Path, job: str, leave_out: tuple[str, ...]) -> None:
    columns = columns_of(job)
    again = {name: column[of_rank(columns, 2)] for name, column in columns.items()}
    rows = len(again["rank"])

    once, twice = (diagnose(tmp_path, table, leave_out=leave_out) for table in (columns, joined(columns, again)))

    assert once["problems"] == {"count": 0, "first": []}
    assert twice["problems"]["count"] == rows
    assert f"row {len(columns['rank']) + 2}: the same row as row" in twice["problems"]["first"][0]
    assert {**twice, "problems": {}} == {**once, "problems": {}}


def test_collectives_of_a_restarted_job_are_told_apart_although_their_numbers_are_the_same(tmp_path: Path) -> None:
    first = columns_of("tensor and data")
    steps, begin = first["step"].astype(int), first["start"].astype(float)
    again = {**first, "step": (steps + steps.max() + 1).astype(str), "start": (begin + 1000).astype(str)}
    file = tmp_path / "timeline.csv"
    file.write_text(Table({name: [column] for name, column in joined(first, again).items()}).csv())

    line = read_timelines([str(file)], Problems(), lambda _: None, {}, None)[""].line

    chosen = line.instance[line.collective]
    assert (np.bincount(chosen)[np.unique(chosen)] == 4).all()


def test_a_file_given_twice_counts_once(tmp_path: Path) -> None:
    columns = ring(rng(), 8, culprit=3).arrays()

    answer = diagnose(tmp_path, columns, columns)

    assert verdict(answer) == ("node", [3])
    (problem,) = answer["problems"]["first"]
    assert "timeline-1.csv, row 2: the same row as " in problem and "timeline-0.csv, row 2; " in problem


@pytest.mark.parametrize("shift", [0.013, 7.0, 1e6])
@pytest.mark.parametrize("leave_out", UNSAID)
@pytest.mark.parametrize("job", JOBS)
def test_a_rank_that_two_processes_claim_is_not_judged(
    tmp_path: Path, job: str, leave_out: tuple[str, ...], shift: float
) -> None:
    columns = columns_of(job)
    other = {name: column[of_rank(columns, 2)] for name, column in columns.items()}
    other["start"] = other["start"].astype(float) + shift
    other["duration"] = other["duration"].astype(float) * 1.03

    answer = diagnose(tmp_path, joined(columns, other), leave_out=leave_out)

    assert verdict(answer) == ("none", [])
    assert "rank 2 has the rows of two processes" in answer["problems"]["first"][0]
    assert answer["problems"]["count"] == 2 * len(other["rank"])


def test_the_late_rank_is_named_beside_one_that_two_processes_claim(tmp_path: Path) -> None:
    columns = ring(rng(), 8, culprit=3).arrays()
    other = {name: column[of_rank(columns, 2)] for name, column in columns.items()}
    other["start"] = other["start"].astype(float) + 0.05

    assert verdict(diagnose(tmp_path, joined(columns, other))) == ("node", [3])


@pytest.mark.parametrize("leave_out", UNSAID)
def test_stages_with_more_rows_than_others_are_claimed_by_nobody_else(
    tmp_path: Path, leave_out: tuple[str, ...]
) -> None:
    for table in (pipeline(rng()), interleaved(rng(), culprit=5)):
        assert diagnose(tmp_path, table.arrays(), leave_out=leave_out)["problems"]["count"] == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [("duration", "-0.5"), ("duration", "n/a"), ("start", ""), ("rank", ""), ("op", ""), ("kind", "idle")],
)
@pytest.mark.parametrize("leave_out", UNSAID)
@pytest.mark.parametrize("job", JOBS)
def test_one_row_that_cannot_be_used_accuses_nobody(
    tmp_path: Path, job: str, leave_out: tuple[str, ...], name: str, text: str
) -> None:
    columns = columns_of(job)
    for kind in np.unique(columns["kind"]).tolist():
        rows = np.flatnonzero(columns["kind"] == kind)
        row = int(rows[len(rows) // 3])
        answer = diagnose(tmp_path, with_text(columns, name, row, text), leave_out=leave_out)

        assert verdict(answer) == ("none", [])
        assert answer["problems"]["count"] >= 1
        assert f"row {row + 2}, column {name}: " in answer["problems"]["first"][0]


@pytest.mark.parametrize("leave_out", UNSAID)
@pytest.mark.parametrize("name", ["duration", "start"])
def test_the_late_rank_is_named_although_rows_are_lost(tmp_path: Path, leave_out: tuple[str, ...], name: str) -> None:
    columns = ring(rng(), 8, culprit=3).arrays()
    rows = rng(3).choice(len(columns["rank"]), 5, replace=False)

    answer = diagnose(tmp_path, with_text(columns, name, rows, "nan"), leave_out=leave_out)

    assert verdict(answer) == ("node", [3])
    assert answer["problems"]["count"] == 5


def test_the_rank_whose_rows_are_lost_leaves_its_lateness_to_nobody(tmp_path: Path) -> None:
    columns = grid(rng(4), 4, 4, late=0.3, culprit=1).arrays()
    mine = np.flatnonzero(of_rank(columns, 1))
    lost = mine[rng(5).random(len(mine)) < 0.3]

    assert diagnose(tmp_path, with_text(columns, "duration", lost, ""))["ranks"] in ([1], [])


def test_rows_with_too_few_values_and_a_cut_last_one_are_counted(tmp_path: Path) -> None:
    columns = ring(rng(), 8, culprit=3).arrays()
    lines = Table({name: [column] for name, column in columns.items()}).csv().splitlines()
    lines[40] = lines[40].rpartition(",")[0]
    lines[50] = lines[50].replace("compute", "idle").replace("collective", "idle")
    file = tmp_path / "timeline.csv"
    file.write_text("\n".join(lines)[:-12])

    done = CliRunner().invoke(main, ["diagnose", str(file), "--quiet"])

    answer = json.loads(done.stdout)
    assert verdict(answer) == ("node", [3])
    assert answer["problems"]["count"] == 3
    assert f"{file}, row 51, column kind: 'idle'" in done.stderr
    assert f"{file}, row 41: " in done.stderr


def test_steps_are_counted_whole_where_computing_divides_the_run_that_ends_them() -> None:
    step = ["compute"] * 3 + ["all_reduce", "compute"] * 3 + ["compute"]
    names = step * 12
    op = np.array([name == "all_reduce" for name in names], np.int64)
    start = np.arange(len(names), dtype=float)
    rank = np.repeat([0, 1], len(names))

    found = counted_steps(rank, np.tile(op, 2), np.full(2 * len(names), -1), np.tile(start, 2), np.tile(op == 1, 2))

    # What follows the last exchange of a step cannot be told from the beginning of the next one.
    known = np.tile(np.repeat(np.arange(12), len(step)), 2)
    later = np.tile(np.isin(np.arange(len(names)) % len(step), (8, 9)), 2)
    assert (found[~later] == known[~later]).all() and (found[later] == known[later] + 1).all()


def without_steps(times: int, meetings: int) -> Any:
    """Steps of three stages without numbers: the last one computes forward and backward in one row; they exchange,
    and meet in an operation of all, only so often."""
    compute, receive, send, meet = range(4)
    calls = {
        0: (compute, send, receive, compute),
        1: (receive, compute, send, receive, compute, send),
        2: (receive, compute, send),
    }
    rows: list[tuple[int, int, int, float]] = []
    for rank, own in calls.items():
        for time in range(times):
            for place, op in enumerate(own):
                pair = rank if (op, place) in ((send, 1), (send, 2), (receive, 3)) and rank < 2 else rank - 1
                rows.append((rank, op, max(pair, 0) if op else -1, time + place / 10))
            if (time + 1) % (times // meetings) == 0:
                rows.append((rank, meet, 2, time + 0.9))
    rank_of, op_of, group, start = (np.array(column) for column in zip(*rows, strict=True))
    return counted_steps(rank_of, op_of, group, start.astype(float), op_of > 0)


def test_microbatches_of_a_pipeline_are_no_steps_where_ranks_compute_in_rows_that_do_not_compare() -> None:
    assert without_steps(40, 5).max() == 4
    assert not without_steps(40, 2).any()


def test_an_evaluation_in_a_rhythm_ends_no_steps(tmp_path: Path) -> None:
    random, lines, start = np.random.default_rng(3), ["rank,op,kind,start,duration"], 0.0
    for step in range(15):
        compute = random.normal(0.5, 0.005, 8)
        compute[5] += 0.1
        passes = [("forward", compute * 0.4), ("backward", compute * 0.6)]
        if step % 5 == 4:
            passes.append(("eval", random.normal(1.0, 0.01, 8)))
        now = np.full(8, start)
        for op, lasts in passes:
            lines += [f"{rank},{op},compute,{now[rank]:.6f},{lasts[rank]:.6f}" for rank in range(8)]
            now = now + lasts
            if op != "forward":
                start = now.max() + 0.05
                lines += [
                    f"{rank},all_reduce,collective,{now[rank]:.6f},{start - now[rank]:.6f}" for rank in range(8)
                ]
                now = np.full(8, start)
    file = tmp_path / "timeline.csv"
    file.write_text("\n".join(lines) + "\n")

    answer = json.loads(CliRunner().invoke(main, ["diagnose", str(file), "--quiet"]).stdout)

    assert (verdict(answer), answer["evidence"]["steps"]) == (("node", [5]), 15)
