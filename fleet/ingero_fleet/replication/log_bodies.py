"""What the messages of the shared log hold: reports with ages instead of times, and markers. Pure."""

import struct
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Final, Literal

import numpy as np
import orjson

from ingero_fleet.receivers.messages import decode_batch, encode_batch
from ingero_fleet.score_table import ReportBatch

HEAD_LENGTH: Final = struct.Struct("!I")

TIMES: Final = ("seen", "first_seen")
"""Columns of a report that are times on the receiver's clock; in the log they are ages."""

MAX_AGE: Final = 1e6
"""Largest age in seconds that is believed."""

MarkerKind = Literal["tick", "early_poll", "collectives_poll"]


@dataclass(frozen=True)
class BatchHead:
    """What a Fleet says of itself with every batch: ticks applied, the state hash after tick `hashed`, and whether it
    judges."""

    replica: str
    ticks: int
    hashed: int = 0
    state_hash: str = ""
    judges: bool = True


@dataclass(frozen=True)
class Marker:
    """A step that all replicas take at its place in the log.

    `number` counts markers; `by` is the replica that cut it; `rules` names what it judges by; `exported` is the
    number of the last marker whose findings it knows to be exported.
    """

    kind: MarkerKind
    number: int
    by: str
    rules: str
    exported: int

    def encode(self) -> bytes:
        """The body of the message."""
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, body: bytes) -> "Marker":
        """Read what `encode` gave; raises `ValueError` for anything else."""
        item = _fields(cls, orjson.loads(body))
        if item["kind"] not in ("tick", "early_poll", "collectives_poll"):
            raise ValueError(f"no marker is a {item['kind']}")
        return cls(**item)


def encode_reports(head: BatchHead, batch: ReportBatch, now: float) -> bytes:
    """The body of a batch; `now` is the time on the clock of the reports."""
    records = batch.records.copy()
    for name in TIMES:
        records[name] = now - records[name]
    text = orjson.dumps(asdict(head))
    return HEAD_LENGTH.pack(len(text)) + text + encode_batch(replace(batch, records=records))


def decode_reports(body: bytes, now: float) -> tuple[BatchHead, ReportBatch]:
    """Read what `encode_reports` gave, with times on the log's clock; raises `ValueError` or `struct.error`."""
    (length,) = HEAD_LENGTH.unpack_from(body)
    end = HEAD_LENGTH.size + length
    head = BatchHead(**_fields(BatchHead, orjson.loads(body[HEAD_LENGTH.size : end])))
    batch = decode_batch(body[end:])
    records = batch.records.copy()
    for name in TIMES:
        records[name] = now - np.clip(records[name], 0.0, MAX_AGE)
    return head, replace(batch, records=records)


def _fields(kind: type[Marker] | type[BatchHead], item: Any) -> dict[str, Any]:
    """The fields of a dataclass. What a newer version added is left out; what an older one lacks has its default."""
    if not isinstance(item, dict):
        raise ValueError("an object was expected")
    found = {}
    for one in fields(kind):
        if one.name not in item and one.default is MISSING:
            raise ValueError(f"{one.name!r} is missing")
        value = found[one.name] = item.get(one.name, one.default)
        if one.type is int and (type(value) is not int or value < 0):
            raise ValueError(f"{one.name} is not a count")
        if one.type is bool and type(value) is not bool:
            raise ValueError(f"{one.name} is neither true nor false")
        if one.type not in (int, bool) and not isinstance(value, str):
            raise ValueError(f"{one.name} is not text")
    return found
