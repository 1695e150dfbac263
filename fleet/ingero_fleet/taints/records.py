"""Reads the operator's log records on taints from a protobuf push. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from ingero_contract import attributes, metrics
from ingero_kit.health_report import check_name
from ingero_kit.otlp_receiver import Push

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
    message: str
    time: float
    since: float
    expires: float


def read_taint_records(push: Push) -> Iterator[TaintRecord | str]:
    """Every taint record of a push, or a message why a record, or the push, cannot be used."""
    if len(push.body) > MAX_BYTES:
        yield "the push is too large for taint records"
        return
    try:
        request = ExportLogsServiceRequest.FromString(push.body)
    except DecodeError:
        yield "the body is not OTLP"
        return
    for block in request.resource_logs:
        shared = _texts(block.resource.attributes)
        for scope in block.scope_logs:
            for record in scope.log_records:
                if record.event_name == metrics.TAINT_EVENT:
                    yield _record(record, shared | _texts(record.attributes), push.cluster)


def _record(record: LogRecord, pairs: dict[str, str], cluster: str) -> TaintRecord | str:
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
        cluster=cluster, node=node, action=action, effect=effect, since=since, expires=expires,
        time=record.time_unix_nano * 1e-9,
        reason=pairs.get(attributes.TAINT_REASON, "")[:MAX_TEXT],
        verdict=pairs.get(attributes.TAINT_VERDICT, "")[:MAX_TEXT],
        message=record.body.string_value[:MAX_TEXT],
    )  # fmt: skip


def _moment(text: str | None) -> float:
    seconds = datetime.fromisoformat(text).timestamp() if text else 0.0
    if not 0 <= seconds < LAST_SECOND:
        raise ValueError(text)
    return seconds


def _texts(pairs: Iterable[KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in pairs}
