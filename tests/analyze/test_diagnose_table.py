"""What a person reads: no raw values, and what to do next."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_fleet.cli import main
from ingero_testing.hang_jobs import hang_jobs

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, layered, pipeline, ring

RAW = re.compile(r"None|\{|\}|\[\]|\d\.\d{7}")
"""What only a program reads."""


def table(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["diagnose", "--table", "--quiet", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.stderr
    return done.stdout


def written(folder: Path, rows: Table) -> str:
    file = folder / "timeline.csv"
    file.write_text(rows.csv())
    return str(file)


@pytest.mark.parametrize(
    ("rows", "step"),
    [
        (ring(np.random.default_rng(1), 8, culprit=3), "next: compare clocks and throttling"),
        (layered(np.random.default_rng(1), 1, 8, idle=0.04, culprit=3), "next: look at what its host does"),
        (layered(np.random.default_rng(1), 1, 8, culprit=5, stall=(4, 9, 14, 20, 26, 33)), "next: record more steps"),
        (pipeline(np.random.default_rng(1)), "next: compare the GPUs of these ranks"),
        (pipeline(np.random.default_rng(1), heavy=0.0, long_share=0.3), "next: balance the lengths"),
        (ring(np.random.default_rng(1), 1, late=0.0), "next: give the files of all ranks"),
        (ring(np.random.default_rng(1), 8, late=0.0), ""),
    ],
    ids=["slow", "idle", "stalls", "stage", "sequences", "one rank", "nobody"],
)
def test_a_verdict_on_a_timeline_is_read_in_words_with_the_next_step(tmp_path: Path, rows: Table, step: str) -> None:
    text = table(written(tmp_path, rows))

    assert not RAW.search(text)
    assert step in text
    assert ("next: " in text) == bool(step)


def test_what_the_first_rank_does_in_every_nth_step_is_told_next_to_the_verdict(tmp_path: Path) -> None:
    rows = layered(np.random.default_rng(1), 1, 8, culprit=0, stall=tuple(range(4, 40, 5)))
    headline, beside, *_ = table(written(tmp_path, rows)).splitlines()

    assert headline == "no rank delays the job"
    assert beside.startswith("besides, once in 5 steps rank 0 does more, and all wait (0.0")


def test_verdicts_on_hangs_are_read_in_words_with_the_next_step(tmp_path: Path) -> None:
    for job in hang_jobs(6, seed=3):
        folder = tmp_path / str(job.number)
        folder.mkdir()
        for rank, dump in job.dumps.items():
            (folder / f"rank_{rank}").write_text(json.dumps(dump))

        text = table("--flight-recorder", str(folder))

        assert not RAW.search(text.replace("[]", "")), text
        assert ("next: " in text) == bool(job.culprits)


@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_milliseconds_taken_as_seconds_get_a_note(tmp_path: Path, factor: float) -> None:
    columns = ring(np.random.default_rng(1), 8, culprit=3).arrays()
    for name in ("start", "duration"):
        columns[name] = columns[name].astype(float) * factor

    text = table(written(tmp_path, Table({name: [column] for name, column in columns.items()})))

    assert ("if these are milliseconds, say --unit ms" in text) == (factor > 1)
    assert text.startswith("rank 3 delays the job")
