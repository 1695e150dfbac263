"""Settings of the service: extensions that run, pipelines, own metrics and log."""

from typing import Literal

from ingero_kit.addresses import Endpoint
from ingero_kit.settings import Settings


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
    exporters: tuple[Literal["prometheus", "otlp", "otlphttp"], ...] = ()
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
