"""Objects that hold the values of nodes as lists are a row for each value; other objects are not."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ingero_analyze.series_json import rows_of_columns, rows_of_series
from ingero_fleet.cli import main

N1 = [{"node": "n1", "time": 10, "value": 5.0}, {"node": "n1", "time": 20, "value": 6.0}]
N2 = [{"node": "n2", "time": 10, "value": 7.0}, {"node": "n2", "time": 20, "value": None}]
ROWS = [*N1, *N2]
NAMED = [{"metric": "mfu", **row} for row in ROWS]
LISTS = {"n1": [5.0, 6.0], "n2": [7.0, None]}
PAIRS = {"n1": [[10, 5.0], [20, 6.0]], "n2": [[10, 7.0], [20, None]]}


@pytest.mark.parametrize(
    ("whole", "rows"),
    [
        (PAIRS, ROWS),
        ({"nodes": PAIRS}, ROWS),
        ({"metric": "mfu", "data": PAIRS}, NAMED),
        ({"mfu": PAIRS}, NAMED),
        ({"times": [10, 20], "mfu": LISTS}, NAMED),
        ({"time": [10, 20], "nodes": LISTS, "unit": "x"}, [{"unit": "x", **row} for row in ROWS]),
        ({"time": [10, 20], "nodes": ["n1", "n2"], "mfu": list(LISTS.values())}, NAMED),
        ({"time": [10, 20, 30], "nodes": ["n1"], "mfu": [[1.0], [2.0], [3.0]]}, None),
        ({"step_s": {"0": [1.0, 2.0], "1": [3.0, 4.0]}}, [
            {"metric": "step_s", "rank": str(rank), "step": step, "value": 1.0 + 2 * rank + step}
            for rank in range(2) for step in range(2)
        ]),
        ({"nodes": {"n1": {"t": [10, 20], "mfu": [5, 6]}, "n2": {"t": [10, 20], "mfu": [7, 8]}}}, [
            {"node": node, "t": 10 * tick, "mfu": value}
            for node, tick, value in (("n1", 1, 5), ("n1", 2, 6), ("n2", 1, 7), ("n2", 2, 8))
        ]),
        ({"n1": [{"t": 10, "mfu": 5}], "n2": [{"t": 10, "mfu": 6}, {"t": 20, "mfu": 7}]}, [
            {"node": "n1", "t": 10, "mfu": 5}, {"node": "n2", "t": 10, "mfu": 6}, {"node": "n2", "t": 20, "mfu": 7}
        ]),
        ({"0": [{"mfu": 5}], "1": [{"mfu": 6}]}, None),
        ({"time": [10, 20], "mfu": [5, 6]}, None),
        ({"mfu": {"0": 5, "1": 6}}, None),
        ({"n1": {"gpu0": 5}, "n2": {"gpu0": 6}}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_lists_by_node_are_rows(whole: dict[str, Any], rows: list[dict[str, Any]] | None) -> None:
    assert rows_of_series(whole) == rows


@pytest.mark.parametrize(
    ("found", "rows"),
    [
        ({"step": 4, "step_times_per_rank": [0.5, 0.4]}, [
            {"step": 4, "rank": 0, "step_time": 0.5}, {"step": 4, "rank": 1, "step_time": 0.4}
        ]),
        ({"node": "n1", "times": [1, 2], "mfu": [5, 6]}, [
            {"node": "n1", "time": 1, "mfu": 5}, {"node": "n1", "time": 2, "mfu": 6}
        ]),
        ({"node": "n1", "mfu": 5, "last": [1, 2]}, None),
        ({"op": "all_reduce", "ranks": [0, 1]}, None),
        ({"time": 1, "mfu": [0.5]}, None),
    ],
)  # fmt: skip
def test_lists_of_an_object_are_rows(found: dict[str, Any], rows: list[dict[str, Any]] | None) -> None:
    assert rows_of_columns(found) == (rows or [found])


@pytest.mark.parametrize("how", ["beside times", "pairs", "by rank in lines"])
def test_a_history_of_lists_is_judged(tmp_path: Path, how: str) -> None:
    rates = [
        [(60 if node == 2 and tick >= 80 else 100) + (tick * 7 + node * 3) % 5 for node in range(5)]
        for tick in range(120)
    ]
    times = [1_764_000_000 + 60 * tick for tick in range(120)]
    by_node = {f"n{node}": values for node, values in enumerate(zip(*rates, strict=True))}
    text = {
        "beside times": json.dumps({"times": times, "throughput": by_node}),
        "pairs": json.dumps(
            {"metric": "throughput", "data": {name: list(zip(times, by_node[name], strict=True)) for name in by_node}}
        ),
        "by rank in lines": "\n".join(
            json.dumps({"time": time, "throughput": each}) for time, each in zip(times, rates, strict=True)
        ),
    }[how]  # fmt: skip
    (tmp_path / "history.json").write_text(text)

    done = CliRunner().invoke(main, ["replay", str(tmp_path / "history.json"), "--json"])

    assert done.exit_code == 0, done.stderr
    [episode] = json.loads(done.stdout)["episodes"]
    assert episode["node"] == ("2" if how == "by rank in lines" else "n2")
