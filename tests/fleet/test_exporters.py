"""What is exported is sent or counted, whatever the transport does."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ingero_fleet.export_state import ExportState, Obstacle, export_answer
from ingero_fleet.exporter_settings import OtlpExporterConfig, OtlpHttpExporterConfig, QueueConfig
from ingero_fleet.exporters import MAX_SPLITS, Exporter, make_client
from ingero_fleet.intake import Intake
from ingero_fleet.otlp_parts import as_protobuf, halves
from ingero_fleet.receivers.traffic import TRAFFIC_JSON, Traffic, total
from ingero_fleet.score_table import ScoreLimits, ScoreTable
from ingero_kit.otlp_client import DeliveryFailure, Disposition, ExportResult
from ingero_kit.otlp_receiver import (
    Answer,
    Authenticator,
    OtlpGrpcReceiver,
    OtlpHttpReceiver,
    Push,
    Status,
    partial_success,
)
from ingero_kit.otlp_signal import Signal
from ingero_kit.tls import ClientTls
from ingero_kit.tokens import CHECK_SECONDS, TokenStore, read_digests

PUSH = Push(Signal.METRICS, "protobuf", b"\n\0")


DELIVERED = ExportResult()
DROPPED = ExportResult(failure=DeliveryFailure.REFUSED, disposition=Disposition.DROP, detail="no")
SPLIT = ExportResult(failure=DeliveryFailure.REFUSED, disposition=Disposition.SPLIT, detail="no")


class Client:
    def __init__(self, send: Callable[[], Awaitable[ExportResult]]) -> None:
        self.sent = asyncio.Event()
        self._send = send

    async def send(self, signal: Signal, body: bytes) -> ExportResult:
        self.sent.set()
        return await self._send()

    async def close(self) -> None:
        """Nothing is open."""


def exporter(client: "Client | Judge") -> Exporter:
    made = Exporter("otlp", OtlpExporterConfig(endpoint="127.0.0.1:1"), client, asyncio.get_running_loop())
    made.start()
    return made


@pytest.mark.parametrize("failure", [DROPPED, RuntimeError("a library's surprise")])
def test_a_batch_that_fails_is_counted_and_the_next_one_is_sent(failure: ExportResult | Exception) -> None:
    answers = [DELIVERED, failure]

    async def send() -> ExportResult:
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def work() -> tuple[int, int]:
        made = exporter(Client(send))
        made.export(PUSH)
        while not made.counters["dropped_permanent"]:
            await asyncio.sleep(0)
        made.export(PUSH)
        await made.stop(10)
        return made.counters["dropped_permanent"], made.counters["sent"]

    assert asyncio.run(asyncio.wait_for(work(), 30)) == (1, 1)


def test_an_error_outside_of_the_transport_costs_its_pushes_and_is_shown_until_one_is_sent() -> None:
    async def send() -> ExportResult:
        return DELIVERED

    def tag(body: bytes, cluster: str) -> bytes:
        if cluster == "bad":
            raise ZeroDivisionError("no such provider")
        return body

    async def work() -> None:
        made = exporter(Client(send))
        made.tag = tag
        made.export(replace(PUSH, cluster="bad"))
        while not made.counters["dropped_permanent"]:
            await asyncio.sleep(0)
        obstacle, waiting = made.state().obstacle, made.state().waiting
        assert obstacle and (obstacle.failure, obstacle.detail) == ("internal", "ZeroDivisionError: no such provider")
        made.export(PUSH)
        await made.stop(10)
        assert (waiting, made.counters["dropped_permanent"], made.counters["sent"]) == (0, 1, 1)
        assert made.state().obstacle is None

    asyncio.run(asyncio.wait_for(work(), 30))


def test_what_is_under_way_when_the_time_to_stop_is_over_is_counted() -> None:
    async def work() -> int:
        client = Client(asyncio.Event().wait)  # type: ignore[arg-type]
        made = exporter(client)
        made.export(PUSH)
        await client.sent.wait()
        made.export(PUSH)
        await made.stop(0.01)
        return made.counters["dropped_elapsed"]

    assert asyncio.run(asyncio.wait_for(work(), 30)) == 2


AWAY = ExportResult(failure=DeliveryFailure.UNREACHABLE, disposition=Disposition.RETRY, detail="no connection")


def test_a_receiver_that_is_away_for_an_hour_loses_only_what_the_queue_cannot_take() -> None:
    """Time passes only in the exporter's pauses. A push every second is a fifth more than the queue takes."""
    passed, delivered = [0.0], Counter[int]()
    states: list[ExportState] = []

    class Receiver:
        async def send(self, signal: Signal, body: bytes) -> ExportResult:
            if passed[0] < 3600:
                return AWAY
            delivered.update(int(line) for line in texts(ExportLogsServiceRequest.FromString(body)))
            return DELIVERED

        async def close(self) -> None:
            """Nothing is open."""

    async def work() -> Exporter:
        made = Exporter(
            "otlp", OtlpExporterConfig(endpoint="127.0.0.1:1", sending_queue=QueueConfig(queue_size=3000)),
            Receiver(), asyncio.get_running_loop(), clock=lambda: passed[0], sleep=pause,
        )  # fmt: skip
        accepted.append(made)
        made.start()
        made.export(logs("0"))
        while sum(delivered.values()) + made.counters["dropped_queue_full"] <= 3600:
            await asyncio.sleep(0)
        states.append(made.state())
        await made.stop(10)
        return made

    accepted: list[Exporter] = []

    async def pause(seconds: float) -> None:
        second = int(passed[0])
        passed[0] = min(3600.0, passed[0] + seconds)
        for number in range(second, int(passed[0])):
            accepted[0].export(logs(str(number + 1)))
        states.append(accepted[0].state())

    made = asyncio.run(asyncio.wait_for(work(), 60))

    assert delivered == dict.fromkeys(range(3001), 1)  # the first one waits in the request under way
    assert made.counters["sent"] == 3001 and made.counters["dropped_queue_full"] == 600
    during, after = states[-2], states[-1]
    assert during.waiting == 3001 and during.full == 1.0
    assert during.obstacle is not None and during.obstacle.since == states[0].obstacle.since  # type: ignore[union-attr]
    assert (during.obstacle.failure, during.obstacle.detail) == ("unreachable", "no connection")
    assert after == ExportState()
    assert export_answer(during, made.counters)["dropped"] == {"queue_full": 600}


