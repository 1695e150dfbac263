"""Objects whose names are those of hosts and GPUs are a row for each; columns of pandas and other objects are not."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ingero_analyze.keyed_json import rows_by_host, with_lists
from ingero_fleet.cli import main


@pytest.mark.parametrize(
    ("whole", "rows"),
    [
        (
            {"n1": {"gpu0": 5, "gpu1": 6}, "n2": {"gpu0": 7}},
            [("n1", "gpu0", 5), ("n1", "gpu1", 6), ("n2", "gpu0", 7)],
        ),
        ({"n1": {"GPU 0": {"value": 5}}}, [("n1", "GPU 0", 5)]),
        ({"n1": {"0": {"value": 5}}}, [("n1", "0", 5)]),
        ({"n1": {"0": [5, 6]}}, [("n1", "0", 5), ("n1", "0", 6)]),
    ],
)
def test_results_by_host_and_gpu_are_rows(whole: dict[str, Any], rows: list[tuple[str, str, int]]) -> None:
    found = rows_by_host(whole)

    assert found is not None
    assert [(row["node"], row["gpu"], row["value"]) for row in found] == rows


def test_results_in_a_list_are_those_of_runs() -> None:
    assert rows_by_host({"n1": {"cuda:0": [{"ms": 5}, {"ms": 6, "run": "b"}]}}) == [
        {"node": "n1", "gpu": "cuda:0", "run": 0, "ms": 5},
        {"node": "n1", "gpu": "cuda:0", "run": "b", "ms": 6},
    ]


@pytest.mark.parametrize(
    "whole",
    [
        {},
        {"host": {"0": "n1", "1": "n2"}, "ms": {"0": 5, "1": 6}},
        {"labels": {"host": "n1"}},
        {"n1": {}},
        {"n1": {"gpu0": 5}, "site": "a"},
    ],
)
def test_other_objects_are_not_keyed(whole: dict[str, Any]) -> None:
    assert rows_by_host(whole) is None


def test_objects_by_node_are_lists_of_objects() -> None:
    found = {"ts": 1, "nodes": {"n1": {"rate": 5}, "n2": {"rate": 6}}, "labels": {"a": {"b": 1}}, "gpus": {"a": 1}}

    assert with_lists(found) == {**found, "nodes": [{"node": "n1", "rate": 5}, {"node": "n2", "rate": 6}]}


@pytest.mark.parametrize(
    ("ending", "name"),
    [("json", "nodes"), ("jsonl", "nodes"), ("json", "metrics"), ("jsonl", "metrics"), ("json", "")],
)
def test_a_history_by_node_is_judged(tmp_path: Path, ending: str, name: str) -> None:
    moments = [
        {
            "ts": 1_764_000_000 + 5 * tick,
            name: {
                f"n{node}": {"tokens_per_s": (60 if node == 2 and tick >= 60 else 100) + (tick + node) % 5}
                for node in range(6)
            },
        }
        for tick in range(120)
    ]
    by_time = {str(moment["ts"]): moment[name] for moment in moments}
    text = json.dumps(moments if name else by_time) if ending == "json" else "\n".join(map(json.dumps, moments))
    (tmp_path / f"history.{ending}").write_text(text)

    done = CliRunner().invoke(main, ["replay", str(tmp_path / f"history.{ending}"), "--json"])

    assert done.exit_code == 0, done.stderr
    assert [episode["node"] for episode in json.loads(done.stdout)["episodes"]] == ["n2"]


def test_an_audit_of_results_by_host_and_gpu(tmp_path: Path) -> None:
    files = []
    for run in range(3):
        results = {
            f"n{node}": {
                f"gpu{gpu}": {"tflops": (700 if (node, gpu) == (3, 1) else 800) + (5 * node + 3 * gpu + run) % 11}
                for gpu in range(4)
            }
            for node in range(12)
        }
        files.append(str(tmp_path / f"run-{run}.json"))
        Path(files[-1]).write_text(json.dumps(results))

    done = CliRunner().invoke(main, ["audit", "--json", *files])

    assert done.exit_code == 0, done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["name"] == "n3/1"
