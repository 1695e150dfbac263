"""Settings of the service: extensions that run, pipelines, own metrics and log."""

from typing import Literal, Self

from pydantic import model_validator

from ingero_fleet.receiver_settings import ListenerAuthConfig
from ingero_kit.addresses import Endpoint, parse_endpoint
from ingero_kit.settings import Settings
from ingero_kit.tls import ServerTls


class ThresholdExtensionConfig(Settings):
    """The threshold API and the diagnostics."""

    agent_endpoint: Endpoint = "127.0.0.1:8080"
    """Threshold, stragglers and verdicts, for agents and the operator."""
    admin_endpoint: Endpoint = "127.0.0.1:8081"
    """Live page and diagnostics; on loopback addresses only, unless `admin_auth` has a token."""
    admin_auth: ListenerAuthConfig = ListenerAuthConfig()
    """Authentication of the admin endpoint: a bearer token, or for browsers the token as password with any user."""
    admin_tls: ServerTls | None = None
    """TLS of the admin endpoint."""
    tls: ServerTls | None = None
    """TLS of the agent endpoint."""
    auth: ListenerAuthConfig = ListenerAuthConfig()
    """Bearer authentication of the agent endpoint."""

    @model_validator(mode="after")
    def _loopback(self) -> Self:
        host, _ = parse_endpoint(self.admin_endpoint)
        if host not in ("127.0.0.1", "::1", "localhost") and self.admin_auth.bearer_token_file is None:
            raise ValueError("without admin_auth.bearer_token_file admin_endpoint must be a loopback address")
        return self


class HealtheeConfig(Settings):
    """Health of Fleet itself."""

    endpoint: Endpoint = "127.0.0.1:8088"
    """Open `/healthz/ee` and bearer `/internal/ee/state`."""
    auth: ListenerAuthConfig = ListenerAuthConfig()
    """Token for the detailed state, which is not served without one."""
    tls: ServerTls | None = None
    """TLS."""


class ZpagesConfig(Settings):
    """One zPage, `/debug/servicez`: whether Fleet is up and what runs in it."""

    endpoint: Endpoint = "127.0.0.1:55679"
    """Address to listen on."""


class ExtensionsConfig(Settings):
    """Extensions, which are not part of a pipeline."""

    ingero_threshold: ThresholdExtensionConfig = ThresholdExtensionConfig()
    """Threshold API and diagnostics."""
    healthee: HealtheeConfig = HealtheeConfig()
    """Health."""
    zpages: ZpagesConfig = ZpagesConfig()
    """One zPage, `/debug/servicez`: whether Fleet is up and what runs in it."""


class MetricsTelemetryConfig(Settings):
    """Fleet's own telemetry."""

    address: Endpoint = "127.0.0.1:8888"
    """Prometheus page about Fleet itself."""


class LogsTelemetryConfig(Settings):
    """Fleet's own log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important level that is written."""


class TelemetryConfig(Settings):
    """About Fleet itself."""

    metrics: MetricsTelemetryConfig = MetricsTelemetryConfig()
    """Own metrics."""
    logs: LogsTelemetryConfig = LogsTelemetryConfig()
    """Own log."""


class PipelineConfig(Settings):
    """One pipeline: names of components."""

    receivers: tuple[Literal["otlp"], ...] = ("otlp",)
    """Where it begins."""
    processors: tuple[Literal["ingero"], ...] = ()
    """What happens on the way."""
    exporters: tuple[Literal["prometheus", "otlp", "otlphttp", "nats"], ...] = ()
    """Where it ends."""


class PipelinesConfig(Settings):
    """The pipelines by signal."""

    metrics: PipelineConfig = PipelineConfig(processors=("ingero",), exporters=("prometheus",))
    """Health pushes and collectives."""
    logs: PipelineConfig = PipelineConfig()
    """Passed on unread; verdict edges join here."""
    traces: PipelineConfig = PipelineConfig()
    """Passed on unread."""


class ServiceConfig(Settings):
    """What of the above runs."""

    extensions: tuple[Literal["ingero_threshold", "healthee", "zpages"], ...] = (
        "ingero_threshold",
        "healthee",
        "zpages",
    )
    """Extensions that are started."""
    pipelines: PipelinesConfig = PipelinesConfig()
    """Pipelines by signal."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Own metrics and log."""
