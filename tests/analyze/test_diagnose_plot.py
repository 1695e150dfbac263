"""The picture of a timeline."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ingero_analyze.diagnose.plot import excesses, in_columns
from ingero_fleet.cli import main

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, as_timeline, interleaved, layered, ring

CULPRIT = 5


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["diagnose", "--quiet", *map(str, arguments)])


def written(folder: Path, table: Table) -> Path:
    file = folder / "timeline.csv"
    file.write_text(table.csv())
    return file


def test_a_rank_that_computes_longer_stands_out_from_when_it_does() -> None:
    line = as_timeline(interleaved(np.random.default_rng(1), culprit=CULPRIT, late=0.1, since=15))

    computed, _ = excesses(line)

    assert computed.shape == (line.ranks, line.steps)
    usual = np.abs(np.delete(computed, CULPRIT, axis=0)).max()
    assert computed[CULPRIT, 15:].min() > usual > np.abs(computed[CULPRIT, :15]).max() / 2


def test_a_rank_for_which_others_wait_stands_out_in_their_waits_alone() -> None:
    line = as_timeline(layered(np.random.default_rng(1), tensor=4, data=4, culprit=CULPRIT, idle=0.04))

    computed, waited_for = excesses(line)

    assert waited_for.mean(axis=1).argmax() == CULPRIT
    assert waited_for[CULPRIT].mean() > 4 * np.abs(np.delete(waited_for.mean(axis=1), CULPRIT)).max()
    assert abs(computed[CULPRIT].mean()) < 1


def test_a_longer_stage_stands_out_among_all_ranks_and_not_within_itself() -> None:
    line = as_timeline(interleaved(np.random.default_rng(1), stages=4, replicas=2, heavy=0.4))

    within, among_all = (excesses(line, by_stage)[0].mean(axis=1) for by_stage in (True, False))

    assert np.abs(within).max() < 1
    assert among_all[-2:].min() > 5 > np.abs(among_all[:-2]).max()


@pytest.mark.parametrize(("steps", "columns"), [(1, 1), (400, 400), (401, 201), (5000, 385)])
def test_many_steps_become_means_of_neighbours(steps: int, columns: int) -> None:
    matrix = np.arange(2 * steps, dtype=float).reshape(2, steps)
    matrix[1, steps // 2 :] = np.nan

    found = in_columns(matrix)

    assert found.shape == (2, columns)
    assert found[0, 0] == matrix[0, : -(-steps // 400)].mean()
    assert np.isnan(found[1, -1])


def test_a_picture_is_written_with_the_verdict_and_the_named_rank(tmp_path: Path) -> None:
    file = written(tmp_path, ring(np.random.default_rng(1), 8, culprit=CULPRIT))

    done = run("--json", "--plot", tmp_path / "job.svg", file)

    assert (done.exit_code, done.stderr) == (0, "")
    comments = re.findall("<!-- (.*?) -->", (tmp_path / "job.svg").read_text())
    assert f"rank {CULPRIT} delays the job" in comments
    assert sum("% of a step" in text for text in comments) == 2


def test_what_hangs_has_no_picture_but_a_verdict(tmp_path: Path) -> None:
    done = run("--json", "--plot", tmp_path / "hang.png", Path(__file__).parent / "hang_in_nccl")

    assert (done.exit_code, '"flight_recorder"' in done.stdout, "what hangs has none" in done.stderr) == (
        1,
        True,
        True,
    )


def test_a_picture_of_very_many_ranks_with_long_names_is_drawn(tmp_path: Path) -> None:
    columns = ring(np.random.default_rng(1), 300, steps=10).arrays()
    columns["rank"] = np.char.add("a$very_long_{name}-", columns["rank"].astype(str))

    done = run("--plot", tmp_path / "job.png", written(tmp_path, Table({name: [c] for name, c in columns.items()})))

    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "job.png").read_bytes().startswith(b"\x89PNG")
