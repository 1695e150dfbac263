"""What a push may ask of Fleet, and that what is wrong with one part of it costs no other part anything."""

import asyncio
import gzip
import time
from typing import Any, Literal

import orjson
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from ingero_contract import attributes, metrics
from ingero_contract.identifiers import node_key
from ingero_fleet.collectives.batch import Columns, PointBatch
from ingero_fleet.collectives.gpu_states import GpuStates
from ingero_fleet.collectives.points import PointReader
from ingero_fleet.intake import TOO_MUCH, Intake
from ingero_fleet.receivers.ingest import IngestService
from ingero_fleet.score_table import ScoreLimits, ScoreTable
from ingero_fleet.settings import FleetConfig
from ingero_fleet.verdict_cache import NodeVerdicts, VerdictCache
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import MetricBatch, encode_report, to_json
from ingero_kit.otlp_receiver import Push, Status
from ingero_kit.otlp_repair import read_json
from ingero_kit.otlp_signal import Signal
from ingero_testing.reports import NOW

Encoding = Literal["protobuf", "json"]


def table() -> ScoreTable:
    return ScoreTable(ScoreLimits(nodes=100, clusters=10, ttl_seconds=50), ())


def intake(sent: list[Push]) -> Intake:
    return Intake(table(), lambda: NOW, sent.append)


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize(
    ("encoding", "body"),
    [("protobuf", b"\x0a\x00" * 8_000_000), ("json", b'{"resourceLogs":[%b{}]}' % (b"{}," * 1_000_000))],
    ids=["protobuf", "json"],
)
def test_a_request_for_too_much_is_refused_counted_and_not_sent_on(
    signal: Signal, encoding: Encoding, body: bytes
) -> None:
    assert len(gzip.compress(body, 1)) < 100_000
    sent: list[Push] = []
    taking = intake(sent)

    answer = taking(Push(signal, encoding, body))

    assert (answer.status, sent) == (Status.INVALID, [])
    assert (taking.malformed, taking.rejected[TOO_MUCH]) == (1, 1)


def test_what_cannot_be_read_is_reported_and_left_out_of_what_is_sent_on() -> None:
    good = [encode_report(HealthReport(node_id=name, cluster_id="c", job_id="JJJJ", score=0.9)) for name in "ab"]
    body = good[0].SerializeToString().replace(b"JJJJ", b"\xff\xfe\xfd\xfc") + good[1].SerializeToString()
    sent: list[Push] = []

    answer = intake(sent)(Push(Signal.METRICS, "protobuf", body))

    assert (answer.status, answer.rejected) == (Status.OK, 0)
    assert "UTF-8" in answer.message
    (push,) = sent
    assert b"\xff\xfe" not in push.body
    assert good[1].SerializeToString() in push.body


@pytest.mark.parametrize("signal", [Signal.LOGS, Signal.TRACES])
def test_a_record_that_is_no_text_costs_those_next_to_it_nothing(signal: Signal) -> None:
    request: Any
    if signal is Signal.LOGS:
        request = ExportLogsServiceRequest()
        records, field = request.resource_logs.add().scope_logs.add().log_records, "event_name"
    else:
        request = ExportTraceServiceRequest()
        records, field = request.resource_spans.add().scope_spans.add().spans, "name"
    for name in ("first", "XXXX", "third"):
        setattr(records.add(), field, name)
    sent: list[Push] = []

    answer = intake(sent)(Push(signal, "protobuf", request.SerializeToString().replace(b"XXXX", b"\xff\xfe\xfd\xfc")))

    del records[1]
    assert (answer.status, answer.rejected) == (Status.OK, 1)
    assert "UTF-8" in answer.message
    assert [push.body for push in sent] == [request.SerializeToString()]


@pytest.mark.parametrize("letters", [rb"\ud800", b"\xff"])
@pytest.mark.parametrize("signal", [Signal.LOGS, Signal.TRACES])
def test_json_text_that_is_no_unicode_is_replaced_reported_and_sent_on(signal: Signal, letters: bytes) -> None:
    names = ("Logs", "logRecords", "eventName") if signal is Signal.LOGS else ("Spans", "spans", "name")
    kind, records, field = (name.encode() for name in names)
    body = b'{"resource%b":[{"scope%b":[{"%b":[{"%b":"first"},{"%b":"<%b>"}]}]}]}' % (
        kind, kind, records, field, field, letters
    )  # fmt: skip
    sent: list[Push] = []

    answer = intake(sent)(Push(signal, "json", body))

    assert (answer.status, answer.rejected) == (Status.OK, 0)
    assert "replaced" in answer.message
    assert [b"<\xef\xbf\xbd>" in push.body and b"first" in push.body for push in sent] == [True]


def test_a_half_of_a_surrogate_pair_costs_no_report() -> None:
    reports = [HealthReport(node_id=name, cluster_id="c", job_id="JJJJ", score=0.9) for name in "ab"]
    blocks = [orjson.loads(to_json(encode_report(report)))["resourceMetrics"][0] for report in reports]
    body = orjson.dumps({"resourceMetrics": blocks}).replace(b"JJJJ", rb"\ud800", 1)
    taking = intake([])

    answer = taking(Push(Signal.METRICS, "json", body))

    assert (answer.status, answer.rejected, taking.accepted_reports) == (Status.OK, 0, 2)
    assert "surrogates" in answer.message


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\\ud83d\ude00"', "\\ud83d\ufffd"),
        (rb'"\n\ud800\\\uDFFFx\u00e4"', "\n\ufffd\\\ufffdxä"),
    ],
)
def test_only_halves_of_pairs_are_replaced(text: bytes, repaired: str) -> None:
    assert read_json(text)[0] == repaired


