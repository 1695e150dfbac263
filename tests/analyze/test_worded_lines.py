"""Lines of names with values are rows; what launchers put before lines says whose they are."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from ingero_analyze.log_lines import are_logs, is_log, row_of
from ingero_analyze.worded_lines import LONGEST, values_of, without_launcher
from ingero_fleet.cli import main


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (
            "iter 30: loss 8.7970, time 8207.68ms, mfu 26.41%",
            {"step": "30", "loss": "8.7970", "step_time (s)": "8.20768", "mfu": "26.41%"},
        ),
        (
            "step:  1  loss: 12.27  memory: 46.73GiB(49.20%)  tps: 5,765  mfu: 11.9%",
            {"step": "1", "loss": "12.27", "memory": "46.73GiB", "tps": "5,765", "mfu": "11.9%"},
        ),
        (
            "step   100 | loss: 6.51 | lr 6.0e-04 | dt: 812.34ms | tok/sec: 645000.12",
            {"step": "100", "loss": "6.51", "lr": "6.0e-04", "step_time (s)": "0.81234", "tok/sec": "645000.12"},
        ),
        (
            "completed step: 10, seconds: 5.123, Tokens/s/device: 3998.1",
            {"step": "10", "step_time": "5.123", "Tokens/s/device": "3998.1"},
        ),
        (
            "Epoch: [2]  [  10/5004]  eta: 1:23:45  img/s: 512.3  loss: nan (6.95)  time: 0.234",
            {"step": "10018", "eta": "1:23:45", "img/s": "512.3", "loss": "nan", "step_time": "0.234"},
        ),
        ("[Rank 3] step=10 loss nan time=0.8s", {"Rank": "3", "step": "10", "loss": "nan", "step_time (s)": "0.8"}),
        ("INFO:root:step 3, time 0.8", {"step": "3", "step_time": "0.8"}),
        ("step 3, time 1764000000.5", {"step": "3", "time": "1764000000.5"}),
        (
            "Node: nid001, GPU ID: 0, size 16384 average: 0.113 s",
            {"Node": "nid001", "GPU ID": "0", "size": "16384", "average (s)": "0.113"},
        ),
        ("GPU 3: 812.5 GFLOPS, 71 C, 698 W", {"GPU": "3", "GFLOPS": "812.5", "temperature": "71", "power": "698"}),
        ("Rank 17 injection (one way) = 6.29 GB/s", {"Rank": "17", "injection (one way)": "6.29 GB/s"}),
        ("Starting on 6 nodes: see docs", {}),
        ("Loading checkpoint shards: 100% 4/4", {}),
        ("number of parameters: 123.59M", {}),
        ("gpu 0, gpu 1, gpu 2", {}),
        ("time,node,rate", {}),
        ("a 1, " * LONGEST, {}),
    ],
)
def test_cells_are_names_with_values_and_nothing_else(line: str, row: dict[str, str]) -> None:
    assert values_of(line) == row


@pytest.mark.parametrize(
    ("line", "rest", "placed"),
    [
        ("\x1b[32m[rank3]:\x1b[0m step: 1", "step: 1", {"rank": "3"}),
        ("[1,3]<stdout>:step 1", "step 1", {"rank": "3"}),
        (" 3: step 1", "step 1", {"rank": "3"}),
        ("n17: step 1", "step 1", {"host": "n17"}),
        ("step1: loss 1", "step1: loss 1", {}),
        ("step: 1", "step: 1", {}),
        ("[12, 3]", "[12, 3]", {}),
    ],
)
def test_a_launcher_says_whose_line_it_is(line: str, rest: str, placed: dict[str, str]) -> None:
    assert without_launcher(line) == (rest, placed)


def test_values_behind_a_time_and_the_name_of_a_logger() -> None:
    line = "[rank1]:[titan] 2026-03-04 10:00:00,123 - root - INFO - step:  1  loss: 12.27  tps: 5,765"
    assert is_log(line)
    assert row_of(line) == {
        "rank": "1", "step": "1", "loss": "12.27", "tps": "5,765", "timestamp": "2026-03-04 10:00:00.123",
    }  # fmt: skip


def test_one_such_line_above_a_table_makes_no_log() -> None:
    assert not is_log("nodes: 8, interval: 5")
    assert not are_logs("nodes: 8, interval: 5\ntime,node,rate\n1,a,2\n")


def answered(command: str, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, [command, "--json", *arguments])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = orjson.loads(done.stdout)
    return found


def test_a_history_of_lines_without_times(tmp_path: Path) -> None:
    for node in range(5):
        lines = ["number of parameters: 123.59M"]
        for step in range(160):
            lines += [f"step {step}: train loss 10.9, val loss 10.95"] if step % 40 == 0 else []
            seconds = (1 + 0.001 * ((7 * step + 3 * node) % 11)) * (1.5 if node == 2 and step >= 100 else 1)
            lines.append(f"iter {step}: loss 8.7970, time {1000 * seconds:.2f}ms")
        (tmp_path / f"n{node}.out").write_text("\n".join(lines) + "\n")

    found = answered("replay", *(str(tmp_path / f"n{node}.out") for node in range(5)))

    assert [(episode["node"], episode["start"]) for episode in found["episodes"]] == [("n2.out", 100)]


def test_results_behind_the_names_of_hosts(tmp_path: Path) -> None:
    lines = [
        f"n{node:02d}: GPU {gpu}: {(700 if (node, gpu) == (7, 2) else 800) + (5 * node + 3 * gpu) % 11} GFLOPS, 70 C"
        for node in range(12) for gpu in range(4)
    ]  # fmt: skip
    (tmp_path / "gemm.out").write_text("\n".join(["gemm started", *lines]) + "\n")

    (finding,) = answered("audit", str(tmp_path / "gemm.out"))["findings"]

    assert finding["name"] == "n07/2"
    assert list(finding["evidence"]) == ["temperature"]


def test_times_of_operations_behind_the_names_of_ranks(tmp_path: Path) -> None:
    lines = []
    for step in range(30):
        late = [0.3 + 0.001 * ((7 * step + 3 * rank) % 11) + (0.05 if rank == 5 else 0) for rank in range(8)]
        lines += [
            f"[rank{rank}]: step {step}: forward {400 * own:.1f}ms, backward {600 * own:.1f}ms, "
            f"allreduce {1000 * (max(late) - own) + 5:.1f}ms"
            for rank, own in enumerate(late)
        ]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")

    found = answered("diagnose", str(tmp_path / "job.log"))

    assert (found["kind"], found["ranks"]) == ("node", [5])


def test_a_value_known_by_its_unit(tmp_path: Path) -> None:
    lines = [
        f"SLURM Node ID: n{node:02d}, GPU ID: {gpu}, size 8192 reached: {(9 if (node, gpu) == (7, 2) else 8)}"
        f".{(5 * node + 3 * gpu) % 9}1 TFLOPS"
        for node in range(12) for gpu in range(4)
    ]  # fmt: skip
    (tmp_path / "gemm.out").write_text("\n".join(lines) + "\n")

    found = answered("audit", str(tmp_path / "gemm.out"))

    assert found["summary"]["populations"][0]["chips"] == 48
    assert not found["summary"]["problems"]["count"]
