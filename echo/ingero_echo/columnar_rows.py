"""Adds the records of one shape to a batch, all at once. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Gauge, NumberDataPoint
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ingero_contract import attributes as keys
from ingero_echo import columnar, columns
from ingero_echo.arrays import np, pa
from ingero_echo.dedup import identities, identity_suffix
from ingero_echo.records import Block, Origin, Record, common, log_record, number_point, pairs
from ingero_echo.request_limits import UNGROUPED_RECORD, RequestBudget, check_body
from ingero_echo.row_builder import (
    CHAIN_KEYS,
    FUTURE_NANOSECONDS,
    TYPED,
    RecordContext,
    RequestContext,
    RowBuilder,
)
from ingero_kit.otlp_repair import RESOURCE, Repaired, repair
from ingero_kit.otlp_signal import Signal
from ingero_kit.otlp_wire import UnsupportedLayout, write_varint


def decode_columnar(request: RequestContext, body: bytes) -> Iterator[tuple[Block, list[int]]] | None:
    """Add records of one shape to the batch; returns those that must be read one by one.

    `None` when the request cannot be read this way. Raises `RequestTooExpensive`.
    """
    try:
        resources = columnar.split_records(request.signal, body, request.budget)
    except UnsupportedLayout:
        return None
    found = [_resource(block.resource, request.budget) for block in resources]
    if None in found:
        return None
    left: list[tuple[dict[str, Any], list[columnar.Span]]] = []
    ordinal = 0
    for block, known in zip(resources, filter(None, found), strict=True):
        resource, repaired = known
        request.batch.repaired(repaired)
        groups, rest = columnar.group_records(request.signal, body, block, ordinal)
        ordinal += block.records
        builder = RowBuilder(request, resource)
        for group in groups:
            rest += _columns(builder, group)
        request.budget.spend(UNGROUPED_RECORD * len(rest))
        left.append((resource, sorted(rest)))
    check_body(b"".join(body[span.start : span.end] for _, rest in left for span in rest), "protobuf")
    return iter(
        [
            (
                Block(resource, _parsed(request, [(body[span.start : span.end], span.origin) for span in rest])),
                [span.ordinal for span in rest],
            )
            for resource, rest in left
        ]
    )


def _resource(encoded: bytes, budget: RequestBudget) -> tuple[dict[str, Any], Repaired] | None:
    """The attributes of a resource without those that cannot be read; `None` when none can be read."""
    check_body(encoded, "protobuf")
    try:
        return pairs(Resource.FromString(encoded).attributes, budget), Repaired()
    except DecodeError:
        repaired = repair(RESOURCE, encoded)
        return (pairs(Resource.FromString(repaired.body).attributes, budget), repaired) if repaired else None


def _parse(request: RequestContext, record: bytes, origin: Origin) -> Record:
    return _record(request, _SCOPES[request.signal].record.FromString(record), origin)


def _record(request: RequestContext, parsed: Any, origin: Origin) -> Record:
    if request.signal is Signal.LOGS:
        return log_record(parsed, common(origin), request.budget)
    return number_point(origin.name, parsed, common(origin), request.budget)


def _parsed(request: RequestContext, records: list[tuple[bytes, Origin]]) -> list[Record | None]:
    """These records, parsed at once if all can be read; `None` for one that cannot."""
    if not records:
        return []
    scope = _SCOPES[request.signal]
    parts = [part for record, _ in records for part in (scope.tag, write_varint(len(record)), record)]
    try:
        parsed = getattr(scope.message.FromString(b"".join(parts)), scope.field)
    except DecodeError:
        return [_parsed_alone(request, *record) for record in records]
    return [_record(request, one, origin) for one, (_, origin) in zip(parsed, records, strict=True)]


def _parsed_alone(request: RequestContext, record: bytes, origin: Origin) -> Record | None:
    try:
        return _parse(request, record, origin)
    except DecodeError:
        return None


class _Scope(NamedTuple):
    """A message that holds records, the tag and the field of these, and their type."""

    message: Any
    tag: bytes
    field: str
    record: Any


_SCOPES: Final = {
    Signal.LOGS: _Scope(ScopeLogs, b"\x12", "log_records", LogRecord),
    Signal.METRICS: _Scope(Gauge, b"\x0a", "data_points", NumberDataPoint),
}


def _columns(builder: RowBuilder, group: columnar.RecordGroup) -> list[columnar.Span]:
    """Add the rows of a group; returns the records to check one by one, for instance because of their time."""
    request = builder.request
    try:
        check_body(group.template, "protobuf")
        record = _parse(request, group.template, group.origin)
        moment = group.find("time")
        if moment is None or record.name in TYPED:
            raise UnsupportedLayout
        times = group.integers(moment)
        good = (times > 0) & (times <= request.now + FUTURE_NANOSECONDS) & (times >= request.oldest)
        if not good.all():
            raise UnsupportedLayout
        contexts, which = _contexts(builder, group, record)
        ids = _ids(request, group, record)
        arrays = _arrays(request, builder.resource, group, record, ids, times, contexts, which)
    except (UnsupportedLayout, DecodeError):
        fit, odd = group.readable()
        return odd + _columns(builder, fit) if fit and odd else group.spans()
    kinds = [identity_suffix(record.name, context.cluster) for context in contexts]
    request.batch.identities += identities(ids, map(kinds.__getitem__, which.tolist()))
    rows = pa.RecordBatch.from_arrays(arrays, schema=columns.schema("events"))
    request.batch.tables.setdefault("events", []).append(rows)
    return []


def _contexts(
    builder: RowBuilder, group: columnar.RecordGroup, record: Record
) -> tuple[list[RecordContext], np.ndarray[Any, np.dtype[np.int32]]]:
    """The distinct contexts of a group's records, and which one each record has."""
    own = (keys.EVENT_ID, CHAIN_KEYS[0])
    deciding = [place for place in group.variable_fields if place.kind in ("text", "other") and place.key not in own]
    which = np.zeros(len(group.ordinals), dtype=np.int32)
    varying = [place for place in deciding if not group.is_constant(place)]
    if not varying:
        return [_context(builder, record)], which
    blob = np.concatenate([group.column(place) for place in varying], axis=1)
    width, joined = blob.shape[1], blob.tobytes()
    known: dict[bytes, int] = {}
    firsts: list[int] = []
    for row in range(len(group.ordinals)):
        index = known.setdefault(joined[row * width : (row + 1) * width], len(known))
        if index == len(firsts):
            firsts.append(row)
        which[row] = index
    if len(firsts) > len(group.ordinals) // 4:
        raise UnsupportedLayout
    found = [_context(builder, _parse(builder.request, group.matrix[row].tobytes(), group.origin)) for row in firsts]
    return found, which


