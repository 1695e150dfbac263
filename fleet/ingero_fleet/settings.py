"""What a user of Fleet sets, in the Collector's manner: receivers, processors, extensions, exporters, service.

`ingero-fleet validate --config FILE` checks a file; `ingero-fleet serve --help` names the precedence.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from ingero_contract.values import THRESHOLD_K, THRESHOLD_MIN_BAND
from ingero_fleet.cost_settings import CostConfig
from ingero_fleet.nccl_settings import NcclConfig
from ingero_http.limits import Limits
from ingero_kit.addresses import Endpoint, parse_endpoint
from ingero_kit.settings import Duration, Settings, load
from ingero_kit.tls import ClientTls, ServerTls


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
    max_connections: int = Field(default=20_000, ge=1)
    """Connections at once; for a further one, the one that has been silent longest is closed. Fewer where the system
    allows fewer open files."""

    def limits(self) -> Limits:
        """The bounds for the server."""
        return Limits(
            body_bytes=self.max_request_body_size,
            decoded_bytes=self.max_decoded_body_size,
            read_seconds=self.read_timeout,
            idle_seconds=self.idle_timeout,
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


class ThresholdConfig(Settings):
    """The published rule: median - max(k x 1.4826 x MAD, min_band), smoothed."""

    k: float = Field(default=THRESHOLD_K, gt=0, le=20)
    """Scaled median absolute deviations below the median."""
    ema_alpha: float = Field(default=0.2, gt=0, le=1)
    """Weight of the newest value; 1 switches smoothing off."""
    min_band: float = Field(default=THRESHOLD_MIN_BAND, ge=0, le=0.5)
    """Smallest distance between median and threshold, so that a tight fleet does not accuse itself."""


class QuorumConfig(Settings):
    """When the statistics may speak."""

    statistical_min: int = Field(default=5, ge=2)
    """Fewest active nodes of a cohort for a threshold."""
    coverage_fraction: float = Field(default=0.80, gt=0, le=1)
    """Reporting over expected nodes below which coverage counts as low."""
    expected_nodes: int = Field(default=0, ge=0)
    """Nodes a cluster should have; 0 takes the larger of the declared world size and the most seen at once."""


class PanicConfig(Settings):
    """When Fleet distrusts what it sees and freezes its thresholds."""

    straggler_fraction: float = Field(default=0.5, gt=0, le=1)
    """Share of a cluster's active nodes below their threshold beyond which nobody is to be acted on."""


class CohortConfig(Settings):
    """Who is compared with whom."""

    by: tuple[Literal["workload_type", "gpu_model", "job_id", "stage", "cgroup_path_hash"], ...] = (
        "workload_type",
        "job_id",
        "gpu_model",
        "stage",
    )
    """What nodes of one cohort share; a cohort below the quorum merges by dropping the last first."""


class DetectorConfig(Settings):
    """The detector whose verdicts may be acted on."""

    false_alarms_per_node_hour: float = Field(default=1e-4, gt=0, le=10)
    """The budget: how many healthy nodes may be accused, per node and hour."""
    warmup_ticks: int = Field(default=30, ge=5, le=10_000)
    """Working push intervals of a node that its baseline is learnt from."""
    own_band: float = Field(default=0.05, gt=0, le=1)
    """Loss against its own history, as a share, below which no node is accused."""
    absolute_band: float = Field(default=0.15, gt=0, le=1)
    """Loss against its peers below which a node that was slow from the start is not accused; chips differ."""
    snapshot: Path | None = None
    """File that keeps the state: what was learnt, thresholds, collectives, cost, taints. Without it a restart learns
    anew, and nodes echo their last verdict."""
    snapshot_interval: Duration = Field(default=60.0, ge=1)
    """How often the snapshot is written."""
    record: Path | None = None
    """File to which every tick is appended, for `ingero-fleet replay`."""
    record_bytes: int = Field(default=256 << 20, ge=1 << 20)
    """Size at which the recording becomes FILE.1 and a new one begins."""


