"""The audit command: columns of many names, untidy files, errors with their place, the ledger, plots."""

import gzip
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ingero_analyze.audit.chips import renamed
from ingero_analyze.audit.columns import recognised, split_unit, unit_in_name
from ingero_analyze.audit.directions import lower_is_better, says_failed
from ingero_analyze.audit.evidence import likely_cause
from ingero_analyze.audit.quantities import quantity_of
from ingero_analyze.audit.runs import day_of, rounding_of, runs_of_rows
from ingero_testing.audit_tables import HEADER, answer, results, run, short, written


def test_a_slow_chip_is_named_with_its_evidence(tmp_path: Path) -> None:
    found = answer(written(tmp_path, results({(4, 2): 0.15})))

    (one,) = found["findings"]
    assert (one["kind"], one["name"], one["node"]) == ("gpu", "node-4/2", "node-4")
    assert one["loss_low"] < 1 - math.exp(-0.15) < one["loss_high"]
    assert one["slow_share"] == 1.0
    assert one["evidence"]["clock"]["state"] == "low"
    assert "low clock at usual power" in one["cause"]
    assert found["summary"]["unknown_columns"] == ["Driver"]


def test_a_single_value_far_too_low_is_measured_again_and_neither_named_nor_cleared(tmp_path: Path) -> None:
    ledger = tmp_path / "lemons.jsonl"
    answer(written(tmp_path, results({(4, 2): 0.3})), "--ledger", ledger)
    file = written(tmp_path, results({(4, 2): 1.2}, runs=1))
    found = answer(file, "--ledger", ledger)

    (one,) = found["measure_again"]
    assert (one["name"], one["node"], found["findings"]) == ("node-4/2", "node-4", [])
    assert one["loss"] == pytest.approx(0.7, abs=0.02)
    assert one["evidence"]["clock"]["state"] == "low"
    assert found["summary"]["ledger"]["cleared"] == []
    assert "measure again" in run(file).stdout


def test_a_healthy_fleet_names_nobody(tmp_path: Path) -> None:
    done = run(written(tmp_path, results({})))

    assert done.exit_code == 0
    assert "no chip and no node is slower than its like" in done.stdout


@pytest.mark.parametrize("runs", [1, 4])
def test_measurements_in_another_unit_are_converted_and_name_nobody(tmp_path: Path, runs: int) -> None:
    lines = ["node,gpu,run,ms"]
    for node, gpu, run_of, value in short({(4, 2): 0.3}, runs):
        other = (node, gpu) == ("node-7", "1") or (node == "node-9" and run_of == 0)
        lines.append(f"{node},{gpu},{run_of},{value / 1000 if other else value:.6f}")

    found = answer(written(tmp_path, lines))

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]
    (population,) = found["summary"]["populations"]
    assert (
        f"measurements that were converted, because they differ from most as two units do (1,000): {8 + runs}"
        in (population["notes"])
    )


def test_a_chip_that_is_very_slow_by_no_factor_of_units_is_named(tmp_path: Path) -> None:
    found = answer(written(tmp_path, results({(4, 2): math.log(700)})))

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]


def test_every_format_gives_the_same(tmp_path: Path) -> None:
    lines = results({(4, 2): 0.15})
    whole = answer(written(tmp_path, lines))["findings"]
    names = HEADER.split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]
    packed = tmp_path / "results.csv.gz"
    packed.write_bytes(gzip.compress("\n".join(lines).encode()))
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "results.parquet")
    semicolons = written(
        tmp_path, [line.replace(".", "#").replace(",", ";").replace("#", ",") for line in lines], "de.csv"
    )

    assert answer("-", text="\ufeff" + "\r\n".join(lines))["findings"] == whole
    for other in (
        packed,
        tmp_path / "results.parquet",
        semicolons,
        written(tmp_path, [json.dumps(row) for row in rows], "results.jsonl"),
        written(tmp_path, [json.dumps({"results": rows})], "results.json"),
        written(tmp_path, [json.dumps({"columns": names, "data": [[*row.values()] for row in rows]})], "split.json"),
    ):
        assert answer(other)["findings"] == whole, other


@pytest.mark.parametrize(
    ("before", "delimiter"),
    [("", " "), ("", "   "), ("sep=;\n", ";"), ("Acceptance of March\n\n", ","), ("Acceptance,,,\n,,,\n", ",")],
)
def test_titles_and_blanks_between_columns_are_read(tmp_path: Path, before: str, delimiter: str) -> None:
    lines = ["node,gpu,run,time_ms", *(",".join(map(str, row)) for row in short({(4, 2): 0.15}))]
    file = tmp_path / "results.txt"
    file.write_text(before + "\n".join(line.replace(",", delimiter) for line in lines))

    assert [one["name"] for one in answer(file)["findings"]] == ["node-4/2"]


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("thousands", ["", "."])
def test_decimal_commas_with_three_decimals_are_told_by_the_column(
    tmp_path: Path, thousands: str, quoted: bool
) -> None:
    """999,345 and 1015,432 are of one column."""
    lines = ["node,gpu,run,time_ms"] if quoted else ["node;gpu;run;time_ms"]
    for node, gpu, number, value in short({(4, 2): 0.15}):
        text = f"{value:,.3f}".replace(",", "#").replace(".", ",").replace("#", thousands)
        lines.append(f'{node},{gpu},{number},"{text}"' if quoted else f"{node};{gpu};{number};{text}")

    (one,) = answer(written(tmp_path, lines))["findings"]

    assert one["name"] == "node-4/2"
    assert one["loss_low"] < 1 - math.exp(-0.15) < one["loss_high"]


def test_commas_that_separate_thousands_stay_so(tmp_path: Path) -> None:
    lines = ["node;gpu;run;time_us"]
    lines += [f"{node};{gpu};{number};{1000 * value:,.0f}" for node, gpu, number, value in short({(4, 2): 0.15})]

    assert [one["name"] for one in answer(written(tmp_path, lines))["findings"]] == ["node-4/2"]


