"""Where pushes go and what comes back, in words that HTTP and gRPC share."""

import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal, Protocol

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_kit.settings import SettingsError
from ingero_kit.tls import ClientTls
from ingero_kit.tokens import read_authorization


class PushFailure(StrEnum):
    """Why a push did not arrive."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNAUTHENTICATED = "unauthenticated"
    REFUSED = "refused"
    BUSY = "busy"
    SERVER_ERROR = "server_error"
    TOKEN = "token"


RETRIED: Final = frozenset({PushFailure.UNREACHABLE, PushFailure.TIMEOUT})
"""Failures of the network, which are tried once more; what Fleet itself answered is not."""


@dataclass(frozen=True, kw_only=True)
class PushReply:
    """What became of one push. `threshold`, `quorum` and `verdict` are Fleet's words as they came, unread."""

    failure: PushFailure | None = None
    detail: str = ""
    threshold: str | None = None
    quorum: str | None = None
    verdict: str | None = None
    retry_after: float = 0.0
    """Seconds that a busy Fleet asks to wait beyond the usual interval."""

    @property
    def answered(self) -> bool:
        """Whether Fleet itself spoke, be it to refuse."""
        return self.failure not in (PushFailure.UNREACHABLE, PushFailure.TIMEOUT, PushFailure.TOKEN)


class PushTransport(Protocol):
    """Sends one push and waits for its reply."""

    async def send(self, request: ExportMetricsServiceRequest) -> PushReply:
        """Never fails; what went wrong stands in the reply."""

    async def close(self) -> None:
        """Give connections back."""


@dataclass(frozen=True, kw_only=True)
class PushTarget:
    """Where and how to push. `timeout` is seconds for one answer."""

    endpoint: str
    cluster: str
    tls: ClientTls
    token_file: Path | None = None
    threshold_url: str | None = None
    timeout: float = 5.0
    protocol: Literal["http", "grpc"] = "http"
    encoding: Literal["protobuf", "json"] = "protobuf"
    compression: Literal["none", "gzip"] = "none"

    def authorization(self) -> str | None:
        """The value of the Authorization header, read anew so that rotation needs no restart.

        Raises `SettingsError` when the file cannot be read or its token cannot travel in a header.
        """
        return read_authorization(self.token_file)


def base_url(endpoint: str, insecure: bool) -> str:
    """`host:port` or a URL into a URL without a trailing slash.

    Raises `SettingsError` for anything that is neither http nor https.
    """
    text = endpoint.strip().rstrip("/")
    if any(ord(letter) < 33 for letter in text):
        raise SettingsError(f"{endpoint!r}: an address cannot hold spaces or control characters")
    if "://" not in text:
        return f"{'http' if insecure else 'https'}://{text}"
    if not text.startswith(("http://", "https://")):
        raise SettingsError(f"{endpoint}: only http and https are spoken")
    return text


def check_key(file: Path | None, loose: bool) -> None:
    """Refuse a private key that others may read."""
    if file is not None and not loose and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingsError(f"{file}: the private key is readable by others: chmod 600 it")
