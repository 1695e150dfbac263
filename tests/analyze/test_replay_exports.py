"""Histories as trackers of experiments, spreadsheets and services export them: who is named, and what is refused."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet as pq

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


def per_tick(*before: str, steps: bool = False) -> Iterator[list[Any]]:
    """Rows of a table with a column for each node, with cells before those of the nodes."""
    for tick, row in enumerate(RATES):
        yield [tick if steps else iso(START + 30 * tick), *before, *row.round(3).tolist()]


@pytest.mark.parametrize("first", ["", "index", "Unnamed: 0", "__index_level_0__"])
def test_the_index_of_a_table_is_its_time_where_it_holds_times(tmp_path: Path, first: str) -> None:
    wide = written(tmp_path, table([first, *NODES], per_tick()), "tokens_per_sec.csv")
    long = written(tmp_path, table([first, "node", "rate"], ([iso(time), *rest] for time, *rest in reports())))

    assert named(wide) == ("gpu-2", 60)
    assert named(long) == ("gpu-2", 60)


def test_an_index_that_numbers_rows_is_a_step_of_a_wide_table_alone(tmp_path: Path) -> None:
    wide = written(tmp_path, table(["", *NODES], per_tick(steps=True)), "tokens_per_sec.csv")
    long = written(tmp_path, table(["", "node", "rate"], ([row, *rest[1:]] for row, rest in enumerate(reports()))))

    assert named(wide) == ("gpu-2", 60)
    assert "there is no column 'time', and the index only numbers the rows" in run(long).stderr


def test_the_index_of_json_of_pandas_is_its_time(tmp_path: Path) -> None:
    times = [iso(START + 30 * tick) for tick in range(120)]
    split = {"columns": NODES, "index": times, "data": RATES.tolist()}
    by_node = {node: dict(zip(times, RATES[:, number].tolist(), strict=True)) for number, node in enumerate(NODES)}

    assert named(written(tmp_path, json.dumps(split), "tokens_per_sec.json")) == ("gpu-2", 60)
    assert named(written(tmp_path, json.dumps(by_node), "throughput.json")) == ("gpu-2", 60)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("index", ["time", ""])
def test_names_of_columns_in_two_lines_are_metrics_and_nodes(tmp_path: Path, swapped: bool, index: str) -> None:
    levels = [["", *["throughput"] * 6, *["loss"] * 6], ["", *NODES, *NODES]]
    names = [",".join(level) for level in (levels[::-1] if swapped else levels)]
    rows = table([index, *[""] * 12], ([*row, *[2.1] * 6] for row in per_tick()))
    text = "\n".join([*names, rows if index else rows.partition("\n")[2]])

    assert named(written(tmp_path, text)) == ("gpu-2", 60)


@pytest.mark.parametrize("name", ["step_times.csv", "tokens_per_sec_wide.csv", "mfu_per_node.csv"])
def test_names_of_tables_of_several_nodes_say_what_they_hold(tmp_path: Path, name: str) -> None:
    rows = ([tick, *(1 / row if "times" in name else row).tolist()] for tick, row in enumerate(RATES))

    assert named(written(tmp_path, table(["step", *map(str, range(6))], rows), name)) == ("2", 60)


def test_columns_beside_those_of_nodes_are_not_used(tmp_path: Path) -> None:
    names = ["time", "step", "loss", *NODES, "mean", "std"]
    rows = ([time, 1, 2.5, *row, np.mean(row), np.std(row)] for time, *row in per_tick())
    answered = answer(written(tmp_path, table(names, rows), "tokens_per_sec.csv"))

    assert [one["node"] for one in answered["episodes"]] == ["gpu-2"]
    assert answered["summary"]["columns"]["ignored"] == ["step", "loss", "mean", "std"]


@pytest.mark.parametrize(("name", "seconds"), [("time_min", 60), ("t_hours", 3600), ("hours", 3600), ("minutes", 60)])
def test_times_since_a_start_may_be_minutes_or_hours(tmp_path: Path, name: str, seconds: int) -> None:
    rows = ([f"{(time - START) / seconds:.6f}", node, rate] for time, node, rate in reports())

    node, onset = named(written(tmp_path, table([name, "node", "rate"], rows)))

    assert (node, round(onset)) == ("gpu-2", 1800)


GERMAN = table(
    ["Zeit", "Rechner", "Schrittdauer (µs)"],
    (
        [f"{datetime.fromtimestamp(time, UTC):%d.%m.%y %H:%M:%S}", node, f"{1e8 / rate:.1f}".replace(".", ",")]
        for time, node, rate in reports()
    ),
    ";",
)


@pytest.mark.parametrize("code", ["cp1252", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_spreadsheets_of_other_codes_and_ends_of_lines_are_read(tmp_path: Path, code: str, end: str) -> None:
    file = written(tmp_path, GERMAN.replace("\n", end).encode(code))

    assert named(file, "--column", "step_seconds=Schrittdauer (µs)") == ("gpu-2", 60)


def test_days_of_a_spreadsheet_may_have_a_decimal_comma(tmp_path: Path) -> None:
    rows = ([f"{time / 86_400 + 25_569:.6f}".replace(".", ","), node, rate] for time, node, rate in reports())

    node, onset = named(written(tmp_path, table(["time", "node", "rate"], rows, ";")))

    assert (node, round(onset)) == ("gpu-2", 60)


def test_durations_of_jobs_are_times_of_steps_where_they_are_chosen(tmp_path: Path) -> None:
    rows = (
        [
            f"{number}",
            iso(time).replace(" ", "T"),
            f"00:{round(2e5 / rate) // 60:02d}:{round(2e5 / rate) % 60:02d}",
            node,
        ]
        for number, (time, node, rate) in enumerate(reports())
    )
    file = written(tmp_path, table(["JobID", "Start", "Elapsed", "NodeList"], rows, "|"))
    said = "--column time=Start --column step_seconds=Elapsed --column job_id="

    assert said in run(file).stderr
    assert named(file, *said.split()) == ("gpu-2", 60)


def test_files_that_name_their_metric_need_no_flag(tmp_path: Path) -> None:
    for number, node in enumerate(NODES):
        rows = [
            {"key": "tokens_per_sec", "value": RATES[tick, number], "timestamp": 1000 * (START + 30 * tick)}
            for tick in range(120)
        ]
        written(tmp_path, json.dumps({"metrics": rows}), f"{node}.json")

    assert named(tmp_path) == ("gpu-2", 60)


def test_the_folder_of_files_says_what_their_values_are(tmp_path: Path) -> None:
    files = []
    for number in range(6):
        rows = ([START + 30 * tick, tick, 1 / RATES[tick, number]] for tick in range(120))
        files.append(written(tmp_path, table(["Wall time", "Step", "Value"], rows), f"step_time/rank{number}.csv"))

    assert named(*files) == ("rank2", 60)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"ARROW1\0\0", "an Arrow or Feather file"),
        (b"SQLite format 3\0", "a database of SQLite"),
        (b"<?xml version='1.0'?><rows/>", "XML or HTML"),
        (b"\x93NUMPY\x01\0", "an array of NumPy"),
        (b"a.csv" + b"\0" * 252 + b"ustar\0", "a tar archive: unpack it"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    ],
)
def test_files_of_other_kinds_are_refused_with_what_to_do(tmp_path: Path, content: bytes, said: str) -> None:
    done = run(written(tmp_path, content))

    assert done.exit_code == 2
    assert said in done.stderr


def answer_of_prometheus(series: dict[str, np.ndarray[Any, np.dtype[np.float64]]]) -> str:
    result = [
        {
            "metric": {"__name__": name, "instance": node},
            "values": [[START + 30 * tick, repr(float(values[tick, number]))] for tick in range(120)],
        }
        for name, values in series.items() for number, node in enumerate(NODES)
    ]  # fmt: skip
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


COUNTS = np.cumsum(np.full((120, 6), 37.0), axis=0)
SUMS = np.cumsum(37 * 80 / RATES, axis=0)
"""Steps so far, and the seconds that they took."""


def test_the_mean_of_a_histogram_of_prometheus_is_judged(tmp_path: Path) -> None:
    both = {"train_step_seconds_sum": SUMS, "train_step_seconds_count": COUNTS}
    file = written(tmp_path, answer_of_prometheus(both), "answer.json")

    assert named(file) == ("gpu-2", 60)
    assert "the metric train_step_seconds_mean is judged" in run(file).output


@pytest.mark.parametrize("by_series", [False, True])
def test_the_mean_of_a_histogram_in_text_is_judged(tmp_path: Path, by_series: bool) -> None:
    samples = [
        (f'step_seconds_{end}{{instance="{node}"}} {values[tick, number]} {START + 30 * tick}', end, tick)
        for number, node in enumerate(NODES)
        for tick in range(120)
        for end, values in (("bucket", COUNTS), ("sum", SUMS), ("count", COUNTS))
    ]
    samples.sort(key=lambda sample: sample[1] if by_series else str(sample[2]).zfill(3))
    text = "\n".join(["# TYPE step_seconds histogram", *(line for line, _, _ in samples)])

    assert named(written(tmp_path, text, "metrics.prom")) == ("gpu-2", 60)


def test_the_count_of_steps_alone_is_a_counter(tmp_path: Path) -> None:
    steps = np.cumsum(np.round(3 * RATES), axis=0)
    text = answer_of_prometheus({"train_step_seconds_count": steps})

    assert named(written(tmp_path, text, "answer.json"))[0] == "gpu-2"


def test_what_promtool_prints_of_a_range_is_read(tmp_path: Path) -> None:
    lines = []
    for number, node in enumerate(NODES):
        lines.append(f'throughput{{instance="{node}", job="train"}} =>')
        lines += [f"{RATES[tick, number]} @[{START + 30 * tick}]" for tick in range(120)]

    assert named(written(tmp_path, "\n".join(lines), "range.txt")) == ("gpu-2", 60)


def test_a_list_of_series_is_read(tmp_path: Path) -> None:
    series = json.loads(answer_of_prometheus({"throughput": RATES}))["data"]["result"]

    assert named(written(tmp_path, json.dumps(series), "series.json")) == ("gpu-2", 60)


@pytest.mark.parametrize("form", ["step={} rate={}", '{{"step": {}, "rate": {}}}', "step {} | rate {}"])
def test_lines_that_loki_found_are_read(tmp_path: Path, form: str) -> None:
    streams = [
        {
            "stream": {"host": node, "job": "train"},
            "values": [
                [str((START + 30 * tick) * 10**9), form.format(tick, round(float(RATES[tick, number]), 2))]
                for tick in reversed(range(120))
            ],
        }
        for number, node in enumerate(NODES)
    ]
    text = json.dumps({"status": "success", "data": {"resultType": "streams", "result": streams}})

    assert named(written(tmp_path, text, "answer.json")) == ("gpu-2", 60)


def test_lines_of_containers_in_json_are_read(tmp_path: Path) -> None:
    rows = [
        {"log": f"step={time} rate={rate}\n", "kubernetes": {"host": node}, "time": iso(time)}
        for time, node, rate in reports()
    ]

    assert named(written(tmp_path, "\n".join(map(json.dumps, rows)), "pods.jsonl")) == ("gpu-2", 60)


def test_lists_of_cells_are_rows(tmp_path: Path) -> None:
    text = json.dumps([["time", "node", "rate"], *map(list, reports())])

    assert named(written(tmp_path, text, "rows.json")) == ("gpu-2", 60)


def test_series_that_tensorboard_writes_as_json_are_read(tmp_path: Path) -> None:
    for number, node in enumerate(NODES):
        rows = [[START + 30.0 * tick, tick, RATES[tick, number]] for tick in range(120)]
        written(tmp_path, json.dumps(rows), f"run-{node}-tag-throughput.json")

    assert named(tmp_path) == ("run-gpu-2-tag-throughput", 60)


def test_lines_that_grafana_saves_of_loki_are_read(tmp_path: Path) -> None:
    rows = (
        (json.dumps({"app": "train", "pod": node}), 1000 * time, f"step={time} rate={rate}", 10**9 * time)
        for time, node, rate in reports()
    )

    assert named(written(tmp_path, table(("labels", "Time", "Line", "tsNs"), rows))) == ("gpu-2", 60)


def test_lines_that_logcli_prints_as_objects_are_read(tmp_path: Path) -> None:
    rows = (
        {"labels": {"pod": node}, "line": f"step={time} rate={rate}", "timestamp": iso(time)}
        for time, node, rate in reports()
    )

    assert named(written(tmp_path, "\n".join(map(json.dumps, rows)), "logs.jsonl")) == ("gpu-2", 60)


CONSOLES = {
    "cloudwatch": (
        [["Label", *NODES], ["Id", *(f"m{number}" for number in range(6))], ["Statistic", *["Average"] * 6]],
        "%Y/%m/%d %H:%M:%S",
    ),
    "google": (
        [
            ["TimeSeries ID", *(f"vm {number}" for number in range(6))],
            ["zone", *["a"] * 6],
            ["instance_name", *NODES],
        ],
        "%a %b %d %Y %H:%M:%S GMT+0000 (Coordinated Universal Time)",
    ),
}
"""Lines above the first time, and how times are written."""


@pytest.mark.parametrize("console", sorted(CONSOLES))
def test_what_consoles_of_clouds_save_of_a_chart_is_read(tmp_path: Path, console: str) -> None:
    above, form = CONSOLES[console]
    times = [datetime.fromtimestamp(START + 30 * tick, UTC).strftime(form) for tick in range(120)]
    text = table(
        above[0], iter([*above[1:], *([time, *row] for time, row in zip(times, RATES.tolist(), strict=True))])
    )

    assert named(written(tmp_path, text), "--wide", "rate") == ("gpu-2", 60)


def test_fields_of_structures_in_parquet_are_columns(tmp_path: Path) -> None:
    rows = [
        {"time": time, "resource": {"host": node, "zone": "a"}, "train": {"throughput": rate}}
        for time, node, rate in reports()
    ]
    path = tmp_path / "history.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)

    assert named(path) == ("gpu-2", 60)


TICKS = range(120)
ISO = [iso(START + 30 * tick).replace(" ", "T") + "Z" for tick in TICKS]
MILLISECONDS = [1000 * (START + 30 * tick) for tick in TICKS]


def of_node(number: int) -> list[float]:
    return [round(float(rate), 3) for rate in RATES[:, number]]


def frame(number: int) -> dict[str, Any]:
    names = [{"name": "Time"}, {"name": "throughput", "labels": {"instance": NODES[number]}}]
    return {"schema": {"fields": names}, "data": {"values": [MILLISECONDS, of_node(number)]}}


def panel(number: int) -> dict[str, Any]:
    labels = {"__name__": "throughput", "instance": NODES[number]}
    value = {"name": "Value", "labels": labels, "values": of_node(number)}
    return {"fields": [{"name": "Time", "values": MILLISECONDS}, value]}


ANSWERS: dict[str, Any] = {
    "grafana-frames": [frame(number) for number in range(6)],
    "grafana-panel": {"state": "Done", "series": [panel(number) for number in range(6)]},
    "azure": {
        "value": [
            {
                "id": f"/subscriptions/s/virtualMachines/{node}/providers/Microsoft.Insights/metrics/GPU",
                "name": {"value": "GPU Utilization"},
                "timeseries": [
                    {
                        "metadatavalues": [],
                        "data": [
                            {"timeStamp": time, "average": value, "count": None}
                            for time, value in zip(ISO, of_node(number), strict=True)
                        ],
                    }
                ],
            }
            for number, node in enumerate(NODES)
        ]
    },
    "dynatrace": {
        "result": [
            {
                "metricId": "train.throughput:avg",
                "data": [
                    {"dimensions": [node], "timestamps": MILLISECONDS, "values": of_node(number)}
                    for number, node in enumerate(NODES)
                ],
            }
        ]
    },
    "google": [
        {
            "metric": {"type": "kubernetes.io/container/accelerator/duty_cycle"},
            "resource": {"type": "k8s_node", "labels": {"node_name": node}},
            "points": [
                {"interval": {"endTime": time}, "value": {"doubleValue": value}}
                for time, value in zip(ISO, of_node(number), strict=True)
            ],
        }
        for number, node in enumerate(NODES)
    ],
    "elasticsearch-nodes-in-times": {
        "aggregations": {
            "times": {
                "buckets": [
                    {
                        "key_as_string": ISO[tick], "key": MILLISECONDS[tick],
                        "per_host": {
                            "buckets": [
                                {"key": node, "doc_count": 3, "throughput": {"value": float(RATES[tick, number])}}
                                for number, node in enumerate(NODES)
                            ]
                        },
                    }
                    for tick in TICKS
                ]
            }
        }
    },
    "elasticsearch-times-in-nodes": {
        "aggregations": {
            "pods": {
                "buckets": [
                    {
                        "key": node,
                        "times": {
                            "buckets": [
                                {"key_as_string": ISO[tick], "key": MILLISECONDS[tick], "throughput": {"value": rate}}
                                for tick, rate in enumerate(of_node(number))
                            ]
                        },
                    }
                    for number, node in enumerate(NODES)
                ]
            }
        }
    },
    "netdata": {"labels": ["time", *NODES], "data": [[START + 30 * tick, *RATES[tick].tolist()] for tick in TICKS]},
    "influx": {
        "results": [
            {
                "series": [
                    {
                        "name": "train", "tags": {"host": node}, "columns": ["time", "throughput"],
                        "values": [list(point) for point in zip(ISO, of_node(number), strict=True)],
                    }
                    for number, node in enumerate(NODES)
                ]
            }
        ]
    },
    "kusto": {
        "tables": [
            {
                "columns": [{"name": "TimeGenerated"}, {"name": "Computer"}, {"name": "throughput"}],
                "rows": [[iso(time), node, rate] for time, node, rate in reports()],
            }
        ]
    },
    "clickhouse": {
        "meta": [{"name": "time"}, {"name": "node"}, {"name": "throughput"}],
        "data": [[iso(time), node, rate] for time, node, rate in reports()],
        "rows": 720,
    },
}  # fmt: skip


@pytest.mark.parametrize("service", sorted(ANSWERS))
def test_answers_of_more_services_and_databases_are_read(tmp_path: Path, service: str) -> None:
    assert named(written(tmp_path, json.dumps(ANSWERS[service]), "throughput.json")) == ("gpu-2", 60)


def test_statistics_of_cloudwatch_are_of_the_node_that_their_file_names(tmp_path: Path) -> None:
    for number, node in enumerate(NODES):
        points = [
            {"Timestamp": time, "Average": value, "Unit": "Percent"}
            for time, value in zip(ISO, of_node(number), strict=True)
        ]
        written(tmp_path, json.dumps({"Label": "GPUUtilization", "Datapoints": points}), f"{node}.json")

    assert named(tmp_path) == ("gpu-2", 60)


def test_batches_of_telegraf_are_rows(tmp_path: Path) -> None:
    lines = []
    for tick in TICKS:
        around = [{"name": "train", "timestamp": START + 30 * tick, "tags": {"host": node}} for node in NODES]
        metrics = [
            one | {"fields": {"throughput": float(rate)}} for one, rate in zip(around, RATES[tick], strict=True)
        ]
        lines.append(json.dumps({"metrics": metrics}))

    assert named(written(tmp_path, "\n".join(lines), "telegraf.jsonl")) == ("gpu-2", 60)


def test_series_of_datadog_in_columns_are_nodes(tmp_path: Path) -> None:
    names = [f"avg:train.tokens_per_sec{{host:{node},env:prod}}" for node in NODES]

    assert named(written(tmp_path, table(["timestamp", *names], per_tick()))) == ("gpu-2", 60)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("gpu,pwr,sm,mem,pclk,mclk", "`nvidia-smi dmon` writes times with -o DT"),
        ("index,utilization.gpu [%],power.draw [W]", "--query-gpu=timestamp,"),
        ("ID,W,MHz", "`dcgmi dmon` writes no times"),
        ("node,2026-01-01 00:00:00,2026-01-01 00:00:30,2026-01-01 00:01:00", "columns are times: turn the table"),
    ],
)
def test_how_to_record_times_is_said_of_tables_without_any(tmp_path: Path, names: str, said: str) -> None:
    done = run(written(tmp_path, f"{names}\n{','.join('1' * len(names.split(',')))}\n"))

    assert done.exit_code == 2
    assert said in done.stderr


def test_cumulative_histograms_of_otlp_are_judged_by_what_came_since_the_last_point(tmp_path: Path) -> None:
    lines = []
    for tick in TICKS:
        resources = []
        for number, node in enumerate(NODES):
            point = {
                "timeUnixNano": str((START + 30 * tick) * 10**9),
                "sum": float(SUMS[tick, number]), "count": str(int(COUNTS[tick, number])),
            }  # fmt: skip
            held = {"aggregationTemporality": 2, "dataPoints": [point]}
            metric = {"name": "train.step.duration", "histogram": held}
            attributes = [{"key": "host.name", "value": {"stringValue": node}}]
            resources.append({"resource": {"attributes": attributes}, "scopeMetrics": [{"metrics": [metric]}]})
        lines.append(json.dumps({"resourceMetrics": resources}))

    (episode,) = answer(written(tmp_path, "\n".join(lines), "metrics.jsonl"))["episodes"]

    assert episode["node"] == "gpu-2"
    assert episode["severity"] == pytest.approx(0.3, abs=0.03)


def test_the_time_of_an_object_counts_before_that_in_its_line(tmp_path: Path) -> None:
    rows = [
        {"timestamp": iso(time), "host": node, "message": f"step=7 time={1 / rate} rate={rate}"}
        for time, node, rate in reports()
    ]

    assert named(written(tmp_path, "\n".join(map(json.dumps, rows)), "log.jsonl")) == ("gpu-2", 60)


@pytest.mark.parametrize("name", ["all", "Average"])
def test_rows_of_all_nodes_together_are_left_out_and_counted(tmp_path: Path, name: str) -> None:
    rows = [[time, node, rate] for time, node, rate in reports()]
    rows += [[START + 30 * tick, name, 12.0] for tick in TICKS]
    answered = answer(written(tmp_path, table(["time", "node", "rate"], iter(rows))))

    assert [one["node"] for one in answered["episodes"]] == ["gpu-2"]
    assert answered["summary"]["problems"]["count"] == 120
    assert f"{name!r} is no node, but all of them" in answered["summary"]["problems"]["first"][0]
