"""Settings of the OTLP receivers and their listeners."""

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from ingero_http.limits import Limits
from ingero_kit.addresses import Endpoint
from ingero_kit.settings import Duration, Settings
from ingero_kit.tls import ServerTls


class ListenerAuthConfig(Settings):
    """Who may talk to a listener."""

    bearer_token_file: Path | None = None
    """File with the accepted bearer tokens, one a line; read again when it changes."""


class ListenerConfig(Settings):
    """One OTLP listener."""

    endpoint: Endpoint
    """Address to listen on."""
    tls: ServerTls | None = None
    """TLS; plain text without it."""
    auth: ListenerAuthConfig = ListenerAuthConfig()
    """Bearer authentication; open without it."""
    max_request_body_size: int = Field(default=4 << 20, ge=1024)
    """Largest body as sent, bytes."""
    max_decoded_body_size: int = Field(default=16 << 20, ge=1024)
    """Largest body after decompression, bytes."""
    read_timeout: Duration = Field(default=10.0, gt=0)
    """Longest time from a request's first byte to its last, and to the first request of a connection."""
    idle_timeout: Duration = Field(default=120.0, gt=0)
    """Longest time between two requests of a connection."""
    max_connection_age: Duration = Field(default=0.0, ge=0)
    """Age at which a connection is closed after a response, a tenth more or less, so that several Fleets behind one
    address share the agents again after one was added; 0 for none."""
    max_connections: int = Field(default=20_000, ge=1)
    """Connections at once; for a further one, the one that has been silent longest is closed. Fewer where the system
    allows fewer open files, which is logged if a tenth or more is lost."""

    def limits(self) -> Limits:
        """The bounds for the server."""
        return Limits(
            body_bytes=self.max_request_body_size,
            decoded_bytes=self.max_decoded_body_size,
            read_seconds=self.read_timeout,
            idle_seconds=self.idle_timeout,
            age_seconds=self.max_connection_age,
            connections=self.max_connections,
        )


class GrpcConfig(ListenerConfig):
    """OTLP over gRPC."""

    endpoint: Endpoint = "127.0.0.1:4317"
    """Address to listen on."""


class HttpConfig(ListenerConfig):
    """OTLP over HTTP."""

    endpoint: Endpoint = "127.0.0.1:4318"
    """Address to listen on."""


class ProtocolsConfig(Settings):
    """The protocols of the OTLP receiver; one that is not named is not served."""

    grpc: GrpcConfig | None = None
    """OTLP over gRPC; `grpc: {}` takes the defaults."""
    http: HttpConfig | None = None
    """OTLP over HTTP; `http: {}` takes the defaults."""

    @model_validator(mode="before")
    @classmethod
    def _bare_names(cls, value: Any) -> Any:
        """Read `grpc:` with nothing behind it as the defaults, as the Collector does."""
        return (
            {key: {} if item is None else item for key, item in value.items()} if isinstance(value, dict) else value
        )


class OtlpReceiverConfig(Settings):
    """The OTLP receiver."""

    protocols: ProtocolsConfig = ProtocolsConfig(grpc=GrpcConfig(), http=HttpConfig())
    """What is listened to."""
    processes: int = Field(default=1, ge=1, le=64)
    """Processes that receive on the same ports. With 1, Fleet's own process receives; with more, so many others
    receive, and Fleet's own process judges what they received."""


class ReceiversConfig(Settings):
    """Where telemetry comes in."""

    otlp: OtlpReceiverConfig = OtlpReceiverConfig()
    """OTLP over gRPC and HTTP."""
