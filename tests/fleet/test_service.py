"""A real Fleet on real sockets: pushes in, thresholds back, and everybody else served whatever one client does."""

import gzip
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from prometheus_client.parser import text_string_to_metric_families

from ingero_contract import headers, routes
from ingero_contract.values import NodeState, VerdictState
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report, to_json
from ingero_kit.otlp_signal import Signal
from ingero_testing.processes import SHARED, Running, fleet, process, wait_until
from ingero_testing.rpc import unary
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}


@pytest.fixture(scope="module", params=[1, 2], ids=["one-process", "two-receivers"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with fleet(tmp_path_factory.mktemp("fleet"), {"receivers": {"otlp": {"processes": request.param}}}) as running:
        yield running


def body(node: str, score: float = 0.9, cluster: str = "c", **fields: Any) -> bytes:
    report = HealthReport(node_id=node, cluster_id=cluster, score=score, state=NodeState.ACTIVE, **fields)
    return encode_report(report).SerializeToString()


def push(service: Running, content: bytes, **extra: Any) -> httpx.Response:
    return web.post(service.url("otlp/http", routes.OTLP_METRICS), content=content, headers=PROTOBUF, **extra)


def fill(service: Running, cluster: str) -> httpx.Response:
    """Push three healthy nodes until the answer carries a threshold."""
    answers: list[httpx.Response] = []

    def done() -> bool:
        for name in ("a", "b", "d"):
            answers.append(push(service, body(name, cluster=cluster)))
        return headers.THRESHOLD in answers[-1].headers

    wait_until(done, "a threshold")
    return answers[-1]


def test_a_push_is_answered_with_threshold_and_quorum(service: Running) -> None:
    answer = fill(service, "http")

    assert answer.status_code == 200
    assert answer.headers[headers.THRESHOLD] == "0.850000"
    assert answer.headers[headers.QUORUM_MET] == "true"


def test_before_a_quorum_there_are_no_headers_and_the_api_says_zero(service: Running) -> None:
    answer = push(service, body("alone", cluster="lonely"))

    assert headers.THRESHOLD not in answer.headers
    assert headers.QUORUM_MET not in answer.headers
    got = web.get(service.url("threshold", f"{routes.FLEET_THRESHOLD}?cluster_id=lonely"))
    assert (got.status_code, got.json()) == (200, {"threshold": 0, "quorum_met": False})


def test_grpc_brings_the_same_answer_as_metadata(service: Running) -> None:
    fill(service, "grpc")
    with grpc.insecure_channel(f"127.0.0.1:{service.ports['otlp/grpc']}") as channel:
        call = unary(channel, Signal.METRICS.grpc_method)
        raw, done = call.with_call(body("a", cluster="grpc"), timeout=60)

        assert ExportMetricsServiceResponse.FromString(raw) == ExportMetricsServiceResponse()
        metadata = dict(done.initial_metadata())
        assert metadata[headers.GRPC_THRESHOLD] == "0.850000"
        assert metadata[headers.GRPC_QUORUM_MET] == "true"
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\xff rubbish", timeout=60)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_slow_node_is_named_with_its_reason(service: Running) -> None:
    def round_of(score: float) -> str:
        for name in ("a", "b", "d"):
            push(service, body(name, cluster="slow", throughput=1.0, compute=0.9))
        answer = push(service, body("culprit", score, cluster="slow", throughput=score / 0.9, compute=0.9))
        return answer.headers.get(headers.VERDICT, "")

    wait_until(lambda: round_of(0.9) == VerdictState.HEALTHY, "everybody to be known")

    def named() -> list[dict[str, Any]]:
        node_verdicts = round_of(0.3)
        assert "straggler" not in node_verdicts or "kind=collapse" in node_verdicts or "kind=slow" in node_verdicts
        found = web.get(service.url("threshold", f"{routes.FLEET_STRAGGLERS}?cluster_id=slow")).json()
        return list(found["stragglers"])

    wait_until(lambda: bool(named()), "a straggler")

    assert [node["node_id"] for node in named()] == ["culprit"]
    why = web.get(service.url("diagnostics", f"{routes.FLEET_WHY}?node_id=culprit&cluster_id=slow")).json()
    assert why["straggler"] is True
    assert why["dominant_signal"] == "throughput"
    assert "lost 67 % of its rate against its own history" in why["why"]
    fine = web.get(service.url("diagnostics", f"{routes.FLEET_WHY}?node_id=a&cluster_id=slow")).json()
    assert "its own history and its peers" in fine["why"]


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"\xff\xff", "application/x-protobuf", 400),
        (b"{", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"resourceMetrics": 5}', "application/json", 400),
        (b"{", "Application/JSON ; charset=utf-8", 400),
        (b"", "application/x-protobufs", 415),
        (b"", "text/plain", 415),
        (b"x" * (5 << 20), "application/x-protobuf", 413),
    ],
)
def test_rubbish_is_refused_and_the_next_push_is_served(
    service: Running, content: bytes, content_type: str, status: int
) -> None:
    try:
        answer = web.post(
            service.url("otlp/http", routes.OTLP_METRICS), content=content, headers={"content-type": content_type}
        )
        assert answer.status_code == status
    except httpx.WriteError:
        assert status == 413

    assert push(service, body("fine", cluster="rubbish")).status_code == 200


