"""The writers of an EchoStore: what was found of each, and what the status shows of all. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ingero_operator import gate
from ingero_operator.api.v1alpha1 import EchoStoreSpec, OnDelete
from ingero_operator.conditions import Condition
from ingero_operator.kinds import CLAIM, Manifest
from ingero_operator.plan import Action, ChildKey
from ingero_operator.render import echo
from ingero_operator.render.common import NAME, Owner
from ingero_operator.render.shards import writer
from ingero_operator.resources import is_deleting

_FINE_WHEN_FALSE: Final = "ResizePending"


@dataclass(frozen=True, kw_only=True)
class ObservedShard:
    """One writer: its claim, and what the encryption gate allows."""

    index: int
    claim: Manifest | None
    decision: gate.GateDecision
    recorded: Mapping[str, Any]
    """What the status has of it."""

    @property
    def component(self) -> str:
        """Its component."""
        return writer(self.index)

    @property
    def own_claim(self) -> Manifest | None:
        """The claim, where the status records it as this store's."""
        return self.claim if self.claim and self.claim["metadata"]["uid"] == claim_uid(self.recorded) else None


def recorded_shard(status: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """What a status has of a writer. The first one's part is the status itself."""
    if index == 0:
        return status
    found = (item for item in status.get("shards") or [] if item.get("shard") == index)
    return next(found, {})


def claim_uid(recorded: Mapping[str, Any]) -> str | None:
    """Uid of a writer's claim, once it was seen."""
    return (recorded.get("storage") or {}).get("claimUID")


def with_shard(status: Mapping[str, Any], index: int, part: Manifest) -> Manifest:
    """A status with a changed part of one writer."""
    if index == 0:
        return {**status, **part}
    others = [item for item in status.get("shards") or [] if item.get("shard") != index]
    mine = {**recorded_shard(status, index), "shard": index, **part}
    return {**status, "shards": sorted([*others, mine], key=lambda item: int(item["shard"]))}


def worst_of(found: Sequence[tuple[int, Sequence[Condition]]]) -> list[Condition]:
    """One condition of each type: that of the first writer that lacks most, which its message names."""
    out: dict[str, Condition] = {}
    for index, conditions in found:
        for condition in conditions:
            before = out.get(condition.type)
            if before is None or _lack(condition) > _lack(before):
                named = f"shard {index}: {condition.message}" if index else condition.message
                out[condition.type] = Condition(condition.type, condition.status, condition.reason, named)
    return list(out.values())


def _lack(condition: Condition) -> int:
    fine = "False" if condition.type == _FINE_WHEN_FALSE else "True"
    return {fine: 0, "Unknown": 1}.get(condition.status, 2)


def routed_shards(resource: Mapping[str, Any]) -> int:
    """The number of writers that clusters are distributed over: a new one counts when all are available."""
    wanted = (resource.get("spec") or {}).get("shards") or 1
    routed = (resource.get("status") or {}).get("routedShards") or wanted
    return int(min(routed, wanted))


def storage(uid: str, claim: Manifest | None, decision: gate.GateDecision, used: str | None) -> Manifest:
    """`status.storage` of a writer; `uid` is that of the store."""
    if claim is None:
        return {"className": decision.record["className"]} if decision.record.get("className") else {}
    owned = any(item.get("uid") == uid for item in claim["metadata"].get("ownerReferences") or [])
    out: Manifest = {
        "className": claim["spec"].get("storageClassName"), "claimUID": claim["metadata"]["uid"],
        "onDelete": str(OnDelete.DELETE if owned else OnDelete.RETAIN),
    }  # fmt: skip
    capacity = (claim.get("status") or {}).get("capacity", {}).get("storage")
    if capacity:
        out["capacity"] = capacity
    if used:
        out["usedBand"] = used
    return out


def shards_status(shards: Sequence[ObservedShard], stored: Callable[[ObservedShard], Manifest]) -> Manifest:
    """The parts of a status that have one entry for each writer."""
    first, *more = ({"encryption": shard.decision.record, "storage": stored(shard)} for shard in shards)
    further = [{"shard": index, **part} for index, part in enumerate(more, 1)]
    return {**first, **({"shards": further} if further else {})}


def kept_children(
    owner: Owner, shards: tuple[ObservedShard, ...], allowed: list[ObservedShard], live: dict[ChildKey, Manifest]
) -> set[ChildKey]:
    """Children that are never deleted: claims, valid proofs, and all of a writer that may not be made now."""
    held = {f"ingero-{shard.component}" for shard in shards if shard not in allowed}
    kept = {key for key, child in live.items() if child["metadata"].get("labels", {}).get(NAME) in held}
    proven = {
        ("ConfigMap", owner.child(echo.proof_name(shard.index)))
        for shard in shards
        if shard.decision.proof and not shard.decision.lock
    }
    locked = {("ConfigMap", owner.child(echo.proof_name(shard.index))) for shard in shards if shard.decision.lock}
    return (kept | proven | {key for key in live if key[0] == CLAIM.name}) - locked


def without_rollouts(owner: Owner, shards: Iterable[ObservedShard], actions: list[Action]) -> list[Action]:
    """The actions without those that replace the pod of a writer whose claim was deleted, and so lose its data."""
    held = {owner.child(shard.component) for shard in shards if shard.claim and is_deleting(shard.claim)}
    return [item for item in actions if item.kind != "StatefulSet" or item.name not in held or item.verb == "create"]


def rendered_from_shard(shard: ObservedShard) -> tuple[Any, ...]:
    """What the children of a writer are rendered from."""
    decision = shard.decision
    return (
        decision.proof, decision.lock, decision.claim_class, decision.claim_size, decision.grow_to, decision.capacity,
        shard.claim and shard.claim["metadata"].get("resourceVersion"),
    )  # fmt: skip


def growth(owner: Owner, spec: EchoStoreSpec, shard: ObservedShard) -> list[Action]:
    """The write that requests more space for a writer."""
    decision = shard.decision
    if not (decision.claim_class and decision.grow_to):
        return []
    why = f"it grows from {decision.claim_size} to {decision.grow_to}"
    grown = echo.claim(owner, spec, decision.claim_class, decision.grow_to, shard.index)
    name, path = owner.child(shard.component), ".spec.resources.requests.storage"
    return [Action("apply", CLAIM.name, name, why, path, grown, "size")]
