"""OTLP/gRPC pushes over one channel."""

from typing import Final
from urllib.parse import urlsplit

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_agent.transport import RETRIED, PushFailure, PushReply, PushTarget, base_url
from ingero_contract import headers, routes
from ingero_kit.grpc_client import STATUS_DETAILS, channel_credentials, metadata_of, retry_delay
from ingero_kit.settings import SettingsError

_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 << 10),
)
_FAILURES: Final = {
    grpc.StatusCode.UNAVAILABLE: PushFailure.UNREACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: PushFailure.TIMEOUT,
    grpc.StatusCode.UNAUTHENTICATED: PushFailure.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: PushFailure.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: PushFailure.BUSY,
    grpc.StatusCode.INTERNAL: PushFailure.SERVER_ERROR,
    grpc.StatusCode.UNKNOWN: PushFailure.SERVER_ERROR,
    grpc.StatusCode.DATA_LOSS: PushFailure.SERVER_ERROR,
    grpc.StatusCode.ABORTED: PushFailure.SERVER_ERROR,
    grpc.StatusCode.CANCELLED: PushFailure.SERVER_ERROR,
}


def target(endpoint: str, insecure: bool) -> tuple[str, bool]:
    """`host:port` or a URL into the channel's target and whether TLS is spoken.

    Raises `SettingsError` for a path or a missing port, which gRPC would take for something else.
    """
    try:
        url = urlsplit(base_url(endpoint, insecure))
        if url.port is None or not url.hostname:
            raise SettingsError(f"{endpoint}: a gRPC address is host:port, such as fleet:4317")
    except ValueError as error:
        raise SettingsError(f"{endpoint}: {error}") from None
    if url.path or url.query or url.fragment or "@" in url.netloc:
        raise SettingsError(f"{endpoint}: a gRPC address is host:port and nothing else")
    return url.netloc, url.scheme == "https"


def failure_of(code: grpc.StatusCode, wait: float | None) -> PushFailure:
    """What a gRPC status means for a push. UNAVAILABLE is Fleet's own word with RetryInfo, else the network's."""
    if code is grpc.StatusCode.UNAVAILABLE and wait is not None:
        return PushFailure.BUSY
    return _FAILURES.get(code, PushFailure.REFUSED)


class GrpcTransport:
    """Calls MetricsService/Export. Threshold and verdict are read from the metadata of every answer.

    After a failure of the network the channel is made anew, so that the next push resolves the name and reads the
    certificate files again instead of waiting for the old channel's own pause between attempts.
    """

    def __init__(self, route: PushTarget) -> None:
        self._route = route
        self._target, self._secure = target(route.endpoint, route.tls.insecure)
        if self._secure:
            route.tls.context()
        self._channel: grpc.aio.Channel | None = None
        self._compression = grpc.Compression.Gzip if route.compression == "gzip" else grpc.Compression.NoCompression

    async def send(self, request: ExportMetricsServiceRequest) -> PushReply:
        """Send one push and wait for its reply."""
        try:
            metadata = self._metadata()
            channel = self._channel = self._channel or self._open()
        except (SettingsError, OSError) as error:
            return PushReply(failure=PushFailure.TOKEN, detail=str(error))
        call = channel.unary_unary(routes.OTLP_METRICS_GRPC, None, None)(
            request.SerializeToString(), timeout=self._route.timeout, metadata=metadata, compression=self._compression
        )
        try:
            await call
        except grpc.aio.AioRpcError as error:
            said = {**metadata_of(error.initial_metadata()), **metadata_of(error.trailing_metadata())}
            wait = retry_delay(said.get(STATUS_DETAILS))
            failure = failure_of(error.code(), wait)
            if failure in RETRIED:
                await self.close()
            return _reply(said, failure, f"{error.code().name}: {(error.details() or '')[:200]}", wait or 0.0)
        return _reply({**metadata_of(await call.initial_metadata()), **metadata_of(await call.trailing_metadata())})

    async def close(self) -> None:
        """Give the channel back."""
        channel, self._channel = self._channel, None
        if channel:
            await channel.close(None)

    def _open(self) -> grpc.aio.Channel:
        if not self._secure:
            return grpc.aio.insecure_channel(self._target, options=_OPTIONS)
        return grpc.aio.secure_channel(self._target, channel_credentials(self._route.tls), options=_OPTIONS)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        bearer, cluster = self._route.authorization(), self._route.cluster
        pairs = ((headers.CLUSTER, cluster),) if cluster.isascii() else ()
        return (*pairs, ("authorization", bearer)) if bearer else pairs


def _reply(
    said: dict[str, str | bytes], failure: PushFailure | None = None, detail: str = "", retry_after: float = 0.0
) -> PushReply:
    def text(key: str) -> str | None:
        value = said.get(key)
        return value if isinstance(value, str) else None

    return PushReply(
        failure=failure,
        detail=detail,
        threshold=text(headers.GRPC_THRESHOLD),
        quorum=text(headers.GRPC_QUORUM_MET),
        verdict=text(headers.GRPC_VERDICT),
        retry_after=retry_after,
    )
