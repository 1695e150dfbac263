"""Tables with a column a GPU or a run, and rows about several nodes, are read as one row a GPU, run or node."""

import math
import random
from itertools import combinations
from pathlib import Path

import pytest

from ingero_analyze.audit.joint_rows import nodes_of, of_single_nodes
from ingero_analyze.audit.measurements import Measurements, ReadingOptions
from ingero_analyze.audit.wide import unpivoted
from ingero_detect.audit import audit

Results = dict[tuple[int, int, int], float]


def results(unit: float = 1.0) -> Results:
    """Milliseconds by node, GPU and run of 24 nodes with 4 GPUs, 3 runs; GPU 1 of node 9 is 15 % slow."""
    draw = random.Random(4)
    healthy = {(node, gpu): draw.gauss(0, 0.01) for node in range(24) for gpu in range(4)}
    healthy[9, 1] += 0.16
    return {
        (node, gpu, run): unit * math.exp(effect + draw.gauss(0, 0.005))
        for (node, gpu), effect in healthy.items()
        for run in range(3)
    }


def names(tmp_path: Path, text: str, **columns: str) -> set[str]:
    """Who is named in a file with this text."""
    file = tmp_path / "results.csv"
    file.write_text(text)
    measured = Measurements(ReadingOptions(columns))
    measured.read(str(file), lambda _: None)
    inputs = measured.populations()
    return {
        (inputs[one.population].chips if one.level == "chip" else inputs[one.population].nodes)[one.number]
        for one in audit([given.population for given in inputs]).findings
    }


@pytest.mark.parametrize("column", ["gpu{}_ms", "GPU {} (ms)", "time_ms_gpu{}", "gpu {} duration [ms]"])
def test_a_column_a_gpu(tmp_path: Path, column: str) -> None:
    found = results(1000)
    lines = ["host,run," + ",".join(column.format(gpu) for gpu in range(4))]
    lines += [
        f"n{node},{run}," + ",".join(f"{found[node, gpu, run]:.2f}" for gpu in range(4))
        for node in range(24) for run in range(3)
    ]  # fmt: skip

    assert names(tmp_path, "\n".join(lines)) == {"n9/1"}


@pytest.mark.parametrize("column", ["time_ms_{}", "run {} (ms)", "runtime_ms {}"])
def test_a_column_a_run(tmp_path: Path, column: str) -> None:
    found = results(1000)
    lines = ["host,gpu," + ",".join(map(column.format, range(3)))]
    lines += [
        f"n{node},{gpu}," + ",".join(f"{found[node, gpu, run]:.2f}" for run in range(3))
        for node in range(24) for gpu in range(4)
    ]  # fmt: skip

    assert names(tmp_path, "\n".join(lines)) == {"n9/1"}


def test_readings_beside_the_values_of_gpus_and_lines_are_kept() -> None:
    columns = ["host", "gpu0_ms", "gpu1_ms", "gpu0_temp", "gpu1_temp"]
    new, rows = unpivoted(columns, iter([(7, dict(zip(columns, "a1234", strict=True))), (8, {})]), ())

    assert new == ["host", "gpu", "value (ms)", "temp"]
    assert list(rows) == [
        (7, {"host": "a", "gpu": "0", "value (ms)": "1", "temp": "3"}),
        (7, {"host": "a", "gpu": "1", "value (ms)": "2", "temp": "4"}),
        (8, {}),
    ]


@pytest.mark.parametrize(
    "columns",
    ["host gpu time_ms", "host gpu0_ms gpu1_temp", "host gpu gpu0_ms gpu1_ms", "host run time_ms_1 time_ms_2",
     "host size_1 size_2", "host gpu0_ms", "host p50_ms p99_ms", "gpu sgemm_ms resnet50_ms"],
)  # fmt: skip
def test_other_tables_stay_as_they_are(columns: str) -> None:
    assert unpivoted(columns.split(), iter(()), ())[0] == columns.split()


def test_chosen_columns_stay() -> None:
    assert unpivoted(["host", "gpu0_ms", "gpu1_ms"], iter(()), ["gpu1_ms"])[0] == ["host", "gpu0_ms", "gpu1_ms"]
    assert of_single_nodes(["src", "dst", "busbw"], iter(()), ["dst"])[0] == ["src", "dst", "busbw"]


@pytest.mark.parametrize("header", ["node_a,node_b", "src,dst", "nodes"])
def test_the_node_of_all_slow_pairs_is_named(tmp_path: Path, header: str) -> None:
    draw = random.Random(5)
    effect = {node: draw.gauss(0, 0.01) + 0.2 * (node == 4) for node in range(16)}
    lines = [f"{header},size,busbw (GB/s)"]
    for a, b in combinations(effect, 2):
        value = 360 * math.exp(-max(effect[a], effect[b]) - draw.gauss(0, 0.01))
        lines.append((f'"n{a},n{b}"' if header == "nodes" else f"n{a},n{b}") + f",268435456,{value:.2f}")

    assert names(tmp_path, "\n".join(lines)) == {"n4"}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [("a1,a2", ["a1", "a2"]), ("n[01-03,7]", ["n01", "n02", "n03", "n7"]), ("a b;c+d", ["a", "b", "c", "d"]),
     ("x[1-2]c[0-1],y", ["x1c0", "x1c1", "x2c0", "x2c1", "y"]), ("gpu-a-01", ["gpu-a-01"]), ("", []),
     ("n[1-99999999]", ["n1-99999999"])],
)  # fmt: skip
def test_lists_of_nodes(text: str, nodes: list[str]) -> None:
    assert nodes_of(text) == nodes


def test_nodes_of_a_job_have_its_run() -> None:
    columns = ["nodes", "job_id", "step_time_ms"]
    new, rows = of_single_nodes(columns, iter([(2, dict(zip(columns, ("a,b", "j1", "9"), strict=True)))]), ())

    assert new == ["step_time_ms", "node", "run"]
    assert [row for _, row in rows] == [{"step_time_ms": "9", "run": "j1", "node": node} for node in "ab"]
