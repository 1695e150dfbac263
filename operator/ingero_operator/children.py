"""Carrying out a plan, child by child, and saying what stood in the way."""

import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, Final

from ingero_contract.kubernetes import MANAGER, SPEC_HASH
from ingero_kit.logs import get
from ingero_operator.cache import Cache, OwnerKey, controller_uid, owner_of
from ingero_operator.cluster import Api, ApiError
from ingero_operator.kinds import BY_NAME, CLAIM, SERVICE_MONITOR
from ingero_operator.plan import Action
from ingero_operator.recorder import Happening
from ingero_operator.trouble import Trouble

log = get(__name__)

Manifest = dict[str, Any]

CONTEST_SECONDS: Final = 600.0
CONTEST_TIMES: Final = 3


@dataclass
class Outcome:
    """What became of a plan."""

    done: list[Action] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    waiting: str = ""
    """What has to be gone first, in words."""

    def happenings(self) -> list[Happening]:
        """What people should be told."""
        words = {"apply": "Applied", "delete": "Deleted"}
        told = [
            Happening("Normal", words[item.verb], f"{words[item.verb]} {item.kind} {item.name}: {item.why}")
            for item in self.done
            if item.verb in words
        ]
        made = [f"{item.kind} {item.name}" for item in self.done if item.verb == "create"]
        if made:
            told.append(Happening("Normal", "Created", f"Created {', '.join(made)}"))
        return told + [Happening("Warning", item.reason, item.message) for item in self.troubles]


class Hands:
    """Writes children. The cache learns from every answer, so that our own writes are never taken for news."""

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api = api
        self._cache = cache
        self._repairs: dict[tuple[OwnerKey, str, str, str], deque[float]] = defaultdict(
            lambda: deque(maxlen=CONTEST_TIMES)
        )
        self.applied = 0
        self.contested: set[OwnerKey] = set()

    async def carry_out(self, owner: OwnerKey, uid: str, actions: list[Action]) -> Outcome:
        """Do what can be done; one obstacle does not stop the others."""
        outcome = Outcome()
        for action in actions:
            try:
                trouble = await self._one(owner, uid, action)
            except ApiError as error:
                if error.transient and error.status != 409:
                    raise
                trouble = explain(f"{action.kind} {action.name}", error)
            if trouble is None:
                outcome.done.append(action)
                self.applied += 1
                if action.verb != "create":
                    log.info(
                        "child", verb=action.verb, kind=action.kind, name=action.name, owner=owner[2], why=action.why
                    )
            elif trouble.reason:
                outcome.troubles.append(trouble)
        made = [f"{item.kind} {item.name}" for item in outcome.done if item.verb == "create"]
        if made:
            log.info("children_made", owner=owner[2], namespace=owner[1], children=made)
        return outcome

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

    async def _one(self, owner: OwnerKey, uid: str, action: Action) -> Trouble | None:
        kind, namespace = BY_NAME[action.kind], owner[1]
        if action.verb == "delete":
            await self._api.delete(kind, namespace, action.name, action.manifest["metadata"]["uid"])
            return None
        if action.verb == "create":
            found = await self._api.get(kind, namespace, action.name)
            if found is not None:
                return self._already_there(owner, uid, action, found)
        elif self._is_fight(owner, action):
            return await self._contested(namespace, action)
        answer = await self._api.apply(kind, action.manifest)
        if kind is not SERVICE_MONITOR:  # nobody would tell the cache when it goes
            self._cache.put(action.kind, answer)
        return None

    def _already_there(self, owner: OwnerKey, uid: str, action: Action, found: Manifest) -> Trouble | None:
        found.setdefault("kind", action.kind)
        ours = owner_of(action.kind, found) == owner
        if ours and controller_uid(found) in (None, uid):
            if action.kind != SERVICE_MONITOR.name:
                self._cache.put(action.kind, found)
            return Trouble("", "")
        if ours or "deletionTimestamp" in found["metadata"]:
            if ours and action.kind != SERVICE_MONITOR.name:
                self._cache.put(action.kind, found)  # to be cleared away by the next try
            raise ApiError(
                503, "StillGoing", f"{action.kind} {action.name} of an earlier resource is still going away"
            )
        reason = "ForeignClaim" if action.kind == "PersistentVolumeClaim" else "ForeignChild"
        return Trouble(
            reason,
            f"{action.kind} {action.name} exists and does not belong to this {owner[0]}; "
            "rename or delete it, or give the resource another name",
        )

    def _is_fight(self, owner: OwnerKey, action: Action) -> bool:
        live = self._cache.get((action.kind, owner[1], action.name)) or {"metadata": {}}
        ours = action.manifest["metadata"]["annotations"].get(SPEC_HASH)
        if live["metadata"].get("annotations", {}).get(SPEC_HASH) != ours:
            return False
        times = self._repairs[owner, action.kind, action.name, action.path]
        now = time.monotonic()
        if len(times) == CONTEST_TIMES and now - times[0] < CONTEST_SECONDS:
            return True
        times.append(now)
        return False

    async def _contested(self, namespace: str, action: Action) -> Trouble:
        live = await self._api.get(BY_NAME[action.kind], namespace, action.name) or {"metadata": {}}
        others = {
            str(entry.get("manager"))
            for entry in live["metadata"].get("managedFields", [])
            if entry.get("manager") != MANAGER and entry.get("subresource") != "status"
        }
        return Trouble(
            "FieldContested",
            f"{action.kind} {action.name}: {action.path or 'a field'} comes back again and again "
            f"({', '.join(sorted(others)) or 'another manager'} writes it too); stop the other writer",
            stalls=False,
        )

    def forget(self, owner: OwnerKey) -> None:
        """Drop what is remembered of a resource that is gone."""
        for key in [key for key in self._repairs if key[0] == owner]:
            del self._repairs[key]


def explain(what: str, error: ApiError) -> Trouble:
    """A refusal in words, with who can lift it. `what` was asked for."""
    if error.status == 403 and "exceeded quota" in error.message:
        return Trouble("QuotaExceeded", f"{what}: {error.message}; raise the quota or ask for less", stalls=False)
    if "is being terminated" in error.message or "being terminated" in error.reason:
        return Trouble("NamespaceTerminating", f"{what}: the namespace is being deleted", stalls=False)
    if error.status in (401, 403):
        return Trouble(
            "Forbidden", f"{what}: {error.message}; the operator's ClusterRole lacks this: apply manifests/ again",
            stalls=False,
        )  # fmt: skip
    if error.status == 404:
        return Trouble("KindMissing", f"{what}: the API server does not know this kind or namespace", stalls=False)
    if error.status == 409:
        return Trouble("Conflict", f"{what}: {error.message}", stalls=False)
    return Trouble("Rejected", f"{what}: {error.message}")
