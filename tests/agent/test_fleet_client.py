"""Pushes over HTTP and gRPC: the same words, the same failures, the same second try."""

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trustme
from structlog.testing import capture_logs

from ingero_agent.health.classification import FleetResponse, choose_rule
from ingero_agent.push import FleetClient
from ingero_contract.values import DecisionSource, VerdictState
from ingero_contract.verdicts import VerdictLine
from ingero_http.http1.messages import Response
from ingero_http.http1.server import Http1Server
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_client import ClientConfig, DeliveryFailure, ExportResult, OtlpClient, grpc_target, make_client
from ingero_kit.otlp_encode import encode_report
from ingero_kit.otlp_grpc_client import retry_delay
from ingero_kit.otlp_receiver import (
    Answer,
    Authenticator,
    OtlpGrpcReceiver,
    OtlpHttpReceiver,
    Push,
    Status,
    retry_info,
)
from ingero_kit.otlp_signal import Signal
from ingero_kit.settings import SettingsError
from ingero_kit.tls import ClientTls
from ingero_testing.processes import Running, fleet

PROTOCOLS = ("http", "grpc")
NOW = 1_700_000_000.0
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


def route(port: int, protocol: Any, **changes: Any) -> ClientConfig:
    usual: dict[str, Any] = {"cluster": "c", "tls": ClientTls(insecure=True)}
    return ClientConfig(endpoint=f"127.0.0.1:{port}", protocol=protocol, **{**usual, **changes})


def report(node: str = "n", cluster: str = "c", score: float = 0.9) -> Any:
    return encode_report(HealthReport(node_id=node, cluster_id=cluster, score=score, workload_type="training"))


async def push(client: OtlpClient, request: Any = None) -> ExportResult:
    return await client.send(Signal.METRICS, (request or report()).SerializeToString())


async def once(way: ClientConfig, request: Any = None) -> ExportResult:
    client = make_client(way)
    try:
        return await push(client, request)
    finally:
        await client.close()


@asynccontextmanager
async def receiver(protocol: str, answer: Answer) -> AsyncIterator[tuple[int, list[Push]]]:
    """The receiver that Fleet uses, with one answer for everything."""
    taken: list[Push] = []

    def handler(push: Push) -> Answer:
        taken.append(push)
        return answer

    kind = OtlpHttpReceiver if protocol == "http" else OtlpGrpcReceiver
    server = kind(handler, Authenticator())
    try:
        yield await server.start("127.0.0.1", 0), taken
    finally:
        await server.stop(1.0)


# Against Fleet itself.


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_threshold_and_quorum_arrive(service: Running, protocol: str, compression: str) -> None:
    cluster = f"{protocol}-{compression}"

    async def work() -> FleetClient:
        port = service.ports[f"otlp/{protocol}"]
        client = FleetClient(route(port, protocol, cluster=cluster, compression=compression))
        while client.response.threshold is None:
            for node in ("a", "b", "d"):
                assert await client.push(report(node, cluster), NOW)
        await client.close()
        return client

    client = run(work())

    assert (client.response.threshold, client.response.quorum, client.response.threshold_at) == (0.85, True, NOW)
    assert client.pushed_at == NOW
    assert client.counters.thresholds["taken"] >= 1
    assert not client.counters.failed


