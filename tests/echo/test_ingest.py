"""Events over real sockets: what was acknowledged is there, once, whatever happens in between."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ingero_contract import attributes, echo, metrics, routes
from ingero_echo.ingest import decode_request
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report, to_json
from ingero_kit.otlp_signal import Signal
from ingero_testing import telemetry
from ingero_testing.processes import BIN, Running, process, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.rpc import unary
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}
PATHS = {"logs": routes.OTLP_LOGS, "metrics": routes.OTLP_METRICS, "traces": routes.OTLP_TRACES}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with start_echo(tmp_path_factory.mktemp("echo")) as running:
        yield running


def push(service: Running, message: Any, signal_name: str = "logs", query: str = "") -> httpx.Response:
    return web.post(
        service.url("otlp/http", PATHS[signal_name] + query), content=message.SerializeToString(), headers=PROTOBUF,
        timeout=30,
    )  # fmt: skip


def rows(service: Running, sql: str) -> list[list[Any]]:
    answer = web.post(service.url("api", echo.SQL), json={"sql": sql, "limit": 100_000}, timeout=60)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["rows"])


def test_every_signal_becomes_events_with_their_own_columns(service: Running) -> None:
    chain = {echo.CAUSAL_CHAIN_ID: "n7:tail:1"}
    log = telemetry.logs([("oom", "killed", {"pid": 7, **chain})], "signals", "n7")
    point = telemetry.gauges(
        [("gpu.memory.used", 5.0, {"gpu.uuid": "g"})], "signals", "n7", **{attributes.NODE_RANK: 3}
    )
    span = telemetry.spans(["infer.outlier.2x"], "signals", "n7", **chain)

    assert push(service, log).status_code == 200
    assert push(service, point, "metrics").status_code == 200
    assert push(service, span, "traces").status_code == 200

    found = rows(
        service,
        "SELECT signal, metric_name, value_double, rank, causal_chain_id, message FROM events "
        "WHERE cluster_id = 'signals' ORDER BY signal",
    )
    assert found == [
        ["logs", "oom", None, None, "n7:tail:1", "killed"],
        ["metrics", "gpu.memory.used", 5.0, 3, None, None],
        ["traces", "infer.outlier.2x", 5.0, None, "n7:tail:1", None],
    ]
    assert rows(service, "SELECT attributes FROM events WHERE metric_name = 'oom'") == [['{"pid":7}']]


def test_a_health_push_of_the_published_agent_fills_the_typed_table(service: Running) -> None:
    report = HealthReport(
        node_id="h1", cluster_id="health", score=0.75, compute=0.5, workload_type="training", time_unix_nano=0,
        world_size=8, rank=2,
    )  # fmt: skip
    body = to_json(encode_report(report))
    answer = web.post(
        service.url("otlp/http", routes.OTLP_METRICS), content=body, headers={"content-type": "application/json"}
    )

    assert (answer.status_code, answer.json()) == (200, {})
    assert rows(
        service,
        "SELECT node_id, rank, world_size, state, workload_type, health_score, compute_efficiency "
        "FROM node_metrics WHERE cluster_id = 'health'",
    ) == [["h1", 2, 8, "active", "training", 0.75, 0.5]]
    scores = f"SELECT value_double FROM events WHERE metric_name = '{metrics.HEALTH_SCORE}' AND cluster_id = 'health'"
    assert rows(service, scores) == [[0.75]]


def test_grpc_takes_what_http_takes(service: Running) -> None:
    ids, request = telemetry.numbered(10, cluster="grpc")
    with grpc.insecure_channel(f"127.0.0.1:{service.ports['otlp/grpc']}") as channel:
        call = unary(channel, Signal.LOGS.grpc_method)
        raw = call(request.SerializeToString(), timeout=60)

        assert ExportLogsServiceResponse.FromString(raw) == ExportLogsServiceResponse()
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\xff rubbish", timeout=60)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    found = rows(service, "SELECT event_id::VARCHAR FROM events WHERE cluster_id = 'grpc'")
    assert sorted(row[0] for row in found) == sorted(ids)


def test_a_repeated_request_is_acknowledged_and_not_doubled(service: Running) -> None:
    _, request = telemetry.numbered(50, cluster="repeat")
    without_ids = telemetry.gauges([(f"m{number}", 1.0, {}) for number in range(20)], "repeat")

    for _ in range(3):
        assert push(service, request).status_code == 200
        assert push(service, without_ids, "metrics").status_code == 200

    assert rows(service, "SELECT count(*), count(DISTINCT event_id) FROM events WHERE cluster_id = 'repeat'") == [
        [70, 70]
    ]
    regrouped = telemetry.numbered(1, cluster="repeat")[1]
    regrouped.resource_logs[0].scope_logs[0].log_records.extend(
        request.resource_logs[0].scope_logs[0].log_records[:10]
    )
    assert push(service, regrouped).status_code == 200
    assert rows(service, "SELECT count(*) FROM events WHERE cluster_id = 'repeat' AND signal = 'logs'") == [[51]]


def test_an_id_twice_in_one_request_is_one_event(service: Running) -> None:
    _, request = telemetry.numbered(1, cluster="twice")
    records = request.resource_logs[0].scope_logs[0].log_records
    records.append(records[0])

    assert push(service, request).status_code == 200
    assert rows(service, "SELECT count(*) FROM events WHERE cluster_id = 'twice'") == [[1]]


def test_undated_records_are_never_taken_for_a_repeat(service: Running) -> None:
    request = telemetry.gauges([("m", 1.0, {})], "undated", at=0)
    for _ in range(3):
        assert push(service, request, "metrics").status_code == 200

    assert rows(service, "SELECT count(*) FROM events WHERE cluster_id = 'undated'") == [[3]]


def test_the_query_parameter_wins_over_the_payload(service: Running) -> None:
    assert push(service, telemetry.logs([("e", "", {})], "payload"), query="?cluster_id=asked").status_code == 200
    assert rows(service, "SELECT cluster_id FROM events WHERE cluster_id IN ('payload', 'asked')") == [["asked"]]


@pytest.mark.parametrize(
    ("at", "reason"),
    [(None, "more than an hour ahead"), (1 << 63, "beyond the year 2262"), (1, "before what retention keeps")],
    ids=["ahead", "beyond", "ancient"],
)
def test_a_bad_record_is_left_out_and_named(service: Running, at: int | None, reason: str) -> None:
    request = telemetry.gauges([("good", 1.0, {})], "bad")
    moment = time.time_ns() + 7200 * 10**9 if at is None else at
    request.resource_metrics.extend(telemetry.gauges([("bad", 1.0, {})], "bad", at=moment).resource_metrics)

    answer = ExportMetricsServiceResponse.FromString(push(service, request, "metrics").content)

    assert answer.partial_success.rejected_data_points == 1
    assert reason in answer.partial_success.error_message


def test_a_health_score_that_is_none_is_left_out_as_fleet_does_it(service: Running) -> None:
    scores: list[telemetry.Point] = [(metrics.HEALTH_SCORE, score, {}) for score in (-1.0, float("nan"), 1.5)]
    request = telemetry.gauges([(metrics.HEALTH_SCORE, 0.5, {}), ("other", -1.0, {})], "scores", "well")
    request.resource_metrics.extend(telemetry.gauges(scores, "scores", "wrong").resource_metrics)

    answer = ExportMetricsServiceResponse.FromString(push(service, request, "metrics").content)

    assert answer.partial_success.rejected_data_points == 3
    assert "ingero.node.health_score is not between 0 and 1" in answer.partial_success.error_message
    found = rows(
        service, "SELECT node_id, value_double FROM events WHERE cluster_id = 'scores' ORDER BY value_double"
    )
    assert found == [["well", -1.0], ["well", 0.5]]


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"\xff\xff", "application/x-protobuf", 400),
        (b"{", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"resourceLogs": 5}', "application/json", 400),
        (b"", "text/plain", 415),
    ],
)
def test_rubbish_is_refused_and_the_next_request_is_served(
    service: Running, content: bytes, content_type: str, status: int
) -> None:
    answer = web.post(
        service.url("otlp/http", routes.OTLP_LOGS), content=content, headers={"content-type": content_type}
    )

    assert answer.status_code == status
    assert push(service, telemetry.logs([("fine", "", {})], "rubbish")).status_code == 200


GOOD = {"timeUnixNano": 0, "eventName": "good"}
LOGS = '{"resourceLogs": [{"scopeLogs": [{"logRecords": %s}]}]}'
METRICS = '{"resourceMetrics": [{"scopeMetrics": [{"metrics": %s}]}]}'
SPANS = '{"resourceSpans": [{"scopeSpans": [{"spans": %s}]}]}'
POINT = {"name": "m", "gauge": {"dataPoints": [{"asDouble": 1}]}}


@pytest.mark.parametrize(
    ("template", "good", "odd"),
    [
        (LOGS, GOOD, {"timeUnixNano": "x"}),
        (LOGS, GOOD, "a text"),
        (LOGS, GOOD, {"attributes": [{"key": "k", "value": {"intValue": "9" * 30}}]}),
        (LOGS, GOOD, {"attributes": [{"key": "k", "value": {"kvlistValue": {"values": [{"key": []}]}}}]}),
        (LOGS, GOOD, {"severityNumber": "LOUD"}),
        (METRICS, POINT, {"gauge": {"dataPoints": [{"asDouble": 1}]}}),
        (METRICS, POINT, {"name": "m", "gauge": {"dataPoints": [{"asDouble": "much"}]}}),
        (METRICS, POINT, {"name": "m", "histogram": {"dataPoints": [{"count": str(1 << 70), "sum": 1}]}}),
        (METRICS, POINT, {"name": "m", "histogram": {"dataPoints": [{"bucketCounts": [-1]}]}}),
        (LOGS, GOOD, {"timeUnixNano": "1_0"}),
        (LOGS, GOOD, {"timeUnixNano": True}),
        (LOGS, GOOD, {"timeUnixNano": 1.5}),
        (LOGS, GOOD, {"attributes": [{"key": "k", "value": {"intValue": " 7 "}}]}),
        (LOGS, GOOD, {"attributes": [{"key": "k", "value": {"doubleValue": "inf"}}]}),
        (LOGS, GOOD, {"attributes": [{"key": "k", "value": {"boolValue": "false"}}]}),
        (LOGS, GOOD, {"attributes": [{"key": "k", "value": {"stringValue": {"a": 1}}}]}),
        (METRICS, POINT, {"name": "m", "gauge": {"dataPoints": [{"asDouble": True}]}}),
        (METRICS, POINT, {"name": "m", "gauge": {"dataPoints": [{"asDouble": "nan"}]}}),
        (METRICS, POINT, {"name": "m", "summary": {"dataPoints": [{"sum": "1_000"}]}}),
        (METRICS, POINT, {"name": "m", "histogram": {"dataPoints": [{"bucketCounts": ["1 "]}]}}),
        (LOGS, GOOD, ""),
        (LOGS, GOOD, {"body": ""}),
        (LOGS, GOOD, {"attributes": [{"key": "k", "value": []}]}),
        (METRICS, POINT, "a text"),
        (METRICS, POINT, {"name": "m", "gauge": ""}),
        (SPANS, {"name": "s"}, {"name": "s", "status": 0}),
        (METRICS, POINT, {"name": "m", "gauge": "a text"}),
        (SPANS, {"name": "s"}, {"name": "s", "startTimeUnixNano": "soon"}),
        (SPANS, {"name": "s"}, {"name": "s", "links": [5]}),
    ],
)  # fmt: skip
def test_one_record_that_cannot_be_read_is_named_and_its_neighbours_are_kept(
    template: str, good: dict[str, Any], odd: Any
) -> None:
    kind = {LOGS: Signal.LOGS, METRICS: Signal.METRICS, SPANS: Signal.TRACES}[template]
    records = [*[good] * 5, odd, *[good] * 4]

    batch = decode_request(
        kind, "json", (template % json.dumps(records)).encode(), "c", time.time_ns(), lambda _: True
    )

    assert (len(batch.identities), batch.rejected) == (9, 1)
    assert sum(part.num_rows for part in batch.tables["events"]) == 9
    assert "it is not OTLP/JSON: a" in batch.message and "Error" not in batch.message


def test_a_json_resource_that_cannot_be_read_costs_its_own_records_only() -> None:
    good = {"scopeLogs": [{"logRecords": [GOOD] * 3}]}
    odd = {"resource": {"attributes": [{"key": "k", "value": {"doubleValue": "1_0"}}]}, **good}
    no_list = {"scopeLogs": [{"logRecords": 5}]}
    body = json.dumps({"resourceLogs": [good, odd, "a text", no_list, good]}).encode()

    batch = decode_request(Signal.LOGS, "json", body, "c", time.time_ns(), lambda _: True)

    assert (len(batch.identities), batch.rejected) == (6, 3)


@pytest.mark.parametrize("count", [5, 200, 40_000])
@pytest.mark.parametrize("signal_name", ["logs", "metrics", "traces"])
def test_a_record_that_is_no_text_costs_those_next_to_it_nothing(signal_name: str, count: int) -> None:
    if signal_name == "logs":
        request: Any = telemetry.logs([("e", "good", {"k": "good"})] * count)
        records = request.resource_logs[0].scope_logs[0].log_records
        records[count // 2].attributes[0].value.string_value = "XXXX"
    elif signal_name == "metrics":
        request = telemetry.gauges([("m", 1.0, {"k": "good"})])
        points = request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
        points.extend([points[0]] * (count - 1))
        points[count // 2].attributes[0].value.string_value = "XXXX"
    else:
        count = min(count, 10_000)
        request = telemetry.spans(["good"] * count)
        request.resource_spans[0].scope_spans[0].spans[count // 2].name = "XXXX"
    body = request.SerializeToString().replace(b"XXXX", b"\xff\xfe\xfd\xfc")

    batch = decode_request(Signal[signal_name.upper()], "protobuf", body, "c", time.time_ns(), lambda _: True)

    assert (len(batch.identities), batch.rejected) == (count - 1, 1)
    assert "UTF-8" in batch.message


@pytest.mark.parametrize("count", [5, 20_000])
def test_an_attribute_of_a_resource_that_is_no_text_is_reported_and_costs_no_record(
    service: Running, count: int
) -> None:
    cluster = f"no-text-{count}"
    request = telemetry.logs([("e", "good", {})] * count, cluster, zone="XXXX")
    body = request.SerializeToString().replace(b"XXXX", b"\xff\xfe\xfd\xfc")

    answer = web.post(service.url("otlp/http", routes.OTLP_LOGS), content=body, headers=PROTOBUF, timeout=60)

    partial = ExportLogsServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, partial.rejected_log_records) == (200, 0)
    assert "UTF-8" in partial.error_message
    assert rows(service, f"SELECT count(*) FROM events WHERE cluster_id = '{cluster}'") == [[count]]


@pytest.mark.parametrize("letters", [rb"\ud800", rb"\ude00\ud83d", b"\xff"])
def test_json_text_that_is_no_unicode_is_replaced_and_reported(letters: bytes) -> None:
    body = (LOGS % json.dumps([GOOD, {"body": {"stringValue": "<XXXX>"}}, GOOD])).encode().replace(b"XXXX", letters)

    batch = decode_request(Signal.LOGS, "json", body, "c", time.time_ns(), lambda _: True)

    assert (len(batch.identities), batch.rejected) == (3, 0)
    assert "replaced" in batch.message
    assert batch.tables["events"][0]["message"].to_pylist()[1].strip("\ufffd<>") == ""


def test_values_of_another_kind_than_their_column_are_kept_in_words(service: Running) -> None:
    odd: list[tuple[str, str, dict[str, Any]]] = [
        (echo.CAUSAL_CHAIN_EVENT, "", {echo.CAUSAL_CHAIN_ID: "k", echo.CHAIN_SEVERITY: 0, echo.CHAIN_ROOT_CAUSE: 7}),
        (metrics.STRAGGLER_EVENT, "", {attributes.DOMINANT_SIGNAL: 3}),
        (metrics.VERDICT_EVENT, "", {attributes.VERDICT_STATE: 1, attributes.VERDICT_SEVERITY: "high"}),
        *[("neighbour", "", {})] * 20,
    ]
    point = telemetry.gauges([(metrics.COLLECTIVE_DURATION, 1.0, {attributes.NCCL_SEQ: True})], "kinds")

    answers = [push(service, telemetry.logs(odd, "kinds")), push(service, point, "metrics")]

    assert [(answer.status_code, answer.content) for answer in answers] == [(200, b"")] * 2
    assert rows(service, "SELECT count(*) FROM events WHERE cluster_id = 'kinds'") == [[24]]
    assert rows(service, "SELECT severity, root_cause FROM causal_chains WHERE cluster_id = 'kinds'") == [["0", "7"]]
    assert rows(service, "SELECT kind, state, severity FROM verdicts WHERE cluster_id = 'kinds' ORDER BY source") == [
        ["3", "healthy", None], [None, "1", None],
    ]  # fmt: skip
    assert rows(service, "SELECT sequence FROM collectives WHERE cluster_id = 'kinds'") == [[None]]


def test_a_value_that_fits_no_column_costs_its_own_record_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero_echo.row_builder._optional_text", lambda value: value)
    chain = {echo.CAUSAL_CHAIN_ID: "k"}
    records = [*[("fine", "", {})] * 30, (echo.CAUSAL_CHAIN_EVENT, "", {**chain, echo.CHAIN_SEVERITY: 5})]
    records += [(echo.CAUSAL_CHAIN_EVENT, "", {**chain, echo.CHAIN_SEVERITY: "LOW"})]
    body = telemetry.logs(records).SerializeToString()

    batch = decode_request(Signal.LOGS, "protobuf", body, "", time.time_ns(), lambda _: True)

    kept = [one for part in batch.tables["events"] for one in part["metric_name"].to_pylist()]
    assert sorted(kept) == [*["fine"] * 30, echo.CAUSAL_CHAIN_EVENT]
    assert len(batch.identities) == 31
    assert [part["severity"].to_pylist() for part in batch.tables["causal_chains"]] == [["LOW"]]
    assert "does not fit the table causal_chains" in batch.message


def test_what_otlp_says_next_to_the_attributes_is_kept(service: Running) -> None:
    scope = InstrumentationScope(name="lib", version="1.2", attributes=telemetry.pairs({"k": 1}))
    trace = telemetry.spans(["served"], "siblings")
    trace.resource_spans[0].scope_spans[0].scope.CopyFrom(scope)
    span = trace.resource_spans[0].scope_spans[0].spans[0]
    span.kind, span.trace_state = Span.SPAN_KIND_SERVER, "a=b"
    link = span.links.add(trace_id=bytes(16), span_id=bytes(8))
    link.attributes.extend(telemetry.pairs({"why": "retry"}))
    log = telemetry.logs([("said", "", {})], "siblings")
    log.resource_logs[0].scope_logs[0].scope.CopyFrom(scope)
    log.resource_logs[0].scope_logs[0].log_records[0].severity_text = "Warning"
    points = telemetry.gauges([("total", 1.0, {}), ("spread", 0.0, {})], "siblings")
    total, spread = points.resource_metrics[0].scope_metrics[0].metrics
    total.unit, spread.unit = "By", "ms"
    at = total.gauge.data_points[0].time_unix_nano
    total.sum.data_points.add(time_unix_nano=at, as_double=3)
    total.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    total.sum.is_monotonic = True
    point = spread.exponential_histogram.data_points.add(time_unix_nano=at, count=7, sum=9, scale=3, zero_count=1)
    point.positive.offset, point.max = 4, 2.5
    point.positive.bucket_counts.extend([1, 2, 3])
    spread.exponential_histogram.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA

    messages: dict[str, Any] = {"traces": trace, "logs": log, "metrics": points}
    for kind, message in messages.items():
        assert push(service, message, kind).content == b""
        as_json = web.post(
            service.url("otlp/http", PATHS[kind] + "?cluster_id=siblings-json"), content=to_json(message),
            headers={"content-type": "application/json"},
        )  # fmt: skip
        assert as_json.json() == {}

    from_scope = {"otel.scope.name": "lib", "otel.scope.version": "1.2", "otel.scope.attributes": {"k": 1}}
    found = {
        (cluster, name): json.loads(text)
        for cluster, name, text in rows(
            service, "SELECT cluster_id, metric_name, attributes FROM events WHERE cluster_id LIKE 'siblings%'"
        )
    }
    assert len(found) == 8
    for cluster in ("siblings", "siblings-json"):
        said = found[cluster, "served"]
        assert said.items() >= {**from_scope, "span_kind": 2, "trace_state": "a=b"}.items()
        assert [link["why"] for link in said["links"]] == ["retry"]
        assert found[cluster, "said"] == {**from_scope, "severity_text": "Warning"}
        assert found[cluster, "total"] == {
            "metric.unit": "By", "metric.temporality": "cumulative", "metric.monotonic": True
        }  # fmt: skip
        assert found[cluster, "spread"] == {
            "metric.unit": "ms", "metric.temporality": "delta", "count": 7, "sum": 9.0, "max": 2.5, "scale": 3,
            "zero_count": 1, "positive": {"offset": 4, "buckets": [1, 2, 3]},
        }  # fmt: skip


def test_not_a_number_infinity_and_odd_text_survive(service: Running) -> None:
    values = [float("nan"), float("inf"), float("-inf")]
    request = telemetry.gauges([(f"m{number}", value, {}) for number, value in enumerate(values)], "odd")
    assert push(service, request, "metrics").status_code == 200
    text = "tab\t nul\0 quote\" back\\slash \u202e 🙂 '; DROP TABLE events; --"
    assert push(service, telemetry.logs([("odd", text, {"k": text})], "odd")).status_code == 200

    assert [row[0] for row in rows(
        service, "SELECT isfinite(value_double) FROM events WHERE cluster_id = 'odd' AND signal = 'metrics'"
    )] == [False] * 3  # fmt: skip
    assert rows(service, "SELECT message FROM events WHERE cluster_id = 'odd' AND signal = 'logs'") == [[text]]


def test_killed_in_the_middle_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    unsure: list[Any] = []
    for _ in range(2):
        with start_echo(tmp_path) as service:
            for request in unsure:
                assert push(service, request).status_code == 200
            unsure = []
            for round_number in range(20):
                ids, request = telemetry.numbered(100, cluster="kill")
                if round_number == 15:
                    os.kill(service.process.pid, signal.SIGKILL)
                try:
                    if push(service, request).status_code == 200:
                        acknowledged += ids
                        continue
                except httpx.TransportError:
                    pass
                unsure.append(request)
                acknowledged += ids
            service.process.wait(10)
    with start_echo(tmp_path) as service:
        for request in unsure:
            assert push(service, request).status_code == 200
        found = [row[0] for row in rows(service, "SELECT event_id::VARCHAR FROM events WHERE cluster_id = 'kill'")]

    assert len(found) == len(set(found))
    assert set(acknowledged) == set(found)


def test_an_interrupted_stress_searches_what_was_acknowledged(service: Running, tmp_path: Path) -> None:
    with process(
        tmp_path / "stress.log", str(BIN / "ingero-echo"), "stress", "--protocol", "http", "--nodes", "2",
        "--endpoint", f"127.0.0.1:{service.ports['otlp/http']}", "--events", "100000000", "--batch", "10",
        "--cluster", "stopped", "--api", service.url("api"), "--json",
    ) as stress:  # fmt: skip
        count = "SELECT count(*) FROM events WHERE cluster_id = 'stopped'"
        wait_until(lambda: rows(service, count)[0][0] > 0, "the first events")
        stress.process.send_signal(signal.SIGINT)

        assert stress.process.wait(60) == 0, stress.words()
        facts = json.loads(stress.words())
        assert facts["clean"]
        assert facts["acknowledged"] == rows(service, count)[0][0]


def test_a_second_process_learns_who_the_first_is(tmp_path: Path) -> None:
    with (
        start_echo(tmp_path) as first,
        pytest.raises(AssertionError, match=f"in use by process {first.process.pid}"),
        start_echo(tmp_path),
    ):
        pass


def test_a_stop_writes_and_answers_what_waits(tmp_path: Path) -> None:
    with start_echo(tmp_path) as service:
        assert push(service, telemetry.numbered(100, cluster="stop")[1]).status_code == 200
        service.process.terminate()
        assert service.process.wait(20) == 0
        assert "Traceback" not in service.words()
        assert "leaked" not in service.words()
    with start_echo(tmp_path) as service:
        assert rows(service, "SELECT count(*) FROM events") == [[100]]
