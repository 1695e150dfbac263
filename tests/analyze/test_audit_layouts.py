"""Tables with a column a GPU or a run, and rows about several nodes, are read as one row a GPU, run or node."""

import json
import math
import random
import zipfile
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingero_analyze.audit.chips import Coded, places
from ingero_analyze.audit.columns import parameters_of, recognised
from ingero_analyze.audit.joint_rows import nodes_of, of_single_members
from ingero_analyze.audit.measurements import Measurements, ReadingOptions
from ingero_analyze.audit.merged_cells import with_node_above
from ingero_analyze.audit.value_lists import of_single_values
from ingero_analyze.audit.wide import unpivoted
from ingero_detect.audit.audit import audit
from ingero_testing.audit_tables import answer, run, short, written

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


def by_rack(racks: int, column: str) -> str:
    """Nodes that are numbers within one of so many racks; columns as published benchmark scripts name them."""
    lines = [f"exp,reps,{column},node,device,mean_iter_dur"]
    lines += [
        f"resnet,{run},c{node % racks},{node // racks:03d},{gpu},{value:.4f}"
        for (node, gpu, run), value in results(250).items()
    ]
    return "\n".join(lines)


@pytest.mark.parametrize("column", ["cabinet", "rack_id", "Chassis", "pod", "group"])
def test_nodes_that_are_numbers_within_a_rack_are_different_ones(tmp_path: Path, column: str) -> None:
    assert names(tmp_path, by_rack(4, column)) == {"c1/002/1"}


def test_a_node_that_was_moved_to_another_rack_is_the_same(tmp_path: Path) -> None:
    lines = by_rack(1, "rack").splitlines()
    moved = [line.replace(",c0,", f",c{int(line.split(',')[1]) % 2},") if ",00" in line else line for line in lines]

    assert names(tmp_path, "\n".join(moved)) == {"009/1"}


def test_a_node_in_several_pods_is_the_same(tmp_path: Path) -> None:
    lines = by_rack(1, "pod").splitlines()

    assert names(tmp_path, "\n".join(line.replace(",c0,", f",p{line.split(',')[1]},") for line in lines)) == {"009/1"}


@pytest.mark.parametrize("column", ["time_ms_{}", "run {} (ms)", "runtime_ms {}"])
def test_a_column_a_run(tmp_path: Path, column: str) -> None:
    found = results(1000)
    lines = ["host,gpu," + ",".join(map(column.format, range(3)))]
    lines += [
        f"n{node},{gpu}," + ",".join(f"{found[node, gpu, run]:.2f}" for run in range(3))
        for node in range(24) for gpu in range(4)
    ]  # fmt: skip

    assert names(tmp_path, "\n".join(lines)) == {"n9/1"}


def test_a_pivot_table_of_nodes_and_numbers_of_gpus(tmp_path: Path) -> None:
    rows = [value for node, gpu, run, value in short({(4, 2): 0.3}) if run == 0]
    lines = ["host," + ",".join(map(str, range(8)))]
    lines += [f"n{node}," + ",".join(map(str, rows[8 * node : 8 * node + 8])) for node in range(12)]
    found = answer(written(tmp_path, lines), "--lower-is-better")

    assert [one["name"] for one in found["findings"]] == ["n4/2"]
    assert unpivoted(["host", "1", "2"], iter(()), ())[0] == ["host", "1", "2"]
    assert unpivoted(["gpu", "0", "1"], iter(()), ())[0] == ["gpu", "0", "1"]


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
    assert of_single_members(["src", "dst", "busbw"], iter(()), ["dst"])[0] == ["src", "dst", "busbw"]


@pytest.mark.parametrize("header", ["node_a,node_b", "src,dst", "nodes"])
def test_the_node_of_all_slow_pairs_is_named(tmp_path: Path, header: str) -> None:
    draw = random.Random(5)
    effect = {node: draw.gauss(0, 0.01) + 0.2 * (node == 4) for node in range(16)}
    lines = [f"{header},size,busbw (GB/s)"]
    for a, b in combinations(effect, 2):
        value = 360 * math.exp(-max(effect[a], effect[b]) - draw.gauss(0, 0.01))
        lines.append((f'"n{a},n{b}"' if header == "nodes" else f"n{a},n{b}") + f",268435456,{value:.2f}")

    assert names(tmp_path, "\n".join(lines)) == {"n4"}


