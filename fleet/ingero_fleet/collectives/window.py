"""The latest collectives of one communicator, and how late each of its ranks has been recently. Pure state."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_fleet.collectives.attribution import AttributionConfig, LateRankFinding, find_late_rank
from ingero_fleet.collectives.excuses import MIN_EXCUSED_SHARE
from ingero_fleet.collectives.unequal_work import WorkRoom, WorkTable, judge_equal_work

BLEND_DECAY: Final = 0.7
"""Weight of earlier ticks in the mean lag, so that about three ticks count."""

WINDOW_SIZES: Final = (256, 128, 64, 32)
"""Numbers of latest collectives that are judged in addition to the whole window, the largest first."""

MAX_PACES: Final = 24
"""Ticks whose pace is remembered."""

MAX_OPERATIONS: Final = 8
"""Operations of a communicator whose waits are kept."""

SUSPECT_SHARE: Final = 0.05
"""Chance below which a rank is likely to be late: too high to accuse it, enough to excuse who waited for it."""


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
    """Ranks that are likely to be late, and the share of time lost to each in the part that shows it most clearly."""
    excused: bool = False
    """Whether another communicator delayed the late rank, or may have done so."""
    gpu: str = ""
    """What NVML reports about its nodes' GPUs where no rank is late; empty where it reports nothing."""
    op_waits: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    """By number of an operation: how much longer than the last rank each rank waited in it, milliseconds for each
    collective of the communicator; rows: in the latest tick, over about three ticks, and over `window_age`."""
    paces: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))
    """For the latest ticks: when each ended, and the time from one collective to the next in it, milliseconds."""
    work: WorkTable | None = None
    """The latest of its collectives with the work of each rank; `None` where no work is told."""

    def state(self) -> dict[str, Any]:
        """Everything that later collectives depend on."""
        work = None if self.work is None else self.work.state()
        return {**vars(self), "members": self.members.copy(), "suspects": list(self.suspects.items()),
                "op_waits": list(self.op_waits.items()), "work": work}  # fmt: skip

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "CommunicatorWindow":
        """The window of a state that `state` returned."""
        finding = state["finding"] and LateRankFinding(**state["finding"])
        op_waits = dict(state.get("op_waits", ()))
        work = state.get("work") and WorkTable.restored(state["work"])
        return cls(**{**state, "suspects": dict(state["suspects"]), "op_waits": op_waits, "finding": finding,
                      "work": work})  # fmt: skip

    def add(
        self, last: npt.NDArray[np.int64], lost: npt.NDArray[np.float64], time: npt.NDArray[np.float64], now: float,
        size: int, age_seconds: float,
    ) -> None:  # fmt: skip
        """Add new collectives and drop the oldest."""
        self.judged += len(last)
        keep = self.arrived > now - age_seconds
        self.last = np.concatenate([self.last[keep], last.astype(np.int32)])[-size:]
        self.lost = np.concatenate([self.lost[keep], lost.astype(np.float32)])[-size:]
        self.time = np.concatenate([self.time[keep], time])[-size:]
        self.arrived = np.concatenate([self.arrived[keep], np.full(len(last), now)])[-size:]
        if self.work is not None:
            self.work = self.work.latest(len(self.last))

    def note_work(self, newer: WorkTable, room: WorkRoom) -> None:
        """Keep the work of new collectives, before they are added."""
        merged = newer if self.work is None else self.work.then(newer)
        merged = merged.latest(room.rows(0 if self.work is None else len(self.work), len(merged), self.ranks))
        self.work = merged if merged.tells else None

    def note_pace(self, numbers: npt.NDArray[np.int64], time: npt.NDArray[np.float64], now: float) -> None:
        """Remember how fast a tick's collectives followed each other."""
        first, last = int(np.argmin(numbers)), int(np.argmax(numbers))
        count, seconds = int(numbers[last] - numbers[first]), float(time[last] - time[first])
        if abs(seconds) > 0 and count > 0:
            self.paces = np.vstack([self.paces, (now, 1000.0 * abs(seconds) / count)])[-MAX_PACES:]

    def blend(
        self, lag: npt.NDArray[np.float64], waited: npt.NDArray[np.float64],
        op_waits: Mapping[int, npt.NDArray[np.float64]], now: float, age_seconds: float,
    ) -> None:  # fmt: skip
        """Combine a tick's mean lag and wait by rank with the earlier ones; NaN where a rank reported nothing.

        Of the waits the longest counts, and it decays by half in `age_seconds`: a rank that is late over the whole
        window is excused by waits of the same period, not only by the latest.
        """
        old = self.lag if len(self.lag) else np.full(self.ranks, np.nan, np.float32)
        mixed = np.where(
            np.isnan(old), lag, np.where(np.isnan(lag), old, BLEND_DECAY * old + (1 - BLEND_DECAY) * lag)
        )
        self.lag = mixed.astype(np.float32)
        decay = 0.5 ** ((now - self.blended) / age_seconds)
        before = self.waited * decay if len(self.waited) else np.nan
        self.waited = np.fmax(before, waited).astype(np.float32)
        self.op_waits = self._blend_op_waits(op_waits, np.array([[0.0], [BLEND_DECAY], [decay]]))
        self.blended = now

    def _blend_op_waits(
        self, fresh: Mapping[int, npt.NDArray[np.float64]], weights: npt.NDArray[np.float64]
    ) -> dict[int, npt.NDArray[np.float32]]:
        """Add a tick's waits by operation; `weights` of the earlier ones by row."""
        mixed = dict(self.op_waits)
        for op, waits in fresh.items():
            if op in mixed:
                old = mixed[op]
                blended = weights * old + (1 - weights) * waits
                blended = np.where(np.isnan(old), waits, np.where(np.isnan(waits), old, blended))
                mixed[op] = blended.astype(np.float32)
            elif len(mixed) < MAX_OPERATIONS:
                mixed[op] = np.repeat(waits[None, :].astype(np.float32), len(weights), axis=0)
        return mixed

    @property
    def elapsed_ms(self) -> float:
        """Time from the first to the last collective of the window, plus one interval; losses are shares of it."""
        return _elapsed_ms(self.time)

    def judge(self, config: AttributionConfig) -> None:
        """Update the finding from the whole window and from its latest parts, which show a recent change sooner.

        All share the allowed error in proportion to their lengths, because short ones are renewed more often. Of
        several parts that accuse one rank the longest counts; where they differ, the latest.
        """
        self.suspects = {}
        if not len(self.last):
            self.finding = None
            return
        last, lost = self.last.astype(np.int64), self.lost.astype(np.float64)
        self.finding, self.suspects = self._judge(last, lost, self.time, config)
        if self.work is not None and self.finding is not None:
            time = self.time[-len(self.work) :]
            self.finding = judge_equal_work(
                self.work, self.finding, lambda rows, last, lost: self._judge(last, lost, time[rows], config)[0]
            )
            if self.finding.accused:
                late = self.finding
                self.suspects[late.rank] = max(late.share, self.suspects.get(late.rank, 0.0))

    def _judge(
        self, last: npt.NDArray[np.int64], lost: npt.NDArray[np.float64], time: npt.NDArray[np.float64],
        config: AttributionConfig,
    ) -> tuple[LateRankFinding | None, dict[int, float]]:  # fmt: skip
        """Judge collectives by their last rank and what was lost to it; also returns the suspects."""
        suspects: dict[int, float] = {}
        parts = [len(last), *(size for size in WINDOW_SIZES if size < len(last))]
        total = sum(parts)
        whole, *recent = (
            self._judge_latest(last[-size:], lost[-size:], time[-size:], config, size / total, size < len(last))
            for size in parts
        )
        for finding in (whole, *recent):
            if finding and finding.collectives >= config.fewest and finding.chance <= SUSPECT_SHARE:
                suspects[finding.rank] = max(finding.share, suspects.get(finding.rank, 0.0))
        accused = [finding for finding in (whole, *recent) if finding and finding.accused]
        agreed = len({finding.rank for finding in accused}) == 1
        return whole if not accused else accused[0] if agreed else accused[-1], suspects

    def _judge_latest(
        self, last: npt.NDArray[np.int64], lost: npt.NDArray[np.float64], time: npt.NDArray[np.float64],
        config: AttributionConfig, part: float, shorter: bool,
    ) -> LateRankFinding | None:  # fmt: skip
        """Judge collectives at a part of the error; `chance` is corrected for the other parts."""
        elapsed = _elapsed_ms(time)
        if shorter and np.bincount(last, lost).max() < MIN_EXCUSED_SHARE * config.share * elapsed:
            # Too little was lost to any rank for an accusation or an excuse; most communicators end here.
            return None
        found = find_late_rank(last, lost, elapsed, self.ranks, replace(config, error=config.error * part))
        return found and replace(found, chance=min(1.0, found.chance / part))


def _elapsed_ms(time: npt.NDArray[np.float64]) -> float:
    if len(time) < 2:
        return 0.0
    return float(time.max() - time.min()) * 1000.0 * len(time) / (len(time) - 1)
