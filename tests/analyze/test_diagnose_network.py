"""Slow parts of a network, through the command and on simulated jobs."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.diagnose.timeline_files import verdict
from ingero_analyze.diagnose.topology import with_network
from ingero_detect.network.topology import ports_of
from ingero_detect.ranks.slower_part import LATE_PART
from ingero_fleet.cli import main
from ingero_testing.fabric_jobs import FabricJob, fabric_job, judged, recorded

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, interleaved


def written(folder: Path, job: FabricJob) -> tuple[str, str]:
    timeline, topology = folder / "timeline.csv", folder / "topology.json"
    rows = zip(*(column.tolist() for column in job.columns.values()), strict=True)
    timeline.write_text("\n".join([",".join(job.columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    topology.write_text(json.dumps(job.topology))
    return str(timeline), str(topology)


def diagnose(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["diagnose", *arguments, "--quiet"])
    assert done.exit_code == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("fault", ["nothing", "nic", "pair", "leaf", "spine", "link", "node", "interconnect"])
def test_simulated_faults_are_placed_and_no_innocent_node_is_named(fault: str) -> None:
    assert judged(fabric_job(1, 5, fault))[0] in ("right", "inseparable")


def test_the_slow_nic_is_the_answer_of_the_command(tmp_path: Path) -> None:
    job = fabric_job(1, 5, "nic")
    timeline, topology = written(tmp_path, job)

    answer = diagnose(timeline, "--topology", topology)

    assert (answer["kind"], answer["ranks"], answer["network"]["kind"]) == ("network", [], "nic")
    assert answer["network"]["elements"] == [{"kind": "nic", "name": job.name}]
    table = CliRunner().invoke(main, ["diagnose", timeline, "--topology", topology, "--table", "--quiet"])
    assert f"slow: nic {job.name}" in table.stdout
    assert "times as long as in like groups" in table.stdout
    assert answer["slowdown"] > 1.02
    assert answer["seconds_lost_per_step"] == answer["network"]["seconds_lost_per_step"] > 0


def test_receivers_of_a_pipeline_that_wait_for_their_senders_are_no_groups(tmp_path: Path) -> None:
    """Sends and receives of a whole pipeline have one communicator, and names of their own."""
    columns = interleaved(np.random.default_rng(1)).arrays()
    between = np.isin(columns["op"], ("send", "recv"))
    pipeline = np.char.add("pipeline", columns["data_parallel"].astype(str))
    table = Table()
    table.add(**{**{name: column for name, column in columns.items() if name != "seq"},
                 "group": np.where(between, pipeline, columns["group"])})  # fmt: skip
    (tmp_path / "timeline.csv").write_text(table.csv())
    nics = [{"node": f"n{rank}", "nic": "mlx5_0", "ranks": [rank], "switch": "leaf"} for rank in range(16)]
    (tmp_path / "topology.json").write_text(json.dumps({"nics": nics, "switches": {}}))

    answer = diagnose(str(tmp_path / "timeline.csv"), "--topology", str(tmp_path / "topology.json"))

    assert (answer["kind"], answer["network"]["compared_groups"]) == ("none", 4), "those that sum gradients"


def test_without_a_topology_slow_groups_are_unknown_and_said(tmp_path: Path) -> None:
    timeline, topology = written(tmp_path, fabric_job(1, 5, "nic"))

    answer = diagnose(timeline)
    table = CliRunner().invoke(main, ["diagnose", timeline, "--table", "--quiet"]).stdout

    assert (answer["kind"], answer["ranks"], answer["network"]["kind"]) == ("unknown", [], "unknown")
    assert answer["network"]["slow_groups"] == diagnose(timeline, "--topology", topology)["network"]["slow_groups"]
    assert answer["slowdown"] > 1.02
    assert "--topology" in answer["network"]["reason"]
    assert "some collectives last longer" in table and "--topology" in table


@pytest.mark.parametrize("fault", ["nothing", "node"])
def test_without_a_slow_network_nothing_is_said_of_it(tmp_path: Path, fault: str) -> None:
    timeline, _ = written(tmp_path, fabric_job(1, 5, fault))

    answer = diagnose(timeline)

    assert answer["kind"] == ("none" if fault == "nothing" else "node")
    assert "network" not in answer


def test_ranks_without_a_nic_are_counted_and_the_others_judged(tmp_path: Path) -> None:
    job = fabric_job(1, 5, "interconnect")
    name = job.name.removeprefix("node-")
    timeline, topology = written(tmp_path, job)
    job.topology["nics"] = [nic for nic in job.topology["nics"] if nic["node"] == f"node-{name}"]
    Path(topology).write_text(json.dumps(job.topology))

    network = diagnose(timeline, "--topology", topology)["network"]

    assert network["ranks_without_nic"]["count"] == 56
    assert {"kind": "interconnect", "name": job.name} in [
        *network["elements"],
        *(item for cause in network["possible"] for item in cause),
    ]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("nics: [", "is not YAML"),
        ("nics: []\nswitches: {s0: spine, s0: s1}", "line 2: the key 's0'"),
        ("[" * 500 + "]" * 500, "line 1: more than 64 lists"),
        ("- " * 100_000, "line 1: more than 64 lists"),
        ("[]", "either nics or nodes were expected"),
        ("nics: {}", "nics: a list was expected"),
        ("nodes: {a: leaf}", "list nics with their ranks"),
        ("nics: []", "no NIC has a rank"),
        ("nics: [{node: a, nic: b}]", "nics[0]: node, nic and ranks or gpus"),
        ("nics: [{node: a, nic: b, ranks: [1]}, {node: c, nic: d, ranks: [1]}]", "nics[1].ranks: rank 1"),
        ("nics: [{node: a, nic: b, ranks: [1], switch: x}]\nswitches: {x: y, y: x}", "switches: x: a ring"),
    ],
)
def test_a_topology_that_cannot_be_used_is_an_error_with_its_place(tmp_path: Path, content: str, place: str) -> None:
    timeline, topology = tmp_path / "timeline.csv", tmp_path / "topology.yaml"
    timeline.write_text("rank,op,kind,start,duration\n0,a,compute,0,1\n")
    topology.write_text(content)

    done = CliRunner().invoke(main, ["diagnose", str(timeline), "--topology", str(topology), "--quiet"])

    assert done.exit_code == 2
    assert str(topology) in done.stderr
    assert place in done.stderr


def test_a_topology_that_is_not_there_is_said(tmp_path: Path) -> None:
    timeline, _ = written(tmp_path, fabric_job(1, 5, "nic"))

    done = CliRunner().invoke(main, ["diagnose", str(timeline), "--topology", str(tmp_path / "no.yaml")])

    assert done.exit_code == 2
    assert "no.yaml: No such file or directory" in done.stderr


def test_a_topology_says_nothing_of_a_hang(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["diagnose", "--flight-recorder", str(tmp_path), "--topology", "absent"])

    assert done.exit_code == 2
    assert "--topology needs" in done.stderr


def test_the_slow_interconnect_is_found_in_lines_of_nccl_inspector(tmp_path: Path) -> None:
    job = fabric_job(3, 5, "interconnect")
    lines = []
    for rank, op, kind, start, duration, step, group, *_ in zip(
        *(column.tolist() for column in job.columns.values()), strict=True
    ):
        members = group.partition(":")[2].split("-")
        if kind == "collective" and len(members) > 2:
            header = {"id": group, "rank": members.index(str(rank)), "n_ranks": len(members)}
            spent = {
                "coll": op,
                "coll_sn": step,
                "coll_exec_time_us": duration * 1e6,
                "event_trace_ts": {"coll_start_ts": start * 1e6},
            }
            metadata = {"hostname": f"node-{rank // 8}", "pid": rank}
            lines.append(json.dumps({"header": header, "metadata": metadata, "coll_perf": spent}))
    (tmp_path / "inspector.jsonl").write_text("\n".join(lines))
    job.topology["nics"] = [{**nic, "ranks": [f"{nic['node']}:{nic['ranks'][0]}"]} for nic in job.topology["nics"]]
    (tmp_path / "topology.json").write_text(json.dumps(job.topology))

    answer = diagnose(
        "--nccl-inspector", str(tmp_path / "inspector.jsonl"), "--topology", str(tmp_path / "topology.json")
    )

    print(json.dumps(answer)[:3000])
    assert answer["network"]["elements"] == [{"kind": "interconnect", "name": job.name}]


def test_ranks_that_only_come_late_are_explained_by_their_slow_groups() -> None:
    job = fabric_job(1, 5, "nic")
    timed = recorded(job)
    slow = with_network(verdict(timed), timed, None)["network"]["slow_groups"][0]["ranks"]
    late = {**verdict(timed), "kind": "unknown", "evidence": {"by": LATE_PART, "possible": slow}}

    placed = with_network(late, timed, ports_of(job.topology))
    assert (placed["kind"], placed["evidence"]) == ("network", {})
    unplaced = with_network(late, timed, None)
    assert (unplaced["kind"], unplaced["evidence"]) == ("unknown", {"possible": slow})
    others = {**late, "evidence": {"by": LATE_PART, "possible": [*slow, "another"]}}
    assert with_network(others, timed, None)["evidence"] == others["evidence"]


@pytest.mark.parametrize(("share", "kind"), [(0.2, "unknown"), (1.0, "node")])
def test_a_rank_that_loses_far_less_than_slow_groups_is_not_the_verdict(share: float, kind: str) -> None:
    timed = recorded(fabric_job(1, 5, "nic"))
    healthy = verdict(timed)
    network = with_network(healthy, timed, None)["network"]
    lost = share * network["seconds_lost_per_step"]
    excess = {"40": lost / healthy["evidence"]["step_seconds"]}
    slow = {
        **healthy, "kind": "node", "ranks": [40], "seconds_lost_per_step": 0.2 * lost,
        "evidence": {**healthy["evidence"], "by": "compute", "excess_share_of_step": excess},
    }  # fmt: skip

    answer = with_network(slow, timed, None)

    assert (answer["kind"], answer["ranks"]) == (kind, [] if kind == "unknown" else [40])
    if kind == "unknown":
        assert answer["seconds_lost_per_step"] == network["seconds_lost_per_step"]
        named = {"kind": "node", "ranks": [40], "seconds_lost_per_step": 0.2 * lost, "by": "compute"}
        assert answer["evidence"] == {**healthy["evidence"], "also": [named]}
