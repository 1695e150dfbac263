"""Reads export requests into plain records: protobuf and JSON; metrics, logs and traces. Pure.

A `Block` is one resource with its records; a record's attributes are a dictionary of JSON values. Other OTLP fields
of the record, its scope or its metric that have no column become attributes too.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ingero_echo.request_limits import check_body, check_message, check_tree
from ingero_kit.otlp_repair import LOGS, METRICS, TRACES, Repaired, read_json, repair
from ingero_kit.otlp_signal import Encoding, Signal
from ingero_kit.otlp_values import json_double, json_integer, json_list, json_number

MAX_DEPTH: Final = 16
"""Levels of lists and maps inside one attribute; deeper ones are cut."""


class MalformedRequest(Exception):
    """The request as a whole cannot be read; the text says why."""


class Record(NamedTuple):
    """One data point, log record or span. `time` is nanoseconds since the epoch, 0 when not given."""

    name: str
    time: int
    value: float | None
    message: str | None
    attributes: dict[str, Any]


class UnreadableRecord(NamedTuple):
    """A record that cannot be read, and why; the other records of the request are read."""

    reason: str


class Origin(NamedTuple):
    """Data shared by records: the metric they are points of, empty for others, and their scope, encoded."""

    name: str = ""
    scope: bytes = b""
    unit: str = ""
    temporality: int = 0
    monotonic: bool = False


class Block(NamedTuple):
    """One resource: its attributes and its records."""

    resource: dict[str, Any]
    records: Sequence[Record | UnreadableRecord]


def read_request(signal: Signal, encoding: Encoding, body: bytes) -> tuple[list[Block], Repaired]:
    """Read a whole request; also returns what had to be left out.

    Raises `DecodeError` for protobuf that has to be repaired, `MalformedRequest`, or `RequestTooExpensive`.
    """
    check_body(body, encoding)
    if encoding == "protobuf":
        message = _MESSAGES[signal].FromString(body)
        check_message(signal, message)
        return [Block(*block) for block in _PROTOBUF[signal](message)], Repaired()
    try:
        tree, repaired = read_json(body)
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"the body is not JSON: {error}") from None
    check_tree(signal, tree)
    try:
        return [Block(*block) for block in _json_blocks(signal, tree)], repaired or Repaired()
    except _JSON_ERRORS as error:
        raise MalformedRequest(
            f"the body is not OTLP/JSON {signal.name.lower()}: {type(error).__name__}: {error}"
        ) from None


def read_repaired(signal: Signal, body: bytes) -> tuple[list[Block], Repaired]:
    """Read the readable parts of a protobuf request that fails as a whole.

    Raises `MalformedRequest` or `RequestTooExpensive`.
    """
    check_body(body, "protobuf")
    found = repair(_KINDS[signal], body)
    if found is None:
        raise MalformedRequest(f"the body is not an OTLP export request for {signal.name.lower()} in protobuf")
    blocks, _ = read_request(signal, "protobuf", found.body)
    return blocks, found


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


Common = Mapping[str, Any]
"""Attributes that a scope or a metric adds to each of its records."""

_TEMPORALITIES: Final = {1: "delta", 2: "cumulative"}


def common(origin: Origin) -> Common:
    """The attributes that scope and metric add to each record. Raises `DecodeError`."""
    if not any(origin[1:]):
        return {}
    return {**encoded_scope(origin.scope), **_metric_attributes(origin.unit, origin.temporality, origin.monotonic)}


@lru_cache(maxsize=64)
def encoded_scope(scope: bytes) -> Common:
    """The attributes of an encoded scope. Raises `DecodeError`."""
    return _scope(InstrumentationScope.FromString(scope))


def _scope(scope: Any) -> dict[str, Any]:
    if not scope.ByteSize():
        return {}
    return _scope_attributes(scope.name, scope.version, pairs(scope.attributes))


def _scope_attributes(name: str, version: str, attributes: dict[str, Any]) -> dict[str, Any]:
    facts = {"otel.scope.name": name, "otel.scope.version": version, "otel.scope.attributes": attributes}
    return {key: value for key, value in facts.items() if value}


def _metric_attributes(unit: str, temporality: int, monotonic: bool) -> dict[str, Any]:
    facts = {
        "metric.unit": unit, "metric.temporality": _TEMPORALITIES.get(temporality), "metric.monotonic": monotonic
    }  # fmt: skip
    return {key: value for key, value in facts.items() if value}


def _metrics(message: Any) -> Iterator[tuple[dict[str, Any], list[Record]]]:
    for block in message.resource_metrics:
        records = [
            record
            for scope in block.scope_metrics
            for shared in (_scope(scope.scope),)
            for metric in scope.metrics
            for record in _metric(metric, shared)
        ]
        yield pairs(block.resource.attributes), records


def _metric(metric: Any, scope: Common) -> Iterator[Record]:
    name, kind = metric.name, metric.WhichOneof("data")
    if not kind:
        return
    data, shared = getattr(metric, kind), scope
    summed = kind not in ("gauge", "summary")
    if metric.unit or summed:
        temporality = data.aggregation_temporality if summed else 0
        shared = {**scope, **_metric_attributes(metric.unit, temporality, kind == "sum" and data.is_monotonic)}
    for point in data.data_points:
        if kind in ("gauge", "sum"):
            yield number_point(name, point, shared)
            continue
        attributes = {**pairs(point.attributes), **shared, "count": point.count, "sum": point.sum}
        if kind == "summary":
            attributes["quantiles"] = {str(item.quantile): item.value for item in point.quantile_values}
        else:
            attributes |= {side: getattr(point, side) for side in ("min", "max") if point.HasField(side)}
        if kind == "histogram":
            attributes["bounds"], attributes["buckets"] = list(point.explicit_bounds), list(point.bucket_counts)
        elif kind == "exponential_histogram":
            attributes |= {"scale": point.scale, "zero_count": point.zero_count}
            attributes |= {
                side: {"offset": buckets.offset, "buckets": list(buckets.bucket_counts)}
                for side in ("positive", "negative")
                if (buckets := getattr(point, side)).bucket_counts
            }
        mean = point.sum / point.count if point.count else None
        yield Record(name, point.time_unix_nano, mean, None, attributes)


def number_point(name: str, point: Any, shared: Common) -> Record:
    """One protobuf data point of a gauge or sum."""
    which = point.WhichOneof("value")
    value = float(getattr(point, which)) if which else None
    attributes = pairs(point.attributes)
    if shared:
        attributes |= shared
    return Record(name, point.time_unix_nano, value, None, attributes)


def _logs(message: Any) -> Iterator[tuple[dict[str, Any], list[Record]]]:
    for block in message.resource_logs:
        records = [
            log_record(log, shared)
            for scope in block.scope_logs
            for shared in (_scope(scope.scope),)
            for log in scope.log_records
        ]
        yield pairs(block.resource.attributes), records


def log_record(log: Any, shared: Common) -> Record:
    """One protobuf log record."""
    attributes = pairs(log.attributes)
    if shared:
        attributes |= shared
    if log.severity_number:
        attributes["severity_number"] = log.severity_number
    if log.severity_text:
        attributes["severity_text"] = log.severity_text
    if log.trace_id or log.span_id:
        attributes["trace_id"], attributes["span_id"] = log.trace_id.hex(), log.span_id.hex()
    body = _value(log.body)
    text = body if body is None or isinstance(body, str) else orjson.dumps(body).decode()
    name = log.event_name or attributes.get("event.name") or "log"
    return Record(str(name), log.time_unix_nano or log.observed_time_unix_nano, None, text, attributes)


def _traces(message: Any) -> Iterator[tuple[dict[str, Any], list[Record]]]:
    for block in message.resource_spans:
        records = [
            _span(span, shared)
            for scope in block.scope_spans
            for shared in (_scope(scope.scope),)
            for span in scope.spans
        ]
        yield pairs(block.resource.attributes), records


def _span(span: Any, shared: Common) -> Record:
    attributes = {**pairs(span.attributes), **shared}
    attributes["trace_id"], attributes["span_id"] = span.trace_id.hex(), span.span_id.hex()
    facts = {
        "parent_span_id": span.parent_span_id.hex(), "trace_state": span.trace_state, "span_kind": span.kind,
        "status_code": span.status.code,
        "events": [
            {"name": event.name, "time": event.time_unix_nano, **pairs(event.attributes)} for event in span.events
        ],
        "links": [
            {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex(), **pairs(link.attributes)}
            for link in span.links
        ],
    }  # fmt: skip
    attributes |= {key: value for key, value in facts.items() if value}
    milliseconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
    return Record(span.name, span.start_time_unix_nano, milliseconds, span.status.message or None, attributes)


_MESSAGES: Final[dict[Signal, Any]] = {
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
    Signal.TRACES: ExportTraceServiceRequest,
}
_KINDS: Final = {Signal.METRICS: METRICS, Signal.LOGS: LOGS, Signal.TRACES: TRACES}
_PROTOBUF: Final = {Signal.METRICS: _metrics, Signal.LOGS: _logs, Signal.TRACES: _traces}


# JSON: integers are numbers or strings, identifiers hexadecimal. A field of another type rejects its record.


def _json_value(value: dict[str, Any], depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        return None
    for kind, content in value.items():
        if kind in ("stringValue", "bytesValue"):
            return _json_text(content)
        if kind == "intValue":
            return _integer(content)
        if kind == "doubleValue":
            return json_double(content)
        if kind == "boolValue":
            return _flag(content)
        if kind == "arrayValue":
            return [_json_value(item, depth + 1) for item in json_list(content.get("values"))]
        if kind == "kvlistValue":
            return {
                _json_text(item["key"]): _json_value(_json_object(item.get("value")), depth + 1)
                for item in json_list(content.get("values"))
            }
    return None


def _json_object(content: Any) -> dict[str, Any]:
    """An object, empty where none is given."""
    if not isinstance(content, dict | None):
        raise ValueError("a value is not an object")
    return content or {}


def _json_text(content: Any) -> str:
    """A string, empty where none is given."""
    if not isinstance(content, str | None):
        raise ValueError("a value is not a string")
    return content or ""


def _flag(content: Any) -> bool:
    """A truth value, false where none is given."""
    if not isinstance(content, bool | None):
        raise ValueError("a value is not true or false")
    return bool(content)


def _integer(content: Any) -> int:
    """A signed integer, 0 where none is given."""
    value = 0 if content is None else json_integer(content)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an integer has more than 64 bits")
    return value


def _count(content: Any) -> int:
    """A time or a count, 0 where none is given."""
    value = 0 if content is None else json_integer(content)
    if not 0 <= value < 1 << 64:
        raise ValueError("a count has more than 64 bits, or is negative")
    return value


def _double(content: Any) -> float:
    """A double, 0 where none is given."""
    return 0.0 if content is None else json_double(content)


def _number(kind: Any, content: Any) -> int:
    """The number of an enumeration's value, which may be given by its name."""
    if isinstance(content, str) and not content.lstrip("-").isdigit():
        return int(kind.Value(content))
    return _integer(content)


