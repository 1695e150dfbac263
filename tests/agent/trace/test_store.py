"""What is kept, for how long and how much, and what a reader finds."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.events import Collective, SlowCall
from ingero_agent.trace.evidence import read_time_window
from ingero_agent.trace.findings import LongCall, Severity, TimeWindow, find_causes
from ingero_agent.trace.probes.table import FUNCTIONS
from ingero_agent.trace.queries import Filter, collectives, operations
from ingero_agent.trace.stats import HostSnapshot
from ingero_agent.trace.store import Retention, TraceStore
from ingero_testing.processes import BIN, next_line

BY_NAME = {function.name: function for function in FUNCTIONS}
LAUNCH, WAIT = BY_NAME["cudaLaunchKernel"], BY_NAME["cudaStreamSynchronize"]
CALM = HostSnapshot(20.0, 40.0, 8000, 0, 1.0)
BUSY = HostSnapshot(99.0, 40.0, 8000, 0, 40.0)
NOW = 1_000_000.0


def collective(rank: int, seq: int, blocked_ms: float, at: float = NOW - 10) -> Collective:
    arrival = int(at * 1e9)
    return Collective(
        pid=100 + rank, tid=1, operation="ncclAllReduce", op_code=3, communicator="00ab", rank=rank, nranks=4,
        device=rank, seq=seq, exact=True, dtype=7, reduce_op=0, size=4000, arrival_ns=arrival, enqueue_ns=9000,
        blocked_ns=int(blocked_ms * 1e6), end_ns=arrival + int(blocked_ms * 1e6),
    )  # fmt: skip


def count(file: Path, table: str) -> int:
    with closing(sqlite3.connect(file)) as database:
        return int(database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def test_collectives_slow_calls_and_the_host_survive_the_way_through_the_database(tmp_path: Path) -> None:
    file, seen = tmp_path / "a.db", [collective(rank, 1, 80.0) for rank in range(4)]
    slow = SlowCall(
        pid=100, tid=5, source=1, operation=5, name="cudaStreamSynchronize", size=0, begun_ns=int((NOW - 5) * 1e9),
        duration_ns=3 * 10**9, result=0,
    )  # fmt: skip
    store = TraceStore(file)
    store.add(
        [CallCount(WAIT, 100, 4, 8000, histogram=(0,) * 11 + (4,))], NOW - 60, {100: "train"}, [*seen, slow, slow]
    )
    store.snapshot(BUSY, NOW - 20)
    store.close()
    found = read_time_window(file, Filter(begin=NOW - 300, end=NOW))

    assert [one.rank for one in collectives(file, Filter(begin=NOW - 300, end=NOW, limit=2))] == [2, 3]
    assert found.collectives == [replace(one, tid=0) for one in seen]
    assert found.slow == [LongCall(pid=100, operation="cudaStreamSynchronize", seconds=3.0)]
    assert (found.snapshots, found.names, found.histogram[100, "cudaStreamSynchronize"][11]) == (
        [BUSY],
        {100: "train"},
        4,
    )


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    store = TraceStore(file, Retention(seconds=3600, collective_seconds=600))
    store.add([CallCount(LAUNCH, 1, 10)], NOW, {1: "old"}, [collective(0, 1, 1.0, NOW)])
    store.add([CallCount(LAUNCH, 2, 10)], NOW + 700, {2: "new"}, [collective(0, 2, 1.0, NOW + 700)])
    middle = [count(file, table) for table in ("event_aggregates", "event_aggregates_5s", "collectives")]
    store.add([CallCount(LAUNCH, 2, 10)], NOW + 3800, {2: "new"})
    store.close()

    assert middle == [2, 1, 1]
    assert [count(file, table) for table in ("event_aggregates", "collectives", "process_names")] == [2, 0, 1]
    assert store.pruned_rows >= 5


def test_a_database_over_its_limit_loses_its_oldest_rows_and_shrinks(tmp_path: Path) -> None:
    file, limit = tmp_path / "a.db", 2**20
    store = TraceStore(file, Retention(max_bytes=limit))
    for step in range(20):
        seen = [collective(0, step * 1000 + seq, 1.0, NOW + step * 20 + seq / 1000) for seq in range(1000)]
        store.add([], NOW + step * 20, events=seen)
    with closing(sqlite3.connect(file)) as database:
        oldest, newest = database.execute("SELECT MIN(seq), MAX(seq) FROM collectives").fetchone()
    size = store.size
    store.close()

    assert (newest, oldest > 1000) == (19_999, True)
    assert size <= limit * 1.1
    assert store.pruned_rows > 1000


WRITER = """
import sys
import time
from dataclasses import replace
from pathlib import Path
from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.probes.table import FUNCTIONS
from ingero_agent.trace.store import TraceStore
store = TraceStore(Path(sys.argv[1]))
launch = next(function for function in FUNCTIONS if function.name == "cudaLaunchKernel")
for step in range(10**6):
    store.add([CallCount(launch, 7, 10)], 1000.0)
    print(step + 1, flush=True)
