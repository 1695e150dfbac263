"""A late rank from the points of its job to what Echo answers: named, with its node and pod, and taken back."""

import time
from pathlib import Path
from typing import Any

from ingero_agent.health.throttle import Throttle, Throttling
from ingero_agent.throttle_metrics import encode_throttling
from ingero_contract import echo, headers, routes
from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_fleet.processor_settings import NcclConfig
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_testing.collectives import Job
from ingero_testing.processes import Running, fleet, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}
COMM = "0123456789abcdef"


def push(service: Running, job: Job, steps: int) -> None:
    for body in job.pushes(steps):
        web.post(service.url("otlp/http", routes.OTLP_METRICS), content=body, headers=PROTOBUF)


def answered(service: Running) -> dict[str, str]:
    """The verdict's header by node that pushes its health."""
    found = {}
    for rank in range(8):
        report = HealthReport(node_id=f"node-{rank}", cluster_id="c", score=0.9, time_unix_nano=time.time_ns())
        body = encode_report(report).SerializeToString()
        got = web.post(service.url("otlp/http", routes.OTLP_METRICS), content=body, headers=PROTOBUF)
        found[report.node_id] = got.headers.get(headers.VERDICT, "")
    return found


def ask(store: Running, question: str, **arguments: Any) -> Any:
    got = web.post(store.url("api", echo.TOOLS + echo.TOOL_PREFIX + question), json={"cluster_id": "c", **arguments})
    assert got.status_code == 200, got.text
    return got.json()


def sends_to(store: Running) -> dict[str, Any]:
    return {
        "exporters": {"otlphttp": {"endpoint": store.url("otlp/http", ""), "tls": {"insecure": True}}},
        "processors": {"nccl": {"window": 32}},
        "service": {
            "pipelines": {
                "metrics": {"exporters": ["prometheus", "otlphttp"]}, "logs": {"exporters": ["otlphttp"]},
            }
        },
    }  # fmt: skip


def test_echo_names_the_late_rank_and_hears_that_it_is_over(tmp_path: Path) -> None:
    with start_echo(tmp_path / "echo") as store, fleet(tmp_path / "fleet", sends_to(store)) as service:
        job = Job(8, late_ms={5: 5.0})
        push(service, job, 100)
        wait_until(lambda: bool(ask(store, "find_stragglers")["rows"]), "Echo to know the late rank")

        found = ask(store, "find_stragglers")
        row = found["rows"][0]
        assert (row["node_id"], row["rank"], row["communicator"], row["pod"], row["kind"], row["source"]) == (
            "node-5", 5, COMM, "pod-5", "late_rank", "collectives",
        )  # fmt: skip
        assert 0.02 < row["severity"] < 0.06
        assert f"node-5 is the straggler (late_rank), rank 5 of communicator {COMM}, pod pod-5" in found["summary"]
        assert f"rank 5 of communicator {COMM}" in ask(store, "why_not", node_id="node-5")["summary"]
        assert ask(store, "summary")["rows"][0]["straggler_nodes"] == ["node-5"]
        slow = ask(store, "nccl_slow_rank")
        assert (slow["rows"][0]["rank"], slow["rows"][0]["accused"]) == (5, True)
        assert "Fleet names rank 5 (node-5)" in slow["summary"]
        verdict = ask(store, "verdict", node_id="node-5", open_only=True)["rows"][0]
        cited = ask(store, "event_history", event_ids=verdict["evidence"])["rows"]
        assert "came last in" in cited[0]["message"]
        assert ask(store, "anomaly_stream")["rows"][0]["detail"] == (
            f"straggler late_rank rank 5 of communicator {COMM}"
        )  # fmt: skip

        wait_until(lambda: "late_rank" in answered(service)["node-5"], "the answer to its push")
        lines = answered(service)
        assert lines.pop("node-5").endswith(";collectives=late_rank")
        assert not [line for line in lines.values() if "collectives" in line]

        job.late_ms = {}
        push(service, job, 100)
        wait_until(lambda: not ask(store, "find_stragglers")["rows"], "Echo to hear that the rank is cured")
        states = ask(store, "verdict", node_id="node-5")["rows"]
        assert [(item["state"], item["edges"]) for item in states] == [("healthy", 2)]


def test_a_fleet_that_stops_takes_back_what_it_can_no_longer_know(tmp_path: Path) -> None:
    with start_echo(tmp_path / "echo") as store:
        with fleet(tmp_path / "fleet", sends_to(store)) as service:
            push(service, Job(8, late_ms={5: 5.0}), 100)
            wait_until(lambda: bool(ask(store, "find_stragglers")["rows"]), "Echo to know the late rank")
            service.process.terminate()
            assert service.process.wait(20) == 0

        assert ask(store, "find_stragglers")["rows"] == []


def test_echo_knows_a_node_whose_gpu_is_held_back_without_a_rank(tmp_path: Path) -> None:
    exported: list[Push] = []
    tracker, job, begun = CollectivesTracker(NcclConfig(), export_logs=exported.append), Job(8), time.time() - 60
    hot = Throttling({"GPU-1": frozenset({Throttle.THERMAL})})
    heat = encode_throttling(hot, HealthReport(node_id="node-5", cluster_id="c"), 1).SerializeToString()
    for tick in range(12):
        job.step_ms = 100.0 if tick < 5 else 110.0
        # Two ranks on one node, so that nobody knows which one uses the GPU.
        bodies = [body.replace(b"node-6", b"node-5") for body in job.pushes(45)]
        for body in bodies if tick < 5 else [*bodies, heat]:
            tracker.take(Push(Signal.METRICS, "protobuf", body), begun + 5 * tick)
        tracker.judge(begun + 5 * tick)
    with start_echo(tmp_path / "echo") as store:
        for push in exported:
            web.post(store.url("otlp/http", routes.OTLP_LOGS), content=push.body, headers=PROTOBUF)
        wait_until(lambda: bool(ask(store, "find_stragglers")["rows"]), "Echo to know the node")

        found = ask(store, "find_stragglers")
        row = found["rows"][0]
        assert (row["node_id"], row["rank"], row["communicator"], row["kind"], row["source"]) == (
            "node-5", None, COMM, "gpu_throttled", "collectives",
        )  # fmt: skip
        assert f"node-5 is the straggler (gpu_throttled), communicator {COMM}" in found["summary"]
        assert ask(store, "anomaly_stream")["rows"][0]["detail"] == f"straggler gpu_throttled communicator {COMM}"
        assert ask(store, "nccl_slow_rank")["rows"] == []