def test_mutual_tls_opens_only_to_the_right_certificate(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key", "mine", "mykey", "other")}
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("agent")
    for blob, name in (
        (authority.cert_pem, "ca"), (stranger.cert_pem, "other"), (server.cert_chain_pems[0], "cert"),
        (server.private_key_pem, "key"), (client.cert_chain_pems[0], "mine"), (client.private_key_pem, "mykey"),
    ):  # fmt: skip
        blob.write_to_path(files[name])
    theirs = {
        "tls": {"cert_file": str(files["cert"]), "key_file": str(files["key"]), "client_ca_file": str(files["ca"])}
    }
    mine: dict[str, Any] = {"cert_file": files["mine"], "key_file": files["mykey"]}
    clients = (
        ClientTls(ca_file=files["ca"], **mine), ClientTls(ca_file=files["ca"]),
        ClientTls(ca_file=files["other"], **mine),
    )  # fmt: skip
    with fleet(tmp_path, {"receivers": {"otlp": {"protocols": dict.fromkeys(PROTOCOLS, theirs)}}}) as guarded:
        ports = {protocol: guarded.ports[f"otlp/{protocol}"] for protocol in PROTOCOLS}
        seen = {
            protocol: [run(once(route(port, protocol, tls=tls))) for tls in clients]
            for protocol, port in ports.items()
        }
        plain = {protocol: run(once(route(port, protocol))).detail for protocol, port in ports.items()}

    expected = [None, DeliveryFailure.UNREACHABLE, DeliveryFailure.UNREACHABLE]
    assert {protocol: [one.failure for one in results] for protocol, results in seen.items()} == dict.fromkeys(
        PROTOCOLS, expected
    )
    assert all("certificate" in result.detail.lower() for results in seen.values() for result in results[1:2])
    assert all("the server may require TLS" in detail for detail in plain.values()), plain


def test_the_bearer_token_is_read_at_every_push(tmp_path: Path) -> None:
    token, mine = tmp_path / "token", tmp_path / "mine"
    token.write_text("right\n")
    auth = {"auth": {"bearer_token_file": str(token)}}

    async def work(port: int, protocol: str) -> list[DeliveryFailure | None]:
        client = make_client(route(port, protocol, token_file=mine))
        seen = []
        for text in ("wrong", "right", "\u00e4", "", "right"):
            mine.write_text(text)
            seen.append((await push(client)).failure)
        await client.close()
        return seen

    with fleet(tmp_path, {"receivers": {"otlp": {"protocols": dict.fromkeys(PROTOCOLS, auth)}}}) as guarded:
        seen = {protocol: run(work(guarded.ports[f"otlp/{protocol}"], protocol)) for protocol in PROTOCOLS}

    expected = [DeliveryFailure.UNAUTHENTICATED, None, DeliveryFailure.TOKEN, DeliveryFailure.TOKEN, None]
    assert seen == dict.fromkeys(PROTOCOLS, expected)


# Against Fleet's receiver with an answer of the test's choice.


@pytest.mark.parametrize(
    ("spoken", "protocol", "insecure", "hint"),
    [
        ("http", "http", False, "this port speaks no TLS"),
        ("grpc", "grpc", False, "this port speaks no TLS"),
        ("http", "grpc", True, "this port takes no gRPC"),
        ("grpc", "http", True, "this port takes gRPC alone"),
    ],
)
def test_a_wrong_port_or_tls_is_explained(spoken: str, protocol: str, insecure: bool, hint: str) -> None:
    async def work() -> str:
        async with receiver(spoken, Answer()) as (port, _):
            return (await once(route(port, protocol, tls=ClientTls(insecure=insecure)))).detail

    assert hint in run(work())


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (Status.OK, None),
        (Status.INVALID, DeliveryFailure.REFUSED),
        (Status.UNAUTHENTICATED, DeliveryFailure.UNAUTHENTICATED),
        (Status.FORBIDDEN, DeliveryFailure.UNAUTHENTICATED),
        (Status.BUSY, DeliveryFailure.BUSY),
        (Status.UNAVAILABLE, DeliveryFailure.BUSY),
        (Status.INTERNAL, DeliveryFailure.SERVER_ERROR),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_status_means_the_same_over_both(
    protocol: str, status: Status, failure: DeliveryFailure | None
) -> None:
    async def work() -> tuple[ExportResult, int]:
        async with receiver(protocol, Answer(status=status, message="so", retry_seconds=7.0)) as (port, taken):
            return await once(route(port, protocol)), len(taken)

    reply, pushes = run(work())

    assert (reply.failure, pushes) == (failure, 1)
    assert reply.retry_after == (7.0 if failure is DeliveryFailure.BUSY else None)
    assert reply.answered


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_threshold_and_verdict_are_read_together(protocol: str) -> None:
    line = VerdictLine(state=VerdictState.STRAGGLER, kind="slow")
    answer = Answer(
        http_headers=b"X-Ingero-Threshold: 0.870348\r\nX-Ingero-Quorum-Met: true\r\nX-Ingero-Verdict: %s\r\n"
        % line.format().encode(),
        metadata=(
            ("ingero-threshold", "0.870348"), ("ingero-quorum-met", "true"), ("ingero-verdict", line.format()),
        ),
    )  # fmt: skip

    async def work() -> FleetClient:
        async with receiver(protocol, answer) as (port, _):
            client = FleetClient(route(port, protocol))
            await client.push(report(), NOW)
            await client.close()
            return client

    word = run(work()).response

    assert (word.threshold, word.quorum, word.verdict) == (0.870348, True, line)


def with_headers(**values: str) -> Answer:
    """An answer with these headers of Fleet, over both protocols."""
    return Answer(
        http_headers="".join(
            f"X-Ingero-{name.replace('_', '-')}: {text}\r\n" for name, text in values.items()
        ).encode(),
        metadata=tuple((f"ingero-{name.replace('_', '-')}", text) for name, text in values.items()),
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_fleet_that_has_just_started_does_not_take_back_its_verdict(protocol: str) -> None:
    async def work(second: Answer) -> FleetResponse:
        response = FleetResponse()
        for at, answer in enumerate((with_headers(threshold="0.9", quorum_met="true", verdict="healthy"), second)):
            async with receiver(protocol, answer) as (port, _):
                client = FleetClient(route(port, protocol))
                client.response = response
                await client.push(report(), NOW + 5 * at)
                await client.close()
                response = client.response
        return response

    kept = run(work(Answer()))
    assert kept.verdict == VerdictLine(state=VerdictState.HEALTHY)
    assert choose_rule(kept, NOW + 5, 5.0, True).source is DecisionSource.VERDICT
    assert choose_rule(kept, NOW + 30, 5.0, True).source is DecisionSource.THRESHOLD
    assert run(work(with_headers(threshold="0.9", quorum_met="true"))).verdict is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_cluster_travels_next_to_the_payload(protocol: str) -> None:
    async def work(cluster: str) -> str:
        async with receiver(protocol, Answer()) as (port, taken):
            assert (await once(route(port, protocol, cluster=cluster))).failure is None
            return taken[0].cluster

    assert run(work("lab one")) == "lab one"
    assert run(work("z\u00fcrich")) == ("z\u00fcrich" if protocol == "http" else "")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_gzip_makes_pushes_smaller_on_the_wire(protocol: str) -> None:
    async def work(compression: str) -> int:
        async with receiver(protocol, Answer()) as (port, _):
            sent, over = 0, asyncio.Event()

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)

                async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter, counted: bool) -> None:
                    nonlocal sent
                    while data := await source.read(65536):
                        sent += len(data) if counted else 0
                        to.write(data)
                        await to.drain()
                    to.close()

                await asyncio.gather(copy(reader, inner_writer, True), copy(inner_reader, writer, False))
                over.set()

            server = await asyncio.start_server(relay, "127.0.0.1", 0)
            way = route(server.sockets[0].getsockname()[1], protocol, compression=compression)
            assert (await once(way, report("n" * 200))).failure is None
            await over.wait()
            server.close()
            return sent

    assert run(work("gzip")) < 0.7 * run(work("none"))


