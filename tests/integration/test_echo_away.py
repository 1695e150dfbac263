"""Echo is away: Fleet keeps what its queue can take, counts the rest, and delivers everything once afterwards."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from ingero_contract import echo, routes
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_testing.processes import Running, fleet, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

QUEUE = 20


def settings(port: int) -> dict[str, Any]:
    exporter = {
        "endpoint": f"127.0.0.1:{port}", "tls": {"insecure": True}, "sending_queue": {"queue_size": QUEUE},
        "batch_bytes": 1024,
    }  # fmt: skip
    pipeline = {"processors": ["ingero"], "exporters": ["prometheus", "otlp"]}
    return {"exporters": {"otlp": exporter}, "service": {"pipelines": {"metrics": pipeline}}}


def push(service: Running) -> int:
    """One acknowledged push; its time."""
    now = time.time_ns()
    body = encode_report(HealthReport(node_id="a", cluster_id="c", score=0.9, time_unix_nano=now))
    answer = web.post(
        service.url("otlp/http", routes.OTLP_METRICS), content=body.SerializeToString(),
        headers={"content-type": "application/x-protobuf"},
    )  # fmt: skip
    assert answer.status_code == 200
    return now


def exporting(service: Running) -> dict[str, Any]:
    answer = web.get(service.url("threshold", routes.FLEET_STRAGGLERS))
    return dict(answer.json()["exporters"]["otlp"]) if answer.status_code == 200 else {}


def stored(store: Running) -> list[int]:
    sql = 'SELECT epoch_ns("timestamp") FROM node_metrics ORDER BY 1'
    answer = web.post(store.url("api", echo.SQL), json={"sql": sql})
    return [row[0] for row in answer.json()["rows"]] if answer.status_code == 200 else []


def test_what_fleet_acknowledged_while_echo_was_away_arrives_once_or_is_counted(tmp_path: Path) -> None:
    with start_echo(tmp_path / "echo") as store:
        port = store.ports["otlp/grpc"]
        with fleet(tmp_path / "fleet", settings(port)) as service:
            acknowledged = [push(service)]
            wait_until(lambda: stored(store) == acknowledged, "the first push at Echo")
            os.kill(store.process.pid, signal.SIGKILL)
            store.process.wait()

            acknowledged.append(push(service))
            wait_until(lambda: "failing_since" in exporting(service), "Fleet to say that Echo is away")
            acknowledged += [push(service) for _ in range(QUEUE)]
            full = exporting(service)
            lost = [push(service) for _ in range(3)]
            over = exporting(service)

            assert (full["waiting"], full["queue_full"], full["dropped"]) == (1 + QUEUE, 1.0, {})
            assert over["dropped"] == {"queue_full": len(lost)} and over["failing_since"] == full["failing_since"]
            assert over["failure"] == "unreachable"

            again = {"ingest": {"grpc_endpoint": f"127.0.0.1:{port}"}}
            with start_echo(tmp_path / "echo", again) as back:
                wait_until(lambda: exporting(service)["waiting"] == 0, "everything to be delivered")
                wait_until(lambda: stored(back) == acknowledged, "everything acknowledged at Echo, once")
                found = exporting(service)
                assert "failing_since" not in found and found["dropped"] == {"queue_full": len(lost)}