def test_a_bad_report_among_good_ones_is_partial_success(service: Running) -> None:
    mixed = body("good", cluster="mixed") + body("bad", 7.0, cluster="mixed")

    answer = ExportMetricsServiceResponse.FromString(push(service, mixed).content)

    assert answer.partial_success.rejected_data_points == 1
    assert "between 0 and 1" in answer.partial_success.error_message


def test_compressed_json_is_taken(service: Running) -> None:
    report = HealthReport(node_id="zipped", cluster_id="zip", score=0.9)
    answer = web.post(
        service.url("otlp/http", f"{routes.OTLP_METRICS}?cluster_id=other%20name"),
        content=gzip.compress(to_json(encode_report(report))),
        headers={"content-type": "application/json", "content-encoding": "gzip"},
    )

    assert (answer.status_code, answer.json()) == (200, {})
    url = service.url("diagnostics", f"{routes.FLEET_NODES}?cluster_id=other%20name")
    wait_until(lambda: web.get(url).json().get("total") == 1, "the node")


def test_half_open_and_slow_clients_cost_nobody_else_anything(service: Running) -> None:
    hangers = []
    for _ in range(50):
        hanger = socket.create_connection(("127.0.0.1", service.ports["otlp/http"]))
        hanger.sendall(b"POST /v1/metrics HTTP/1.1\r\ncontent-le")
        hangers.append(hanger)
    try:
        assert push(service, body("quick", cluster="slowloris")).status_code == 200
    finally:
        for hanger in hangers:
            hanger.close()


def test_idle_connections_close_no_port_to_others(service: Running) -> None:
    pages = {"threshold": routes.FLEET_STRAGGLERS, "health": routes.FLEET_HEALTH, "telemetry": "/metrics"}
    with ExitStack() as stack:
        for name, path in pages.items():
            for _ in range(600):
                stack.enter_context(socket.create_connection(("127.0.0.1", service.ports[name]), timeout=10))
            for _ in range(3):
                assert web.get(service.url(name, path)).status_code in (200, 503)
        assert web.head(service.url("health", routes.FLEET_HEALTH)).status_code == 200
        assert web.get(service.url("health", routes.FLEET_HEALTH)).status_code == 200


def test_every_page_answers_and_metrics_parse(service: Running) -> None:
    fill(service, "pages")
    assert web.get(service.url("health", routes.FLEET_HEALTH)).status_code == 200
    assert web.get(service.url("health", routes.FLEET_STATE)).status_code == 404
    assert "uptime_seconds" in web.get(service.url("zpages", "/debug/servicez")).text
    names = {
        family.name
        for page in ("prometheus", "telemetry")
        for family in text_string_to_metric_families(web.get(service.url(page, "/metrics")).text)
    }
    published = {
        "threshold",
        "active_nodes",
        "idle_nodes",
        "coverage_low",
        "panic_mode",
        "median",
        "mad",
        "straggler_count",
    }
    assert {f"ingero_fleet_{name}" for name in published} <= names
    assert {"ingero_fleet_pushes", "ingero_fleet_rejected_points", "process_resident_memory_bytes"} <= names