def _context(builder: RowBuilder, record: Record) -> RecordContext:
    attributes = {key: value for key, value in record.attributes.items() if key != keys.EVENT_ID}
    record = record._replace(attributes=attributes)
    context = builder.record_context(record, builder.place_of(record))
    if isinstance(context, str):
        raise UnsupportedLayout
    return context


def _ids(request: RequestContext, group: columnar.RecordGroup, record: Record) -> bytes:
    if keys.EVENT_ID in record.attributes:
        place = group.find("text", keys.EVENT_ID)
        if place is None:
            raise UnsupportedLayout
        return columnar.uuid_bytes(group.column(place))
    ids = np.empty((len(group.ordinals), 16), dtype=np.uint8)
    ids[:, :8] = np.frombuffer(request.digest(), dtype=np.uint8)
    ids[:, 8:] = group.ordinals.astype(">u8").view(np.uint8).reshape(-1, 8)
    return ids.tobytes()


def _arrays(
    request: RequestContext,
    resource: dict[str, Any],
    group: columnar.RecordGroup,
    record: Record,
    ids: bytes,
    times: np.ndarray[Any, np.dtype[np.int64]],
    contexts: list[RecordContext],
    which: np.ndarray[Any, np.dtype[np.int32]],
) -> list[pa.Array]:
    count, schema = len(group.ordinals), columns.schema("events")

    def same(name: str, value: Any) -> pa.Array:
        return pa.repeat(pa.scalar(value, schema.field(name).type), count)

    def by_context(name: str, values: list[Any]) -> pa.Array:
        if len(values) == 1:
            return same(name, values[0])
        return pa.array(values, schema.field(name).type).take(pa.array(which))

    value = group.find("double") or group.find("integer")
    if value is None:
        values = same("value_double", None)
    else:
        raw = group.numbers(value) if value.kind == "double" else group.integers(value).astype(np.float64)
        values = pa.array(raw, pa.float64(), from_pandas=False)
    body, chain = group.find("body"), group.find("text", CHAIN_KEYS[0])
    if (record.message is not None and body is None) or (chain is not None and not chain.length):
        raise UnsupportedLayout
    if chain is None and (record.attributes.keys() | resource.keys()) & set(CHAIN_KEYS):
        raise UnsupportedLayout
    clusters, nodes, ranks, sizes, texts = (list(column) for column in zip(*contexts, strict=True))
    return [
        columns.uuids(ids), pa.array(times, pa.int64()).cast(schema.field("timestamp").type),
        same("received", request.now),
        same("signal", request.signal.name.lower()), by_context("cluster_id", clusters), by_context("node_id", nodes),
        same("metric_name", record.name), values, by_context("rank", ranks), by_context("nranks", sizes),
        group.texts(chain) if chain else same("causal_chain_id", None),
        group.texts(body) if body else same("message", None), by_context("attributes", texts),
    ]  # fmt: skip
