"""Standard conditions: built as values, merged so that a transition time moves only when the status flips."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ingero_operator.kinds import Manifest

Status = Literal["True", "False", "Unknown"]
PRESENT_ONLY_WHEN_TRUE: Final = ("Reconciling", "Stalled")
"""The pair that kstatus reads: tools take their mere presence as news."""


@dataclass(frozen=True)
class Condition:
    """One thing that is so, or is not, or is not known, and why."""

    type: str
    status: Status
    reason: str
    message: str

    @property
    def holds(self) -> bool:
        """Whether it is so."""
        return self.status == "True"


def yes(kind: str, reason: str, message: str) -> Condition:
    """It is so."""
    return Condition(kind, "True", reason, message)


def no(kind: str, reason: str, message: str) -> Condition:
    """It is not so."""
    return Condition(kind, "False", reason, message)


def unknown(kind: str, reason: str, message: str) -> Condition:
    """It is not known."""
    return Condition(kind, "Unknown", reason, message)


def merged(
    conditions: Iterable[Condition], before: Iterable[Mapping[str, Any]], generation: int, now: str
) -> list[Manifest]:
    """Conditions as they are stored: `before` lends its transition times."""
    old = {item.get("type"): item for item in before}
    out: list[Manifest] = []
    for condition in conditions:
        if condition.type in PRESENT_ONLY_WHEN_TRUE and not condition.holds:
            continue
        previous = old.get(condition.type)
        same = previous is not None and previous.get("status") == condition.status
        out.append(
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message[:4096],
                "observedGeneration": generation,
                "lastTransitionTime": previous["lastTransitionTime"]
                if same and previous and previous.get("lastTransitionTime")
                else now,
            }
        )
    return out


def worst(conditions: Iterable[Condition]) -> Condition | None:
    """The finding that a person should read first: stalled, degraded, then a part that is not there, then work."""
    by_type = {condition.type: condition for condition in conditions}
    for kind in ("Stalled", "Degraded"):
        if kind in by_type and by_type[kind].holds:
            return by_type[kind]
    ready = by_type.get("Ready")
    if ready is not None and not ready.holds:
        return ready
    reconciling = by_type.get("Reconciling")
    return reconciling if reconciling is not None and reconciling.holds else None
