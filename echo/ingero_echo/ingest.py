"""Records → rows of tables. Pure: bytes and the time in, rows out, and what was wrong as data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final
from uuid import UUID

import orjson
import pyarrow as pa

from ingero_contract import attributes as keys
from ingero_contract import echo, metrics
from ingero_echo import columns
from ingero_echo.records import Block, Record, read
from ingero_kit.otlp import MAX_NAME, check_name
from ingero_kit.otlp_server import Encoding, Signal

MAX_ATTRIBUTES: Final = 64 << 10
"""Longest serialised attributes and longest message of one record, characters; larger records are rejected."""

LAST_NANOSECOND: Final = (1 << 63) - 2
"""Latest time that a column of nanoseconds can hold, in the year 2262."""

FUTURE_NANOSECONDS: Final = 3600 * 10**9
"""How far ahead of the receiver's clock a record's time may lie."""

NODE_KEYS: Final = (keys.NODE_ID, "k8s.node.name", "host.name")
"""Where a record's node is looked for, in this order."""

CHAIN_KEYS: Final = (echo.CAUSAL_CHAIN_ID, "ingero.causal_chain_id")
"""Where a record's causal chain is looked for, in this order."""

_OWN_COLUMN: Final = frozenset((keys.NODE_ID, keys.CLUSTER_ID, *CHAIN_KEYS))

_HEALTH: Final = (
    metrics.HEALTH_SCORE, metrics.THROUGHPUT_RATIO, metrics.COMPUTE_EFFICIENCY, metrics.MEMORY_HEADROOM,
    metrics.CPU_AVAILABILITY, metrics.THROUGHPUT_RATE,
)  # fmt: skip
_COLLECTIVE: Final = {
    metrics.COLLECTIVE_DURATION: "duration_ms",
    metrics.COLLECTIVE_BYTES: "bytes",
    metrics.COLLECTIVE_BARRIER_WAIT: "barrier_wait_ms",
    metrics.COLLECTIVE_PEER_LAG: "peer_lag_ms",
}
_OPERATIONS: Final = {"bcast": "broadcast"}

Allowed = Callable[[str], bool]
"""Whether the sender may write to a cluster."""


@dataclass(slots=True)
class Batch:
    """What a request becomes: record batches by table, identities, and what was left out with the reasons.

    `identities` has one entry for every event: the hash of (event id, name, cluster) by which repeats are known.
    """

    tables: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    identities: list[int] = field(default_factory=list)
    rejected: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def reject(self, reason: str, count: int = 1) -> None:
        """Leave records out, and say why."""
        self.rejected += count
        self.reasons[reason] = self.reasons.get(reason, 0) + count

    @property
    def message(self) -> str:
        """The reasons in one line for the sender; empty when nothing was wrong."""
        return "; ".join(f"{reason} ({count})" for reason, count in self.reasons.items())


def identity(event_id: bytes, name: str, cluster: str) -> int:
    """What two deliveries of one event have in common; good within one process only."""
    return hash((event_id, name, cluster))


def given_id(text: str) -> bytes:
    """The 16 bytes of an event id: those of a UUID, or a digest of any other text."""
    try:
        return UUID(text).bytes
    except ValueError:
        return blake2b(text.encode(), digest_size=16).digest()


def request_digest(signal: Signal, cluster: str, body: bytes) -> bytes:
    """8 bytes that a repeated request shares with the first one."""
    return blake2b(body, digest_size=8, person=signal.name.encode(), key=cluster.encode()[:64]).digest()


def decode(
    signal: Signal,
    encoding: Encoding,
    body: bytes,
    cluster: str,
    now_nanos: int,
    allowed: Allowed,
    oldest_nanos: int = 0,
) -> Batch:
    """Turn one request into rows. `cluster`, when given, wins over the payload's.

    Records without an event id get one from the request's digest and their place in it, so that a repeated request
    is recognised; undated records get the time of their arrival, and are never taken for a repeat.

    Raises `Malformed` when the request as a whole cannot be read.
    """
    batch = Batch()
    digest = request_digest(signal, cluster, body)
    rows: dict[str, list[tuple[Any, ...]]] = {}
    ordinal = 0
    for block in read(signal, encoding, body):
        builder = _Builder(batch, rows, signal, block, cluster, digest, now_nanos, oldest_nanos, allowed)
        ordinal = builder.take(ordinal)
    for table, found in rows.items():
        batch.tables.setdefault(table, []).append(columns.batch(table, found))
    return batch


