"""Onward by OTLP over gRPC."""

from typing import Final

import grpc

from ingero_fleet.exporters import Permanent, Retryable
from ingero_fleet.settings import ExporterConfig
from ingero_kit.otlp_server import Signal
from ingero_kit.tokens import read_tokens

RETRYABLE_GRPC: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""What the OTLP specification allows to send again."""


class GrpcTransport:
    """OTLP/gRPC."""

    def __init__(self, config: ExporterConfig) -> None:
        tls = config.tls
        if tls.insecure:
            self._channel = grpc.aio.insecure_channel(config.endpoint)
        else:
            tls.context()
            self._channel = grpc.aio.secure_channel(
                config.endpoint,
                grpc.ssl_channel_credentials(
                    tls.ca_file.read_bytes() if tls.ca_file else None,
                    tls.key_file.read_bytes() if tls.key_file else None,
                    tls.cert_file.read_bytes() if tls.cert_file else None,
                ),
            )
        self._timeout = config.timeout
        self._metadata: tuple[tuple[str, str], ...] = ()
        if config.bearer_token_file:
            self._metadata = (("authorization", f"Bearer {read_tokens(config.bearer_token_file)[0]}"),)

    async def send(self, signal: Signal, body: bytes) -> None:
        """Call Export with one batch."""
        call = self._channel.unary_unary(signal.grpc_method, None, None)
        try:
            await call(body, timeout=self._timeout, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            kind = Retryable if error.code() in RETRYABLE_GRPC else Permanent
            raise kind(f"{error.code().name}: {(error.details() or '')[:200]}") from None

    async def close(self) -> None:
        """Give the channel back."""
        await self._channel.close(None)
