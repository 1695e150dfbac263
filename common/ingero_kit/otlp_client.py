"""The OTLP client: sends one encoded request over HTTP or gRPC and returns its outcome.

Only this module decides whether a failure may be retried (OpenTelemetry protocol specification, sections "Failures"
and "Throttling"). The caller decides when and how often to retry; `Backoff` has the delays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import Final, Literal, Protocol
from urllib.parse import urlsplit

from ingero_kit.otlp_signal import Encoding, Signal
from ingero_kit.settings import SettingsError
from ingero_kit.tls import ClientTls


class DeliveryFailure(StrEnum):
    """Why a request was not delivered; the values are label values of metrics."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNAUTHENTICATED = "unauthenticated"
    REFUSED = "refused"
    BUSY = "busy"
    SERVER_ERROR = "server_error"
    TOKEN = "token"
    """The client's own credentials cannot be read."""
    INTERNAL = "internal"
    """An error of the sender that nobody foresaw; its log has it."""


NETWORK_FAILURES: Final = frozenset({DeliveryFailure.UNREACHABLE, DeliveryFailure.TIMEOUT})
"""Failures without an answer."""


class Disposition(Enum):
    """What the sender may do with a request that was not delivered."""

    RETRY = "retry"
    SPLIT = "split"
    """Refused for its content or its size: a part of it may be accepted."""
    DROP = "drop"


Failed = tuple[DeliveryFailure, Disposition]

_HTTP_FAILURES: Final[dict[int, Failed]] = {
    400: (DeliveryFailure.REFUSED, Disposition.SPLIT),
    # The specification does not retry this; a token that was just rotated may be accepted minutes later.
    401: (DeliveryFailure.UNAUTHENTICATED, Disposition.RETRY),
    403: (DeliveryFailure.UNAUTHENTICATED, Disposition.RETRY),
    408: (DeliveryFailure.REFUSED, Disposition.RETRY),
    413: (DeliveryFailure.REFUSED, Disposition.SPLIT),
    422: (DeliveryFailure.REFUSED, Disposition.SPLIT),
    429: (DeliveryFailure.BUSY, Disposition.RETRY),
    # Some receivers answer 500 because of a single record.
    500: (DeliveryFailure.SERVER_ERROR, Disposition.SPLIT),
    502: (DeliveryFailure.SERVER_ERROR, Disposition.RETRY),
    503: (DeliveryFailure.BUSY, Disposition.RETRY),
    504: (DeliveryFailure.SERVER_ERROR, Disposition.RETRY),
}

_GRPC_FAILURES: Final[dict[str, Failed]] = {
    "CANCELLED": (DeliveryFailure.SERVER_ERROR, Disposition.RETRY),
    "UNKNOWN": (DeliveryFailure.SERVER_ERROR, Disposition.SPLIT),
    "INVALID_ARGUMENT": (DeliveryFailure.REFUSED, Disposition.SPLIT),
    "DEADLINE_EXCEEDED": (DeliveryFailure.TIMEOUT, Disposition.RETRY),
    "PERMISSION_DENIED": (DeliveryFailure.UNAUTHENTICATED, Disposition.RETRY),
    # Without RetryInfo it means that the message is too large.
    "RESOURCE_EXHAUSTED": (DeliveryFailure.BUSY, Disposition.SPLIT),
    "ABORTED": (DeliveryFailure.SERVER_ERROR, Disposition.RETRY),
    "OUT_OF_RANGE": (DeliveryFailure.REFUSED, Disposition.RETRY),
    "INTERNAL": (DeliveryFailure.SERVER_ERROR, Disposition.SPLIT),
    "UNAVAILABLE": (DeliveryFailure.UNREACHABLE, Disposition.RETRY),
    "DATA_LOSS": (DeliveryFailure.SERVER_ERROR, Disposition.RETRY),
    "UNAUTHENTICATED": (DeliveryFailure.UNAUTHENTICATED, Disposition.RETRY),
}


def http_failure(status: int) -> Failed | None:
    """The failure that an HTTP status means; `None` for success."""
    if 200 <= status < 300:
        return None
    other = DeliveryFailure.SERVER_ERROR if status >= 500 else DeliveryFailure.REFUSED
    return _HTTP_FAILURES.get(status, (other, Disposition.DROP))


def grpc_failure(code: str, retry_after: float | None) -> Failed:
    """The failure that a gRPC status other than OK means. RetryInfo shows that the server itself asks for a retry."""
    failure, disposition = _GRPC_FAILURES.get(code, (DeliveryFailure.REFUSED, Disposition.DROP))
    if retry_after is None:
        return failure, disposition
    return (DeliveryFailure.BUSY if failure is DeliveryFailure.UNREACHABLE else failure), Disposition.RETRY


