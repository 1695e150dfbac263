"""Fleet sends on what it takes and what it says; Echo keeps it once, though answers get lost, and names the node."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from click.testing import CliRunner

from ingero_contract import echo, headers, metrics, routes
from ingero_echo.cli import main as ingero_echo
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_testing.processes import Running, fleet, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.rpc import unary
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}
NODES = ("a", "b", "d", "e")


class Forgetful:
    """Says of every request when it comes first that it was not served, though it was."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._lock = threading.Lock()

    def forgets(self, body: bytes) -> bool:
        with self._lock:
            first = body not in self.seen
            self.seen.add(body)
            return first


@contextmanager
def over_http(service: Running, forgetful: Forgetful) -> Iterator[str]:
    class Relay(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with httpx.Client(timeout=60, trust_env=False) as client:
                answer = client.post(service.url("otlp/http", self.path), content=body, headers=PROTOBUF)
            forgotten = forgetful.forgets(body)
            self.send_response(503 if forgotten else answer.status_code)
            self.send_header("content-length", "0" if forgotten else str(len(answer.content)))
            self.end_headers()
            self.wfile.write(b"" if forgotten else answer.content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Relay) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def over_grpc(service: Running, forgetful: Forgetful) -> Iterator[str]:
    with grpc.insecure_channel(f"127.0.0.1:{service.ports['otlp/grpc']}") as channel:

        class Relay(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stubs only
            def service(self, details: Any) -> Any:
                def pass_on(body: bytes, context: Any) -> bytes:
                    answer = unary(channel, details.method)(body, timeout=60)
                    if forgetful.forgets(body):
                        context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
                    return answer

                return grpc.unary_unary_rpc_method_handler(pass_on)

        server = grpc.server(ThreadPoolExecutor(4), handlers=[Relay()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(1).wait()


def sends_to(exporter: str, target: str) -> dict[str, Any]:
    """Fleet's settings for sending everything on."""
    return {
        "exporters": {exporter: {"endpoint": target, "tls": {"insecure": True}}},
        "service": {
            "pipelines": {
                "metrics": {"processors": ["ingero"], "exporters": ["prometheus", exporter]},
                "logs": {"exporters": [exporter]},
            }
        },
    }


def drive(service: Running, until: Callable[[dict[str, str]], bool], what: str, **scores: float) -> int:
    """Push rounds of every node until a condition on their verdicts holds; returns the pushes."""
    received: dict[str, str] = {}
    pushes = 0

    def once() -> bool:
        nonlocal pushes
        for node in NODES:
            score = scores.get(node, 0.9)
            report = HealthReport(
                node_id=node, cluster_id="c", score=score, rate=100 * score, time_unix_nano=time.time_ns(),
                workload_type="training",
            )  # fmt: skip
            answer = web.post(
                service.url("otlp/http", routes.OTLP_METRICS), content=encode_report(report).SerializeToString(),
                headers=PROTOBUF,
            )  # fmt: skip
            assert answer.status_code == 200
            pushes += 1
            received[node] = answer.headers.get(headers.VERDICT, "") or received.get(node, "")
        return until(received)

    wait_until(once, what)
    return pushes


def rows(service: Running, sql: str) -> list[list[Any]]:
    answer = web.post(service.url("api", echo.SQL), json={"sql": sql})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["rows"])


def asked(service: Running, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(ingero_echo, ["ask", *words, "--api", service.url("api"), "--json"])
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.output)
    return answer


@pytest.mark.parametrize(("exporter", "relay"), [("otlphttp", over_http), ("otlp", over_grpc)])
def test_what_fleet_sends_on_is_kept_once_and_names_the_straggler(
    tmp_path: Path, exporter: str, relay: Callable[[Running, Forgetful], Any]
) -> None:
    forgetful = Forgetful()
    with (
        start_echo(tmp_path / "echo") as store,
        relay(store, forgetful) as target,
        fleet(tmp_path / "fleet", sends_to(exporter, target)) as service,
    ):
        pushes = drive(service, lambda received: set(received.values()) == {"healthy"}, "everybody to be known")
        pushes += drive(service, lambda received: received["b"].startswith("straggler"), "a verdict", b=0.5)
        wait_until(lambda: rows(store, "SELECT count(*) FROM node_metrics") == [[pushes]], "every push at Echo")
        wait_until(
            lambda: rows(store, "SELECT count(*) FROM verdicts WHERE state = 'straggler'") == [[1]], "the verdict"
        )

        assert (
            rows(store, "SELECT count(*), count(DISTINCT event_id) FROM events WHERE signal = 'logs'")[0]
            == (rows(store, "SELECT count(*), count(*) FROM verdicts")[0])
        )
        scores = f"SELECT count(*) FROM events WHERE metric_name = '{metrics.HEALTH_SCORE}'"
        assert rows(store, scores) == [[pushes]]
        page = web.get(store.url("api", echo.METRICS_PAGE)).text
        repeats = next(line for line in page.splitlines() if line.startswith("ingero_echo_repeats_total"))
        assert float(repeats.split()[1]) > 0
        assert forgetful.seen

        answer = asked(store, "find_stragglers", "cluster_id=c")
        assert answer["rows"][0]["node_id"] == "b"
        assert answer["rows"][0]["state"] == "straggler"
        assert "b is the straggler" in answer["summary"]
        assert "b is a straggler" in asked(store, "why_not", "node_id=b")["summary"]
        assert "a is no straggler" in asked(store, "why_not", "node_id=a")["summary"]
