"""Checks, converts to protobuf and halves OTLP requests that Fleet passes on without reading. Pure."""

from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ingero_kit.otlp_json import LEVELS, REQUESTS, read_tree
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_repair import LOGS, METRICS, TRACES, Repaired, read_json, repair
from ingero_kit.otlp_signal import Signal

UNREADABLE: Final = "a record is not OTLP in JSON"
"""Why a record was left out."""

_KINDS: Final = {Signal.METRICS: METRICS, Signal.LOGS: LOGS, Signal.TRACES: TRACES}
_RESPONSES: Final[dict[Signal, tuple[Any, str]]] = {
    Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points"),
    Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records"),
    Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans"),
}


def as_protobuf(push: Push) -> Repaired:
    """The readable part of a push as a protobuf request, and what was left out. Raises `ValueError` if none is."""
    if push.encoding == "json":
        return _from_json(push)
    try:
        _read(push.signal, push.body)
        return Repaired(push.body)
    except ValueError as error:
        repaired = repair(_KINDS[push.signal], push.body)
        if repaired is None:
            raise ValueError(f"not an OTLP {push.signal.name.lower()} request: {error}") from None
        return repaired


def _from_json(push: Push) -> Repaired:
    tree, repaired = read_json(push.body)
    request, unreadable = read_tree(push.signal, tree)
    found = repaired or Repaired()
    found.body = request.SerializeToString()
    if unreadable:
        found.records, found.reasons[UNREADABLE] = unreadable.total(), unreadable.total()
        if not count_records(push.signal, found.body):
            raise ValueError(f"no record can be read: {next(iter(unreadable))}")
    return found


def rejected(signal: Signal, response: bytes) -> int:
    """How many records a receiver reports as rejected in a successful answer."""
    kind, name = _RESPONSES[signal]
    try:
        return max(0, int(getattr(kind.FromString(response).partial_success, name)))
    except DecodeError:
        return 0


def count_records(signal: Signal, body: bytes) -> int:
    """The number of log records, spans or points in a request. Raises `ValueError` when it is not valid."""
    outer, middle, inner = LEVELS[signal]
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
    for name in LEVELS[signal]:
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
        return REQUESTS[signal].FromString(body)
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
