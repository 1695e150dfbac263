"""Reconciles an EchoStore: observe, plan, apply, report. The encryption gate decides what may be created."""

from dataclasses import dataclass, field
from typing import Any, Final

from ingero_operator import gate, status
from ingero_operator.api.v1alpha1 import EchoStoreSpec, OnDelete
from ingero_operator.cache import OwnerKey
from ingero_operator.certificates import VALID
from ingero_operator.children import ApplyResult, ChildPlan
from ingero_operator.conditions import Condition, no, recorded
from ingero_operator.context import ReconcileContext
from ingero_operator.errors import ReconcileError, image_not_allowed
from ingero_operator.events import KubernetesEvent
from ingero_operator.kinds import CLAIM, HTTP_ROUTE, SERVICE_MONITOR, STORAGE_CLASS, VOLUME, Manifest
from ingero_operator.plan import Action, ChildKey, plan, rolled_out
from ingero_operator.referenced import TlsSecret
from ingero_operator.render import desired, echo, readers
from ingero_operator.render.common import API, OTLP_GRPC
from ingero_operator.resources import is_deleting, is_paused, key_from, owner_from, parse, soonest
from ingero_operator.sealing import SEALED, figures, sealing_current
from ingero_operator.status_writer import warnings
from ingero_operator.table_gate import TABLE_ENCRYPTED, judge_table
from ingero_operator.workloads import ROUTED, available, route_created, stuck

RETRY_SECONDS: Final = 30.0
"""Time to the next reconcile while something waits for a user."""
NEEDED: Final = ("EncryptionVerified", "StorageBound", "Available", TABLE_ENCRYPTED, "ReadersAvailable")
CONDITIONS: Final = (*NEEDED[:3], "ResizePending")


@dataclass(frozen=True, kw_only=True)
class ObservedEchoStore:
    """What one reconcile starts from."""

    key: OwnerKey
    resource: Manifest
    spec: EchoStoreSpec
    claim: Manifest | None
    decision: gate.GateDecision
    """What the encryption gate allows."""
    table: Condition | None
    """Whether events may be sealed into shared tables; `None` where there are none."""
    tls: TlsSecret
    errors: list[ReconcileError]
    """Objects that the spec refers to and that do not exist or cannot be used."""
    refused: list[ReconcileError]
    """Images that the operator may not run."""

    @property
    def own_claim(self) -> Manifest | None:
        """The claim, where the status records it as this store's."""
        known = self.claim is not None and self.claim["metadata"]["uid"] == _recorded_uid(self.resource)
        return self.claim if known else None


