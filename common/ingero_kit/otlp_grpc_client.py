"""OTLP over gRPC: one unary call per request, over one channel."""

import ssl
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from ingero_contract import headers
from ingero_kit.backoff import MAX_RETRY_AFTER
from ingero_kit.otlp_client import (
    NETWORK_FAILURES,
    ClientConfig,
    DeliveryFailure,
    Disposition,
    ExportResult,
    explained,
    grpc_failure,
    grpc_target,
)  # fmt: skip
from ingero_kit.otlp_signal import Signal
from ingero_kit.settings import SettingsError
from ingero_kit.tls import ClientTls
from ingero_kit.tokens import read_authorization

STATUS_DETAILS: Final = "grpc-status-details-bin"
"""Trailing metadata with a google.rpc.Status, in which a busy server puts RetryInfo."""

_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 << 10),
)


def retry_delay(details: bytes | str | None) -> float | None:
    """Delay in seconds from the RetryInfo of a google.rpc.Status, bounded; `None` if it has none."""
    if not isinstance(details, bytes):
        return None
    try:
        for detail in Status.FromString(details).details:
            info = RetryInfo()
            if detail.Unpack(info):
                seconds = float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
                return min(max(seconds, 0.0), MAX_RETRY_AFTER)
    except DecodeError:
        return None
    return None


class OtlpGrpcClient:
    """See `ingero_kit.otlp_client.OtlpClient`. Results have the metadata of every answer, also of refusals.

    It makes a new channel when the certificate files have changed, and after a network failure, so that the next
    request resolves the name again and does not wait for the old channel's reconnect delay.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._target, secure = grpc_target(config.endpoint, config.tls.insecure)
        self._url = f"{'https' if secure else 'http'}://{self._target}"
        self._credentials = config.tls.follow(partial(_credentials, config.tls)) if secure else None
        self._opened_with: grpc.ChannelCredentials | None = None
        self._channel: grpc.aio.Channel | None = None
        self._compression = grpc.Compression.Gzip if config.compression == "gzip" else grpc.Compression.NoCompression

    async def send(self, signal: Signal, body: bytes) -> ExportResult:
        """Send one request and wait for the answer."""
        try:
            metadata = self._metadata()
        except SettingsError as error:
            return ExportResult(failure=DeliveryFailure.TOKEN, disposition=Disposition.RETRY, detail=str(error))
        call = (await self._open()).unary_unary(signal.grpc_method, None, None)(
            body, timeout=self._config.timeout, metadata=metadata, compression=self._compression
        )
        try:
            response = bytes(await call)
        except grpc.aio.AioRpcError as error:
            found = _fields(error.initial_metadata(), error.trailing_metadata())
            wait = retry_delay(found.get(STATUS_DETAILS))
            failure, disposition = grpc_failure(error.code().name, wait)
            if failure in NETWORK_FAILURES:
                await self.close()
            said = f"{error.code().name}: {(error.details() or '')[:200]}"
            detail = explained(said, self._url) if failure in NETWORK_FAILURES else said
            return ExportResult(
                failure=failure, disposition=disposition, detail=detail, headers=_text(found), retry_after=wait
            )
        found = _fields(await call.initial_metadata(), await call.trailing_metadata())
        return ExportResult(response=response, headers=_text(found))

    async def close(self) -> None:
        """Close the channel."""
        channel, self._channel = self._channel, None
        if channel:
            await channel.close(None)

    async def _open(self) -> grpc.aio.Channel:
        """The channel, which is a new one when the credentials have changed."""
        credentials = self._credentials.current() if self._credentials else None
        if credentials is not self._opened_with:
            await self.close()
        if self._channel is None:
            self._opened_with = credentials
            self._channel = (
                grpc.aio.secure_channel(self._target, credentials, options=_OPTIONS)
                if credentials
                else grpc.aio.insecure_channel(self._target, options=_OPTIONS)
            )
        return self._channel

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        token, cluster = read_authorization(self._config.token_file), self._config.cluster
        pairs = ((headers.CLUSTER, cluster),) if cluster and cluster.isascii() else ()
        return (*pairs, ("authorization", token)) if token else pairs


def _fields(initial: Any, trailing: Any) -> dict[str, str | bytes]:
    return {**dict(initial or ()), **dict(trailing or ())}


def _text(fields: dict[str, str | bytes]) -> dict[str, str]:
    return {key: value for key, value in fields.items() if isinstance(value, str)}


def _credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """TLS credentials of a channel from the current files. Raises `SettingsError` when they cannot be used."""
    tls.context()
    return grpc.ssl_channel_credentials(
        tls.ca_file.read_bytes() if tls.ca_file else _system_authorities(),
        tls.key_file.read_bytes() if tls.key_file else None,
        tls.cert_file.read_bytes() if tls.cert_file else None,
    )


def _system_authorities() -> bytes | None:
    """The authorities that the system trusts, as for HTTP; `None` keeps gRPC's own list."""
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(ssl.DER_cert_to_PEM_cert(der) for der in found).encode() or None
