"""Combines four signals into one score.

Each signal is divided by the node's own normal, so a light but healthy job scores as well as a heavy one. A signal
that has collapsed lowers the whole score.
"""

from dataclasses import dataclass
from operator import mul
from typing import Final

from ingero_agent.health.signals import SignalReading, Signals
from ingero_contract.signals import SIGNALS, HealthSignal

WEIGHTS: Final = Signals(*(row.weight for row in SIGNALS))
RAMP_START: Final = 0.35
RAMP_END: Final = 0.25
FLOOR_FACTOR: Final = 0.5
_NEGLIGIBLE: Final = 1e-9
_NOISE: Final = 1e-6


@dataclass(frozen=True)
class Score:
    """The score, 0 to 1, and each signal divided by its own normal, 0 to 1."""

    value: float
    ratios: Signals
    dominant: HealthSignal


def compute(observation: SignalReading, normal: Signals | None) -> Score:
    """Score an observation against the node's normal. While there is none, throughput counts as 0."""
    now = observation.signals()
    ratios = now._replace(throughput=0.0) if normal is None else Signals(*map(_ratio, now, normal))
    base, worst = sum(map(mul, WEIGHTS, ratios)), min(ratios)
    dominant = SIGNALS[ratios.index(worst)].signal if worst < 1.0 - _NOISE else HealthSignal.UNKNOWN
    return Score(min(1.0, max(0.0, base * _penalty(worst))), ratios, dominant)


def _ratio(value: float, usual: float) -> float:
    return 1.0 if usual <= _NEGLIGIBLE else min(1.0, value / usual)


def _penalty(worst: float) -> float:
    if worst >= RAMP_START:
        return 1.0
    if worst <= RAMP_END:
        return FLOOR_FACTOR
    return FLOOR_FACTOR + (1 - FLOOR_FACTOR) * (worst - RAMP_END) / (RAMP_START - RAMP_END)
