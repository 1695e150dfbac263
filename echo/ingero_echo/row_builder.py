"""Converts parsed records to rows of tables. Pure: records and time in, rows and rejections out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson

from ingero_contract import attributes as keys
from ingero_contract import echo, metrics
from ingero_contract.signals import SIGNALS
from ingero_contract.values import GPU_THROTTLED, LATE_RANK
from ingero_echo.dedup import identity, identity_suffix
from ingero_echo.ingest_batch import Batch
from ingero_echo.records import Record
from ingero_echo.request_limits import RequestBudget
from ingero_kit.health_report import MAX_NAME, check_name
from ingero_kit.otlp_repair import RECORD
from ingero_kit.otlp_signal import Signal

MAX_ATTRIBUTES: Final = 64 << 10
"""Longest serialised attributes and longest message of one record, characters; larger records are rejected."""

LAST_NANOSECOND: Final = (1 << 63) - 2
"""Latest time that a column of nanoseconds can hold, in the year 2262."""

FUTURE_NANOSECONDS: Final = 3600 * 10**9
"""How far ahead of the receiver's clock a record's time may lie."""

NODE_KEYS: Final = (keys.NODE_ID, "k8s.node.name", "host.name")
"""Attributes that may contain a record's node, in order of priority."""

CHAIN_KEYS: Final[tuple[str, ...]] = (echo.CAUSAL_CHAIN_ID, "ingero.causal_chain_id")
"""Attributes that may contain a record's causal chain, in order of priority."""

_RANK_KEYS: Final = (keys.NCCL_RANK, keys.NODE_RANK)
_SIZE_KEYS: Final = (keys.NCCL_NRANKS, keys.WORLD_SIZE)

_OWN_COLUMN: Final = frozenset((keys.NODE_ID, keys.CLUSTER_ID, *CHAIN_KEYS))
_PLACE_KEYS: Final = frozenset((keys.CLUSTER_ID, *NODE_KEYS, *CHAIN_KEYS, *_RANK_KEYS, *_SIZE_KEYS))

_HEALTH: Final = (
    metrics.HEALTH_SCORE, *(row.metric for row in SIGNALS), metrics.THROUGHPUT_RATE,
)  # fmt: skip
_COLLECTIVE: Final = {
    metrics.COLLECTIVE_DURATION: "duration_ms",
    metrics.COLLECTIVE_BYTES: "bytes",
    metrics.COLLECTIVE_BARRIER_WAIT: "barrier_wait_ms",
    metrics.COLLECTIVE_PEER_LAG: "peer_lag_ms",
}
_INSPECTOR: Final = frozenset((metrics.INSPECTOR_EXEC_TIME, metrics.INSPECTOR_BANDWIDTH))
DERIVED: Final = {
    metrics.HEALTH_SCORE: "node_metrics",
    **dict.fromkeys((*_COLLECTIVE, *_INSPECTOR), "collectives"),
    metrics.VERDICT_EVENT: "verdicts",
    metrics.STRAGGLER_EVENT: "verdicts",
    echo.CAUSAL_CHAIN_EVENT: "causal_chains",
}
"""The additional table that an event of a name has a row in; all others are in `events` only."""

TYPED: Final = frozenset((*_HEALTH, *DERIVED))
"""Names of records that have more than a row in `events`."""

AGENT, FLEET, COLLECTIVES = "agent", "fleet", "collectives"
"""The source of a verdict: the node itself, Fleet's detector, or the collectives that wait for a rank."""

_VERDICT_TEXTS: Final = (
    keys.VERDICT_STATE, keys.VERDICT_KIND, keys.VERDICT_SINCE, keys.VERDICT_COHORT, keys.VERDICT_EVIDENCE,
    keys.VERDICT_DIGEST, keys.NCCL_COMM_HASH,
)  # fmt: skip

_OPERATIONS: Final = {"bcast": "broadcast"}
_MAX_DIGITS: Final = 18
"""Digits of a number that fits into 64 bits."""

