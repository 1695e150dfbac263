"""Carrying out a plan, child by child, and saying what stood in the way."""

import time
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ingero_contract.kubernetes import MANAGER, SPEC_HASH
from ingero_kit.logs import get
from ingero_operator.api_client import ApiClient, ApiError
from ingero_operator.cache import Cache, OwnerKey, controller_uid, owner_of
from ingero_operator.errors import ReconcileError
from ingero_operator.events import Event
from ingero_operator.failures import Failures, explain
from ingero_operator.kinds import BY_NAME, CLAIM, SERVICE_MONITOR
from ingero_operator.plan import Action, ChildKey, difference

log = get(__name__)

Manifest = dict[str, Any]

CONTEST_SECONDS: Final = 600.0
CONTEST_TIMES: Final = 3


GROUP: Final = "child"
PASS_SECONDS: Final = 10.0
"""How long one pass goes on after a failure: requests that hang must not keep a resource from its other work."""


@dataclass
class Outcome:
    """What became of a plan; what failed of it is in `Failures`."""

    done: list[Action] = field(default_factory=list)
    waiting: str = ""
    """What has to be gone first, in words."""

    def events(self) -> list[Event]:
        """What people should be told."""
        verbs = {"apply": "Applied", "delete": "Deleted"}
        events = [
            Event("Normal", verbs[item.verb], f"{verbs[item.verb]} {item.kind} {item.name}: {item.why}")
            for item in self.done
            if item.verb in verbs
        ]
        made = [f"{item.kind} {item.name}" for item in self.done if item.verb == "create"]
        if made:
            events.append(Event("Normal", "Created", f"Created {', '.join(made)}"))
        return events


