"""Traces in Chrome's format that have all ranks of a job in one file."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.chrome_tables import events_of, rows_of
from ingero_fleet.cli import main

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import ring

CULPRIT, RANKS = 3, 8
Event = dict[str, Any]


def operations() -> list[Event]:
    """Eight ranks that meet once a step; one is late. Without places."""
    columns = ring(np.random.default_rng(1), RANKS, culprit=CULPRIT).arrays()
    return [
        {"rank": int(rank), "name": op, "cat": op, "ts": 1e6 * float(start), "dur": 1e6 * float(duration),
         "args": {"step": int(step), "microbatch": None}}
        for rank, op, start, duration, step in zip(
            *(np.asarray(columns[name]).tolist() for name in ("rank", "op", "start", "duration", "step")), strict=True
        )
    ]  # fmt: skip


def named(kind: str, text: str, pid: int, tid: int = 0) -> Event:
    return {"ph": "M", "name": f"{kind}_name", "pid": pid, "tid": tid, "args": {"name": text}}


def by_process() -> list[Event]:
    """Each process is a rank, which nothing says."""
    return [{"ph": "X", "pid": one.pop("rank"), "tid": 1, **one} for one in operations()]


def by_name() -> list[Event]:
    """Processes are hosts, threads are named after ranks; names come last."""
    events = [{"ph": "X", "pid": 70 + (rank := one.pop("rank")) // 4, "tid": rank, **one} for one in operations()]
    return [*events, *(named("process", f"host {70 + host}", 70 + host) for host in range(2)),
            *(named("thread", f"Rank {rank} (stream 7)", 70 + rank // 4, rank) for rank in range(RANKS))]  # fmt: skip


def by_parts() -> list[Event]:
    """Processes and threads tell the rank together."""
    events = []
    for one in operations():
        rank = one.pop("rank")
        events.append({"ph": "X", "pid": rank // 2, "tid": 10 * (rank % 2) + ("reduce" in one["name"]), **one})
    names = [named("process", f"DP rank [{replica}]", replica) for replica in range(4)]
    for replica, part, track in np.ndindex(4, 2, 2):
        names.append(named("thread", f"TP rank {part}, {('compute', 'comm')[track]}", replica, 10 * part + track))
    return [*names, *events]


def by_value() -> list[Event]:
    """Values of events tell the rank, and each event has a begin and an end."""
    events = []
    for one in operations():
        own = {"pid": 1, "tid": one["rank"], "name": one["name"], "args": one["args"] | {"rank": one["rank"]}}
        events += [own | {"ph": "B", "ts": one["ts"]}, own | {"ph": "E", "ts": one["ts"] + one["dur"], "args": {}}]
    return sorted(events, key=lambda one: (one["tid"], one["ts"], one["ph"] == "B"))


TRACES = {
    "each process": (by_process, CULPRIT),
    "names of threads": (by_name, CULPRIT),
    "names of both": (by_parts, "dp1/tp1"),
    "values": (by_value, CULPRIT),
}


def answer(file: Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["diagnose", "--quiet", "--json", str(file)])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("make", "culprit"), TRACES.values(), ids=TRACES)
def test_a_late_rank_is_named_in_a_trace_of_all_ranks(
    tmp_path: Path, make: Any, culprit: object, whole: bool
) -> None:
    events = make()
    file = tmp_path / "job.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": events} if whole else events).encode()))

    found = answer(file)

    assert (found["kind"], found["ranks"], found["problems"]["count"]) == ("node", [culprit], 0)
    assert found["read"]["units"] == {"start": "us", "duration": "us"}
    assert found["evidence"]["ranks"] == RANKS


@pytest.mark.parametrize("end", ["", ",", ",\n"], ids=["no end", "a comma", "a comma and a new line"])
def test_a_list_of_events_needs_no_end(tmp_path: Path, end: str) -> None:
    """As the format says of tracers that do not get to write it."""
    (tmp_path / "trace.json").write_text(f"[\n{json.dumps(by_process())[1:-1]}{end}")

    done = CliRunner().invoke(main, ["diagnose", "--json", "--quiet", str(tmp_path / "trace.json")])

    assert json.loads(done.stdout)["ranks"] == [CULPRIT]


def test_the_rank_of_a_part_of_the_job_is_not_that_of_the_job() -> None:
    events = [named("process", "CP rank 2", 1), named("thread", "Tensor Parallel Rank: 3, stage 1", 1, 5),
              {"ph": "X", "pid": 1, "tid": 5, "name": "f", "ts": 1, "dur": 2}]  # fmt: skip

    assert list(rows_of(events)) == [
        {"name": "f", "ts_us": 1, "dur_us": 2, "cp_rank": 2, "tp_rank": 3, "stage": 1},
    ]


def test_processes_that_do_different_things_are_no_ranks() -> None:
    events = [
        {"ph": "X", "pid": pid, "name": name, "ts": 1, "dur": 2} for pid, name in ((0, "f"), (0, "g"), (1, "h"))
    ]

    assert not any("rank" in row for row in rows_of(events))


@pytest.mark.parametrize("broken", [
    7, {"ph": "M"}, {"ph": "M", "name": "process_name", "args": 3}, {"ph": "E", "pid": 1, "tid": 5, "ts": 9},
    {"ph": "B", "pid": 1, "tid": 5, "ts": "x"}, {"ph": "B", "pid": [1], "tid": {}},
    {"ph": ["X"], "pid": 1}, {"ph": "i", "name": "mark", "ts": 3},
])  # fmt: skip
def test_events_that_are_no_operations_are_no_rows(broken: Any) -> None:
    event = {"ph": "X", "pid": 1, "tid": 5, "name": "f", "ts": 1, "dur": 2, "args": None}

    assert list(rows_of([broken, event])) == [{"name": "f", "ts_us": 1, "dur_us": 2}]


@pytest.mark.parametrize("other", [None, 3, [], [1], [{"rank": 0, "ts": 1}], {"rows": [{"ph": "X", "ts": 1}]}])
def test_other_documents_are_no_traces(other: Any) -> None:
    assert not events_of(other)
