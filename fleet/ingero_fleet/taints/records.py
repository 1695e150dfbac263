"""Reads the operator's log records on taints from an OTLP push, protobuf or JSON. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ingero_contract import attributes, metrics
from ingero_kit.health_report import check_name
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_values import json_attributes, json_int_field, json_list

NEEDLE: Final = metrics.TAINT_EVENT.encode()
"""Bytes that every push with such a record contains."""

MAX_BYTES: Final = 256 << 10
"""Largest push that is read; the operator sends one record at a time, under a kilobyte."""

MAX_TEXT: Final = 512
"""Longest reason or sentence that is kept, characters."""

LAST_SECOND: Final = 4_102_444_800.0
"""The year 2100; a later time is an error."""

ACTIONS: Final = frozenset({"add", "raise", "lower", "renew", "remove"})

_EFFECTS: Final = frozenset({"NoSchedule", "PreferNoSchedule", ""})


@dataclass(frozen=True, kw_only=True)
class TaintRecord:
    """One record. `effect` is empty for an annotation alone; times in seconds since the epoch, 0 for none."""

    cluster: str
    node: str
    action: str
    effect: str
    reason: str
    verdict: str
    words: str
    time: float
    since: float
    expires: float


def read_taint_records(push: Push) -> Iterator[TaintRecord | str]:
    """Every taint record of a push, or a message why a record, or the push, cannot be used."""
    if len(push.body) > MAX_BYTES:
        yield "the push is too large for marks"
        return
    try:
        records = list(_json(push.body) if push.encoding == "json" else _protobuf(push.body))
    except (DecodeError, orjson.JSONDecodeError, AttributeError, TypeError, ValueError, KeyError):
        yield "the body is not OTLP"
        return
    for time, words, pairs in records:
        yield _record(time, words, pairs, push.cluster)


def _record(time: float, words: str, pairs: dict[str, str], cluster: str) -> TaintRecord | str:
    node, cluster = pairs.get(attributes.NODE_ID, ""), cluster or pairs.get(attributes.CLUSTER_ID, "")
    for key, name in ((attributes.NODE_ID, node), (attributes.CLUSTER_ID, cluster)):
        problem = check_name(name)
        if problem:
            return f"the resource attribute {key} {problem}"
    action, effect = pairs.get(attributes.TAINT_ACTION, ""), pairs.get(attributes.TAINT_EFFECT, "")
    if action not in ACTIONS:
        return f"{attributes.TAINT_ACTION} is not one of {', '.join(sorted(ACTIONS))}"
    if effect not in _EFFECTS:
        return f"{attributes.TAINT_EFFECT} is not an effect that the operator sets"
    try:
        evidence = orjson.loads(pairs.get(attributes.TAINT_EVIDENCE) or "{}")
        since, expires = (_moment(evidence.get(name)) for name in ("since", "expires"))
    except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError, OverflowError):
        return f"{attributes.TAINT_EVIDENCE} is not the operator's annotation"
    return TaintRecord(
        cluster=cluster, node=node, action=action, effect=effect, time=time, since=since, expires=expires,
        reason=pairs.get(attributes.TAINT_REASON, "")[:MAX_TEXT],
        verdict=pairs.get(attributes.TAINT_VERDICT, "")[:MAX_TEXT],
        words=words[:MAX_TEXT],
    )  # fmt: skip


def _moment(text: str | None) -> float:
    seconds = datetime.fromisoformat(text).timestamp() if text else 0.0
    if not 0 <= seconds < LAST_SECOND:
        raise ValueError(text)
    return seconds


Entry = tuple[float, str, dict[str, str]]
"""Time, message, and text attributes, including those of the resource."""


def _protobuf(body: bytes) -> Iterator[Entry]:
    for block in ExportLogsServiceRequest.FromString(body).resource_logs:
        shared = _texts((pair.key, pair.value.string_value) for pair in block.resource.attributes)
        for scope in block.scope_logs:
            for record in scope.log_records:
                if record.event_name == metrics.TAINT_EVENT:
                    own = _texts((pair.key, pair.value.string_value) for pair in record.attributes)
                    yield record.time_unix_nano * 1e-9, record.body.string_value, {**shared, **own}


def _json(body: bytes) -> Iterator[Entry]:
    for block in json_list(orjson.loads(body).get("resourceLogs")):
        shared = _texts(json_attributes((block.get("resource") or {}).get("attributes")))
        for scope in json_list(block.get("scopeLogs")):
            for record in json_list(scope.get("logRecords")):
                if record.get("eventName") == metrics.TAINT_EVENT:
                    words = str((record.get("body") or {}).get("stringValue") or "")
                    time = json_int_field(record, "timeUnixNano") * 1e-9
                    yield time, words, {**shared, **_texts(json_attributes(record.get("attributes")))}


def _texts(pairs: Iterable[tuple[str, Any]]) -> dict[str, str]:
    return {key: value if isinstance(value, str) else "" for key, value in pairs}
