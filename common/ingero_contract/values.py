"""Enumerations whose values are sent between processes."""

from enum import StrEnum
from typing import Final

LATE_RANK: Final = "late_rank"
"""Kind of a straggler found by collectives: the node of the rank that the others wait for."""

GPU_THROTTLED: Final = "gpu_throttled"
"""Kind of a straggler whose GPU is throttled, while its ranks block as long as their peers."""


SLOW_FROM_START: Final = "slow_from_start"
"""Kind of a straggler that was slower than its peers before it had a history of its own."""


class NodeState(StrEnum):
    """State that an agent reports; only `active` scores enter the statistics."""

    CALIBRATING = "calibrating"
    ACTIVE = "active"
    IDLE = "idle"


class DetectionMode(StrEnum):
    """Which threshold an agent used to classify its node."""

    FLEET = "fleet"
    FLEET_CACHED = "fleet-cached"
    LOCAL_CACHED = "local-cached"
    LOCAL_BASELINE = "local-baseline"
    NONE = "none"


class DecisionSource(StrEnum):
    """What an agent's own classification was based on."""

    VERDICT = "verdict"
    THRESHOLD = "threshold"
    HISTORY = "history"
    NONE = "none"


class HangVerdict(StrEnum):
    """What holds a job up: ranks that others wait for, dead processes, something not known, or nothing."""

    HANG = "hang"
    DEAD = "dead"
    UNKNOWN = "unknown"
    NONE = "none"


class VerdictState(StrEnum):
    """The detector's state of a node."""

    LEARNING = "learning"
    HEALTHY = "healthy"
    SUSPECTED = "suspected"
    STRAGGLER = "straggler"
    RECOVERING = "recovering"
    IDLE = "idle"
    STOPPED = "stopped"
    SILENT = "silent"


THRESHOLD_K: Final = 2.0
"""Default number of scaled median absolute deviations below the median of its peers at which a node counts as low."""

THRESHOLD_MIN_BAND: Final = 0.05
"""Default of the smallest distance below the median that counts, in units of the score."""
