"""Settings of the exporters: the Prometheus page and OTLP."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from ingero_kit.addresses import Endpoint, parse_endpoint
from ingero_kit.nats_settings import STREAM_PATTERN, NatsServersConfig
from ingero_kit.settings import Duration, Settings
from ingero_kit.tls import ClientTls


class PrometheusConfig(Settings):
    """Fleet's findings for Prometheus."""

    endpoint: Endpoint = "127.0.0.1:9090"
    """Address to listen on."""


class QueueConfig(Settings):
    """The queue before an exporter."""

    queue_size: int = Field(default=100_000, ge=1)
    """Pushes held at most; further ones are dropped and counted."""
    max_bytes: int = Field(default=64 << 20, ge=1 << 16)
    """Bytes held at most."""


def _grpc_target(text: str) -> str:
    if "://" in text and not text.startswith("dns:///"):
        raise ValueError("this exporter speaks gRPC to host:port; for OTLP over HTTP use exporters.otlphttp")
    if parse_endpoint(text.removeprefix("dns:///"))[1] == 0:
        raise ValueError("a port above 0 was expected")
    return text


def _http_target(text: str) -> str:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or any(not "!" <= letter <= "~" for letter in text):
        raise ValueError("host:port, http://host:port or https://host:port was expected")
    return text


class ExportBoundsConfig(Settings):
    """Bounds of every exporter that sends in the background."""

    timeout: Duration = Field(default=10.0, gt=0)
    """Longest time for one request."""
    batch_bytes: int = Field(default=1 << 20, ge=1024)
    """Pushes are joined up to this size."""
    sending_queue: QueueConfig = QueueConfig()
    """Bounds of the queue."""
    max_elapsed_time: Duration = Field(default=86_400.0, gt=0)
    """How long one batch is tried before it is dropped and counted. Meanwhile further pushes wait in the queue."""


class ExporterConfig(ExportBoundsConfig):
    """OTLP onward, to Echo or any collector."""

    endpoint: str
    """Address to send to."""
    tls: ClientTls = ClientTls()
    """TLS; on unless `insecure: true`."""
    bearer_token_file: Path | None = None
    """File with the bearer token to send."""


class NatsExporterConfig(NatsServersConfig, ExportBoundsConfig):
    """OTLP into a stream of NATS JetStream that an Echo reads (`source.nats`); needs the extra `fleet-log`."""

    stream: str = Field(default="ingero-otlp", pattern=STREAM_PATTERN)
    """Name of the stream, which Echo creates."""
    batch_bytes: int = Field(default=512 << 10, ge=1024)
    """Pushes are joined up to this size. What exceeds the server's largest message once compressed is halved."""


class OtlpExporterConfig(ExporterConfig):
    """OTLP onward over gRPC."""

    endpoint: Annotated[str, AfterValidator(_grpc_target)]
    """`host:port`, or `dns:///host:port`; a URL is refused, because it usually means OTLP over HTTP."""


class OtlpHttpExporterConfig(ExporterConfig):
    """OTLP onward over HTTP."""

    endpoint: Annotated[str, AfterValidator(_http_target)]
    """`http(s)://host:port`; without a scheme, `tls.insecure` decides."""


class ExportersConfig(Settings):
    """Where findings go."""

    prometheus: PrometheusConfig = PrometheusConfig()
    """For Prometheus to scrape."""
    otlp: OtlpExporterConfig | None = None
    """OTLP over gRPC."""
    otlphttp: OtlpHttpExporterConfig | None = None
    """OTLP over HTTP."""
    nats: NatsExporterConfig | None = None
    """OTLP into a stream of NATS JetStream, for Echo."""
