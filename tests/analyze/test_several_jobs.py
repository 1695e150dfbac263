"""Recordings of several jobs, or runs of one, that are given together: each is judged alone."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.diagnose.several_jobs import FileContent, jobs_of
from ingero_fleet.cli import main

STEPS = 24

Times = Any
"""Seconds by step, rank and operation: forward, backward, all_reduce."""


def job(ranks: int, seconds: float, late: int | None = None) -> Times:
    random = np.random.default_rng(ranks)
    compute = random.normal(1, 0.01, (STEPS, ranks, 2)) * [seconds / 3, seconds / 1.5]
    if late is not None:
        compute[:, late] *= 1.3
    busy = compute.sum(axis=2)
    return np.concatenate((compute, (busy.max(axis=1, keepdims=True) + 0.02 - busy)[:, :, None]), axis=2)


def steps(times: Times, rank: int, file: Path, ranked: bool = True) -> None:
    with file.with_suffix(".csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow((*(("rank",) if ranked else ()), "step", "forward_s", "backward_s", "allreduce_s"))
        for step, cells in enumerate(times[:, rank].tolist()):
            rows.writerow((*((rank,) if ranked else ()), step, *cells))


def steps_without_ranks(times: Times, rank: int, file: Path) -> None:
    steps(times, rank, file, ranked=False)


def trace(times: Times, rank: int, file: Path) -> None:
    ends = times[:, rank].ravel().cumsum().reshape(-1, 3)
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": 1e6 * (end[0] - own[0]),
         "dur": 1e6 * own.sum()}
        for step, (end, own) in enumerate(zip(ends, times[:, rank], strict=True))
    ]  # fmt: skip
    members = {"Process Group Name": "0", "Process Group Ranks": str(list(range(times.shape[1])))}
    for end, own in zip(ends, times[:, rank], strict=True):
        for place, name in enumerate(("gemm_forward", "gemm_backward", "ncclDevKernel_AllReduce_Sum")):
            args = {"Collective name": "allreduce", "Group size": times.shape[1], **members} if place == 2 else {}
            events.append({"ph": "X", "cat": "kernel", "name": name, "ts": 1e6 * (end[place] - own[place]),
                           "dur": 1e6 * own[place], "args": args})  # fmt: skip
    tree = {"distributedInfo": {"rank": rank, "world_size": times.shape[1]}, "traceEvents": events}
    file.with_suffix(".json").write_text(json.dumps({"deviceProperties": [], **tree}))


def written(folder: Path, write: Callable[[Times, int, Path], None], flat: bool, **jobs: Times) -> None:
    for name, times in jobs.items():
        (folder / name).mkdir(exist_ok=True)
        for rank in range(times.shape[1]):
            write(times, rank, folder / f"{name}_rank{rank}" if flat else folder / name / f"rank{rank}")


def ask(folder: Path, *options: str) -> Any:
    done = CliRunner().invoke(main, ["diagnose", str(folder), "--quiet", *options])
    assert done.exit_code == 0, done.stderr
    return done


def rows_of(times: Times, job: str, first: int = 0, step: bool = True) -> list[tuple[Any, ...]]:
    return [
        (job, rank, *((first + number,) if step else ()), *cells)
        for number, cells_of_ranks in enumerate(times.tolist())
        for rank, cells in enumerate(cells_of_ranks)
    ]


def one_table(file: Path, column: str, rows: list[tuple[Any, ...]], step: bool = True) -> Path:
    with file.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow((column, "rank", *(("step",) if step else ()), "forward_s", "backward_s", "allreduce_s"))
        table.writerows(rows)
    return file


@pytest.mark.parametrize("column", ["job", "job_id", "run_id", "Experiment"])
@pytest.mark.parametrize("step", [True, False])
def test_jobs_that_a_column_tells_apart_are_judged_alone(tmp_path: Path, column: str, step: bool) -> None:
    first, second = rows_of(job(8, 0.1), "one", step=step), rows_of(job(6, 0.15, late=2), "two", step=step)
    mixed = [row for pair in zip(first, second, strict=False) for row in pair] + first[len(second) :]

    answer = json.loads(ask(one_table(tmp_path / "jobs.csv", column, mixed, step), "--json").stdout)

    assert (answer["kind"], answer["ranks"], answer["evidence"]["job"]) == ("node", [2], "two")
    assert answer["evidence"]["jobs"]["one"]["kind"] == "none"
    assert "recordings of 2 jobs" in answer["problems"]["first"][0]


def test_a_run_that_goes_on_under_another_name_is_one_job(tmp_path: Path) -> None:
    rows = rows_of(job(8, 0.1, late=3), "first") + rows_of(job(8, 0.1, late=3), "second", first=STEPS)

    answer = json.loads(ask(one_table(tmp_path / "runs.csv", "run_id", rows), "--json").stdout)

    assert (answer["ranks"], answer["evidence"]["steps"]) == ([3], 2 * STEPS)
    assert "jobs" not in answer["evidence"]


@pytest.mark.parametrize("write", [steps, steps_without_ranks, trace])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(("sizes"), [(8, 4), (4, 8), (6, 6)])
def test_the_late_rank_of_one_of_two_jobs_is_named_with_its_job(
    tmp_path: Path, write: Callable[[Times, int, Path], None], flat: bool, sizes: tuple[int, int]
) -> None:
    first, second = job(sizes[0], 0.1), job(sizes[1], 0.15, late=2)
    written(tmp_path, write, flat, one=first, two=second)
    done = ask(tmp_path, "--json")
    answer = json.loads(done.stdout)
    assert (answer["kind"], answer["ranks"]) == ("node", [2])
    assert answer["evidence"]["job"].startswith("two")
    assert [found["kind"] for found in answer["evidence"]["jobs"].values()] == ["none", "node"]
    assert "2 jobs, or runs of one; each is judged alone" in done.stderr
    assert f"({sizes[0]} ranks)" in done.stderr and f"({sizes[1]} ranks)" in done.stderr


def test_a_person_reads_of_which_job_a_rank_is(tmp_path: Path) -> None:
    written(tmp_path, steps, False, one=job(8, 0.1), two=job(4, 0.15, late=2))
    lines = ask(tmp_path, "--table").stdout
    assert "in two, rank 2 delays the job" in lines and "one: none" in lines


@pytest.mark.parametrize("write", [steps, trace])
def test_of_healthy_jobs_nobody_is_named(tmp_path: Path, write: Callable[[Times, int, Path], None]) -> None:
    written(tmp_path, write, False, one=job(4, 0.15), two=job(8, 0.1))
    answer = json.loads(ask(tmp_path, "--json").stdout)
    assert (answer["kind"], answer["ranks"]) == ("none", [])


def cells(ranks: range, steps: range) -> frozenset[tuple[str, int]]:
    return frozenset((str(rank), step) for rank in ranks for step in steps)


def test_parts_of_one_job_are_no_jobs() -> None:
    whole = range(8)
    for parts in (
        {f"rank{rank}.csv": FileContent(cells(range(rank, rank + 1), range(9))) for rank in whole},
        {f"{rank}/stdout.log": FileContent(cells(range(rank, rank + 1), range(9))) for rank in whole},
        {"node0.csv": FileContent(cells(range(4), range(9))), "node1.csv": FileContent(cells(range(4, 8), range(9)))},
        {"part0.csv": FileContent(cells(whole, range(9))), "part1.csv": FileContent(cells(whole, range(8, 17)))},
        {"a.csv": FileContent(cells(whole, range(9)), frozenset(("forward",))),
         "b.csv": FileContent(cells(whole, range(9)), frozenset(("all_reduce",)))},
        {"a.csv": FileContent(cells(whole, range(-1, 0)), span=(0, 5)),
         "b.csv": FileContent(cells(whole, range(-1, 0)), span=(4, 9))},
    ):  # fmt: skip
        assert jobs_of(parts) == {}, parts
    same = {"a.csv": FileContent(cells(whole, range(9))), "b.csv": FileContent(cells(range(4), range(9)))}
    assert jobs_of(same) == {"a.csv": ["a.csv"], "b.csv": ["b.csv"]}


def test_attempts_of_a_launcher_are_runs_of_the_ranks_that_folders_say(tmp_path: Path) -> None:
    for attempt, late in enumerate((None, 3)):
        times = job(6, 0.1, late)
        for rank in range(6):
            folder = tmp_path / "run" / f"attempt_{attempt}" / str(rank)
            folder.mkdir(parents=True)
            lines = [
                "step={} forward_s={} backward_s={} allreduce_s={}\n".format(step, *cells)
                for step, cells in enumerate(times[:, rank].tolist())
            ]
            (folder / "stdout.log").write_text("".join(lines))
            (folder / "stderr.log").write_text("WARNING: nothing\n")
    answer = json.loads(ask(tmp_path, "--json").stdout)
    assert (answer["kind"], answer["ranks"], answer["evidence"]["job"]) == ("node", [3], "attempt_1")


def test_two_jobs_in_one_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    with file.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(("rank", "step", "forward_s", "backward_s", "allreduce_s"))
        for times in (job(8, 0.1), job(4, 0.15, late=2)):
            for step, rank in np.ndindex(*times.shape[:2]):
                rows.writerow((rank, step, *times[step, rank].tolist()))
    done = CliRunner().invoke(main, ["diagnose", str(file), "--quiet"])
    assert done.exit_code == 2
    assert "ranks 0, 1, 2, 3 have the rows of two processes each" in done.stderr
    assert "recordings of two jobs, or runs of one; give each by itself" in done.stderr
