"""The result of a diagnosis: the cause of a slow job."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Cause(StrEnum):
    """Cause of a slow job."""

    NODE = "node"
    STAGE = "stage_imbalance"
    SEQUENCE = "sequence_imbalance"
    NONE = "none"


@dataclass(frozen=True)
class Diagnosis:
    """The verdict. `ranks` are numbers of the timeline; `slowdown` is the step time over the possible step time."""

    cause: Cause
    ranks: tuple[int, ...] = ()
    slowdown: float = 1.0
    seconds_lost_per_step: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)