class ChildApplier:
    """Writes children. The cache learns from every answer, so that our own writes are never taken for news."""

    def __init__(self, api: ApiClient, cache: Cache, failures: Failures) -> None:
        self._api = api
        self._cache = cache
        self._failures = failures
        self._repairs: dict[tuple[OwnerKey, str, str, str], deque[float]] = defaultdict(
            lambda: deque(maxlen=CONTEST_TIMES)
        )
        self.applied = 0
        self.contested: set[OwnerKey] = set()

    async def apply(self, owner: OwnerKey, uid: str, actions: list[Action], first: ChildKey | None = None) -> Outcome:
        """Do what can be done; one obstacle does not stop the others.

        What is to be done to `first` comes first, and nothing else is done without it.
        """
        outcome, failures, started = Outcome(), self._failures, time.monotonic()
        failures.retain(owner, GROUP, {_called(action) for action in actions})

        def order(action: Action) -> tuple[bool, bool]:
            # What failed last time comes last: a write that hangs holds up no other.
            return (action.kind, action.name) != first, failures.failed(owner, (GROUP, _called(action)))

        for action in sorted(actions, key=order):
            succeeded, reached = await self._try(owner, uid, action, outcome)
            late = time.monotonic() - started > PASS_SECONDS
            if not succeeded and (late or not reached or (action.kind, action.name) == first):
                break
        made = [f"{item.kind} {item.name}" for item in outcome.done if item.verb == "create"]
        if made:
            log.info("children_made", owner=owner[2], namespace=owner[1], children=made)
        return outcome

    async def _try(self, owner: OwnerKey, uid: str, action: Action, outcome: Outcome) -> tuple[bool, bool]:
        """Whether it went well, and whether the API server answered at all."""
        what, about, failures = (GROUP, _called(action)), _about(action), self._failures
        if failures.backs_off(owner, what, about):
            return False, True
        try:
            result = await self._one(owner, uid, action)
        except ApiError as error:
            failures.add(owner, what, explain(what[1], error), transient=error.transient, about=about)
            return False, error.status != 0
        if isinstance(result, ReconcileError):
            failures.add(owner, what, result, about=about)
            return False, True
        failures.resolve(owner, what)
        if result is not None:
            outcome.done.append(result)
            self.applied += 1
            if result.verb != "create":
                log.info(
                    "child", verb=result.verb, kind=result.kind, name=result.name, owner=owner[2], why=result.why
                )
        return True, True

    async def clear(self, owner: OwnerKey, uid: str) -> Outcome | None:
        """Delete what an earlier resource of that name left behind; nothing when there is nothing left of it.

        The garbage collector would do it too, but only minutes later where it has not yet learnt of our kinds. Claims
        are left to it: no data is deleted here.
        """
        left = self._cache.leftovers(owner, uid)
        if not left:
            return None
        live = await self._api.get(BY_NAME[owner[0]], owner[1], owner[2])
        if live is None or live["metadata"]["uid"] != uid:
            raise ApiError(409, "Replaced", f"{owner[0]} {owner[2]} has just been made anew")
        for child in left:
            metadata = child["metadata"]
            if child["kind"] != CLAIM.name and "deletionTimestamp" not in metadata:
                await self._api.delete(BY_NAME[child["kind"]], owner[1], metadata["name"], metadata["uid"])
                log.info("leftover_deleted", kind=child["kind"], name=metadata["name"], owner=owner[2])
        names = ", ".join(f"{child['kind']} {child['metadata']['name']}" for child in left[:3])
        return Outcome(waiting=f"{names} of an earlier {owner[0]} of this name must go first")

    async def _one(self, owner: OwnerKey, uid: str, action: Action) -> Action | ReconcileError | None:
        """What was done, or what stands in the way; nothing where the child is as it should be already."""
        kind, namespace = BY_NAME[action.kind], owner[1]
        if action.verb == "delete":
            await self._api.delete(kind, namespace, action.name, action.manifest["metadata"]["uid"])
            return action
        if action.verb == "create":
            found = await self._api.get(kind, namespace, action.name)
            if found is not None:
                # Ours and not seen: it lost the label that is watched, or the watch is behind.
                foreign = self._foreign(owner, uid, action, found)
                if foreign is not None:
                    return foreign
                differs = difference(action.manifest, found)
                if differs is None:
                    return None
                action = replace(action, verb="apply", why=differs[1], path=differs[0])
        repairs = self._repairs_of(owner, action) if action.verb == "apply" else None
        if repairs is not None and len(repairs) == CONTEST_TIMES and time.monotonic() - repairs[0] < CONTEST_SECONDS:
            return await self._contested(namespace, action)
        response = await self._api.apply(kind, action.manifest)
        if repairs is not None:
            repairs.append(time.monotonic())
        if kind is not SERVICE_MONITOR:  # nobody would tell the cache when it goes
            self._cache.put(action.kind, response)
        return action

    def _foreign(self, owner: OwnerKey, uid: str, action: Action, found: Manifest) -> ReconcileError | None:
        found.setdefault("kind", action.kind)
        ours = owner_of(action.kind, found) == owner
        if ours and action.kind != SERVICE_MONITOR.name:
            self._cache.put(action.kind, found)  # of an earlier resource: to be cleared away by the next try
        if ours and controller_uid(found) in (None, uid):
            return None
        if ours or "deletionTimestamp" in found["metadata"]:
            raise ApiError(
                503, "StillGoing", f"{action.kind} {action.name} of an earlier resource is still going away"
            )
        reason = "ForeignClaim" if action.kind == "PersistentVolumeClaim" else "ForeignChild"
        return ReconcileError(
            reason,
            f"{action.kind} {action.name} exists and does not belong to this {owner[0]}; "
            "rename or delete it, or give the resource another name",
        )

    def _repairs_of(self, owner: OwnerKey, action: Action) -> deque[float] | None:
        """When this was put right before; nothing where it is our own change."""
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

    def forget(self, owner: OwnerKey) -> None:
        """Drop what is remembered of a resource that is gone."""
        for key in [key for key in self._repairs if key[0] == owner]:
            del self._repairs[key]
        self._failures.forget(owner)


def _called(action: Action) -> str:
    return f"{action.kind} {action.name} {action.part}".rstrip()


def _about(action: Action) -> str:
    digest = action.manifest["metadata"].get("annotations", {}).get(SPEC_HASH, "")
    return f"{action.verb} {digest}"