def test_json_that_would_take_long_to_turn_into_protobuf_is_refused() -> None:
    values = b'{"stringValue":"a"},' * 100_000
    body = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"arrayValue":{"values":[%b{}]}}}]}]}]}' % values
    sent: list[Push] = []

    assert intake(sent)(Push(Signal.LOGS, "json", body)).status is Status.INVALID
    assert sent == []


def test_a_clock_that_was_behind_when_fleet_started_refuses_nobody_once_it_is_right() -> None:
    async def scenario() -> None:
        behind = IngestService(FleetConfig(), table(), lambda: time.time() - 7200)
        report = HealthReport(node_id="n", cluster_id="c", score=0.9, time_unix_nano=time.time_ns())

        answer = behind.intake(Push(Signal.METRICS, "protobuf", encode_report(report).SerializeToString()))

        assert (answer.rejected, behind.intake.accepted_reports) == (0, 1)

    asyncio.run(scenario())


def test_only_the_tracer_of_a_node_that_collectives_wait_for_gets_a_verdict() -> None:
    taking = intake([])
    late = {node_key("c", "late"): "healthy;collectives=late_rank", node_key("c", "slow"): "straggler;kind=slow"}
    taking.verdict_cache = VerdictCache(verdicts=NodeVerdicts("healthy", late, as_of=NOW))

    def answer(*nodes: str) -> bytes:
        request = ExportMetricsServiceRequest()
        for node in nodes:
            batch = MetricBatch({attributes.NODE_ID: node, attributes.CLUSTER_ID: "c"}, "ingero", 1, 1)
            batch.gauge(metrics.SYSTEM_CPU, [batch.point(0.5)])
            request.resource_metrics.extend(batch.request.resource_metrics)
        return taking(Push(Signal.METRICS, "json", to_json(request))).http_headers

    assert answer("late") == answer("late", "late") == b"X-Ingero-Verdict: healthy;collectives=late_rank\r\n"
    assert {answer("slow"), answer("other"), answer("other", "late"), answer("late", "other", "other")} == {b""}


def collective(seq: int, value: float | None = 1.0, **changes: object) -> dict[str, object]:
    last_verdicts = {
        "nccl.op_type": {"stringValue": "ncclAllReduce"},
        "nccl.comm_id_hash": {"stringValue": "abc"},
        "nccl.rank": {"intValue": 1},
        "nccl.nranks": {"intValue": 2},
        "nccl.seq": {"intValue": seq},
    }
    point = {
        "timeUnixNano": str(int(NOW * 1e9)),
        "attributes": [{"key": key, "value": item} for key, item in last_verdicts.items()],
        **changes,
    }
    return point if value is None else point | {"asDouble": value}


def read(points: list[dict[str, object]], encoding: Encoding) -> tuple[Columns, dict[str, int]]:
    tree = orjson.loads(to_json(encode_report(HealthReport(node_id="n", cluster_id="c"))))
    scope = tree["resourceMetrics"][0]["scopeMetrics"][0]
    scope["metrics"] = [{"name": metrics.COLLECTIVE_BARRIER_WAIT, "gauge": {"dataPoints": points}}]
    body = orjson.dumps(tree)
    if encoding == "protobuf":
        body = ParseDict(tree, ExportMetricsServiceRequest()).SerializeToString()
    reader, batch = PointReader(10, 100, GpuStates(10, 60.0)), PointBatch()
    reader.read(Push(Signal.METRICS, encoding, body), batch, NOW)
    return batch.columns(), reader.refused


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_a_wait_that_was_not_recorded_is_none_and_not_zero(encoding: Encoding) -> None:
    points = [collective(1), collective(2, None), collective(3, 0.0, flags=1), collective(4, 0.0)]

    batch, refused = read(points, encoding)

    assert (list(batch["seq"]), list(batch["value"])) == ([1, 4], [1.0, 0.0])
    assert refused == {"a point has no value": 2}


@pytest.mark.parametrize("wrong", [{"timeUnixNano": "soon"}, {"timeUnixNano": "9" * 400}, {"attributes": 5}])
def test_a_collective_that_cannot_be_read_costs_those_next_to_it_nothing(wrong: dict[str, Any]) -> None:
    batch, refused = read([collective(1), collective(2, **wrong), collective(3)], "json")

    assert list(batch["seq"]) == [1, 3]
    assert len(batch["time"]) == len(batch["comm"]) == 2
    assert refused == {"a point is not OTLP": 1}


@pytest.mark.serial
def test_a_sequence_number_of_a_megabyte_is_not_counted_out() -> None:
    reader = PointReader(10, 100, GpuStates(10, 60.0))

    head = KeyValue(key="nccl.seq").SerializeToString()
    began = time.process_time()

    reader._learn(head + b"\x12\xff\x18" + b"\xff" * (1 << 20))

    assert time.process_time() - began < 2
    assert not reader._pairs


@pytest.mark.parametrize("signal", [Signal.LOGS, Signal.TRACES])
def test_json_is_answered_as_json_although_it_is_sent_on_as_protobuf(signal: Signal) -> None:
    sent: list[Push] = []
    push = Push(signal, "json", b"{}")

    intake(sent)(push)

    assert push.encoding == "json"
    assert [onward.encoding for onward in sent] == ["protobuf"]
