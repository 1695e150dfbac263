"""The encrypted volume gate: decides from API objects what may be created. Pure; in doubt it denies.

There are two checks. The class is judged and recorded before the claim exists. The volume is judged before the
ConfigMap exists that the pod needs to start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ingero_operator.api.v1alpha1 import EchoStoreSpec, Policy
from ingero_operator.conditions import Condition, no, unknown, yes
from ingero_operator.encryption import (
    EVIDENCE_KEY,
    Level,
    Recorded,
    StorageClass,
    Volume,
    directory_driver,
    judge_class,
    judge_volume,
    key_name,
)
from ingero_operator.errors import ReconcileError
from ingero_operator.kinds import Manifest
from ingero_operator.plan import quantity
from ingero_operator.render.echo import Proof

LEVELS: Final = {
    Policy.DECLARED: Level.DECLARED,
    Policy.PROVIDER_DEFAULT: Level.PROVIDER_DEFAULT,
    Policy.PROVEN: Level.PROVEN,
}
_BY_NAME: Final = {level.label: level for level in LEVELS.values()}
_DEFAULT: Final = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")


@dataclass(frozen=True, kw_only=True)
class GateInputs:
    """The inputs of the gate."""

    classes: Sequence[Manifest]
    claim: Manifest | None
    volume: Manifest | None
    recorded: Mapping[str, Any]
    """`status.encryption` as it is stored."""
    least: Policy = Policy.DECLARED
    """The minimum of the whole cluster."""


@dataclass(frozen=True, kw_only=True)
class GateDecision:
    """What the gate allows."""

    record: Manifest
    """`status.encryption` as it must be stored before anything is created."""
    claim_class: str | None = None
    """Class of the claim that may be created."""
    claim_size: str = ""
    """The size that the claim requests already, or will request when it is created. Every other write to the claim
    uses it, so that a refused resize blocks none of them."""
    grow_to: str | None = None
    """The new size to request, in a separate write."""
    capacity: str | None = None
    """The size of the volume."""
    proof: Proof | None = None
    """The proof that the pod may start with."""
    lock: bool = False
    """Whether the proof must be deleted, which blocks the next start of the pod."""
    conditions: list[Condition] = field(default_factory=list)
    errors: list[ReconcileError] = field(default_factory=list)


def decide(spec: EchoStoreSpec, inputs: GateInputs) -> GateDecision:
    """Decide with what is known now."""
    policy = max(LEVELS[spec.storage.encryption.policy], LEVELS[inputs.least])
    if inputs.claim is None:
        return _before_the_claim(spec, inputs, policy)
    return _with_the_claim(spec, inputs, policy)


def _before_the_claim(spec: EchoStoreSpec, inputs: GateInputs, policy: Level) -> GateDecision:
    desired = spec.storage.class_name
    chosen = _find(inputs.classes, desired) if desired else default_class(inputs.classes)
    if chosen is None:
        message = (
            f"there is no StorageClass {desired}; make it, or set spec.storage.className to one that exists"
            if desired
            else "the cluster has no default StorageClass; set spec.storage.className to an encrypted class"
        )
        return _refused({"verdict": "Pending"}, "StorageClassMissing", message)
    judged = judge_class(storage_class(chosen), policy)
    if not judged.proven:
        record = {"verdict": "Refused", "className": chosen["metadata"]["name"]}
        return _refused(record, judged.reason, judged.message)
    record = _record(chosen, judged.level)
    return GateDecision(
        record=record,
        claim_class=record["className"],
        claim_size=spec.storage.size,
        conditions=[
            unknown("EncryptionVerified", "ClassJudged", f"{judged.message}; the volume is judged when it is bound"),
            unknown("StorageBound", "Pending", "the claim is not made yet"),
        ],
    )


def _with_the_claim(spec: EchoStoreSpec, inputs: GateInputs, policy: Level) -> GateDecision:
    claim = inputs.claim
    assert claim is not None
    uid, name = claim["metadata"]["uid"], claim["spec"].get("storageClassName") or ""
    current = _find(inputs.classes, name)
    record = dict(inputs.recorded)
    if not record.get("classUID"):
        record = _lost_record(inputs, current)
    level = _BY_NAME.get(str(record.get("level")), Level.NONE)
    bound = claim.get("status", {}).get("phase") == "Bound" and inputs.volume is not None
    storage = _storage(spec, claim, current, bound)
    base: dict[str, Any] = {
        "claim_class": name, "claim_size": storage.size, "grow_to": storage.grow_to, "capacity": storage.capacity
    }  # fmt: skip
    if level is Level.NONE:
        message = (
            f"the claim {claim['metadata']['name']} exists, but no class was judged before it was made; "
            "move its data to a new store"
        )
        return _locked(record, "ClassNotJudged", message, storage, base)
    if level < policy:
        message = (
            f"the volume reaches {level.label} and {policy.label} is required; the running pod continues, the next "
            "start is locked: lower spec.storage.encryption.policy, or copy to a new store on a stronger class"
        )
        return _locked(record, "PolicyNotReached", message, storage, base)
    if current and current["metadata"]["uid"] == record.get("classUID"):
        again = judge_class(storage_class(current), policy)
        if not again.proven:
            return _locked(record, again.reason, again.message, storage, base)
    if not bound:
        record |= {"verdict": "Pending"}
        for key in ("volume", "volumeUID", "claimUID"):
            record.pop(key, None)
        waiting = unknown("EncryptionVerified", "VolumePending", "the volume is judged when it is bound")
        return GateDecision(record=record, conditions=[waiting, *storage.conditions], lock=True, **base)
    assert inputs.volume is not None
    volume = volume_of(inputs.volume)
    known = record.get("volumeUID") == volume.uid and record.get("claimUID") == uid and volume.claim_uid == uid
    note = ""
    if known:
        if current is None or current["metadata"]["uid"] != record["classUID"]:
            note = f" (class {name} has been removed or made anew since; new stores are judged by the new one)"
    elif record.get("volumeUID"):
        message = (
            f"claim or volume were replaced ({record.get('volume')} was proven, {volume.name} is bound now); "
            "the next start is locked: copy to a new store"
        )
        return _locked(record, "VolumeReplaced", message, storage, base)
    else:
        recorded = Recorded(str(record["className"]), str(record["classUID"]), level)
        judged = judge_volume(volume, recorded, storage_class(current) if current else None, uid)
        if not judged.proven:
            return _locked(record, judged.reason, judged.message, storage, base)
    record |= {"verdict": level.label, "volume": volume.name, "volumeUID": volume.uid, "claimUID": uid}
    proof = Proof(
        volume=volume.name, volume_uid=volume.uid, class_name=name, class_uid=str(record["classUID"]),
        level=level.label,
    )  # fmt: skip
    verified = yes("EncryptionVerified", level.label, f"volume {volume.name} reaches {level.label}{note}")
    return GateDecision(record=record, proof=proof, conditions=[verified, *storage.conditions], **base)


@dataclass(frozen=True, kw_only=True)
class _Storage:
    """The size of the claim, and the size that it may grow to."""

    conditions: list[Condition]
    """StorageBound and ResizePending."""
    size: str
    grow_to: str | None = None
    capacity: str | None = None


def _storage(spec: EchoStoreSpec, claim: Manifest, current: Manifest | None, bound: bool) -> _Storage:
    requested, name = spec.storage.size, claim["metadata"]["name"]
    present = str(claim["spec"].get("resources", {}).get("requests", {}).get("storage") or requested)
    size = requested if quantity(requested) == quantity(present) else present
    settled = no("ResizePending", "AsRequested", "the size is the requested one")
    capacity = claim.get("status", {}).get("capacity", {}).get("storage")
    if not bound:
        phase = claim.get("status", {}).get("phase", "Pending")
        waiting = no("StorageBound", "ClaimPending", f"claim {name} is {phase}: see `kubectl describe pvc {name}`")
        if quantity(requested) > quantity(present):
            text = f"the claim requests {present} and grows to {requested} as soon as it is bound"
            settled = yes("ResizePending", "ClaimPending", text)
        return _Storage(conditions=[waiting, settled], size=size, capacity=capacity)
    has = str(capacity or "0")
    condition = yes("StorageBound", "Bound", f"claim {name} is bound to {claim['spec'].get('volumeName')} ({has})")
    if "deletionTimestamp" in claim["metadata"]:
        message = (
            f"claim {name} was deleted and stays as long as its pod runs, which no rollout replaces until then; the "
            "next pod begins on a new volume: back up this one before, with `ingero-echo backup`, then delete the pod"
        )
        condition = no("StorageBound", "ClaimDeleted", message)
    if quantity(requested) <= quantity(has):
        return _Storage(conditions=[condition, settled], size=size, capacity=capacity)
    if not (current or {}).get("allowVolumeExpansion"):
        message = (
            f"{requested} are requested and the volume has {has}, but class {claim['spec'].get('storageClassName')} "
            "does not allow expansion; copy to a new store"
        )
        refused = yes("ResizePending", "ClassCannotExpand", message)
        return _Storage(conditions=[condition, refused], size=size, capacity=capacity)
    pending = yes("ResizePending", "Resizing", f"the volume has {has} and grows to {requested}")
    grow_to = requested if quantity(requested) > quantity(present) else None
    return _Storage(conditions=[condition, pending], size=size, grow_to=grow_to, capacity=capacity)


def _locked(record: Manifest, reason: str, message: str, storage: _Storage, base: dict[str, Any]) -> GateDecision:
    return GateDecision(
        record={**record, "verdict": "Refused"},
        lock=True,
        conditions=[no("EncryptionVerified", reason, message), *storage.conditions],
        errors=[ReconcileError(reason, message)],
        **base,
    )


def _refused(record: Manifest, reason: str, message: str) -> GateDecision:
    return GateDecision(
        record=record,
        lock=True,
        conditions=[
            no("EncryptionVerified", reason, message),
            no("StorageBound", "NotMade", "no claim is made before the class is judged encrypted"),
        ],
        errors=[ReconcileError(reason, message)],
    )


def _record(chosen: Manifest, level: Level) -> Manifest:
    evidence, key = chosen["metadata"].get("annotations", {}).get(EVIDENCE_KEY), key_name(storage_class(chosen))
    return {
        "verdict": "Pending",
        "level": level.label,
        "className": chosen["metadata"]["name"],
        "classUID": chosen["metadata"]["uid"],
        **({"key": key[:256]} if key and level is Level.PROVEN else {}),
        **({"evidence": evidence[:4096]} if evidence and level is Level.DECLARED else {}),
    }


def _lost_record(inputs: GateInputs, current: Manifest | None) -> Manifest:
    """Judge the store's claim without a record: its class counts only if it is older than the volume."""
    if current is None or inputs.volume is None:
        return {}
    if not current["metadata"]["creationTimestamp"] < inputs.volume["metadata"]["creationTimestamp"]:
        return {}
    judged = judge_class(storage_class(current), Level.DECLARED)
    return _record(current, judged.level) if judged.proven else {}


