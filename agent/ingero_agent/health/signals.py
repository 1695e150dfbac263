"""What one poll of a node returns, and which values are out of range."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ingero_contract.signals import RATIOS


@dataclass(frozen=True, kw_only=True)
class SignalReading:
    """One poll. `rate` is work a second, launches or steps; compute, memory and cpu are ratios, 0 to 1."""

    rate: float
    compute: float
    memory: float
    cpu: float
    launches: int = 0
    """Operations since the last poll; 0 three times in a row means idle."""
    seconds: float | None = None
    """The time in which they were counted, where that is not the time since the last poll."""

    def signals(self) -> "Signals":
        """The signals as measured; throughput is the absolute rate."""
        return Signals(self.rate, *(getattr(self, name) for name in RATIOS))


class Signals(NamedTuple):
    """The four signals, in one unit each; the order is that of the contract's table."""

    throughput: float
    compute: float
    memory: float
    cpu: float


def sanitise(observation: SignalReading) -> tuple[SignalReading, list[str]]:
    """Clamp every number to its range and name those that were outside. NaN and infinity become 0."""
    wrong: list[str] = []
    changes: dict[str, Any] = {}
    for name in ("rate", *RATIOS):
        value = getattr(observation, name)
        if not math.isfinite(value) or value < 0:
            wrong.append(name)
            changes[name] = 0.0
        elif name in RATIOS and value > 1:
            changes[name] = 1.0
    return (replace(observation, **changes) if changes else observation), wrong
