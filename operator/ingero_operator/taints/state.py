"""The state of nodes between two decisions, in memory and in the status of the FleetCluster. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from ingero_operator.kinds import Manifest
from ingero_operator.taints.nodes import moment

DAY: Final = 86_400.0
MAX_RECORDS: Final = 64
OVERRIDDEN: Final = "Overridden"
"""Reason of a step that removes the rest of a taint after a user removed a part of it."""


@dataclass(frozen=True, kw_only=True)
class NodeTaintRecord:
    """One machine: name and uid together."""

    uid: str
    verdict: str = ""
    effect: str = ""
    releasing: str = ""
    tainted: tuple[float, ...] = ()
    released: float = 0.0
    override_cooldown_until: float = 0.0
    overridden_by: str = ""
    attempted: str = ""
    """Verdict of a write whose response was lost; `tainted` ends with its time."""

    def earlier(self, verdict: str) -> tuple[float, ...]:
        """When the node was tainted, without an attempt to write this verdict."""
        return self.tainted[:-1] if verdict and self.attempted == verdict else self.tainted

    def idle(self, now: float, keep: float) -> bool:
        """Whether the record is no longer needed."""
        return (
            not self.verdict
            and self.override_cooldown_until <= now
            and now - self.released > keep
            and not any(now - time < DAY for time in self.tainted)
        )


@dataclass(frozen=True, kw_only=True)
class Streak:
    """How long a node has been accused without a break: by the operator's clock and in number of statistics seen."""

    uid: str
    provider_id: str
    since: float
    windows: int


@dataclass(frozen=True, kw_only=True)
class TaintState:
    """The whole state. Only `records`, `last_taint` and `storm_until` survive a restart, so a new process waits for a
    whole confirmation first."""

    records: Mapping[str, NodeTaintRecord] = field(default_factory=dict)
    last_taint: float = 0.0
    storm_until: float = 0.0
    accused: Mapping[str, Streak] = field(default_factory=dict)
    healthy: Mapping[str, float] = field(default_factory=dict)
    tick: str = ""


def timestamp(time: float) -> str:
    """RFC 3339 in UTC, rounded up to milliseconds, so that the time read back is never earlier than the original."""
    milliseconds = math.ceil(time * 1000 - 1e-3)
    whole = datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{milliseconds % 1000:03d}Z"


def timestamp_seconds(time: float) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes times."""
    return timestamp(float(int(time))).replace(".000Z", "Z")


def to_status(state: TaintState) -> Manifest:
    """The part of the state that goes into `status.taints`."""
    rows = [
        {
            "node": name,
            "uid": record.uid,
            "verdict": record.verdict,
            "effect": record.effect,
            "releasing": record.releasing,
            "overriddenBy": record.overridden_by[:256],
            "tainted": [timestamp(time) for time in record.tainted],
            "released": _known(record.released),
            "handsOffUntil": _known(record.override_cooldown_until),
        }
        for name, record in sorted(state.records.items())
    ]
    tree: Manifest = {
        "lastTaintTime": _known(state.last_taint),
        "stormUntil": _known(state.storm_until),
        "nodes": [{key: value for key, value in row.items() if value} for row in rows],
    }
    return {key: value for key, value in tree.items() if value}


def _known(time: float) -> str:
    return timestamp(time) if time else ""


def from_status(tree: Mapping[str, Any]) -> TaintState:
    """The state that an earlier process wrote."""
    records = {
        str(row["node"]): NodeTaintRecord(
            uid=str(row["uid"]),
            verdict=row.get("verdict", ""),
            effect=row.get("effect", ""),
            releasing=row.get("releasing", ""),
            tainted=tuple(moment(time) for time in row.get("tainted") or ()),
            released=moment(row.get("released")),
            override_cooldown_until=moment(row.get("handsOffUntil")),
            overridden_by=row.get("overriddenBy", ""),
        )
        for row in tree.get("nodes") or ()
    }
    return TaintState(
        records=records, last_taint=moment(tree.get("lastTaintTime")), storm_until=moment(tree.get("stormUntil"))
    )
