"""The audit command with several benchmarks in one file: apart, each in its own unit and direction."""

import math
import random
from pathlib import Path
from typing import Any

from ingero_testing.audit_tables import answer, run, short, written


def several_benchmarks() -> list[tuple[str, str, int, dict[str, float]]]:
    """GPU 2 of node 4 is slow at products of matrices and training, GPU 5 of node 7 at memory."""
    draw = random.Random(6)
    rows = []
    for node, gpu, number, value in short({(4, 2): 0.15}):
        memory = 3000 * math.exp(draw.gauss(0, 0.004)) * (0.9 if (node, gpu) == ("node-7", "5") else 1)
        rows.append((node, gpu, number, {"gemm_tflops": 7e5 / value, "HBM BW (GB/s)": memory, "step_ms": value / 2}))
    return rows


def found_of_several(found: dict[str, Any]) -> set[tuple[str, str]]:
    return {(one["name"], one["population"]) for one in found["findings"]}


def test_several_columns_of_values_are_judged_apart(tmp_path: Path) -> None:
    rows = several_benchmarks()
    names = list(rows[0][3])
    lines = [",".join(("node", "gpu", "run", *names))]
    lines += [f"{node},{gpu},{number},{','.join(map(str, values.values()))}" for node, gpu, number, values in rows]
    file = written(tmp_path, lines)
    flags = [flag for name in names for flag in ("--value", name)]

    found = answer(file, *flags)

    assert found_of_several(found) == {
        ("node-4/2", "gemm_tflops"), ("node-4/2", "step_ms"), ("node-7/5", "HBM BW (GB/s)")
    }  # fmt: skip
    assert found["summary"]["problems"]["count"] == 0
    assert "or several, each with a --value of its own" in run(file).stderr
    assert run(file, *flags, "--value", "nothing").exit_code == 0, "another file may have it"
    assert run(file, "--value", "nope", "--value", "nothing").exit_code == 2


def test_names_of_metrics_tell_units_and_directions(tmp_path: Path) -> None:
    lines = ["node,gpu,run,metric,value"]
    for node, gpu, number, values in several_benchmarks():
        lines += [f"{node},{gpu},{number},{name},{value}" for name, value in values.items()]
    found = answer(written(tmp_path, lines))

    assert found_of_several(found) == {
        ("node-4/2", "gemm_tflops"), ("node-4/2", "step_ms"), ("node-7/5", "HBM BW (GB/s)")
    }  # fmt: skip


def test_a_metric_whose_direction_nothing_tells_is_named(tmp_path: Path) -> None:
    done = run(written(tmp_path, ["node,gpu,metric,value", "a,0,GEMM,3"]))

    assert done.exit_code == 2
    assert "a larger 'value' of 'GEMM' is better" in done.stderr
    assert "a column 'direction'" in done.stderr


def test_whole_nodes_beside_chips_are_called_nodes(tmp_path: Path) -> None:
    lines = ["node,gpu,benchmark,run,time_ms"]
    for node, gpu, number, value in short({(4, 2): 0.15}):
        slow = 1.2 if node == "node-4" else 1.0
        lines.append(f"{node},{gpu},gemm,{number},{value}")
        lines += [f"{node},,train,{number},{slow * (500 + number)}"] if gpu == "0" else []
    found = answer(written(tmp_path, lines))["findings"]

    assert [(one["kind"], one["name"], one["population"]) for one in found] == [
        ("node", "node-4", "train"), ("gpu", "node-4/2", "gemm")
    ]  # fmt: skip
    assert found[1]["also"] == ["node node-4 in train"]
