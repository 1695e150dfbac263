"""The latest collectives of one communicator, and how late each of its ranks has been lately. Pure state."""

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_fleet.collectives.attribution import AttributionConfig, LateRankFinding, find_late_rank
from ingero_fleet.collectives.excuses import MIN_EXCUSED_SHARE

BLEND_DECAY: Final = 0.7
"""How much of the mean lag of earlier ticks is kept, so that about three ticks count."""

WINDOW_SIZES: Final = (256, 128, 64, 32)
"""Latest collectives that are judged apart from the window, the most first."""

MAX_PACES: Final = 24
"""Ticks of which the pace is remembered."""

SUSPECT_SHARE: Final = 0.05
"""Chance below which a rank is likely to be late: not enough to accuse it, enough to excuse who waited for it."""


@dataclass
class CommunicatorWindow:
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
    blended: float = 0.0
    blocked_seen: bool = False
    disputed_until: float = 0.0
    judged: int = 0
    finding: LateRankFinding | None = None
    suspects: dict[int, float] = field(default_factory=dict)
    """Ranks that are likely to be late, and the share of time lost to each in the part that shows it best."""
    excused: bool = False
    """Whether the rank that is late was held up elsewhere, or may have been."""
    gpu: str = ""
    """What NVML says of its nodes' GPUs where nobody is late; empty where it says nothing."""
    paces: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))
    """When a tick ended, and the time from one collective to the next in it, milliseconds; the latest ticks."""

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

    def note_pace(self, numbers: npt.NDArray[np.int64], time: npt.NDArray[np.float64], now: float) -> None:
        """Remember how fast a tick's collectives followed each other."""
        first, last = int(np.argmin(numbers)), int(np.argmax(numbers))
        count, seconds = int(numbers[last] - numbers[first]), float(time[last] - time[first])
        if abs(seconds) > 0 and count > 0:
            self.paces = np.vstack([self.paces, (now, 1000.0 * abs(seconds) / count)])[-MAX_PACES:]

    def blend(
        self, lag: npt.NDArray[np.float64], waited: npt.NDArray[np.float64], now: float, age_seconds: float
    ) -> None:
        """Fold a tick's mean lag and wait by rank into the earlier ones; not a number where a rank said nothing.

        Of waits the longest counts, by half as much after `age_seconds`: who is late by what the window holds is
        excused by waits of the same time, not only by the latest.
        """
        old = self.lag if len(self.lag) else np.full(self.ranks, np.nan, np.float32)
        mixed = np.where(
            np.isnan(old), lag, np.where(np.isnan(lag), old, BLEND_DECAY * old + (1 - BLEND_DECAY) * lag)
        )
        self.lag = mixed.astype(np.float32)
        before = self.waited * 0.5 ** ((now - self.blended) / age_seconds) if len(self.waited) else np.nan
        self.waited = np.fmax(before, waited).astype(np.float32)
        self.blended = now

    @property
    def elapsed_ms(self) -> float:
        """Time from the first to the last collective of the window, and one more: what losses are a share of."""
        return _elapsed_ms(self.time)

    def judge(self, config: AttributionConfig) -> None:
        """Renew the finding: of the whole window, and of its latest parts, which show sooner who became late lately.

        They share the error that is allowed by their lengths, as short ones are renewed more often. Of several that
        accuse one rank the longest counts; where they differ, the latest.
        """
        self.suspects = {}
        if not len(self.last):
            self.finding = None
            return
        parts = [len(self.last), *(size for size in WINDOW_SIZES if size < len(self.last))]
        total = sum(parts)
        whole, *recent = (self._judge_latest(size, config, size / total) for size in parts)
        for finding in (whole, *recent):
            if finding and finding.collectives >= config.fewest and finding.chance <= SUSPECT_SHARE:
                self.suspects[finding.rank] = max(finding.share, self.suspects.get(finding.rank, 0.0))
        accused = [finding for finding in (whole, *recent) if finding and finding.accused]
        agreed = len({finding.rank for finding in accused}) == 1
        self.finding = whole if not accused else accused[0] if agreed else accused[-1]

    def _judge_latest(self, size: int, config: AttributionConfig, part: float) -> LateRankFinding | None:
        """Judge so many collectives, at a part of the error; their `chance` counts that others are looked at too."""
        last, lost = self.last[-size:].astype(np.int64), self.lost[-size:].astype(np.float64)
        elapsed = _elapsed_ms(self.time[-size:])
        if size < len(self.last) and np.bincount(last, lost).max() < MIN_EXCUSED_SHARE * config.share * elapsed:
            # Too little was lost to anybody for an accusation or an excuse; most communicators end here.
            return None
        found = find_late_rank(last, lost, elapsed, self.ranks, replace(config, error=config.error * part))
        return found and replace(found, chance=min(1.0, found.chance / part))


def _elapsed_ms(time: npt.NDArray[np.float64]) -> float:
    if len(time) < 2:
        return 0.0
    return float(time.max() - time.min()) * 1000.0 * len(time) / (len(time) - 1)