def _find(classes: Sequence[Manifest], name: str) -> Manifest | None:
    return next((item for item in classes if item["metadata"]["name"] == name), None)


def default_class(classes: Sequence[Manifest]) -> Manifest | None:
    """The class that the API server would pick: the newest default one, then by name."""
    defaults = [
        item
        for item in classes
        if any(item["metadata"].get("annotations", {}).get(key) == "true" for key in _DEFAULT)
    ]
    defaults.sort(key=lambda item: str(item["metadata"]["name"]))
    defaults.sort(key=lambda item: str(item["metadata"].get("creationTimestamp", "")), reverse=True)
    return defaults[0] if defaults else None


def storage_class(body: Manifest) -> StorageClass:
    """A StorageClass in the form that `encryption` judges."""
    metadata = body["metadata"]
    return StorageClass(
        name=metadata["name"],
        uid=metadata["uid"],
        provisioner=body.get("provisioner", ""),
        parameters=body.get("parameters") or {},
        annotations=metadata.get("annotations") or {},
    )


def volume_of(body: Manifest) -> Volume:
    """A PersistentVolume in the form that `encryption` judges: by its CSI driver, the driver that an in-tree volume
    migrated to, or the provisioner of a node's directory."""
    metadata, spec = body["metadata"], body["spec"]
    annotations = metadata.get("annotations") or {}
    csi = spec.get("csi") or {}
    provisioned_by = annotations.get("pv.kubernetes.io/provisioned-by")
    driver = csi.get("driver") or annotations.get("pv.kubernetes.io/migrated-to") or ""
    if not driver and ("hostPath" in spec or "local" in spec):
        driver = directory_driver(provisioned_by or "")
    return Volume(
        name=metadata["name"],
        uid=metadata["uid"],
        claim_uid=(spec.get("claimRef") or {}).get("uid", ""),
        class_name=spec.get("storageClassName", ""),
        driver=driver,
        attributes=csi.get("volumeAttributes") or {},
        provisioned_by=provisioned_by,
    )