@pytest.mark.parametrize("header", ["host,src_gpu,dst_gpu", "host,GPU A,GPU B", "node_a,node_b,gpu_a,gpu_b"])
def test_the_gpu_of_all_slow_pairs_is_named(tmp_path: Path, header: str) -> None:
    draw = random.Random(6)
    effect = {(node, gpu): draw.gauss(0, 0.004) for node in range(6) for gpu in range(4)}
    effect[3, 2] += 0.2
    lines = [f"{header},bandwidth_gbs"]
    for (node, a), (other, b) in combinations(effect, 2):
        if node == other or header.startswith("node"):
            value = 270 * math.exp(-max(effect[node, a], effect[other, b]) - draw.gauss(0, 0.01))
            nodes = f"n{node},n{other}" if header.startswith("node") else f"n{node}"
            lines.append(f"{nodes},{a},{b},{value:.2f}")

    assert names(tmp_path, "\n".join(lines)) == {"n3/2"}


def test_the_node_whose_adapter_is_slow_is_named_between_servers_and_clients(tmp_path: Path) -> None:
    draw = random.Random(7)
    lines = ["server,client,hca,bw_avg (GB/s)"]
    for a, b in ((a, (a + 1) % 16) for a in range(16)):
        for adapter in range(4):
            slow = 0.2 * (adapter == 2 and 6 in (a, b))
            lines += [f"n{a},n{b},mlx5_{adapter},{49 * math.exp(draw.gauss(-slow, 0.004)):.3f}" for _ in range(2)]
    (one,) = answer(written(tmp_path, lines))["findings"]

    assert (one["kind"], one["name"], one["population"]) == ("node", "n6", "hca mlx5_2")


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
    new, rows = of_single_members(columns, iter([(2, dict(zip(columns, ("a,b", "j1", "9"), strict=True)))]), ())

    assert new == ["step_time_ms", "node", "run"]
    assert [row for _, row in rows] == [{"step_time_ms": "9", "run": "j1", "node": node} for node in "ab"]


def names_of(tmp_path: Path, lines: list[str]) -> list[str]:
    return [one["name"] for one in answer(written(tmp_path, lines))["findings"]]


@pytest.mark.parametrize("domain", [True, False])
def test_a_host_with_and_without_its_domain_or_in_capitals_is_one(tmp_path: Path, domain: bool) -> None:
    lines = ["node,gpu,run,time_ms"]
    for name, gpu, number, value in short({(4, 2): 0.15}):
        other = f"{name}.example.org" if domain else name.upper()
        lines.append(f"{other if number % 2 else name},{gpu},{number},{value}")

    assert names_of(tmp_path, lines) == ["node-4/2"]


def test_hosts_of_one_name_in_two_domains_are_two() -> None:
    hosts = ["n1.a", "n1.b", "n1", "N2", "n2", "n3.a", "10.0.0.1", "10.0.0.2", "n4.7"]
    node = Coded(np.arange(len(hosts)), hosts)
    none = Coded(np.full(len(hosts), -1), [])

    found = places(none, none, node, none, none, none, by_name=False, at_once=None).chip

    assert [found.names[code] for code in found.codes] == [
        "n1.a", "n1.b", "n1", "N2", "N2", "n3.a", "10.0.0.1", "10.0.0.2", "n4.7"
    ]  # fmt: skip


def test_numbers_of_gpus_with_and_without_a_word_are_the_same(tmp_path: Path) -> None:
    words = ("{}", "GPU{}", "gpu {}", "cuda:{}")
    lines = ["node,gpu,run,time_ms"]
    lines += [f"{node},{words[run].format(gpu)},{run},{value}" for node, gpu, run, value in short({(4, 2): 0.15})]

    assert names_of(tmp_path, lines) == ["node-4/2"]


