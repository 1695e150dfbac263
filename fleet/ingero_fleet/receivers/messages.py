"""The link between Fleet and a receiver process: messages over a private socket pair.

A message is its length in four octets, a kind in one, and the body. Reports travel as JSON (names, cohorts, hardware)
followed by fixed records; the verdict cache as JSON.
"""

import asyncio
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

import numpy as np
import orjson

from ingero_contract.identifiers import NodeKey, node_key
from ingero_fleet.score_table import BATCH_RECORD, Hardware, ReportBatch
from ingero_fleet.verdict_cache import NodeVerdicts, VerdictCache
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Encoding, Signal

HEAD: Final = struct.Struct("!IB")
JSON_LENGTH: Final = struct.Struct("!I")
PUSH_HEAD: Final = struct.Struct("!Hd?B")
"""Length of the cluster's name, time of arrival, whether it is JSON, signal."""

PART: Final = 1000
"""Nodes in one message, so that neither side is blocked for longer than about a millisecond."""


_SIGNALS: Final = tuple(Signal)


class MessageKind(IntEnum):
    """Kinds of messages, by direction."""

    HELLO = 1
    """To the receiver: settings, ports, clock."""
    READY = 2
    """From the receiver: it listens."""
    FAILED = 3
    """From the receiver: it cannot listen, and why."""
    COLLECT = 4
    """To the receiver: hand over new reports."""
    BATCH = 5
    """From the receiver: reports."""
    DONE = 6
    """From the receiver: end of the reports, with its counts."""
    NODE_VERDICTS = 7
    """To the receiver: nodes whose verdict differs from the default."""
    VERDICT_CACHE = 8
    """To the receiver: the rest of the verdict cache, which replaces the previous one."""
    PUSH = 9
    """From the receiver: a push with collectives or taints, unchanged."""
    RELOAD = 10
    """To the receiver: read tokens and certificates again."""
    STOP = 11
    """To the receiver: finish pending requests and end."""


async def read_message(reader: asyncio.StreamReader) -> tuple[MessageKind, bytes]:
    """The next message; raises `asyncio.IncompleteReadError` when the other side has closed the link."""
    length, kind = HEAD.unpack(await reader.readexactly(HEAD.size))
    return MessageKind(kind), await reader.readexactly(length)


def encode_message(kind: MessageKind, body: bytes = b"") -> bytes:
    """One message on the wire."""
    return HEAD.pack(len(body), kind) + body


def encode_batch(batch: ReportBatch) -> bytes:
    """The body of BATCH."""
    header = orjson.dumps(
        [
            batch.names,
            batch.cohorts,
            list(map(tuple, batch.hardware)),
            list(batch.last_verdicts.items()),
            list(batch.several.items()),
        ]
    )
    return JSON_LENGTH.pack(len(header)) + header + batch.records.tobytes()


def decode_batch(body: bytes) -> ReportBatch:
    """Read what `encode_batch` gave; raises `ValueError` for anything else."""
    (length,) = JSON_LENGTH.unpack_from(body)
    end = JSON_LENGTH.size + length
    names, cohorts, hardware, last_verdicts, several = orjson.loads(memoryview(body)[JSON_LENGTH.size : end])
    records = np.frombuffer(body, BATCH_RECORD, offset=end)
    if len(records) != len(names):
        raise ValueError("names and records differ in number")
    return ReportBatch(
        [(cluster, node) for cluster, node in names],
        [tuple(key) for key in cohorts],
        [Hardware(*item) for item in hardware],
        records,
        dict(last_verdicts),
        dict(several),
    )


def encode_verdict_cache(verdict_cache: VerdictCache) -> Iterator[bytes]:
    """The messages that carry a verdict cache: NODE_VERDICTS as often as needed, then VERDICT_CACHE."""
    verdicts = verdict_cache.verdicts
    overrides = [(line, *node) for node, line in verdicts.overrides.items()]
    for start in range(0, len(overrides), PART):
        yield encode_message(MessageKind.NODE_VERDICTS, orjson.dumps(overrides[start : start + PART]))
    rest = [verdict_cache.by, list(verdict_cache.thresholds.items()), verdicts.default, verdicts.as_of]
    yield encode_message(MessageKind.VERDICT_CACHE, orjson.dumps(rest))


class VerdictCacheDecoder:
    """Assembles a verdict cache from its messages."""

    def __init__(self) -> None:
        self._others: dict[NodeKey, str] = {}

    def add_overrides(self, body: bytes) -> None:
        """Take NODE_VERDICTS."""
        self._others.update({node_key(cluster, node): line for line, cluster, node in orjson.loads(body)})

    def verdict_cache(self, body: bytes) -> VerdictCache:
        """Take VERDICT_CACHE, which ends it."""
        by, thresholds, default, as_of = orjson.loads(body)
        overrides, self._others = self._others, {}
        by_cohort = {tuple(key): value for key, value in thresholds}
        return VerdictCache(tuple(by), by_cohort, NodeVerdicts(default, overrides, as_of))


def encode_push(push: Push, now: float) -> bytes:
    """The body of PUSH."""
    cluster = push.cluster.encode()
    head = PUSH_HEAD.pack(len(cluster), now, push.encoding == "json", _SIGNALS.index(push.signal))
    return head + cluster + push.body


def decode_push(body: bytes) -> tuple[Push, float]:
    """Read what `encode_push` gave; raises `ValueError` or `struct.error` for anything else."""
    length, now, is_json, signal = PUSH_HEAD.unpack_from(body)
    end = PUSH_HEAD.size + length
    encoding: Encoding = "json" if is_json else "protobuf"
    if signal >= len(_SIGNALS):
        raise ValueError(f"no signal {signal}")
    return Push(_SIGNALS[signal], encoding, body[end:], body[PUSH_HEAD.size : end].decode()), now
