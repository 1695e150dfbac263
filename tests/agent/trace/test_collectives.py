"""Single collectives, from the call in an unmodified process to database, page, export and recording."""

import csv
import re
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_agent.trace.containers import parse_environment, parse_rank, rank_of
from ingero_agent.trace.events import Collective, decode, lags, sample_mask
from ingero_agent.trace.timeline import COLUMNS, CollectiveTimeline
from ingero_agent.trace.varying_work import MAX_KINDS, TELLING, VaryingWork
from ingero_testing.gpu_job import (
    attached,
    build_job,
    communicator_hash,
    go,
    identity,
    job,
    listening_port,
    now_ns,
    receiver,
    said,
    tracing,
)
from ingero_testing.processes import wait_until
from ingero_testing.trace_database import query

RANKS, STEPS, LATE, EXTRA_US = 4, 40, 2, 40_000


def collective(**change: Any) -> Collective:
    base: dict[str, Any] = {
        "pid": 1, "tid": 1, "operation": "ncclAllReduce", "op_code": 3, "communicator": "ab", "rank": 0, "nranks": 4,
        "device": 0, "seq": 1, "exact": True, "dtype": 7, "reduce_op": 0, "size": 4000, "arrival_ns": 0,
        "enqueue_ns": 10, "blocked_ns": 0, "end_ns": 0,
    }  # fmt: skip
    return Collective(**{**base, **change})


def of(database: Path, communicator: str, columns: str) -> list[tuple[Any, ...]]:
    return query(database, f"SELECT {columns} FROM collectives WHERE comm_hash = ?", communicator)