def test_a_column_is_that_of_gpus_by_what_it_holds(tmp_path: Path) -> None:
    lines = ["Hostname,Entity,iter,TFLOPS"]
    lines += [f"{node},GPU {gpu},{run},{7e5 / value}" for node, gpu, run, value in short({(4, 2): 0.15})]

    assert names_of(tmp_path, lines) == ["node-4/2"]


def test_gpus_that_are_numbers_without_a_known_node_are_noted(tmp_path: Path) -> None:
    lines = ["Knoten,GPU,Lauf,time_ms", *(",".join(map(str, row)) for row in short({}))]
    (population,) = answer(written(tmp_path, lines))["summary"]["populations"]

    assert "only 8 can be compared" in population["refused"]
    assert any("no column is known as the node" in note for note in population["notes"])


def test_ranks_are_gpus_and_steps_runs_where_nothing_else_is(tmp_path: Path) -> None:
    lines = ["step,rank,s/it"]
    lines += [
        f"{run},{8 * int(node.split('-')[1]) + int(gpu)},{value}" for node, gpu, run, value in short({(4, 2): 0.15})
    ]
    found = answer(written(tmp_path, lines))

    assert [one["name"] for one in found["findings"]] == ["34"]
    assert found["summary"]["populations"][0]["run_effects_removed"]


def test_rows_that_sum_up_others_are_no_chips(tmp_path: Path) -> None:
    lines = ["node,gpu,time_ms", *(f"{row[0]},{row[1]},{row[3]}" for row in short({(4, 2): 0.3}) if row[2] == 0)]
    lines += ["Average,,1000", "max,,1400", "node-1,all,1300"]
    found = answer(written(tmp_path, lines))

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]
    assert found["summary"]["populations"][0]["chips"] == 96
    assert found["summary"]["problems"]["count"] == 3


def test_models_are_one_however_they_are_spelt(tmp_path: Path) -> None:
    models = ("NVIDIA H100", "nvidia h100", " NVIDIA  H100 ")
    lines = ["node,gpu,run,time_ms,model"]
    lines += [f"{node},{gpu},{run},{value},{models[int(gpu) % 3]}" for node, gpu, run, value in short({(4, 2): 0.15})]
    found = answer(written(tmp_path, lines))

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]
    assert [one["name"] for one in found["summary"]["populations"]] == ["NVIDIA H100"]


def test_a_result_that_is_a_word_says_whether_the_test_was_passed(tmp_path: Path) -> None:
    lines = ["node,gpu,run,hbm_ms,result"]
    lines += [f"{node},{gpu},{run},{value},{'FAIL' if node == 'node-3' else 'PASS'}"
              for node, gpu, run, value in short({(4, 2): 0.15})]  # fmt: skip
    found = answer(written(tmp_path, lines))

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]
    assert found["summary"]["failed"] == {f"gpu node-3/{gpu}": 4 for gpu in range(8)}


def test_notes_of_several_populations_and_problems_of_one_line_are_printed_once(tmp_path: Path) -> None:
    lines = ["nodes,size,time_ms"]
    lines += [f"n[{a}-{a + 3}],{size},{100 + a if a else 'broken'}" for a in range(0, 64, 4) for size in ("1M", "8M")]
    done = run(written(tmp_path, lines))

    assert done.stdout.count("noise and chip cannot be separated") == 1
    assert "2 of 2 populations: one run a chip" in done.stdout
    assert done.stderr.count("'broken' is not a number") == 2


def test_files_of_nodes_that_no_column_names_are_noted(tmp_path: Path) -> None:
    files = []
    for place in range(12):
        rows = [row for row in short({}) if row[0] == f"node-{place}"]
        lines = ["gpu,run,time_ms", *(f"{gpu},{run},{value}" for _, gpu, run, value in rows)]
        files.append(written(tmp_path, lines, f"node-{place}.csv"))

    notes = answer(*files)["summary"]["populations"][0]["notes"]

    assert "the 12 files have the same numbers of GPUs" in notes[0]
    assert not any("same numbers" in note for note in answer(files[0])["summary"]["populations"][0]["notes"])