# When nobody answers.


def test_the_log_says_when_pushes_fail_and_when_they_arrive_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ExportResult(failure=DeliveryFailure.REFUSED, detail="why")
    results = iter([ExportResult(), refused, refused, ExportResult(), ExportResult()])

    async def send(*_: object) -> ExportResult:
        return next(results)

    async def work() -> None:
        client = FleetClient(route(1, "http"))
        monkeypatch.setattr(client._client, "send", send)
        for _ in range(5):
            await client.push(report(), NOW)
        await client.close()

    with capture_logs() as logs:
        run(work())

    assert [(line["event"], line.get("detail"), line.get("failed")) for line in logs] == [
        ("push_failed", "why", None), ("push_succeeded_again", None, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_network_failure_is_tried_once_more_and_three_make_fleet_unreachable(protocol: str) -> None:
    async def work() -> tuple[FleetClient, list[bool]]:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            client = FleetClient(route(nobody.getsockname()[1], protocol))
            reachable = []
            for _ in range(3):
                assert not await client.push(report(), NOW)
                reachable.append(client.response.reachable)
            await client.close()
            return client, reachable

    client, reachable = run(work())

    assert reachable == [True, True, False]
    assert client.counters.retried == 3
    assert client.counters.failed == {"unreachable": 3}
    assert client.pushed_at is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_refusal_is_not_tried_again(protocol: str) -> None:
    async def work() -> tuple[FleetClient, int]:
        async with receiver(protocol, Answer(status=Status.INVALID, message="no")) as (port, taken):
            client = FleetClient(route(port, protocol))
            assert not await client.push(report(), NOW)
            await client.close()
            return client, len(taken)

    client, pushes = run(work())

    assert (client.counters.retried, pushes) == (0, 1)
    assert client.counters.failed == {"refused": 1}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_listener_that_never_answers_costs_the_timeout_and_no_more(protocol: str) -> None:
    async def work() -> ExportResult:
        with socket.socket() as mute:
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            return await once(route(mute.getsockname()[1], protocol, timeout=0.3))

    assert run(work()).failure in (DeliveryFailure.TIMEOUT, DeliveryFailure.UNREACHABLE)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_first_push_after_fleet_is_back_arrives(protocol: str) -> None:
    async def work() -> list[DeliveryFailure | None]:
        seen = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        client = make_client(route(port, protocol))
        for _ in range(4):
            seen.append((await push(client)).failure)
        server = (OtlpHttpReceiver if protocol == "http" else OtlpGrpcReceiver)(lambda _: Answer(), Authenticator())
        await server.start("127.0.0.1", port)
        seen.append((await push(client)).failure)
        await client.close()
        await server.stop(1.0)
        return seen

    assert run(work()) == [DeliveryFailure.UNREACHABLE] * 4 + [None]


# Pure parts of gRPC.


@pytest.mark.parametrize(
    ("endpoint", "insecure", "expected"),
    [
        ("fleet:4317", False, ("fleet:4317", True)),
        ("fleet:4317", True, ("fleet:4317", False)),
        ("http://fleet:4317", False, ("fleet:4317", False)),
        ("https://[::1]:4317/", True, ("[::1]:4317", True)),
    ],
)
def test_grpc_targets(endpoint: str, insecure: bool, expected: tuple[str, bool]) -> None:
    assert grpc_target(endpoint, insecure) == expected


@pytest.mark.parametrize(
    "endpoint", ["fleet", "fleet:4317/v1/metrics", "fleet:99999", "unix:///a", "u@fleet:1", ":1"]
)
def test_what_grpc_would_misread_is_refused(endpoint: str) -> None:
    with pytest.raises(SettingsError):
        grpc_target(endpoint, True)


@pytest.mark.parametrize(
    ("details", "seconds"),
    [
        (retry_info("busy", 2.5), 2.5),
        (retry_info("busy", 1e6), 3600.0),
        (b"\xff rubbish", None),
        (b"", None),
        ("text", None),
        (None, None),
    ],
)
def test_the_asked_wait_is_read_and_bounded(details: bytes | str | None, seconds: float | None) -> None:
    assert retry_delay(details) == seconds


@pytest.mark.parametrize(
    ("answer", "word", "away"),
    [
        (Response(429, extra=b"Retry-After: 90\r\n"), None, 90.0),
        (Response(503), None, 0.0),
        (Response(200, b'{"threshold": 0.7, "quorum_met": true}'), 0.7, 0.0),
        (Response(200, b'{"threshold": 0, "quorum_met": false}'), None, 0.0),
        (Response(200, b'{"threshold": 7}'), None, 0.0),
    ],
)
def test_the_threshold_api_may_ask_to_be_left_alone(answer: Response, word: float | None, away: float) -> None:
    async def work() -> tuple[float | None, float]:
        server = Http1Server(lambda request: answer)
        port = await server.start("127.0.0.1", 0)
        client = FleetClient(route(port, "http"), f"127.0.0.1:{port}")
        try:
            asked_away = await client.ask(NOW)
            return client.response.threshold, asked_away
        finally:
            await client.close()
            await server.stop(1.0)

    assert run(work()) == (word, away)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Response(404, b"not here"), "HTTP 404"),
        (Response(200, b"[" * 8000), "RecursionError"),
        (Response(200, b'{"threshold": 1%s, "quorum_met": true}' % (b"0" * 400)), "OverflowError"),
        (Response(200, b"[]"), "TypeError"),
        (Response(200, b"<html>"), "Expecting value"),
    ],
)
def test_what_is_not_the_threshold_api_is_said_once(answer: Response, reason: str) -> None:
    good = Response(200, b'{"threshold": 0.7, "quorum_met": true}')
    answers = [answer, answer, good, answer]

    async def work() -> FleetClient:
        server = Http1Server(lambda request: answers.pop(0))
        client = FleetClient(route(1, "http"), f"127.0.0.1:{await server.start('127.0.0.1', 0)}")
        try:
            for _ in range(4):
                await client.ask(NOW)
            return client
        finally:
            await client.close()
            await server.stop(1.0)

    with capture_logs() as logs:
        client = run(work())

    reasons = [line["reason"] for line in logs if line["event"] == "threshold_not_read"]
    assert len(reasons) == 2 and reason in reasons[0]
    assert (client.response.threshold, client.counters.thresholds["rejected"]) == (0.7, 3)
