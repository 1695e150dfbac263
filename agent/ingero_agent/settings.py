"""What a user of the agent sets. Flags carry the published agent's names."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from ingero_agent.published_file import published_endpoint
from ingero_agent.settings_file import CONFIG_VARIABLE, TRACE_PREFIX, TRACE_SECTION, Pattern
from ingero_kit.addresses import OptionalEndpoint, is_local_name, parse_listen
from ingero_kit.health_report import check_name
from ingero_kit.settings import Duration, Settings, load, read_yaml

PREFIX: Final = "INGERO_AGENT_"
ENDPOINT: Final = "fleet_endpoint"


class AgentSettings(Settings):
    """`ingero-agent fleet-push`."""

    fleet_endpoint: str
    """Fleet's OTLP address: `host:port` or a URL; port 4318 is HTTP, 4317 gRPC. Without it, `fleet.endpoint` in the
    published agent's `ingero.yaml`."""
    fleet_cluster_id: str
    """The cluster that this node belongs to."""
    fleet_node_id: str = Field(
        default_factory=socket.gethostname, json_schema_extra={"default_in_words": "the host name"}
    )
    """This node's name; in Kubernetes the node name."""
    fleet_workload_type: str = "unknown"
    """What runs here, such as training or inference; nodes are compared only within it."""
    fleet_job_id: str = ""
    """The job that runs here; nodes are compared only within it. Without it, the Slurm job of the workload's
    processes, if they have one."""
    fleet_stage: str = ""
    """Pipeline stage, where known."""
    fleet_push_interval: Duration = Field(default=10.0, ge=0.1)
    """Time between pushes; each is spread by 10 %."""
    fleet_timeout: Duration = Field(default=5.0, ge=0.05)
    """Longest wait for one answer."""
    fleet_protocol: Literal["http", "grpc"] = "http"
    """Protocol of pushes: OTLP/HTTP or OTLP/gRPC."""
    fleet_encoding: Literal["protobuf", "json"] = "protobuf"
    """Encoding of pushes over HTTP; gRPC is always protobuf."""
    fleet_compression: Literal["none", "gzip"] = "none"
    """Compression of pushes."""
    fleet_insecure: bool = False
    """Speak without TLS."""
    fleet_tls_ca: Path | None = None
    """Authorities to trust instead of the system's."""
    fleet_tls_cert: Path | None = None
    """Client certificate."""
    fleet_tls_key: Path | None = None
    """Client key."""
    fleet_tls_allow_loose_key_perms: bool = False
    """Accept a private key that others may read."""
    fleet_token_file: Path | None = None
    """File with the bearer token; read at every push, so that rotation needs no restart."""
    fleet_persist_path: Path = Path("/var/lib/ingero/health-baseline.json")
    """Where the baseline is kept over restarts."""
    fleet_persist_interval: Duration = Field(default=60.0, ge=0.1)
    """How often it is saved."""
    fleet_persist_stale_age: Duration = 600.0
    """Age above which a saved baseline is not used."""
    fleet_world_size: int = Field(default=0, ge=0, le=1_000_000)
    """Nodes of the job, each counted as one rank; 0 when not distributed. Fleet's quorum expects as many. Without it,
    those of the Slurm job."""
    fleet_node_rank: int | None = Field(default=None, ge=0)
    """This node's rank, if it is known; needs `fleet_world_size`."""
    fleet_threshold_url: str | None = None
    """Threshold API to ask when pushes bring no threshold."""
    fleet_poll_interval: Duration = Field(default=10.0, ge=0.1)
    """How often to ask it."""
    fleet_classifier_hysteresis: float = Field(default=0.02, ge=0, lt=0.5)
    """How far above the threshold a straggler must come to count as healthy again."""
    detect_provider: bool = True
    """Ask the instance metadata services which cloud this is."""
    detect_slurm: bool = True
    """Take the job, its number of nodes and this node's rank from Slurm where `fleet_job_id` is not set."""
    warmup_samples: int = Field(default=30, ge=1)
    """Polls before the node counts as active."""
    remediate: bool = False
    """Offer straggler events on the unix socket."""
    remediate_socket: Path | None = None
    """Path of the socket."""
    remediate_gid: int | None = Field(default=None, ge=0)
    """Group that may connect; only this user without it."""
    stub: bool = False
    """Constant made-up signals."""
    stub_script: Path | None = None
    """Made-up signals from a scenario file; with `stub` it may be written and changed later."""
    watch_pid: tuple[PositiveInt, ...] = ()
    """Processes whose CPU time stands for work."""
    watch_command: Pattern = ""
    """Pattern over command lines of processes to watch."""
    watch_cgroup: Path | None = None
    """Cgroup (version 2) folder to watch."""
    progress_file: Path | None = None
    """File with a growing number of steps; their rate stands for work."""
    signal_db_path: Path | None = None
    """Database of `ingero-agent trace`."""
    signal_pid: tuple[int, ...] = ()
    """Only these processes of that database; all without it."""
    signal_window: Duration = Field(default=60.0, ge=10)
    """Window over a database that does not say when it was written, as that of the published agent; otherwise what
    counts is what happened between two pushes."""
    ras_address: OptionalEndpoint = ""
    """Address of NCCL's RAS service on this node, `localhost:28028` unless the job sets NCCL_RAS_ADDR. It is asked
    whether the job hangs; without an address it is not."""
    ras_interval: Duration = Field(default=30.0, ge=5)
    """How often the first host of a job asks; the others ask less often."""
    metrics_listen: OptionalEndpoint = ""
    """Address of `/metrics`, `/healthz` and `/readyz`: `host:port`, or `:port` for every address; none without it."""
    explain_token_file: Path | None = None
    """Tokens for `/api/v1/explain` and `/mcp`, one a line; without it only a loopback address serves these paths."""
    mcp: bool = False
    """Serve the Model Context Protocol at `/mcp`, wherever `/api/v1/explain` is served."""
    api_listen: OptionalEndpoint = ""
    """Address that serves `/api/v1/explain` and `/mcp` alone: `host:port`, or `:port` for every address. Beyond a
    loopback address it needs TLS and a token file."""
    api_tls_cert: Path | None = None
    """Certificate chain of that address, PEM; followed when it changes."""
    api_tls_key: Path | None = None
    """Private key of that address, PEM."""
    state_file: Path | None = None
    """File to write the node's state into after every poll, as `/run/ingero/state.json`, for `ingero-agent healthy`;
    none without it."""
    ports_file: Path | None = None
    """File to write the port taken into, as JSON, when ready."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important level that is written."""

    @property
    def only_pid(self) -> int | None:
        """The process whose causes are searched, if `signal_pid` names exactly one; `None` for all."""
        return self.signal_pid[0] if len(self.signal_pid) == 1 else None

    @model_validator(mode="after")
    def _sane(self) -> Self:
        for name in ("fleet_cluster_id", "fleet_node_id"):
            problem = check_name(getattr(self, name))
            if problem:
                raise ValueError(f"{name} {problem}")
        if self.fleet_insecure and (self.fleet_tls_ca or self.fleet_tls_cert or self.fleet_tls_key):
            raise ValueError("fleet_insecure cannot be combined with TLS files")
        if (self.fleet_tls_cert is None) != (self.fleet_tls_key is None):
            raise ValueError("fleet_tls_cert and fleet_tls_key go together")
        if (self.api_tls_cert is None) != (self.api_tls_key is None):
            raise ValueError("api_tls_cert and api_tls_key go together")
        guarded = self.api_tls_cert and self.explain_token_file
        if self.api_listen and not guarded and not is_local_name(parse_listen(self.api_listen)[0]):
            raise ValueError(
                "api_listen beyond a loopback address needs api_tls_cert, api_tls_key, explain_token_file"
            )
        if self.fleet_protocol == "grpc" and self.fleet_encoding == "json":
            raise ValueError("fleet_encoding json is for fleet_protocol http only")
        watched = bool(self.watch_pid or self.watch_command or self.watch_cgroup or self.progress_file)
        chosen = [self.stub or self.stub_script is not None, self.signal_db_path is not None, watched]
        if sum(chosen) != 1:
            raise ValueError(
                "choose one source of signals: --stub and --stub-script, --signal-db-path, "
                "or --watch-pid / --watch-command / --watch-cgroup with or without --progress-file"
            )
        if self.fleet_node_rank is not None and not self.fleet_world_size:
            raise ValueError("fleet_node_rank needs fleet_world_size: a rank is one of a number of nodes")
        if self.fleet_world_size and (self.fleet_node_rank or 0) >= self.fleet_world_size:
            raise ValueError("fleet_node_rank must be below fleet_world_size")
        return self


def read_settings(flags: Mapping[str, Any], file: Path | None = None) -> AgentSettings:
    """Flags, then INGERO_AGENT_*, then the file, then defaults. Raises `SettingsError`.

    Fleet's address may last come from the published agent's file. What is for `trace` (INGERO_AGENT_TRACE_*, and
    `trace:` in the file) is not read.
    """
    own = (
        flags.get(ENDPOINT)
        or os.environ.get(f"{PREFIX}{ENDPOINT.upper()}")
        or (file and read_yaml(file).get(ENDPOINT))
    )
    if not own:
        flags = {**flags, ENDPOINT: published_endpoint()}
    not_ours = {CONFIG_VARIABLE, *(name for name in os.environ if name.startswith(TRACE_PREFIX))}
    return load(
        AgentSettings, file=file, prefix=PREFIX, flags=flags, reserved=frozenset(not_ours),
        other_sections=frozenset({TRACE_SECTION}),
    )  # fmt: skip
