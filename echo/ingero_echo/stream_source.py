"""Reads OTLP requests from a stream of NATS JetStream, each exactly once.

How far the stream was read is written in the transaction of the rows, and into the shared tables with each seal. Only
what is sealed is deleted from the stream, so a database on an empty volume reads the rest again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import NotFoundError

from ingero_echo.ingest import decode_request
from ingero_echo.ingest_batch import Batch
from ingero_echo.lake.sealer import Sealer
from ingero_echo.settings import NatsSourceConfig
from ingero_echo.source_position import SourcePosition, start_after
from ingero_echo.source_stats import SourceStats
from ingero_echo.store import Store
from ingero_echo.writer import RETRY_SECONDS, WriteFailed, Writer
from ingero_http.content import decompress
from ingero_kit.connection_stats import describe
from ingero_kit.logs import get
from ingero_kit.nats_connection import API_SECONDS, NatsConnection, with_copies
from ingero_kit.nats_settings import otlp_subject
from ingero_kit.otlp_signal import Signal
from ingero_kit.stream_reader import ReadAgain, StreamMessage, StreamReader, end_if_cancelled

log = get(__name__)

SENDER: Final = "source"
"""Sender of the batches in the writer's queue."""

BATCH_BYTES: Final = 1 << 20
BATCH_MESSAGES: Final = 1000
"""A transaction takes no further messages from here on; bytes as sent."""

DELETE_SECONDS: Final = 5.0
"""Longest time between a seal and the deletion of what was sealed from the stream."""

REPEATS_SECONDS: Final = 600.0
"""How long the server recognises a request that is sent again; later Echo does, by the ids of events."""

_MAX_LOGGED: Final = 100
"""Messages that cannot be read are logged up to this number, all are counted."""


@dataclass(frozen=True)
class DecodeLimits:
    """What is read of a message."""

    decoded_bytes: int
    """Largest request after decompression."""
    oldest: Callable[[int], int]
    """Time of the oldest records that are kept, nanoseconds, at a time."""