@pytest.mark.parametrize("processes", [1, 2])
def test_bearer_tokens_guard_every_listener_and_rotate(tmp_path: Path, processes: int) -> None:
    token = tmp_path / "token"
    token.write_text("token-before\n")
    auth = {"auth": {"bearer_token_file": str(token)}}
    change = {
        "receivers": {"otlp": {"processes": processes, "protocols": {"grpc": auth, "http": auth}}},
        "extensions": {"ingero_threshold": auth, "healthee": auth},
    }
    with fleet(tmp_path, change) as service:
        assert push(service, body("n")).status_code == 401
        assert web.get(service.url("threshold", f"{routes.FLEET_THRESHOLD}?cluster_id=c")).status_code == 401
        assert web.get(service.url("health", routes.FLEET_STATE)).status_code == 401

        def status(value: str) -> int:
            return web.post(
                service.url("otlp/http", routes.OTLP_METRICS),
                content=body("n"),
                headers={**PROTOBUF, "authorization": f"Bearer {value}"},
            ).status_code

        assert (status("token-before"), status("token-after")) == (200, 401)
        with grpc.insecure_channel(f"127.0.0.1:{service.ports['otlp/grpc']}") as channel:
            call = unary(channel, Signal.METRICS.grpc_method)
            with pytest.raises(grpc.RpcError) as refused:
                call(body("n"), timeout=60)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            call(body("n"), timeout=60, metadata=(("authorization", "Bearer token-before"),))

        token.write_text("token-after\n")
        wait_until(lambda: status("token-after") == 200, "the new token")
        wait_until(lambda: status("token-before") == 401, "the old token to end everywhere")

        def answers(address: str) -> bool:
            return web.get(address, headers={"authorization": "Bearer token-after"}).status_code == 200

        threshold = service.url("threshold", f"{routes.FLEET_THRESHOLD}?cluster_id=c")
        wait_until(lambda: answers(threshold), "the new token at the threshold API")
        wait_until(lambda: answers(service.url("health", routes.FLEET_STATE)), "the new token at the health API")
        assert "token-before" not in service.words()
        assert "token-after" not in service.words()


def test_a_page_of_another_site_cannot_push_to_a_fleet_that_asks_for_no_token(service: Running) -> None:
    address = service.url("otlp/http", routes.OTLP_METRICS)
    strange = ({"host": "rebound.example.com"}, {"origin": "https://example.com"})

    answers = [web.post(address, content=body("n"), headers={**PROTOBUF, **fields}) for fields in strange]

    assert [answer.status_code for answer in answers] == [403, 403]
    assert web.post(address, content=body("n"), headers={**PROTOBUF, "host": "localhost"}).status_code == 200


def test_mutual_tls_admits_only_known_clients(tmp_path: Path) -> None:
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("agent")
    server.private_key_pem.write_to_path(tmp_path / "key.pem")
    server.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = {
        "tls": {
            "cert_file": str(tmp_path / "cert.pem"),
            "key_file": str(tmp_path / "key.pem"),
            "client_ca_file": str(tmp_path / "ca.pem"),
        }
    }
    with fleet(tmp_path, {"receivers": {"otlp": {"protocols": {"http": tls, "grpc": tls}}}}) as service:
        url = service.url("otlp/http", routes.OTLP_METRICS).replace("http://", "https://")
        known, unknown = ssl.create_default_context(), ssl.create_default_context()
        for context in (known, unknown):
            authority.configure_trust(context)
        client.configure_cert(known)

        assert httpx.post(url, content=body("n"), headers=PROTOBUF, verify=known).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.post(url, content=body("n"), headers=PROTOBUF, verify=unknown)
        credentials = grpc.ssl_channel_credentials(
            authority.cert_pem.bytes(), client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
        )
        with grpc.secure_channel(f"127.0.0.1:{service.ports['otlp/grpc']}", credentials) as channel:
            unary(channel, Signal.METRICS.grpc_method)(body("n"), timeout=60)


