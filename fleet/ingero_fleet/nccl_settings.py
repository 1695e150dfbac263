"""Settings of the NCCL processor."""

from pydantic import Field

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
    onward_points: int = Field(default=10_000, ge=0)
    """Most peer lags that one tick exports, the largest first; 0 sends none."""
