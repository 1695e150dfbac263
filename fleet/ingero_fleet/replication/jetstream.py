"""The shared log in NATS JetStream: one stream of three copies, the order of which every Fleet applies."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Literal

from nats.errors import Error as NatsError
from nats.js.api import DiscardPolicy, PubAck, StorageType, StreamConfig, StreamInfo
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from ingero_fleet.log_settings import NatsConfig
from ingero_fleet.replication.in_flight import InFlight
from ingero_fleet.replication.log_stats import LogStats
from ingero_fleet.replication.nats_verdicts import VerdictChannel
from ingero_fleet.replication.ordered_log import (
    LogAway,
    LogGap,
    LogHealth,
    LogMessage,
    LogSnapshot,
    MessageKind,
)
from ingero_fleet.replication.parts import KEY, PART_BYTES, PARTS, PartCache, earlier_parts, pack, unpack
from ingero_fleet.replication.snapshot_bucket import SnapshotBucket
from ingero_kit.connection_stats import describe
from ingero_kit.logs import get
from ingero_kit.nats_connection import NatsConnection, with_copies
from ingero_kit.stream_reader import SILENCE_SECONDS, ReadAgain, StreamMessage, StreamReader

log = get(__name__)

ACK_SECONDS: Final = 1.0
"""How long one attempt waits for its confirmation."""

PUBLISH_SECONDS: Final = 10.0
"""How long a message is sent again before `LogAway`; a new leader of the stream is found in 4 to 7 s."""

STATE_SECONDS: Final = 1.5
"""How long the stream's state is waited for; without a leader there is no answer."""

RETRY_SECONDS: Final = 0.1
"""Pause before a message is sent again, or the stream is opened again."""

SAME_SECONDS: Final = 0.001
"""Times of one message differ by less, since the client rounds them."""

IN_FLIGHT_MESSAGES: Final = 16
IN_FLIGHT_BYTES: Final = 8 << 20
"""What may be unconfirmed; a further message waits."""

REPEATS_SECONDS: Final = 120.0
"""How long the server recognises a message that is sent again."""

HEADER_BYTES: Final = 4096
"""Room for headers in the server's largest message."""

_WRONG_LAST_SEQUENCE: Final = 10071

MSG_ID: Final = "Nats-Msg-Id"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST: Final = "Nats-Expected-Last-Subject-Sequence"

_Kind = Literal["batch", "push", "marker"]


