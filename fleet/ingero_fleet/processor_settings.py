"""Settings of the processors: statistics, threshold and detector, collectives, cost."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from ingero_contract.values import THRESHOLD_K, THRESHOLD_MIN_BAND
from ingero_kit.settings import Duration, Settings


class NcclConfig(Settings):
    """Which rank the collectives wait for."""

    window: int = Field(default=512, ge=16, le=65_536)
    """Latest collectives of a communicator that are judged together."""
    window_age: Duration = Field(default=60.0, gt=0)
    """Older collectives do not count."""
    hold: Duration = Field(default=15.0, gt=0)
    """How long a collective waits for the points of its other ranks."""
    time_tolerance: Duration = Field(default=1.0, gt=0)
    """How far apart in time points of one collective may lie when they carry no sequence number."""
    error: float = Field(default=1e-6, gt=0, lt=1)
    """Chance of accusing any rank in a window of a healthy communicator, over all polls of a tick."""
    poll_interval: Duration = Field(default=1.0, ge=0.2)
    """How often new collectives are judged between two ticks; as long as a tick: at ticks alone."""
    share: float = Field(default=0.003, ge=0, lt=1)
    """Least share of time that must be lost to a rank."""
    actionable: bool = False
    """Whether the node of a late rank, or one whose GPU delays the collectives, counts as a straggler in
    `/api/v1/stragglers`, so that the operator may act on it. Without it they are listed under `culprits` only."""
    max_communicators: int = Field(default=10_000, ge=1)
    """Communicators kept for each cluster; points of further ones are left out and counted."""
    max_ranks: int = Field(default=1_000_000, ge=2)
    """Ranks kept over all communicators."""
    max_points: int = Field(default=1_000_000, ge=1000)
    """Points held at once; further ones are left out and counted."""
    max_gpus: int = Field(default=100_000, ge=1)
    """GPUs whose throttling is tracked; further ones are left out and counted."""
    gpu_age: Duration = Field(default=30.0, gt=0)
    """Silence after which a GPU is forgotten; agents report a throttled one with every push."""
    ttl: Duration = Field(default=300.0, gt=0)
    """Silence after which a communicator is forgotten."""
    topology_file: Path | None = None
    """NICs of GPUs and the switches above them, YAML; without it no slow part of the network is named."""
    onward_points: int = Field(default=10_000, ge=0)
    """Most peer lags that one tick exports, the largest first; 0 sends none."""


class CostConfig(Settings):
    """What stragglers cost."""

    rates_file: Path | None = None
    """Rates by provider and GPU model, YAML; the table that comes with Fleet without it. Read again on SIGHUP."""
    providers_file: Path | None = None
    """Rules that say which nodes run at which provider, YAML. Read again on SIGHUP."""
    nodes_file: Path | None = None
    """What `kubectl get nodes -o json` prints: labels and addresses for the rules. Read again on SIGHUP."""
    default_provider: str = ""
    """Provider of nodes that no rule, agent or `providerID` names, such as `on-premise`."""


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
    """Nodes a cluster should have; 0 takes the larger of the most seen at once and the world size
    that two nodes declare, or the only one."""


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
    absolute_band: float = Field(default=0.1, gt=0, le=1)
    """Loss against its peers below which a node that was slow from the start is not accused; chips differ."""
    snapshot: Path | None = None
    """File that keeps the state: what was learnt, thresholds, collectives, cost, taints. Without it a restart learns
    anew, and nodes echo their last verdict."""
    snapshot_interval: Duration = Field(default=60.0, ge=1)
    """Longest time between two snapshots. There is one every second push interval while they take less than 0.5 % of
    a processor."""
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