"""


def test_what_was_said_to_be_written_is_there_after_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE) as writer:
        for _ in range(200):
            said = int(next_line(writer))
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.communicate(timeout=60)[0].split()
        said = int(rest[-1]) if rest else said

    with closing(sqlite3.connect(file)) as database:
        (kept,) = database.execute("SELECT SUM(count) FROM event_aggregates_5s").fetchone()
    assert kept in (said * 10, said * 10 + 10)
    TraceStore(file).close()


def ingero(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "ingero-agent", *arguments], capture_output=True, text=True, timeout=60)


def test_query_and_explain_answer_people_and_machines(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    now = time.time()
    store = TraceStore(file)
    waits = {0: 80.0, 1: 81.0, 2: 1.0, 3: 79.0}
    seen = [collective(rank, seq, wait, now - 30 + seq) for rank, wait in waits.items() for seq in range(1, 11)]
    store.add([CallCount(LAUNCH, 7, 500), CallCount(WAIT, 7, 4, 8_000_000, 3_000_000)], now, {7: "train"}, seen)
    store.close()
    table, rows = ingero("query", "--db", str(file)), json.loads(ingero("query", "--db", str(file), "--json").stdout)
    singles = json.loads(ingero("query", "--db", str(file), "--collectives", "--op", "reduce", "--json").stdout)
    findings = json.loads(ingero("explain", "--db", str(file), "--json").stdout)

    assert "cudaLaunchKernel" in table.stdout
    assert "train" in table.stdout
    assert [(row["operation"], row["calls"]) for row in rows] == [
        ("cudaStreamSynchronize", 4),
        ("cudaLaunchKernel", 500),
    ]
    assert len(singles) == 40
    assert [(finding["kind"], finding["severity"]) for finding in findings] == [("late-rank", "HIGH")]
    assert "rank 2" in findings[0]["summary"]


@pytest.mark.parametrize("command", ["query", "explain"])
def test_a_database_that_is_not_there_is_named_with_the_cure(command: str, tmp_path: Path) -> None:
    done = ingero(command, "--db", str(tmp_path / "none.db"))

    assert done.returncode == 1
    assert "ingero-agent trace --db" in done.stderr


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(sqlite3.DatabaseError, match="version 99"):
        operations(tmp_path / "a.db", Filter(begin=0, end=1))


def kinds(**change: Any) -> list[tuple[str, Severity]]:
    return [(finding.kind, finding.severity) for finding in find_causes(TimeWindow(**change))]


SPREAD = [0] * 10 + [900] + [0] * 9 + [100] + [0] * 11


def test_a_tail_is_explained_by_what_pressed_on_the_host_and_by_nothing_else() -> None:
    histogram = {(1, "cudaStreamSynchronize"): SPREAD}

    assert kinds(histogram=histogram, snapshots=[CALM]) == []
    assert kinds(histogram=histogram, snapshots=[CALM, BUSY]) == [("tail", Severity.HIGH)]
    assert kinds(histogram={(1, "x"): [0] * 10 + [1000] + [0] * 21}, snapshots=[BUSY]) == []
    assert kinds(histogram={(1, "x"): [0] * 10 + [5] + [0] * 9 + [4] + [0] * 11}, snapshots=[BUSY]) == []


@pytest.mark.parametrize(
    ("rates", "snapshots", "found"),
    [
        pytest.param(
            [100, 100, 100, 100, 50], [BUSY], [("throughput-drop", Severity.HIGH)], id="drop under pressure"
        ),
        pytest.param([100, 100, 100, 100, 50], [CALM], [], id="no evidence"),
        pytest.param([100, 100, 100, 100, 70], [BUSY], [], id="small drop"),
        pytest.param([100, 100, 50], [BUSY], [], id="too short"),
        pytest.param([100, 100, 100, 100, 0], [BUSY], [], id="idle"),
        pytest.param([5, 5, 5, 5, 1], [BUSY], [], id="never busy"),
    ],
)
def test_a_drop_of_launches_needs_a_peak_a_rest_and_evidence(
    rates: list[float], snapshots: list[HostSnapshot], found: list[tuple[str, Severity]]
) -> None:
    assert kinds(launches={1: rates}, snapshots=snapshots) == found


def test_equal_waits_are_said_to_show_no_late_rank() -> None:
    seen = [collective(rank, seq, 80.0) for rank in range(4) for seq in range(10)]

    assert kinds(collectives=seen) == [("equal-waits", Severity.LOW)]


def test_a_chain_keeps_its_identity() -> None:
    slow = [LongCall(pid=1, operation="cudaMalloc", seconds=2.0)]
    (first,) = find_causes(TimeWindow(slow=slow))
    (second,) = find_causes(TimeWindow(slow=[*slow, *slow]))

    assert first.id == second.id
    assert (first.kind, bool(first.evidence), bool(first.advice)) == ("slow-call", True, True)


def test_a_database_that_cannot_be_used_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    text, other, newer = tmp_path / "text.db", tmp_path / "other.db", tmp_path / "newer.db"
    text.write_text("no database")
    for file, statement in ((other, "CREATE TABLE theirs (a)"), (newer, "PRAGMA user_version = 9999")):
        with closing(sqlite3.connect(file)) as database:
            database.execute(statement)
    before = [file.read_bytes() for file in (text, other, newer)]

    for file, words in (
        (text, "file is not a database"),
        (other, "it is that of another program"),
        (newer, "it has schema version 9999, newer than 10"),
        (tmp_path, "unable to open database file"),
    ):
        with pytest.raises(OSError, match=f"^{file} cannot be used as the database: {words}$"):
            TraceStore(file)
    assert [file.read_bytes() for file in (text, other, newer)] == before


def test_a_database_whose_making_was_cut_off_is_completed(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("CREATE TABLE writer (id INTEGER PRIMARY KEY, written_at INTEGER)")

    TraceStore(tmp_path / "a.db").close()

    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (10,)
