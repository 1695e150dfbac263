"""Histories in which a node has rows of several workloads, jobs, GPUs or files: what is judged by itself, and how it
is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.replay.subjects import RowSource, Subjects, short_names
from ingero_contract.identifiers import node_key
from ingero_fleet.cli import main

Values = np.ndarray[Any, np.dtype[np.float64]]
AT_ONE_TIME = "where a node has rows of several at one time, each is judged by itself, as node/"


def judged(*files: Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["replay", *map(str, files), "--tick", "60", "--json"])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rates(level: float, seed: int, nodes: int = 8, ticks: int = 150) -> Values:
    random = np.random.default_rng(seed)
    return np.asarray(level * np.exp(random.normal(0, 0.01, nodes) + random.normal(0, 0.02, (ticks, nodes))))


def history(file: Path, labels: dict[str, Values], column: str = "workload", first: int = 0) -> Path:
    """Rows of every minute, one for each node and label that has a value."""
    lines = [f"time,node,{column},rate"]
    for tick in range(max(map(len, labels.values()))):
        for label, values in labels.items():
            here = values[tick] if tick < len(values) else []
            lines += [
                f"{60 * (first + tick)},n{node},{label},{value}" for node, value in enumerate(here) if value > 0
            ]
    file.write_text("\n".join(lines) + "\n")
    return file


def blamed(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["cluster"], one["node"], one["cohort"]) for one in found["episodes"]]


@pytest.mark.parametrize("column", ["workload", "job", "cohort", "gpu_model", "stage"])
@pytest.mark.parametrize("level", [50.0, 1000.0])
def test_what_a_node_does_at_one_time_is_judged_by_itself(tmp_path: Path, column: str, level: float) -> None:
    slow = rates(level, 2)
    slow[100:, 3] *= 0.7

    found = judged(history(tmp_path / "history.csv", {"llama": rates(1000.0, 1), "qwen": slow}, column))

    (episode,) = found["episodes"]
    assert (episode["node"], episode["cohort"]) == ("n3/qwen", "qwen")
    assert episode["severity"] == pytest.approx(0.3, abs=0.04)
    assert found["summary"]["nodes"] == 16
    assert found["summary"]["notes"] == [AT_ONE_TIME + column]


def test_a_workload_that_is_moved_away_accuses_nobody(tmp_path: Path) -> None:
    moved = rates(1000.0, 1)
    moved[100:, 5] = 0

    found = judged(history(tmp_path / "history.csv", {"llama": moved, "qwen": rates(200.0, 2)}))

    assert found["episodes"] == []
    assert [silent["node"] for silent in found["summary"]["silent"]["at_end"]] == ["n5/llama"]


def test_only_nodes_with_several_workloads_get_longer_names(tmp_path: Path) -> None:
    both = rates(400.0, 2)
    both[:, :4], both[100:, 6] = 0, 0.6 * both[100:, 6]
    alone = rates(1000.0, 1)
    alone[100:, 1] *= 0.6

    found = judged(history(tmp_path / "history.csv", {"llama": alone, "qwen": both}))

    assert sorted(blamed(found)) == [("", "n1", "llama"), ("", "n6/qwen", "qwen")]
    assert found["summary"]["nodes"] == 12


def test_gpus_of_a_node_that_share_a_workload_and_gpus_that_do_not_are_told_apart(tmp_path: Path) -> None:
    lines = ["time,node,gpu,workload,rate"]
    shared, slow = rates(1000.0, 1), rates(300.0, 2)
    slow[100:, 3] *= 0.6
    for tick in range(150):
        for unit in range(8):
            lines.append(f"{60 * tick},n{unit // 2},{unit % 2},llama,{shared[tick, unit]}")
            lines += [f"{60 * tick},n{unit // 2},{unit % 2},qwen,{slow[tick, unit]}"] if unit % 2 else []
    (tmp_path / "history.csv").write_text("\n".join(lines))

    found = judged(tmp_path / "history.csv")

    assert blamed(found) == [("", "n1/1/qwen", "qwen")]
    assert found["summary"]["notes"] == ["each GPU is judged by itself, as node/gpu", AT_ONE_TIME + "workload"]


def test_jobs_that_follow_one_another_leave_a_node_its_name(tmp_path: Path) -> None:
    first, second = rates(1000.0, 1, ticks=75), rates(600.0, 2)
    second[:72] = 0
    second[125:, 3] *= 0.6

    found = judged(history(tmp_path / "history.csv", {"a": first, "b": second}, "job"))

    assert blamed(found) == [("", "n3", "b")]
    assert found["summary"]["nodes"] == 8


@pytest.mark.parametrize("column", ["rank", "global_rank", "gpu"])
def test_a_rank_that_changes_when_the_job_starts_again_is_no_gpu(tmp_path: Path, column: str) -> None:
    lines, values = [f"time,node,{column},rate"], rates(1000.0, 1)
    values[110:, 3] *= 0.7
    for tick, row in enumerate(values):
        lines += [f"{60 * tick},n{node},{(node + 3 * (tick // 100)) % 8},{value}" for node, value in enumerate(row)]
    (tmp_path / "history.csv").write_text("\n".join(lines))

    found = judged(tmp_path / "history.csv")

    assert blamed(found) == [("", "n3", "")]
    assert found["summary"]["notes"] == []


def test_rows_of_gpus_need_not_have_the_same_second(tmp_path: Path) -> None:
    lines, values = ["time,node,gpu,rate"], rates(1000.0, 1)
    values[100:, 6] *= 0.7
    for tick, row in enumerate(values):
        lines += [f"{60 * tick + 5 * (unit % 4)},n{unit // 4},{unit % 4},{value}" for unit, value in enumerate(row)]
    (tmp_path / "history.csv").write_text("\n".join(lines))

    assert blamed(judged(tmp_path / "history.csv")) == [("", "n1/2", "")]


def test_files_with_the_same_nodes_and_other_values_are_clusters(tmp_path: Path) -> None:
    slow = rates(50.0, 2)
    slow[100:, 3] *= 0.7
    east = history(tmp_path / "east.csv", {"train": rates(1000.0, 1)})
    west = history(tmp_path / "west.csv.txt", {"train": slow})

    found = judged(east, west)

    assert blamed(found) == [("west", "n3", "train")]
    assert found["summary"]["nodes"] == 16
    (note,) = found["summary"]["notes"]
    assert "so each file is a cluster" in note


def test_the_picture_has_the_clusters_of_nodes(tmp_path: Path) -> None:
    rows = history(tmp_path / "history.csv", {"east": rates(1000.0, 1), "west": rates(50.0, 2)}, "cluster")

    done = CliRunner().invoke(main, ["replay", str(rows), "--plot", str(tmp_path / "plot.svg")])

    assert done.exit_code == 0, done.stderr
    drawn = (tmp_path / "plot.svg").read_text()
    assert "<!-- east/n3 -->" in drawn
    assert "<!-- west/n3 -->" in drawn
    assert "2 cohorts by cluster" in done.stdout


def test_a_file_for_every_rank_tells_the_ranks_of_a_node_apart(tmp_path: Path) -> None:
    values = [rates(1000.0, seed, nodes=2) for seed in range(4)]
    values[2][100:, 1] *= 0.7
    files = [history(tmp_path / f"rank{rank}.csv", {"": one}) for rank, one in enumerate(values)]

    found = judged(*files)

    assert blamed(found) == [("", "n1/rank2", "")]
    assert found["summary"]["nodes"] == 8


def test_files_that_overlap_hold_the_same_nodes(tmp_path: Path) -> None:
    values = rates(1000.0, 1)
    values[125:, 3] *= 0.7
    early = history(tmp_path / "early.csv", {"": values[:100]})
    late = history(tmp_path / "late.csv", {"": values[75:]}, first=75)

    assert blamed(judged(early, late)) == [("", "n3", "")]


def named(subjects: Subjects, ticks: range, *labels: Callable[[int], str]) -> list[str]:
    """Assign rows of a node, one for every tick and label; the names of those of the last tick."""
    node = node_key("", "n0")
    rows = [(tick, subjects.number(RowSource(node, "", ("", label(tick)), 0))) for tick in ticks for label in labels]
    tick, source = np.array(rows, np.int64).T
    numbers, _ = subjects.assign(source, tick, np.ones(len(rows)), exact=False)
    names = list(subjects.nodes)
    return [names[number][1] for number in numbers[-len(labels) :].tolist()]


def test_a_workload_that_comes_later_leaves_the_others_their_names() -> None:
    subjects = Subjects(["-"])

    assert named(subjects, range(100), lambda _: "llama") == ["n0"]
    assert named(subjects, range(100, 200), lambda _: "llama", lambda tick: "qwen" if tick > 150 else "llama") == [
        "n0", "n0/qwen",
    ]  # fmt: skip
    assert named(subjects, range(200, 300), lambda _: "llama", lambda _: "qwen") == ["n0", "n0/qwen"]
    assert named(subjects, range(300, 400), lambda _: "qwen") == ["n0/qwen"]


@pytest.mark.parametrize("hosts", [1, 4])
def test_gpus_of_several_hosts_without_a_column_of_these_are_in_doubt(tmp_path: Path, hosts: int) -> None:
    values = rates(1.0, 1, nodes=8 * hosts, ticks=60)
    lines = [f"{60 * tick},{place % 8},{value}" for tick, row in enumerate(values) for place, value in enumerate(row)]
    (tmp_path / "history.csv").write_text("\n".join(["time,gpu,rate", *lines]) + "\n")
    doubts = judged(tmp_path / "history.csv")["summary"]["doubts"]
    assert [doubt for doubt in doubts if "no column names the host" in doubt] == doubts[: hosts > 1]


def clocks(folder: Path, hosts: int, samples: int = 1) -> list[Path]:
    """A file for each host, as nvidia-smi logs clocks of few levels of its GPUs; GPU 1 of host 2 is held lower."""
    files = []
    for host in range(hosts):
        random = np.random.default_rng(host)
        lines = ["timestamp,gpu,rate"]
        for sample, gpu in np.ndindex(150 * samples, 4):
            held = (host, gpu) == (2, 1) and sample >= 100 * samples
            clock = (1395 if held else 1980) - 15 * int(random.integers(0, 3))
            lines.append(f"{60 / samples * sample + 0.3 * host},{gpu},{clock}")
        files.append(folder / f"gpu-node-{host:02d}.csv")
        files[-1].write_text("\n".join(lines))
    return files


@pytest.mark.parametrize("samples", [1, 3])
def test_values_of_few_levels_are_often_equal_and_files_are_hosts_nevertheless(tmp_path: Path, samples: int) -> None:
    found = judged(*clocks(tmp_path, 6, samples))

    assert [one[:2] for one in blamed(found)] == [("", "gpu-node-02/1")]
    assert found["summary"]["nodes"] == 24


@pytest.mark.parametrize("samples", [1, 3])
def test_a_copy_of_a_file_is_no_host_of_its_own(tmp_path: Path, samples: int) -> None:
    first, *_, last = clocks(tmp_path, 3, samples)
    lines = last.read_text().splitlines()
    first.write_text("\n".join((lines[0], *lines[len(lines) // 3 :])))

    found = judged(first, last)

    assert found["summary"]["nodes"] == 4
    assert [one[:2] for one in blamed(found)] == [("", "1")]


def test_a_log_of_nvidia_smi_has_the_number_and_the_model_of_each_gpu(tmp_path: Path) -> None:
    files = clocks(tmp_path, 6)
    for file in files:
        rows = file.read_text().splitlines()[1:]
        lines = [
            f"{time}, NVIDIA H100 80GB HBM3, {gpu}, {rate} MHz"
            for time, gpu, rate in (row.split(",") for row in rows)
        ]
        file.write_text("\n".join(("timestamp, name, index, clocks.current.sm [MHz]", *lines)))

    found = CliRunner().invoke(main, ["replay", *map(str, files), "--json", "--tick", "60"])

    assert found.exit_code == 0, found.stderr
    assert [(one["cluster"], one["node"], one["cohort"]) for one in json.loads(found.stdout)["episodes"]] == [
        ("", "gpu-node-02/1", "NVIDIA H100 80GB HBM3")
    ]


def in_racks(file: Path, name_of: Callable[[int, int, int], str], column: str = "rack") -> Path:
    """Rows of three racks with six nodes each, named by rack, place and tick; the third one of the second is slow."""
    random = np.random.default_rng(1)
    lines = [f"time,{column},node,rate"]
    for tick, rack, place in np.ndindex(150, 3, 6):
        rate = random.normal(1000, 10) * (0.8 if (rack, place) == (1, 2) and tick >= 75 else 1)
        lines.append(f"{60 * tick},{name_of(rack, place, tick)},{rate}")
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("column", ["rack", "Cabinet", "chassis_id"])
def test_nodes_that_are_numbers_within_a_rack_are_judged_each(tmp_path: Path, column: str) -> None:
    found = judged(in_racks(tmp_path / "history.csv", lambda rack, place, _: f"r{rack},{place}", column))

    assert (blamed(found), found["summary"]["nodes"]) == ([("", "r1/2", "")], 18)
    assert f"nodes are numbers within a rack, so each is judged as {column}/node" in found["summary"]["notes"]


def test_racks_do_not_rename_nodes_that_have_names_of_their_own(tmp_path: Path) -> None:
    def name_of(rack: int, place: int, tick: int) -> str:
        moved = place == 2 and tick >= 100
        return f"r{rack + moved},n{10 * rack + place}"

    found = judged(in_racks(tmp_path / "history.csv", name_of))

    assert (blamed(found), found["summary"]["nodes"]) == ([("", "n12", "")], 18)


@pytest.mark.parametrize(("column", "doubted"), [("thing", True), ("gpu", False)])
def test_rows_of_several_at_one_time_that_no_column_tells_apart_are_doubted(
    tmp_path: Path, column: str, doubted: bool
) -> None:
    labels = {str(one): rates(1000.0, one) for one in range(4)}

    found = judged(history(tmp_path / "history.csv", labels, column))

    assert ("choose it with --column gpu=COLUMN" in "".join(found["summary"]["doubts"])) == doubted


def test_an_exporter_s_address_gives_way_to_the_host_that_it_tells(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    series = []
    for host, gpu in np.ndindex(4, 2):
        rate = random.normal(1000, 10, 150)
        rate[100:] *= 0.7 if (host, gpu) == (1, 1) else 1
        labels = {"__name__": "throughput", "Hostname": f"node-{host}", "gpu": str(gpu), "job": "exporter"}
        values = [[60 * tick, str(value)] for tick, value in enumerate(rate.tolist())]
        series.append({"metric": labels | {"instance": f"10.0.0.{host}:9400"}, "values": values})
    file = tmp_path / "answer.json"
    file.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}}))

    done = CliRunner().invoke(main, ["replay", str(file), "--column", "rate=value", "--tick", "60", "--json"])

    assert [one["node"] for one in json.loads(done.stdout)["episodes"]] == ["node-1/1"]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["logs/n1.rack2.csv", "logs/n2.rack2.jsonl.gz"], ["n1.rack2", "n2.rack2"]),
        (["10.0.0.1.csv", "10.0.0.2.csv"], ["10.0.0.1", "10.0.0.2"]),
        (["n1.csv.zst", "n2.csv.xz", "n3.log.bz2", "n4.csv.zip"], ["n1", "n2", "n3", "n4"]),
        (["logs/n1/metrics.csv", "logs/n2/metrics.csv"], ["n1", "n2"]),
        (["logs/n1/a.csv", "logs/n1/b.csv", "logs/n2/a.csv", "logs/n2/b.csv"], ["n1/a", "n1/b", "n2/a", "n2/b"]),
        (["logs/n1.csv", "logs/n1.json"], ["logs/n1.csv", "logs/n1.json"]),
    ],
)
def test_files_are_called_by_what_tells_them_apart(files: list[str], names: list[str]) -> None:
    assert short_names(files) == names