@dataclass
class NatsSource:
    """`run` reads until it is cancelled; failures are counted, and it begins again from the last transaction."""

    config: NatsSourceConfig
    store: Store
    writer: Writer
    sealer: Sealer
    limits: DecodeLimits
    every: float
    """Time between two seals."""
    stats: SourceStats = field(default_factory=SourceStats)
    _sealed: Mapping[str, SourcePosition] = field(default_factory=dict)
    """The messages through which each table has the stream: where a seal was ended halfway, they differ."""

    def __post_init__(self) -> None:
        """Raises `SettingsError` for credentials or TLS files that cannot be used."""
        self._connection = NatsConnection(self.config, self.stats)
        self._subjects = {otlp_subject(self.config.stream, signal): signal for signal in Signal}

    async def run(self) -> None:
        """Connect and read; what a lost database had sealed must be known before."""
        self._connection.start()
        deleting = asyncio.create_task(self._delete_sealed())
        try:
            sealed = await asyncio.shield(asyncio.wrap_future(self.sealer.source_sealed))
            self._sealed = dict(sealed)
            while True:
                end_if_cancelled()
                try:
                    await self._follow()
                except ReadAgain:
                    self.stats.events["read_again"] += 1
                except Exception as error:
                    if not isinstance(error, NatsError | OSError | WriteFailed):
                        log.exception("source_failed")
                    self.stats.failed("follow", error)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            deleting.cancel()
            await asyncio.gather(deleting, return_exceptions=True)
            await self._connection.stop()

    async def _follow(self) -> None:
        """Write what the stream has, until that fails."""
        jetstream = await self._connection.ready()
        info = await self._open(jetstream)
        stream, stored = _identity(info), await asyncio.to_thread(self.store.source_position)
        after = start_after(stored, stream, info.state.last_seq)
        if stored and after < stored.sequence:
            log.warning("source_begins_anew", stream=self.config.stream, read=stored.sequence, after=after)
            self._sealed = {}
        reader = await StreamReader.open(self._connection.client, jetstream, self.config.stream, after, API_SECONDS)
        try:
            self.stats.worked("follow")
            while True:
                messages = await self._take(reader)
                batch = await asyncio.to_thread(self._decode, stream, messages)
                size = sum(len(one.body) for one in messages)
                await asyncio.wrap_future(self.writer.put(batch, size, SENDER))
                self.stats.messages += len(messages)
                self.stats.waiting = reader.behind
        finally:
            await reader.close()

    async def _open(self, jetstream: JetStreamContext) -> StreamInfo:
        """The stream, which is created when it is missing."""
        name = self.config.stream

        async def create(copies: int) -> StreamInfo:
            return await jetstream.add_stream(
                StreamConfig(
                    name=name, subjects=[*self._subjects], num_replicas=copies, storage=StorageType.FILE,
                    retention=RetentionPolicy.LIMITS, discard=DiscardPolicy.NEW, max_bytes=self.config.max_bytes,
                    duplicate_window=REPEATS_SECONDS,
                )
            )  # fmt: skip

        try:
            return await jetstream.stream_info(name)
        except NotFoundError:
            await with_copies(create)
            return await jetstream.stream_info(name)

    async def _take(self, reader: StreamReader) -> list[StreamMessage]:
        """The messages of the next transaction; one that a table has already is alone."""
        messages = [await reader.next()]
        size = len(messages[0].body)
        apart = max((position.sequence for position in self._sealed.values()), default=0)
        while (
            reader.behind and messages[-1].sequence > apart and size < BATCH_BYTES
            and len(messages) < BATCH_MESSAGES
        ):  # fmt: skip
            messages.append(await reader.next())
            size += len(messages[-1].body)
        return messages

    def _decode(self, stream: str, messages: list[StreamMessage]) -> Batch:
        """The rows of messages. One that cannot be read is counted and left out."""
        joined = Batch(position=SourcePosition(stream, messages[-1].sequence))
        for message in messages:
            try:
                batch = self._read(message)
            except Exception as error:  # one message never stops those after it
                self.stats.malformed += 1
                if self.stats.malformed <= _MAX_LOGGED:
                    log.warning("source_message_unreadable", sequence=message.sequence, reason=describe(error))
                continue
            self.stats.rejected += batch.rejected
            joined.identities += batch.identities
            for table, rows in self._missing(stream, message.sequence, batch).items():
                joined.tables.setdefault(table, []).extend(rows)
        return joined

    def _read(self, message: StreamMessage) -> Batch:
        signal = self._subjects[message.subject]
        encoding = message.headers.get("Content-Encoding", "identity").encode()
        body = decompress(encoding, message.body, self.limits.decoded_bytes)
        now = time.time_ns()
        return decode_request(signal, "protobuf", body, "", now, lambda _: True, self.limits.oldest(now))

    def _missing(self, stream: str, sequence: int, batch: Batch) -> dict[str, list[Any]]:
        """The rows of a message that no seal has put into the shared tables. Sums are those of the events."""
        have = {
            table for table, position in self._sealed.items()
            if position.stream == stream and sequence <= position.sequence and batch.identities
        }  # fmt: skip
        found = {table: rows for table, rows in batch.tables.items() if table not in have}
        return found | {"node_rollups": []} if "node_rollups" in have else found

    async def _delete_sealed(self) -> None:
        """Delete from the stream what all tables have."""
        deleted: SourcePosition | None = None
        while True:
            end_if_cancelled()
            await asyncio.sleep(min(DELETE_SECONDS, self.every))
            position = self.sealer.sealed_position
            if position in (None, deleted):
                continue
            assert position
            try:
                jetstream = await self._connection.ready()
                if _identity(await jetstream.stream_info(self.config.stream)) == position.stream:
                    await jetstream.purge_stream(self.config.stream, seq=position.sequence + 1)
                deleted, self.stats.deleted = position, position.sequence
                self.stats.worked("delete")
            except (NatsError, OSError) as error:
                self.stats.failed("delete", error)


def _identity(info: StreamInfo) -> str:
    return str(info.created).replace(" ", "T")