def test_half_of_the_nodes_in_another_unit_are_said_to_be(tmp_path: Path) -> None:
    lines = ["node,gpu,run,time"]
    for node, gpu, number, value in short({}):
        lines.append(f"{node},{gpu},{number},{value / 1000 if int(node[5:]) % 2 else value}")
    found = answer(written(tmp_path, lines))["summary"]["populations"]

    assert "a factor of 1000: values of another unit?" in "".join(note for one in found for note in one["notes"])


@pytest.mark.parametrize(
    ("columns", "value"),
    [("mean_ms,std_ms", "mean_ms"), ("p50_ms,p99_ms", "p50_ms"), ("std_ms,avg_ms,max_ms", "avg_ms"),
     ("efficiency_pct,comment", "efficiency_pct")],
)  # fmt: skip
def test_the_usual_one_of_several_statistics_is_the_value(columns: str, value: str) -> None:
    assert recognised(["node", *columns.split(",")], {})[0]["value"] == value


def test_sizes_with_their_unit_are_parameters() -> None:
    names = ["message_size_bytes", "msg size", "batch_size", "size (MiB)", "memory_bytes"]
    assert parameters_of(names) == names[:4]


def test_workbooks_and_tables_without_a_header_are_told_what_to_do(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "results.xlsx", "w") as workbook:
        workbook.writestr("[Content_Types].xml", "")

    assert "save the sheet as CSV" in run(tmp_path / "results.xlsx").stderr
    assert "name the columns there" in run(written(tmp_path, ["n1,0,0,12.5", "n1,1,0,12.6"])).stderr


def test_results_named_after_their_rank_are_those_of_gpus(tmp_path: Path) -> None:
    found = results(1000)
    ranks = range(4)
    head = ",".join(f"gemm/fp16_ms:{gpu}" for gpu in ranks) + "," + ",".join(f"gemm/code:{gpu}" for gpu in ranks)
    lines = [f"node,run,{head},ib/bw:0,ib/bw:1"]
    lines += [
        f"n{node},{run}," + ",".join(f"{found[node, gpu, run]:.2f}" for gpu in ranks) + ",0,0,0,0,25.1,25.2"
        for node in range(24) for run in range(3)
    ]  # fmt: skip

    assert names(tmp_path, "\n".join(lines), value="gemm/fp16_ms") == {"n9/1"}


def nodes_in_json() -> list[dict[str, Any]]:
    """The results as an object a node and run, with a list of its GPUs."""
    found = results(1000)
    return [
        {"hostname": f"n{node}", "run": run, "name": "gemm", "duration_s": 300 + node, "checks": ["a", "b"],
         "gpus": [{"index": gpu, "gemm": {"clock": 1300}, "time_ms": found[node, gpu, run]} for gpu in range(4)]}
        for node in range(24) for run in range(3)
    ]  # fmt: skip


def a_file_each(folder: Path) -> list[Path]:
    return [written(folder, [json.dumps(one)], f"{place}.json") for place, one in enumerate(nodes_in_json())]


def one_array(folder: Path) -> list[Path]:
    return [written(folder, [json.dumps(nodes_in_json(), indent=1)], "all.json")]


def a_line_each(folder: Path) -> list[Path]:
    return [written(folder, list(map(json.dumps, nodes_in_json())), "all.jsonl")]


def lists_in_lists(folder: Path) -> list[Path]:
    return [written(folder, [json.dumps({"site": "a", "results": nodes_in_json()}, indent=1)], "all.json")]


@pytest.mark.parametrize("write", [a_file_each, one_array, a_line_each, lists_in_lists])
def test_what_is_around_a_list_of_results_holds_for_each(tmp_path: Path, write: Callable[[Path], list[Path]]) -> None:
    found = answer(*write(tmp_path))
    (population,) = found["summary"]["populations"]
    assert [one["name"] for one in found["findings"]] == ["n9/1"]
    assert (population["chips"], population["nodes"], population["runs_of_a_chip"]) == (96, 24, 3.0)
    assert population["name"] == "gemm"


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_a_result_with_a_list_of_samples_is_one_row(tmp_path: Path, ending: str) -> None:
    rows = [
        {"host": f"n{node}", "gpu": gpu, "run": run, "ms": value, "samples": [{"at": 1, "clock": 9}, {"at": 2}]}
        for (node, gpu, run), value in results().items()
    ]
    lines = list(map(json.dumps, rows)) if ending == "jsonl" else [json.dumps(rows)]
    found = answer(written(tmp_path, lines, f"all.{ending}"))
    assert ([one["name"] for one in found["findings"]], found["summary"]["rows"]) == (["n9/1"], 24 * 4 * 3)


