"""Reads a JetStream stream in order, and notices when messages are missing or the server is silent."""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

HEARTBEAT_SECONDS: Final = 0.5
"""How often the server says that there is nothing new."""

SILENCE_SECONDS: Final = 1.5
"""A server that says nothing for so long is read no longer."""

INACTIVE_SECONDS: Final = 10.0
"""The server forgets a reader that is gone after so long."""

PENDING_BYTES: Final = 256 << 20
"""Bytes that wait here at most; the server sends less before it hears that they were read."""

ARRIVED_MESSAGES: Final = 1000
"""Messages that are taken from the client at once, at most."""

ARRIVED_BYTES: Final = 1 << 20
"""Bytes from which on no further message is taken at once."""

_CONTROL, _STALLED, _LAST_CONSUMER = "100", "Nats-Consumer-Stalled", "Nats-Last-Consumer"


class ReadAgain(Exception):
    """Messages were dropped on the way: read again from the last one that came."""


def end_if_cancelled() -> None:
    """Raise the cancellation of this task if one was lost: `asyncio.wait_for`, which the client uses, loses one that
    comes together with a result in Python 3.11."""
    task = asyncio.current_task()
    if task and task.cancelling():
        raise asyncio.CancelledError


@dataclass(frozen=True)
class StreamMessage:
    """One message of the stream."""

    sequence: int
    time: float
    """When the server took it, seconds since the epoch."""
    subject: str
    headers: dict[str, str]
    body: bytes


class StreamReader:
    """One reader of the server's, which sends messages after a sequence; it is replaced, never repaired."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client, self._subscription = client, subscription
        self._delivered = 0
        self._arrived: deque[StreamMessage] = deque()
        self._arrived_bytes = 0
        self._newest_after = 0
        """Messages that the stream had after the newest one that arrived, when the server sent it."""

    @classmethod
    async def open(
        cls, client: Client, jetstream: JetStreamContext, stream: str, after: int, seconds: float
    ) -> "StreamReader":
        """Begin with the first message after the sequence `after`; raises the client's errors within `seconds`."""
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, pending_msgs_limit=1 << 16, pending_bytes_limit=PENDING_BYTES)
        reader = cls(client, subscription)
        config = ConsumerConfig(
            deliver_subject=inbox,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=AckPolicy.NONE,
            max_deliver=1,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=INACTIVE_SECONDS,
            idle_heartbeat=HEARTBEAT_SECONDS,
            flow_control=True,
        )
        try:
            await jetstream.add_consumer(stream, config=config, timeout=seconds)
        except BaseException:
            await reader.close()
            raise
        return reader

    async def next(self) -> StreamMessage:
        """The next message; raises `ReadAgain`, or the client's errors, among them a timeout for a silent server."""
        while not self._arrived:
            await self._receive()
        message = self._arrived.popleft()
        self._arrived_bytes -= len(message.body)
        while self._subscription.pending_msgs and self._room():
            await self._receive()
        return message

    @property
    def behind(self) -> int:
        """Messages known to come after the last one that `next` returned.

        What the server said of that one is not enough: it sends ahead of the reader, and may have known of none.
        """
        return len(self._arrived) + max(self._newest_after, self._subscription.pending_msgs)

    def _room(self) -> bool:
        return len(self._arrived) < ARRIVED_MESSAGES and self._arrived_bytes < ARRIVED_BYTES

    async def _receive(self) -> None:
        """Take one message from the client, which may be one of the server's own."""
        end_if_cancelled()
        message = await self._subscription.next_msg(timeout=SILENCE_SECONDS)
        if message.headers and message.headers.get("Status") == _CONTROL:
            await self._control(message)
            return
        facts = message.metadata
        self._delivered += 1
        if facts.sequence.consumer != self._delivered:
            raise ReadAgain
        self._newest_after = facts.num_pending
        self._arrived_bytes += len(message.data)
        self._arrived.append(
            StreamMessage(
                facts.sequence.stream,
                facts.timestamp.timestamp(),
                message.subject,
                message.headers or {},
                message.data,
            )
        )

    async def _control(self, message: Msg) -> None:
        """Answer a heartbeat or a question of the server whether everything was read."""
        headers = message.headers or {}
        if answer_to := message.reply or headers.get(_STALLED):
            await self._client.publish(answer_to)
        delivered = headers.get(_LAST_CONSUMER)
        if delivered is not None and delivered.isdigit() and int(delivered) > self._delivered:
            raise ReadAgain

    async def close(self) -> None:
        """Stop; the server forgets the reader by itself."""
        with contextlib.suppress(NatsError, OSError):
            await self._subscription.unsubscribe()
