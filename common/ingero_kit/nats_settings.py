"""Settings of a connection to NATS, and the subjects of OTLP requests in a stream. Imports no client."""

from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from ingero_kit.otlp_signal import Signal
from ingero_kit.settings import Settings
from ingero_kit.tls import ClientTls

STREAM_PATTERN: Final = r"^[A-Za-z0-9_-]{1,64}$"
"""Names of streams, which begin the names of their subjects."""


def _server(text: str) -> str:
    url = text if "://" in text else f"nats://{text}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.path or parts.query or parts.fragment:
        raise ValueError("host:port, nats://host:port or tls://host:port was expected")
    if parts.username or parts.password:
        raise ValueError("a server's address holds no password; use credentials_file")
    return url if parts.port else f"{url}:4222"


class NatsServersConfig(Settings):
    """A NATS cluster with JetStream, 2.10 or newer."""

    servers: Annotated[tuple[Annotated[str, AfterValidator(_server)], ...], Field(min_length=1, max_length=32)]
    """Addresses of its servers."""
    credentials_file: Path | None = None
    """An NKEY seed, or the `.creds` file of a user; read again at every connection."""
    tls: ClientTls | None = None
    """TLS; plain text without it, unless an address begins with `tls://`."""


def otlp_subject(stream: str, signal: Signal) -> str:
    """The subject of the export requests of a signal in a stream."""
    return f"{stream}.{signal.name.lower()}"