def test_a_file_of_one_result_with_a_list_of_samples_is_one_row(tmp_path: Path) -> None:
    files = []
    for (node, gpu, at), value in results().items():
        row = {"host": f"n{node}", "gpu": gpu, "run": at, "ms": value, "log": [{"at": 1}] * 3}
        files.append(written(tmp_path, [json.dumps(row)], f"{node}-{gpu}-{at}.json"))
    found = answer(*files)
    assert ([one["name"] for one in found["findings"]], found["summary"]["rows"]) == (["n9/1"], 24 * 4 * 3)


def test_words_of_a_comment_above_values_are_their_names(tmp_path: Path) -> None:
    rows = [f"n{node} {gpu} {run} {value:.4f}" for (node, gpu, run), value in results(1000).items()]

    assert names(tmp_path, "\n".join(["# measured in May", "# node gpu run time_ms", *rows])) == {"n9/1"}
    assert names(tmp_path, "\n".join(["# times of all GPUs", "node gpu run time_ms", *rows])) == {"n9/1"}


def test_names_of_slurm(tmp_path: Path) -> None:
    rows = [f"n{node},{gpu},{run},{value:.4f}" for (node, gpu, run), value in results(10).items()]

    assert names(tmp_path, "\n".join(["SLURMD_NODENAME,SLURM_LOCALID,SLURM_JOB_ID,runtime_s", *rows])) == {"n9/1"}


@pytest.mark.parametrize("column", ["pagerank_time", "normalized runtime", "epoch_time_s", "time per epoch"])
def test_a_time_without_a_unit_is_the_value_where_nothing_else_is(tmp_path: Path, column: str) -> None:
    rows = [f"n{node},{gpu},{run},{value:.4f},0.7" for (node, gpu, run), value in results(10).items()]
    (tmp_path / "results.csv").write_text("\n".join([f"host,gpu,epoch,{column},accuracy", *rows]))
    found = answer(tmp_path / "results.csv")
    assert [one["name"] for one in found["findings"]] == ["n9/1"]
    assert found["summary"]["populations"][0]["run_effects_removed"]


def test_an_epoch_is_a_run_or_a_time_by_what_it_holds() -> None:
    columns = ["host", "epoch", "gflops"]
    assert recognised(columns, {})[0] == {"node": "host", "run": "epoch", "value": "gflops"}
    assert recognised(columns, {}, {"epoch"})[0] == {"node": "host", "time": "epoch", "value": "gflops"}
    assert recognised([*columns, "run"], {}) == ({"node": "host", "run": "run", "value": "gflops"}, ["epoch"])


@pytest.mark.parametrize("moment", ["1714550400", "1714550400123", "2024-05-01T08:00:00Z", "08:00:12", "8 o'clock"])
def test_when_something_was_is_no_value(tmp_path: Path, moment: str) -> None:
    lines = ["host,gpu,pagerank_time,odd", *(f"n{node},0,{moment},{node + 7}" for node in range(20))]
    assert "no column is known as the value" in run(written(tmp_path, lines)).stderr


def test_a_bandwidth_beside_a_time_of_another_test_is_asked_for(tmp_path: Path) -> None:
    lines = ["host,mem-bw/h2d_bw,kernel-launch/event_time", *(f"n{node},25.{node},0.006" for node in range(20))]
    assert "the columns mem-bw/h2d_bw, kernel-launch/event_time could all" in run(written(tmp_path, lines)).stderr


@pytest.mark.parametrize("part", ["gcd", "Tile ID"])
def test_parts_of_a_gpu_are_chips_of_their_own(tmp_path: Path, part: str) -> None:
    rows = [f"n{node},{gpu // 2},{gpu % 2},{run},{value}" for (node, gpu, run), value in results().items()]

    assert names(tmp_path, "\n".join([f"node,gpu,{part},run,ms", *rows])) == {"n9/0/1"}


