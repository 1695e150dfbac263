"""Cache of watched objects: kept small as JSON text, found by name and by owner. Pure."""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import orjson

from ingero_contract.kubernetes import GROUP, MANAGER, OWNER_LABEL, PROOF_LABEL
from ingero_operator.kinds import Manifest

ObjectKey = tuple[str, str, str]
"""Kind, namespace, name."""

OwnerKey = ObjectKey

WORKLOADS: Final = frozenset({"Deployment", "DaemonSet", "StatefulSet"})
_STATUS_KEPT: Final = WORKLOADS | {"FleetCluster", "EchoStore", "PersistentVolumeClaim"}
_GONE_KEPT: Final = 4096
"""Number of deleted objects that are remembered, so that a late event or response does not restore them."""
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Entry:
    """One object: its version, and the part of it that is kept, as text."""

    version: int
    uid: str
    text: bytes
    owner: OwnerKey | None
    controller: str | None
    """Uid of the controller."""


def key_of(kind: str, body: Manifest) -> ObjectKey:
    """The key of an object."""
    metadata = body["metadata"]
    return kind, metadata.get("namespace", ""), metadata["name"]


def owner_of(kind: str, body: Manifest) -> OwnerKey | None:
    """The resource that a child belongs to, by its controller reference.

    A claim and an orphaned proof are also recognised by their labels: only the operator may write a proof.
    """
    metadata = body["metadata"]
    for reference in metadata.get("ownerReferences", []):
        if reference.get("controller") and str(reference.get("apiVersion", "")).startswith(f"{GROUP}/"):
            return str(reference["kind"]), metadata.get("namespace", ""), str(reference["name"])
    labels = metadata.get("labels", {})
    managed = labels.get("app.kubernetes.io/managed-by") == MANAGER
    lasting = kind == "PersistentVolumeClaim" or (kind == "ConfigMap" and PROOF_LABEL in labels)
    if lasting and managed and OWNER_LABEL in labels:
        return "EchoStore", metadata.get("namespace", ""), labels[OWNER_LABEL]
    return None


def controller_uid(body: Manifest) -> str | None:
    """Uid of the controller of an object, if it has one."""
    references = body["metadata"].get("ownerReferences") or []
    return next((str(item.get("uid")) for item in references if item.get("controller")), None)


def slim(kind: str, body: Manifest) -> Manifest:
    """The part of an object that the operator reads."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    if _LAST_APPLIED in metadata.get("annotations", {}):
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != _LAST_APPLIED}
    dropped = {"metadata"} if kind in _STATUS_KEPT else {"metadata", "status"}
    return {"kind": kind, **{k: v for k, v in body.items() if k not in dropped}, "metadata": metadata}


class Cache:
    """Objects by key. An older version never replaces a newer one, in whatever order they arrive."""

    def __init__(self) -> None:
        self._entries: dict[ObjectKey, Entry] = {}
        self._children: dict[OwnerKey, set[ObjectKey]] = defaultdict(set)
        self._kinds: dict[str, set[ObjectKey]] = defaultdict(set)
        self._gone: OrderedDict[str, float] = OrderedDict()
        """Uids of deleted objects, and the version at which each was deleted."""

    def put(self, kind: str, body: Manifest) -> bool:
        """Store an object; returns whether it changed the cache."""
        key = key_of(kind, body)
        version, uid = _version(body), str(body["metadata"].get("uid", ""))
        before = self._entries.get(key)
        if version < self._gone.get(uid, 0) or (before and before.version >= version):
            return False
        owner = owner_of(kind, body)
        # A copy, because orjson leaves several kilobytes of spare room behind a short text.
        text = bytes(memoryview(orjson.dumps(slim(kind, body))))
        self._unlink(key)
        self._kinds[kind].add(key)
        self._entries[key] = Entry(version, uid, text, owner, controller_uid(body))
        if owner:
            self._children[owner].add(key)
        return True

    def drop(self, kind: str, body: Manifest) -> bool:
        """Remove a deleted object, unless a newer one of that name is already there.

        An object that loses the watched label is reported as deleted too, with its new version.
        """
        key, uid = key_of(kind, body), str(body["metadata"].get("uid", ""))
        entry = self._entries.get(key)
        if uid:
            self._bury(uid, _version(body))
        if entry is None or uid not in ("", entry.uid):
            return False
        self._forget(key)
        return True

    def drop_key(self, key: ObjectKey) -> bool:
        """Remove an object that the API server does not have."""
        entry = self._forget(key)
        if entry and entry.uid:
            self._bury(entry.uid, math.inf)
        return entry is not None

    def _forget(self, key: ObjectKey) -> Entry | None:
        self._unlink(key)
        self._kinds[key[0]].discard(key)
        return self._entries.pop(key, None)

    def _bury(self, uid: str, version: float) -> None:
        self._gone[uid] = version
        if len(self._gone) > _GONE_KEPT:
            self._gone.popitem(last=False)

    def _unlink(self, key: ObjectKey) -> None:
        entry = self._entries.get(key)
        if entry and entry.owner and entry.owner in self._children:
            self._children[entry.owner].discard(key)
            if not self._children[entry.owner]:
                del self._children[entry.owner]

    def get(self, key: ObjectKey) -> Manifest | None:
        """A fresh copy of an object."""
        entry = self._entries.get(key)
        return orjson.loads(entry.text) if entry else None

    def version(self, key: ObjectKey) -> int:
        """Version of an object, 0 for none."""
        entry = self._entries.get(key)
        return entry.version if entry else 0

    def owner(self, key: ObjectKey) -> OwnerKey | None:
        """The resource that an object belongs to."""
        entry = self._entries.get(key)
        return entry.owner if entry else None

    def children(self, owner: OwnerKey, uid: str) -> dict[tuple[str, str], Manifest]:
        """Fresh copies of all children of a resource, by kind and name, without those that an earlier resource of
        that name left."""
        return {
            (key[0], key[2]): orjson.loads(self._entries[key].text)
            for key in sorted(self._children.get(owner, ()))
            if self._entries[key].controller in (None, uid)
        }

    def leftovers(self, owner: OwnerKey, uid: str) -> list[Manifest]:
        """Fresh copies of the children that an earlier resource of that name left."""
        return [
            orjson.loads(self._entries[key].text)
            for key in sorted(self._children.get(owner, ()))
            if self._entries[key].controller not in (None, uid)
        ]

    def fingerprint(self, owner: OwnerKey) -> tuple[tuple[ObjectKey, int], ...]:
        """A value that changes whenever a child of the resource changes."""
        return tuple((key, self._entries[key].version) for key in sorted(self._children.get(owner, ())))

    def keys(self, kind: str) -> Iterator[ObjectKey]:
        """Keys of a kind."""
        return iter(list(self._kinds[kind]))

    def count(self, *kinds: str) -> int:
        """Number of objects of some kinds."""
        return sum(len(self._kinds[kind]) for kind in kinds)

    def versions(self, kind: str) -> dict[ObjectKey, tuple[str, int]]:
        """Uid and version of every object of a kind."""
        entries = self._entries
        return {key: (entries[key].uid, entries[key].version) for key in self._kinds[kind]}

    def __len__(self) -> int:
        return len(self._entries)


def _version(body: Manifest) -> int:
    text = str(body["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdigit() else 0