def _json_pairs(attributes: Any) -> dict[str, Any]:
    return {_json_text(item["key"]): _json_value(_json_object(item.get("value"))) for item in json_list(attributes)}


def _json_scope(scope: dict[str, Any]) -> Common:
    found = _json_object(scope.get("scope"))
    return _scope_attributes(
        _json_text(found.get("name")), _json_text(found.get("version")), _json_pairs(found.get("attributes"))
    )


_JSON_ERRORS: Final = (AttributeError, TypeError, ValueError, KeyError, IndexError, OverflowError)
"""Errors that invalid records raise."""


def _unreadable(error: Exception) -> UnreadableRecord:
    return UnreadableRecord(f"it is not OTLP/JSON: {type(error).__name__}: {error}"[:200])


def _json_records(items: Any, read_record: Callable[..., Record], *more: Any) -> Iterator[Record | UnreadableRecord]:
    """Every record that can be read, and why another cannot."""
    for item in json_list(items):
        try:
            yield read_record(item, *more)
        except _JSON_ERRORS as error:
            yield _unreadable(error)


def _json_parts(
    items: Any, read_record: Callable[..., Iterator[Record | UnreadableRecord]], *more: Any
) -> Iterator[Record | UnreadableRecord]:
    """The records of every scope or metric; one that cannot be read counts as one record."""
    for item in json_list(items):
        try:
            yield from list(read_record(item, *more))
        except _JSON_ERRORS as error:
            yield _unreadable(error)