def test_parts_that_tell_nothing_from_another_are_left_out(tmp_path: Path) -> None:
    rows = [f"n{node},{gpu},{gpu % 2},{run},{value}" for (node, gpu, run), value in results().items()]

    assert names(tmp_path, "\n".join(["node,gpu,gcd,run,ms", *rows])) == {"n9/1"}


def test_ranks_that_change_from_job_to_job_are_counted_within_the_node(tmp_path: Path) -> None:
    draw = random.Random(2)
    order = {job: draw.sample(range(24), 24) for job in range(3)}
    rows = [f"{job},{4 * order[job][node] + gpu},n{node},{value}" for (node, gpu, job), value in results().items()]
    fixed = [f"{job},{4 * node + gpu},n{node},{value}" for (node, gpu, job), value in results().items()]

    assert names(tmp_path, "\n".join(["job_id,rank,hostname,step_ms", *rows])) == {"n9/1"}
    assert names(tmp_path, "\n".join(["job_id,rank,hostname,step_ms", *fixed])) == {"37"}


@pytest.mark.parametrize(("column", "base"), [("slowdown_pct", 0), ("slowdown (%)", 0), ("Slowdown %", 100)])
def test_a_slowdown_in_percent_is_on_top_of_100(tmp_path: Path, column: str, base: int) -> None:
    """Half of the values are below 0, and a chip at 0.1 is not half as slow as one at 0.2."""
    rows = [f"n{node},{gpu},{at},{100 * value - 100 + base:.3f}" for (node, gpu, at), value in results().items()]
    found = answer(written(tmp_path, [f"node,gpu,run,{column}", *rows]))

    assert [one["name"] for one in found["findings"]] == ["n9/1"]
    assert found["findings"][0]["loss"] == pytest.approx(0.15, abs=0.02)
    assert found["summary"]["populations"][0]["measurements"] == 24 * 4 * 3


@pytest.mark.parametrize("column", ["xname", "system.hostname", "job_node_name"])
def test_the_only_column_of_hosts_is_that_of_nodes(column: str) -> None:
    assert recognised([column, "gpu", "gflops"], {})[0]["node"] == column
    assert recognised(["host", "login hostname", "gpu", "gflops"], {})[0]["node"] == "host"


def markdown(rows: list[str]) -> list[str]:
    return ["| node | gpu | run | ms |", "|---|---:|---:|---:|", *(f"| {row} |" for row in rows)]


def psql(rows: list[str]) -> list[str]:
    return [" node | gpu | run |   ms", "------+-----+-----+---------", *rows]


def mysql(rows: list[str]) -> list[str]:
    rule = "+------+-----+-----+---------+"
    return [rule, "| node | gpu | run | ms |", rule, *(f"| {row} |" for row in rows), rule]


def sacct(rows: list[str]) -> list[str]:
    return ["node|gpu|run|ms|", *(f"{row.replace(' ', '')}|" for row in rows)]


def underlined(rows: list[str]) -> list[str]:
    lines = [row.replace("|", " ").replace("**", "") for row in rows]
    return [
        "=" * 30,
        "ms per GPU",
        "  size : 1024, 2 streams",
        "",
        "node gpu  run   ms",
        "---- --- ---- ----",
        *lines,
    ]


@pytest.mark.parametrize("drawn", [markdown, psql, mysql, sacct, underlined])
def test_tables_with_edges_and_rules(tmp_path: Path, drawn: Callable[[list[str]], list[str]]) -> None:
    rows = [f"n{node} | {gpu} | {run} | {value:.2f}" for (node, gpu, run), value in results(1000).items()]
    average = "**mean** | **0** | | **1000**"

    assert names(tmp_path, "\n".join(drawn([*rows, average]))) == {"n9/1"}


def test_a_time_beside_another_one_is_asked_for(tmp_path: Path) -> None:
    for other in ("gemm_ms", "batch_time_norm"):
        text = f"gpu,time,{other}\n" + "\n".join(f"{gpu},{at},{gpu + 3}" for at in (10, 20) for gpu in range(12))
        (tmp_path / "results.csv").write_text(text)
        done = run(tmp_path / "results.csv")
        assert done.exit_code == 2
        assert f"the columns time, {other} could all be the value" in done.stderr


