"""Decodes a request: from its records to rows of tables. Pure: bytes and time in, rows and rejections out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from hashlib import blake2b
from typing import Any, Final

from google.protobuf.message import DecodeError

from ingero_echo import columns
from ingero_echo.arrays import pa
from ingero_echo.columnar_rows import decode_columnar
from ingero_echo.ingest_batch import Batch
from ingero_echo.records import Block, MalformedRequest, from_json, read_repaired, read_request
from ingero_echo.request_limits import RequestBudget
from ingero_echo.row_builder import Allowed, RequestContext, RowBuilder
from ingero_kit.otlp_limits import RequestTooExpensive
from ingero_kit.otlp_signal import Encoding, Signal

MIN_COLUMNAR_BYTES: Final = 4096
"""Smallest body, bytes, that is searched for records of one shape."""


def request_digest(signal: Signal, cluster: str, body: bytes) -> bytes:
    """8 bytes that a repeated request shares with the first one."""
    return blake2b(body, digest_size=8, person=signal.name.encode(), key=cluster.encode()[:64]).digest()


def decode_request(
    signal: Signal,
    encoding: Encoding,
    body: bytes,
    cluster: str,
    now_nanos: int,
    allowed: Allowed,
    oldest_nanos: int = 0,
) -> Batch:
    """Convert one request into rows. `cluster`, when given, overrides the payload's.

    Records without an event id get one from the request's digest and their position in it, so that a repeated request
    is recognised. Records without a time get the time of their arrival, and never count as duplicates.

    Raises `MalformedRequest` when the request as a whole cannot be read.
    """
    digest = cache(partial(request_digest, signal, cluster, body))
    request = RequestContext(Batch(), signal, cluster, digest, now_nanos, oldest_nanos, allowed, RequestBudget())
    try:
        if encoding == "json":
            body, repaired = from_json(signal, body)
            request.batch.repaired(repaired)
        searched = len(body) >= MIN_COLUMNAR_BYTES and (encoding == "protobuf" or signal is Signal.LOGS)
        blocks = decode_columnar(request, body) if searched else None
        if blocks is None:
            blocks = _one_by_one(request, body)
    except RequestTooExpensive as error:
        raise MalformedRequest(str(error)) from None
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for block, ordinals in blocks:
        RowBuilder(request, block.resource, rows).take(block.records, ordinals)
    try:
        made = {table: columns.batch(table, found) for table, found in rows.items()}
    except _column_errors():
        made = _without_misfits(request.batch, rows)
    for table, part in made.items():
        request.batch.tables.setdefault(table, []).append(part)
    return request.batch


def _column_errors() -> tuple[type[Exception], ...]:
    """Errors that columns raise for a value of another type."""
    return (pa.ArrowException, TypeError, ValueError, OverflowError)


def _without_misfits(batch: Batch, rows: dict[str, list[tuple[Any, ...]]]) -> dict[str, pa.RecordBatch]:
    """The columns without the records that do not fit the column types. Slow, so used only when there are any."""
    odd: set[bytes] = set()
    for table, found in rows.items():
        for row in found:
            try:
                columns.batch(table, [row])
            except _column_errors() as error:
                if row[0] not in odd:
                    batch.reject(f"it does not fit the table {table}: {str(error)[:200]}")
                odd.add(row[0])
    # The events of these rows are the last ones that got an identity.
    events = rows["events"]
    first = len(batch.identities) - len(events)
    batch.identities[first:] = [
        one for one, row in zip(batch.identities[first:], events, strict=True) if row[0] not in odd
    ]
    kept = {table: [row for row in found if row[0] not in odd] for table, found in rows.items()}
    return {table: columns.batch(table, found) for table, found in kept.items() if found}


def _one_by_one(request: RequestContext, body: bytes) -> Iterator[tuple[Block, list[int]]]:
    """The records of a request. Strings that are not UTF-8 are left out, whatever the request's length."""
    try:
        return _numbered(read_request(request.signal, body, request.budget))
    except DecodeError:
        found = decode_columnar(request, body)
        if found is not None:
            return found
        blocks, repaired = read_repaired(request.signal, body, request.budget)
    request.batch.repaired(repaired)
    return _numbered(blocks)


def _numbered(blocks: list[Block]) -> Iterator[tuple[Block, list[int]]]:
    ordinal = 0
    for block in blocks:
        yield block, list(range(ordinal, ordinal + len(block.records)))
        ordinal += len(block.records)
