"""The audit reads what benchmarks print, and takes nodes from names of files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.audit.benchmark_logs import rows_of_log
from ingero_analyze.audit.command import command
from ingero_analyze.audit.file_nodes import FilePlace, places_of_files

NODES = tuple(f"gpu-node-{number}" for number in range(16))
SLOW = "gpu-node-5"


def audited(*arguments: Any) -> dict[str, Any]:
    done = CliRunner().invoke(command, [*map(str, arguments), "--json", "--quiet"])
    assert done.exit_code == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_quotation_mark_that_is_not_closed_is_said_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "gemm.csv"
    file.write_text("node,gpu,gflops\nn1,0,5\n" + 'n2,0,"5\n' + 50 * "n3,0,5\n")

    done = CliRunner().invoke(command, [str(file)])

    assert done.exit_code == 2
    assert "line 3: 51 lines are one value from here on, because a quotation mark" in done.stderr


def test_a_very_long_word_is_no_log_and_takes_no_time() -> None:
    """Searching a line for what launchers put before it would take the square of its length."""
    assert rows_of_log("node,gflops\n" + 1_000_000 * "n" + ",5\n", "n1") is None


def named(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["kind"], one["name"]) for one in answer["findings"]]


def nccl_log(nodes: Sequence[str], bandwidth: float, *, wrong: int = 0, before: str = "") -> str:
    ranks = [
        f"#  Rank {8 * place + gpu:2} Group  0 Pid {7000 + place:6} on {node:>10} device {gpu:2} [0x1b] NVIDIA B200"
        for place, node in enumerate(nodes)
        for gpu in range(8)
    ]
    rows = [
        f"{size:12} {size // 4:13}  float  sum  -1 {size / speed:8.1f} {speed / 2:7.2f} {speed:7.2f}      0 "
        f"{size / speed:8.1f} {speed / 2:7.2f} {speed + 2:7.2f}      {wrong}"
        for size, speed in ((1 << 20, 60.0), (1 << 30, bandwidth))
    ]
    lines = [
        "# Collective test starting: all_reduce_perf", "# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1073741824",
        "#", "# Using devices", *ranks, "#", "#       size         count      type   redop    root     time   algbw",
        *rows, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 200.1",
    ]  # fmt: skip
    return "".join(f"{before}{line}\n" for line in lines)


def burn_log(rates: Sequence[float], *, uuids: str = "", faulty: int | None = None) -> str:
    heads = [f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{uuids}-{gpu})" for gpu in range(len(rates)) if uuids]
    shown = [" - ".join(f"{done} ({rate:.0f} Gflop/s)" for rate in rates) for done in (138, 5000, 9000)]
    zeros, heat = " - ".join("0" for _ in rates), " - ".join("61 C" for _ in rates)
    steps = [
        f"{share}%  proc'd: {one}   errors: {zeros}   temps: {heat} \r"
        for share, one in zip(("10.0", "60.0", "100.0"), shown, strict=True)
    ]
    verdicts = [f"\tGPU {gpu}: {'FAULTY' if gpu == faulty else 'OK'}" for gpu in range(len(rates))]
    return "\n".join(["Burning for 60 seconds.", *heads, *steps, f"Tested {len(rates)} GPUs:", *verdicts, ""])


def test_nodes_of_nccl_tests_are_those_of_the_log(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for number, node in enumerate(NODES):
        bandwidth = float(random.normal(370, 3)) * (0.7 if node == SLOW else 1)
        (tmp_path / f"run-{number}.out").write_text(nccl_log([node], bandwidth))
    answer = audited(tmp_path)
    assert named(answer) == [("node", SLOW)]
    assert answer["findings"][0]["loss"] == pytest.approx(0.3, abs=0.03)
    assert answer["summary"]["populations"][0]["name"] == "NVIDIA B200, all_reduce_perf, 1073741824 bytes"


@pytest.mark.parametrize("files", [1, 80])
def test_pairs_of_nccl_tests_name_the_node_that_all_slow_ones_share(tmp_path: Path, files: int) -> None:
    random = np.random.default_rng(2)
    logs = []
    for rotation in range(1, 6):
        for place in range(0, 16):
            pair = [NODES[place], NODES[(place + rotation) % 16]]
            logs.append(nccl_log(pair, float(random.normal(180, 1.5)) * (0.7 if SLOW in pair else 1)))
    size = len(logs) // files
    for first in range(0, len(logs), size):
        (tmp_path / f"pairs-{first:02}.log").write_text("".join(logs[first : first + size]))
    assert named(audited(tmp_path)) == [("node", SLOW)]


def test_wrong_results_of_nccl_tests_are_no_measurement(tmp_path: Path) -> None:
    for node in NODES:
        log = nccl_log([node], 370, wrong=3 if node == SLOW else 0, before="[1,0]<stdout>:")
        (tmp_path / f"{node}.txt").write_text(log)
    assert audited(tmp_path)["summary"]["failed"] == {f"node {SLOW}": 1}


def test_gpus_of_gpu_burn_have_their_uuid_and_those_that_fail_are_listed(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    for number in range(4):
        rates = random.normal(50000, 300, 8)
        rates[3] *= 0.8 if number == 2 else 1
        (tmp_path / f"{number}.log").write_text(burn_log(rates.tolist(), uuids=f"aa{number}", faulty=number or None))
    answer = audited(tmp_path)
    assert named(answer) == [("gpu", "GPU-aa2-3")]
    assert set(answer["summary"]["failed"]) == {"gpu GPU-aa1-1", "gpu GPU-aa2-2", "gpu GPU-aa3-3"}


def test_a_log_that_tells_no_node_is_of_that_in_the_name_of_the_file(tmp_path: Path) -> None:
    for node in NODES:
        (tmp_path / node).mkdir()
        speed = 6.1e5 if node == SLOW else 8.1e5
        (tmp_path / node / "hpl.out").write_text(
            "HPLinpack 2.1  --  High-Performance Linpack benchmark\n"
            "T/V                N    NB     P     Q               Time                 Gflops\n"
            f"WR03L8R2      384000   384     4     2            4632.61              {speed:.3e}\n"
            "||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   0.0000042 ...... PASSED\n"
        )
    assert named(audited(tmp_path)) == [("node", SLOW)]


def test_nvbandwidth_gives_one_value_a_gpu_and_test(tmp_path: Path) -> None:
    text = (
        "nvbandwidth Version: v0.8\nDevice 0: NVIDIA H100 (00000009:01:00)\nDevice 1: NVIDIA H100 (00000019:01:00)\n"
        "Running host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n"
        "           0         1\n 0     55.10     54.20\n\nSUM host_to_device_memcpy_ce 109.30\n"
        "Running device_to_device_memcpy_read_ce.\nmemcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n"
        "           0         1\n 0       N/A    392.10\n 1    391.70       N/A\n\n"
    )
    read = rows_of_log(text, "n7")
    assert read is not None
    assert [(row["node"], row["gpu"], row["benchmark"], row["value"]) for _, row in read[1]] == [
        ("n7", "0", "host_to_device_memcpy_ce", "55.1"),
        ("n7", "1", "host_to_device_memcpy_ce", "54.2"),
        ("n7", "0", "device_to_device_memcpy_read_ce", "392.1"),
        ("n7", "1", "device_to_device_memcpy_read_ce", "391.7"),
    ]


def test_a_file_without_results_ends_no_audit_of_others(tmp_path: Path) -> None:
    for node in NODES:
        log = nccl_log([node], 260 if node == SLOW else 370)
        (tmp_path / f"{node}.log").write_text(log if node != "gpu-node-3" else log.partition("#       size")[0])
    answer = audited(tmp_path)
    assert named(answer) == [("node", SLOW)]
    assert answer["summary"]["problems"]["first"] == [f"{tmp_path / 'gpu-node-3.log'}: there are no rows"]


def test_other_text_and_logs_that_were_cut_off_are_refused_with_the_reason(tmp_path: Path) -> None:
    assert rows_of_log("node,gflops\nn1,3\n", "n") is None
    (tmp_path / "notes.txt").write_text("Running\nthe tests took an hour\n")
    (tmp_path / "cut.log").write_text(nccl_log(["n1"], 370).partition("#       size")[0])
    reasons = {"cut.log": "there are no rows: nothing can be used", "notes.txt": "a unit and a value are needed"}
    for file, reason in reasons.items():
        done = CliRunner().invoke(command, [str(tmp_path / file)])
        assert (done.exit_code, reason in done.stderr) == (2, True), done.stderr


def test_nodes_of_tables_are_found_in_the_paths_of_files_by_a_pattern(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    for node in NODES:
        rates = random.normal(700, 4, 8) * (0.8 if node == SLOW else 1)
        rows = "".join(f"{gpu},{rate:.1f}\n" for gpu, rate in enumerate(rates))
        (tmp_path / f"gemm_{node}_2026-11.csv").write_text("gpu,tflops\n" + rows)
    files = sorted(tmp_path.iterdir())
    assert named(audited(*files, "--node-from-file", r"gemm_(.*?)_")) == [("node", SLOW)]
    done = CliRunner().invoke(command, [*map(str, files), "--node-from-file", "rack(.)"])
    assert (done.exit_code, "is not found in this path" in done.stderr) == (2, True)
    done = CliRunner().invoke(command, [*map(str, files), "--node-from-file", "("])
    assert (done.exit_code, "is no regular expression" in done.stderr) == (2, True)


def lines_of_pairs(line: str) -> list[str]:
    """A line for each of 16 nodes with 4 GPUs and 3 days; GPU 2 of one is 15 % slow."""
    draw = np.random.default_rng(4)
    of_chip = {
        (node, gpu): 0.01 * draw.normal() + 0.16 * ((node, gpu) == (SLOW, 2)) for node in NODES for gpu in range(4)
    }
    return [
        line.format(node=node, gpu=gpu, day=day, rate=19000 * np.exp(0.005 * draw.normal() - effect))
        for day in (4, 5, 6)
        for (node, gpu), effect in of_chip.items()
    ]


@pytest.mark.parametrize(
    "line",
    [
        "node={node} gpu={gpu} run={day} gemm_gflops={rate:.1f}",
        'run={day}, node="{node}", gpu={gpu}, gemm_gflops={rate:,.1f}',
        "2026-05-0{day}T08:00:00Z epilog: job={day} [node={node} gpu={gpu} gemm_gflops={rate:.1f}]",
        "2026-05-0{day} 08:00:00,123 {node} epilog[77]: gpu={gpu}; gemm_gflops={rate:.1f}GFLOP/s",
        "May  {day} 08:00:00 {node} epilog: job={day} gpu={gpu} gemm_gflops={rate:.1f} user=",
    ],
)
def test_lines_of_pairs_are_rows(tmp_path: Path, line: str) -> None:
    lines = [*lines_of_pairs(line), "2026-05-07T08:00:00Z epilog: no results today"]
    (tmp_path / "epilog.log").write_text("\n".join(lines))
    (tmp_path / "other.log").write_text("level=info msg=started\nlevel=info msg=ended\n")
    found = audited(tmp_path)

    assert named(found) == [("gpu", f"{SLOW}/2")]
    (population,) = found["summary"]["populations"]
    assert (population["chips"], population["measurements"]) == (64, 192)
    assert population["run_effects_removed"]


def rows_of(text: str, gpu: str = "") -> list[dict[str, str]]:
    read = rows_of_log(text, "n7", gpu)
    assert read is not None
    return [row for _, row in read[1]]


def diagnostic(name: str, results: Sequence[object]) -> str:
    tests = [None, {"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "Pass"}]}]
    category = {"category": "Hardware", "tests": [*tests, {"name": "PCIe", "results": results}]}
    return "Warning: slow\n" + json.dumps({name: {"test_categories": [category]}}, indent=1)


def test_results_of_dcgm_diagnostics_are_read_of_both_versions() -> None:
    older = {
        "gpu_ids": "1", "status": "PASS",
        "info": "GPU 1 GPU to Host bandwidth:\t\t24.02 GB/s, GPU 1 GPU to Host latency:\t\t3.024 us",
    }  # fmt: skip
    newer = {
        "entity_group": "GPU", "entity_id": 2, "status": "Pass",
        "info": ["Allocated space for 138 output matricies", "GPU 2 relative stress level 1929",
                 "GPU 2 calculated at approximately 859.08 gigaflops during this test"],
    }  # fmt: skip
    failed = {"entity_group": "GPU", "entity_id": 3, "status": "Fail"}

    found = rows_of(diagnostic("DCGM GPU Diagnostic", [older]))
    assert [(row["node"], row["gpu"], row["benchmark"], row["value"], row["unit"]) for row in found] == [
        ("n7", "1", "PCIe, GPU to Host bandwidth", "24.02", "GB/s"),
        ("n7", "1", "PCIe, GPU to Host latency", "3.024", "us"),
    ]
    level, rate, faulty = rows_of(diagnostic("DCGM Diagnostic", [newer, failed]))
    assert (rate["gpu"], rate["value"], rate["unit"]) == ("2", "859.08", "GFLOPS")
    assert (level["value"], level["direction"]) == ("1929", "higher")
    assert (faulty["gpu"], faulty["status"]) == ("3", "failed")
    assert rows_of('{"DCGM GPU Diagnostic": {') == []


def test_loops_of_lammps_are_results_by_what_they_compute() -> None:
    loop = "Loop time of {} on 8 procs for {} steps with 32000 atoms\n"
    text = "LAMMPS (2 Aug 2023)\n" + loop.format(1.5, 10) + loop.format(25.5, 100) + loop.format(26, 100)

    assert [(row["benchmark"], row["value"], row.get("run")) for row in rows_of(text)] == [
        ("LAMMPS, 32000 atoms, 10 steps, 8 processes", "1.5", None),
        ("LAMMPS, 32000 atoms, 100 steps, 8 processes", "25.5", "1"),
        ("LAMMPS, 32000 atoms, 100 steps, 8 processes", "26", "2"),
    ]


def mlperf(*events: tuple[str, int, object]) -> str:
    lines = [json.dumps({"key": key, "time_ms": at, "value": value, "metadata": {}}) for key, at, value in events]
    return "".join(f"0: :::MLLOG {line}\n" for line in lines)


def test_a_training_of_mlperf_has_its_throughput_or_its_time() -> None:
    begin = (("submission_benchmark", 0, "bert"), ("global_batch_size", 0, 48), ("run_start", 2000, None))
    rates = [("tracked_stats", 3000 + rate, {"throughput": rate}) for rate in (2900, 3000, 3100)]
    stop = ("run_stop", 62500, None)

    (fast,) = rows_of(mlperf(*begin, *rates, stop))
    assert (fast["node"], fast["benchmark"], fast["value"]) == ("n7", "MLPerf bert, batch 48, throughput", "3000")
    (timed,) = rows_of(mlperf(*begin, stop))
    assert (timed["value"], timed["unit"], timed.get("status")) == ("60.5", "s", None)
    (aborted,) = rows_of(mlperf(*begin, stop).replace("{}}\n", '{"status": "aborted"}}\n'))
    assert aborted["status"] == "failed"
    (cut,) = rows_of(mlperf(*begin))
    assert cut["status"] == "no end"


def test_the_gpu_of_a_log_of_one_gpu_is_that_of_the_file() -> None:
    assert [row["gpu"] for row in rows_of(burn_log([50000]), "3")] == ["3"]
    assert [row["gpu"] for row in rows_of(burn_log([50000, 50000]), "3")] == ["0", "1"]


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("run/n{node}/gpu{gpu}/gemm.csv", FilePlace("n2", "1")),
        ("gpu-node-{node}_gpu{gpu}.csv", FilePlace("gpu-node-2", "1")),
        ("n{node}/gemm-GPU_{gpu}.log.gz", FilePlace("n2", "1")),
        ("gpu{node}/gpu{gpu}.json", FilePlace("gpu2", "1")),
        ("gpu-1{gpu}/run{node}.csv", FilePlace("run2")),
        ("rack{node}/gpu1{gpu}.csv", FilePlace("gpu11")),
    ],
)
def test_gpus_are_taken_from_paths_where_files_are_of_several_of_several_nodes(file: str, place: FilePlace) -> None:
    files = [file.format(node=node, gpu=gpu) for node in range(4) for gpu in range(4)]

    assert places_of_files(files)[file.format(node=2, gpu=1)] == place


@pytest.mark.parametrize("end", ["_run{}.log", "-run-{}.out", ".trial{}.txt", "_rep{}.log.gz"])
def test_numbers_of_runs_are_no_part_of_a_node(end: str) -> None:
    files = [f"hpl/n{node}{end.format(run)}" for node in range(3) for run in range(2)]

    assert [place.node for place in places_of_files(files).values()] == ["n0", "n0", "n1", "n1", "n2", "n2"]


@pytest.mark.parametrize(
    ("files", "nodes"),
    [
        (["n1_run1.log", "n1_run2.log"], ["n1_run1", "n1_run2"]),  # of several runs, or of nodes run1 and run2
        (["n1_run1.log", "n2.log"], ["n1_run1", "n2"]),
        (["n1_run1.log", "n2_run1.log"], ["n1_run1", "n2_run1"]),
        (["run1.log", "run2.log"], ["run1", "run2"]),
    ],
    ids=str,
)
def test_other_names_of_files_are_nodes_as_they_are(files: list[str], nodes: list[str]) -> None:
    assert [place.node for place in places_of_files(files).values()] == nodes


def test_a_file_a_gpu_with_nothing_but_values(tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    for node in NODES[:8]:
        for gpu in range(4):
            rate = float(random.normal(700, 4)) * (0.8 if (node, gpu) == (SLOW, 2) else 1)
            (tmp_path / node).mkdir(exist_ok=True)
            (tmp_path / node / f"gpu{gpu}.csv").write_text(f"tflops\n{rate:.1f}\n")
    assert named(audited(tmp_path)) == [("gpu", f"{SLOW}/2")]
    pattern = r"(gpu-node-\d+).gpu(\d)"
    assert named(audited(*sorted(tmp_path.rglob("*.csv")), "--node-from-file", pattern)) == [("gpu", f"{SLOW}/2")]
