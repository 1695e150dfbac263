"""The observed state as status: summary, columns, conditions. Pure; the time is a parameter."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from ingero_operator.conditions import Condition, merged, no, unknown, worst, yes
from ingero_operator.errors import ReconcileError, most_important
from ingero_operator.kinds import Manifest

TELEMETRY: Final = (
    ("fleet", "threshold"), ("fleet", "nodes"), ("stragglers", "confirmed"), ("stragglers", "accused"), ("cost",),
    ("storage", "usedBand"), ("sealing",),
    ("log", "lag"), ("log", "stateHash"), ("log", "stateTick"), ("taints", "preview"), ("taints", "more"),
)  # fmt: skip
"""Parts of a status that change continuously: written at most once a minute, unless something else is."""

HEALTHY: Final = "Healthy"
_STORY: Final = ("observedGeneration", "summary", "message", "conditions")


def effective(spec: BaseModel) -> dict[str, str]:
    """Every value in force as path and text, defaults included."""
    found: dict[str, str] = {}
    _flatten(spec.model_dump(by_alias=True, mode="json", exclude_none=True), "", found)
    return found


def _flatten(tree: dict[str, Any], prefix: str, found: dict[str, str]) -> None:
    for key, value in tree.items():
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{key}.", found)
        elif isinstance(value, bool):
            found[prefix + key] = "true" if value else "false"
        elif isinstance(value, list):
            if value:
                found[prefix + key] = ", ".join(map(str, value))[:1024]
        elif value != "":
            found[prefix + key] = str(value)[:1024]


def overall(
    parts: list[Condition],
    needed: Iterable[str],
    errors: list[ReconcileError],
    paused: bool,
    working: str,
    informing: Iterable[str] = (),
) -> list[Condition]:
    """Ready and the kstatus pair from the parts. `working` says what is in progress, if anything.

    Parts named in `informing` do not affect Ready; while one of them is not True, Ready shows its reason and message.
    """
    first_error = most_important(errors)
    stalled = next((item for item in errors if item.stalls), None)
    degraded = (
        yes("Degraded", first_error.reason, first_error.message)
        if first_error
        else no("Degraded", "AsExpected", "nothing is in the way")
    )
    missing = [part for part in parts if part.type in set(needed) and not part.holds]
    if first_error:
        ready = no("Ready", first_error.reason, first_error.message)
    elif missing:
        part = missing[0]
        make = unknown if part.status == "Unknown" else no
        ready = make("Ready", _subject(part), part.message)
    else:
        lacking = next((part for part in parts if part.type in set(informing) and not part.holds), None)
        ready = (
            yes("Ready", lacking.reason, lacking.message)
            if lacking
            else yes("Ready", HEALTHY, "everything that is wanted is there")
        )
    conditions = [ready, *parts, degraded]
    if stalled:
        conditions.append(yes("Stalled", stalled.reason, stalled.message))
    elif working and not paused and not first_error:
        conditions.append(yes("Reconciling", "Progressing", working))
    return conditions


def _subject(part: Condition) -> str:
    """One word for what is missing: `AgentsAvailable=False` reads AgentsUnavailable."""
    generic = {"Progressing", "Unavailable", "Pending", "PodsRefused"}
    if part.reason in generic:
        return part.reason if part.reason == "Progressing" else part.type.replace("Available", "Unavailable")
    return part.reason


def with_error(
    before: Mapping[str, Any], parts: Iterable[str], error: ReconcileError
) -> tuple[list[Condition], Manifest]:
    """Conditions and the rest of a status when an error prevented the reconcile: the last known values stay."""
    shown_first = {item.get("type"): item for item in before.get("conditions") or []}
    kept = []
    for kind in parts:
        item = shown_first.get(kind)
        if item is None:
            kept.append(unknown(kind, "NotChecked", f"not checked: {error.message}"))
        else:
            kept.append(Condition(kind, item["status"], item["reason"], str(item.get("message", ""))))
    rest = {key: value for key, value in before.items() if key not in _STORY}
    return overall(kept, (), [error], False, ""), rest


def assemble(
    conditions: list[Condition], before: Mapping[str, Any], generation: int, now: str, paused: bool, rest: Manifest
) -> Manifest:
    """A complete status: a summary of one word and one sentence, the conditions, and the rest."""
    shown_first = worst(conditions) or next(condition for condition in conditions if condition.type == "Ready")
    summary, message = "Paused" if paused else shown_first.reason, shown_first.message
    return {
        "observedGeneration": generation,
        "summary": summary[:256],
        "message": message[:4096],
        "conditions": merged(conditions, before.get("conditions") or [], generation, now),
        **rest,
    }


def patch(before: Any, after: Any) -> Any:
    """The JSON merge patch from one status to the next; empty when nothing changes. Lists are replaced whole."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    out: Manifest = {}
    for key, value in after.items():
        if key not in before:
            if value is not None:
                out[key] = value
        elif isinstance(value, dict) and isinstance(before[key], dict):
            inner = patch(before[key], value)
            if inner:
                out[key] = inner
        elif before[key] != value:
            out[key] = value
    for key in before:
        if key not in after:
            out[key] = None
    return out


def without_telemetry(tree: Manifest) -> Manifest:
    """The patch without the parts that may wait."""
    out = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    for path in TELEMETRY:
        if len(path) == 1:
            out.pop(path[0], None)
        elif isinstance(out.get(path[0]), dict):
            out[path[0]].pop(path[1], None)
            if not out[path[0]]:
                del out[path[0]]
    return out