@pytest.mark.parametrize("exporter", ["otlp", "otlphttp"])
def test_pushes_go_onward_and_wait_while_the_receiver_is_away(tmp_path: Path, exporter: str) -> None:
    protocol = "otlp/grpc" if exporter == "otlp" else "otlp/http"
    with fleet(tmp_path / "second") as second:
        target = f"{'http://' if exporter == 'otlphttp' else ''}127.0.0.1:{second.ports[protocol]}"
        change = {
            "exporters": {exporter: {"endpoint": target, "tls": {"insecure": True}}},
            "processors": {"cost": {"default_provider": "coreweave"}},
            "service": {"pipelines": {"metrics": {"processors": ["ingero"], "exporters": ["prometheus", exporter]}}},
        }
        with fleet(tmp_path / "first", change) as first:
            push(first, body("protobuf"))
            report = HealthReport(
                node_id="json", cluster_id="c", score=0.9, gpu_model="NVIDIA H100 80GB HBM3", gpu_count=8
            )
            web.post(
                first.url("otlp/http", routes.OTLP_METRICS),
                content=to_json(encode_report(report)),
                headers={"content-type": "application/json"},
            )
            nodes = second.url("diagnostics", routes.FLEET_NODES)

            def arrived() -> bool:
                answer = web.get(nodes)
                return answer.status_code == 200 and answer.json()["total"] == 2

            wait_until(arrived, "both nodes at the second Fleet")
            bill = second.url("threshold", f"{routes.FLEET_COST}?cluster_id=c")

            def priced() -> bool:
                return sum(job["cost_per_hour"] for job in web.get(bill).json().get("jobs", ())) == 8 * 4.25

            wait_until(priced, "the provider that the first named")


def test_the_field_s_own_exporters_are_understood(service: Running) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    from ingero_contract import attributes, metrics

    exporters = {
        "http": Http(endpoint=service.url("otlp/http", routes.OTLP_METRICS)),
        "grpc": Grpc(endpoint=service.url("otlp/grpc"), insecure=True),
    }
    for name, exporter in exporters.items():
        resource = Resource({attributes.NODE_ID: f"sdk-{name}", attributes.CLUSTER_ID: "sdk"})
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=60_000)
        provider = MeterProvider([reader], resource=resource)
        provider.get_meter("m").create_gauge(metrics.HEALTH_SCORE).set(0.9, {attributes.NODE_STATE: "active"})
        provider.force_flush()
        provider.shutdown()

    url = service.url("diagnostics", f"{routes.FLEET_NODES}?cluster_id=sdk")
    wait_until(lambda: web.get(url).json().get("total") == 2, "both nodes")


def test_the_stock_agent_pushes_and_gets_its_threshold(service: Running, tmp_path: Path) -> None:
    if SHARED is None:
        pytest.skip("needs the published agent in ../shared/peers")
    folder = subprocess.run([SHARED / "peers/unpack"], capture_output=True, text=True, check=True).stdout.strip()
    endpoint = f"127.0.0.1:{service.ports['otlp/http']}"
    agents = [
        process(
            tmp_path / f"{node}.log", f"{folder}/ingero-agent", "fleet-push", "--stub",
            "--fleet-endpoint", endpoint, "--fleet-insecure", "--fleet-cluster-id", "stock", "--fleet-node-id", node,
            "--fleet-push-interval", "1s", "--fleet-timeout", "500ms", "--warmup-samples", "3",
            "--fleet-persist-path", str(tmp_path / f"{node}.json"), HOME=str(tmp_path),
        )
        for node in ("s1", "s2", "s3")
    ]  # fmt: skip
    with agents[0] as first, agents[1], agents[2]:
        url = service.url("threshold", f"{routes.FLEET_THRESHOLD}?cluster_id=stock")
        wait_until(lambda: web.get(url).json()["quorum_met"], "a quorum of stock agents")
        wait_until(
            lambda: 'new":"fleet"' in first.words().replace(" ", "") or "fleet" in first.words(), "its mode", 30
        )


def test_sigterm_ends_it_cleanly_with_a_push_under_way(tmp_path: Path) -> None:
    with fleet(tmp_path) as service:
        push(service, body("n"))
        service.process.terminate()
        assert service.process.wait(20) == 0
        assert "Traceback" not in service.words()


def test_a_port_in_use_is_said_in_words(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = {"endpoint": f"127.0.0.1:{taken.getsockname()[1]}"}
        with pytest.raises(AssertionError, match="in use"), fleet(tmp_path, {"extensions": {"healthee": endpoint}}):
            pass


def ticks(service: Running) -> float:
    page = web.get(service.url("telemetry", "/metrics")).text
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith("ingero_fleet_ticks_total"))


def test_after_a_kill_the_threshold_is_back_within_two_ticks(tmp_path: Path) -> None:
    with fleet(tmp_path) as service:
        fill(service, "c")
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait(10)
    with fleet(tmp_path) as service:
        for name in ("a", "b", "d"):
            push(service, body(name))
        began = ticks(service)
        wait_until(lambda: ticks(service) >= began + 2, "two ticks")

        assert headers.THRESHOLD in push(service, body("a")).headers