def test_rows_that_cannot_be_used_are_counted_with_their_line(tmp_path: Path) -> None:
    lines = [*results({(4, 2): 0.15}), "node-1,2,oops,1380,300,60,0,550", "node-1,2,,1380,300,60,9,550",
             "node-1,2,-4,1,1,1,9,550", ",,5,1,1,1,1,1", "# a comment", "", "node-1,2,1,2,3,4,5,6,7,8,9"]  # fmt: skip
    file = written(tmp_path, [*lines, lines[5]])
    found = answer(file)

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]
    assert found["summary"]["repeated_rows"] == 1
    problems = found["summary"]["problems"]
    assert problems["count"] == 5
    assert problems["first"][0] == f"{file}:{12 * 8 * 4 + 2}: 'oops' is not a number"
    assert "more values than columns" in problems["first"][-1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("a\n1\n", "one column"),
        ("# a\n\n# b\n", "only comments"),
        ("gpu,colour\n1,red\n", "no column is known as the value"),
        ("value,colour\n1,red\n", "no column names a GPU or a node"),
        ("gpu,gflops,runtime\n1,2,3\n", "could all be the value"),
        ("gpu,duration_s,tokens_per_s\n1,2,3\n", "duration_s, tokens_per_s could all be the value"),
        ("gpu,gemm_gflops,hbm_gbps,latency_ms\n1,2,3,4\n", "choose one with --value"),
        ("gpu,perf\n1,2\n", "use --higher-is-better or --lower-is-better"),
        ("gpu,a_ms,b_ms\n1,2,3\n", "a_ms, b_ms could all be the value"),
        ("gpu,value\n1,2\n", "use --higher-is-better or --lower-is-better"),
        ("gpu,gflops\n1,x\n", "nothing can be used"),
        ("gpu,gflops\n", "there are no rows"),
        ("[1, 2", "no JSON object"),
        ('[{"gpu": 1, "gflops": ' + "1" * 5000 + "}]", "no JSON object"),
        ("gpu,runtime_ns\n1,5e-324\n", "bad.csv:2: the value 4.94066e-324 is too small"),
        ("gpu,runtime_min\n1,1e308\n", "bad.csv:2: the value 1e+308 is too large"),
    ],
)
def test_a_file_without_use_is_an_error_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    done = run(file)

    assert done.exit_code == 2
    assert says in done.stderr
    assert str(file) in done.stderr


def test_physical_values_that_overflow_are_not_used(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    lines = [line.replace(",60,", ",1e308,") for line in results({(4, 2): 0.1})]

    (finding,) = answer(written(tmp_path, lines))["findings"]

    assert finding["name"] == "node-4/2"
    assert "temperature" not in finding["evidence"]
    assert not recwarn.list


def test_a_damaged_gzip_file_is_said(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"gpu,gflops\n" + b"".join(b"%d,%d\n" % (n, n * n) for n in range(500))))
    packed[12] ^= 0xFF
    (tmp_path / "bad.csv.gz").write_bytes(packed)

    done = run(tmp_path / "bad.csv.gz")

    assert done.exit_code == 2
    assert "bad.csv.gz: not gzip, or cut off" in done.stderr


@pytest.mark.parametrize(("text", "status"), [("error", ""), ("0", "OK"), ("87.5", "FAILED"), ("9000", "Timed out")])
def test_failed_tests_are_no_values_and_who_only_failed_is_said(tmp_path: Path, text: str, status: str) -> None:
    lines = ["node,gpu,run,time_ms,status"]
    for node, gpu, number, value in short({(4, 2): 0.15}):
        failed = (node, gpu) == ("node-7", "3") or (node, gpu, number) == ("node-1", "1", 2)
        lines.append(f"{node},{gpu},{number},{text if failed else value},{status if failed else 'pass'}")
    file = written(tmp_path, lines)
    found = answer(file)

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]
    assert found["summary"]["problems"]["count"] == 5
    assert found["summary"]["failed"] == {"gpu node-7/3": 4}
    assert "none of their rows can be used: gpu node-7/3 (4 rows)" in run(file).stdout


@pytest.mark.parametrize(
    ("status", "failed"),
    [("PASS", False), ("completed", False), ("0 errors", False), ("true", False), ("Fail", True), ("TIMEOUT", True),
     ("node_failure", True), ("OUT_OF_MEMORY", True), ("timed out", True), ("False", True)],
)  # fmt: skip
def test_a_status_says_whether_a_test_failed(status: str, failed: bool) -> None:
    assert says_failed(status) == failed


