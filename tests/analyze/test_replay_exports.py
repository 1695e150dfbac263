"""Histories as trackers of experiments, spreadsheets and services export them: who is named, and what is refused."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ingero_fleet.cli import main

START = 1_767_225_600
"""2026-01-01, seconds."""

RATES: np.ndarray[Any, np.dtype[np.float64]] = 100 * np.exp(0.02 * np.random.default_rng(7).normal(size=(120, 6)))
RATES[60:, 2] *= 0.7
"""By tick of 30 s and node; the third node loses 30 % from tick 60 on."""

NODES = [f"gpu-{number}" for number in range(6)]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def answer(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout))


def named(*arguments: str | Path) -> tuple[str, float]:
    """The node of the only episode, and its onset in ticks, or as it is where times count from a start."""
    (episode,) = answer(*arguments)["episodes"]
    start = episode["start"]
    seconds = start if isinstance(start, float) else datetime.fromisoformat(start).timestamp()
    return episode["node"], (seconds - START) / 30 if seconds > START else seconds


def written(folder: Path, text: str | bytes, name: str = "history.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def reports() -> Iterator[tuple[int, str, float]]:
    """Seconds, node and rate of every row."""
    for tick, row in enumerate(RATES):
        for node, rate in zip(NODES, row.tolist(), strict=True):
            yield START + 30 * tick, node, round(rate, 3)


def iso(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def table(header: Sequence[str], rows: Iterator[Sequence[object]], delimiter: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def tracked(tick: int, nodes: Sequence[int]) -> dict[str, float]:
    """A row of what W&B records of the GPUs of a run."""
    row = {"_timestamp": float(START + 30 * tick), "_runtime": 30.0 * tick, "system.cpu": 10.0}
    for gpu, node in enumerate(nodes):
        rate = float(RATES[tick, node])
        row |= {
            f"system.gpu.{gpu}.gpu": 0.9 * rate, f"system.gpu.{gpu}.memory": 60.0, f"system.gpu.{gpu}.temp": 55.0,
            f"system.gpu.{gpu}.powerWatts": 6 * rate, f"system.gpu.{gpu}.smClock": 1980.0,
        }  # fmt: skip
    return row


def test_gpus_of_a_run_in_columns_of_wandb_are_judged_each(tmp_path: Path) -> None:
    rows = [tracked(tick, range(6)) for tick in range(120)]
    one = written(tmp_path, table([*rows[0]], ([*row.values()] for row in rows)))

    assert named(one) == ("2", 60)
    assert "the rate is gpu utilization times sm clock (MHz)" in run(one).output


@pytest.mark.parametrize("size", [1, 3])
def test_gpus_of_several_runs_of_wandb_are_those_of_their_files(tmp_path: Path, size: int) -> None:
    files = []
    for first in range(0, 6, size):
        rows = [tracked(tick, range(first, first + size)) for tick in range(120)]
        text = "\n".join(map(json.dumps, rows))
        files.append(written(tmp_path, text, f"run-{first // size}.jsonl"))

    assert named(*files) == (f"run-{2 // size}/{2 % size}", 60)


def test_a_chart_of_wandb_of_its_system_metrics_is_read(tmp_path: Path) -> None:
    names = [f"{node} - system.gpu.0.gpu{end}" for node in NODES for end in ("", "__MIN", "__MAX")]
    rows = ([30 * tick, *np.repeat(row, 3).round(2).tolist()] for tick, row in enumerate(RATES))
    file = written(tmp_path, table(["Relative Time (Process)", *names], rows))

    assert named(file) == ("gpu-2/0", 1800)


def test_what_splunk_puts_beside_nodes_is_none(tmp_path: Path) -> None:
    rows = ([iso(START + 30 * tick), *row.round(2).tolist(), 30] for tick, row in enumerate(RATES))
    file = written(tmp_path, table(["_time", *NODES, "_span"], rows), "tokens_per_sec.csv")

    assert named(file) == ("gpu-2", 60)


def test_documents_that_elasticsearch_found_are_rows_without_their_score(tmp_path: Path) -> None:
    rows = [
        {
            "_index": "m",
            "_id": "1",
            "_score": 1,
            "_source": {"@timestamp": time, "host": {"name": node}, "rate": rate},
        }
        for time, node, rate in reports()
    ]
    file = written(tmp_path, "\n".join(map(json.dumps, rows)), "hits.jsonl")

    assert named(file) == ("gpu-2", 60)


def test_tags_that_influx_writes_in_a_cell_are_columns(tmp_path: Path) -> None:
    rows = (["train", f"host={node},rack=r1", time * 10**9, rate] for time, node, rate in reports())
    file = written(tmp_path, table(["name", "tags", "time", "throughput"], rows))

    assert named(file) == ("gpu-2", 60)


def test_times_that_a_spreadsheet_has_rounded_are_in_doubt(tmp_path: Path) -> None:
    rows = ([f"{time * 1000:.5E}", node, rate] for time, node, rate in reports())
    whole = ([f"{time * 1000:.9E}", node, rate] for time, node, rate in reports())

    doubts = answer(written(tmp_path, table(["time", "node", "rate"], rows)))["summary"]["doubts"]

    assert len(doubts) == 1 and "write all digits" in doubts[0]
    assert named(written(tmp_path, table(["time", "node", "rate"], whole))) == ("gpu-2", 60)