def counted(url: str) -> float:
    """All-reduces on the tracer's page; nothing may have been lost to a full map or ring."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        page = answer.read().decode()
    assert not re.search(r'lost_total{reason="[a-z]+_full"', page)
    found = re.search(r'^gpu_nccl_collective_count{op_type="ncclAllReduce"} (\S+)$', page, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def libraries(folder: Path) -> tuple[Path, Path]:
    return folder / "libcudart.so.12", folder / "libnccl.so.2"


@pytest.mark.ebpf
def test_a_rank_that_is_late_on_the_host_is_named_end_to_end(tmp_path: Path) -> None:
    program, began = build_job(tmp_path), now_ns()
    recorded, database = tmp_path / "run.csv", tmp_path / "trace.db"
    with receiver() as (port, bodies):
        flags = ["--record", str(recorded), "--prometheus", "127.0.0.1:0", "--node", "n1", "--cluster", "lab"]
        with (
            tracing(tmp_path, *flags, "--otlp", f"http://127.0.0.1:{port}") as agent,
            job(program, RANKS, STEPS, 1000, LATE, EXTRA_US) as running,
        ):
            mine = communicator_hash(identity(running.pid))
            wait_until(lambda: attached(agent, *libraries(tmp_path)), "both libraries")
            go(running)
            assert said(running) == "done"
            wait_until(lambda: of(database, mine, "COUNT(*)")[0][0] == RANKS * STEPS, "every collective")
            url = f"http://127.0.0.1:{listening_port(agent)}/metrics"
            wait_until(lambda: counted(url) >= RANKS * STEPS, "the page")
        ended = now_ns()

    stored = of(database, mine, "rank, nranks, comm_hash, seq, seq_exact, bytes, timestamp, end_at, blocked_dur")
    assert {row[:3] for row in stored} == {(rank, RANKS, mine) for rank in range(RANKS)}
    assert sorted((row[0], row[3]) for row in stored) == [(r, s) for r in range(RANKS) for s in range(1, STEPS + 1)]
    assert {(row[4], row[5]) for row in stored} == {(1, 4000)}
    assert all(began < row[6] < row[7] < ended for row in stored)
    found = lags(collective(rank=row[0], communicator=row[2], seq=row[3], blocked_ns=row[8]) for row in stored)
    late = {rank: median(values) for (_, rank), values in found.items()}
    assert late[LATE] > EXTRA_US / 2e6
    assert max(abs(late[rank]) for rank in range(RANKS) if rank != LATE) < late[LATE] / 4

    with recorded.open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert tuple(table[0]) == COLUMNS
    waits = {
        rank: median(float(row["duration"]) for row in table if (row["rank"], row["group"]) == (str(rank), mine))
        for rank in range(RANKS)
    }
    work = {
        rank: median(float(row["duration"]) for row in table if row["rank"] == str(rank) and row["kind"] == "compute")
        for rank in range(RANKS)
    }
    assert min(waits, key=lambda rank: waits[rank]) == max(work, key=lambda rank: work[rank]) == LATE

    points = [
        {pair.key: pair.value for pair in point.attributes}
        for body in bodies
        for metric in ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "nccl.collective.barrier_wait_ms"
        for point in metric.gauge.data_points
    ]
    sent = [
        (point["nccl.rank"].int_value, point["nccl.seq"].int_value)
        for point in points if point["nccl.comm_id_hash"].string_value == mine
    ]  # fmt: skip
    assert sorted(sent) == [(rank, seq) for rank in range(RANKS) for seq in range(1, STEPS + 1)]


def test_the_rank_that_waits_least_is_the_late_one_and_clocks_do_not_matter() -> None:
    waits = {0: 80, 1: 81, 2: 1, 3: 79}
    found = lags(
        collective(rank=rank, seq=seq, blocked_ns=wait * 10**6, arrival_ns=rank * 10**12)
        for rank, wait in waits.items()
        for seq in (1, 2)
    )

    assert found["ab", 2] == [pytest.approx(0.079)] * 2
    assert all(abs(value) < 0.003 for rank in (0, 1, 3) for value in found["ab", rank])


def test_equal_waits_name_nobody() -> None:
    found = lags(collective(rank=rank, blocked_ns=80 * 10**6) for rank in range(8))

    assert {value for values in found.values() for value in values} == {0.0}


@pytest.mark.parametrize("change", [{"exact": False}, {"rank": None}, {"communicator": None}])
def test_collectives_that_cannot_be_matched_are_left_out(change: dict[str, Any]) -> None:
    assert lags(collective(**{"rank": rank, **change}) for rank in range(4)) == {}


@pytest.mark.parametrize("record", [b"", b"\0" * 96, b"\xff" * 96, b"\xff" * 50])
def test_rubbish_in_the_ring_is_no_event(record: bytes) -> None:
    assert decode(record, 0) is None


def test_sampling_grows_coarser_under_load_and_fine_again_and_masks_nest() -> None:
    masks = [0]
    for rate in (5000, 5000, 500, 100, 100, 100):
        masks.append(sample_mask(masks[-1], rate, load=0.2))

    assert masks == [0, 1, 3, 3, 1, 0, 0]


def test_collectives_that_cost_too_much_are_sampled_unless_they_are_few() -> None:
    assert [sample_mask(0, rate, load=1.5) for rate in (100, 150, 250, 5000)] == [0, 0, 1, 1]
    assert [sample_mask(1, 100, load=load) for load in (1.5, 0.8, 0.4)] == [1, 1, 0]


def test_a_timeline_splits_a_ranks_time_into_computing_and_communicating() -> None:
    second = 10**9
    found = list(
        CollectiveTimeline().rows(
            [
                collective(seq=1, arrival_ns=10 * second, end_ns=12 * second),
                collective(seq=2, arrival_ns=15 * second, end_ns=16 * second),
            ]
        )
    )

    assert [(row.kind, row.start, row.duration, row.step, row.seq) for row in found] == [
        ("collective", 10, 2, 1, 1),
        ("compute", 12, 3, 2, None),
        ("collective", 15, 1, 2, 2),
    ]


def test_two_communicators_of_one_wait_share_a_step_and_the_jobs_rank_is_the_environments() -> None:
    timeline = CollectiveTimeline()
    timeline.ranks[1] = 9
    found = list(
        timeline.rows(
            [
                collective(communicator="small", nranks=2, rank=1, seq=7, end_ns=5),
                collective(communicator="large", nranks=8, rank=3, seq=4, end_ns=5),
            ]
        )
    )

    assert {(row.rank, row.group, row.seq, row.step) for row in found} == {(9, "small", 7, 4), (9, "large", 4, 4)}


@pytest.mark.parametrize(
    ("environment", "rank"), [(b"A=1\0RANK=3\0", 3), (b"LOCAL_RANK=3\0", None), (b"RANK=x\0", None), (b"", None)]
)
def test_rank_of_the_environment(environment: bytes, rank: int | None) -> None:
    assert parse_rank(parse_environment(environment)) == rank


@pytest.mark.parametrize(
    ("environment", "rank"), [({"RANK": "3", "SLURM_PROCID": "0"}, 3), ({"SLURM_PROCID": "5"}, 5), ({}, None)]
)
def test_srun_gives_the_rank_where_the_launcher_sets_none(environment: dict[str, str], rank: int | None) -> None:
    assert rank_of(environment) == rank


@pytest.mark.ebpf
def test_bytes_of_other_communicators_are_sent_as_work_where_they_vary(tmp_path: Path) -> None:
    """Two all-reduces and a send of a second communicator, whose sizes vary, before each step of the first."""
    elsewhere = """
        for (int part = 0; part < 2; part++) ncclAllReduce(0, 0, 100 * (step % 3 + rank), 6, 0, tensor, 0);
        ncclSend(0, 10 * step, 0, 0, tensor, 0);
        cudaStreamSynchronize(0);
        ncclAllReduce(0, 0, 1000, 7"""
    change = {
        "ncclCommInitRank(&comm, ranks, id, rank);":
            "void *tensor; ncclCommInitRank(&comm, ranks, id, rank); id.bytes[9]++; "
            "ncclCommInitRank(&tensor, ranks, id, rank);",
        "ncclAllReduce(0, 0, 1000, 7": elsewhere,
        "int ncclCommDestroy(void *);":
            "int ncclCommDestroy(void *); int ncclSend(const void *, size_t, int, int, void *, void *);",
    }  # fmt: skip
    program = build_job(tmp_path, change=change)
    with receiver() as (port, bodies):
        with (
            tracing(tmp_path, "--node", "n1", "--cluster", "lab", "--otlp", f"http://127.0.0.1:{port}") as agent,
            job(program, 2, STEPS, 1000, 0, 0) as running,
        ):
            mine = communicator_hash(identity(running.pid))
            wait_until(lambda: attached(agent, *libraries(tmp_path)), "both libraries")
            go(running)
            assert said(running) == "done"
            wait_until(lambda: of(tmp_path / "trace.db", mine, "COUNT(*)")[0][0] == 2 * STEPS, "collectives")
        sent = {
            (point["nccl.rank"].int_value, point["nccl.seq"].int_value):
                point["ingero.work"].int_value if "ingero.work" in point else None
            for body in bodies
            for metric in ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics[0].metrics
            if metric.name == "nccl.collective.barrier_wait_ms"
            for one in metric.gauge.data_points
            if (point := {pair.key: pair.value for pair in one.attributes})["nccl.comm_id_hash"].string_value == mine
        }  # fmt: skip

    wanted = {
        (rank, step + 1): 2 * 2 * 100 * (step % 3 + rank) + 10 * step for rank in range(2) for step in range(STEPS)
    }
    for rank in range(2):
        assert sent[rank, 1] is None, "nothing is known of the time before"
        assert sent[rank, 2] is None, "nothing has varied yet"
    assert {key: sent[key] for key in wanted if key[1] > 2} == {key: wanted[key] for key in wanted if key[1] > 2}


def test_work_is_told_from_its_first_change_until_it_has_been_constant_for_long() -> None:
    varying = VaryingWork()

    def told(*works: int | None, **change: Any) -> list[int | None]:
        return [varying.told(collective(work=work, **change)).work for work in works]

    assert told(5000, 5000, 5010, None) == [None] * 4
    assert told(6000, 0, 6000) == [6000, 0, 6000]
    assert told(5000, 9000, communicator="other", size=1) == [None, 9000]
    assert told(*[6000] * TELLING) == [6000] * (TELLING - 1) + [None]
    assert told(7000) == [7000]
    assert told(7000, communicator=None) == [None]
    varying.forget([2])
    assert told(7000, 8000) == [None, 8000]


def test_the_work_of_collectives_that_alternate_in_a_step_does_not_vary_and_memory_is_bounded() -> None:
    varying = VaryingWork()
    for _ in range(3):
        for size, work in ((1, 500), (2, 900)):
            assert varying.told(collective(size=size, work=work)).work is None
    varying.forget(())
    for size in range(10 * MAX_KINDS):
        varying.told(collective(size=size, work=1))
    assert varying.told(collective(size=10 * MAX_KINDS - 1, work=2)).work is None


@pytest.mark.ebpf
def test_a_communicator_from_before_the_agent_has_its_rank_and_no_exact_number(tmp_path: Path) -> None:
    program, database = build_job(tmp_path, hash_at=13528), tmp_path / "trace.db"
    with job(program, 3, 20, 1000, 0, 0, "after-init") as running:
        mine = communicator_hash(identity(running.pid))
        assert said(running) == "ready"
        with tracing(tmp_path) as agent:
            wait_until(lambda: attached(agent, *libraries(tmp_path)), "both libraries")
            go(running)
            assert said(running) == "done"
            wait_until(lambda: of(database, mine, "COUNT(*)")[0][0] == 60, "collectives")

    assert set(of(database, mine, "rank, nranks, seq_exact")) == {(rank, 3, 0) for rank in range(3)}
