"""Recordings in which some ranks have their times in another unit than others."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.diagnose.mixed_units import other_units
from ingero_fleet.cli import main

RANKS, STEPS, LATE = 8, 24, 5
NAMES = ("forward_time", "backward_time", "allreduce_time")


def milliseconds(late: int | None) -> Any:
    """By step, rank and operation; the late rank computes 30 % longer."""
    random = np.random.default_rng(2)
    compute = random.normal(1, 0.01, (STEPS, RANKS, 2)) * [100, 200]
    if late is not None:
        compute[:, late] *= 1.3
    busy = compute.sum(axis=2)
    waits = busy.max(axis=1, keepdims=True) + 20 - busy
    return np.concatenate((compute, waits[:, :, None]), axis=2)


def ask(file: Path, times: Any) -> dict[str, Any]:
    with file.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(("rank", "step", *NAMES))
        for step, rank in np.ndindex(STEPS, RANKS):
            rows.writerow((rank, step, *times[step, rank].tolist()))
    return answer_on(file)


def answer_on(file: Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["diagnose", str(file), "--quiet"])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("late", [None, LATE])
@pytest.mark.parametrize("others", [[2], [LATE], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize("factor", [1e-3, 1e3, 1e-6])
def test_ranks_that_export_another_unit_are_told_and_not_named(
    tmp_path: Path, late: int | None, others: list[int], factor: float
) -> None:
    times = milliseconds(late)
    times[:, others] *= factor
    answer = ask(tmp_path / "steps.csv", times)
    assert (answer["kind"], answer["ranks"]) == (("node", [late]) if late is not None else ("none", []))
    assert "in another unit" in answer["evidence"]["note"]


@pytest.mark.parametrize("late", [None, LATE])
def test_the_unit_of_a_rank_may_change_within_a_recording(tmp_path: Path, late: int | None) -> None:
    times = milliseconds(late)
    times[STEPS // 2 :, 2] /= 1000
    answer = ask(tmp_path / "steps.csv", times)
    assert (answer["kind"], answer["ranks"]) == (("node", [late]) if late is not None else ("none", []))
    assert "times of rank 2 were multiplied by 1000" in answer["evidence"]["note"]


@pytest.mark.parametrize("with_starts", [True, False])
def test_a_timeline_of_several_units_is_read_in_one(tmp_path: Path, with_starts: bool) -> None:
    times, file = milliseconds(LATE), tmp_path / "timeline.csv"
    times[:, 2] /= 1000
    ends = times.transpose(1, 0, 2).reshape(RANKS, -1).cumsum(axis=1).reshape(RANKS, STEPS, 3).transpose(1, 0, 2)
    with file.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(("rank", "step", "op", "duration", *(("start",) if with_starts else ())))
        for step, rank, op in np.ndindex(STEPS, RANKS, 3):
            lasts, end = times[step, rank, op], ends[step, rank, op]
            rows.writerow((rank, step, NAMES[op][:-5], lasts, *((end - lasts,) if with_starts else ())))
    answer = answer_on(file)
    assert (answer["kind"], answer["ranks"]) == ("node", [LATE])
    assert "times of rank 2 were multiplied by 1000" in answer["evidence"]["note"]


def test_a_late_rank_that_waits_a_thousandth_of_what_others_do_is_of_their_unit() -> None:
    times = milliseconds(LATE)
    times[:, :, 2] -= 19.99
    step, rank, op = (places.ravel() for places in np.indices(times.shape))
    factors = other_units(rank, step, times.ravel(), op < 2)
    assert (factors == 1).all()
    alone = op == 2
    assert (other_units(rank[alone], step[alone], times.ravel()[alone], np.zeros(alone.sum(), bool)) == 1).all()


def test_a_stall_a_thousand_times_as_long_as_a_step_is_no_other_unit() -> None:
    times = milliseconds(None)
    times[7, 3] *= 1000
    step, rank, op = (places.ravel() for places in np.indices(times.shape))
    assert (other_units(rank, step, times.ravel(), op < 2) == 1).all()