def _json_blocks(signal: Signal, tree: Any) -> Iterator[tuple[dict[str, Any], list[Record | UnreadableRecord]]]:
    blocks, scopes, read_scope = _JSON[signal]
    for block in json_list(tree.get(blocks)):
        try:
            resource = _json_pairs(_json_object(block.get("resource")).get("attributes"))
            yield resource, list(_json_parts(block.get(scopes), read_scope))
        except _JSON_ERRORS as error:
            yield {}, [_unreadable(error)]


def _json_metrics(scope: dict[str, Any]) -> Iterator[Record | UnreadableRecord]:
    return _json_parts(scope.get("metrics"), _json_metric, _json_scope(scope))


_METRIC_KINDS: Final = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")


def _json_metric(metric: dict[str, Any], scope: Common) -> Iterator[Record | UnreadableRecord]:
    for kind in _METRIC_KINDS:
        data = _json_object(metric.get(kind))
        yield from _json_records(data.get("dataPoints"), _json_point, metric, kind, data, scope)


def _json_point(
    point: dict[str, Any], metric: dict[str, Any], kind: str, data: dict[str, Any], scope: Common
) -> Record:
    name = _json_text(metric["name"])
    temporality = _number(AggregationTemporality, data.get("aggregationTemporality"))
    facts = _metric_attributes(_json_text(metric.get("unit")), temporality, _flag(data.get("isMonotonic")))
    time = _count(point.get("timeUnixNano"))
    attributes = {**_json_pairs(point.get("attributes")), **scope, **facts}
    if kind in ("gauge", "sum"):
        return Record(name, time, json_number(point), None, attributes)
    count, total = _count(point.get("count")), _double(point.get("sum"))
    attributes |= {"count": count, "sum": total}
    if kind == "summary":
        attributes["quantiles"] = {
            str(_double(item.get("quantile"))): _double(item.get("value"))
            for item in json_list(point.get("quantileValues"))
        }
    else:
        attributes |= {side: json_double(point[side]) for side in ("min", "max") if point.get(side) is not None}
    if kind == "histogram":
        attributes["bounds"] = [json_double(bound) for bound in json_list(point.get("explicitBounds"))]
        attributes["buckets"] = [_count(number) for number in json_list(point.get("bucketCounts"))]
    elif kind == "exponentialHistogram":
        attributes |= {"scale": _integer(point.get("scale")), "zero_count": _count(point.get("zeroCount"))}
        for side in ("positive", "negative"):
            buckets = _json_object(point.get(side))
            counts = [_count(number) for number in json_list(buckets.get("bucketCounts"))]
            if counts:
                attributes[side] = {"offset": _integer(buckets.get("offset")), "buckets": counts}
    return Record(name, time, total / count if count else None, None, attributes)


