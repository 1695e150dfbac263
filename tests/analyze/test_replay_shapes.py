"""Histories as other tools export them: wide tables, JSON, files of single nodes, tables without nodes."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from ingero_fleet.cli import main

START = 1_767_225_600
"""2026-01-01, seconds."""

RATES: np.ndarray[Any, np.dtype[np.float64]] = 100 * np.exp(0.02 * np.random.default_rng(7).normal(size=(120, 6)))
RATES[60:, 2] *= 0.7
"""By tick of 30 s and node; the third node loses 30 % from tick 60 on."""

NODES = [f"gpu-{number}" for number in range(6)]


def run(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)], input=text)


def named(*arguments: str | Path, text: str | None = None) -> tuple[str, float]:
    """The node of the only episode, and its onset in ticks."""
    done = run(*arguments, "--json", text=text)
    assert done.exit_code == 0, done.stderr
    (episode,) = json.loads(done.stdout)["episodes"]
    start = episode["start"]
    seconds = start if isinstance(start, float) else datetime.fromisoformat(start).timestamp()
    return episode["node"], (seconds - START) / 30 if seconds > START else seconds


def written(folder: Path, text: str, name: str = "history.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def objects() -> list[dict[str, Any]]:
    return [
        {"timestamp": START + 30 * tick, "node": node, "tokens_per_second": RATES[tick, number], "at": {"rack": "1"}}
        for tick in range(120) for number, node in enumerate(NODES)
    ]  # fmt: skip


def wide(header: list[str], first: str = "{0}") -> str:
    lines = [",".join(['"' + name.replace('"', '""') + '"' for name in header])]
    for tick, row in enumerate(RATES):
        moment = f"{datetime.fromtimestamp(START + 30 * tick, UTC):%Y-%m-%d %H:%M:%S}"
        repeated = len(header[1:]) // len(NODES)
        cells = [f"{value:.2f}" for value in row for _ in range(repeated)]
        lines.append(",".join([first.format(moment, tick), *cells]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("shape", ["lines", "array", "pretty"])
def test_json_objects_are_rows(tmp_path: Path, shape: str) -> None:
    text = "\n".join(map(json.dumps, objects())) if shape == "lines" else json.dumps(
        objects(), indent=1 if shape == "pretty" else None
    )  # fmt: skip

    assert named(written(tmp_path, text, "history.json")) == ("gpu-2", 60)
    assert named("-", text=text) == ("gpu-2", 60)


def test_lines_that_are_no_json_are_left_out_with_their_place(tmp_path: Path) -> None:
    lines = list(map(json.dumps, objects()))
    file = written(tmp_path, "\n".join([*lines[:10], '{"timestamp": 17', "", "[1]", *lines[10:]]), "history.jsonl")

    done = run(file)

    assert named(file) == ("gpu-2", 60)
    assert f"2 rows could not be used, first {file}, row 11: this line is no JSON object" in done.stdout


@pytest.mark.parametrize("text", ["[]", "{", "[1, 2]", '{"a": ', '{"data": {"result": []}}'])
def test_json_without_rows_is_refused(tmp_path: Path, text: str) -> None:
    done = run(written(tmp_path, text, "history.json"))

    assert done.exit_code == 2
    assert "history.json" in done.stderr


def test_the_answer_of_prometheus_to_a_range_query_is_read(tmp_path: Path) -> None:
    series = [
        {
            "metric": {"__name__": metric, "instance": f"{node}:9100", "job": "train"},
            "values": [[START + 30 * tick, f"{RATES[tick, number] * scale:.3f}"] for tick in range(120)],
        }
        for number, node in enumerate(NODES) for metric, scale in (("tokens_per_second", 1), ("gpu_power_watts", 6))
    ]  # fmt: skip
    answer = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    file = written(tmp_path, json.dumps(answer), "range.json")

    assert named(file, "--metric", "tokens_per_second") == ("gpu-2:9100", 60)
    assert named(file) == ("gpu-2:9100", 60)


GRAFANA = ["Time", *(f'{{instance="{node}:9100", job="train"}}' for node in NODES)]
PLAIN = ["Time", *NODES]


@pytest.mark.parametrize(("header", "node"), [(GRAFANA, "gpu-2:9100"), (PLAIN, "gpu-2")])
def test_a_table_with_a_column_for_each_node_is_read_as_what_it_holds(
    tmp_path: Path, header: list[str], node: str
) -> None:
    file = written(tmp_path, wide(header))

    refused = run(file)

    assert named(file, "--wide", "rate") == (node, 60)
    assert refused.exit_code == 2
    assert "say what these hold with --wide rate" in refused.stderr


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (PLAIN, "tokens_per_sec.csv"),
        (["Time", *(f"{node}_tokens_per_sec" for node in NODES)], "history.csv"),
        (["Time", *(f"{node} - train/tps" for node in NODES)], "history.csv"),
    ],
)
def test_what_a_wide_table_holds_is_told_by_its_name_or_by_those_of_its_columns(
    tmp_path: Path, header: list[str], name: str
) -> None:
    assert named(written(tmp_path, wide(header), name)) == ("gpu-2", 60)


def test_a_wide_table_of_runs_and_steps_leaves_out_minima_and_asks_for_one_metric(tmp_path: Path) -> None:
    metrics = ("tps", "tps__MIN", "tps__MAX", "loss")
    header = ["Step", *(f"{node} - train/{metric}" for node in NODES for metric in metrics)]
    file = written(tmp_path, wide(header, "{1}"))

    refused = run(file, "--wide", "rate")

    assert named(file, "--wide", "rate", "--metric", "train/tps") == ("gpu-2", 60)
    assert refused.exit_code == 2
    assert "columns are of several metrics (there are: train/tps, train/loss): choose one" in refused.stderr
    assert "no column is of the metric 'x'" in run(file, "--wide", "rate", "--metric", "x").stderr


def test_columns_of_one_metric_that_are_counted_are_its_ranks(tmp_path: Path) -> None:
    header = ["time", *(f"{metric}:{rank}" for rank in range(len(NODES)) for metric in ("tps", "temp"))]
    file = written(tmp_path, wide(header))

    assert named(file, "--wide", "rate", "--metric", "tps") == (str(NODES.index("gpu-2")), 60)


@pytest.mark.parametrize(
    ("service", "node"),
    [
        ("Datadog", "gpu-2"),
        ("Datadog 2", "gpu-2"),
        ("CloudWatch", "gpu-2"),
        ("labels", "gpu-2 a"),
        ("Graphite", "gpu-2"),
        ("OpenTSDB", "gpu-2"),
        ("Google", "gpu-2"),
        ("Elasticsearch", "gpu-2"),
        ("Grafana", "gpu-2"),
        ("Grafana's table", "gpu-2"),
    ],
)
def test_answers_of_services_that_monitor_hosts_are_read(tmp_path: Path, service: str, node: str) -> None:
    times = [1000 * (START + 30 * tick) for tick in range(120)]
    series = dict(zip(NODES, RATES.T.tolist(), strict=True))
    moments = [f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" for time in times][::-1]
    answers: dict[str, Any] = {
        "Datadog": {"status": "ok", "series": [
            {"metric": "gpu.utilization", "scope": f"host:{name}", "tag_set": [f"host:{name}"], "interval": 30,
             "pointlist": [[float(time), value] for time, value in zip(times, values, strict=True)]}
            for name, values in series.items()
        ]},
        "Datadog 2": {"data": {"type": "timeseries_response", "attributes": {
            "series": [{"group_tags": [f"host:{name}"], "query_index": 0} for name in series],
            "times": times, "values": list(series.values()),
        }}},
        "Graphite": [
            {"target": f"dc1.{name}.gpu_util", "tags": {},
             "datapoints": [[value, time // 1000] for time, value in zip(times, values, strict=True)]}
            for name, values in series.items()
        ],
        "OpenTSDB": [
            {"metric": "gpu_util", "tags": {"host": name}, "aggregateTags": [],
             "dps": {str(time // 1000): value for time, value in zip(times, values, strict=True)}}
            for name, values in series.items()
        ],
        "Google": {"timeSeries": [
            {"metric": {"type": "custom.googleapis.com/gpu_util", "labels": {"node": name}},
             "resource": {"type": "gce_instance", "labels": {"zone": "a"}},
             "points": [{"interval": {"endTime": moment}, "value": {"doubleValue": value}}
                        for moment, value in zip(moments, values[::-1], strict=True)]}
            for name, values in series.items()
        ]},
        "Elasticsearch": {"took": 3, "hits": {"hits": [
            {"_id": f"{name}{time}", "_source": {"@timestamp": time, "host": {"name": name}, "gpu_util": value}}
            for name, values in series.items() for time, value in zip(times, values, strict=True)
        ]}},
        "Grafana": {"results": {"A": {"status": 200, "frames": [
            {"schema": {"fields": [{"name": "Time"}, {"name": "gpu_util", "labels": {"instance": name}}]},
             "data": {"values": [times, values]}}
            for name, values in series.items()
        ]}}},
        "Grafana's table": {"results": {"A": {"frames": [
            {"schema": {"fields": [{"name": "Time"}, {"name": "host"}, {"name": "gpu_util"}]},
             "data": {"values": [times, [name] * len(times), values]}}
            for name, values in series.items()
        ]}}},
    }  # fmt: skip
    for name, label in (("CloudWatch", "{} GPUUtilization"), ("labels", "{} {}")):
        results = [
            {"Id": f"m{place}", "Label": label.format(of, "abcdef"[place % 2]), "Timestamps": moments,
             "Values": values[::-1], "StatusCode": "Complete"}
            for place, (of, values) in enumerate(series.items())
        ]  # fmt: skip
        answers[name] = {"MetricDataResults": results, "Messages": []}
    file = written(tmp_path, json.dumps(answers[service]), "history.json")

    flags = ["--column", "rate=value"] if service in ("Datadog 2", "labels") else []

    assert named(file, *flags) == (node, pytest.approx(60, abs=4))


@pytest.mark.parametrize(
    "name",
    [
        "tokens_per_second.csv",
        "Tokens per second-data-2026-01-31 10_00_00.csv",
        "Throughput-data-as-joinbyfield-2026-01-31 10_00_00.csv",
    ],
)
@pytest.mark.parametrize("shape", ["wide", "value"])
def test_the_name_of_a_file_says_what_its_values_are(tmp_path: Path, name: str, shape: str) -> None:
    rows = [
        f"{START + 30 * tick},{node},{RATES[tick, place]:.3f}\n"
        for tick in range(len(RATES)) for place, node in enumerate(NODES)
    ]  # fmt: skip
    text = wide(["Time", *NODES]) if shape == "wide" else "time,instance,Value\n" + "".join(rows)

    assert named(written(tmp_path, text, name)) == ("gpu-2", 60)


@pytest.mark.parametrize("others", [[], ["loss"]])
def test_names_of_columns_with_two_levels_are_metrics_and_nodes(tmp_path: Path, others: list[str]) -> None:
    cells: dict[str, Any] = {
        f"('{metric}', 'n{place}')": np.ones(120) if metric == "loss" else RATES[:, place]
        for metric in ["throughput", *others] for place in range(6)
    }  # fmt: skip
    cells["timestamp"] = list(range(START, START + 3600, 30))
    pq.write_table(pa.table(cells), tmp_path / "history.parquet")

    assert named(tmp_path / "history.parquet") == ("n2", 60)


def test_series_with_labels_need_no_flag_where_their_metric_says_what_they_are(tmp_path: Path) -> None:
    names = [f'tokens_per_second{{instance="{node}", job="train"}}' for node in NODES]

    assert named(written(tmp_path, wide(["Time", *names]))) == ("gpu-2", 60)


@pytest.mark.parametrize(
    "name", ["{} tokens/s", "tokens_per_s.{}", "{}_mfu", "{} - throughput (samples/s)", "GPU util {}"]
)
def test_columns_that_name_a_node_and_what_they_hold_need_no_flag(tmp_path: Path, name: str) -> None:
    text = wide(["Time", *map(name.format, NODES), "loss"])
    node, onset = named(written(tmp_path, text.replace("\n", ",0\n").replace('"loss",0', '"loss"')))
    assert (node, onset) == ("gpu-2", pytest.approx(60, abs=4))


def test_columns_for_each_gpu_of_a_host_are_rows(tmp_path: Path) -> None:
    lines = ["time,host," + ",".join(f"gpu{gpu}_tokens_per_s,gpu{gpu}_power_w" for gpu in range(3))]
    lines += [
        f"{START + 30 * tick},n{host}," + ",".join(f"{row[3 * host + gpu]:.2f},700" for gpu in range(3))
        for tick, row in enumerate(RATES)
        for host in range(2)
    ]
    assert named(written(tmp_path, "\n".join(lines) + "\n"))[0] == "n0/2"


def test_wide_tables_of_two_values_are_not_one_history(tmp_path: Path) -> None:
    text = wide(["Time", *NODES])
    files = [written(tmp_path, text, name) for name in ("tokens_per_sec.csv", "step_time.csv")]
    done = run(*files)
    assert done.exit_code == 2
    assert "the column step_seconds cannot be compared with rate of another file" in done.stderr


def test_columns_of_percentiles_are_no_nodes(tmp_path: Path) -> None:
    done = run(written(tmp_path, wide(["Time", *(f"p9{number}_step_time" for number in range(6))])))
    assert done.exit_code == 2
    assert "there is no column 'node'" in done.stderr


def test_cells_of_wide_tables_that_cannot_be_used_have_the_place_of_their_row(tmp_path: Path) -> None:
    lines = wide(PLAIN).splitlines()
    lines[50] = lines[50].replace(",", ",oops", 1)
    lines.insert(20, "")
    file = written(tmp_path, "\n".join(lines))

    assert (
        "1 row could not be used, first " + str(file) + ", row 52, column rate: 'oops"
        in run(file, "--wide", "rate").stdout
    )


def test_files_of_single_runs_are_nodes(tmp_path: Path) -> None:
    files = [
        written(
            tmp_path,
            "Wall time,Step,Value\n" + "".join(f"{START + 30 * t}.25,{t},{RATES[t, number]}\n" for t in range(120)),
            f"{node}.csv",
        )
        for number, node in enumerate(NODES)
    ]  # fmt: skip

    assert named(*files, "--column", "rate=Value")[0] == "gpu-2"


@pytest.mark.parametrize("column", ["pod", "worker", "run_name", "uuid", "rank", "gpu"])
def test_what_stands_for_a_node_is_judged_where_there_is_none(tmp_path: Path, column: str) -> None:
    lines = [f"{START + 30 * t},{node},{RATES[t, number]}" for t in range(120) for number, node in enumerate(NODES)]

    assert named(written(tmp_path, "\n".join([f"time,{column},rate", *lines]))) == ("gpu-2", 60)


@pytest.mark.parametrize(
    ("preface", "names", "row"),
    [
        ("sep=,\n", "time,node,rate", 9),
        ("# exported by x\n# at noon\n", "time,node,rate", 10),
        ("", "# time,node,rate", 8),
    ],
)
def test_comments_before_the_names_of_columns_are_left_out(
    tmp_path: Path, preface: str, names: str, row: int
) -> None:
    lines = [f"{START + 30 * t},{node},{RATES[t, number]}" for t in range(120) for number, node in enumerate(NODES)]
    lines.insert(6, "now,gpu-0,1")
    file = written(tmp_path, preface + "\n".join([names, *lines]))

    assert named(file) == ("gpu-2", 60)
    assert f"first {file}, row {row}, column time: 'now'" in run(file).stdout


def test_columns_may_be_separated_by_single_blanks(tmp_path: Path) -> None:
    lines = [f"{START + 30 * t} {node} {RATES[t, number]}" for t in range(120) for number, node in enumerate(NODES)]

    assert named(written(tmp_path, "\n".join(["time node rate", *lines]))) == ("gpu-2", 60)
