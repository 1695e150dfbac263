"""A real Fleet that only receives, beside one that judges, on a real NATS server."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from ingero_contract import headers, routes
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_kit.otlp_signal import Signal
from ingero_testing.processes import Running, fleet, wait_until
from ingero_testing.web import web
from scripts.nats_servers import NatsServers, nats_servers

PROTOBUF = {"content-type": "application/x-protobuf"}
NODES = "abcdefg"
TOKEN = "secret-of-the-state"


@contextmanager
def on_log(folder: Path, servers: NatsServers, role: str) -> Iterator[Running]:
    folder.mkdir(parents=True)
    (folder / "token").write_text(TOKEN)
    change: dict[str, Any] = {
        "log": {"nats": {"servers": servers.urls, "max_bytes": 16 << 20}, "role": role},
        "extensions": {"healthee": {"auth": {"bearer_token_file": str(folder / "token")}}},
    }
    with fleet(folder, change) as running:
        yield running


def report(node: str, rate: float) -> bytes:
    return encode_report(
        HealthReport(node_id=node, cluster_id="c", score=0.9, rate=rate)
    ).SerializeToString()  # fmt: skip


def push(one: Running, node: str, rate: float) -> dict[str, str]:
    """Push a report over HTTP; returns the headers of the answer."""
    answer = web.post(one.url("otlp/http", routes.OTLP_METRICS), content=report(node, rate), headers=PROTOBUF)
    assert answer.status_code == 200
    return {name: answer.headers.get(name, "") for name in (headers.VERDICT, headers.THRESHOLD, headers.QUORUM_MET)}


def push_grpc(one: Running, node: str, rate: float) -> dict[str, str]:
    """Push a report over gRPC; returns the initial metadata of the answer."""
    with grpc.insecure_channel(f"127.0.0.1:{one.ports['otlp/grpc']}") as channel:
        call = channel.unary_unary(Signal.METRICS.grpc_method, bytes, bytes)
        _, done = call.with_call(report(node, rate), timeout=60)
        return {str(name): str(value) for name, value in (*done.initial_metadata(), *done.trailing_metadata())}


def state(one: Running) -> dict[str, Any]:
    found: dict[str, Any] = web.get(
        one.url("health", routes.FLEET_STATE), headers={"authorization": f"Bearer {TOKEN}"}
    ).json()
    return found


def verdicts(one: Running, **slow: float) -> dict[str, str]:
    """All nodes push; returns the verdict lines of the answers."""
    return {node: push(one, node, 90 * slow.get(node, 1.0))[headers.VERDICT] for node in NODES}


def until(one: Running, done: Callable[[dict[str, str]], bool], what: str, **slow: float) -> None:
    """Push until the lines of the answers are as they should be."""
    wait_until(lambda: done(verdicts(one, **slow)), what)


def is_healthy(one: Running) -> bool:
    return web.get(one.url("health", routes.FLEET_HEALTH)).status_code == 200


def all_are_healthy(lines: dict[str, str]) -> bool:
    return set(lines.values()) == {"healthy"}


def only_b(lines: dict[str, str]) -> bool:
    return lines["b"].startswith("straggler") and {line for node, line in lines.items() if node != "b"} == {"healthy"}


def test_a_receiver_answers_as_the_fleet_that_judges_and_goes_on_without_it(tmp_path: Path) -> None:
    with (
        nats_servers(tmp_path / "nats") as servers,
        on_log(tmp_path / "judge", servers, "replica") as judge,
        on_log(tmp_path / "receiver", servers, "receiver") as receiver,
    ):
        wait_until(lambda: is_healthy(receiver), "a receiver that has verdicts")
        until(receiver, all_are_healthy, "everybody to be known")
        until(receiver, only_b, "the straggler in the answers", b=0.5)
        over_http, over_grpc = push(receiver, "b", 45), push_grpc(receiver, "b", 45)
        assert over_grpc[headers.GRPC_VERDICT] == over_http[headers.VERDICT]
        assert over_grpc[headers.GRPC_QUORUM_MET] == over_http[headers.QUORUM_MET] == "true"
        assert float(over_grpc[headers.GRPC_THRESHOLD]) == float(over_http[headers.THRESHOLD]) > 0
        stragglers = web.get(judge.url("threshold", routes.FLEET_STRAGGLERS)).json()["stragglers"]
        assert [item["node_id"] for item in stragglers] == ["b"]
        facts = state(judge)
        assert facts["receivers_only"] == facts["replicas"] == 1 and facts["reports"] == 0
        page = web.get(receiver.url("telemetry", "/metrics")).text
        assert 'ingero_fleet_pushes_total{signal="metrics"}' in page and "ingero_fleet_verdicts_age_seconds" in page

        until(receiver, only_b, "answers in which nobody is silent, after the questions above took their time", b=0.5)
        os.kill(judge.process.pid, signal.SIGKILL)
        judge.process.wait(10)
        until(receiver, lambda _: state(receiver)["verdicts_stale"], "verdicts to age", b=0.5)
        assert only_b(verdicts(receiver, b=0.5)) and is_healthy(receiver), "the last verdicts stand"
        with on_log(tmp_path / "again", servers, "replica"):
            until(receiver, all_are_healthy, "its recovery by the Fleet that continues")
            assert not state(receiver)["verdicts_stale"]
            assert "Traceback" not in receiver.words()
