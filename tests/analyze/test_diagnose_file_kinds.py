"""Files of other tools that are given without a flag, and folders of tables."""

import gzip
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ingero_analyze.diagnose.file_kinds import flag_of_begin
from ingero_fleet.cli import main

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, ring

DUMP = {"version": "2.4", "pg_config": {}, "entries": [], "pg_status": {}}
TRACE = {
    "schemaVersion": 1,
    "deviceProperties": [],
    "distributedInfo": {"rank": 0, "world_size": 2},
    "traceEvents": [],
}
INSPECTED = {"header": {"id": "0x1", "rank": 0, "n_ranks": 2, "nnodes": 2}, "coll_perf": {"coll": "AllReduce"}}
STATUS = {"nccl_version": "2.28.9", "timestamp": "2026-11-20 10:00:00", "communicators": []}
EVENT = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.0, "dur": 2.0, "pid": 0, "tid": 7}
BEGINS = {
    "a pickled dump": (pickle.dumps(DUMP), "--flight-recorder"),
    "a pickle of protocol 2": (pickle.dumps(DUMP, 2), "--flight-recorder"),
    "a dump as JSON": (json.dumps(DUMP).encode(), "--flight-recorder"),
    "a trace": (json.dumps(TRACE, indent=2).encode(), "--kineto"),
    "events alone": (json.dumps([EVENT]).encode(), "--kineto"),
    "a trace of a whole job": (json.dumps({"traceEvents": [{**EVENT, "cat": "forward"}]}).encode(), None),
    "kernels of processes with the names of ranks": (
        json.dumps(
            {
                "traceEvents": [
                    *(
                        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
                        for rank in (0, 1)
                    ),
                    EVENT,
                ]
            }
        ).encode(),
        None,
    ),
    "kernels that tell their ranks": (
        json.dumps([{**EVENT, "args": {"rank": rank}} for rank in (0, 1)]).encode(),
        None,
    ),
    "kernels of one rank": (json.dumps([{**EVENT, "args": {"rank": 3}}] * 2).encode(), "--kineto"),
    "a profile of several ranks": (
        json.dumps([{**EVENT, "cat": "cpu_op", "args": {"rank": rank}} for rank in (0, 1)]).encode(),
        "--kineto",
    ),
    "events of a whole job": (json.dumps([{**EVENT, "cat": "forward"}]).encode(), None),
    "a line of NCCL Inspector": (json.dumps(INSPECTED).encode(), "--nccl-inspector"),
    "a status of RAS": (json.dumps(STATUS).encode(), "--ras"),
    "a page of DCGM": (b'# HELP DCGM_FI_DEV_SM_CLOCK clock\nDCGM_FI_DEV_SM_CLOCK{gpu="0"} 1\n', "--dcgm"),
    "a table": (b"rank,op,kind,start,duration\n", None),
    "a table with columns of DCGM": (b"node,DCGM_FI_DEV_SM_CLOCK\n", None),
    "rows as JSON": (b'[{"rank": 0, "op": "f", "ts": 0, "dur": 1}]', None),
    "nothing": (b"", None),
    "bytes": (b"\x80\xff\x00", None),
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["diagnose", "--quiet", "--json", *map(str, arguments)])


def answer(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments).stdout)
    return found


@pytest.mark.parametrize(("begin", "flag"), BEGINS.values(), ids=BEGINS)
def test_a_file_is_known_by_how_it_begins(begin: bytes, flag: str | None) -> None:
    assert flag_of_begin(begin) == flag


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_without_its_flag_is_judged_as_with_it(tmp_path: Path, packed: bool) -> None:
    for rank in range(3):
        data = json.dumps({**TRACE, "distributedInfo": {"rank": rank}, "traceEvents": [EVENT] * 9}).encode()
        file = tmp_path / f"rank{rank}.json{'.gz' * packed}"
        file.write_bytes(gzip.compress(data) if packed else data)

    with_flag = run("--kineto", tmp_path)

    for without in (run(tmp_path), run(*sorted(tmp_path.iterdir()))):
        assert (without.exit_code, without.stdout) == (with_flag.exit_code, with_flag.stdout)


def test_recorded_dumps_need_no_flag() -> None:
    dumps = Path(__file__).parent / "hang_in_nccl"

    assert answer(dumps) == answer("--flight-recorder", dumps)
    assert answer(dumps)["evidence"]["by"] == "flight_recorder"


def test_files_of_two_tools_are_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(TRACE))
    (tmp_path / "rank_0").write_bytes(pickle.dumps(DUMP))

    done = run(tmp_path)

    assert done.exit_code == 2
    assert all(name in done.stderr for name in ("trace.json", "--kineto", "rank_0", "--flight-recorder"))
    assert "ask once for each" in done.stderr


def test_a_folder_of_tables_is_one_timeline(tmp_path: Path) -> None:
    columns = ring(np.random.default_rng(1), 8, culprit=3).arrays()
    for rank in range(8):
        rows = {name: [column[columns["rank"] == rank]] for name, column in columns.items() if name != "rank"}
        (tmp_path / f"rank{rank}.csv").write_text(Table(rows).csv())
    (tmp_path / "README").write_text("not a table")

    assert answer(tmp_path)["ranks"] == [3]


def test_a_folder_without_any_of_these_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path)

    assert (done.exit_code, "there is no table in this folder" in done.stderr) == (2, True)
