"""What a user of `ingero-agent trace` sets."""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ingero_agent.settings_file import CONFIG_VARIABLE, TRACE_PREFIX, TRACE_SECTION, Pattern
from ingero_agent.trace.governor import DEFAULT_BUDGET
from ingero_contract.node_problems import TERMINATION_LOG
from ingero_kit.addresses import OptionalEndpoint
from ingero_kit.settings import Duration, Settings, load

AUTO, MULTI, PERF, NEVER = "auto", "multi", "perf", "never"
"""How probes are attached: links of many functions, one link each, or the first that this kernel has."""

KEEP_SECONDS: Final = 7 * 86400.0
MAX_DB_BYTES: Final = 10 * 2**30

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?")
_FACTORS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_byte_size(value: object) -> object:
    """Bytes of a text such as `500m` or `10GiB`, in powers of 1024; anything but a text comes back as it is."""
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip().lower())
    if found is None:
        raise ValueError("a size such as 500m or 10g was expected")
    return int(float(found.group(1)) * _FACTORS[found.group(2)])


ByteSize = Annotated[int, BeforeValidator(parse_byte_size)]


class TraceSettings(Settings):
    """`ingero-agent trace`."""

    db: Path = Path("/var/lib/ingero/ingero.db")
    """Database of the trace; `fleet-push --signal-db-path` reads it."""
    period: Duration = Field(default=1.0, ge=0.1, le=60)
    """Time between two polls of the counts."""
    duration: Duration | None = None
    """End by itself after this long."""
    budget: float = Field(default=DEFAULT_BUDGET, ge=0.0001, le=1)
    """Share of one processor that tracing may cost a traced process."""
    own_budget: float = Field(default=0.03, ge=0.001, le=1)
    """Share of one processor for the agent itself; above it, it samples collectives, or polls less often."""
    max_db: ByteSize = Field(default=MAX_DB_BYTES, ge=0, json_schema_extra={"default_in_words": "10g"})
    """Largest database; the oldest rows are removed first."""
    keep: Duration = Field(default=KEEP_SECONDS, ge=0, json_schema_extra={"default_in_words": "7d"})
    """How long counts are kept."""
    prometheus: OptionalEndpoint = ""
    """Address of `/metrics` (no authentication): `host:port`, or `:port` for every address; none without it."""
    otlp: str = ""
    """Export metrics to this OTLP/HTTP address."""
    otlp_insecure: bool = False
    """Export without TLS."""
    otlp_tls_ca: Path | None = None
    """Authorities to trust instead of the system's, PEM."""
    otlp_token_file: Path | None = None
    """File with the bearer token for the export."""
    otlp_interval: Duration = Field(default=10.0, ge=0)
    """Time between exports. Fleet cannot name a late rank before an export says so."""
    node: str = Field(default_factory=socket.gethostname, json_schema_extra={"default_in_words": "the host name"})
    """This node's name."""
    cluster: str = ""
    """The cluster that this node belongs to."""
    job_id: str = ""
    """The job, as `fleet-push --fleet-job-id` names it. Without it, the Slurm job of each process, if it
    has one."""
    detect_slurm: bool = True
    """Take the job of each process from Slurm where `job_id` is not set."""
    record: Path | None = None
    """Write every operation of every rank to this CSV or Parquet file, for `ingero-fleet diagnose`."""
    attach: Literal["auto", "multi", "perf"] = "auto"
    """Links of many functions, or one for each of the most important ones, as before Linux 6.6."""
    programs: Literal["auto", "prebuilt", "compiled"] = "auto"
    """Use the eBPF programs that are shipped, or compile them with BCC. `auto` compiles where the shipped ones cannot
    be used and BCC is installed."""
    returns: Literal["auto", "never"] = "auto"
    """Time calls, or only count them. `auto` tries whether a process in a container survives being timed."""
    only_command: Pattern = ""
    """Trace only processes whose command line matches this regular expression."""
    exclude_command: Pattern = ""
    """Do not trace processes whose command line matches this regular expression."""
    stacks: bool = True
    """Sample the call stacks of the process that its job waits for, while Fleet's answers to exports name this node
    for a late rank: for five seconds, at most every ten minutes."""
    gpu_interval: Duration = Field(default=1.0, ge=0)
    """Time between two polls of the GPUs; `0s`: they are not polled."""
    remediate: bool = False
    """Offer memory and straggle events on a unix socket."""
    remediate_socket: Path | None = Field(
        default=None, json_schema_extra={"default_in_words": "/run/ingero/trace.sock"}
    )
    """Path of that socket."""
    remediate_gid: int | None = Field(default=None, ge=0)
    """Group that may connect; only this user without it."""
    annotate: bool = False
    """Accept annotations of programs on a unix socket."""
    annotate_socket: Path | None = Field(
        default=None, json_schema_extra={"default_in_words": "/run/ingero/annotate.sock"}
    )
    """Path of that socket."""
    annotate_socket_gid: int | None = Field(default=None, ge=0)
    """Group that may write; only this user without it."""
    termination_log: Path = Path(TERMINATION_LOG)
    """File to keep the reasons in for which this node is not traced, or only in part, if it exists."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important level that is written."""

    @model_validator(mode="after")
    def _sane(self) -> Self:
        if self.otlp_insecure and self.otlp_tls_ca:
            raise ValueError("otlp_insecure cannot be combined with otlp_tls_ca")
        return self


def read_settings(flags: Mapping[str, Any], file: Path | None = None) -> TraceSettings:
    """Flags, then INGERO_AGENT_TRACE_*, then `trace:` in the file, then defaults. Raises `SettingsError`.

    Without `file`, INGERO_AGENT_CONFIG names it.
    """
    if file is None and os.environ.get(CONFIG_VARIABLE):
        file = Path(os.environ[CONFIG_VARIABLE])
    return load(TraceSettings, file=file, prefix=TRACE_PREFIX, flags=flags, section=TRACE_SECTION)