_NO_GRPC: Final = ("an http1.x", "missing selected ALPN")
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "record layer failure", "Handshake read failed")
_CLOSED: Final = (
    "Server disconnected without sending a response", "Socket closed", "Connection reset", "Broken pipe",
    "ReadError", "WriteError",
)  # fmt: skip
"""What the libraries say when the server takes no gRPC, speaks plain text, or closes a new connection.

Which of the last it is depends on whether the request was already on its way when the server closed.
"""


_NOBODY: Final = "All connection attempts failed"


def explained(detail: str, url: str) -> str:
    """What a library says about a failed connection to a URL, and what that probably means."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"

    def says(texts: tuple[str, ...]) -> bool:
        return any(text in detail for text in texts)

    if says(_NO_GRPC):
        return f"{detail} (this port takes no gRPC: it may be that of OTLP over HTTP)"
    if secure and says(_NO_TLS):
        return f"{detail} (this port speaks no TLS: send in plain text, as `insecure` allows, or set up TLS)"
    if says((_NOBODY,)) and parts.port is None:
        return (
            f"{detail} (the endpoint names no port, so it is {443 if secure else 80}; that of Fleet is usually 4318)"
        )
    if says((_NOBODY,)):
        return f"{detail} (does anything listen on {parts.netloc}?)"
    if says(_CLOSED):
        return f"{detail} (the server may require {'a client certificate' if secure else 'TLS'})"
    return detail


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The outcome of one request. `response`: the encoded export response; `headers`: headers of the answer or its
    gRPC metadata, with lower-case names; `retry_after`: seconds, `None` if the server asked for no delay."""

    failure: DeliveryFailure | None = None
    disposition: Disposition | None = None
    detail: str = ""
    response: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    retry_after: float | None = None

    @property
    def answered(self) -> bool:
        """Whether the server itself answered, even with a refusal."""
        return self.failure not in (*NETWORK_FAILURES, DeliveryFailure.TOKEN)


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Target and options of a client. `endpoint`: `host:port` or a URL; `timeout`: seconds for one answer.

    `cluster`, if set, is sent as query parameter or metadata. Encoding and compression describe the body; gRPC
    supports protobuf only.
    """

    endpoint: str
    tls: ClientTls = field(default_factory=ClientTls)
    token_file: Path | None = None
    cluster: str = ""
    timeout: float = 10.0
    protocol: Literal["http", "grpc"] = "http"
    encoding: Encoding = "protobuf"
    compression: Literal["none", "gzip"] = "none"


class OtlpClient(Protocol):
    """Sends encoded requests. It reads the token file for every request, and the certificate files again when they
    change, so that rotation needs no restart."""

    async def send(self, signal: Signal, body: bytes) -> ExportResult:
        """Send one request; never raises because of the network or the server."""

    async def close(self) -> None:
        """Close the connections."""


def make_client(config: ClientConfig) -> OtlpClient:
    """Make the client of the configured protocol; only its library is imported.

    Raises `SettingsError` for an endpoint, certificate or token that cannot be used.
    """
    if config.protocol == "http":
        from ingero_kit.otlp_http_client import OtlpHttpClient

        return OtlpHttpClient(config)
    from ingero_kit.otlp_grpc_client import OtlpGrpcClient

    return OtlpGrpcClient(config)


def base_url(endpoint: str, insecure: bool) -> str:
    """Convert `host:port` or a URL to a URL without a trailing slash.

    Raises `SettingsError` for anything that is neither http nor https.
    """
    text = endpoint.strip().rstrip("/")
    if any(ord(letter) < 33 for letter in text):
        raise SettingsError(f"{endpoint!r}: an address cannot hold spaces or control characters")
    if "://" not in text:
        return f"{'http' if insecure else 'https'}://{text}"
    if not text.startswith(("http://", "https://")):
        raise SettingsError(f"{endpoint}: only http and https are supported")
    return text


def grpc_target(endpoint: str, insecure: bool) -> tuple[str, bool]:
    """Convert `host:port`, `dns:///host:port` or a URL to a channel's target and whether it uses TLS.

    Raises `SettingsError` for a path or a missing port, which gRPC would interpret differently.
    """
    if endpoint.startswith("dns:///"):
        return endpoint, not insecure
    try:
        url = urlsplit(base_url(endpoint, insecure))
        if url.port is None or not url.hostname:
            raise SettingsError(f"{endpoint}: a gRPC address is host:port, such as fleet:4317")
    except ValueError as error:
        raise SettingsError(f"{endpoint}: {error}") from None
    if url.path or url.query or url.fragment or "@" in url.netloc:
        raise SettingsError(f"{endpoint}: a gRPC address is host:port and nothing else")
    return url.netloc, url.scheme == "https"
