"""Combines four signals into one score.

Each signal is divided by the node's own normal, so a light but healthy job scores as well as a heavy one. A signal
that has collapsed lowers the whole score.
"""

from dataclasses import dataclass, replace
from typing import Final

from ingero_agent.health.signals import Observation, Signals
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


def compute(observation: Observation, normal: Signals | None) -> Score:
    """Score an observation against the node's normal. While there is none, throughput counts as 0."""
    now = observation.signals()
    if normal is None:
        ratios = replace(now, throughput=0.0)
    else:
        pairs = zip(now.items(), normal.items(), strict=True)
        ratios = Signals(*(_ratio(value, usual) for (_, value), (_, usual) in pairs))
    base = sum(weight * ratio for (_, weight), (_, ratio) in zip(WEIGHTS.items(), ratios.items(), strict=True))
    worst = min(ratio for _, ratio in ratios.items())
    value = min(1.0, max(0.0, base * _penalty(worst)))
    return Score(value, ratios, _dominant(ratios))


def _ratio(value: float, usual: float) -> float:
    return 1.0 if usual <= _NEGLIGIBLE else min(1.0, value / usual)


def _penalty(worst: float) -> float:
    if worst >= RAMP_START:
        return 1.0
    if worst <= RAMP_END:
        return FLOOR_FACTOR
    return FLOOR_FACTOR + (1 - FLOOR_FACTOR) * (worst - RAMP_END) / (RAMP_START - RAMP_END)


def _dominant(ratios: Signals) -> HealthSignal:
    signal, ratio = min(ratios.items(), key=lambda item: item[1])
    return signal if ratio < 1.0 - _NOISE else HealthSignal.UNKNOWN
