"""Settings of the log that several Fleets share."""

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from ingero_kit.settings import Duration, Settings
from ingero_kit.tls import ClientTls


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


class NatsConfig(Settings):
    """A NATS cluster with JetStream, 2.10 or newer."""

    servers: Annotated[tuple[Annotated[str, AfterValidator(_server)], ...], Field(min_length=1, max_length=32)]
    """Addresses of its servers."""
    prefix: str = Field(default="ingero", pattern=r"^[A-Za-z0-9_-]{1,32}$")
    """Begins the names of the subjects, the stream and the bucket of snapshots; one for each set of replicas."""
    credentials_file: Path | None = None
    """An NKEY seed, or the `.creds` file of a user; read again at every connection."""
    tls: ClientTls | None = None
    """TLS; plain text without it, unless an address begins with `tls://`."""
    max_bytes: int = Field(default=1 << 30, ge=1 << 20)
    """Size of the log at which its oldest messages are dropped; NATS reserves so much."""
    max_age: Duration = Field(default=1800.0, ge=120)
    """Age at which messages are dropped. A replica that was away for longer starts from a snapshot."""


class LogConfig(Settings):
    """The log that several Fleets share."""

    nats: NatsConfig | None = None
    """NATS JetStream; without it, this Fleet is alone."""
    role: Literal["replica", "receiver"] = "replica"
    """A `replica` receives and judges. A `receiver` publishes what it receives and answers by what replicas judge; it
    needs `nats`."""

    @model_validator(mode="after")
    def _with_a_log(self) -> Self:
        if self.role == "receiver" and self.nats is None:
            raise ValueError("role: a receiver needs log.nats")
        return self
