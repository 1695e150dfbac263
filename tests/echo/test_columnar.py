"""Reading records of one shape all at once gives exactly what reading them one by one gives."""

import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint, Sum

from ingero_contract import attributes, echo
from ingero_echo import columnar_rows, ingest
from ingero_echo.records import MalformedRequest
from ingero_kit.otlp_signal import Signal
from ingero_kit.otlp_wire import write_varint
from ingero_testing import telemetry

NOW = 1_800_000_000 * 10**9

TEXTS = st.sampled_from(["", "a", "b", "ä", "x" * 130, "none"])
NUMBERS = st.sampled_from([0, 1, 127, 128, -1, 2**40, 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)
VALUES = TEXTS | NUMBERS | st.floats() | st.booleans()
KEYS = st.sampled_from(
    ["k", attributes.NODE_ID, attributes.NCCL_RANK, echo.CAUSAL_CHAIN_ID, attributes.EVENT_ID, "o"]
)
TIMES = st.sampled_from([NOW, NOW + 1, NOW - 10**9, 0, 1, NOW + 7200 * 10**9])
LOG = st.tuples(
    st.sampled_from(["e", "e", "other"]), TEXTS, st.dictionaries(KEYS, VALUES, max_size=4), TIMES, st.booleans()
)


def _plain(column: pa.Array) -> list[Any]:
    return list((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())


def decoded(signal: Signal, body: bytes, large: int, monkeypatch: pytest.MonkeyPatch, cluster: str = "") -> Any:
    """Everything that a request becomes, in an order that both ways share; `None` for a malformed one."""
    monkeypatch.setattr(ingest, "MIN_COLUMNAR_BYTES", large)
    try:
        batch = ingest.decode_request(
            signal, "protobuf", body, cluster, NOW, lambda name: name != "forbidden", NOW - 10**12
        )
    except MalformedRequest:
        return None
    tables = {
        table: sorted(
            tuple(map(str, row))
            for part in parts
            for row in zip(*(_plain(column) for column in part.columns), strict=True)
        )
        for table, parts in batch.tables.items()
    }
    ids = [str(one) for part in batch.tables.get("events", ()) for one in part["event_id"].to_pylist()]
    assert len(ids) == len(batch.identities)
    return tables, sorted(ids), batch.reasons


def same(signal: Signal, body: bytes, monkeypatch: pytest.MonkeyPatch) -> Any:
    fast = decoded(signal, body, 0, monkeypatch)
    assert fast == decoded(signal, body, 1 << 60, monkeypatch)
    return fast


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LOG, min_size=1, max_size=4), st.integers(1, 40), st.sampled_from(["c", "forbidden"]), st.booleans())
def test_logs(monkeypatch: pytest.MonkeyPatch, kinds: list[Any], repeats: int, cluster: str, mixed: bool) -> None:
    request = ExportLogsServiceRequest()
    for name, text, own, at, with_id in (
        kinds * repeats if mixed else [kind for kind in kinds for _ in range(repeats)]
    ):
        values = {**own, **({attributes.EVENT_ID: str(uuid.uuid4())} if with_id else {})}
        request.resource_logs.extend(telemetry.logs([(name, text, values)], cluster, at=at).resource_logs)
    merged = request.resource_logs[0].scope_logs[0].log_records
    for block in request.resource_logs[1:]:
        merged.extend(block.scope_logs[0].log_records)
    del request.resource_logs[1:]

    same(Signal.LOGS, request.SerializeToString(), monkeypatch)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.dictionaries(KEYS, VALUES, max_size=3), TIMES), min_size=1, max_size=4),
    st.lists(st.floats() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60),
    st.booleans(),
)
def test_points(monkeypatch: pytest.MonkeyPatch, kinds: list[Any], values: list[Any], as_sum: bool) -> None:
    points = []
    for number, value in enumerate(values):
        own, at = kinds[number % len(kinds)]
        point = NumberDataPoint(time_unix_nano=at, attributes=telemetry.pairs(own))
        if isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value
        points.append(point)
    metric = Metric(name="m", sum=Sum(data_points=points)) if as_sum else Metric(name="m")
    if not as_sum:
        metric.gauge.data_points.extend(points)
    request = telemetry.gauges([], "c")
    request.resource_metrics[0].scope_metrics[0].metrics.append(metric)

    same(Signal.METRICS, request.SerializeToString(), monkeypatch)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_bytes_are_read_alike_or_refused_by_both(
    monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    signal = data.draw(st.sampled_from([Signal.LOGS, Signal.METRICS]))
    if signal is Signal.LOGS:
        request: Any = telemetry.numbered(20, "m", at=NOW)[1]
        scope = request.resource_logs[0].scope_logs[0]
    else:
        request = telemetry.gauges([("m", float(number), {"k": "v"}) for number in range(20)], "c", at=NOW)
        scope = request.resource_metrics[0].scope_metrics[0]
        scope.metrics[0].unit, scope.metrics[0].description = "By", "words"
    scope.scope.name, scope.schema_url = "scope", "https://example.com"
    body = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))

    fast = decoded(signal, bytes(body), 0, monkeypatch)
    slow = decoded(signal, bytes(body), 1 << 60, monkeypatch)

    assert fast == slow