class _Builder:
    """Rows of one block."""

    def __init__(
        self,
        batch: Batch,
        rows: dict[str, list[tuple[Any, ...]]],
        signal: Signal,
        block: Block,
        cluster: str,
        digest: bytes,
        now: int,
        oldest: int,
        allowed: Allowed,
    ) -> None:
        self.batch, self.rows, self.block = batch, rows, block
        self.signal = signal.name.lower()
        self.cluster, self.digest, self.now, self.oldest, self.allowed = cluster, digest, now, oldest, allowed
        self.resource = {key: value for key, value in block.resource.items() if key not in _OWN_COLUMN}
        self.checked: dict[str, str | None] = {}

    def take(self, ordinal: int) -> int:
        """Add the rows of the block; `ordinal` counts the request's records."""
        health: dict[str, tuple[Record, bytes, str, str, int]] = {}
        for record in self.block.records:
            taken = self._event(record, ordinal)
            ordinal += 1
            if taken is None:
                continue
            event_id, cluster, node, time = taken
            name = record.name
            if name in _HEALTH:
                health[name] = (record, event_id, cluster, node, time)
            elif name in _COLLECTIVE:
                self._collective(record, event_id, cluster, node, time)
            elif name == metrics.VERDICT_EVENT or name == metrics.STRAGGLER_EVENT:
                self._verdict(record, event_id, cluster, node, time)
            elif name == echo.CAUSAL_CHAIN_EVENT:
                self._chain(record, event_id, cluster, node, time)
        if metrics.HEALTH_SCORE in health:
            self._health(health)
        return ordinal

    def _find(self, record: Record, names: Sequence[str]) -> Any:
        for name in names:
            value = record.attributes.get(name)
            if value is None:
                value = self.block.resource.get(name)
            if value is not None and value != "":
                return value
        return None

    def _problem(self, cluster: str, node: str) -> str | None:
        for what, name in (("cluster", cluster), ("node", node)):
            wrong = check_name(name) if name else None
            if wrong:
                return f"the {what} id {wrong}"
        if not self.allowed(cluster):
            return "the token may not write to this cluster"
        return None

    def _event(self, record: Record, ordinal: int) -> tuple[bytes, str, str, int] | None:
        cluster = self.cluster or str(self._find(record, (keys.CLUSTER_ID,)) or "")
        node = str(self._find(record, NODE_KEYS) or "")
        key = f"{cluster}\n{node}"
        if key not in self.checked:
            self.checked[key] = self._problem(cluster, node)
        problem = self.checked[key] or _bad_time(record.time, self.now, self.oldest)
        if not problem and len(record.name) > MAX_NAME:
            problem = f"the name is longer than {MAX_NAME} characters"
        kept = {**self.resource, **{key: v for key, v in record.attributes.items() if key not in _OWN_COLUMN}}
        given = kept.get(keys.EVENT_ID)
        event_id = given_id(str(given)) if given else self.digest + ordinal.to_bytes(8, "big")
        if given and str(UUID(bytes=event_id)) == given:
            del kept[keys.EVENT_ID]
        text = _text(kept) if kept else None
        if not problem and max(len(text or ""), len(record.message or "")) > MAX_ATTRIBUTES:
            problem = f"the attributes are longer than {MAX_ATTRIBUTES} characters"
        if problem:
            self.batch.reject(problem)
            return None
        chain = self._find(record, CHAIN_KEYS)
        time = record.time or self.now
        dated = bool(given) or record.time > 0
        # An undated record cannot be told from the next one that says the same: it is never taken for a repeat.
        self.batch.identities.append(
            identity(event_id, record.name, cluster) if dated else hash((event_id, self.now, id(self.batch)))
        )
        self.rows.setdefault("events", []).append(
            (
                event_id, time, self.now, self.signal, cluster, node, record.name, record.value,
                _small(self._find(record, (keys.NCCL_RANK, keys.NODE_RANK))),
                _small(self._find(record, (keys.NCCL_NRANKS, keys.WORLD_SIZE))),
                None if chain is None else str(chain), record.message, text,
            )
        )  # fmt: skip
        return event_id, cluster, node, time

    def _add(self, table: str, *values: Any) -> None:
        self.rows.setdefault(table, []).append(values)

    def _health(self, health: dict[str, tuple[Record, bytes, str, str, int]]) -> None:
        record, event_id, cluster, node, time = health[metrics.HEALTH_SCORE]
        texts = [
            self._find(record, (name,))
            for name in (keys.NODE_STATE, keys.WORKLOAD_TYPE, keys.JOB_ID, keys.GPU_MODEL, keys.PROVIDER)
        ]
        self._add(
            "node_metrics", event_id, time, cluster, node, _small(self._find(record, (keys.NODE_RANK,))),
            _small(self._find(record, (keys.WORLD_SIZE,))),
            *(None if text is None else str(text) for text in texts),
            *(health[name][0].value if name in health else None for name in _HEALTH),
        )  # fmt: skip

    def _collective(self, record: Record, event_id: bytes, cluster: str, node: str, time: int) -> None:
        communicator = record.attributes.get(keys.NCCL_COMM_HASH)
        sequence = record.attributes.get(keys.NCCL_SEQ)
        self._add(
            "collectives", event_id, time, cluster, node, _COLLECTIVE[record.name],
            operation_name(str(record.attributes.get(keys.NCCL_OP_TYPE) or "")),
            None if communicator is None else str(communicator),
            _small(self._find(record, (keys.NCCL_RANK, keys.NODE_RANK))),
            _small(self._find(record, (keys.NCCL_NRANKS,))), sequence if isinstance(sequence, int) else None,
            record.value,
        )  # fmt: skip

    def _verdict(self, record: Record, event_id: bytes, cluster: str, node: str, time: int) -> None:
        own = record.attributes
        rank = _small(self._find(record, (keys.NODE_RANK, keys.NCCL_RANK)))
        if record.name == metrics.STRAGGLER_EVENT:
            evidence = {
                "score": own.get(keys.SCORE), "threshold": own.get(keys.THRESHOLD),
                "detection_mode": own.get(keys.DETECTION_MODE_VALUE),
            }  # fmt: skip
            edge = "straggler" if record.value else "healthy"
            self._add(
                "verdicts", event_id, time, cluster, node, rank, "agent", edge, own.get(keys.DOMINANT_SIGNAL),
                None, None, None, _text(evidence), None,
            )  # fmt: skip
            return
        severity = own.get(keys.VERDICT_SEVERITY)
        words = [
            own.get(name) for name in (keys.VERDICT_STATE, keys.VERDICT_KIND, keys.VERDICT_SINCE, keys.VERDICT_COHORT,
                                       keys.VERDICT_EVIDENCE, keys.VERDICT_DIGEST)
        ]  # fmt: skip
        state, kind, since, cohort, proof, digest = (
            word if word is None or isinstance(word, str) else _text(word) for word in words
        )
        self._add(
            "verdicts", event_id, time, cluster, node, rank, "fleet", state, kind, since,
            float(severity) if isinstance(severity, int | float) else None, cohort, proof, digest,
        )  # fmt: skip

    def _chain(self, record: Record, event_id: bytes, cluster: str, node: str, time: int) -> None:
        chain = self._find(record, CHAIN_KEYS)
        if chain is None:
            return
        cause, severity = record.attributes.get(echo.CHAIN_ROOT_CAUSE), record.attributes.get(echo.CHAIN_SEVERITY)
        self._add(
            "causal_chains", event_id, time, cluster, node, str(chain), severity and str(severity),
            cause and str(cause), record.message, _text(record.attributes),
        )  # fmt: skip


def operation_name(name: str) -> str:
    """One spelling for a collective: `allreduce` for `ncclAllReduce`."""
    short = name.removeprefix("nccl").lower()
    return _OPERATIONS.get(short, short)


def _bad_time(time: int, now: int, oldest: int) -> str | None:
    if time > LAST_NANOSECOND:
        return "the time lies beyond the year 2262"
    if time > now + FUTURE_NANOSECONDS:
        return "the time lies more than an hour ahead"
    if time < 0 or 0 < time < oldest:
        return "the time lies before what retention keeps"
    return None


def _small(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if -(1 << 31) <= value < 1 << 31 else None


def _text(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except (TypeError, orjson.JSONEncodeError):
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode("utf-8", "replace")
