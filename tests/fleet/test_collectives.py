"""Which rank do the collectives wait for: the culprit is named whatever clocks say, a victim never."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ingero_contract import attributes, metrics, routes
from ingero_contract.identifiers import node_key
from ingero_contract.values import LATE_RANK
from ingero_fleet.collectives.attribution import (
    AttributionConfig,
    binomial_tail,
    find_late_rank,
)
from ingero_fleet.collectives.excuses import Claim, WaitProfile, without_victims
from ingero_fleet.collectives.lags import group_by, in_buckets, measure
from ingero_fleet.collectives.points import normal_op
from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_fleet.processor_settings import NcclConfig
from ingero_kit.clock import rfc3339
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Encoding, Signal
from ingero_testing.collectives import BEGIN, Job, as_json, feed, named
from ingero_testing.processes import fleet, wait_until
from ingero_testing.web import web

ERROR = AttributionConfig()


def window(job: Job, steps: int) -> tuple[Any, Any, float]:
    """Last rank and loss of each collective, and how long all took, milliseconds."""
    _, blocked = job.run(steps)
    ordered = np.sort(blocked, axis=1)
    elapsed = 1000 * (job.moment - BEGIN)
    return blocked.argmin(axis=1), ordered[:, 1] - ordered[:, 0], elapsed


@pytest.mark.parametrize(("ranks", "jitter"), [(8, 1.0), (8, 2.0), (64, 1.0), (512, 1.0)])
def test_a_rank_late_by_a_twentieth_is_named_every_time(ranks: int, jitter: float) -> None:
    for seed in range(50):
        job = Job(ranks, jitter_ms=jitter, late_ms={seed % ranks: 5.0}, seed=seed)
        finding = find_late_rank(*window(job, 100), ranks, ERROR)

        assert finding is not None
        assert (finding.rank, finding.accused) == (seed % ranks, True), finding


@pytest.mark.parametrize("jitter", [0.1, 1.0, 5.0, 30.0])
def test_among_equals_nobody_is_named(jitter: float) -> None:
    for seed in range(200):
        finding = find_late_rank(*window(Job(8, jitter_ms=jitter, seed=seed), 100), 8, ERROR)

        assert finding is not None
        assert not finding.accused, finding


def test_a_habit_of_being_last_by_a_hair_is_no_fault() -> None:
    finding = find_late_rank(*window(Job(8, jitter_ms=0.001, late_ms={3: 0.05}), 200), 8, ERROR)

    assert finding is not None
    assert finding.chance < 1e-9
    assert "of the time was lost" in finding.why_not


def with_pauses(job: Job, steps: int, paused: dict[int, float]) -> tuple[Any, Any, float]:
    """The window of a job in which rank 3 pauses for so many milliseconds in some steps."""
    last, lost, elapsed = window(job, steps)
    for step, pause in paused.items():
        last[step], lost[step], elapsed = 3, pause, elapsed + pause
    return last, lost, elapsed


@pytest.mark.parametrize("late_ms", [0.05, 0.5])
@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_a_habit_of_being_last_by_a_hair_and_a_few_pauses_are_no_fault(ranks: int, late_ms: float) -> None:
    job = Job(ranks, jitter_ms=late_ms, late_ms={3: late_ms})

    finding = find_late_rank(*with_pauses(job, 300, {40: 2000.0, 200: 1000.0, 270: 2000.0}), ranks, ERROR)

    assert finding is not None
    assert (finding.rank, finding.accused) == (3, False), finding
    assert finding.share > 0.1


def test_pauses_do_not_hide_a_late_rank() -> None:
    job = Job(8, jitter_ms=1.0, late_ms={3: 5.0})

    finding = find_late_rank(*with_pauses(job, 300, {40: 2000.0, 200: 1000.0}), 8, ERROR)

    assert finding is not None
    assert (finding.rank, finding.accused) == (3, True), finding


def test_a_rank_that_pauses_again_and_again_is_named() -> None:
    job = Job(8, jitter_ms=1.0)

    finding = find_late_rank(*with_pauses(job, 300, dict.fromkeys(range(10, 300, 20), 200.0)), 8, ERROR)

    assert finding is not None
    assert (finding.rank, finding.accused) == (3, True), finding


def test_with_many_collectives_a_step_the_first_decides() -> None:
    job = Job(8, step_ms=500, jitter_ms=0.5, late_ms={6: 25.0}, per_step=40)

    finding = find_late_rank(*window(job, 13), 8, ERROR)

    assert finding is not None
    assert (finding.rank, finding.accused) == (6, True)


@settings(deadline=None)
@given(
    st.integers(2, 40), st.integers(0, 60), st.integers(0, 60)
)  # fmt: skip
def test_the_tail_is_the_binomial_s(ranks: int, trials: int, successes: int) -> None:
    expected = sum(
        math.comb(trials, count) * (1 / ranks) ** count * (1 - 1 / ranks) ** (trials - count)
        for count in range(successes, trials + 1)
    )

    assert binomial_tail(trials, 1 / ranks, successes) == pytest.approx(expected, rel=1e-6, abs=1e-300)


def test_who_waited_elsewhere_for_another_is_a_victim() -> None:
    straggler, victim = Claim(1, "a", 0.10), Claim(2, "b", 0.09)
    first, second = WaitProfile(1, {"a": 0.10}, {"b": 0.10, "c": 0.09}), WaitProfile(2, {"b": 0.09}, {"d": 0.09})

    assert without_victims([straggler, victim], [first, second]) == [straggler]
    assert without_victims([victim], [first, second]) == []
    assert without_victims([victim], [second]) == [victim]
    assert without_victims([victim], [WaitProfile(1, {"a": 0.01}, {"b": 0.10})]) == [victim]
    assert without_victims([victim], [WaitProfile(1, {"a": 0.10}, {"b": 0.01})]) == [victim]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 4), st.floats(0, 100)), min_size=1, max_size=80
    )
)
def test_grouping_keeps_one_point_of_each_rank_the_newest(points: list[tuple[int, int, int, float]]) -> None:
    comm, seq, rank, _ = (np.array(column, np.int64) for column in zip(*points, strict=True))
    received = np.arange(len(points))

    group, again = group_by((comm, seq), rank, received)

    wanted = {(one, two, three): place for place, (one, two, three, _) in enumerate(points)}
    assert sorted(group.order.tolist()) == sorted(wanted.values())
    assert len(again) == len(points) - len(wanted)
    assert all(points[old][:3] == points[new][:3] and old < new for old, new in again.tolist())
    for first, end in zip(group.starts[:-1].tolist(), group.starts[1:].tolist(), strict=True):
        places = group.order[first:end]
        assert len({(int(comm[place]), int(seq[place])) for place in places}) == 1
        assert len({int(rank[place]) for place in places}) == len(places)
    assert len(group.sizes) == len({(one, two) for one, two, _, _ in points})


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(0, 1000, width=32), min_size=2, max_size=9), min_size=1, max_size=20))
def test_lags_are_distances_from_the_median_and_the_last_is_who_blocked_least(waits: list[list[float]]) -> None:
    number = np.repeat(np.arange(len(waits)), [len(row) for row in waits])
    rank = np.concatenate([np.arange(len(row)) for row in waits])
    blocked = np.array([value for row in waits for value in row])

    group, _ = group_by((number,), rank, np.zeros(len(rank)))
    found = measure(group, rank, blocked, np.zeros(len(rank)))

    assert found.lag == pytest.approx(np.concatenate([np.median(row) - np.array(row) for row in waits]), abs=1e-6)
    for row, last, lost in zip(waits, found.last.tolist(), found.lost.tolist(), strict=True):
        assert row[last] == min(row)
        assert lost == pytest.approx(sorted(row)[1] - min(row))


@settings(deadline=None)
@given(
    st.integers(2, 6), st.integers(1, 20), st.floats(0.01, 5), st.lists(st.floats(0, 0.4), min_size=6, max_size=6)
)  # fmt: skip
def test_without_numbers_points_meet_over_any_edge(
    ranks: int, collectives: int, step: float, skew: list[float]
) -> None:
    time = np.array([[100 + place * step + skew[rank] for rank in range(ranks)] for place in range(collectives)])
    rank = np.tile(np.arange(ranks), collectives)

    numbers = in_buckets(time.ravel(), rank, 0.5).reshape(collectives, ranks)

    assert (numbers == numbers[:, :1]).all()
    assert len(np.unique(numbers)) == collectives


@pytest.mark.parametrize(
    ("written", "name"), [("ncclAllReduce", "allreduce"), ("allreduce", "allreduce"), ("", "unknown"), (5, "unknown")]
)
def test_both_spellings_of_an_operation_are_one(written: Any, name: str) -> None:
    assert normal_op(written) == name


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@pytest.mark.parametrize("seq", [True, False])
def test_the_late_rank_is_named_with_its_node_pod_and_job(encoding: Encoding, seq: bool) -> None:
    tracker = CollectivesTracker(NcclConfig())
    bodies = Job(8, late_ms={5: 5.0}, clock_seconds=10.0 if seq else 0.02).pushes(100, seq=seq, job="4711")

    feed(tracker, [as_json(body) for body in bodies] if encoding == "json" else bodies, BEGIN, encoding)
    tracker.judge(BEGIN + 1)

    finding = tracker.stragglers[node_key("c", "node-5")]
    assert (finding["rank"], finding["pod"], finding["job_id"]) == (5, "pod-5", "4711")
    assert finding["lag_ms"] == pytest.approx(5, rel=0.2)
    assert 0.02 < finding["share"] < 0.05
    assert len(tracker.stragglers) == 1


def test_a_late_rank_is_reported_since_when_and_for_how_many_ticks() -> None:
    tracker, job = CollectivesTracker(NcclConfig()), Job(8, late_ms={5: 5.0})
    for tick in range(3):
        feed(tracker, job.pushes(100), BEGIN + 10 * tick)
        tracker.judge(BEGIN + 10 * tick)

    found = tracker.stragglers[node_key("c", "node-5")]

    assert (found["kind"], found["windows"], found["since"]) == ("late_rank", 3, rfc3339(BEGIN))
    assert tracker.shares() == {("c", "node-5"): found["share"]}


@pytest.mark.parametrize("late", [{}, {5: 5.0}])
def test_after_a_long_time_in_which_all_were_well_the_late_rank_is_named_as_soon_and_nobody_else(
    late: dict[int, float],
) -> None:
    named_at = []
    for seed in range(40):
        tracker, job = CollectivesTracker(NcclConfig()), Job(8, jitter_ms=2.0, seed=seed)
        feed(tracker, job.pushes(450), BEGIN)
        tracker.judge(BEGIN)
        assert not tracker.stragglers
        job.late_ms = late
        for tick in range(1, 7):
            feed(tracker, job.pushes(10), BEGIN + tick)
            tracker.judge(BEGIN + tick)
            assert named(tracker) <= {"node-5"}
            if tracker.stragglers:
                named_at.append(10 * tick)
                break

    assert len(named_at) == (40 if late else 0)
    assert not late or np.median(named_at) <= 40


def test_points_that_are_lost_or_late_only_cost_power() -> None:
    tracker = CollectivesTracker(NcclConfig())
    job = Job(8, late_ms={2: 5.0})
    for tick in range(6):
        feed(tracker, job.pushes(40, drop=0.05), BEGIN + 10 * tick)
        tracker.judge(BEGIN + 10 * tick)

    assert named(tracker) == {"node-2"}
    assert tracker.outcomes["partial"] > 0


def test_a_victim_in_a_second_communicator_is_not_named() -> None:
    tracker = CollectivesTracker(NcclConfig())
    feed(tracker, Job(4, late_ms={0: 10.0}, seed=1, comm="a" * 16).pushes(100), BEGIN)
    held_up = Job(4, late_ms={0: 9.0}, seed=2, comm="b" * 16).pushes(100, node="peer-{}")
    feed(tracker, [body.replace(b"peer-0", b"node-1") for body in held_up], BEGIN)
    tracker.judge(BEGIN + 1)

    assert named(tracker) == {"node-0"}


def test_two_nodes_that_claim_one_rank_make_the_answer_unknown() -> None:
    tracker = CollectivesTracker(NcclConfig())
    feed(tracker, Job(8, late_ms={5: 5.0}, seed=1).pushes(60), BEGIN)
    feed(tracker, Job(8, seed=2).pushes(60, node="other-{}"), BEGIN)
    tracker.judge(BEGIN + 1)

    assert named(tracker) == set()
    assert "share this hash" in tracker.answer(None, BEGIN + 1)["communicators"][0]["verdict"]


def test_without_waits_the_answer_is_unknown() -> None:
    tracker = CollectivesTracker(NcclConfig())
    bodies = Job(8, late_ms={5: 5.0}).pushes(60)
    wait, duration = metrics.COLLECTIVE_BARRIER_WAIT.encode(), metrics.COLLECTIVE_DURATION.encode()
    feed(tracker, [as_json(body).replace(wait, duration) for body in bodies], BEGIN, "json")
    tracker.judge(BEGIN + 1)

    assert named(tracker) == set()
    assert "unknown" in tracker.answer(None, BEGIN + 1)["communicators"][0]["verdict"]


def test_a_cured_rank_is_let_go_and_silence_is_forgotten() -> None:
    tracker = CollectivesTracker(NcclConfig(window_age=20.0, ttl=60.0))
    job = Job(8, late_ms={5: 5.0})
    feed(tracker, job.pushes(100), BEGIN)
    tracker.judge(BEGIN)
    assert named(tracker) == {"node-5"}
    job.late_ms = {}
    for tick in (10, 20, 30):
        feed(tracker, job.pushes(100), BEGIN + tick)
        tracker.judge(BEGIN + tick)

    assert named(tracker) == set()
    tracker.judge(BEGIN + 200)
    assert (tracker.windows, tracker.reader.comms, tracker.reader.sources) == ({}, [], [])
    feed(tracker, job.pushes(100), BEGIN + 300)
    tracker.judge(BEGIN + 300)
    assert len(tracker.windows) == 1


def test_limits_hold_and_what_is_left_out_is_counted() -> None:
    tracker = CollectivesTracker(NcclConfig(max_communicators=20, max_ranks=1000, max_points=1000))
    for number in range(100):
        feed(tracker, Job(4, comm=f"{number:016x}").pushes(5), BEGIN)
    tracker.judge(BEGIN)

    assert len(tracker.windows) == 20
    assert (
        tracker.reader.refused["more communicators than Fleet keeps (processors.nccl.max_communicators)"]
        == 80 * 4 * 5
    )
    feed(tracker, Job(4, comm=f"{1:016x}").pushes(1000), BEGIN)
    assert tracker.dropped > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({attributes.NCCL_RANK: 8}, "nccl.rank"),
        ({attributes.NCCL_RANK: -1}, "nccl.rank"),
        ({attributes.NCCL_NRANKS: 1}, "nccl.nranks"),
        ({attributes.NCCL_NRANKS: 10**9}, "nccl.nranks"),
        ({attributes.NCCL_COMM_HASH: ""}, "nccl.comm_id_hash"),
        ({attributes.NCCL_SEQ: -5}, "nccl.seq"),
    ],
)
def test_numbers_out_of_range_are_counted_and_left_out(change: dict[str, Any], reason: str) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    request = ExportMetricsServiceRequest.FromString(Job(8).pushes(1)[0])
    for pair in request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].attributes:
        if pair.key in change:
            value = change[pair.key]
            if isinstance(value, str):
                pair.value.string_value = value
            else:
                pair.value.int_value = value
    tracker = CollectivesTracker(NcclConfig())
    for encoding, body in (("protobuf", request.SerializeToString()), ("json", as_json(request.SerializeToString()))):
        tracker.take(Push(Signal.METRICS, encoding, body), BEGIN)  # type: ignore[arg-type]

    assert [(text.startswith(reason), count) for text, count in tracker.reader.refused.items()] == [(True, 2)]


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["protobuf", "json"]))
def test_rubbish_never_fails(body: bytes, encoding: Encoding) -> None:
    tracker = CollectivesTracker(NcclConfig())

    tracker.take(Push(Signal.METRICS, encoding, body), BEGIN)
    tracker.judge(BEGIN)


def test_peer_lags_go_onward_as_otlp() -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    sent: list[Push] = []
    tracker = CollectivesTracker(NcclConfig(onward_points=5), sent.append)
    feed(tracker, Job(8, late_ms={5: 5.0}).pushes(100), BEGIN)
    tracker.judge(BEGIN)

    request = ExportMetricsServiceRequest.FromString(sent[0].body)
    found = {
        pair.value.int_value: point.as_double
        for block in request.resource_metrics
        for metric in block.scope_metrics[0].metrics
        for point in metric.gauge.data_points
        for pair in point.attributes
        if metric.name == metrics.COLLECTIVE_PEER_LAG and pair.key == attributes.NCCL_RANK
    }
    assert len(found) == 5
    assert found[5] == pytest.approx(5, rel=0.1)
    assert tracker.outcomes["lags_not_sent"] == 3


def test_a_peer_lag_is_of_one_operation() -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    sent: list[Push] = []
    tracker = CollectivesTracker(NcclConfig(), sent.append)
    reduce, gather = Job(4, late_ms={2: 8.0}).pushes(50), Job(4, late_ms={1: 3.0}).pushes(50)
    feed(tracker, [*reduce, *(body.replace(b"ncclAllReduce", b"ncclAllGather") for body in gather)], BEGIN)
    tracker.judge(BEGIN)

    found = {}
    for block in ExportMetricsServiceRequest.FromString(sent[0].body).resource_metrics:
        for point in block.scope_metrics[0].metrics[0].gauge.data_points:
            own = {pair.key: pair.value for pair in point.attributes}
            place = own[attributes.NCCL_OP_TYPE].string_value, own[attributes.NCCL_RANK].int_value
            assert place not in found
            found[place] = point.as_double
    assert len(found) == 8
    assert found["allreduce", 2] == pytest.approx(8, rel=0.1)
    assert found["allgather", 1] == pytest.approx(3, rel=0.2)
    assert abs(found["allreduce", 1]) < 1 > abs(found["allgather", 2])


def exported_edges(sent: list[Push]) -> list[tuple[str, str, int]]:
    """State, node and rank of every exported record, in order."""
    found = []
    for push in sent:
        assert push.signal is Signal.LOGS
        for block in ExportLogsServiceRequest.FromString(push.body).resource_logs:
            node = next(
                pair.value.string_value for pair in block.resource.attributes if pair.key == attributes.NODE_ID
            )
            (record,) = block.scope_logs[0].log_records
            assert record.event_name == metrics.VERDICT_EVENT
            facts = {pair.key: pair.value for pair in record.attributes}
            assert facts[attributes.VERDICT_KIND].string_value == LATE_RANK
            found.append((facts[attributes.VERDICT_STATE].string_value, node, facts[attributes.NCCL_RANK].int_value))
    return found


def test_every_edge_of_an_accusation_is_reported_once() -> None:
    sent: list[Push] = []
    tracker, job = (
        CollectivesTracker(NcclConfig(window=64, ttl=60.0), export_logs=sent.append),
        Job(8, late_ms={5: 5.0}),
    )
    for tick in range(3):
        feed(tracker, job.pushes(100), BEGIN + 10 * tick)
        tracker.judge(BEGIN + 10 * tick)
    assert exported_edges(sent) == [("straggler", "node-5", 5)]
    job.late_ms = {2: 5.0}
    feed(tracker, job.pushes(100), BEGIN + 40)
    tracker.judge(BEGIN + 40)
    assert exported_edges(sent)[1:] == [("healthy", "node-5", 5), ("straggler", "node-2", 2)]
    tracker.judge(BEGIN + 50)
    tracker.judge(BEGIN + 200)
    assert exported_edges(sent)[3:] == [("learning", "node-2", 2)]
    assert len({push.body for push in sent}) == len(sent)
    tracker.close(BEGIN + 210)
    assert len(sent) == 3


def test_a_node_whose_other_rank_is_late_now_is_reported_anew() -> None:
    sent: list[Push] = []
    tracker, job = CollectivesTracker(NcclConfig(window=64), export_logs=sent.append), Job(8, late_ms={5: 5.0})
    for late in (5, 6, 5):
        job.late_ms = {late: 5.0}
        bodies = job.pushes(100, node="host-{}")
        feed(tracker, [body.replace(b"host-6", b"host-5") for body in bodies], BEGIN)
        tracker.judge(BEGIN)

    assert exported_edges(sent) == [("straggler", "host-5", late) for late in (5, 6, 5)]


def test_more_edges_than_a_tick_may_report_are_reported_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero_fleet.collectives.straggler_ranks.MAX_EDGES", 2)
    sent: list[Push] = []
    tracker = CollectivesTracker(NcclConfig(), export_logs=sent.append)
    for number in range(5):
        job = Job(4, late_ms={1: 5.0}, seed=number, comm=f"{number:016x}")
        feed(tracker, job.pushes(60, node=f"n{number}-{{}}"), BEGIN)
    counts = []
    for tick in range(4):
        tracker.judge(BEGIN + tick)
        counts.append(len(exported_edges(sent)))

    assert counts == [2, 4, 5, 5]
    tracker.close(BEGIN + 10)
    assert exported_edges(sent)[5:] == [("learning", f"n{number}-1", 1) for number in range(5)]


@pytest.mark.parametrize("actionable", [False, True])
def test_a_running_fleet_names_the_rank(tmp_path: Path, actionable: bool) -> None:
    with fleet(tmp_path, {"processors": {"nccl": {"actionable": actionable}}}) as service:
        job = Job(8, late_ms={5: 5.0}, clock_seconds=10)
        headers = {"content-type": "application/x-protobuf"}
        for rank, body in enumerate(job.pushes(100)):
            report = HealthReport(
                node_id=f"node-{rank}", cluster_id="c", score=0.9, provider="aws", gpu_model="NVIDIA H100 80GB HBM3",
                gpu_count=8,
            )  # fmt: skip
            for content in (body, encode_report(report).SerializeToString()):
                answer = web.post(service.url("otlp/http", routes.OTLP_METRICS), content=content, headers=headers)
                assert (answer.status_code, answer.content) == (200, b"")

        def answer_of(path: str) -> Any:
            got = web.get(service.url("diagnostics", path))
            return got.json() if got.status_code == 200 else {}

        wait_until(lambda: bool(answer_of(routes.FLEET_COLLECTIVES).get("culprits")), "a culprit")

        assert [item["node_id"] for item in answer_of(routes.FLEET_COLLECTIVES)["culprits"]] == ["node-5"]
        assert answer_of(f"{routes.FLEET_WHY}?node_id=node-5")["collectives"]["rank"] == 5
        assert answer_of(f"{routes.FLEET_WHY}?node_id=node-4")["collectives"] is None

        def stragglers() -> Any:
            return web.get(service.url("threshold", f"{routes.FLEET_STRAGGLERS}?cluster_id=c")).json()

        def complete() -> bool:
            summary = stragglers()
            return (
                bool(summary["culprits"])
                and summary["active_nodes"] == 8
                and summary["cost"]["cost_per_hour"] > 7.5 * 8 * 12.29
            )

        wait_until(complete, "all nodes, and the bill of all nodes")
        summary = stragglers()
        straggler = summary["culprits"][0]
        assert [straggler[key] for key in ("node_id", "rank", "pod", "kind", "straggler")] == [
            "node-5", 5, "pod-5", "late_rank", actionable,
        ]  # fmt: skip
        assert [item["node_id"] for item in summary["stragglers"]] == (["node-5"] if actionable else [])
        assert summary["cost"]["cost_per_hour"] == pytest.approx(8 * 8 * 12.29)
        share = straggler["share"]
        billed = web.get(service.url("threshold", f"{routes.FLEET_COST}?cluster_id=c")).json()["culprits"]
        assert [(item["node_id"], item["named_by"]) for item in billed] == [("node-5", "collectives")]
        assert billed[0]["share_per_hour"] == pytest.approx(share * 8 * 8 * 12.29, rel=0.2)
        assert "ingero_fleet_collective_culprit_share" in web.get(service.url("prometheus", "/metrics")).text
