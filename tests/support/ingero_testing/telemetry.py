"""Builds OTLP requests of every kind, with usual defaults."""

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from ingero_contract import attributes, echo, metrics


def pairs(values: Mapping[str, Any]) -> list[KeyValue]:
    """OTLP attributes from Python values."""
    return [KeyValue(key=key, value=_any(value)) for key, value in values.items()]


def _any(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=str(value))


def resource(cluster: str = "c", node: str = "n0", **more: Any) -> Resource:
    """The resource of a node."""
    return Resource(attributes=pairs({attributes.CLUSTER_ID: cluster, attributes.NODE_ID: node, **more}))


Point = tuple[str, float, Mapping[str, Any]]
"""Name, value, attributes."""


def gauges(
    points: Iterable[Point],
    cluster: str = "c",
    node: str = "n0",
    at: int | None = None,
    **more: Any,
) -> ExportMetricsServiceRequest:
    """A push of gauges: (name, value, attributes)."""
    moment = time.time_ns() if at is None else at
    made = [
        Metric(
            name=name,
            gauge=Gauge(data_points=[NumberDataPoint(time_unix_nano=moment, as_double=value, attributes=pairs(own))]),
        )
        for name, value, own in points
    ]
    block = ResourceMetrics(resource=resource(cluster, node, **more), scope_metrics=[ScopeMetrics(metrics=made)])
    return ExportMetricsServiceRequest(resource_metrics=[block])


def logs(
    records: Iterable[tuple[str, str, Mapping[str, Any]]],
    cluster: str = "c",
    node: str = "n0",
    at: int | None = None,
    **more: Any,
) -> ExportLogsServiceRequest:
    """A request of log records: (event name, body, attributes)."""
    moment = time.time_ns() if at is None else at
    made = [
        LogRecord(
            time_unix_nano=moment, event_name=name, body=AnyValue(string_value=body) if body else None,
            attributes=pairs(own),
        )
        for name, body, own in records
    ]  # fmt: skip
    block = ResourceLogs(resource=resource(cluster, node, **more), scope_logs=[ScopeLogs(log_records=made)])
    return ExportLogsServiceRequest(resource_logs=[block])


def spans(names: Iterable[str], cluster: str = "c", node: str = "n0", **own: Any) -> ExportTraceServiceRequest:
    """A request of spans of 5 ms."""
    moment = time.time_ns()
    made = [
        Span(
            name=name, trace_id=uuid.uuid4().bytes, span_id=uuid.uuid4().bytes[:8], start_time_unix_nano=moment,
            end_time_unix_nano=moment + 5_000_000, attributes=pairs(own),
        )
        for name in names
    ]  # fmt: skip
    block = ResourceSpans(resource=resource(cluster, node), scope_spans=[ScopeSpans(spans=made)])
    return ExportTraceServiceRequest(resource_spans=[block])


def numbered(count: int, prefix: str = "", **more: Any) -> tuple[list[str], ExportLogsServiceRequest]:
    """A request of `count` log records with an id each; returns the ids too."""
    ids = [str(uuid.uuid4()) for _ in range(count)]
    records = [
        ("stress", f"{prefix}{number}", {attributes.EVENT_ID: one, echo.CAUSAL_CHAIN_ID: f"chain-{number % 80}"})
        for number, one in enumerate(ids)
    ]
    return ids, logs(records, **more)


def verdict(node: str, state: str, cluster: str = "c", at: int | None = None, **own: Any) -> ExportLogsServiceRequest:
    """Fleet's verdict on a node, as Fleet exports it."""
    values = {
        attributes.VERDICT_STATE: state,
        attributes.VERDICT_KIND: own.pop("kind", "slow"),
        attributes.VERDICT_SINCE: own.pop("since", "2026-01-01T00:00:00Z"),
        attributes.VERDICT_SEVERITY: own.pop("severity", 0.4),
        attributes.VERDICT_COHORT: "training",
        attributes.VERDICT_EVIDENCE: json.dumps({"value": 0.5, "baseline": 0.9}),
        attributes.VERDICT_DIGEST: "d1",
        attributes.EVENT_ID: str(uuid.uuid4()),
        **own,
    }
    return logs([(metrics.VERDICT_EVENT, "", values)], cluster, node, at)
