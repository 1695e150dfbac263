"""Compares desired and observed children: what to do, and why. Pure; at rest the plan is empty."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import zip_longest
from typing import Any, Final, Literal

from ingero_contract.kubernetes import SPEC_HASH
from ingero_operator.kinds import Manifest
from ingero_operator.render.common import CONFIG_HASH

ChildKey = tuple[str, str]
"""Kind and name."""

Verb = Literal["create", "apply", "delete"]

_LIST_KEYS: Final = ("name", "mountPath", "key", "port", "containerPort")
"""Fields that identify an item of a list, in order of preference."""

_QUANTITIES: Final = frozenset({"cpu", "memory", "storage", "sizeLimit", "averageValue"})
_SUFFIXES: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6),
    "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18), "Ki": Decimal(2**10),
    "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip

_POLICY: Final = "podManagementPolicy"


@dataclass(frozen=True)
class Action:
    """One thing to do to one child."""

    verb: Verb
    kind: str
    name: str
    why: str
    path: str = ""
    manifest: Manifest = field(default_factory=dict, compare=False)
    part: str = ""
    """The part of the child that is written, where several writes to one child must not wait for each other."""


def plan(
    desired: Iterable[Manifest],
    observed: Mapping[ChildKey, Manifest],
    *,
    staged: tuple[ChildKey, ...] = (),
    kept: frozenset[ChildKey] = frozenset(),
) -> list[Action]:
    """Actions in order: create or change what is missing or differs, then delete what is no longer wanted.

    `staged` names workloads that change one after the other: one is changed only when those before it are rolled out,
    so that an upgrade never interrupts receiver and agents together. `kept` is never deleted.
    """
    actions: list[Action] = []
    desired = list(desired)
    blocked = False
    waiting = set(staged)
    for child in sorted(desired, key=lambda item: _stage(item, staged)):
        key = (child["kind"], child["metadata"]["name"])
        live = observed.get(key)
        if live is None:
            actions.append(Action("create", *key, "it does not exist", "", child))
            continue
        if _fixed(child, live):
            actions += _remade(key, live)
            continue
        found = difference(child, live)
        if found and not (blocked and key in waiting):
            actions.append(Action("apply", *key, found[1], found[0], child))
        if key in waiting and (found or not rolled_out(live)):
            blocked = True
    names = {(child["kind"], child["metadata"]["name"]) for child in desired}
    actions += [
        Action("delete", *key, "it is no longer wanted", "", live)
        for key, live in sorted(observed.items())
        if key not in names and key not in kept and "deletionTimestamp" not in live["metadata"]
    ]
    return actions


def _fixed(child: Manifest, live: Manifest) -> bool:
    """Whether a StatefulSet differs in a field that cannot be changed, so that it must be made anew."""
    return bool(child["kind"] == "StatefulSet" and child["spec"].get(_POLICY) != live["spec"].get(_POLICY))


def _remade(key: ChildKey, live: Manifest) -> list[Action]:
    """The deletion of a child that is then created; none while it is on its way."""
    if "deletionTimestamp" in live["metadata"]:
        return []
    return [Action("delete", *key, f"its {_POLICY} cannot be changed, so it is made anew", f".spec.{_POLICY}", live)]


def _stage(child: Manifest, staged: tuple[ChildKey, ...]) -> int:
    key = (child["kind"], child["metadata"]["name"])
    return staged.index(key) + 1 if key in staged else 0


def rolled_out(live: Manifest) -> bool:
    """Whether a workload runs its latest template wherever it can."""
    status, spec = live.get("status", {}), live.get("spec", {})
    if status.get("observedGeneration", 0) < live["metadata"].get("generation", 0):
        return False
    if live["kind"] == "DaemonSet":
        desired = status.get("desiredNumberScheduled", 0)
        return bool(status.get("updatedNumberScheduled", 0) >= desired)
    replicas = spec.get("replicas", 1)
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    return bool(updated >= replicas and available >= replicas and status.get("replicas", 0) <= updated)


def difference(desired: Manifest, live: Manifest) -> tuple[str, str] | None:
    """The first difference as (path, sentence), or `None`. Fields that others added are no difference."""
    # Objects in a list response carry neither kind nor apiVersion.
    body = {key: value for key, value in desired.items() if key not in ("apiVersion", "kind")}
    first = None
    for found in _differences(body, live, ""):
        if not found[0].endswith(CONFIG_HASH):  # which says that something in the pod differs, not what
            return found
        first = first or found
    if first:
        return first
    ours = desired["metadata"].get("annotations", {}).get(SPEC_HASH)
    theirs = live["metadata"].get("annotations", {}).get(SPEC_HASH)
    return None if ours == theirs else ("", "what the operator renders has changed")


def _differences(desired: Any, live: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(desired, dict):
        if not isinstance(live, dict):
            if desired:
                yield path, f"{path} is missing"
            return
        for key, value in desired.items():
            if path == ".metadata.annotations" and key == SPEC_HASH:
                continue
            yield from _differences(value, live.get(key), f"{path}.{key}")
    elif isinstance(desired, list):
        yield from _list_differences(desired, live if isinstance(live, list) else [], path)
    elif not _same(desired, live, path.rsplit(".", 1)[-1]):
        yield path, _changed(path, live, desired)


def _changed(path: str, live: Any, desired: Any) -> str:
    """The change of a value in words; of a text of several lines, that of the first line that differs."""
    if isinstance(live, str) and isinstance(desired, str) and "\n" in desired:
        lines = zip_longest(live.splitlines(), desired.splitlines())
        for number, (theirs, ours) in enumerate(lines, 1):
            if theirs != ours:
                return f"line {number} of {path} is {_short(theirs)} instead of {_short(ours)}"
    return f"{path} is {_short(live)} instead of {_short(desired)}"


def _list_differences(desired: list[Any], live: list[Any], path: str) -> Iterator[tuple[str, str]]:
    key = next(
        (name for name in _LIST_KEYS if desired and all(isinstance(item, dict) and name in item for item in desired)),
        None,
    )
    if key is None or len({item[key] for item in desired}) != len(desired):
        if len(desired) != len(live):
            yield path, f"{path} has {len(live)} items instead of {len(desired)}"
        for number, (ours, theirs) in enumerate(zip(desired, live, strict=False)):
            yield from _differences(ours, theirs, f"{path}[{number}]")
        return
    by_key = {item.get(key): item for item in live if isinstance(item, dict)}
    for item in desired:
        where = f"{path}[{item[key]}]"
        if item[key] not in by_key:
            yield where, f"{where} is missing"
        else:
            yield from _differences(item, by_key[item[key]], where)


def _same(desired: Any, live: Any, name: str) -> bool:
    if desired == live or (live is None and desired in ("", False)):
        return True
    if name in _QUANTITIES and desired is not None and live is not None:
        try:
            return quantity(str(desired)) == quantity(str(live))
        except ValueError:
            return False
    return False


def quantity(text: str) -> Decimal:
    """A Kubernetes quantity as a number. Raises `ValueError`."""
    suffix = next((item for item in sorted(_SUFFIXES, key=len, reverse=True) if text.endswith(item)), "")
    try:
        return Decimal(text.removesuffix(suffix)) * _SUFFIXES.get(suffix, Decimal(1))
    except InvalidOperation:
        raise ValueError(f"{text!r} is no quantity") from None


def _short(value: Any) -> str:
    if value is None:
        return "absent"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
