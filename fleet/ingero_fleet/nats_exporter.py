"""Publishes OTLP requests to a stream of NATS JetStream, which keeps them until an Echo has sealed them."""

import asyncio
import gzip
import secrets
from typing import Final

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from ingero_fleet.exporter_settings import NatsExporterConfig
from ingero_kit.connection_stats import ConnectionStats, describe
from ingero_kit.nats_connection import NatsConnection
from ingero_kit.nats_settings import otlp_subject
from ingero_kit.otlp_client import DeliveryFailure, Disposition, ExportResult
from ingero_kit.otlp_signal import Signal

HEADER_BYTES: Final = 1024
"""Room for headers in the server's largest message."""


class NatsOtlpClient:
    """See `ingero_kit.otlp_client.OtlpClient`. A request that is sent again has the same id, so it is stored once."""

    def __init__(self, config: NatsExporterConfig) -> None:
        """Raises `SettingsError` for credentials or TLS files that cannot be used."""
        self._config = config
        self._connection = NatsConnection(config, ConnectionStats())
        self._started = False
        self._sender, self._number, self._body = secrets.token_hex(8), 0, b""

    async def send(self, signal: Signal, body: bytes) -> ExportResult:
        """Publish one request and wait until the stream has it."""
        if not self._started:
            self._started = True
            self._connection.start()
        if body is not self._body:
            self._body, self._number = body, self._number + 1
        packed = gzip.compress(body, 1, mtime=0)
        headers = {
            "Nats-Msg-Id": f"{self._sender}-{self._number}",
            "Nats-Expected-Stream": self._config.stream,
            "Content-Encoding": "gzip",
        }
        try:
            async with asyncio.timeout(self._config.timeout):
                jetstream = await self._connection.ready()
                if len(packed) + HEADER_BYTES > self._connection.client.max_payload:
                    detail = f"{len(packed)} bytes do not fit into a message of the server"
                    return _failed(DeliveryFailure.REFUSED, Disposition.SPLIT, detail)
                subject = otlp_subject(self._config.stream, signal)
                await jetstream.publish(subject, packed, timeout=self._config.timeout, headers=headers)
        except TimeoutError:
            return _failed(DeliveryFailure.TIMEOUT, Disposition.RETRY, "the servers do not answer")
        except APIError as error:  # the stream is full, or has no leader
            return _failed(DeliveryFailure.BUSY, Disposition.RETRY, describe(error))
        except (NatsError, OSError) as error:
            return _failed(DeliveryFailure.UNREACHABLE, Disposition.RETRY, describe(error))
        return ExportResult()

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.stop()


def _failed(failure: DeliveryFailure, disposition: Disposition, detail: str) -> ExportResult:
    return ExportResult(failure=failure, disposition=disposition, detail=detail)
