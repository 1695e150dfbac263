"""What a user of Echo sets. `ingero-echo validate` checks a file; `serve --help` names the precedence."""

import re
from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator

from ingero_http.limits import Limits
from ingero_kit.addresses import Endpoint, is_loopback
from ingero_kit.gpu_rates import builtin
from ingero_kit.nats_settings import STREAM_PATTERN, NatsServersConfig
from ingero_kit.settings import Duration, Settings
from ingero_kit.tls import ServerTls


class StoreConfig(Settings):
    """The database."""

    path: Path = Path("echo.duckdb")
    """Database file; on a local disk, because locks of network file systems cannot be trusted."""
    memory_limit_mb: int = Field(default=160, ge=64)
    """Most memory of the database engine, megabytes; queries that need more fail, ingest goes on."""
    threads: int = Field(default=2, ge=1, le=256)
    """Threads of the database engine."""
    spill_limit_mb: int = Field(default=1024, ge=0)
    """Most disk that large queries may use next to the database, megabytes."""
    wal_limit_mb: int = Field(default=32, ge=1)
    """Size of the write-ahead log at which it is folded into the database file, megabytes."""
    backup_folder: Path | None = None
    """Where `POST /api/v2/backups` may write; backups over the API are off without it."""


class TableConfig(Settings):
    """Tables in Apache Iceberg that all events are sealed into; needs the extra `echo-lake`."""

    catalog: dict[str, str]
    """Properties of the catalog as PyIceberg takes them (`type`, `uri`, `s3.endpoint`, ...), without secrets."""
    credentials_file: Path | None = None
    """YAML file with further properties of the catalog, such as `uri` with a password or `s3.secret-access-key`; they
    replace those of `catalog`."""
    warehouse: str = Field(min_length=1)
    """Folder of the tables: `s3://bucket/path` or `file:///path`."""
    namespace: str = Field(default="ingero", pattern=r"^[a-z][a-z0-9_]{0,62}$")
    """Namespace of the tables in the catalog."""
    shard: str = Field(default="0", pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    """Name of this writer among those that share the tables. A database keeps its name; another database, also one
    that replaces a lost volume, takes a new name."""
    former_shard: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    """The name that this database had before it took this one. What it sealed under it is not sealed again."""
    every: Duration = Field(default=60.0, gt=0)
    """Time between two seals."""
    max_rows: int = Field(default=1_000_000, ge=1)
    """Most events of one seal; more are sealed at once one after the other."""
    keep: Duration = Field(default=3600.0, ge=0)
    """How long events stay in this database after they were sealed; at least until the next seal."""
    memory_mb: int = Field(default=256, ge=64)
    """Most memory of the sort that precedes a seal, megabytes; it spills to disk beyond."""
    maintain_every: Duration | None = Field(default=3600.0, ge=1)
    """Time between two runs of maintenance of the tables, by one of the writers that share them; `null` leaves it to
    others."""
    retention: Duration | None = Field(default=None, ge=86400)
    """Days in the tables that ended longer ago are deleted; `null` keeps all."""
    snapshots: Duration = Field(default=3600.0, ge=600)
    """How long replaced versions of the tables can be read; longer than any question takes."""
    compact_mb: int = Field(default=256, ge=1)
    """Files of ended days are merged to at most this size, megabytes."""

    @model_validator(mode="after")
    def _no_secrets(self) -> Self:
        for name, value in self.catalog.items():
            if SECRET_NAME.search(name) or PASSWORD_IN_URL.match(value):
                raise ValueError(f"catalog.{name} holds a secret: move it into the file of credentials_file")
        return self


SECRET_NAME: Final = re.compile(r"secret|password|token|credential|session|private|sas-|account-key", re.I)
"""Properties of catalogs that are secrets."""

PASSWORD_IN_URL: Final = re.compile(r"[^/]*://[^/@]*:[^/@]+@")
"""Addresses that contain a password."""


class ReadConfig(Settings):
    """`ingero-echo read`: answers from the shared tables, and from what their writers have not sealed yet."""

    cache: Path = Path("echo-cache")
    """Folder for copies of data files; emptied at the start."""
    cache_mb: int = Field(default=10_240, ge=16)
    """Most data files in the folder, megabytes; those that were used longest ago go first. A question whose files are
    larger is refused."""
    every: Duration = Field(default=5.0, gt=0)
    """Time between two checks for new versions of the tables."""
    shards: dict[str, str] = Field(default_factory=dict)
    """Addresses of the writers' APIs by `table.shard`, such as `prod-0: https://echo-0:18081`."""
    token_file: Path | None = None
    """Token for the writers, with the scope `read` and for all clusters."""
    ca_file: Path | None = None
    """Authorities of the writers' certificates; those of the system without it."""
    missing_after: Duration = Field(default=10.0, gt=0)
    """Time without an answer of a writer after which answers name it in `missing`."""
    unsealed_rows: int = Field(default=5_000_000, ge=1000)
    """Most rows of one writer that are kept because they are not sealed; then it counts as missing."""


class IngestConfig(Settings):
    """OTLP in."""

    grpc_endpoint: Endpoint | None = "127.0.0.1:4317"
    """Address of OTLP over gRPC; `null` switches it off."""
    http_endpoint: Endpoint | None = "127.0.0.1:4318"
    """Address of OTLP over HTTP; `null` switches it off."""
    group_rows: int = Field(default=10_000, ge=1)
    """Most rows of one transaction."""
    group_wait: Duration = Field(default=0.02, ge=0, le=1)
    """Longest time that a small group waits for company; a third of it without any ends the wait."""
    queue_mb: int = Field(default=64, ge=1)
    """Encoded pushes that may wait to be written, megabytes; further ones are refused, and senders retry."""
    remembered_ids: int = Field(default=200_000, ge=1000)
    """Newest event ids that repeats are recognised by, also after a restart."""
    requests_per_second: float = Field(default=1000.0, ge=0)
    """Pushes a second that one token may send in the long run, and at once; further ones are refused, and
    senders retry. 0 for no limit."""
    max_request_body_size: int = Field(default=8 << 20, ge=1024)
    """Largest body as sent, bytes."""
    max_decoded_body_size: int = Field(default=32 << 20, ge=1024)
    """Largest body after decompression, bytes."""
    max_connections: int = Field(default=2000, ge=1)
    """Connections at once of each OTLP listener; for a further one, the one that was silent longest is closed."""

    def limits(self) -> Limits:
        """The HTTP listener's bounds."""
        return Limits(
            body_bytes=self.max_request_body_size,
            decoded_bytes=self.max_decoded_body_size,
            connections=self.max_connections,
        )


class NatsSourceConfig(NatsServersConfig):
    """A stream of NATS JetStream to which Fleets publish OTLP requests (`exporters.nats`)."""

    stream: str = Field(default="ingero-otlp", pattern=STREAM_PATTERN)
    """Name of the stream, one for each Echo; created when it is missing."""
    max_bytes: int = Field(default=4 << 30, ge=1 << 20)
    """Size at which the stream takes no more, so that Fleets keep what they have; NATS reserves so much."""


class SourceConfig(Settings):
    """What Echo reads by itself, in addition to what is pushed to it. Needs the extra `echo-source`, and `table`."""

    nats: NatsSourceConfig
    """A stream of NATS JetStream. What was read is deleted there once it is sealed."""


class RetentionConfig(Settings):
    """When events go."""

    age: Duration = Field(default=30 * 86400.0, gt=0)
    """Events older than this are deleted."""
    size_mb: int = Field(default=20_480, ge=1)
    """The oldest events are deleted while the live data is larger than this, megabytes."""
    every: Duration = Field(default=60.0, gt=0)
    """Time between two runs of retention."""


class ApiConfig(Settings):
    """JSON API and MCP, one listener."""

    endpoint: Endpoint = "127.0.0.1:18081"
    """Address to listen on."""
    health_endpoint: Endpoint | None = None
    """Address of `/healthz` and `/readyz` alone, in plain text, so that no number of clients of the API keeps probes
    out; none without it."""
    requests_per_second: float = Field(default=20.0, gt=0)
    """Requests a second that one token may make in the long run."""
    burst: int = Field(default=60, ge=1)
    """Requests that one token may make at once."""
    sql_for_tenants: bool = False
    """Whether tokens that are bound to clusters may use SQL; they then see the rows of their clusters only."""
    mcp_sessions: int = Field(default=256, ge=1)
    """MCP sessions at once."""
    allowed_hosts: tuple[str, ...] = ()
    """Host headers that MCP accepts besides loopback names, such as `echo.example.com:*`; empty accepts any."""


class QueryConfig(Settings):
    """Bounds of every question."""

    timeout: Duration = Field(default=10.0, gt=0)
    """Longest time of one query; then it is cancelled."""
    max_rows: int = Field(default=10_000, ge=1)
    """Most rows of one answer; more are cut off and the answer says so."""
    max_bytes: int = Field(default=16 << 20, ge=1024)
    """Most bytes of one answer before encoding."""
    at_once: int = Field(default=4, ge=1)
    """Questions that are answered at the same time; one token may take all places but one."""
    sql_at_once: int = Field(default=2, ge=1, le=64)
    """Queries of users' SQL that run at the same time, each in a process of its own; all but one for one token."""
    sql_memory_mb: int = Field(default=192, ge=64)
    """Most memory that each of these processes may take for its query, megabytes; the system enforces it."""
    queue_wait: Duration = Field(default=5.0, ge=0)
    """Longest time that a question waits for its turn; then it is refused with a time to retry after."""


class AuthConfig(Settings):
    """Who may do what."""

    tokens_file: Path | None = None
    """Accepted bearer tokens, one a line, see docs/echo.md; read again when the file changes."""
    grace: Duration = Field(default=30.0, ge=0)
    """How long a token that is no longer in the file is still accepted after a reload."""
    audit_file: Path | None = None
    """Where the audit lines go, appended; standard error without it."""


class RatesConfig(Settings):
    """What lost time costs."""

    currency: str = "USD"
    """Currency of the rates."""
    rates: dict[str, dict[str, float]] = Field(
        default_factory=lambda: {provider: dict(models) for provider, models in builtin().providers.items()}
    )
    """Prices of one GPU hour by provider and by the name that nvidia-smi prints; set your own. Without them, the list
    prices of `ingero-fleet rates show`."""
    fallback_rate: float = Field(default=0.0, ge=0)
    """Price of one GPU hour where no other fits."""


class EchoConfig(Settings):
    """Everything."""

    insecure: bool = False
    """Speak plain text and ask for no token where none is configured; loopback addresses only."""
    tls: ServerTls | None = None
    """TLS of all listeners; required unless `insecure` is set."""
    auth: AuthConfig = AuthConfig()
    """Who may do what."""
    store: StoreConfig = StoreConfig()
    """The database."""
    table: TableConfig | None = None
    """Shared tables that events are sealed into; without it all events stay in the database."""
    read: ReadConfig | None = None
    """Only for `ingero-echo read`."""
    ingest: IngestConfig = IngestConfig()
    """OTLP in."""
    source: SourceConfig | None = None
    """OTLP from a stream; without it only what is pushed."""
    retention: RetentionConfig = RetentionConfig()
    """When events go."""
    api: ApiConfig = ApiConfig()
    """JSON API and MCP."""
    query: QueryConfig = QueryConfig()
    """Bounds of every question."""
    cost: RatesConfig = RatesConfig()
    """What lost time costs."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """debug, info, warning or error."""

    @model_validator(mode="after")
    def _safe(self) -> Self:
        endpoints = [self.ingest.grpc_endpoint, self.ingest.http_endpoint, self.api.endpoint]
        exposed = [endpoint for endpoint in endpoints if endpoint and not is_loopback(endpoint)]
        if self.source and self.table is None:
            raise ValueError("source needs table: messages are deleted from the stream once they are sealed there")
        if self.insecure and exposed:
            raise ValueError(f"insecure is for loopback addresses only, and {exposed[0]} is none: set tls instead")
        if not self.insecure and self.tls is None:
            raise ValueError("tls is required: set tls.cert_file and tls.key_file, or --insecure on loopback")
        if not self.insecure and self.auth.tokens_file is None:
            raise ValueError("auth.tokens_file is required: without tokens nobody may ask; or --insecure on loopback")
        return self


def cached_files(config: ReadConfig) -> Path:
    """The folder of a reader that holds data files, and nothing else."""
    return config.cache / "files"
