"""Applies a plan, child by child, and reports what prevented an action."""

import time
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from ingero_contract.kubernetes import MANAGER, SPEC_HASH
from ingero_kit.logs import get
from ingero_operator.api_client import ApiClient, ApiError
from ingero_operator.cache import Cache, OwnerKey, controller_uid, owner_of
from ingero_operator.errors import ReconcileError
from ingero_operator.events import KubernetesEvent
from ingero_operator.failures import Failures, Operation, OperationKind, explain
from ingero_operator.kinds import BY_NAME, CLAIM, UNWATCHED, Manifest, ResourceKind
from ingero_operator.plan import Action, ChildKey, difference

log = get(__name__)

CONTEST_SECONDS: Final = 600.0
CONTEST_TIMES: Final = 3
PASS_SECONDS: Final = 10.0
"""How long one pass continues after a failure: hanging requests must not block the resource's other work."""


@dataclass
class ApplyResult:
    """The actions of a plan that were applied; those that failed are in `Failures`."""

    done: list[Action] = field(default_factory=list)
    waiting: str = ""
    """What has to be deleted first, as a sentence; empty when there is nothing to wait for."""

    def events(self) -> list[KubernetesEvent]:
        """Events about what was applied."""
        reasons = {"apply": "Applied", "delete": "Deleted"}
        events = [
            KubernetesEvent("Normal", reasons[item.verb], f"{reasons[item.verb]} {item.kind} {item.name}: {item.why}")
            for item in self.done
            if item.verb in reasons
        ]
        created = [f"{item.kind} {item.name}" for item in self.done if item.verb == "create"]
        if created:
            events.append(KubernetesEvent("Normal", "Created", f"Created {', '.join(created)}"))
        return events

    def progress(self) -> str:
        """What is in progress, as a sentence; empty when nothing is."""
        if self.waiting or not self.done:
            return self.waiting
        first = self.done[0]
        return f"{first.verb} {first.kind} {first.name}: {first.why}"


@dataclass(frozen=True, kw_only=True)
class ChildPlan:
    """The actions on the children of a resource; none when they are as they should be."""

    actions: list[Action] = field(default_factory=list)
    first: frozenset[ChildKey] = frozenset()
    """The children whose actions come first; the others are skipped unless these succeed."""
    clear: bool = False
    """Whether an earlier resource of the same name left children, which must be deleted before any create."""


class Attempt(Enum):
    """The result of one action."""

    SUCCEEDED = "succeeded"
    """The child is as it should be, because of this action or already before it."""
    FAILED = "failed"
    """The action is blocked, was refused, or waits for its retry."""
    UNREACHABLE = "unreachable"
    """The API server did not answer."""


class ChildBlocked(Exception):
    """Something other than an error of the API server prevents an action."""

    def __init__(self, error: ReconcileError) -> None:
        super().__init__(error.message)
        self.error = error


