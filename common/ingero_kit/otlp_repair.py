"""Repairs unreadable requests by keeping their readable parts. The usual cause is a string that is not UTF-8. Pure.

In protobuf the smallest part that fails is left out: a whole data point, log record or span, and of everything else
(a description, one attribute of a resource) only the field. In JSON only the invalid characters are replaced.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.logs.v1 import logs_pb2 as logs
from opentelemetry.proto.metrics.v1 import metrics_pb2 as metrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2 as trace

from ingero_kit.otlp_wire import UnsupportedLayout, iter_fields, write_varint

MAX_PARTS: Final = 12_000
"""Most parts of a request that are parsed singly: the metrics of a batch of 8,192 and the points of one of them."""

SPARE_BYTES: Final = 512 << 10
"""Bytes that may be parsed again, after every byte of the request has been parsed once."""

PIECE: Final = 64 << 10
"""Longest message, bytes, that is parsed as a whole before its parts are."""

RECORD: Final = "a record cannot be read: its strings must be UTF-8"
FIELD: Final = "a field cannot be read: strings must be UTF-8"
BYTES: Final = "bytes that are not UTF-8 were replaced"
SURROGATES: Final = "surrogates without the other half of their pair were replaced"

MAX_JSON_BYTES: Final = 256 << 10
"""Longest JSON request, bytes, that is repaired: replacing every byte of a longer one would take too long."""

_LENGTH: Final = 2


class _MessageType(NamedTuple):
    """A message type: its class, and by field number the inner messages that can be repaired."""

    message: Any
    inner: dict[int, "_MessageType"]
    is_record: bool = False


def _record(message: Any) -> _MessageType:
    return _MessageType(message, {}, is_record=True)


def _points(message: Any, point: Any) -> _MessageType:
    return _MessageType(message, {1: _record(point)})


RESOURCE: Final = _MessageType(Resource, {1: _MessageType(common.KeyValue, {})})


def _request(request: Any, block: Any, scope: Any, inner: _MessageType) -> _MessageType:
    return _MessageType(request, {1: _MessageType(block, {1: RESOURCE, 2: _MessageType(scope, {2: inner})})})


_METRIC: Final = _MessageType(
    metrics.Metric,
    {
        5: _points(metrics.Gauge, metrics.NumberDataPoint),
        7: _points(metrics.Sum, metrics.NumberDataPoint),
        9: _points(metrics.Histogram, metrics.HistogramDataPoint),
        10: _points(metrics.ExponentialHistogram, metrics.ExponentialHistogramDataPoint),
        11: _points(metrics.Summary, metrics.SummaryDataPoint),
    },
)
METRICS: Final = _request(ExportMetricsServiceRequest, metrics.ResourceMetrics, metrics.ScopeMetrics, _METRIC)
LOGS: Final = _request(ExportLogsServiceRequest, logs.ResourceLogs, logs.ScopeLogs, _record(logs.LogRecord))
TRACES: Final = _request(ExportTraceServiceRequest, trace.ResourceSpans, trace.ScopeSpans, _record(trace.Span))


@dataclass
class Repaired:
    """The readable rest of a request, how many records were left out, and what else was left out or replaced.

    `parts`: how many parts were parsed for it.
    """

    body: bytes = b""
    records: int = 0
    parts: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


def repair(kind: _MessageType, body: bytes) -> Repaired | None:
    """Leave unreadable parts out of a request; `None` when nothing is left or there are too many parts."""
    repairing = _Repair(len(body))
    try:
        left = repairing.apart(kind, body)
    except _TooLong:
        return None
    repairing.found.body = left or b""
    repairing.found.parts = MAX_PARTS - repairing.parts
    return repairing.found if left else None


class _TooLong(Exception):
    """There are more parts than may be parsed."""


class _Repair:
    def __init__(self, length: int) -> None:
        self.found = Repaired()
        self.parts, self._bytes = MAX_PARTS, length + SPARE_BYTES

    def _reads(self, kind: _MessageType, body: bytes) -> bool:
        self.parts -= 1
        if kind.inner and len(body) > PIECE:
            return False
        self._bytes -= len(body)
        if self.parts < 0 or self._bytes < 0:
            raise _TooLong
        try:
            kind.message.FromString(body)
        except DecodeError:
            return False
        return True

    def _lose(self, *, record: bool) -> None:
        self.found.records += record
        reason = RECORD if record else FIELD
        self.found.reasons[reason] = self.found.reasons.get(reason, 0) + 1

    def apart(self, kind: _MessageType, body: bytes) -> bytes | None:
        """The readable parts of an unreadable message; `None` when it has no parts."""
        kept: list[bytes] = []
        at = 0
        try:
            for part in iter_fields(body, 0, len(body)):
                whole = body[at : part.end]
                at = part.end
                inner = kind.inner.get(part.number) if part.kind == _LENGTH else None
                content = body[part.start : part.end]
                if self._reads(inner, content) if inner else self._reads(kind, whole):
                    kept.append(whole)
                    continue
                left = self.apart(inner, content) if inner and inner.inner else None
                if inner is None or left is None:
                    self._lose(record=inner is not None and (inner.is_record or bool(inner.inner)))
                else:
                    kept += [write_varint(part.number << 3 | _LENGTH), write_varint(len(left)), left]
        except (UnsupportedLayout, IndexError):
            return None
        return b"".join(kept)


# JSON.

_HALF: Final = rb"u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|[c-fC-F][0-9a-fA-F]{2})"
_OTHER: Final = rb"(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]|(?!%b)[\s\S])[^\\]*+" % _HALF
_ESCAPES: Final = re.compile(rb"\\(?:(%b(?:\\%b){0,999})|%b(?:\\%b){0,999})" % (_HALF, _HALF, _OTHER, _OTHER))
"""A run of unpaired surrogates (group 1), or other escapes and the text after them. A limit bounds the memory of a
match; possessive groups, which need none, match too much in CPython 3.11.2."""

_ESCAPE: Final = len(rb"\ud800")


def read_json(body: bytes) -> tuple[Any, Repaired | None]:
    """A JSON document, and its repaired text if it needed repair; raises `orjson.JSONDecodeError`."""
    try:
        return orjson.loads(body), None
    except orjson.JSONDecodeError:
        found = repair_json(body)
        if found is None:
            raise
        return orjson.loads(found.body), found


def repair_json(body: bytes) -> Repaired | None:
    """Replace invalid characters in a JSON request; `None` if there are none or the request is too long."""
    if len(body) > MAX_JSON_BYTES:
        return None
    reasons: dict[str, int] = {}
    text = body.decode("utf-8", "replace").encode()
    if text != body:
        reasons[BYTES] = 1

    def replaced(found: re.Match[bytes]) -> bytes:
        halves = found[1]
        if not halves:
            return found[0]
        count = (1 + len(halves)) // _ESCAPE
        reasons[SURROGATES] = reasons.get(SURROGATES, 0) + count
        return rb"\ufffd" * count

    text = _ESCAPES.sub(replaced, text)
    return Repaired(text, reasons=reasons) if reasons else None
