"""Reconciling an EchoStore: gate, claim, children, proof, status."""

from dataclasses import dataclass, field
from typing import Any, Final

from ingero_kit.logs import get
from ingero_operator import gate
from ingero_operator import status as shown
from ingero_operator.api.v1alpha1 import EchoStoreSpec, OnDelete
from ingero_operator.cache import OwnerKey
from ingero_operator.children import GROUP, Outcome
from ingero_operator.conditions import Condition, no
from ingero_operator.context import RETRY_SECONDS, ReconcileContext, digest_of, is_paused, key_from, owner_from, parse
from ingero_operator.errors import ReconcileError, image_not_allowed
from ingero_operator.events import Event
from ingero_operator.fleet_clusters import building, missing, read_monitors, tls_secret
from ingero_operator.kinds import CLAIM, STORAGE_CLASS, VOLUME
from ingero_operator.plan import Action, ChildKey, plan, rolled_out
from ingero_operator.render import desired, echo
from ingero_operator.render.common import API, OTLP_GRPC
from ingero_operator.workloads import available

log = get(__name__)

Manifest = dict[str, Any]
NEEDED: Final = ("EncryptionVerified", "StorageBound", "Available")
PARTS: Final = (*NEEDED, "ResizePending")


@dataclass
class EchoStores:
    """The reconciler."""

    context: ReconcileContext
    _settled: dict[OwnerKey, tuple[Any, ...]] = field(default_factory=dict)

    async def reconcile(self, key: OwnerKey) -> float | None:
        """Bring one EchoStore nearer to what it says; returns when to look again."""
        resource = self.context.informer.cache.get(key)
        if resource is None:
            self._settled.pop(key, None)
            self.context.applier.forget(key)
            self.context.volume_usage.forget(key)
            self.context.written.pop(key, None)
            return None
        if "deletionTimestamp" in resource["metadata"]:
            return None
        spec = parse(EchoStoreSpec, resource)
        if isinstance(spec, ReconcileError):
            return await self.context.report_error(resource, PARTS, spec)
        data = await self.context.secret(key[1], spec.token_secret.name)
        errors: list[ReconcileError] = []
        if not (data or {}).get(spec.token_secret.key):
            errors.append(missing("spec.tokenSecret", spec.token_secret.name, spec.token_secret.key))
        errors += (await tls_secret(self.context, key[1], spec.tls_secret))[1]
        refused = (
            [image_not_allowed("spec.image", str(spec.image))] if self.context.platform.refuses(spec.image) else []
        )
        claim, failures = await self._claim(resource), self.context.failures
        decision = await self._decide(resource, spec, claim)
        outcome = Outcome()
        if is_paused(resource):
            failures.retain(key, GROUP, ())
            failures.resolve(key, building(key))
        else:
            await self._record(resource, decision)
            with failures.guarded(key, building(key)):
                outcome = await self._children(
                    resource, spec, decision, digest_of(data, spec.token_secret.key), claim, bool(refused)
                )
        observed = self.context.informer.cache.children(key, resource["metadata"]["uid"])
        if claim is not None and claim["metadata"]["uid"] == _recorded_uid(resource):
            observed.setdefault((CLAIM.name, claim["metadata"]["name"]), claim)
        errors = [*decision.errors, *refused, *errors, *failures.errors(key)]
        again = await self._finish(resource, spec, decision, outcome, errors, observed)
        return min((wait for wait in (again, failures.retry_after(key)) if wait is not None), default=None)

    async def _claim(self, resource: Manifest) -> Manifest | None:
        """The claim. One that lost the labels by which it is watched is known by its uid."""
        _, namespace, name = key_from(resource)
        found = self.context.informer.cache.get((CLAIM.name, namespace, f"{name}-echo"))
        known = _recorded_uid(resource)
        if found is None and known is not None:
            live = await self.context.api.get(CLAIM, namespace, f"{name}-echo")
            if live is not None and live["metadata"]["uid"] == known:
                return {"kind": CLAIM.name, **live}
        return found

    async def _decide(self, resource: Manifest, spec: EchoStoreSpec, claim: Manifest | None) -> gate.Decision:
        classes = [item async for item in self.context.api.every(STORAGE_CLASS)]
        volume = None
        if claim and claim["spec"].get("volumeName"):
            volume = await self.context.api.get(VOLUME, None, claim["spec"]["volumeName"])
        inputs = gate.GateInputs(
            classes=classes,
            claim=claim,
            volume=volume,
            recorded=(resource.get("status") or {}).get("encryption") or {},
            least=self.context.config.min_encryption,
        )
        return gate.decide(spec, inputs)

    async def _record(self, resource: Manifest, decision: gate.Decision) -> None:
        """The class that was judged is written down before the claim exists."""
        status = resource.get("status") or {}
        before = status.get("encryption") or {}
        if decision.claim_class and before.get("classUID") != decision.record.get("classUID"):
            await self.context.write_status(resource, {**status, "encryption": decision.record})

    async def _children(
        self,
        resource: Manifest,
        spec: EchoStoreSpec,
        decision: gate.Decision,
        token: str,
        claim: Manifest | None,
        refused: bool,
    ) -> Outcome:
        key, context, owner = key_from(resource), self.context, owner_from(resource)
        cleared = await context.applier.clear(key, owner.uid)
        if cleared:
            return cleared
        observed = context.informer.cache.children(key, resource["metadata"]["uid"])
        claim_key: ChildKey = ("PersistentVolumeClaim", owner.child(echo.COMPONENT))
        proof_key: ChildKey = ("ConfigMap", owner.child("volume-proof"))
        if claim is not None and claim["metadata"]["uid"] == _recorded_uid(resource):
            observed.setdefault(claim_key, claim)
        if decision.claim_class is None and claim_key not in observed:
            return Outcome()
        children = desired.of_echo_store(owner, spec, context.platform, token, decision.capacity)
        if decision.claim_class:
            children.insert(0, echo.claim(owner, spec, decision.claim_class, decision.claim_size))
        if decision.proof and not decision.lock:
            children.append(echo.proof(owner, decision.proof))
        kept = {claim_key} | (set() if decision.lock or decision.proof is None else {proof_key})
        children, images_kept = desired.split(children, observed, refused)
        kept |= images_kept
        inputs = (
            resource["metadata"]["generation"], token, context.platform, decision.proof, decision.lock,
            decision.claim_class, decision.claim_size, decision.grow_to, decision.capacity,
            context.informer.cache.fingerprint(key), claim and claim["metadata"].get("resourceVersion"),
        )  # fmt: skip
        if self._settled.get(key) == inputs:
            return Outcome()
        await read_monitors(context, key, (echo.COMPONENT,), observed)
        actions = plan(children, observed, kept=frozenset(kept))
        if decision.claim_class and decision.grow_to:
            why = f"it grows from {decision.claim_size} to {decision.grow_to}"
            grown = echo.claim(owner, spec, decision.claim_class, decision.grow_to)
            actions.append(Action("apply", *claim_key, why, ".spec.resources.requests.storage", grown, "size"))
        # A lock is turned before anything else is touched.
        locks = any(action.verb == "delete" and (action.kind, action.name) == proof_key for action in actions)
        outcome = await context.applier.apply(
            key, resource["metadata"]["uid"], actions, first=proof_key if locks else None
        )
        if not actions:
            self._settled[key] = inputs
        return outcome

    async def _finish(
        self,
        resource: Manifest,
        spec: EchoStoreSpec,
        decision: gate.Decision,
        outcome: Outcome,
        errors: list[ReconcileError],
        observed: dict[ChildKey, Manifest],
    ) -> float | None:
        _, namespace, name = key_from(resource)
        shown_band = ((resource.get("status") or {}).get("storage") or {}).get("usedBand")
        workload = observed.get(("StatefulSet", f"{name}-echo"))
        serving = available("Available", workload, "Echo")
        if decision.proof is None and workload is not None:
            serving = no("Available", "Locked", "Echo starts when its volume is proven encrypted")
        parts: list[Condition] = [*decision.conditions, serving]
        if not any(part.type == "ResizePending" for part in parts):
            parts.append(no("ResizePending", "NotAsked", "the size is the one that was asked for"))
        working = outcome.waiting
        if outcome.done:
            first = outcome.done[0]
            working = f"{first.verb} {first.kind} {first.name}: {first.why}"
        elif workload is not None and not rolled_out(workload):
            working = f"StatefulSet {name}-echo is rolling out"
        claim = observed.get(("PersistentVolumeClaim", f"{name}-echo"))
        conditions = shown.overall(parts, NEEDED, errors, is_paused(resource), working)
        events = outcome.events()
        for error in (*decision.errors, *self.context.failures.errors(key_from(resource))):
            events.append(Event("Warning", error.reason, error.message))
        if decision.proof:
            proven = f"volume {decision.proof.volume} reaches {decision.proof.level}; Echo may start"
            events.append(Event("Normal", "VolumeProven", proven, f"proven/{decision.proof.volume_uid}"))
        # A rollout takes Echo away for a moment: what was known of its volume stands until asking fails for long.
        used = await self._used(resource, spec) if serving.holds or shown_band else None
        rest: Manifest = {
            "version": spec.version or self.context.platform.version,
            "encryption": decision.record,
            "storage": _storage(resource["metadata"]["uid"], claim, decision, used),
            "endpoint": f"https://{name}-echo.{namespace}.svc:{API} (OTLP :{OTLP_GRPC})",
            "effective": shown.effective(spec),
        }
        again = await self.context.finish(resource, conditions, rest, events)
        waits = [again, self.context.secrets_refresh_after(), RETRY_SECONDS if errors or outcome.waiting else None]
        return min((wait for wait in waits if wait is not None), default=None)

    async def _used(self, resource: Manifest, spec: EchoStoreSpec) -> str | None:
        """How full the volume is, as Echo says it; what is in the status stands until it was asked."""
        key = key_from(resource)
        data = await self.context.secret(key[1], spec.tls_secret)
        authority = (data or {}).get("ca.crt", b"").decode(errors="replace") or None
        before = ((resource.get("status") or {}).get("storage") or {}).get("usedBand")
        url = self.context.config.echo_url.format(name=key[2], namespace=key[1])
        return self.context.volume_usage.band(key, url, authority, before)


def _recorded_uid(resource: Manifest) -> str | None:
    """Uid of the claim that is this store's, once it was seen."""
    return ((resource.get("status") or {}).get("storage") or {}).get("claimUID")


def _storage(uid: str, claim: Manifest | None, decision: gate.Decision, used: str | None) -> Manifest:
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