class ChildApplier:
    """Writes children. Every response updates the cache, so that the operator's own writes cause no reconcile."""

    def __init__(self, api: ApiClient, cache: Cache, failures: Failures) -> None:
        self._api = api
        self._cache = cache
        self._failures = failures
        self._repairs: dict[tuple[OwnerKey, str, str, str], deque[float]] = defaultdict(
            lambda: deque(maxlen=CONTEST_TIMES)
        )
        self.applied = 0

    def pause(self, owner: OwnerKey) -> None:
        """Leave the children as they are, and forget what failed."""
        self._failures.retain(owner, OperationKind.CHILD, ())
        self._failures.resolve(owner, _clearing(owner))

    async def carry_out(self, owner: OwnerKey, uid: str, plan: ChildPlan) -> ApplyResult:
        """Apply every action that can be applied; one that fails does not stop the others."""
        outcome, failures, started = ApplyResult(), self._failures, time.monotonic()
        if plan.clear:
            with failures.guarded(owner, _clearing(owner)):
                return await self._clear(owner, uid)
            return outcome
        failures.resolve(owner, _clearing(owner))
        failures.retain(owner, OperationKind.CHILD, {_target(action) for action in plan.actions})

        def order(action: Action) -> tuple[bool, bool]:
            # Actions that failed last time come last: a write that hangs delays no other.
            return (action.kind, action.name) not in plan.first, failures.failed(owner, _operation(action))

        for action in sorted(plan.actions, key=order):
            attempt = await self._try(owner, uid, action, outcome)
            late = time.monotonic() - started > PASS_SECONDS
            required = (action.kind, action.name) in plan.first
            if attempt is Attempt.UNREACHABLE or (attempt is Attempt.FAILED and (late or required)):
                break
        created = [f"{item.kind} {item.name}" for item in outcome.done if item.verb == "create"]
        if created:
            log.info("children_created", owner=owner[2], namespace=owner[1], children=created)
        return outcome

    async def _try(self, owner: OwnerKey, uid: str, action: Action, outcome: ApplyResult) -> Attempt:
        operation, attempt, failures = _operation(action), _attempt(action), self._failures
        if failures.backs_off(owner, operation, attempt):
            return Attempt.FAILED
        try:
            applied = await self._apply(owner, uid, action)
        except ApiError as error:
            reported = explain(operation.target, error)
            failures.add(owner, operation, reported, transient=error.transient, attempt=attempt)
            return Attempt.FAILED if error.status else Attempt.UNREACHABLE
        except ChildBlocked as blocked:
            failures.add(owner, operation, blocked.error, attempt=attempt)
            return Attempt.FAILED
        failures.resolve(owner, operation)
        if applied is not None:
            outcome.done.append(applied)
            self.applied += 1
            if applied.verb != "create":
                log.info(
                    "child_written", verb=applied.verb, kind=applied.kind, name=applied.name, owner=owner[2],
                    why=applied.why,
                )  # fmt: skip
        return Attempt.SUCCEEDED

    async def _clear(self, owner: OwnerKey, uid: str) -> ApplyResult:
        """Delete the children that an earlier resource of that name left.

        The garbage collector does it too, but minutes later where it does not know the operator's kinds yet. Claims
        are left to the garbage collector: no data is deleted here.
        """
        left = self._cache.leftovers(owner, uid)
        live = await self._api.get(BY_NAME[owner[0]], owner[1], owner[2])
        if live is None or live["metadata"]["uid"] != uid:
            raise ApiError(409, "Replaced", f"{owner[0]} {owner[2]} has just been made anew")
        for child in left:
            metadata = child["metadata"]
            if child["kind"] != CLAIM.name and "deletionTimestamp" not in metadata:
                await self._api.delete(BY_NAME[child["kind"]], owner[1], metadata["name"], metadata["uid"])
                log.info("leftover_deleted", kind=child["kind"], name=metadata["name"], owner=owner[2])
        names = ", ".join(f"{child['kind']} {child['metadata']['name']}" for child in left[:3])
        return ApplyResult(waiting=f"{names} of an earlier {owner[0]} of this name must go first")

    async def _apply(self, owner: OwnerKey, uid: str, action: Action) -> Action | None:
        """The action as it was applied; `None` when the child is already as it should be. Raises `ChildBlocked` and
        `ApiError`."""
        kind, namespace = BY_NAME[action.kind], owner[1]
        if action.verb == "delete":
            await self._api.delete(kind, namespace, action.name, action.manifest["metadata"]["uid"])
            return action
        if action.verb == "create":
            found = await self._api.get(kind, namespace, action.name)
            if found is not None:
                # The resource's child, but not in the cache: it lost the watched label, or the watch is late.
                self._require_ours(owner, uid, action, found)
                differs = difference(action.manifest, found)
                if differs is None:
                    return None
                action = replace(action, verb="apply", why=differs[1], path=differs[0])
        repairs = self._repairs_of(owner, action) if action.verb == "apply" else None
        if repairs is not None and len(repairs) == CONTEST_TIMES and time.monotonic() - repairs[0] < CONTEST_SECONDS:
            raise ChildBlocked(await self._contested(namespace, action))
        response = await self._api.apply(kind, action.manifest)
        if repairs is not None:
            repairs.append(time.monotonic())
        if action.kind not in UNWATCHED:  # the cache would never learn of its deletion
            self._cache.put(action.kind, response)
        return action

    def _require_ours(self, owner: OwnerKey, uid: str, action: Action, found: Manifest) -> None:
        """Raise unless an object of a child's name is this resource's child."""
        found.setdefault("kind", action.kind)
        ours = owner_of(action.kind, found) == owner
        if ours and action.kind not in UNWATCHED:
            self._cache.put(action.kind, found)  # the next attempt deletes a child of an earlier resource
        if ours and controller_uid(found) in (None, uid):
            return
        if ours or "deletionTimestamp" in found["metadata"]:
            message = f"{action.kind} {action.name} of an earlier resource is still being deleted"
            raise ApiError(503, "StillGoing", message)
        reason = "ForeignClaim" if action.kind == CLAIM.name else "ForeignChild"
        message = (
            f"{action.kind} {action.name} exists and does not belong to this {owner[0]}; "
            "rename or delete it, or give the resource another name"
        )
        raise ChildBlocked(ReconcileError(reason, message))

    def _repairs_of(self, owner: OwnerKey, action: Action) -> deque[float] | None:
        """The times at which this difference was repaired before; `None` when the operator itself caused it."""
        live = self._cache.get((action.kind, owner[1], action.name)) or {"metadata": {}}
        ours = action.manifest["metadata"]["annotations"].get(SPEC_HASH)
        if live["metadata"].get("annotations", {}).get(SPEC_HASH) != ours:
            return None
        return self._repairs[owner, action.kind, action.name, action.path]

    async def _contested(self, namespace: str, action: Action) -> ReconcileError:
        live = await self._api.get(BY_NAME[action.kind], namespace, action.name) or {"metadata": {}}
        others = {
            str(entry.get("manager"))
            for entry in live["metadata"].get("managedFields", [])
            if entry.get("manager") != MANAGER and entry.get("subresource") != "status"
        }
        return ReconcileError(
            "FieldContested",
            f"{action.kind} {action.name}: {action.path or 'a field'} comes back again and again "
            f"({', '.join(sorted(others)) or 'another manager'} writes it too); stop the other writer",
            stalls=False,
        )

    async def unwatched(
        self, owner: OwnerKey, kind: ResourceKind, suffixes: tuple[str, ...], served: bool
    ) -> dict[ChildKey, Manifest]:
        """The children of a resource of a kind whose CRD may come and go: read when children are compared."""
        reading, found = Operation(OperationKind.READ, f"{kind.name}s"), dict[ChildKey, Manifest]()
        if not served:
            self._failures.resolve(owner, reading)
            return found
        with self._failures.guarded(owner, reading):
            for suffix in suffixes:
                live = await self._api.get(kind, owner[1], f"{owner[2]}-{suffix}")
                if live and owner_of(kind.name, live) == owner:
                    found[kind.name, f"{owner[2]}-{suffix}"] = {"kind": kind.name, **live}
        return found

    def forget(self, owner: OwnerKey) -> None:
        """Drop the state of a deleted resource."""
        for key in [key for key in self._repairs if key[0] == owner]:
            del self._repairs[key]
        self._failures.forget(owner)


def _clearing(owner: OwnerKey) -> Operation:
    return Operation(OperationKind.CHILDREN, f"children of {owner[0]} {owner[2]}")


def _target(action: Action) -> str:
    return f"{action.kind} {action.name} {action.part}".rstrip()


def _operation(action: Action) -> Operation:
    return Operation(OperationKind.CHILD, _target(action))


def _attempt(action: Action) -> str:
    return f"{action.verb} {action.manifest['metadata'].get('annotations', {}).get(SPEC_HASH, '')}"
