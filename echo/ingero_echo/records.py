"""Reads export requests into plain records: protobuf and JSON; metrics, logs and traces. Pure.

A `Block` is one resource with its records; a record's attributes are a dictionary of JSON values. Other OTLP fields
of the record, its scope or its metric that have no column become attributes too.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope

from ingero_echo.request_limits import (
    BUCKETS_PER_UNIT,
    MAX_MESSAGES,
    NESTED,
    RequestBudget,
    check_body,
    check_message,
)
from ingero_kit.otlp_json import LEVELS, REQUESTS, encode_tree
from ingero_kit.otlp_repair import LOGS, METRICS, TRACES, Repaired, read_json, repair
from ingero_kit.otlp_signal import Signal

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


class Origin(NamedTuple):
    """Data shared by records: the metric they are points of, empty for others, and their scope, encoded."""

    name: str = ""
    scope: bytes = b""
    unit: str = ""
    temporality: int = 0
    monotonic: bool = False


class Block(NamedTuple):
    """One resource: its attributes and its records; `None` stands for a record that cannot be read."""

    resource: dict[str, Any]
    records: Sequence[Record | None]


def from_json(signal: Signal, body: bytes) -> tuple[bytes, Repaired]:
    """A JSON request in protobuf, and what had to be left out. Raises `MalformedRequest` or `RequestTooExpensive`."""
    check_body(body, "json")
    try:
        tree, repaired = read_json(body)
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"the body is not JSON: {error}") from None
    try:
        encoded, unreadable = encode_tree(signal, tree, MAX_MESSAGES)
    except ValueError as error:
        raise MalformedRequest(str(error)) from None
    repaired = repaired or Repaired()
    repaired.records += unreadable.total()
    repaired.reasons |= unreadable
    return encoded, repaired


def read_request(signal: Signal, body: bytes, budget: RequestBudget) -> list[Block]:
    """Read a whole request. Raises `DecodeError` for one that has to be repaired, or `RequestTooExpensive`."""
    check_body(body, "protobuf")
    message = REQUESTS[signal].FromString(body)
    check_message(signal, message, budget)
    return _blocks(signal, message, budget)


def read_repaired(signal: Signal, body: bytes, budget: RequestBudget) -> tuple[list[Block], Repaired]:
    """Read the readable parts of a protobuf request that fails as a whole.

    Raises `MalformedRequest` or `RequestTooExpensive`.
    """
    check_body(body, "protobuf")
    found = repair(_KINDS[signal], body)
    if found is None:
        raise MalformedRequest(f"the body is not an OTLP export request for {signal.name.lower()} in protobuf")
    return read_request(signal, found.body, budget), found


# Protobuf.


def _value(value: Any, budget: RequestBudget, depth: int = 0) -> Any:
    kind = value.WhichOneof("value")
    if kind is None or depth > MAX_DEPTH:
        return None
    if kind == "array_value":
        items = value.array_value.values
        budget.spend(len(items))
        return [_value(item, budget, depth + 1) for item in items]
    if kind == "kvlist_value":
        items = value.kvlist_value.values
        budget.spend(len(items))
        return {item.key: _value(item.value, budget, depth + 1) for item in items}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, kind)


def pairs(attributes: Sequence[Any], budget: RequestBudget) -> dict[str, Any]:
    """Protobuf attributes as a dictionary. Raises `RequestTooExpensive`."""
    budget.spend(len(attributes))
    return {item.key: (value := item.value).string_value or _value(value, budget) for item in attributes}


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
    return _scope(InstrumentationScope.FromString(scope), RequestBudget())


def _scope(scope: Any, budget: RequestBudget) -> dict[str, Any]:
    if not scope.ByteSize():
        return {}
    return _scope_attributes(scope.name, scope.version, pairs(scope.attributes, budget))


def _scope_attributes(name: str, version: str, attributes: dict[str, Any]) -> dict[str, Any]:
    facts = {"otel.scope.name": name, "otel.scope.version": version, "otel.scope.attributes": attributes}
    return {key: value for key, value in facts.items() if value}


def _metric_attributes(unit: str, temporality: int, monotonic: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"metric.unit": unit} if unit else {}
    if temporality in _TEMPORALITIES:
        facts["metric.temporality"] = _TEMPORALITIES[temporality]
    if monotonic:
        facts["metric.monotonic"] = monotonic
    return facts


def _metric(metric: Any, scope: Common, budget: RequestBudget) -> Iterator[Record]:
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
            yield number_point(name, point, shared, budget)
            continue
        attributes = {**pairs(point.attributes, budget), **shared, "count": point.count, "sum": point.sum}
        if kind == "summary":
            budget.spend(NESTED * len(point.quantile_values))
            attributes["quantiles"] = {str(item.quantile): item.value for item in point.quantile_values}
        else:
            attributes |= {side: getattr(point, side) for side in ("min", "max") if point.HasField(side)}
        if kind == "histogram":
            budget.spend((len(point.explicit_bounds) + len(point.bucket_counts)) // BUCKETS_PER_UNIT)
            attributes["bounds"], attributes["buckets"] = list(point.explicit_bounds), list(point.bucket_counts)
        elif kind == "exponential_histogram":
            budget.spend((len(point.positive.bucket_counts) + len(point.negative.bucket_counts)) // BUCKETS_PER_UNIT)
            attributes |= {"scale": point.scale, "zero_count": point.zero_count}
            attributes |= {
                side: {"offset": buckets.offset, "buckets": list(buckets.bucket_counts)}
                for side in ("positive", "negative")
                if (buckets := getattr(point, side)).bucket_counts
            }
        mean = point.sum / point.count if point.count else None
        yield Record(name, point.time_unix_nano, mean, None, attributes)


def number_point(name: str, point: Any, shared: Common, budget: RequestBudget) -> Record:
    """One protobuf data point of a gauge or sum."""
    which = point.WhichOneof("value")
    value = float(getattr(point, which)) if which else None
    attributes = pairs(point.attributes, budget)
    if shared:
        attributes |= shared
    return Record(name, point.time_unix_nano, value, None, attributes)


def log_record(log: Any, shared: Common, budget: RequestBudget) -> Record:
    """One protobuf log record."""
    attributes = pairs(log.attributes, budget)
    if shared:
        attributes |= shared
    if log.severity_number:
        attributes["severity_number"] = log.severity_number
    if log.severity_text:
        attributes["severity_text"] = log.severity_text
    if log.trace_id or log.span_id:
        attributes["trace_id"], attributes["span_id"] = log.trace_id.hex(), log.span_id.hex()
    body = _value(log.body, budget)
    text = body if body is None or isinstance(body, str) else orjson.dumps(body).decode()
    name = log.event_name or attributes.get("event.name") or "log"
    return Record(str(name), log.time_unix_nano or log.observed_time_unix_nano, None, text, attributes)


def _span(span: Any, shared: Common, budget: RequestBudget) -> Record:
    attributes = {**pairs(span.attributes, budget), **shared}
    budget.spend(NESTED * (len(span.events) + len(span.links)))
    attributes["trace_id"], attributes["span_id"] = span.trace_id.hex(), span.span_id.hex()
    facts = {
        "parent_span_id": span.parent_span_id.hex(), "trace_state": span.trace_state, "span_kind": span.kind,
        "status_code": span.status.code,
    }  # fmt: skip
    attributes |= {key: value for key, value in facts.items() if value}
    if span.events:
        attributes["events"] = [
            {"name": event.name, "time": event.time_unix_nano, **pairs(event.attributes, budget)}
            for event in span.events
        ]
    if span.links:
        attributes["links"] = [
            {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex(), **pairs(link.attributes, budget)}
            for link in span.links
        ]
    milliseconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
    return Record(span.name, span.start_time_unix_nano, milliseconds, span.status.message or None, attributes)


_KINDS: Final = {Signal.METRICS: METRICS, Signal.LOGS: LOGS, Signal.TRACES: TRACES}
_READERS: Final[dict[Signal, Callable[[Any, Common, RequestBudget], Iterable[Record]]]] = {
    Signal.METRICS: _metric,
    Signal.LOGS: lambda log, shared, budget: (log_record(log, shared, budget),),
    Signal.TRACES: lambda span, shared, budget: (_span(span, shared, budget),),
}


def _blocks(signal: Signal, message: Any, budget: RequestBudget) -> list[Block]:
    (blocks, scopes, items), read = LEVELS[signal], _READERS[signal]
    return [
        Block(
            pairs(block.resource.attributes, budget),
            [
                record
                for scope in getattr(block, scopes)
                for shared in (_scope(scope.scope, budget),)
                for item in getattr(scope, items)
                for record in read(item, shared, budget)
            ],
        )
        for block in getattr(message, blocks)
    ]
