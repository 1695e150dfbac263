"""Standard conditions: built as values, and merged so that a transition time changes only with the status."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ingero_operator.kinds import Manifest

Status = Literal["True", "False", "Unknown"]
PRESENT_ONLY_WHEN_TRUE: Final = ("Reconciling", "Stalled")
"""The pair that kstatus reads. Tools react to their mere presence, so they exist only while True."""


@dataclass(frozen=True)
class Condition:
    """One condition: True, False or Unknown, and why."""

    type: str
    status: Status
    reason: str
    message: str

    @property
    def holds(self) -> bool:
        """Whether the condition is True."""
        return self.status == "True"


def yes(kind: str, reason: str, message: str) -> Condition:
    """A condition that is True."""
    return Condition(kind, "True", reason, message)


def no(kind: str, reason: str, message: str) -> Condition:
    """A condition that is False."""
    return Condition(kind, "False", reason, message)


def unknown(kind: str, reason: str, message: str) -> Condition:
    """A condition that is Unknown."""
    return Condition(kind, "Unknown", reason, message)


def recorded(status: Mapping[str, Any], kind: str) -> Condition | None:
    """A condition as the status has it."""
    for item in status.get("conditions") or []:
        if item.get("type") == kind:
            return Condition(kind, item["status"], item["reason"], str(item.get("message", "")))
    return None


def merged(
    conditions: Iterable[Condition], before: Iterable[Mapping[str, Any]], generation: int, now: str
) -> list[Manifest]:
    """Conditions as they are stored; an unchanged status keeps its transition time from `before`."""
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
    """The condition that a user should read first: stalled, degraded, then a missing part, then work in progress."""
    by_type = {condition.type: condition for condition in conditions}
    for kind in ("Stalled", "Degraded"):
        if kind in by_type and by_type[kind].holds:
            return by_type[kind]
    ready = by_type.get("Ready")
    if ready is not None and not ready.holds:
        return ready
    reconciling = by_type.get("Reconciling")
    return reconciling if reconciling is not None and reconciling.holds else None
