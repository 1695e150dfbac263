"""What the detector says of a node, with the numbers that decided, in a form that is the same byte for byte."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ingero_contract.values import VerdictState


class Kind(StrEnum):
    """What is wrong."""

    NONE = ""
    SLOW = "slow"
    COLLAPSE = "collapse"
    STOPPED = "stopped"


class Axis(StrEnum):
    """What a node was compared with when it was accused."""

    NONE = ""
    OWN = "own_history"
    PEERS = "peers"
    STATE = "state"
    ECHO = "echo"
    """Its own word that it had been accused before Fleet forgot."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One node at one tick.

    `since`: estimated onset, `detected`: tick of the alarm, `recovered`: estimated end, all in the caller's seconds;
    `severity`: share of its own rate lost, 0 to 1; `value`: what it does now, `expected`: what it would do if it were
    well, in the input's unit; `residual` and `scale`: log units; `evidence` and `level`: the test statistic and what
    it had to exceed.
    """

    cluster: str
    node: str
    state: VerdictState
    kind: Kind
    axis: Axis
    since: float | None
    detected: float | None
    recovered: float | None
    severity: float
    value: float | None
    expected: float | None
    residual: float | None
    scale: float | None
    evidence: float | None
    level: float | None
    cohort: str
    cohort_size: int
    merged: bool
    time: float
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Plain values in a fixed order, numbers to 9 significant digits."""
        return {key: _plain(value) for key, value in asdict(self).items()}

    def encode(self) -> bytes:
        """The canonical bytes."""
        return json.dumps(self.to_json(), separators=(",", ":"), ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return str(value) or None
    if isinstance(value, float):
        return float(f"{value:.9g}") if abs(value) < 1e8 else round(value, 6)
    return value
