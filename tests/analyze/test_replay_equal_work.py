"""Histories of times beside the work that they were needed for, such as tokens or lengths of sequences."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.replay.equal_work import MOST_EXAMPLES, WorkExamples
from ingero_detect.grouped import Floats
from ingero_fleet.cli import main

FOLLOW = "times follow the work"


def written(folder: Path, seconds: Floats, work: Mapping[str, Floats], value: str = "compute_time") -> Path:
    """A table with a row for each tick of 10 s and node; `work` by the names of columns."""
    lines = [",".join(("time", "node", value, *work))]
    for (tick, node), one in np.ndenumerate(seconds):
        cells = (
            f"{column[tick, node]:.0f}" if column[tick, node] == column[tick, node] else ""
            for column in work.values()
        )
        lines.append(f"{10 * tick},n{node},{one:.5f},{','.join(cells)}")
    file = folder / "history.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def replay(file: Path, *options: str) -> Any:
    done = CliRunner().invoke(main, ["replay", str(file), "--json", *options])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def lengths(seed: int, ticks: int = 500, nodes: int = 5) -> tuple[Floats, Floats]:
    """Tokens of each row, and the seconds that they take: a tenth of a second, and one for 4,096 tokens."""
    random = np.random.default_rng(seed)
    tokens = np.round(4096 * random.lognormal(0, 0.3, (ticks, nodes)))
    return tokens, (0.1 + tokens / 4096) * np.exp(0.02 * random.normal(size=(ticks, nodes)))


def test_a_loss_among_steps_of_all_lengths_is_named_at_its_onset(tmp_path: Path) -> None:
    tokens, seconds = lengths(1)
    seconds[250:, 2] *= 1.15

    found = replay(written(tmp_path, seconds, {"tokens": tokens}))

    (episode,) = found["episodes"]
    assert episode["node"] == "n2"
    assert abs(episode["start"] / 10 - 250) <= 3
    assert episode["severity"] == pytest.approx(1 - 1 / 1.15, abs=0.04)
    assert any(FOLLOW in note and "tokens" in note for note in found["summary"]["notes"])
    assert replay(written(tmp_path, seconds, {}))["episodes"] == []


def test_steps_that_differ_by_their_length_accuse_nobody(tmp_path: Path) -> None:
    tokens, seconds = lengths(2)

    assert replay(written(tmp_path, seconds, {"tokens": tokens}))["episodes"] == []


def test_a_ramp_of_the_batch_is_no_phase_of_the_job(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    batch = np.repeat(32.0 * (1 + np.arange(500) // 60)[:, None], 5, axis=1)
    seconds = (0.1 + batch / 100) * np.exp(0.02 * random.normal(size=batch.shape))

    with_work = replay(written(tmp_path, seconds, {"global_batch_size": batch}))
    without = replay(written(tmp_path, seconds, {}))

    assert without["summary"]["job_slow"]
    assert not with_work["summary"]["job_slow"]


def test_of_several_columns_that_counts_which_explains_most(tmp_path: Path) -> None:
    tokens, seconds = lengths(4)
    batch = np.random.default_rng(4).choice([8.0, 16.0], tokens.shape)
    seconds[250:, 2] *= 1.15

    found = replay(written(tmp_path, seconds, {"batch_size": batch, "tokens": tokens}))

    assert [episode["node"] for episode in found["episodes"]] == ["n2"]
    assert found["summary"]["columns"]["used"]["work"] == ["tokens"]
    assert "batch_size" in found["summary"]["columns"]["ignored"]


def test_columns_that_explain_more_together_are_both_used(tmp_path: Path) -> None:
    random = np.random.default_rng(11)
    batch, length = random.choice([8.0, 16.0, 32.0], (500, 5)), random.choice([512.0, 1024.0, 2048.0], (500, 5))
    seconds = (0.05 + batch * length / 20_000) * np.exp(0.02 * random.normal(size=batch.shape))
    seconds[250:, 2] *= 1.12

    found = replay(written(tmp_path, seconds, {"batch_size": batch, "seq_len": length, "samples": batch[::-1]}))

    assert [episode["node"] for episode in found["episodes"]] == ["n2"]
    assert {*found["summary"]["columns"]["used"]["work"]} == {"batch_size", "seq_len"}


def test_the_work_of_a_node_explains_no_step_that_all_wait_for(tmp_path: Path) -> None:
    tokens, seconds = lengths(5, nodes=2)
    together = np.repeat(seconds.max(axis=1)[:, None], 2, axis=1)

    found = replay(written(tmp_path, together, {"tokens": tokens}, "step_time"))

    assert "work" not in found["summary"]["columns"]["used"]
    assert found["episodes"] == []


@pytest.mark.parametrize("work", ["a count of all", "equal", "hardly known", "of something else"])
def test_a_column_that_explains_nothing_is_not_used(tmp_path: Path, work: str) -> None:
    tokens, seconds = lengths(6)
    if work == "a count of all":
        tokens, seconds = np.cumsum(tokens, axis=0), seconds / (0.1 + tokens / 4096)
        seconds[250:] *= 1.2
    elif work == "equal":
        tokens[:] = 4096
    elif work == "hardly known":
        tokens[::2] = np.nan
    else:
        tokens = np.random.default_rng(60).permuted(tokens, axis=0)

    found = replay(written(tmp_path, seconds, {"tokens": tokens}))

    assert "work" not in found["summary"]["columns"]["used"]
    assert "tokens" in found["summary"]["columns"]["ignored"]


def test_the_column_may_be_chosen_or_left_out(tmp_path: Path) -> None:
    tokens, seconds = lengths(7)
    file = written(tmp_path, seconds, {"n": tokens})

    assert replay(file, "--column", "work=n")["summary"]["columns"]["used"]["work"] == ["n"]

    shuffled = written(tmp_path, seconds, {"n": np.random.default_rng(70).permuted(tokens, axis=0)})
    assert any("do not follow" in note for note in replay(shuffled, "--column", "work=n")["summary"]["notes"])

    named = written(tmp_path, seconds, {"tokens": tokens})
    assert "work" not in replay(named, "--column", "work=")["summary"]["columns"]["used"]


def test_work_beside_a_rate_is_refused_when_it_is_chosen(tmp_path: Path) -> None:
    tokens, seconds = lengths(8, ticks=20)
    file = written(tmp_path, 1 / seconds, {"tokens": tokens}, "rate")

    done = CliRunner().invoke(main, ["replay", str(file), "--column", "work=tokens"])

    assert done.exit_code == 2
    assert "work explains the time of a step" in done.stderr


def test_a_row_without_work_is_no_report(tmp_path: Path) -> None:
    tokens, seconds = lengths(9)
    tokens[::20, 1] = np.nan

    found = replay(written(tmp_path, seconds, {"tokens": tokens}))

    assert found["summary"]["columns"]["used"]["work"] == ["tokens"]
    assert found["summary"]["without_value"]["count"] == 25


def test_examples_of_a_long_history_are_bounded_and_say_the_same() -> None:
    random = np.random.default_rng(10)
    examples = WorkExamples(["tokens"])
    for first in range(0, 400_000, 40_000):
        time = np.repeat(np.arange(first, first + 40_000, 8.0), 8)
        tokens = 4096 * random.lognormal(0, 0.3, len(time))
        examples.add(time, np.tile(np.arange(8), 5_000), 0.1 + tokens / 4096, tokens[None])

    (column,) = examples.explaining()

    assert MOST_EXAMPLES / 4 < examples.rows <= MOST_EXAMPLES
    assert column.of_usual(np.array([4096.0, 8192.0, np.nan])) == pytest.approx(
        [1, 2.1 / 1.1, np.nan], 0.03, nan_ok=True
    )


def test_examples_of_a_single_moment_are_bounded_too() -> None:
    examples = WorkExamples(["tokens"])
    many = MOST_EXAMPLES + 1

    examples.add(np.zeros(many), np.arange(many), np.ones(many), np.ones((1, many)))

    assert examples.rows <= MOST_EXAMPLES
    assert examples.explaining() == ()