def test_the_states_of_several_processes_are_one() -> None:
    early, late = Obstacle(since=1.0, failure="busy"), Obstacle(since=2.0, failure="unreachable")

    added = ExportState(waiting=1, full=0.5, obstacle=late) + ExportState(waiting=2, full=0.1, obstacle=early)

    assert added == ExportState(waiting=3, full=0.5, obstacle=early)
    traffic = TRAFFIC_JSON.validate_json(TRAFFIC_JSON.dump_json(Traffic(exports={"otlp": added})))
    assert total([traffic, Traffic()]).exports == {"otlp": added} and not traffic.gone().exports


class Judge:
    """A receiver that refuses some requests for what they hold, and keeps the others."""

    def __init__(self, refuses: Callable[[ExportLogsServiceRequest, bytes], bool]) -> None:
        self.requests = 0
        self.taken: list[str] = []
        self._refuses = refuses

    async def send(self, signal: Signal, body: bytes) -> ExportResult:
        self.requests += 1
        request = ExportLogsServiceRequest.FromString(body)
        if self._refuses(request, body):
            return SPLIT
        self.taken += texts(request)
        return DELIVERED

    async def close(self) -> None:
        """Nothing is open."""


def texts(request: ExportLogsServiceRequest) -> list[str]:
    return [
        record.body.string_value
        for block in request.resource_logs for scope in block.scope_logs for record in scope.log_records
    ]  # fmt: skip


def logs(*lines: str, scopes: int = 1) -> Push:
    request = ExportLogsServiceRequest()
    block = request.resource_logs.add()
    for number in range(scopes):
        scope = block.scope_logs.add()
        for line in lines[number::scopes]:
            scope.log_records.add().body.string_value = line
    return Push(Signal.LOGS, "protobuf", request.SerializeToString())


def sent_to(judge: Judge, *pushes: Push) -> Exporter:
    async def work() -> Exporter:
        made = exporter(judge)
        for push in pushes:
            made.export(push)
        await made.stop(60)
        return made

    return asyncio.run(asyncio.wait_for(work(), 90))


def test_of_a_batch_that_is_refused_for_a_record_only_that_record_is_lost() -> None:
    judge = Judge(lambda request, _: "bad" in texts(request))
    lines = [f"line {number}" for number in range(300)]
    pushes = [logs(*lines[start : start + 10], scopes=3) for start in range(0, 300, 10)]
    pushes[7] = logs("bad", *lines[70:80])
    pushes[11] = logs("bad")

    counters = sent_to(judge, *pushes).counters

    assert sorted(judge.taken) == sorted(line for line in lines if line not in lines[110:120])
    assert (counters["sent"], counters["dropped_permanent"], counters["rejected_records"]) == (29, 1, 1)


