"""The latest collectives of one communicator, and how late each of its ranks has been lately. Pure state."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_fleet.collectives.attribution import AttributionConfig, Finding, find_late_rank

FORGET: Final = 0.7
"""How much of the mean lag of earlier ticks is kept, so that about three ticks count."""


@dataclass
class Window:
    """One communicator. `members` is the source of each rank, -1 where nothing is known."""

    ranks: int
    members: npt.NDArray[np.int32]
    seen: float
    last: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    lost: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    time: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    arrived: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    lag: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    waited: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    blocked_seen: bool = False
    disputed_until: float = 0.0
    judged: int = 0
    finding: Finding | None = None

    def add(
        self, last: npt.NDArray[np.int64], lost: npt.NDArray[np.float64], time: npt.NDArray[np.float64], now: float,
        size: int, age_seconds: float,
    ) -> None:  # fmt: skip
        """Take in new collectives and let go of the oldest."""
        self.judged += len(last)
        keep = self.arrived > now - age_seconds
        self.last = np.concatenate([self.last[keep], last.astype(np.int32)])[-size:]
        self.lost = np.concatenate([self.lost[keep], lost.astype(np.float32)])[-size:]
        self.time = np.concatenate([self.time[keep], time])[-size:]
        self.arrived = np.concatenate([self.arrived[keep], np.full(len(last), now)])[-size:]

    def blend(self, lag: npt.NDArray[np.float64], waited: npt.NDArray[np.float64]) -> None:
        """Fold a tick's mean lag and wait by rank into the recent ones; not a number where a rank said nothing."""
        for name, new in (("lag", lag), ("waited", waited)):
            old = getattr(self, name)
            if not len(old):
                old = np.full(self.ranks, np.nan, np.float32)
            mixed = np.where(np.isnan(old), new, np.where(np.isnan(new), old, FORGET * old + (1 - FORGET) * new))
            setattr(self, name, mixed.astype(np.float32))

    @property
    def elapsed_ms(self) -> float:
        """Time from the first to the last collective of the window, and one more: what losses are a share of."""
        if len(self.time) < 2:
            return 0.0
        ordered = np.sort(self.time)
        return float(ordered[-1] - ordered[0]) * 1000.0 * len(ordered) / (len(ordered) - 1)

    def judge(self, config: AttributionConfig) -> None:
        """Renew the finding."""
        self.finding = find_late_rank(
            self.last.astype(np.int64), self.lost.astype(np.float64), self.elapsed_ms, self.ranks, config
        )
