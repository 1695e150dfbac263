"""Onward by OTLP over gRPC."""

from typing import Final

import grpc

from ingero_fleet.exporters import BadContent, Permanent, Retryable
from ingero_fleet.settings import ExporterConfig
from ingero_kit.grpc_client import STATUS_DETAILS, channel_credentials, metadata_of, retry_delay
from ingero_kit.otlp_receiver import Signal
from ingero_kit.settings import SettingsError
from ingero_kit.tokens import read_authorization

RETRYABLE_GRPC: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""What the OTLP specification allows to send again; RESOURCE_EXHAUSTED only where RetryInfo comes with it."""

UNAUTHORIZED_GRPC: Final = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
"""A token that was rotated is a matter of minutes on either side, so these are tried again as well."""

BAD_CONTENT_GRPC: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Refusals that may be meant for one record, or for the size, which is RESOURCE_EXHAUSTED without RetryInfo."""


class GrpcTransport:
    """OTLP/gRPC. The token is read for every request, and certificates again after a broken connection."""

    def __init__(self, config: ExporterConfig) -> None:
        self._config = config
        if not config.tls.insecure:
            config.tls.context()
        read_authorization(config.bearer_token_file)
        self._channel: grpc.aio.Channel | None = None

    def _open(self) -> grpc.aio.Channel:
        config = self._config
        if config.tls.insecure:
            return grpc.aio.insecure_channel(config.endpoint)
        return grpc.aio.secure_channel(config.endpoint, channel_credentials(config.tls))

    async def send(self, signal: Signal, body: bytes) -> bytes:
        """Call Export with one batch."""
        try:
            token = read_authorization(self._config.bearer_token_file)
            channel = self._channel = self._channel or self._open()
        except (SettingsError, OSError) as error:
            raise Retryable(str(error)) from None
        metadata = (("authorization", token),) if token else ()
        call = channel.unary_unary(signal.grpc_method, None, None)
        try:
            return bytes(await call(body, timeout=self._config.timeout, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            code, reason = error.code(), f"{error.code().name}: {(error.details() or '')[:200]}"
            wait = retry_delay(metadata_of(error.trailing_metadata()).get(STATUS_DETAILS))
            if code is grpc.StatusCode.UNAVAILABLE and wait is None:
                await self.close()
            if wait is not None or code in RETRYABLE_GRPC or code in UNAUTHORIZED_GRPC:
                raise Retryable(reason, wait) from None
            raise (BadContent if code in BAD_CONTENT_GRPC else Permanent)(reason) from None

    async def close(self) -> None:
        """Give the channel back."""
        channel, self._channel = self._channel, None
        if channel:
            await channel.close(None)