def test_a_request_that_is_larger_than_the_next_hop_takes_is_cut_until_it_fits() -> None:
    judge = Judge(lambda _, body: len(body) > 5000)
    lines = [f"{number:0100}" for number in range(200)]

    counters = sent_to(judge, logs(*lines), logs("x" * 6000), logs("small")).counters

    assert sorted(judge.taken) == sorted([*lines, "small"])
    assert (counters["sent"], counters["dropped_permanent"]) == (2, 1)


def test_a_receiver_that_refuses_everything_is_not_asked_for_every_record() -> None:
    judge = Judge(lambda _request, _body: True)

    counters = sent_to(judge, *(logs(*map(str, range(1000))) for _ in range(20))).counters

    assert judge.requests <= 2 * MAX_SPLITS + 20
    assert (counters["sent"], counters["dropped_permanent"]) == (0, 20)


def test_points_of_one_metric_are_distinguished_as_well() -> None:
    request = ExportMetricsServiceRequest()
    gauge = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge
    for number in range(5):
        gauge.data_points.add(as_int=number)
    halved = halves(Signal.METRICS, request.SerializeToString())
    assert halved is not None
    parts = [ExportMetricsServiceRequest.FromString(part) for part in halved]
    values = [
        [point.as_int for point in part.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points]
        for part in parts
    ]

    assert values == [[0, 1], [2, 3, 4]]


def test_any_thread_may_queue_and_the_bytes_are_counted_right() -> None:
    async def work() -> Exporter:
        settings = OtlpExporterConfig(endpoint="127.0.0.1:1", sending_queue=QueueConfig(queue_size=1_000_000))
        made = Exporter("otlp", settings, Judge(lambda _request, _body: False), asyncio.get_running_loop())

        def put_many() -> None:
            for _ in range(2000):
                made.export(logs("x"))

        threads = [threading.Thread(target=put_many) for _ in range(8)]
        for thread in threads:
            thread.start()
        made.start()
        while any(thread.is_alive() for thread in threads):
            await asyncio.sleep(0)
        await made.stop(60)
        return made

    made = asyncio.run(asyncio.wait_for(work(), 90))

    assert (made.counters["sent"], made._bytes) == (16_000, 0)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_token_that_is_rotated_on_either_side_loses_nothing(tmp_path: Path, protocol: str) -> None:
    file = tmp_path / "token"
    accepted, now = tmp_path / "accepted", [0.0]
    for one in (file, accepted):
        one.write_text("old")
    taken: list[Push] = []

    def handler(push: Push) -> Answer:
        taken.append(push)
        return Answer()

    async def work() -> tuple[int, int]:
        authenticator = Authenticator(TokenStore(accepted, read_digests, clock=lambda: now[0]))
        receiver = (OtlpHttpReceiver if protocol == "http" else OtlpGrpcReceiver)(handler, authenticator)
        port = await receiver.start("127.0.0.1", 0)
        kind = OtlpHttpExporterConfig if protocol == "http" else OtlpExporterConfig
        config = kind(endpoint=f"127.0.0.1:{port}", tls=ClientTls(insecure=True), bearer_token_file=file)
        client = make_client("otlphttp" if protocol == "http" else "otlp", config)
        made = Exporter("otlp", config, client, asyncio.get_running_loop())
        made.start()
        made.export(logs("before"))
        while not taken:
            await asyncio.sleep(0.001)
        accepted.write_text("new")
        now[0] += CHECK_SECONDS
        made.export(logs("meanwhile"))
        while not made.counters["retries"]:
            await asyncio.sleep(0.001)
        file.write_text("new")
        while len(taken) < 2:
            await asyncio.sleep(0.001)
        await made.stop(10)
        await receiver.stop(1)
        return made.counters["sent"], made.counters["dropped_permanent"]

    assert asyncio.run(asyncio.wait_for(work(), 120)) == (2, 0)
    assert [texts(ExportLogsServiceRequest.FromString(push.body)) for push in taken] == [["before"], ["meanwhile"]]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_a_receiver_takes_in_part_is_counted(protocol: str) -> None:
    async def work() -> int:
        kind = OtlpHttpReceiver if protocol == "http" else OtlpGrpcReceiver
        receiver = kind(lambda _: Answer(rejected=3, message="three were odd"), Authenticator())
        port = await receiver.start("127.0.0.1", 0)
        settings = OtlpHttpExporterConfig if protocol == "http" else OtlpExporterConfig
        config = settings(endpoint=f"127.0.0.1:{port}", tls=ClientTls(insecure=True))
        client = make_client("otlphttp" if protocol == "http" else "otlp", config)
        made = Exporter("otlp", config, client, asyncio.get_running_loop())
        made.start()
        made.export(logs("a", "b", "c", "d"))
        await made.stop(30)
        await receiver.stop(1)
        return made.counters["rejected_records"]

    assert asyncio.run(asyncio.wait_for(work(), 60)) == 3
    assert ExportLogsServiceResponse.FromString(
        partial_success(Signal.LOGS, 3, "", "protobuf")
    ).partial_success.rejected_log_records == 3  # fmt: skip


TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"


def test_ids_in_json_are_hexadecimal_and_stay_what_they_are() -> None:
    links = [{"traceId": TRACE, "spanId": PARENT}]
    span = {"traceId": TRACE, "spanId": SPAN, "parentSpanId": PARENT, "name": "s", "links": links}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    request = ExportTraceServiceRequest.FromString(as_protobuf(Push(Signal.TRACES, "json", body)).body)
    found = request.resource_spans[0].scope_spans[0].spans[0]

    assert (found.trace_id.hex(), found.span_id.hex(), found.parent_span_id.hex()) == (TRACE, SPAN, PARENT)
    assert (found.links[0].trace_id.hex(), found.links[0].span_id.hex()) == (TRACE, PARENT)


def test_ids_of_log_records_and_exemplars_are_read_alike() -> None:
    record = {"traceId": TRACE.upper(), "spanId": SPAN}
    body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}).encode()
    found = ExportLogsServiceRequest.FromString(as_protobuf(Push(Signal.LOGS, "json", body)).body)
    point = {"asInt": "1", "exemplars": [{"asInt": "1", "traceId": TRACE, "spanId": SPAN}]}
    metric = {"name": "m", "gauge": {"dataPoints": [point]}}
    body = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode()
    metrics = ExportMetricsServiceRequest.FromString(as_protobuf(Push(Signal.METRICS, "json", body)).body)
    exemplar = metrics.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].exemplars[0]

    assert found.resource_logs[0].scope_logs[0].log_records[0].trace_id.hex() == TRACE
    assert (exemplar.trace_id.hex(), exemplar.span_id.hex()) == (TRACE, SPAN)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("protobuf", b"\xff\xff\xff\xff\xff"),
        ("protobuf", b"\x0a\x05short"),
        ("json", b"{"),
        ("json", b"[]"),
        ("json", b'"text"'),
        ("json", b'{"resourceLogs": 3}'),
        ("json", b'{"resourceLogs": [3]}'),
        ("json", b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"traceId":"zz"}]}]}]}'),
        (
            "json",
            b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":' + b'{"kvlistValue":{"values":[{"value":' * 200,
        ),
    ],
)
@pytest.mark.parametrize("signal", [Signal.LOGS, Signal.TRACES])
def test_what_is_no_otlp_is_refused_and_goes_nowhere(signal: Signal, encoding: str, body: bytes) -> None:
    passed: list[Push] = []
    intake = Intake(ScoreTable(ScoreLimits(nodes=9, clusters=9, ttl_seconds=9.0), ()), lambda: 0.0, passed.append)
    body = body.replace(b"resourceLogs", b"resourceSpans").replace(b"scopeLogs", b"scopeSpans").replace(
        b"logRecords", b"spans"
    ) if signal is Signal.TRACES else body  # fmt: skip
    answer = intake(Push(signal, encoding, body))  # type: ignore[arg-type]

    assert isinstance(answer, Answer) and answer.status is Status.INVALID and answer.message
    assert (passed, intake.malformed) == ([], 1)


@pytest.mark.parametrize("odd", [{"traceId": "zz"}, {"timeUnixNano": "never"}, {"attributes": {"no": "list"}}, None])
def test_a_record_in_json_that_cannot_be_read_costs_those_next_to_it_nothing(odd: object) -> None:
    passed: list[Push] = []
    intake = Intake(ScoreTable(ScoreLimits(nodes=9, clusters=9, ttl_seconds=9.0), ()), lambda: 0.0, passed.append)
    good = [{"body": {"stringValue": text}, "traceId": TRACE} for text in ("a", "b")]
    body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [good[0], odd, good[1]]}]}]}).encode()
    answer = intake(Push(Signal.LOGS, "json", body))

    assert isinstance(answer, Answer) and (answer.status, answer.rejected) == (Status.OK, 1)
    request = ExportLogsServiceRequest.FromString(passed[0].body)
    assert texts(request) == ["a", "b"]
    assert request.resource_logs[0].scope_logs[0].log_records[0].trace_id.hex() == TRACE