class IngeroConfig(Settings):
    """The processor: score map, statistics, threshold and verdict."""

    push_interval: Duration = Field(default=10.0, ge=0.05)
    """How often agents push; statistics are computed as often."""
    ttl_multiplier: float = Field(default=5.0, ge=2)
    """Push intervals of silence after which a node is forgotten."""
    max_nodes: int = Field(default=200_000, ge=1)
    """Nodes kept over all clusters; pushes of further ones are rejected and counted."""
    max_clusters: int = Field(default=1_000, ge=1)
    """Clusters kept; pushes of further ones are rejected and counted."""
    max_cohorts: int = Field(default=10_000, ge=1)
    """Cohorts kept; pushes of nodes that would need a further one are rejected and counted."""
    threshold: ThresholdConfig = ThresholdConfig()
    """The published rule."""
    quorum: QuorumConfig = QuorumConfig()
    """When the statistics may speak."""
    panic: PanicConfig = PanicConfig()
    """When nobody is to be acted on."""
    cohort: CohortConfig = CohortConfig()
    """Who is compared with whom."""
    detector: DetectorConfig = DetectorConfig()
    """The detector whose verdicts may be acted on."""


class ProcessorsConfig(Settings):
    """What is done with telemetry."""

    ingero: IngeroConfig = IngeroConfig()
    """Score map, statistics, threshold and verdict."""
    nccl: NcclConfig = NcclConfig()
    """Which rank the collectives wait for."""
    cost: CostConfig = CostConfig()
    """What stragglers cost."""


class ThresholdExtensionConfig(Settings):
    """The threshold API and the diagnostics."""

    agent_endpoint: Endpoint = "127.0.0.1:8080"
    """Threshold, stragglers and verdicts, for agents and the operator."""
    admin_endpoint: Endpoint = "127.0.0.1:8081"
    """Diagnostics without authentication: loopback addresses only."""
    tls: ServerTls | None = None
    """TLS of the agent endpoint."""
    auth: ListenerAuthConfig = ListenerAuthConfig()
    """Bearer authentication of the agent endpoint."""

    @model_validator(mode="after")
    def _loopback(self) -> Self:
        host, _ = parse_endpoint(self.admin_endpoint)
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError("admin_endpoint has no authentication and must be a loopback address")
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


class ExporterConfig(Settings):
    """OTLP onward, to Echo or any collector."""

    endpoint: str
    """Address to send to."""
    tls: ClientTls = ClientTls()
    """TLS; on unless `insecure: true`."""
    bearer_token_file: Path | None = None
    """File with the bearer token to send."""
    timeout: Duration = Field(default=10.0, gt=0)
    """Longest time for one request."""
    batch_bytes: int = Field(default=1 << 20, ge=1024)
    """Pushes are joined up to this size."""
    sending_queue: QueueConfig = QueueConfig()
    """Bounds of the queue."""
    max_elapsed_time: Duration = Field(default=86_400.0, gt=0)
    """How long one batch is tried before it is dropped and counted. Meanwhile further pushes wait in the queue."""


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


class FleetConfig(Settings):
    """Everything."""

    receivers: ReceiversConfig = ReceiversConfig()
    """Where telemetry comes in."""
    processors: ProcessorsConfig = ProcessorsConfig()
    """What is done with it."""
    extensions: ExtensionsConfig = ExtensionsConfig()
    """Extensions."""
    exporters: ExportersConfig = ExportersConfig()
    """Where findings go."""
    service: ServiceConfig = ServiceConfig()
    """What of the above runs."""

    @model_validator(mode="after")
    def _defined(self) -> Self:
        pipelines = self.service.pipelines
        for signal in ("metrics", "logs", "traces"):
            for name in getattr(pipelines, signal).exporters:
                if name != "prometheus" and getattr(self.exporters, name) is None:
                    raise ValueError(f"service.pipelines.{signal}.exporters names {name}, which is not configured")
        return self


def read_config(file: Path | None, assignments: Sequence[str] = ()) -> FleetConfig:
    """What `--set` gave over variables over the file over the defaults. `SettingsError` names what cannot be used."""
    return load(
        FleetConfig, file=file, prefix="INGERO_FLEET_", assignments=assignments,
        reserved=frozenset({"INGERO_FLEET_CONFIG"}),
    )  # fmt: skip