def test_lines_without_names_of_columns_are_no_header(tmp_path: Path) -> None:
    (tmp_path / "results.txt").write_text("".join(f"rank{rank} 6.3{rank} GB/s\n" for rank in range(9)))
    done = run(tmp_path / "results.txt")
    assert done.exit_code == 2
    assert "the first line seems to hold values" in done.stderr


def test_a_log_that_begins_with_a_bracket_is_said_to_be_no_json(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("[2026-01-31 10:00:00] begin of the run\n[2026-01-31 10:00:09] step 2\n")
    done = run(tmp_path / "train.log")
    assert done.exit_code == 2
    assert "no JSON object, though it begins like JSON" in done.stderr


def of_node(node: int, run: int) -> list[float]:
    return [round(1000 * value, 1) for (of, _, at), value in results().items() if (of, at) == (node, run)]


@pytest.mark.parametrize(
    "document",
    [
        lambda: [
            {"node": f"n{node}", "run": run, "gpu_ms": of_node(node, run)} for node in range(24) for run in range(3)
        ],
        lambda: [
            {"node": f"n{node}", "run": run, "ms": of_node(node, run)} for node in range(24) for run in range(3)
        ],
        lambda: {f"n{node}": {"ms": of_node(node, 0), "temp": [60, 61, 60, 61]} for node in range(24)},
        lambda: {"unit": "ms", "times": {f"n{node}": of_node(node, 0) for node in range(24)}},
    ],
    ids=["of GPUs", "of four", "by node", "beside a unit"],
)
def test_lists_of_the_values_of_a_node(tmp_path: Path, document: Callable[[], Any]) -> None:
    assert names(tmp_path, json.dumps(document())) == {"n9/1"}


def test_lists_of_runs_of_a_node(tmp_path: Path) -> None:
    values = {node: of_node(node if node != 9 else 8, 0)[:3] for node in range(24)}
    values[5] = [1.2 * value for value in values[5]]
    text = "node;ms\n" + "".join(f"n{node};[{', '.join(map(str, its))}]\n" for node, its in values.items())
    keyed = json.dumps({"version": 1, "unit": "ms", "runs": {f"n{node}": its for node, its in values.items()}})

    assert names(tmp_path, text) == {"n5"}
    assert names(tmp_path, keyed) == {"n5"}
    assert names(tmp_path, json.dumps([{"node": f"n{node}", "ms": its[0]} for node, its in values.items()])) == {"n5"}


def test_a_list_of_gpus_beside_the_value_is_no_list_of_values() -> None:
    row = {"node": "n1", "gpu_ids": "[0, 1, 2, 3]", "tflops": "51.2"}
    (columns, rows), note = of_single_values(list(row), iter([(1, row)]), ())

    assert (columns, list(rows), note) == (list(row), [(1, row)], "")


def test_a_node_that_is_said_once_is_that_of_the_gpus_below_it(tmp_path: Path) -> None:
    lines = ["node,gpu,run,ms"]
    for node, gpu, run_of, value in short({(4, 2): 0.3}):
        lines.append(f"{node if gpu == '0' else ''},{gpu},{run_of},{value:.2f}")

    found = answer(written(tmp_path, lines))

    assert [one["name"] for one in found["findings"]] == ["node-4/2"]
    (population,) = found["summary"]["populations"]
    assert (population["chips"], population["nodes"]) == (96, 12)


def test_a_node_is_not_that_of_the_row_above_where_gpus_do_not_go_on() -> None:
    rows: list[tuple[int, dict[str, str]]] = [
        (number, {"node": node, "gpu": gpu})
        for number, (node, gpu) in enumerate(
            [("n1", "6"), ("", "7"), ("", "0"), ("", "1"), ("n2", "GPU-8a"), ("", "1")]
        )
    ]

    assert [row["node"] for _, row in with_node_above(rows, "node", "gpu")] == ["n1", "n1", "", "", "n2", ""]
