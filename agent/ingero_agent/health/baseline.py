"""The node's own normal: a fast and a slow exponential average of each signal, corrected for their start at zero.

Both are frozen while the node is a straggler, so that a fault never becomes normal.
"""

from dataclasses import dataclass
from typing import Final

from ingero_agent.health.signals import SignalReading, Signals
from ingero_contract.signals import SIGNALS

FAST: Final = 0.1
SLOW: Final = 0.001
WARNING_SAMPLES: Final = 30
WARNING_RATIO: Final = 0.5
WARNING_FLOOR: Final = 0.01

_ZERO: Final = Signals(*(0.0 for _ in SIGNALS))


@dataclass(frozen=True)
class Baseline:
    """Averages as stored, not yet corrected for the zeros that they start from."""

    samples: int = 0
    fast: Signals = _ZERO
    slow: Signals = _ZERO

    def advance(self, observation: SignalReading) -> "Baseline":
        """Fold one observation in; `throughput` is the raw rate here."""
        now = observation.signals()
        return Baseline(self.samples + 1, _mix(self.fast, now, FAST), _mix(self.slow, now, SLOW))

    def normal(self) -> Signals | None:
        """The corrected fast average, `None` before the first sample."""
        return _corrected(self.fast, FAST, self.samples)

    def floor(self) -> Signals | None:
        """The corrected slow average, `None` before the first sample."""
        return _corrected(self.slow, SLOW, self.samples)

    def degraded(self) -> bool:
        """Whether any signal's fast average has sunk below half of its slow one."""
        normal, floor = self.normal(), self.floor()
        if self.samples < WARNING_SAMPLES or normal is None or floor is None:
            return False
        return any(
            low >= WARNING_FLOOR and high / low < WARNING_RATIO for high, low in zip(normal, floor, strict=True)
        )


def _mix(old: Signals, new: Signals, alpha: float) -> Signals:
    return Signals(*(alpha * now + (1 - alpha) * before for before, now in zip(old, new, strict=True)))


def _corrected(stored: Signals, alpha: float, samples: int) -> Signals | None:
    if samples == 0:
        return None
    share = 1 - (1 - alpha) ** samples
    return Signals(*(value / share for value in stored))
