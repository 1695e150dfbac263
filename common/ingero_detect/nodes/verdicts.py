"""The detector's verdict on a node with the numbers behind it. Equal inputs give equal bytes."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ingero_contract.values import SLOW_FROM_START, VerdictState


class Kind(StrEnum):
    """What is wrong."""

    NONE = ""
    SLOW = "slow"
    COLLAPSE = "collapse"
    STOPPED = "stopped"
    SLOW_FROM_START = SLOW_FROM_START


class Axis(StrEnum):
    """What a node was compared with when it was accused (the axis)."""

    NONE = ""
    OWN = "own_history"
    PEERS = "peers"
    STATE = "state"
    ECHO = "echo"
    """The verdict that its agent reports it had before Fleet lost its memory."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One node at one tick.

    `since`: estimated onset, `detected`: tick of the alarm, `recovered`: estimated end, all in the caller's seconds;
    `severity`: share of its own rate lost, 0 to 1; `value`: its rate now, `expected`: its rate if it were healthy,
    both in the input's unit; `residual` and `scale`: log units; `evidence` and `level`: the test statistic and the
    level that it had to exceed.
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
