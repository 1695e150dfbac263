"""The signals of a node's health in one table, which encoding, decoding, score, metrics and columns are based on."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class HealthSignal(StrEnum):
    """Names of the signals. A verdict's evidence has the signal that fell furthest below its baseline."""

    THROUGHPUT = "throughput"
    COMPUTE = "compute"
    MEMORY = "memory"
    CPU = "cpu"
    UNKNOWN = "unknown"


THROUGHPUT_RATIO: Final = "ingero.node.throughput_ratio"
"""Launch rate over the node's own baseline, 0 to 1. Instrument: gauge. Unit: 1."""

COMPUTE_EFFICIENCY: Final = "ingero.node.compute_efficiency"
"""Share of the window spent in GPU operations, 0 to 1. Instrument: gauge. Unit: 1."""

MEMORY_HEADROOM: Final = "ingero.node.memory_headroom"
"""Free over total GPU memory, 0 to 1. Instrument: gauge. Unit: 1."""

CPU_AVAILABILITY: Final = "ingero.node.cpu_availability"
"""Idle share of the host's processors, 0 to 1. Instrument: gauge. Unit: 1."""


@dataclass(frozen=True)
class SignalRow:
    """One signal, a ratio from 0 to 1.

    `weight` is its part of the score; the weights add up to 1. `averaged`: it is a share of time, so that several
    polls are averaged; otherwise the latest poll counts. `help` describes its Prometheus metric.
    """

    signal: HealthSignal
    metric: str
    weight: float
    help: str
    averaged: bool = True

    @property
    def column(self) -> str:
        """Its column in Echo."""
        return self.metric.rpartition(".")[2]


SIGNALS: Final = (
    SignalRow(HealthSignal.THROUGHPUT, THROUGHPUT_RATIO, 0.40, "Work rate over the node's own normal, 0 to 1."),
    SignalRow(HealthSignal.COMPUTE, COMPUTE_EFFICIENCY, 0.25, "Share of the time spent in work, 0 to 1."),
    SignalRow(HealthSignal.MEMORY, MEMORY_HEADROOM, 0.20, "Free over total memory, 0 to 1.", averaged=False),
    SignalRow(HealthSignal.CPU, CPU_AVAILABILITY, 0.15, "Idle share of the processors, 0 to 1."),
)
"""All signals. The first is measured as an absolute rate, which the agent divides by its own baseline."""

RATIOS: Final = tuple(str(row.signal) for row in SIGNALS[1:])
"""Names of the signals that are measured as ratios."""