@dataclass
class EchoStores:
    """The reconciler. One call of `reconcile` handles one EchoStore and leaves no partial state in memory."""

    context: ReconcileContext
    _up_to_date: dict[OwnerKey, tuple[Any, ...]] = field(default_factory=dict)
    """The inputs from which the children were rendered when no action was needed."""

    async def reconcile(self, key: OwnerKey) -> float | None:
        """Move one EchoStore towards its spec; returns the seconds to the next reconcile."""
        resource = self.context.informer.cache.get(key)
        if resource is None:
            self._forget(key)
            return None
        if is_deleting(resource):
            return None
        spec = parse(EchoStoreSpec, resource)
        if isinstance(spec, ReconcileError):
            return await self.context.status.report_error(resource, CONDITIONS, spec)
        observed = await self._observe(key, resource, spec)
        child_plan = await self._plan(observed)
        outcome = ApplyResult()
        if child_plan is not None:
            await self._record_class(observed)
            outcome = await self.context.applier.carry_out(key, resource["metadata"]["uid"], child_plan)
        return await self._report(observed, outcome)

    # Observe

    async def _observe(self, key: OwnerKey, resource: Manifest, spec: EchoStoreSpec) -> ObservedEchoStore:
        referenced, errors = self.context.referenced, list[ReconcileError]()
        await referenced.value(key[1], spec.token_secret, "spec.tokenSecret", errors)
        if spec.table:
            place = "spec.table.credentialsSecret"
            await referenced.value(key[1], spec.table.credentials_secret, place, errors)
        if spec.readers:
            await referenced.value(key[1], spec.readers.token_secret, "spec.readers.tokenSecret", errors)
        tls = await self._tls(key[1], key[2], spec, errors)
        refused = self.context.platform.refuses(spec.image)
        claim = await self._claim(resource)
        return ObservedEchoStore(
            key=key,
            resource=resource,
            spec=spec,
            claim=claim,
            decision=await self._decide(resource, spec, claim),
            tls=tls,
            table=judge_table(spec, self.context.config.min_encryption),
            errors=errors,
            refused=[image_not_allowed("spec.image", str(spec.image))] if refused else [],
        )

    async def _tls(self, namespace: str, name: str, spec: EchoStoreSpec, errors: list[ReconcileError]) -> TlsSecret:
        """What `spec.tlsSecret` says to clients of Echo and its readers; the first name that is refused counts."""
        for service in (echo.COMPONENT, *((readers.COMPONENT,) if spec.readers else ())):
            found = list[ReconcileError]()
            server = f"{name}-{service}.{namespace}.svc"
            tls = await self.context.referenced.tls(namespace, spec.tls_secret, server, found)
            if found or (tls.certificate and not tls.certificate.holds):
                break
        errors += found
        return tls

    async def _claim(self, resource: Manifest) -> Manifest | None:
        """The claim. One that lost the watched labels is found by its uid."""
        _, namespace, name = key_from(resource)
        found = self.context.informer.cache.get((CLAIM.name, namespace, f"{name}-echo"))
        known = _recorded_uid(resource)
        if found is None and known is not None:
            live = await self.context.api.get(CLAIM, namespace, f"{name}-echo")
            if live is not None and live["metadata"]["uid"] == known:
                return {"kind": CLAIM.name, **live}
        return found

    async def _decide(self, resource: Manifest, spec: EchoStoreSpec, claim: Manifest | None) -> gate.GateDecision:
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

    # Plan

    async def _plan(self, observed: ObservedEchoStore) -> ChildPlan | None:
        """The actions on the children; none while the resource is paused or the gate allows nothing."""
        key, context, decision = observed.key, self.context, observed.decision
        owner = owner_from(observed.resource)
        if is_paused(observed.resource):
            context.applier.pause(key)
            return None
        if context.informer.cache.leftovers(key, owner.uid):
            return ChildPlan(clear=True)
        claim_key: ChildKey = (CLAIM.name, owner.child(echo.COMPONENT))
        proof_key: ChildKey = ("ConfigMap", owner.child("volume-proof"))
        live = self._live_children(observed)
        if decision.claim_class is None and claim_key not in live:
            return ChildPlan()
        children = self._desired_children(observed)
        kept = {claim_key} | (set() if decision.lock or decision.proof is None else {proof_key})
        children, images_kept = desired.split(children, live, bool(observed.refused))
        rendered_from = (
            observed.resource["metadata"]["generation"], context.platform, decision.proof,
            decision.lock, decision.claim_class, decision.claim_size, decision.grow_to, decision.capacity,
            context.informer.cache.fingerprint(key),
            observed.claim and observed.claim["metadata"].get("resourceVersion"), observed.table,
        )  # fmt: skip
        if self._up_to_date.get(key) == rendered_from:
            return ChildPlan()
        platform, suffixes = context.platform, (echo.COMPONENT, readers.COMPONENT)
        live |= await context.applier.unwatched(key, SERVICE_MONITOR, suffixes, platform.service_monitors)
        live |= await context.applier.unwatched(key, HTTP_ROUTE, suffixes, platform.http_routes)
        actions = plan(children, live, kept=frozenset(kept | images_kept))
        if decision.claim_class and decision.grow_to:
            why = f"it grows from {decision.claim_size} to {decision.grow_to}"
            grown = echo.claim(owner, observed.spec, decision.claim_class, decision.grow_to)
            actions.append(Action("apply", *claim_key, why, ".spec.resources.requests.storage", grown, "size"))
        if not actions:
            self._up_to_date[key] = rendered_from
        # A proof that is no longer valid is deleted before any other write.
        locks = any(action.verb == "delete" and (action.kind, action.name) == proof_key for action in actions)
        return ChildPlan(actions=actions, first=proof_key if locks else None)

    def _desired_children(self, observed: ObservedEchoStore) -> list[Manifest]:
        owner, decision = owner_from(observed.resource), observed.decision
        around = echo.EchoInputs(
            capacity=decision.capacity,
            claim_uid=observed.claim["metadata"]["uid"] if observed.claim else None,
            bucket_encrypted=observed.table is not None and observed.table.holds,
        )
        children = desired.of_echo_store(owner, observed.spec, self.context.platform, around)
        if decision.claim_class:
            children.insert(0, echo.claim(owner, observed.spec, decision.claim_class, decision.claim_size))
        if decision.proof and not decision.lock:
            children.append(echo.proof(owner, decision.proof))
        return children

    def _live_children(self, observed: ObservedEchoStore) -> dict[ChildKey, Manifest]:
        uid = observed.resource["metadata"]["uid"]
        live = self.context.informer.cache.children(observed.key, uid)
        if observed.own_claim is not None:
            live.setdefault((CLAIM.name, observed.own_claim["metadata"]["name"]), observed.own_claim)
        return live

    async def _record_class(self, observed: ObservedEchoStore) -> None:
        """Record the judged class before the claim exists."""
        before = (observed.resource.get("status") or {}).get("encryption") or {}
        record = observed.decision.record
        if observed.decision.claim_class and before.get("classUID") != record.get("classUID"):
            after = {**(observed.resource.get("status") or {}), "encryption": record}
            await self.context.status.write(observed.resource, after)

    # Report

    async def _report(self, observed: ObservedEchoStore, outcome: ApplyResult) -> float | None:
        key, resource, decision, context = observed.key, observed.resource, observed.decision, self.context
        _, namespace, name = key
        children = self._live_children(observed)
        workload = children.get(("StatefulSet", f"{name}-echo"))
        problem = await context.pods.why_unavailable(key, echo.COMPONENT, workload) if decision.proof else None
        serving = available("Available", workload, "Echo", problem)
        if decision.proof is None and workload is not None:
            serving = no("Available", "Locked", "Echo starts when its volume is proven encrypted")
        conditions: list[Condition] = [*decision.conditions, serving]
        if not any(condition.type == "ResizePending" for condition in conditions):
            conditions.append(no("ResizePending", "AsRequested", "the size is the requested one"))
        if observed.tls.certificate:
            conditions.append(observed.tls.certificate)
        reading = await self._reading(observed, children)
        band = self._used(observed, serving.holds)
        sealing = self._sealing(observed)
        conditions += filter(None, [observed.table, reading, sealing])
        refused_table = [observed.table] if observed.table and not observed.table.holds else []
        conditions += filter(None, [route_created(observed.spec.gateway, context.platform, "spec")])
        failed = context.failures.errors(key)
        errors = [
            *decision.errors, *(ReconcileError(item.reason, item.message) for item in refused_table),
            *observed.refused, *observed.errors, *stuck([serving, *([reading] if reading else [])]), *failed,
        ]  # fmt: skip
        progress = outcome.progress()
        if not outcome.done and workload is not None and not rolled_out(workload):
            progress = f"StatefulSet {name}-echo is rolling out"
        overall = status.overall(conditions, NEEDED, errors, is_paused(resource), progress, (VALID, ROUTED, SEALED))
        claim = children.get((CLAIM.name, f"{name}-echo"))
        rest: Manifest = {
            "version": observed.spec.version or context.platform.config.version,
            "encryption": decision.record,
            "storage": _storage(resource["metadata"]["uid"], claim, decision, band),
            "endpoint": f"https://{name}-echo.{namespace}.svc:{API} (OTLP :{OTLP_GRPC})",
            "effective": status.effective(observed.spec),
        }
        sealed = figures([context.volume_usage.sealing(key)]) if sealing else None
        if sealed:
            rest["sealing"] = sealed
        events = [*outcome.events(), *warnings([*decision.errors, *failed]), *_proven(decision)]
        wait = await context.status.report(resource, overall, rest, events)
        return soonest(
            wait,
            context.failures.retry_after(key),
            context.referenced.refresh_after(),
            context.pods.check_after(key, children.values()),
            RETRY_SECONDS if errors or outcome.waiting else None,
        )

    async def _reading(self, observed: ObservedEchoStore, children: dict[ChildKey, Manifest]) -> Condition | None:
        """Whether the readers serve; `None` where there are none."""
        if observed.spec.readers is None or observed.table is None or not observed.table.holds:
            return None
        deployment = children.get(("Deployment", f"{observed.key[2]}-{readers.COMPONENT}"))
        problem = await self.context.pods.why_unavailable(observed.key, readers.COMPONENT, deployment)
        return available("ReadersAvailable", deployment, "the Deployment of readers", problem)

    def _sealing(self, observed: ObservedEchoStore) -> Condition | None:
        """Whether events are sealed; `None` where none may be."""
        table = observed.spec.table
        if table is None or observed.table is None or not observed.table.holds:
            return None
        polled = self.context.volume_usage
        before = recorded(observed.resource.get("status") or {}, SEALED) if polled.pending(observed.key) else None
        return sealing_current(table, [polled.sealing(observed.key)], before)

    def _used(self, observed: ObservedEchoStore, serving: bool) -> str | None:
        """How full the volume is, as Echo reports it.

        A rollout interrupts Echo for a moment, so the value in the status stays until several polls in a row failed.
        """
        before = ((observed.resource.get("status") or {}).get("storage") or {}).get("usedBand")
        if not serving and not before:
            return None
        _, namespace, name = observed.key
        url = self.context.config.echo_url.format(name=name, namespace=namespace)
        return self.context.volume_usage.band(observed.key, url, observed.tls.authority, before)

    def _forget(self, key: OwnerKey) -> None:
        self._up_to_date.pop(key, None)
        self.context.applier.forget(key)
        self.context.volume_usage.forget(key)
        self.context.pods.forget(key)
        self.context.status.forget(key)


def _proven(decision: gate.GateDecision) -> list[KubernetesEvent]:
    if decision.proof is None:
        return []
    message = f"volume {decision.proof.volume} reaches {decision.proof.level}; Echo may start"
    return [KubernetesEvent("Normal", "VolumeProven", message, f"proven/{decision.proof.volume_uid}")]


def _recorded_uid(resource: Manifest) -> str | None:
    """Uid of this store's claim, once it was seen."""
    return ((resource.get("status") or {}).get("storage") or {}).get("claimUID")


def _storage(uid: str, claim: Manifest | None, decision: gate.GateDecision, used: str | None) -> Manifest:
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