def _json_logs(scope: dict[str, Any]) -> Iterator[Record | UnreadableRecord]:
    return _json_records(scope.get("logRecords"), _json_log, _json_scope(scope))


def _json_log(log: dict[str, Any], shared: Common) -> Record:
    attributes = {**_json_pairs(log.get("attributes")), **shared}
    if severity := _number(SeverityNumber, log.get("severityNumber")):
        attributes["severity_number"] = severity
    if log.get("severityText"):
        attributes["severity_text"] = _json_text(log["severityText"])
    if log.get("traceId") or log.get("spanId"):
        attributes["trace_id"], attributes["span_id"] = _json_text(log.get("traceId")), _json_text(log.get("spanId"))
    body = _json_value(_json_object(log.get("body")))
    text = body if body is None or isinstance(body, str) else orjson.dumps(body).decode()
    name = log.get("eventName") or attributes.get("event.name") or "log"
    time = _count(log.get("timeUnixNano")) or _count(log.get("observedTimeUnixNano"))
    return Record(str(name), time, None, text, attributes)


def _json_spans(scope: dict[str, Any]) -> Iterator[Record | UnreadableRecord]:
    return _json_records(scope.get("spans"), _json_span, _json_scope(scope))


def _json_span(span: dict[str, Any], shared: Common) -> Record:
    attributes = {**_json_pairs(span.get("attributes")), **shared}
    attributes["trace_id"], attributes["span_id"] = _json_text(span.get("traceId")), _json_text(span.get("spanId"))
    status = _json_object(span.get("status"))
    facts = {
        "parent_span_id": _json_text(span.get("parentSpanId")), "trace_state": _json_text(span.get("traceState")),
        "span_kind": _number(Span.SpanKind, span.get("kind")),
        "status_code": _number(Status.StatusCode, status.get("code")),
        "events": [
            {
                "name": _json_text(event.get("name")), "time": _count(event.get("timeUnixNano")),
                **_json_pairs(event.get("attributes")),
            }
            for event in json_list(span.get("events"))
        ],
        "links": [
            {
                "trace_id": _json_text(link.get("traceId")), "span_id": _json_text(link.get("spanId")),
                **_json_pairs(link.get("attributes")),
            }
            for link in json_list(span.get("links"))
        ],
    }  # fmt: skip
    attributes |= {key: value for key, value in facts.items() if value}
    start, end = _count(span.get("startTimeUnixNano")), _count(span.get("endTimeUnixNano"))
    message = _json_text(status.get("message")) or None
    return Record(_json_text(span.get("name")), start, (end - start) / 1e6, message, attributes)


_JSON: Final[dict[Signal, tuple[str, str, Callable[[dict[str, Any]], Iterator[Record | UnreadableRecord]]]]] = {
    Signal.METRICS: ("resourceMetrics", "scopeMetrics", _json_metrics),
    Signal.LOGS: ("resourceLogs", "scopeLogs", _json_logs),
    Signal.TRACES: ("resourceSpans", "scopeSpans", _json_spans),
}
