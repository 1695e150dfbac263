"""Export requests → plain records, protobuf and JSON, metrics, logs and traces. Pure.

A `Block` is one resource with its records; a record's attributes are a dictionary of JSON values.
"""

import base64
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ingero_kit.otlp_server import Encoding, Signal

MAX_DEPTH: Final = 16
"""Levels of lists and maps inside one attribute; deeper ones are cut."""


class Malformed(Exception):
    """The request as a whole cannot be read; the text says why."""


def malformed(signal: Signal) -> Malformed:
    """What is said about bytes that are not protobuf of a signal."""
    return Malformed(f"the body is not an OTLP export request for {signal.name.lower()} in protobuf")


class Record(NamedTuple):
    """One data point, log record or span. `time` is nanoseconds since the epoch, 0 when not given."""

    name: str
    time: int
    value: float | None
    message: str | None
    attributes: dict[str, Any]


class Block(NamedTuple):
    """One resource: its attributes and its records."""

    resource: dict[str, Any]
    records: list[Record]


def read(signal: Signal, encoding: Encoding, body: bytes) -> list[Block]:
    """Read a whole request.

    Raises `Malformed`.
    """
    if encoding == "protobuf":
        try:
            message = _MESSAGES[signal].FromString(body)
        except DecodeError:
            raise malformed(signal) from None
        return [Block(*block) for block in _PROTOBUF[signal](message)]
    try:
        tree = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"the body is not JSON: {error}") from None
    try:
        return [Block(*block) for block in _JSON[signal](tree)]
    except (AttributeError, TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise Malformed(f"the body is not OTLP/JSON {signal.name.lower()}: {type(error).__name__}: {error}") from None


# Protobuf.


def _value(value: Any, depth: int = 0) -> Any:
    kind = value.WhichOneof("value")
    if kind is None or depth > MAX_DEPTH:
        return None
    if kind == "array_value":
        return [_value(item, depth + 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: _value(item.value, depth + 1) for item in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, kind)


def pairs(attributes: Iterable[Any]) -> dict[str, Any]:
    """Protobuf attributes as a dictionary."""
    return {item.key: _value(item.value) for item in attributes}


def _metrics(message: Any) -> Iterator[tuple[dict[str, Any], list[Record]]]:
    for block in message.resource_metrics:
        records = [record for scope in block.scope_metrics for metric in scope.metrics for record in _metric(metric)]
        yield pairs(block.resource.attributes), records


def _metric(metric: Any) -> Iterator[Record]:
    name, kind = metric.name, metric.WhichOneof("data")
    if kind in ("gauge", "sum"):
        for point in getattr(metric, kind).data_points:
            yield number_point(name, point)
    elif kind:
        for point in getattr(metric, kind).data_points:
            attributes = pairs(point.attributes)
            attributes["count"], attributes["sum"] = point.count, point.sum
            if kind == "histogram":
                attributes["bounds"] = list(point.explicit_bounds)
                attributes["buckets"] = list(point.bucket_counts)
            elif kind == "summary":
                attributes["quantiles"] = {str(item.quantile): item.value for item in point.quantile_values}
            mean = point.sum / point.count if point.count else None
            yield Record(name, point.time_unix_nano, mean, None, attributes)


def number_point(name: str, point: Any) -> Record:
    """One protobuf data point of a gauge or sum."""
    which = point.WhichOneof("value")
    value = float(getattr(point, which)) if which else None
    return Record(name, point.time_unix_nano, value, None, pairs(point.attributes))


def _logs(message: Any) -> Iterator[tuple[dict[str, Any], list[Record]]]:
    for block in message.resource_logs:
        records = [log_record(log) for scope in block.scope_logs for log in scope.log_records]
        yield pairs(block.resource.attributes), records


def log_record(log: Any) -> Record:
    """One protobuf log record."""
    attributes = pairs(log.attributes)
    if log.severity_number:
        attributes["severity_number"] = log.severity_number
    if log.trace_id:
        attributes["trace_id"], attributes["span_id"] = log.trace_id.hex(), log.span_id.hex()
    body = _value(log.body)
    text = body if body is None or isinstance(body, str) else orjson.dumps(body).decode()
    name = log.event_name or attributes.get("event.name") or "log"
    return Record(str(name), log.time_unix_nano or log.observed_time_unix_nano, None, text, attributes)


def _traces(message: Any) -> Iterator[tuple[dict[str, Any], list[Record]]]:
    for block in message.resource_spans:
        records = [_span(span) for scope in block.scope_spans for span in scope.spans]
        yield pairs(block.resource.attributes), records


def _span(span: Any) -> Record:
    attributes = pairs(span.attributes)
    attributes["trace_id"], attributes["span_id"] = span.trace_id.hex(), span.span_id.hex()
    if span.parent_span_id:
        attributes["parent_span_id"] = span.parent_span_id.hex()
    if span.status.code:
        attributes["status_code"] = span.status.code
    if span.events:
        attributes["events"] = [
            {"name": event.name, "time": event.time_unix_nano, **pairs(event.attributes)} for event in span.events
        ]
    milliseconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
    return Record(span.name, span.start_time_unix_nano, milliseconds, span.status.message or None, attributes)


_MESSAGES: Final[dict[Signal, Any]] = {
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
    Signal.TRACES: ExportTraceServiceRequest,
}
_PROTOBUF: Final = {Signal.METRICS: _metrics, Signal.LOGS: _logs, Signal.TRACES: _traces}


# JSON: integers are numbers or strings, identifiers hexadecimal.


def _json_value(value: dict[str, Any], depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        return None
    for kind, content in value.items():
        if kind == "stringValue":
            return str(content)
        if kind == "intValue":
            return _integer(content)
        if kind == "doubleValue":
            return float(content)
        if kind == "boolValue":
            return bool(content)
        if kind == "arrayValue":
            return [_json_value(item, depth + 1) for item in content.get("values") or ()]
        if kind == "kvlistValue":
            return {item["key"]: _json_value(item["value"], depth + 1) for item in content.get("values") or ()}
        if kind == "bytesValue":
            return str(content)
    return None


def _integer(content: Any) -> int:
    value = int(content)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an integer has more than 64 bits")
    return value


def _json_pairs(attributes: Any) -> dict[str, Any]:
    return {str(item["key"]): _json_value(item.get("value") or {}) for item in attributes or ()}


def _resource(block: dict[str, Any]) -> dict[str, Any]:
    return _json_pairs((block.get("resource") or {}).get("attributes"))


def _json_metrics(tree: Any) -> Iterator[tuple[dict[str, Any], list[Record]]]:
    for block in tree.get("resourceMetrics") or ():
        records = [
            record
            for scope in block.get("scopeMetrics") or ()
            for metric in scope.get("metrics") or ()
            for record in _json_metric(metric)
        ]
        yield _resource(block), records


def _json_metric(metric: dict[str, Any]) -> Iterator[Record]:
    name = str(metric["name"])
    for kind in ("gauge", "sum"):
        for point in (metric.get(kind) or {}).get("dataPoints") or ():
            raw = point.get("asDouble", point.get("asInt"))
            value = None if raw is None else float(raw)
            yield Record(name, int(point.get("timeUnixNano") or 0), value, None, _json_pairs(point.get("attributes")))
    for kind in ("histogram", "exponentialHistogram", "summary"):
        for point in (metric.get(kind) or {}).get("dataPoints") or ():
            attributes = _json_pairs(point.get("attributes"))
            count, total = int(point.get("count") or 0), float(point.get("sum") or 0.0)
            attributes["count"], attributes["sum"] = count, total
            if kind == "histogram":
                attributes["bounds"] = [float(bound) for bound in point.get("explicitBounds") or ()]
                attributes["buckets"] = [int(number) for number in point.get("bucketCounts") or ()]
            elif kind == "summary":
                attributes["quantiles"] = {
                    str(item.get("quantile", 0)): item.get("value") for item in point.get("quantileValues") or ()
                }
            mean = total / count if count else None
            yield Record(name, int(point.get("timeUnixNano") or 0), mean, None, attributes)


def _json_logs(tree: Any) -> Iterator[tuple[dict[str, Any], list[Record]]]:
    for block in tree.get("resourceLogs") or ():
        records = [_json_log(log) for scope in block.get("scopeLogs") or () for log in scope.get("logRecords") or ()]
        yield _resource(block), records


def _json_log(log: dict[str, Any]) -> Record:
    attributes = _json_pairs(log.get("attributes"))
    if log.get("severityNumber"):
        attributes["severity_number"] = log["severityNumber"]
    if log.get("traceId"):
        attributes["trace_id"], attributes["span_id"] = str(log["traceId"]), str(log.get("spanId") or "")
    body = _json_value(log.get("body") or {})
    text = body if body is None or isinstance(body, str) else orjson.dumps(body).decode()
    name = log.get("eventName") or attributes.get("event.name") or "log"
    time = int(log.get("timeUnixNano") or 0) or int(log.get("observedTimeUnixNano") or 0)
    return Record(str(name), time, None, text, attributes)


def _json_traces(tree: Any) -> Iterator[tuple[dict[str, Any], list[Record]]]:
    for block in tree.get("resourceSpans") or ():
        records = [_json_span(span) for scope in block.get("scopeSpans") or () for span in scope.get("spans") or ()]
        yield _resource(block), records


def _json_span(span: dict[str, Any]) -> Record:
    attributes = _json_pairs(span.get("attributes"))
    attributes["trace_id"], attributes["span_id"] = str(span.get("traceId") or ""), str(span.get("spanId") or "")
    if span.get("parentSpanId"):
        attributes["parent_span_id"] = str(span["parentSpanId"])
    status = span.get("status") or {}
    if status.get("code"):
        attributes["status_code"] = status["code"]
    if span.get("events"):
        attributes["events"] = [
            {
                "name": str(event.get("name") or ""),
                "time": int(event.get("timeUnixNano") or 0),
                **_json_pairs(event.get("attributes")),
            }
            for event in span["events"]
        ]
    start, end = int(span.get("startTimeUnixNano") or 0), int(span.get("endTimeUnixNano") or 0)
    return Record(str(span.get("name") or ""), start, (end - start) / 1e6, status.get("message") or None, attributes)


_JSON: Final = {Signal.METRICS: _json_metrics, Signal.LOGS: _json_logs, Signal.TRACES: _json_traces}