Allowed = Callable[[str], bool]
"""Whether the sender may write to a cluster."""

_is_uuid: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
"""Matches a UUID that is written as `str` writes it."""


def event_id_bytes(text: str) -> bytes:
    """The 16 bytes of an event id: those of a UUID, or a digest of any other text."""
    try:
        return UUID(text).bytes
    except ValueError:
        return blake2b(text.encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Data shared by all records of one request."""

    batch: Batch
    signal: Signal
    cluster: str
    digest: Callable[[], bytes]
    """Computed when the first record without an id needs it."""
    now: int
    oldest: int
    allowed: Allowed
    budget: RequestBudget


Head = tuple[bytes, int, str, str]
"""The first columns of every table but `events`: event id, time, cluster, node."""


class RecordSource(NamedTuple):
    """Where a record comes from."""

    cluster: str
    node: str
    rank: int | None
    nranks: int | None
    chain: str | None
    problem: str | None
    """Why records from here are rejected."""


class RecordContext(NamedTuple):
    """The columns of a record that its attributes and its resource determine."""

    cluster: str
    node: str
    rank: int | None
    nranks: int | None
    text: str | None


class RowBuilder:
    """Builds the rows of one resource."""

    def __init__(
        self, request: RequestContext, resource: dict[str, Any], rows: dict[str, list[tuple[Any, ...]]] | None = None
    ) -> None:
        self.request = request
        self.rows = {} if rows is None else rows
        self.resource = resource
        self.shared = {key: value for key, value in resource.items() if key not in _OWN_COLUMN}
        self.checked: dict[str, str | None] = {}
        self.inherited: dict[tuple[str, ...], Any] = {}
        self.signal = request.signal.name.lower()

    def take(self, records: Sequence[Record | None], ordinals: Sequence[int]) -> None:
        """Add the rows of records; `ordinals` are their positions in the request."""
        health: dict[str, tuple[Record, Head]] = {}
        for record, ordinal in zip(records, ordinals, strict=True):
            if record is None:
                self.request.batch.reject(RECORD)
                continue
            head = self._event(record, ordinal)
            if head is None:
                continue
            name = record.name
            if name not in TYPED:
                continue
            if name in _HEALTH:
                health[name] = (record, head)
            elif name in _COLLECTIVE:
                self._collective(record, head)
            elif name in _INSPECTOR:
                self._inspector(record, head)
            elif name == metrics.VERDICT_EVENT:
                self._verdict(record, head)
            elif name == metrics.STRAGGLER_EVENT:
                self._own_verdict(record, head)
            elif name == echo.CAUSAL_CHAIN_EVENT:
                self._causal_chain(record, head)
        if metrics.HEALTH_SCORE in health:
            self._health(health)

    def _find(self, attributes: dict[str, Any], names: tuple[str, ...]) -> Any:
        if attributes and attributes.keys().isdisjoint(names):
            if names not in self.inherited:
                self.inherited[names] = self._find({}, names)
            return self.inherited[names]
        for name in names:
            value = attributes.get(name)
            if value is None:
                value = self.resource.get(name)
            if value is not None and value != "":
                return value
        return None

    def _problem(self, cluster: str, node: str) -> str | None:
        for what, name in (("cluster", cluster), ("node", node)):
            wrong = check_name(name) if name else None
            if wrong:
                return f"the {what} id {wrong}"
        if cluster:
            self.request.batch.clusters.add(cluster)
        if not self.request.allowed(cluster):
            return "the token may not write to this cluster"
        return None

    @cached_property
    def place(self) -> RecordSource:
        """Where records come from whose attributes do not say it."""
        return self._place({})

    def place_of(self, record: Record) -> RecordSource:
        """Where a record comes from."""
        own = record.attributes
        return self.place if _PLACE_KEYS.isdisjoint(own) else self._place(own)

    def _place(self, attributes: dict[str, Any]) -> RecordSource:
        cluster = self.request.cluster or str(self._find(attributes, (keys.CLUSTER_ID,)) or "")
        node = str(self._find(attributes, NODE_KEYS) or "")
        key = f"{cluster}\n{node}"
        if key not in self.checked:
            self.checked[key] = self._problem(cluster, node)
        return RecordSource(
            cluster, node, _int32(self._find(attributes, _RANK_KEYS)), _int32(self._find(attributes, _SIZE_KEYS)),
            _optional_text(self._find(attributes, CHAIN_KEYS)), self.checked[key],
        )  # fmt: skip

    def record_context(self, record: Record, place: RecordSource) -> RecordContext | str:
        """The context of a record from its attributes and resource, without the event id; or why it is rejected."""
        if place.problem:
            return place.problem
        if len(record.name) > MAX_NAME:
            return f"the name is longer than {MAX_NAME} characters"
        kept = {**self.shared, **record.attributes}
        if place is not self.place:
            for key in _OWN_COLUMN:
                kept.pop(key, None)
        text = _text(kept) if kept else None
        if (text and len(text) > MAX_ATTRIBUTES) or (record.message and len(record.message) > MAX_ATTRIBUTES):
            return f"the attributes are longer than {MAX_ATTRIBUTES} characters"
        return RecordContext(place.cluster, place.node, place.rank, place.nranks, text)

    def _event(self, record: Record, ordinal: int) -> Head | None:
        request = self.request
        given = record.attributes.get(keys.EVENT_ID)
        if not given:
            event_id = request.digest() + ordinal.to_bytes(8, "big")
        elif isinstance(given, str) and _is_uuid(given):
            event_id = bytes.fromhex(given.replace("-", ""))
            del record.attributes[keys.EVENT_ID]
        else:
            event_id = event_id_bytes(str(given))
        place = self.place_of(record)
        wrong = _bad_time(record.time, request.now, request.oldest) or _bad_score(record)
        context = wrong or self.record_context(record, place)
        if isinstance(context, str):
            request.batch.reject(context)
            return None
        cluster, node, rank, nranks, text = context
        time = record.time or request.now
        dated = bool(given) or record.time > 0
        # A record without a time cannot be distinguished from a later one with its content: it is never a duplicate.
        request.batch.identities.append(
            identity(event_id, record.name, cluster)
            if dated
            else event_id + identity_suffix(str(request.now), str(id(request.batch)))
        )
        self.rows.setdefault("events", []).append(
            (
                event_id, time, request.now, self.signal, cluster, node, record.name, record.value,
                rank, nranks, place.chain, record.message, text,
            )
        )  # fmt: skip
        return event_id, time, cluster, node

    def _add_row(self, table: str, *values: Any) -> None:
        self.rows.setdefault(table, []).append(values)

    def _number(self, record: Record, *names: str) -> int | None:
        return _int32(self._find(record.attributes, names))

    def _texts(self, record: Record, *names: str) -> list[str | None]:
        return [_optional_text(self._find(record.attributes, (name,))) for name in names]

    def _health(self, health: dict[str, tuple[Record, Head]]) -> None:
        record, head = health[metrics.HEALTH_SCORE]
        self._add_row(
            "node_metrics", *head, self._number(record, keys.NODE_RANK), self._number(record, keys.WORLD_SIZE),
            *self._texts(record, keys.NODE_STATE, keys.WORKLOAD_TYPE, keys.JOB_ID, keys.GPU_MODEL, keys.PROVIDER),
            *(health[name][0].value if name in health else None for name in _HEALTH),
        )  # fmt: skip

    def _collective(self, record: Record, head: Head) -> None:
        own = record.attributes
        sequence = own.get(keys.NCCL_SEQ)
        self._add_row(
            "collectives", *head, _COLLECTIVE[record.name], operation_name(str(own.get(keys.NCCL_OP_TYPE) or "")),
            _optional_text(own.get(keys.NCCL_COMM_HASH)), self._number(record, keys.NCCL_RANK, keys.NODE_RANK),
            self._number(record, keys.NCCL_NRANKS),
            sequence if isinstance(sequence, int) and not isinstance(sequence, bool) else None, record.value,
        )  # fmt: skip

    def _inspector(self, record: Record, head: Head) -> None:
        """What NCCL Inspector says of one collective on one GPU: the time of its kernel, or its bytes.

        The form that is not verbose has averages that name no collective: nothing is derived from them.
        """
        own = record.attributes
        communicator, sequence = _optional_text(own.get(keys.INSPECTOR_COMM)), _count(own.get(keys.INSPECTOR_SEQ))
        timed = record.name == metrics.INSPECTOR_EXEC_TIME
        value = record.value if timed else _count(own.get(keys.INSPECTOR_SIZE))
        if communicator is None or sequence is None or value is None:
            return
        self._add_row(
            "collectives", *head, "duration_ms" if timed else "bytes",
            operation_name(str(own.get(keys.INSPECTOR_OP) or "")), communicator, None,
            _int32(_count(own.get(keys.INSPECTOR_NRANKS))), sequence, value / 1000 if timed else float(value),
        )  # fmt: skip

    def _own_verdict(self, record: Record, head: Head) -> None:
        """The verdict of a node about itself."""
        own, rank = record.attributes, self._number(record, keys.NODE_RANK, keys.NCCL_RANK)
        parts = (("score", keys.SCORE), ("threshold", keys.THRESHOLD), ("detection_mode", keys.DETECTION_MODE_VALUE))
        self._add_row(
            "verdicts", *head, rank, AGENT, "straggler" if record.value else "healthy",
            _optional_text(own.get(keys.DOMINANT_SIGNAL)), None, None, None,
            _text({name: own.get(key) for name, key in parts}), None, None, None,
        )  # fmt: skip

    def _verdict(self, record: Record, head: Head) -> None:
        own, rank = record.attributes, self._number(record, keys.NODE_RANK, keys.NCCL_RANK)
        severity = own.get(keys.VERDICT_SEVERITY)
        state, kind, since, *rest = (_optional_text(own.get(name)) for name in _VERDICT_TEXTS)
        self._add_row(
            "verdicts", *head, rank, COLLECTIVES if kind in (LATE_RANK, GPU_THROTTLED) else FLEET, state, kind, since,
            float(severity) if isinstance(severity, int | float) else None, *rest,
            *self._texts(record, keys.POD_NAME),
        )  # fmt: skip

    def _causal_chain(self, record: Record, head: Head) -> None:
        chain, own = self.place_of(record).chain, record.attributes
        if chain is not None:
            severity, cause = own.get(echo.CHAIN_SEVERITY), own.get(echo.CHAIN_ROOT_CAUSE)
            texts = (chain, _optional_text(severity), _optional_text(cause))
            self._add_row("causal_chains", *head, *texts, record.message, _text(own))


def operation_name(name: str) -> str:
    """The canonical name of a collective: `allreduce` for `ncclAllReduce`."""
    short = name.removeprefix("nccl").lower()
    return _OPERATIONS.get(short, short)


def _bad_time(time: int, now: int, oldest: int) -> str | None:
    if time > LAST_NANOSECOND:
        return "the time lies beyond the year 2262"
    if time > now + FUTURE_NANOSECONDS:
        return "the time lies more than an hour ahead of Echo's clock: check both"
    if time < 0 or 0 < time < oldest:
        return "the time lies before what retention keeps"
    return None


def _bad_score(record: Record) -> str | None:
    """Why a health score is none, as Fleet says it."""
    if record.name != metrics.HEALTH_SCORE or record.value is None or 0 <= record.value <= 1:
        return None
    return f"{metrics.HEALTH_SCORE} is not between 0 and 1"


def _int32(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if -(1 << 31) <= value < 1 << 31 else None


def _count(value: Any) -> int | None:
    """A whole number that is sent as text."""
    known = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS
    return int(value) if known else None


def _optional_text(value: Any) -> str | None:
    """A value of any kind for a column of text."""
    return value if value is None or isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except (TypeError, orjson.JSONEncodeError):
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode("utf-8", "replace")