def test_a_usual_request_is_read_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, parse = [], columnar_rows._parse

    def noted(*given: Any) -> Any:
        parsed.append(1)
        return parse(*given)

    monkeypatch.setattr(columnar_rows, "_parse", noted)
    ids, request = telemetry.numbered(1000, cluster="c", at=NOW)
    tables, events, _ = same(Signal.LOGS, request.SerializeToString(), monkeypatch)

    assert len(tables["events"]) == 1000
    assert sorted(ids) == events
    assert len(parsed) < 200


def test_messages_of_different_kinds_may_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    first = telemetry.gauges([(f"m{number}", 1.0, {}) for number in range(30)], "a", at=NOW)
    second = telemetry.gauges([("same", float(number), {}) for number in range(30)], "b", at=NOW)
    joined = ExportMetricsServiceRequest.FromString(first.SerializeToString() + second.SerializeToString())

    tables, _, _ = same(Signal.METRICS, joined.SerializeToString(), monkeypatch)

    assert len(tables["events"]) == 60


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(TEXTS, TEXTS, st.sampled_from([0, 1, 2, 7]), st.booleans()), min_size=1, max_size=4),
    st.integers(1, 40), st.booleans(),
)  # fmt: skip
def test_scopes_units_and_temporality(
    monkeypatch: pytest.MonkeyPatch, kinds: list[Any], repeats: int, scope_last: bool
) -> None:
    points, records = ExportMetricsServiceRequest(), ExportLogsServiceRequest()
    bare = b""
    for scope, unit, temporality, monotonic in kinds:
        block = telemetry.gauges([], at=NOW).resource_metrics[0]
        block.scope_metrics[0].scope.name = scope
        for number in range(repeats):
            data = Sum(aggregation_temporality=temporality, is_monotonic=monotonic)
            data.data_points.add(time_unix_nano=NOW, as_double=number)
            block.scope_metrics[0].metrics.append(Metric(name="m", unit=unit, sum=data))
        points.resource_metrics.append(block)
        lines = telemetry.logs([("e", str(number), {}) for number in range(repeats)], at=NOW).resource_logs[0]
        lines.scope_logs[0].scope.name = scope
        records.resource_logs.append(lines)
        if scope_last:  # legal, though no encoder writes it so
            inner = lines.scope_logs[0]
            content, head = inner.scope.SerializeToString(), inner.SerializeToString()
            inner.ClearField("scope")
            tail = inner.SerializeToString() + head[: len(head) - len(inner.SerializeToString())]
            resource = lines.resource.SerializeToString()
            whole = _field(1, resource) + _field(2, tail)
            bare += _field(1, whole)
            assert content in tail

    same(Signal.METRICS, points.SerializeToString(), monkeypatch)
    fast = same(Signal.LOGS, records.SerializeToString(), monkeypatch)
    if scope_last:
        events = [row[1:] for row in same(Signal.LOGS, bare, monkeypatch)[0]["events"]]
        assert sorted(events) == sorted(row[1:] for row in fast[0]["events"])


def _field(number: int, content: bytes) -> bytes:
    return write_varint(number << 3 | 2) + write_varint(len(content)) + content
