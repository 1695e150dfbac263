"""Verdicts over a subject of NATS that no stream stores: each tick replaces those of the tick before."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from ingero_fleet.replication.log_stats import LogStats
from ingero_fleet.replication.ordered_log import LogAway
from ingero_fleet.replication.parts import KEY, pack
from ingero_fleet.replication.published_verdicts import PART, VerdictParts
from ingero_kit.connection_stats import describe
from ingero_kit.logs import get
from ingero_kit.nats_connection import RETRY_SECONDS, NatsConnection

log = get(__name__)

PENDING_BYTES: Final = 128 << 20
"""Bytes that wait here at most; further ones are dropped, and the next tick's verdicts are taken."""

CHECK_SECONDS: Final = 1.5
"""How often a silent subscription is compared with the connection, which may have been replaced."""


class VerdictChannel:
    """Publishes verdicts, and returns those of others."""

    def __init__(self, subject: str, connection: NatsConnection, stats: LogStats) -> None:
        self._subject, self._connection, self._stats = subject, connection, stats

    async def publish(self, key: str, body: bytes, part_bytes: int) -> None:
        """Send verdicts; raises `LogAway` without a connection, and `ValueError` for a body above 64 MB."""
        client = self._connection.client
        headers, parts = pack(body, part_bytes)
        try:
            for number, part in enumerate(parts, 1):
                numbered = headers | {KEY: key, PART: f"{number}/{len(parts)}"}
                await client.publish(self._subject, part, headers=numbered)
        except (NatsError, OSError) as error:
            raise LogAway(f"verdicts were not sent: {describe(error)}") from None
        self._stats.published["verdicts"] += 1

    async def follow(self) -> AsyncGenerator[bytes]:
        """Return all verdicts that are sent from now on."""
        while True:
            await self._connection.ready()
            client, parts = self._connection.client, VerdictParts()
            try:
                subscription = await client.subscribe(self._subject, pending_bytes_limit=PENDING_BYTES)
            except (NatsError, OSError) as error:
                log.info("verdicts_not_followed", reason=describe(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                async for body in self._bodies(client, subscription, parts):
                    yield body
            finally:
                with contextlib.suppress(NatsError, OSError):
                    await subscription.unsubscribe()

    async def _bodies(self, client: Client, subscription: Subscription, parts: VerdictParts) -> AsyncGenerator[bytes]:
        """The bodies that one subscription brings; it ends with its connection."""
        while client is self._connection.client:
            try:
                message = await subscription.next_msg(timeout=CHECK_SECONDS)
                body = parts.add(message.headers or {}, message.data)
            except TimeoutError:
                continue
            except ValueError as error:
                self._stats.events["unreadable"] += 1
                log.warning("verdicts_unreadable", reason=str(error))
                continue
            except (NatsError, OSError):
                await asyncio.sleep(RETRY_SECONDS)
                return
            self._stats.read_bytes += len(message.data)
            if body is not None:
                yield body
