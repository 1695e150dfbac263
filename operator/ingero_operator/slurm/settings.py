"""Settings of `ingero-operator slurm`."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from ingero_kit.settings import Duration, Settings
from ingero_operator.api.base import NAME_PATTERN, Percent, Span
from ingero_operator.api.v1alpha1 import Budget, Mode, Taints
from ingero_operator.settings import Listed

LIMITS: Final = (
    "confirm_for", "confirm_windows", "recover_for", "min_healthy_percent", "storm_cooldown", "ttl", "quiet",
    "max_per_day", "hands_off", "min_node_age", "slow_from_start",
)  # fmt: skip
"""Limits that have the names of `spec.taints`."""


class SlurmSettings(Settings):
    """`ingero-operator slurm`. The limits are those of `spec.taints` of a FleetCluster, with the same defaults."""

    fleet_url: str
    """URL of Fleet's API."""
    cluster_id: str = Field(min_length=1, max_length=63, pattern=NAME_PATTERN)
    """Name of the cluster in every push."""
    fleet_otlp_url: str = ""
    """URL of Fleet's OTLP/HTTP receiver, which is sent a record of every drain; none without it."""
    token_file: Path | None = None
    """File with the bearer token for Fleet; read again at every pass."""
    ca_file: Path | None = None
    """PEM of the CA that signed Fleet's certificate; the system's without it."""
    drain: bool = False
    """Drain and undrain. Off: a dry run, which only logs what it would do."""
    paused: bool = False
    """No new drains; existing ones stay until there is a reason to end them."""
    partitions: Listed = ()
    """Only nodes of these partitions; all without it."""
    exclude: Listed = ()
    """Nodes that are never drained, besides those with the feature `ingero-exclude`."""
    needs_gpu: bool = True
    """Only nodes with a GPU in Gres."""
    poll: Duration = Field(default=10.0, ge=0.1)
    """Time between two passes."""
    statistics_interval: Duration = Field(default=10.0, ge=0.1)
    """How often Fleet computes its statistics (its push_interval); three of them without new statistics stop new
    drains."""
    scontrol: str = "scontrol"
    """The program."""
    scontrol_timeout: Duration = Field(default=20.0, ge=0.1)
    """Longest time of one call."""
    state_file: Path = Path("/var/lib/ingero/slurm-drains.json")
    """What is remembered over restarts: overrides, releases, recent drains. One process uses it at a time."""
    max_nodes: Annotated[int, Field(ge=0, le=1000)] = Budget().max_nodes
    """Most nodes that are drained at once."""
    max_percent: Annotated[int, Field(ge=0, le=99)] = Budget().max_percent
    """Most nodes that are drained at once, percent of the eligible ones, rounded down."""
    drain_interval: Span = Taints().interval
    """Shortest time between two new drains."""
    confirm_for: Span = Taints().confirm_for
    """How long a verdict must have lasted."""
    confirm_windows: Annotated[int, Field(ge=1, le=1000)] = Taints().confirm_windows
    """Consecutive statistics that must have confirmed it."""
    recover_for: Span = Taints().recover_for
    """How long a node must have been active and healthy before it is undrained."""
    min_healthy_percent: Percent = Taints().min_healthy_percent
    """Eligible nodes, percent, that must stay up and not drained."""
    storm_cooldown: Span = Taints().storm_cooldown
    """Pause after too many candidates at once, which point to a common cause."""
    ttl: Span = Taints().ttl
    """How long a drain lasts without fresh evidence. A drained node without a job gives none."""
    quiet: Span = Taints().quiet
    """Pause for a node after it was undrained."""
    max_per_day: Annotated[int, Field(ge=1, le=8)] = Taints().max_per_day
    """Most drains of one node in 24 hours."""
    hands_off: Span = Taints().hands_off
    """Pause for a node whose drain another user ended or took over."""
    min_node_age: Span = Taints().min_node_age
    """Time since the boot below which a node is left alone."""
    slow_from_start: bool = False
    """Also drain nodes that were slower than their peers from the start. Rates alone cannot tell a slow GPU from a
    node with another role in the job."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important level that is written."""

    @model_validator(mode="after")
    def _urls(self) -> Self:
        for name in ("fleet_url", "fleet_otlp_url"):
            url = getattr(self, name)
            if url and not url.startswith(("http://", "https://")):
                raise ValueError(f"{name}: an http or https URL was expected, not {url!r:.80}")
        return self

    def policy(self) -> Taints:
        """The limits as the policy takes them."""
        limits = {name: getattr(self, name) for name in LIMITS}
        budget = Budget(max_nodes=self.max_nodes, max_percent=self.max_percent)
        return Taints(mode=Mode.PREFER_NO_SCHEDULE, budget=budget, interval=self.drain_interval, **limits)
