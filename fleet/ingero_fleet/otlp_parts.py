"""Checks, converts to protobuf and halves OTLP requests that Fleet passes on without reading. Pure.

Specification: https://opentelemetry.io/docs/specs/otlp/ (trace and span ids in JSON are hexadecimal, not base64).
"""

import base64
import copy
from collections.abc import Iterator
from typing import Any, Final

import orjson
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from pydantic.alias_generators import to_camel

from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal

_REQUESTS: Final[dict[Signal, Any]] = {
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
    Signal.TRACES: ExportTraceServiceRequest,
}
_RESPONSES: Final[dict[Signal, tuple[Any, str]]] = {
    Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points"),
    Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records"),
    Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans"),
}
_LEVELS: Final = {
    Signal.METRICS: ("resource_metrics", "scope_metrics", "metrics"),
    Signal.LOGS: ("resource_logs", "scope_logs", "log_records"),
    Signal.TRACES: ("resource_spans", "scope_spans", "spans"),
}
"""The nested repeated fields of a request, outermost first."""

_ID_BYTES: Final = {"traceId": 16, "spanId": 8, "parentSpanId": 8}
_UNREADABLE: Final = (ParseError, ValueError, TypeError, AttributeError, RecursionError)
"""Errors of protobuf for a document that is not OTLP; some JSON raises Python's own errors."""


def as_protobuf(push: Push) -> bytes:
    """The push as one valid protobuf request. Raises `ValueError` when it is not valid."""
    try:
        if push.encoding == "protobuf":
            _read(push.signal, push.body)
            return push.body
        return from_json(push.signal, push.body)
    except _UNREADABLE as error:
        raise ValueError(f"not an OTLP {push.signal.name.lower()} request: {error}") from None


def from_json(signal: Signal, body: bytes) -> bytes:
    """A request in JSON as protobuf. Raises one of several errors when it cannot be read; see `as_protobuf`."""
    return _converted(signal, _document(body))


def readable_json(signal: Signal, body: bytes) -> tuple[bytes, int]:
    """A request in JSON as protobuf, without the records that cannot be read, and how many those are.

    Every record is converted twice. Raises `ValueError` when nothing can be kept.
    """
    try:
        document = _document(body)
        dropped = kept = 0
        outer, middle, inner = (to_camel(name) for name in _LEVELS[signal])
        for block in _objects(document, outer):
            for scope in _objects(block, middle):
                records = [item for item in scope.get(inner) or () if _readable(signal, item)]
                dropped += len(scope.get(inner) or ()) - len(records)
                kept += len(records)
                scope[inner] = records
        if not kept:
            raise ValueError("no record can be read")
        return _converted(signal, document), dropped
    except _UNREADABLE as error:
        raise ValueError(f"not an OTLP {signal.name.lower()} request: {error}") from None


def _readable(signal: Signal, record: Any) -> bool:
    """Whether a record can be read by itself; the record is not changed."""
    outer, middle, inner = (to_camel(name) for name in _LEVELS[signal])
    try:
        _converted(signal, {outer: [{middle: [{inner: [copy.deepcopy(record)]}]}]})
    except _UNREADABLE:
        return False
    return True


def _document(body: bytes) -> dict[str, Any]:
    document = orjson.loads(body)
    if not isinstance(document, dict):
        raise ValueError("the document is no object")
    return document


def _converted(signal: Signal, document: dict[str, Any]) -> bytes:
    for holder in _with_ids(signal, document):
        for key, size in _ID_BYTES.items():
            value = holder.get(key)
            if value:
                holder[key] = _base64_id(key, value, size)
    return bytes(ParseDict(document, _REQUESTS[signal](), ignore_unknown_fields=True).SerializeToString())


def _base64_id(key: str, value: object, size: int) -> str:
    """A hexadecimal id as the base64 that protobuf's JSON wants for bytes."""
    if not isinstance(value, str) or len(value) != 2 * size:
        raise ValueError(f"{key} is not {2 * size} hexadecimal digits")
    return base64.b64encode(bytes.fromhex(value)).decode()


def _with_ids(signal: Signal, document: Any) -> Iterator[dict[str, Any]]:
    """The objects of a JSON request that may hold trace and span ids."""
    level = [document]
    for name in _LEVELS[signal]:
        level = [inner for outer in level for inner in _objects(outer, to_camel(name))]
    for record in level:
        if signal is not Signal.METRICS:
            yield record
            yield from _objects(record, "links")
            continue
        for data in record.values():
            for point in _objects(data, "dataPoints"):
                yield from _objects(point, "exemplars")


def _objects(outer: Any, key: str) -> list[dict[str, Any]]:
    """The objects in the list of that name, empty where there is none."""
    found = outer.get(key) if isinstance(outer, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def rejected(signal: Signal, response: bytes) -> int:
    """How many records a receiver reports as rejected in a successful answer."""
    kind, name = _RESPONSES[signal]
    try:
        return max(0, int(getattr(kind.FromString(response).partial_success, name)))
    except DecodeError:
        return 0


def count_records(signal: Signal, body: bytes) -> int:
    """The number of log records, spans or points in a request. Raises `ValueError` when it is not valid."""
    outer, middle, inner = _LEVELS[signal]
    request = _read(signal, body)
    found = 0
    for block in getattr(request, outer):
        for scope in getattr(block, middle):
            for record in getattr(scope, inner):
                points = _points(record) if signal is Signal.METRICS else None
                found += len(points) if points is not None else 1
    return found


def halves(signal: Signal, body: bytes) -> tuple[bytes, bytes] | None:
    """Two requests that hold the records of one, cut at the outermost level that holds several.

    `None` when it holds at most one record. Raises `ValueError` when it is not a valid request.
    """
    first = _read(signal, body)
    second = type(first)()
    second.CopyFrom(first)
    place, other = first, second
    for name in _LEVELS[signal]:
        if _cut(getattr(place, name), getattr(other, name)):
            return first.SerializeToString(), second.SerializeToString()
        if not getattr(place, name):
            return None
        place, other = getattr(place, name)[0], getattr(other, name)[0]
    if signal is Signal.METRICS:
        points, twins = _points(place), _points(other)
        if points is not None and _cut(points, twins):
            return first.SerializeToString(), second.SerializeToString()
    return None


def _read(signal: Signal, body: bytes) -> Any:
    try:
        return _REQUESTS[signal].FromString(body)
    except DecodeError as error:
        raise ValueError(str(error)) from None


def _points(metric: Any) -> Any:
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind else None


def _cut(items: Any, twins: Any) -> bool:
    """Keep the first half of one list and the second half of its copy; returns whether there were several items."""
    middle = len(items) // 2
    if middle:
        del items[middle:]
        del twins[:middle]
    return middle > 0