class JetStreamLog:
    """An `OrderedLog`. Between `start` and `stop` it connects by itself, and again when the connection ends."""

    def __init__(self, config: NatsConfig) -> None:
        """Raises `SettingsError` for credentials or TLS files that cannot be used."""
        self.stats = LogStats()
        self._config = config
        self._connection = NatsConnection(config, self.stats)
        self._stream = f"{config.prefix}-log"
        self._kinds: dict[str, _Kind] = {
            f"{config.prefix}.batch": "batch", f"{config.prefix}.push": "push", f"{config.prefix}.marker": "marker",
        }  # fmt: skip
        self._subjects = {kind: subject for subject, kind in self._kinds.items()}
        self._part_subject = f"{config.prefix}.part"
        self._window = InFlight(IN_FLIGHT_MESSAGES, IN_FLIGHT_BYTES)
        self._creating = asyncio.Lock()
        self._checking: asyncio.Task[None] | None = None
        self._verdicts = VerdictChannel(f"{config.prefix}.verdicts", self._connection, self.stats)
        self._snapshots = SnapshotBucket(f"{config.prefix}-snapshots", self._connection, self.stats)

    def start(self) -> None:
        """Begin to connect; nothing waits for it."""
        self._connection.start()

    async def stop(self) -> None:
        """Close the connection."""
        if self._checking:
            self._checking.cancel()
        await self._connection.stop()

    def health(self) -> LogHealth:
        """How the log is doing."""
        return LogHealth(self.stats.away_since, self.stats.lag)

    async def publish(self, kind: MessageKind, key: str, body: bytes) -> None:
        """Add a message; see `OrderedLog`. Raises `ValueError` for a body above 64 MB."""
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await self._connection.ready()
                headers, parts = pack(body, self._part_bytes())
                size = sum(map(len, parts))
                async with self._window.room(size):
                    earlier = [
                        await self._publish_part(self._part_subject, {MSG_ID: f"{kind} {key} {number}"}, part)
                        for number, part in enumerate(parts[:-1])
                    ]
                    if earlier:
                        headers[PARTS] = ",".join(str(one) for one in earlier)
                    headers |= {KEY: key, MSG_ID: f"{kind} {key}"}
                    await self._publish_part(self._subjects[kind], headers, parts[-1])
        except TimeoutError:
            raise LogAway("the log did not confirm a message in time") from None
        self.stats.published[kind] += 1
        self.stats.published_bytes += size

    async def cut(self, key: str, body: bytes, after: int) -> bool:
        """Add a marker; see `OrderedLog`."""
        headers, parts = pack(body, self._part_bytes())
        if len(parts) > 1:
            raise ValueError(f"a marker of {len(body)} bytes does not fit into one message")
        headers[KEY] = key
        try:
            async with asyncio.timeout(self.stats.patience(ACK_SECONDS)):
                if not await self._cut(headers, parts[0], after):
                    self.stats.events["marker_lost"] += 1
                    return False
        except (NatsError, OSError, TimeoutError) as error:
            self._unconfirmed(error)
            raise LogAway(f"the log did not answer: {describe(error)}") from None
        self.stats.published["marker"] += 1
        self.stats.published_bytes += len(parts[0])
        return True

    async def follow(self, after: int, not_before: float = 0.0) -> AsyncGenerator[LogMessage | LogGap]:
        """Return every message after the sequence `after`; see `OrderedLog`."""
        parts, created = PartCache(), None
        self.stats.last_read = after
        while True:
            try:
                info = await self._opened()
                first, last = max(1, info.state.first_seq), info.state.last_seq
                lost = last < after or first > after + 1 or created not in (None, info.created)
                if lost or await self._overwritten(after, not_before):
                    parts.clear()
                    gap, after = LogGap(after + 1, first), first - 1
                    self.stats.last_read = after
                    self.stats.events["gap"] += 1
                    yield gap
                created, self.stats.last_known = info.created, last
                jetstream = await self._connection.ready()
                reader = await StreamReader.open(
                    self._connection.client, jetstream, self._stream, after, self.stats.patience(SILENCE_SECONDS)
                )
            except (NatsError, OSError, TimeoutError) as error:
                self.stats.failed("follow", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.stats.worked("follow")
            try:
                while True:
                    message = await reader.next()
                    self.stats.read_bytes += len(message.body)
                    self.stats.last_known = max(self.stats.last_known, message.sequence + reader.behind)
                    if message.sequence != after + 1:
                        self.stats.events["gap"] += 1
                        yield LogGap(after + 1, message.sequence)
                    found = await self._joined(message, max(not_before, message.time), parts)
                    after, not_before = message.sequence, max(not_before, message.time)
                    self.stats.last_read = after
                    if found:
                        yield found
            except (NatsError, OSError, TimeoutError, ReadAgain):
                self.stats.events["resubscribed"] += 1
            finally:
                await reader.close()

    async def save_snapshot(self, name: str, data: bytes) -> None:
        """Store a copy of the state; see `OrderedLog`."""
        await self._snapshots.save(name, data)

    async def load_snapshots(self) -> AsyncIterator[LogSnapshot]:
        """Return the kept snapshots, newest first; see `OrderedLog`."""
        async for snapshot in self._snapshots.load():
            yield snapshot

    async def publish_verdicts(self, key: str, body: bytes) -> None:
        """Send the answers after a tick; see `OrderedLog`."""
        await self._verdicts.publish(key, body, self._part_bytes())

    def follow_verdicts(self) -> AsyncGenerator[bytes]:
        """Return the answers after each tick; see `OrderedLog`."""
        return self._verdicts.follow()

    def _part_bytes(self) -> int:
        return min(PART_BYTES, self._connection.client.max_payload - HEADER_BYTES)

    async def _publish_part(self, subject: str, headers: dict[str, str], body: bytes) -> int:
        """Send until it is confirmed; returns its sequence. The caller limits the time."""
        while True:
            jetstream = await self._connection.ready()
            try:
                ack = await jetstream.publish(
                    subject, body, timeout=self.stats.patience(ACK_SECONDS), headers=self._addressed(headers)
                )
                break
            except (NatsError, OSError, TimeoutError) as error:
                self._unconfirmed(error)
            self.stats.events["retry"] += 1
            await asyncio.sleep(RETRY_SECONDS)
        self._confirmed(ack)
        return ack.seq

    async def _cut(self, headers: dict[str, str], body: bytes, after: int) -> bool:
        jetstream = await self._connection.ready()
        subject = self._subjects["marker"]
        try:
            ack = await jetstream.publish(
                subject, body, timeout=ACK_SECONDS, headers=self._addressed(headers | {EXPECTED_LAST: str(after)})
            )
        except APIError as error:
            if error.err_code != _WRONG_LAST_SEQUENCE:
                raise
            self.stats.worked("publish")
            # The log drops its oldest messages: without the last marker it expects 0.
            discarded = after and str(error.description).endswith(" 0") and await self._discarded(after)
            return await self._cut(headers, body, 0) if discarded else False
        self._confirmed(ack)
        return True

    async def _discarded(self, sequence: int) -> bool:
        info = await (await self._connection.ready()).stream_info(self._stream)
        return sequence < info.state.first_seq

    def _addressed(self, headers: dict[str, str]) -> dict[str, str]:
        return headers | {EXPECTED_STREAM: self._stream}

    def _confirmed(self, ack: PubAck) -> None:
        self.stats.worked("publish")
        self.stats.last_known = max(self.stats.last_known, ack.seq)
        if ack.duplicate:
            self.stats.events["repeat"] += 1

    async def _joined(self, message: StreamMessage, at: float, parts: PartCache) -> LogMessage | LogGap | None:
        """The message with its earlier parts; `None` for a part, and for what no Fleet has published."""
        if message.subject == self._part_subject:
            parts.add(message.sequence, message.body)
        kind = self._kinds.get(message.subject)
        if kind is None:
            return None
        try:
            earlier = [await self._part(sequence, parts) for sequence in earlier_parts(message.headers)]
            body = unpack(message.headers, b"".join([*earlier, message.body]))
        except NotFoundError:
            self.stats.events["gap"] += 1
            return LogGap(message.sequence, message.sequence + 1)
        except ValueError as error:
            self.stats.events["unreadable"] += 1
            log.warning("log_message_unreadable", sequence=message.sequence, reason=str(error))
            return None
        return LogMessage(message.sequence, at, kind, message.headers.get(KEY, ""), body)

    async def _part(self, sequence: int, parts: PartCache) -> bytes:
        """A part that came before the reader began is fetched; raises the client's errors."""
        part = parts.take(sequence)
        if part is None:
            found = await (await self._connection.ready()).get_msg(self._stream, seq=sequence)
            if found.subject != self._part_subject:
                raise NotFoundError
            part = found.data or b""
        return part

    def _unconfirmed(self, error: BaseException) -> None:
        """Note it. If nobody takes messages, the stream is gone or has no leader: look in the background."""
        self.stats.failed("publish", error)
        if isinstance(error, NoStreamResponseError) and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._open_if_possible())

    async def _overwritten(self, sequence: int, read_at: float) -> bool:
        """Whether the message at a sequence is later than the one that was read there.

        The log was restored from an older copy then, and has grown beyond the reader's place since.
        """
        if not sequence or not read_at:
            return False
        jetstream = await self._connection.ready()
        try:
            async with asyncio.timeout(self.stats.patience(STATE_SECONDS)):
                found = await jetstream.get_msg(self._stream, seq=sequence)
        except NotFoundError:
            return False
        return found.time is not None and found.time.timestamp() > read_at + SAME_SECONDS

    async def _open_if_possible(self) -> None:
        try:
            await self._opened()
        except (NatsError, OSError, TimeoutError) as error:
            log.info("log_not_opened", reason=describe(error))

    async def _opened(self) -> StreamInfo:
        """The stream's state; a stream that is not there is made."""
        jetstream = await self._connection.ready()
        try:
            async with asyncio.timeout(self.stats.patience(STATE_SECONDS)):
                return await jetstream.stream_info(self._stream)
        except NotFoundError:
            async with self._creating:
                return await with_copies(self._create)

    async def _create(self, copies: int) -> StreamInfo:
        config = StreamConfig(
            name=self._stream,
            subjects=[*self._kinds, self._part_subject],
            storage=StorageType.FILE,
            num_replicas=copies,
            discard=DiscardPolicy.OLD,
            max_bytes=self._config.max_bytes,
            max_age=self._config.max_age,
            duplicate_window=REPEATS_SECONDS,
        )
        info = await (await self._connection.ready()).add_stream(config)
        log.info("log_created", stream=self._stream, copies=copies)
        return info