def test_lone_surrogates_become_question_marks(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    draw = random.Random(1)
    names = [*(f"GPU-{number}" for number in range(30)), "GPU-\ud800"]
    rows = [
        {"gpu": name, "run": run, "gflops": draw.gauss(50 if name == "GPU-\ud800" else 100, 1)}
        for run in range(4) for name in names
    ]  # fmt: skip
    file.write_text(json.dumps(rows))

    assert [one["name"] for one in answer(file)["findings"]] == ["GPU-?"]


@pytest.mark.parametrize("flag", ["--fdr=nan", "--min-loss=nan", "--at=0001-01-01T00:00:00+14:00"])
def test_a_flag_that_cannot_be_used_is_refused(tmp_path: Path, flag: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("gpu,gflops\n1,2\n")

    assert run(file, flag).exit_code == 2


def test_a_missing_file_and_rubbish_are_errors(tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish"
    rubbish.write_bytes(bytes(range(128, 256)) * 9)

    assert run(tmp_path / "none.csv").exit_code == 2
    assert "neither text nor Parquet" in run(rubbish).stderr
    assert run().exit_code == 2


def test_models_are_judged_apart_and_few_of_one_are_refused(tmp_path: Path) -> None:
    lines = [line + (",model" if line == HEADER else ",H100") for line in results({})]
    lines += [f"old-{number},0,3000,900,250,60,0,550,V100" for number in range(3)]
    found = answer(written(tmp_path, lines))

    assert found["findings"] == []
    refused = {one["name"]: one["refused"] for one in found["summary"]["populations"]}
    assert refused["H100"] is None
    assert "only 3 can be compared" in refused["V100"]
    assert "together with a file of the whole fleet" in refused["V100"]


def test_a_single_run_says_what_it_cannot_separate(tmp_path: Path) -> None:
    found = answer(written(tmp_path, results({(4, 2): 0.3}, runs=1)))

    assert [one["slow_share"] for one in found["findings"]] == [None]
    assert "noise and chip cannot be separated" in " ".join(found["summary"]["populations"][0]["notes"])


def test_chips_with_one_run_among_others_are_noted(tmp_path: Path) -> None:
    lines = [line for line in results({}) if not line.startswith(("node-3,", "node-4,")) or ",60,0,550" in line]

    notes = answer(written(tmp_path, lines))["summary"]["populations"][0]["notes"]

    assert any(note.startswith("16 chips have one measurement") for note in notes)


def test_chips_that_are_slow_in_their_only_value_are_noted(tmp_path: Path) -> None:
    lines = [line for line in results({(4, 2): 0.4}) if not line.startswith("node-4,") or ",60,0,550" in line]
    bad = next(number for number, line in enumerate(lines) if line.startswith("node-1,1,"))
    lines[bad] = "node-1,1,1900,1380,300,60,0,550"

    found = answer(written(tmp_path, lines))

    assert found["findings"] == []
    notes = found["summary"]["populations"][0]["notes"]
    assert any(
        note.startswith("slow in their only value, repeat the run for them: gpu node-4/2 (3") for note in notes
    )


def test_files_that_each_count_runs_from_one_have_different_runs(tmp_path: Path) -> None:
    files = []
    for month, level in enumerate((1.0, 1.2, 0.9)):
        rows = [row for row in short({(4, 2): 0.15}, 3) if row[2] == month]
        lines = [
            f"{node},{gpu},1,{level * value}"
            for node, gpu, _, value in rows
            if (int(node[5:]) + int(gpu)) % 9 != month
        ]
        files.append(written(tmp_path, ["host,gpu,run,time_ms", *lines], f"{month}.csv"))
    found = answer(*files)

    assert found["summary"]["populations"][0]["runs_of_a_chip"] == 3
    assert found["summary"]["populations"][0]["run_spread"] > 0.1
    assert [one["name"] for one in found["findings"]] == ["node-4/2"]


def test_files_of_nodes_have_the_same_runs(tmp_path: Path) -> None:
    rows = short({(4, 2): 0.15})
    files = [
        written(
            tmp_path,
            ["host,gpu,run,time_ms", *(f"{row[0]},{row[1]},{row[2]},{row[3]}" for row in rows if row[0] == node)],
            f"{node}.csv",
        )
        for node in dict.fromkeys(row[0] for row in rows)
    ]

    population = answer(*files)["summary"]["populations"][0]

    assert (population["runs_of_a_chip"], population["run_effects_removed"]) == (4, True)


@pytest.mark.parametrize(
    ("time", "day"),
    [("2026-03-01T08:00:07Z", "2026-03-01"), ("03/01/2026 08:00:07 PM", "03/01/2026"),
     ("01.03.2026 08:00", "01.03.2026"), ("Sun Mar 01 08:00:07 2026", "Sun Mar 01 2026"),
     ("2026/03/01 08:00:07.123", "2026/03/01"),
     ("1772352007", "2026-03-01"), ("1772352007000", "2026-03-01"), ("2026-03-01 08:00:00+01:00", "2026-03-01"),
     ("20260301", "20260301"), ("soon", "soon"), ("nan", "nan")],
)  # fmt: skip
def test_the_day_of_a_time(time: str, day: str) -> None:
    assert day_of(time) == day


def test_days_on_which_all_chips_are_measured_at_times_of_their_own_are_runs(tmp_path: Path) -> None:
    lines, repeats = ["host,gpu,timestamp,time_ms"], ["host,gpu,timestamp,time_ms"]
    for row, (node, gpu, number, value) in enumerate(short({(4, 2): 0.15})):
        clock = f"{row // 60 % 24:02}:{row % 60:02}:00"
        lines.append(f"{node},{gpu},2026-03-{number + 1:02}T{clock},{value}")
        repeats.append(f"{node},{gpu},2026-03-{int(node[5:]) // 4 + 1:02}T{clock},{value}")
    found, other = answer(written(tmp_path, lines)), answer(written(tmp_path, repeats, "repeats.csv"))

    (daily,), (rolling,) = found["summary"]["populations"], other["summary"]["populations"]
    assert (daily["run_effects_removed"], daily["runs_of_a_chip"]) == (True, 4)
    assert daily["noise"] < 0.02
    assert (rolling["run_effects_removed"], rolling["runs_of_a_chip"]) == (False, 4), "every node on its own day"


def test_runs_are_in_the_order_of_their_numbers_or_dates() -> None:
    chip, file = np.zeros(3, np.int64), np.zeros(3, np.int64)
    for names, ordered in (
        (["10", "9", "2"], ["2", "9", "10"]),
        (["2026-03-01", "2026-01-01", "2026-02-01"], ["2026-01-01", "2026-02-01", "2026-03-01"]),
        (["c", "a", "b"], ["c", "a", "b"]),
    ):
        number, found = runs_of_rows(np.arange(3), chip, file, names)
        assert found == ordered
        assert [found[place] for place in number.tolist()] == names


@pytest.mark.parametrize(("column", "days"), [("trial", True), ("run", True), ("job_id", False)])
def test_runs_that_count_from_1_on_every_day_are_different_ones(tmp_path: Path, column: str, days: bool) -> None:
    lines = [f"host,gpu,date,{column},time_ms"]
    for day in (10, 9, 11):
        for node, gpu, number, value in short({}, runs=2, seed=day):
            lines.append(f"{node},{gpu},2026-03-{day:02d}T08:00:00,{number + 1},{value * (2 if day == 9 else 1)}")
    (found,) = answer(written(tmp_path, lines))["summary"]["populations"]

    assert found["runs_of_a_chip"] == (6 if days else 2)
    assert (found["run_spread"] > 0.2) == days


def test_runs_of_several_days_are_in_the_order_of_these() -> None:
    day, run, chip = np.repeat([0, 1, 2], 4), np.tile([0, 0, 1, 1], 3), np.tile([0, 1, 0, 1], 3)
    number, found = runs_of_rows(
        run, chip, np.zeros(12, np.int64), ["2", "1"], day, ["2026-03-02", "2026-03-01", "2026-03-05"]
    )

    assert found == [f"2026-03-0{day} {run}" for day in (1, 2, 5) for run in (1, 2)]
    assert [found[place] for place in number[::2].tolist()] == [
        "2026-03-02 2", "2026-03-02 1", "2026-03-01 2", "2026-03-01 1", "2026-03-05 2", "2026-03-05 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "apart"),
    [("size", True), ("Batch Size", True), ("N", False), ("dtype", True), ("power_cap_w", True), ("note", False)],
)
def test_parameters_of_a_benchmark_are_judged_apart_and_others_noted(
    tmp_path: Path, column: str, apart: bool
) -> None:
    lines = [f"host,gpu,run,{column},time_ms"]
    for node, gpu, number, value in short({}):
        lines.append(f"{node},{gpu},{number},1024,{value}")
        lines += [f"{node},{gpu},{number},8192.0,{2 * value}"] if node != "node-5" else []
    found = answer(written(tmp_path, lines))
    populations = found["summary"]["populations"]

    assert [one["name"] for one in populations] == ([f"{column} 1024", f"{column} 8192"] if apart else [""])
    assert any("of several benchmarks" in note for one in populations for note in one["notes"]) is not apart
    if apart:
        assert found["findings"] == []


def test_noisy_steps_of_a_run_are_not_taken_for_several_benchmarks(tmp_path: Path) -> None:
    draw = random.Random(3)
    lines = ["host,gpu,run,step,time_ms"]
    for node, gpu, number, value in short({}, 2):
        lines += [f"{node},{gpu},{number},{step},{value * draw.lognormvariate(0, 0.2)}" for step in range(20)]

    assert answer(written(tmp_path, lines))["summary"]["populations"][0]["notes"] == []


def test_a_whole_number_with_decimal_places_is_the_same_gpu(tmp_path: Path) -> None:
    rows = short({(4, 2): 0.15})
    lines = [f"{node},{gpu}{'' if number else '.0'},{number},{value}" for node, gpu, number, value in rows]
    found = answer(written(tmp_path, ["host,gpu,run,time_ms", *lines]))

    assert found["summary"]["populations"][0]["chips"] == 96
    assert [one["name"] for one in found["findings"]] == ["node-4/2"]


@pytest.mark.parametrize(
    ("column", "joint"),
    [("gpu", "{}:{}"), ("host", "{}:{}"), ("device", "{}/gpu{}"), ("gpu_id", "{}_gpu{}"), ("gpu", "{}/{}")],
)
def test_node_and_gpu_may_be_in_one_column(tmp_path: Path, column: str, joint: str) -> None:
    rows = short({(4, 2): 0.15, **{(7, gpu): 0.12 for gpu in range(8)}})
    lines = [f"{joint.format(node, gpu)},{number},{value}" for node, gpu, number, value in rows]
    found = answer(written(tmp_path, [f"{column},run,time_ms", *lines]))

    assert {(one["kind"], one["name"]) for one in found["findings"]} == {("gpu", "node-4/2"), ("node", "node-7")}


@pytest.mark.parametrize("name", ["gpu-5f3c-77aa", "00000000:3B:00.0", "host-3:9400", "MIG-1/3/0"])
def test_other_names_are_not_taken_apart(tmp_path: Path, name: str) -> None:
    lines = ["gpu,run,time_ms", *(f"{name if chip == 7 else chip},0,{2 if chip == 7 else 1}" for chip in range(40))]

    assert [one["name"] for one in answer(written(tmp_path, lines))["findings"]] == [name]


def moved(replaced: bool) -> list[str]:
    """Three of six runs of 24 nodes, in which GPU 5 is 20 % slower, then another three after it was moved."""
    draw, lines = random.Random(4), ["uuid,hostname,gpu_id,run,kernel_time_ms"]
    effect = {gpu: draw.gauss(0, 0.01) + (0.2 if gpu == 5 else 0) for gpu in range(97)}
    for number, place in ((number, place) for number in range(6) for place in range(96)):
        gpu = ({5: 96} if replaced else {5: 70, 70: 5}).get(place, place) if number >= 3 else place
        time = 2500 * math.exp(effect[gpu] + draw.gauss(0, 0.003))
        lines.append(f"GPU-{gpu:04x},h{place // 4:02d},{place % 4},{number},{time:.2f}")
    return lines


@pytest.mark.parametrize(("replaced", "place"), [(True, ("h01", "1", [])), (False, ("h17", "2", ["h01/1"]))])
def test_a_chip_that_was_moved_or_replaced_is_known_by_its_uuid(
    tmp_path: Path, replaced: bool, place: tuple[str, str, list[str]]
) -> None:
    file = written(tmp_path, moved(replaced))
    (one,) = answer(file)["findings"]

    assert (one["name"], (one["node"], one["slot"], one["before"])) == ("GPU-0005", place)
    assert "/".join(place[:2]) in run(file).stdout


@pytest.mark.parametrize("replaced", [False, True])
def test_a_node_with_a_new_name_is_one_node_and_named_by_it(tmp_path: Path, replaced: bool) -> None:
    lines = ["hostname,gpu_index,uuid,date,time_ms"]
    for node, gpu, number, value in short({(4, gpu): 0.1 for gpu in range(8)}, 4):
        name = node if number < 2 else f"rack1-{node}"
        new = "-new" if replaced and gpu == "1" and number >= 2 else ""
        lines.append(f"{name},{gpu},GPU-{node}-{gpu}{new},2026-0{number + 1}-01,{value}")

    (one,) = answer(written(tmp_path, lines))["findings"]

    assert (one["kind"], one["name"]) == ("node", "rack1-node-4")


def test_only_nodes_whose_chips_stay_together_have_new_names() -> None:
    def moved(*ways: str) -> list[list[tuple[str, str]]]:
        return [[(node, "") for node in way] for way in ways]

    assert renamed(moved("ab", "ab", "a", "cd", "cd")) == {"a": "b", "c": "d"}
    assert renamed(moved("abc", "abc", "bc")) == {"a": "c", "b": "c"}
    assert renamed(moved("ab", "ac", "d")) == {}
    assert renamed(moved("ab", "ab", "cb")) == {}
    assert renamed(moved("ab", "a", "a", "a")) == {}


def test_a_chip_without_a_uuid_in_some_rows_is_known_by_its_place(tmp_path: Path) -> None:
    lines = ["uuid,host,gpu_id,run,time_ms"]
    for node, gpu, number, value in short({(4, 2): 0.15}):
        lines.append(f"{'' if node == 'node-4' else f'GPU-{node}-{gpu}'},{node},{gpu},{number},{value}")
    found = answer(written(tmp_path, lines))

    assert found["summary"]["populations"][0]["chips"] == 96
    assert [one["name"] for one in found["findings"]] == ["node-4/2"]


@pytest.mark.parametrize("serial", ["{node}", "{node}-{gpu}-{number}"])
def test_names_of_nodes_and_of_rows_are_no_names_of_chips(tmp_path: Path, serial: str) -> None:
    lines = ["serial,host,gpu_id,run,time_ms"]
    for node, gpu, number, value in short({(4, 2): 0.15}):
        lines.append(f"{serial.format(node=node, gpu=gpu, number=number)},{node},{gpu},{number},{value}")

    assert [one["name"] for one in answer(written(tmp_path, lines))["findings"]] == ["node-4/2"]


def clusters(column: str, prefix: str = "") -> list[str]:
    """Results of two clusters with the same names of hosts, of which one is 14 % faster."""
    lines = [f"{column},host,gpu,run,time_ms"]
    lines += [f"east,{node},{gpu},{number},{value}" for node, gpu, number, value in short({(7, 1): 0.15})]
    for node, gpu, number, value in short({(4, 2): 0.15}, seed=2):
        if int(node[5:]) < 6:
            lines.append(f"west,{prefix}{node},{gpu},{number},{0.86 * value}")
    return lines


@pytest.mark.parametrize("column", ["cluster", "system", "Site", "machine"])
def test_clusters_are_judged_apart_and_their_hosts_of_one_name_are_different(tmp_path: Path, column: str) -> None:
    found = answer(written(tmp_path, clusters(column)))

    assert [(one["name"], one["chips"]) for one in found["summary"]["populations"]] == [("east", 96), ("west", 48)]
    assert {one["name"] for one in found["findings"]} == {"node-7/1", "west/node-4/2"}


def test_a_partition_is_a_cluster_only_if_no_node_is_in_several(tmp_path: Path) -> None:
    apart = answer(written(tmp_path, clusters("partition", "w-")))
    joint = answer(written(tmp_path, clusters("partition")))

    assert {one["name"] for one in apart["findings"]} == {"node-7/1", "w-node-4/2"}
    assert [one["name"] for one in joint["summary"]["populations"]] == ["kind 1 of 2", "kind 2 of 2"]
    assert joint["summary"]["unknown_columns"] == ["partition"]


def test_nodes_of_another_model_that_no_column_tells_are_judged_apart(tmp_path: Path) -> None:
    lines = ["host,cabinet,gpu,run,time_ms"]
    for node, gpu, number, value in short({(1, 4): 0.15, (10, 2): 0.12}):
        place = int(node[5:])
        lines.append(f"{node},c{place // 5},{gpu},{number},{value * (0.35 if place > 7 else 1)}")
    found = answer(written(tmp_path, lines))

    assert {(one["name"], one["population"]) for one in found["findings"]} == {
        ("node-1/4", "kind 2 of 2"), ("node-10/2", "kind 1 of 2"),
    }  # fmt: skip
    (note,) = (note for one in found["summary"]["populations"] for note in one["notes"] if "kind" in note)
    assert note.startswith("4 of 12 nodes are 18")
    assert " % faster than those of kind 2, and like each other: of another kind that no column tells" in note


@pytest.mark.parametrize("gpus", [0, 2])
def test_nodes_that_are_always_in_the_same_jobs_are_one_finding(tmp_path: Path, gpus: int) -> None:
    draw = random.Random(3)
    lines = ["host,job_id,step_time_ms" + (",local_rank" if gpus else "")]
    for job in range(160):
        block = job % 16
        value = 500 * math.exp((0.2 if block == 2 else 0.0) + draw.gauss(0, 0.01))
        ranks = [f",{rank}" for rank in range(gpus)] or [""]
        lines += [f"n{4 * block + node},j{job},{value:.2f}{rank}" for node in range(4) for rank in ranks]
    found = answer(written(tmp_path, lines))

    assert [(one["kind"], one["name"]) for one in found["findings"]] == [("node", "n8 + n9 + n10 + n11")]
    assert any("nothing tells which of them" in note for note in found["summary"]["populations"][0]["notes"])


def test_a_node_some_of_whose_chips_are_not_slow_says_which_are(tmp_path: Path) -> None:
    file = written(tmp_path, results({(4, gpu): 0.15 for gpu in range(6)}))
    (one,) = answer(file)["findings"]

    assert (one["kind"], one["name"], one["members"]) == ("node", "node-4", 8)
    assert one["slow"] == [f"gpu node-4/{gpu}" for gpu in range(6)]
    assert "6 of 8 are slow: gpu node-4/0," in run(file).stdout


def test_racks_of_a_table_of_nodes_are_compared(tmp_path: Path) -> None:
    draw = random.Random(4)
    effects = [draw.gauss(0, 0.01) + 0.08 * (node // 8 == 5) + 0.2 * (node == 9) for node in range(96)]
    lines = ["node,rack,run,time_ms"]
    for number in range(4):
        lines += [
            f"n{node},R{node // 8},{number},{100 * math.exp(effect + draw.gauss(0, 0.005))}"
            for node, effect in enumerate(effects)
        ]
    file = written(tmp_path, lines)
    found = answer(file)

    assert [(one["kind"], one["name"]) for one in found["findings"]] == [("node", "n9"), ("group", "R5")]
    assert found["findings"][1]["slow"] == [f"node n{node}" for node in range(40, 48)]
    (population,) = found["summary"]["populations"]
    assert (population["chips"], population["nodes"], population["groups"]) == (96, 0, 12)
    assert run(file, "--plot", tmp_path / "racks.png").exit_code == 0


def test_a_column_of_many_clusters_is_none(tmp_path: Path) -> None:
    lines = ["system,host,gpu,run,time_ms"]
    lines += [f"s-{node},{node},{gpu},{number},{value}" for node, gpu, number, value in short({(7, 1): 0.15})]
    found = answer(written(tmp_path, lines))

    assert [one["name"] for one in found["findings"]] == ["node-7/1"]
    assert found["summary"]["unknown_columns"] == ["system"]


def test_a_rank_beside_a_node_is_its_gpu(tmp_path: Path) -> None:
    rows = short({(4, 2): 0.15})
    lines = [f"{node},{8 * int(node[5:]) + int(gpu)},{number},{value}" for node, gpu, number, value in rows]
    found = answer(written(tmp_path, ["host,rank,iteration,step_time_ms", *lines]))

    assert [(one["kind"], one["name"], one["node"]) for one in found["findings"]] == [("gpu", "34", "node-4")]


def test_no_name_is_cut_where_the_output_is_no_terminal(tmp_path: Path) -> None:
    longer = "a-node-with-a-name-that-is-longer-than-others.cluster.example.com-"
    lines = [line.replace("node-", longer) for line in results({(4, 2): 0.15})]

    assert f"gpu {longer}4/2 " in run(written(tmp_path, lines)).stdout


def test_causes_are_lines_below_the_table_and_the_ledger_is_a_column_if_there_is_one(tmp_path: Path) -> None:
    file = written(tmp_path, results({(4, 2): 0.15, (7, 1): 0.2}))

    lines = run(file).stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("low clock at usual power"))

    assert [line.split(":")[0] for line in lines[place + 1 : place + 3]] == ["  gpu node-7/1", "  gpu node-4/2"]
    assert "(usual 13" in lines[place + 1]
    assert "ledger" not in "".join(lines)
    assert "ledger" in run(file, "--ledger", tmp_path / "lemons.jsonl").stdout


def test_findings_of_one_chip_in_several_benchmarks_name_each_other(tmp_path: Path) -> None:
    lines = ["host,gpu,run,app,time_ms"]
    for app in ("gemm", "copy"):
        lines += [f"{node},{gpu},{number},{app},{value}" for node, gpu, number, value in short({(4, 2): 0.15})]
    file = written(tmp_path, lines)

    assert [one["also"] for one in answer(file)["findings"]] == [["gpu node-4/2 in copy"], ["gpu node-4/2 in gemm"]]
    assert "  gpu node-4/2 in gemm: also gpu node-4/2 in copy" in run(file).stdout


@pytest.mark.parametrize("days", [2, 12])
def test_nodes_that_are_all_that_was_measured_on_a_slow_day_are_compared_with_each_other(
    tmp_path: Path, days: int
) -> None:
    draw, lines = random.Random(10), ["host,gpu,date,run,time_ms"]
    for node in range(48):
        for gpu, repeat in ((gpu, repeat) for gpu in range(4) for repeat in range(3)):
            slow = (0.15 if node // 4 == 5 else 0) + (0.15 if (node, gpu) in ((9, 1), (21, 2)) else 0)
            value = 1000 * math.exp(draw.gauss(0, 0.01) + slow)
            day = node // 4 if days == 12 or node // 4 == 5 else 0
            lines.append(f"node-{node},{gpu},2026-03-{day + 1:02d}T08:{repeat:02d}:00,{repeat},{value}")
    found = answer(written(tmp_path, lines))

    assert {one["name"]: round(one["loss"], 1) for one in found["findings"]} == {"node-9/1": 0.1, "node-21/2": 0.1}
    (note,) = found["summary"]["populations"][0]["notes"]
    assert all(f"node node-{node}" in note for node in (20, 21, 22, 23))
    assert "measured on 2026-03-06 only, when hardly any others were, and all slower, by 14." in note


def test_slow_nodes_of_different_days_have_no_such_note(tmp_path: Path) -> None:
    lines = ["host,gpu,date,run,time_ms"]
    slow = {(node, gpu): 0.15 for node in (4, 8) for gpu in range(8)}
    for node, gpu, number, value in short(slow):
        lines.append(f"{node},{gpu},2026-03-{int(node[5:]) // 2 + 1:02d},{number},{value}")
    found = answer(written(tmp_path, lines))

    assert {one["name"] for one in found["findings"]} == {"node-4", "node-8"}
    assert found["summary"]["populations"][0]["notes"] == []


def test_a_chip_that_has_become_slower_is_noted_with_the_run(tmp_path: Path) -> None:
    lines = ["host,gpu,run,time_ms"]
    for node, gpu, number, value in short({}, 12):
        slower = 1.2 if (node, gpu) == ("node-4", "2") and number >= 7 else 1
        lines.append(f"{node},{gpu},2026-{number + 1:02d},{slower * value}")
    found = answer(written(tmp_path, [lines[0], *reversed(lines[1:])]))

    assert found["findings"] == []
    (note,) = found["summary"]["populations"][0]["notes"]
    assert "gpu node-4/2 (1" in note
    assert note.endswith("since run 2026-08)")


def test_a_chip_that_is_slow_in_most_runs_since_one_is_named_with_it(tmp_path: Path) -> None:
    lines = ["host,gpu,run,time_ms"]
    for node, gpu, number, value in short({}, 12):
        slower = 1.2 if (node, gpu) == ("node-4", "2") and number >= 4 else 1
        lines.append(f"{node},{gpu},2026-{number + 1:02d},{slower * value}")
    file = written(tmp_path, lines)

    (one,) = answer(file)["findings"]

    assert (one["name"], one["slow_share"], one["slow_since"]) == ("node-4/2", 1.0, "2026-05")
    assert "since 2026-05" in run(file).stdout


def test_an_unsteady_chip_is_noted_and_not_named(tmp_path: Path) -> None:
    lines = ["host,gpu,run,time_ms"]
    for node, gpu, number, value in short({}, 5):
        factor = (1.3, 1.2, 0.75, 1.35, 0.8)[number] if (node, gpu) == ("node-4", "2") else 1
        lines.append(f"{node},{gpu},{number},{factor * value}")
    found = answer(written(tmp_path, lines))

    assert found["findings"] == []
    (note,) = found["summary"]["populations"][0]["notes"]
    assert note.startswith("unsteady")
    assert "gpu node-4/2 (by 2" in note


@pytest.mark.parametrize(
    ("values", "rounding"),
    [([40.0, 41.0, 41.0, 43.0], 0.5 / 41), ([2.2, 2.3, 2.4], 0.05 / 2.3), ([999.123, 1000.456, 1001.001], 0.0),
     ([40.0, 41.5, 42.7182], 0.0), ([40.0, 40.0], 0.0)],
)  # fmt: skip
def test_the_step_of_rounded_values_is_found(values: list[float], rounding: float) -> None:
    assert rounding_of(np.array(values)) == pytest.approx(rounding, rel=1e-6)


@pytest.mark.parametrize("name", ["GEMM perf", "hbm_bw", "HPL performance"])
def test_a_performance_by_any_name_is_the_value_where_there_is_no_other(tmp_path: Path, name: str) -> None:
    lines = [f"node,gpu,run,{name}"]
    lines += [
        f"{node},{gpu},{run},{1e6 / float(value):.2f} TFLOP/s" for node, gpu, run, value in short({(4, 2): 0.15})
    ]
    assert [one["name"] for one in answer(written(tmp_path, lines))["findings"]] == ["node-4/2"]
    both = ["node,gpu,run,time_ms," + name, *(",".join(map(str, (*row, 1))) for row in short({(4, 2): 0.15}))]
    assert [one["name"] for one in answer(written(tmp_path, both))["findings"]] == ["node-4/2"]


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    lines = [line.replace("Perf (ms)", "x").replace("GPU Index", "y") for line in results({(4, 2): 0.15})]
    found = answer(written(tmp_path, lines), "--value", "x", "--gpu", "y", "--lower-is-better")

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]
    assert run(tmp_path / "results.csv", "--value", "none").exit_code == 2
    assert run(tmp_path / "results.csv", "--column", "colour=x").exit_code == 2


def test_the_ledger_says_who_is_new_still_there_or_back_after_a_repair(tmp_path: Path) -> None:
    ledger = tmp_path / "lemons.jsonl"
    months = [{(4, 2): 0.15}, {(4, 2): 0.15}, {}, {(4, 2): 0.15, (7, 1): 0.2}]
    files = [written(tmp_path, results(slow, seed=9 + n), f"{n}.csv") for n, slow in enumerate(months)]
    stories = []
    for month, file in enumerate(files):
        found = answer(file, "--ledger", ledger, "--at", f"2026-0{month + 1}-01T00:00:00Z")
        stories.append({one["name"]: one["ledger"] for one in found["findings"]})
        if month == 1:
            assert run("--ledger", ledger, "--repaired", "gpu node-4/2", "--at", "2026-02-10").exit_code == 0

    assert stories[0]["node-4/2"]["state"] == "new"
    assert stories[1]["node-4/2"]["state"] == "still"
    assert stories[2] == {}
    back = stories[3]["node-4/2"]
    assert (back["state"], back["named_before"], back["repairs"], back["cleared"][:10]) == (
        "returned",
        2,
        1,
        "2026-02-10",
    )
    assert stories[3]["node-7/1"]["state"] == "new"


def test_a_chip_that_is_back_is_on_the_list_since_then(tmp_path: Path) -> None:
    ledger = tmp_path / "lemons.jsonl"
    for month, slow in enumerate([{(4, 2): 0.15}, {}, {(4, 2): 0.15}, {(4, 2): 0.15}, {(4, 2): 0.15}], 1):
        file = written(tmp_path, results(slow, seed=month), f"{month}.csv")
        found = answer(file, "--ledger", ledger, "--at", f"2026-0{month}-01")
    shown = run(file, "--ledger", ledger, "--at", "2026-05-01").stdout

    (one,) = found["findings"]
    assert (one["ledger"]["state"], one["ledger"]["since"][:10], one["ledger"]["returned"]) == (
        "still",
        "2026-03-01",
        1,
    )
    assert "on the list since 2026-03-01 again, first 2026-01-01" in " ".join(shown.split())


def test_audits_count_in_the_order_of_their_times(tmp_path: Path) -> None:
    ledger = tmp_path / "lemons.jsonl"
    months = [{(4, 2): 0.15}, {(4, 2): 0.15}, {}, {(4, 2): 0.15}]
    files = [written(tmp_path, results(slow, seed=9 + n), f"{n}.csv") for n, slow in enumerate(months)]
    stories = {}
    for month in (2, 0, 1, 3):
        found = answer(files[month], "--ledger", ledger, "--at", f"2026-0{month + 1}-01T00:00:00Z")
        for one in found["findings"]:
            stories[month] = one["ledger"]

    assert stories[0]["state"] == "new"
    assert stories[1]["state"] == "still"
    assert (stories[3]["state"], stories[3]["first"][:7], stories[3]["last"][:7], stories[3]["cleared"][:7]) == (
        "returned",
        "2026-01",
        "2026-02",
        "2026-03",
    )


def test_a_repair_of_a_name_that_the_ledger_never_had_is_refused(tmp_path: Path) -> None:
    ledger = tmp_path / "lemons.jsonl"
    answer(written(tmp_path, results({(4, 2): 0.15})), "--ledger", ledger)
    before = ledger.read_bytes()

    for name in ("node-4/2", "gpu node-44/2"):
        done = run("--ledger", ledger, "--repaired", name)
        assert done.exit_code == 2
        assert "'gpu node-4/2'" in done.stderr
    assert ledger.read_bytes() == before
    assert run("--ledger", ledger, "--repaired", "gpu node-7/1").exit_code == 0, "judged, though never named"


def test_an_audit_is_recorded_once_and_a_torn_ledger_is_read(tmp_path: Path) -> None:
    ledger = tmp_path / "lemons.jsonl"
    file = written(tmp_path, results({(4, 2): 0.15}))
    answer(file, "--ledger", ledger)
    with ledger.open("a") as stream:
        stream.write('{"time": "2026-')

    again = answer(file, "--ledger", ledger)["summary"]["ledger"]
    other = answer(written(tmp_path, results({}, seed=5)), "--ledger", ledger)["summary"]["ledger"]

    assert (again["recorded"], again["unreadable_lines"]) == (False, 1)
    assert (other["recorded"], other["audits_before"], other["cleared"]) == (True, 1, ["gpu node-4/2"])
    assert len(ledger.read_text().splitlines()) == 3


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_file_that_is_no_ledger_is_refused_and_stays_as_it_is(tmp_path: Path, suffix: str) -> None:
    lines = [
        "time,node,gpu,time_ms",
        *(f"2026-01-01,n{node},{gpu},{100 + node}" for node in range(4) for gpu in range(4)),
    ]
    if suffix == "jsonl":
        lines = [json.dumps({"time": "2026-01-01", "node": f"n{node}", "time_ms": 100 + node}) for node in range(16)]
    file = written(tmp_path, lines, f"results.{suffix}")
    before = file.read_bytes()

    done = run(file, "--ledger", file)

    assert (done.exit_code, file.read_bytes()) == (2, before)
    assert "not a ledger of audits" in done.stderr


def test_a_plot_is_written(tmp_path: Path) -> None:
    file = written(tmp_path, results({(4, 2): 0.15}))

    assert run(file, "--plot", tmp_path / "fleet.png").exit_code == 0
    assert (tmp_path / "fleet.png").read_bytes().startswith(b"\x89PNG")
    assert run(file, "--plot", tmp_path / "fleet.nothing").exit_code == 2


@pytest.mark.parametrize(
    ("column", "name", "unit"),
    [("Perf (ms)", "perf", "ms"), ("gpuTemp[°C]", "gpu temp", "c"), ("power_draw_w", "power draw", "w"),
     ("GB/s", "gb s", ""), ("Throughput (GB/s)", "throughput", "gb s"), ("node", "node", "")],
)  # fmt: skip
def test_units_in_headers_are_split_off(column: str, name: str, unit: str) -> None:
    assert split_unit(column) == (name, unit)


def test_a_remark_in_brackets_behind_a_rate_is_no_unit() -> None:
    column = "GEMM GFLOPS (FP16)"
    assert recognised(["Hostname", "GPU Index", column], {})[0]["value"] == column
    assert split_unit(column) == ("gemm", "gflops")


def test_a_rate_at_the_end_of_a_name_is_its_unit() -> None:
    names = ("gemm_gflops", "GB/s", "Perf (ms)", "tokens per s", "value")
    assert [unit_in_name(name) for name in names] == ["gflops", "gb s", "ms", "", ""]


@pytest.mark.parametrize(
    ("hints", "lower"),
    [(("ms",), True), (("GB/s",), False), (("it/s",), False), (("step time",), True), (("higher", "ms"), False),
     (("colour",), None), (("tokens per second",), False), (("perf",), None), (("performance",), None)],
)  # fmt: skip
def test_units_and_names_say_which_direction_is_better(hints: tuple[str, ...], lower: bool | None) -> None:
    assert lower_is_better(*hints) is lower


@pytest.mark.parametrize(
    ("column", "lower"),
    [("perf_ms", True), ("Performance (ms)", True), ("steps_s", False), ("images/s", False), ("step/s", False),
     ("step_s", True), ("tokens_sec", False), ("sgemm_ms", True)],
)  # fmt: skip
def test_a_time_in_a_name_is_told_from_a_rate(column: str, lower: bool) -> None:
    assert recognised(["gpu", column], {})[0]["value"] == column
    assert lower_is_better(unit_in_name(column), " ".join(split_unit(column))) is lower


@pytest.mark.parametrize(
    ("column", "lower"),
    [("bandwidth_min", False), ("gflops_min", False), ("tokens_per_min", False), ("gemm_min", None),
     ("gemm (min)", True), ("runtime_min", True), ("max", None), ("min", None), ("Mop/s total", False),
     ("time_per_1000_samples", True), ("sec per 100 steps", True), ("samples per joule", False),
     ("error_rate", True), ("copy rate", False), ("jitter", True)],
)  # fmt: skip
def test_the_least_rate_is_no_time_and_the_time_of_many_samples_no_rate(column: str, lower: bool | None) -> None:
    assert lower_is_better("", unit_in_name(column), " ".join(split_unit(column))) is lower


def test_minutes_are_the_last_word_of_times_only() -> None:
    assert [split_unit(name)[1] for name in ("elapsed_min", "watts_min", "p2p_bw_min", "gemm (min)")] == [
        "min", "", "", "min",
    ]  # fmt: skip
    assert recognised(["node", "power_watts_min", "power_watts_max", "job_sec"], {})[0]["value"] == "job_sec"


@pytest.mark.parametrize(
    ("role", "columns"),
    [("clock", "freq med_freq avg_sm_clock_mhz gfx_clock DCGM_FI_DEV_SM_CLOCK clocks.sm freq_mean sclk"),
     ("power", "power_w med_power socket_power avg_power_w DCGM_FI_DEV_POWER_USAGE power.draw.average max_power"),
     ("power", "avg_pwr_w Average_Graphics_Package_Power_W"), ("clock", "current_gfxclk_mhz avg_clk"),
     ("value", "bw FOM mfu_pct GTEPS MTEPS ns/day steps/hour busbw_gbps"),
     ("temperature", "temp_c med_temp junction_temperature max_temp_c DCGM_FI_DEV_GPU_TEMP temperature.gpu"),
     ("value", "median_kernel_duration_us median_perf_ms avg_runtime iter_time iteration_duration kernel_ms "
               "mean_time_ms max_duration_s iteration_ms")],
)  # fmt: skip
def test_columns_are_recognised_with_statistics_and_units(role: str, columns: str) -> None:
    for column in columns.split():
        assert recognised(["gpu", column], {})[0] == {"gpu": "gpu", role: column}


def test_of_both_bandwidths_of_nccl_that_of_the_bus_is_used() -> None:
    assert recognised(["host", "size", "algbw (GB/s)", "busbw (GB/s)"], {})[0]["value"] == "busbw (GB/s)"
    columns = ["host", "out-of-place algbw (GB/s)", "out-of-place busbw (GB/s)"]
    assert recognised(columns, {})[0]["value"] == "out-of-place busbw (GB/s)"


@pytest.mark.parametrize("column", ["ms", "ms_per_step", "s/it", "us per call", "seconds"])
def test_a_unit_of_time_is_the_name_of_a_value(column: str) -> None:
    assert recognised(["gpu", column], {})[0] == {"gpu": "gpu", "value": column}
    assert lower_is_better("", unit_in_name(column), column)


def test_losses_in_percent_are_what_is_missing_to_100(tmp_path: Path) -> None:
    """A chip without a loss is usable, and twice a small loss is no chip that is half as fast."""
    lines = ["host,gpu,run,clock_loss_pct"]
    for node, gpu, number, value in short({(4, 2): 0.15}):
        lines.append(f"{node},{gpu},{number},{100 - 98000 / value if node != 'node-8' else 0:.3f}")
    found = answer(written(tmp_path, lines), "--value", "clock_loss_pct")

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]
    assert found["findings"][0]["loss"] == pytest.approx(0.14, abs=0.03)


def test_of_several_statistics_of_a_value_one_is_used() -> None:
    found, unused = recognised(["gpu", "max_time_ms", "median_time_ms", "freq", "med_freq"], {})

    assert (found["value"], found["clock"], unused) == ("median_time_ms", "freq", ["max_time_ms", "med_freq"])


def test_other_times_are_no_results() -> None:
    assert recognised(["gpu", "uptime_s", "start_ms", "timeout_s", "sgemm_ms"], {})[0]["value"] == "sgemm_ms"


def test_a_uuid_names_the_chip_and_a_number_is_its_place() -> None:
    for names in (["uuid", "hostname", "gpu_id"], ["host", "GPU Index", "gpu_serial"], ["node", "slot", "GPU UUID"]):
        found = recognised([*names, "gflops"], {})[0]
        assert {found["gpu"], found["slot"], found["node"]} == set(names)
        assert found["gpu"].lower() in ("uuid", "gpu_serial", "gpu uuid")
    assert recognised(["host", "slot", "gflops"], {})[0]["gpu"] == "slot"
    assert recognised(["uuid", "gpu_id", "gflops"], {"gpu": "gpu_id"})[0] == {"gpu": "gpu_id", "value": "gflops"}
    assert recognised(["uuid", "gpu_id", "gflops"], {"gpu": "uuid"})[0]["slot"] == "gpu_id"


def test_a_rate_of_anything_is_the_value_if_it_is_the_only_one() -> None:
    for name in ("gemm_gflops", "tokens/s/gpu", "hbm_gbps", "samples per second", "stream bandwidth"):
        assert recognised(["gpu", "driver", name], {})[0] == {"gpu": "gpu", "value": name}
    assert recognised(["gpu", "gflops", "timestamp s", "power (W)"], {})[0]["value"] == "gflops"


def test_time_is_the_value_unless_another_column_is() -> None:
    assert recognised(["gpu", "time"], {})[0] == {"gpu": "gpu", "value": "time"}
    assert recognised(["gpu", "time", "gflops"], {})[0]["time"] == "time"


@pytest.mark.parametrize(
    ("text", "quantity"),
    [("1,380 ", (1380.0, "")), ("12,5", (12.5, "")), ("300 W", (300.0, "w")), ("[N/A]", None), ("1e3", (1000.0, "")),
     ("998.1ms", (998.1, "ms")), ("1.0020s", (1.002, "s")), ("50.9 TFLOP/s", (50.9, "tflop s")),
     ("40 %", (40.0, "percent")), ("1:34.20", (94.2, "s")), ("01:00:04", (3604.0, "s")), ("1m34.2s", (94.2, "s")),
     ("50'888.10", (50888.1, "")),
     ("50’888", (50888.0, "")), ("50_888", (50888.0, "")), ("50\u202f888.5", (50888.5, "")),
     ("50.888,10", (50888.1, ""))],
)  # fmt: skip
def test_numbers_may_have_units_and_separators(text: str, quantity: tuple[float, str] | None) -> None:
    assert quantity_of(text) == quantity


@pytest.mark.parametrize(
    "text",
    ["998 retry", "998 (ok)", "998*", "998 ± 2", "998-1004", "998/2000", ">998", "1 2", "50 888,5", "5_0", "1.2.3"],
)
def test_text_after_a_number_that_is_no_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a number|no known unit"):
        quantity_of(text)


@pytest.mark.parametrize(
    ("header", "written_as"),
    [("duration", lambda ms: f"{ms:.2f}ms" if ms < 1000 else f"{ms / 1000:.5f}s"),
     ("time", lambda ms: f"{ms // 60000:.0f}:{ms / 1000 % 60:08.5f}"),
     ("perf", lambda ms: f"{5e7 / ms:.2f} GFLOPS" if ms < 1000 else f"{5e4 / ms:.5f} TFLOPS")],
)  # fmt: skip
def test_units_in_cells_are_converted(tmp_path: Path, header: str, written_as: Callable[[float], str]) -> None:
    rows = [line.split(",") for line in results({(4, 2): 0.15})[1:]]
    lines = [f"host,gpu,run,{header}", *(f"{row[0]},{row[1]},{row[6]},{written_as(float(row[2]))}" for row in rows)]
    found = answer(written(tmp_path, lines))

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]
    assert found["findings"][0]["loss"] == pytest.approx(0.14, abs=0.02)
    assert len(found["summary"]["populations"]) == 1


def test_a_column_of_units_with_prefixes_is_one_population(tmp_path: Path) -> None:
    rows = [line.split(",") for line in results({(4, 2): 0.15})[1:]]
    lines = ["host,gpu,run,value,unit"]
    for node, gpu, ms, *_, number, _ in rows:
        lines.append(
            f"{node},{gpu},{number}," + (f"{5e7 / float(ms)},GFLOPS" if gpu < "4" else f"{5e4 / float(ms)},TFLOP/s")
        )
    found = answer(written(tmp_path, lines))

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]
    assert len(found["summary"]["populations"]) == 1


@pytest.mark.parametrize(
    ("states", "says"),
    [({"power": "usual"}, "no clock given"), ({}, "no physical evidence"),
     ({"clock": "low", "power": "low"}, "power limit"),
     ({"clock": "low", "temperature": "high"}, "hot: throttled"), ({"clock": "usual", "power": "usual"}, "as usual"),
     ({"temperature": "high", "clock": "usual"}, "hot, though")],
)  # fmt: skip
def test_physical_values_lead_to_a_cause(states: dict[str, str], says: str) -> None:
    assert says in likely_cause(states)
