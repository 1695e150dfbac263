"""Parameters of the detector. Every value is part of the digest of a verdict."""

from dataclasses import dataclass
from typing import Final

SECONDS_PER_HOUR: Final = 3600.0

ADJUSTABLE: Final = ("absolute_band", "budget", "max_nodes")
"""Parameters that may differ from those of a snapshot: they change no meaning of what was learnt."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters of the detector; the defaults serve every family of the bench unchanged."""

    tick_seconds: float = 5.0
    """Seconds between two ticks."""
    budget: float = 1e-4
    """False alarms allowed per node-hour."""
    warmup: int = 30
    """Working ticks of a node that its baseline is first learnt from."""
    min_peers: int = 3
    """Judged nodes that a cohort needs; no node is accused in a smaller one."""
    drift: float = 1.0
    """Reference value of the sequential test, standard deviations: a lasting loss below it adds no evidence."""
    own_band: float = 0.05
    """Loss against own history, in log units, below which no amount of evidence accuses."""
    absolute_band: float = 0.1
    """The same against peers, for nodes that were slow from the start; chips differ."""
    largest_step: float = 5.0
    """What one tick can add to the evidence, standard deviations above the reference value."""
    baseline_hours: float = 2.0
    """Time constant of the baseline of an unsuspected node."""
    settle_ticks: int = 6
    """Ticks that a new common level must last before it counts as a new phase of the job."""
    hold_ticks: int = 6
    """Ticks that a node which came back must stay well before it is healthy."""
    silent_ticks: int = 3
    """Ticks without a report after which a node is silent."""
    forget_hours: float = 24.0
    """Silence after which a node is forgotten."""
    max_nodes: int = 200_000
    """Nodes remembered."""
    max_cohorts: int = 20_000
    """Cohorts remembered."""

    @property
    def tick_hours(self) -> float:
        """Hours between two ticks."""
        return self.tick_seconds / SECONDS_PER_HOUR

    @property
    def baseline_ticks(self) -> float:
        """Time constant of the baseline in ticks."""
        return max(float(self.warmup), self.baseline_hours / self.tick_hours)
