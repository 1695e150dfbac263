"""Jobs that hang as OTLP log records, `ingero.hang`: what an agent sends and Fleet reads. Pure."""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber

from ingero_contract import attributes, metrics
from ingero_contract.json_values import number, text, whole
from ingero_contract.values import HangVerdict
from ingero_kit.clock import rfc3339
from ingero_kit.health_report import HealthReport, check_name
from ingero_kit.otlp_encode import SCOPE, VERSION, pairs, resource_attributes

NEEDLE: Final = metrics.HANG_EVENT.encode()
"""Bytes that every push with such a record contains."""

MAX_BYTES: Final = 256 << 10
"""Largest push that is read."""

MAX_NAMED: Final = 64
"""Most ranks that a record names; all are counted."""

MAX_TEXT: Final = 512

LAST_SECOND: Final = 4_102_444_800.0
"""The year 2100; a later time is an error."""

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:ingero:hang")


class HangRank(NamedTuple):
    """A rank of a job. `rank`: its number, or a name where no communicator has all ranks; `gpu`: CUDA's number."""

    rank: int | str
    host: str
    pid: int
    gpu: int


@dataclass(frozen=True, kw_only=True)
class HangRecord:
    """A job hangs, or goes on (`kind` is none). Times in seconds since the epoch; `since` is 0 without a hang.

    `key`: the job's name while it keeps its communicators, equal from every sender. `until`: the record counts for
    so long unless another one follows. `waiting`: ranks that have entered what those of `comm` that are missing have
    not.
    """

    cluster: str
    node: str
    job: str
    key: str
    kind: HangVerdict
    message: str
    time: float
    since: float
    until: float
    comm: str = ""
    op: str = ""
    waiting: int = 0
    ranks: tuple[HangRank, ...] = ()
    rank_count: int = 0
    possible: tuple[HangRank, ...] = ()
    possible_count: int = 0


def encode_hangs(records: Iterable[HangRecord], sender: HealthReport) -> ExportLogsServiceRequest:
    """One request with all records of a sender."""
    request = ExportLogsServiceRequest()
    block = request.resource_logs.add()
    block.resource.attributes.extend(pairs(resource_attributes(sender)))
    scope = InstrumentationScope(name=SCOPE, version=VERSION)
    block.scope_logs.add(scope=scope, log_records=[_encode(record) for record in records])
    return request


def _encode(record: HangRecord) -> LogRecord:
    hangs, nanoseconds = record.kind is not HangVerdict.NONE, int(record.time * 1e9)
    evidence = {
        "key": record.key, "until": record.until, "comm": record.comm, "op": record.op, "waiting": record.waiting,
        "ranks": [rank._asdict() for rank in record.ranks[:MAX_NAMED]], "rank_count": record.rank_count,
        "possible": [rank._asdict() for rank in record.possible[:MAX_NAMED]],
        "possible_count": record.possible_count,
    }  # fmt: skip
    # Equal for every record of one hang from one sender, so that a store keeps the first.
    identity = "\0".join((record.cluster, record.node, record.key, record.kind, f"{record.since:.0f}"))
    found = {
        attributes.EVENT_ID: str(uuid.uuid5(_NAMESPACE, identity)),
        attributes.VERDICT_KIND: str(record.kind),
        attributes.VERDICT_SINCE: rfc3339(record.since) if record.since else "",
        attributes.VERDICT_EVIDENCE: orjson.dumps(evidence).decode(),
    }
    return LogRecord(
        time_unix_nano=nanoseconds, observed_time_unix_nano=nanoseconds, event_name=metrics.HANG_EVENT,
        severity_number=SeverityNumber.SEVERITY_NUMBER_WARN if hangs else SeverityNumber.SEVERITY_NUMBER_INFO,
        body=AnyValue(string_value=record.message[:MAX_TEXT]), attributes=pairs(found),
    )  # fmt: skip


def read_hangs(body: bytes, cluster: str) -> Iterator[HangRecord | str]:
    """Every such record of a push in protobuf, or a message why a record, or the push, cannot be used.

    `cluster`: the sender's, where its token says so.
    """
    if len(body) > MAX_BYTES:
        yield "the push is too large for records of hangs"
        return
    try:
        request = ExportLogsServiceRequest.FromString(body)
    except DecodeError:
        yield "the body is not OTLP"
        return
    for block in request.resource_logs:
        shared = _texts(block.resource.attributes)
        for scope in block.scope_logs:
            for record in scope.log_records:
                if record.event_name == metrics.HANG_EVENT:
                    yield _read(record, shared, cluster)


def _read(record: LogRecord, shared: dict[str, str], cluster: str) -> HangRecord | str:
    own, node = _texts(record.attributes), shared.get(attributes.NODE_ID, "")
    cluster = cluster or shared.get(attributes.CLUSTER_ID, "")
    for key, name in ((attributes.NODE_ID, node), (attributes.CLUSTER_ID, cluster)):
        problem = check_name(name)
        if problem:
            return f"the resource attribute {key} {problem}"
    try:
        kind = HangVerdict(own.get(attributes.VERDICT_KIND, ""))
    except ValueError:
        return f"{attributes.VERDICT_KIND} is not one of {', '.join(HangVerdict)}"
    try:
        facts = orjson.loads(own.get(attributes.VERDICT_EVIDENCE) or "")
        since = _moment(own.get(attributes.VERDICT_SINCE, ""))
        key, until = text(facts["key"], 64), number(facts["until"])
        if not key or until is None or not 0 <= until < LAST_SECOND:
            raise ValueError("key and until")
        return HangRecord(
            cluster=cluster, node=node, job=text(shared.get(attributes.JOB_ID, ""), 253), key=key, kind=kind,
            message=text(record.body.string_value, MAX_TEXT), time=record.time_unix_nano * 1e-9, since=since,
            until=until, comm=text(facts.get("comm"), 128), op=text(facts.get("op"), 128),
            waiting=_count(facts.get("waiting")), ranks=_ranks(facts["ranks"]),
            rank_count=_count(facts.get("rank_count")), possible=_ranks(facts["possible"]),
            possible_count=_count(facts.get("possible_count")),
        )  # fmt: skip
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return f"{attributes.VERDICT_EVIDENCE} or {attributes.VERDICT_SINCE} is not as agents send it"


def _ranks(items: Any) -> tuple[HangRank, ...]:
    if not isinstance(items, list) or len(items) > MAX_NAMED:
        raise ValueError("ranks")
    return tuple(
        HangRank(
            item["rank"] if type(item["rank"]) is int else text(item["rank"]), text(item["host"], 253),
            _count(item["pid"]), _count(item["gpu"]),
        )
        for item in items
    )  # fmt: skip


def _count(value: Any) -> int:
    found = whole(value)
    if found is None:
        raise ValueError("a count")
    return found


def _moment(words: str) -> float:
    seconds = datetime.fromisoformat(words).timestamp() if words else 0.0
    if not 0 <= seconds < LAST_SECOND:
        raise ValueError(words)
    return seconds


def _texts(found: Iterable[KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in found}
