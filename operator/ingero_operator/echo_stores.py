"""Reconciles an EchoStore: observe, plan, apply, report. The encryption gate decides what may be created."""

from dataclasses import dataclass, field
from typing import Any, Final

from ingero_operator import gate, status
from ingero_operator.api.v1alpha1 import EchoStoreSpec
from ingero_operator.cache import OwnerKey
from ingero_operator.certificates import VALID
from ingero_operator.children import ApplyResult, ChildPlan
from ingero_operator.conditions import Condition, no, recorded
from ingero_operator.context import ReconcileContext
from ingero_operator.echo_shards import (
    ObservedShard,
    claim_uid,
    growth,
    kept_children,
    recorded_shard,
    rendered_from_shard,
    shards_status,
    storage,
    with_shard,
    without_rollouts,
    worst_of,
)
from ingero_operator.errors import ReconcileError, image_not_allowed
from ingero_operator.events import KubernetesEvent
from ingero_operator.kinds import CLAIM, HTTP_ROUTE, SERVICE_MONITOR, STORAGE_CLASS, VOLUME, Manifest
from ingero_operator.plan import ChildKey, plan, rolled_out
from ingero_operator.pod_problems import PodProblem
from ingero_operator.readiness import Server
from ingero_operator.referenced import TlsSecret, reading_references
from ingero_operator.render import desired, echo, readers
from ingero_operator.render.common import API, OTLP_GRPC
from ingero_operator.render.shards import writer
from ingero_operator.resources import is_deleting, is_paused, key_from, owner_from, parse, soonest
from ingero_operator.sealing import SEALED, SealingReport, figures, sealing_current
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
    shards: tuple[ObservedShard, ...]
    """The writers."""
    table: Condition | None
    """Whether events may be sealed into shared tables; `None` where there are none."""
    tls: TlsSecret
    errors: list[ReconcileError]
    """Objects that the spec refers to and that do not exist or cannot be used."""
    refused: list[ReconcileError]
    """Images that the operator may not run."""


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
            await self._record_classes(observed)
            outcome = await self.context.applier.carry_out(key, resource["metadata"]["uid"], child_plan)
        return await self._report(observed, outcome)

    # Observe

    async def _observe(self, key: OwnerKey, resource: Manifest, spec: EchoStoreSpec) -> ObservedEchoStore:
        tls, errors = TlsSecret(None, None), list[ReconcileError]()
        with self.context.failures.guarded(key, reading_references(key)):  # no child, and no proof, waits for it
            tls = await self._references(key, spec, errors)
        refused = self.context.platform.refuses(spec.image)
        classes = [item async for item in self.context.api.every(STORAGE_CLASS)]
        shards = [await self._shard(resource, spec, classes, index) for index in range(spec.shards)]
        return ObservedEchoStore(
            key=key,
            resource=resource,
            spec=spec,
            shards=tuple(shards),
            tls=tls,
            table=judge_table(spec, self.context.config.min_encryption),
            errors=errors,
            refused=[image_not_allowed("spec.image", str(spec.image))] if refused else [],
        )

    async def _references(self, key: OwnerKey, spec: EchoStoreSpec, errors: list[ReconcileError]) -> TlsSecret:
        """Read the Secrets that the spec names; raises `ApiError`."""
        referenced, namespace = self.context.referenced, key[1]
        await referenced.value(namespace, spec.token_secret, "spec.tokenSecret", errors)
        if spec.table:
            place = "spec.table.credentialsSecret"
            await referenced.value(namespace, spec.table.credentials_secret, place, errors)
        if spec.source:
            await referenced.nats(namespace, spec.source.nats, "spec.source.nats", errors)
        if spec.readers:
            await referenced.value(namespace, spec.readers.token_secret, "spec.readers.tokenSecret", errors)
        return await self._tls(namespace, key[2], spec, errors)

    async def _tls(self, namespace: str, name: str, spec: EchoStoreSpec, errors: list[ReconcileError]) -> TlsSecret:
        """What `spec.tlsSecret` says to clients of Echo and its readers."""
        services = (*map(writer, range(spec.shards)), *((readers.COMPONENT,) if spec.readers else ()))
        servers = (f"{name}-{service}.{namespace}.svc" for service in services)
        return await self.context.referenced.tls(namespace, spec.tls_secret, servers, errors)

    async def _claim(self, resource: Manifest, index: int) -> Manifest | None:
        """The claim of a writer. One that lost the watched labels is found by its uid."""
        _, namespace, owner = key_from(resource)
        name = f"{owner}-{writer(index)}"
        found = self.context.informer.cache.get((CLAIM.name, namespace, name))
        known = claim_uid(recorded_shard(resource.get("status") or {}, index))
        if found is None and known is not None:
            live = await self.context.api.get(CLAIM, namespace, name)
            if live is not None and live["metadata"]["uid"] == known:
                return {"kind": CLAIM.name, **live}
        return found

    async def _shard(
        self, resource: Manifest, spec: EchoStoreSpec, classes: list[Manifest], index: int
    ) -> ObservedShard:
        claim, volume = await self._claim(resource, index), None
        known = recorded_shard(resource.get("status") or {}, index)
        if claim and claim["spec"].get("volumeName"):
            volume = await self.context.api.get(VOLUME, None, claim["spec"]["volumeName"])
        inputs = gate.GateInputs(
            classes=classes,
            claim=claim,
            volume=volume,
            recorded=known.get("encryption") or {},
            least=self.context.config.min_encryption,
        )
        return ObservedShard(index=index, claim=claim, decision=gate.decide(spec, inputs), recorded=known)

    # Plan

    async def _plan(self, observed: ObservedEchoStore) -> ChildPlan | None:
        """The actions on the children; none while the resource is paused or the gate allows nothing."""
        key, context = observed.key, self.context
        owner = owner_from(observed.resource)
        if is_paused(observed.resource):
            context.applier.pause(key)
            return None
        if context.informer.cache.leftovers(key, owner.uid):
            return ChildPlan(clear=True)
        live = self._live_children(observed)
        allowed = [
            shard for shard in observed.shards
            if shard.decision.claim_class or (CLAIM.name, owner.child(shard.component)) in live
        ]  # fmt: skip
        if not allowed:
            return ChildPlan()
        children = self._desired_children(observed, allowed)
        kept = kept_children(owner, observed.shards, allowed, live)
        children, images_kept = desired.split(children, live, bool(observed.refused))
        rendered_from = (
            observed.resource["metadata"]["generation"], context.platform, *map(rendered_from_shard, observed.shards),
            context.informer.cache.fingerprint(key), observed.table,
        )  # fmt: skip
        if self._up_to_date.get(key) == rendered_from:
            return ChildPlan()
        platform, suffixes = context.platform, (*(shard.component for shard in observed.shards), readers.COMPONENT)
        live |= await context.applier.unwatched(key, SERVICE_MONITOR, suffixes, platform.service_monitors)
        live |= await context.applier.unwatched(key, HTTP_ROUTE, suffixes, platform.http_routes)
        actions = plan(children, live, kept=frozenset(kept | images_kept))
        actions += [action for shard in allowed for action in growth(owner, observed.spec, shard)]
        actions = without_rollouts(owner, observed.shards, actions)
        if not actions:
            self._up_to_date[key] = rendered_from
        # A proof that is no longer valid is deleted before any other write.
        proofs = {("ConfigMap", owner.child(echo.proof_name(shard.index))) for shard in observed.shards}
        locks = {(action.kind, action.name) for action in actions if action.verb == "delete"} & proofs
        return ChildPlan(actions=actions, first=frozenset(locks))

    def _desired_children(self, observed: ObservedEchoStore, allowed: list[ObservedShard]) -> list[Manifest]:
        owner, spec = owner_from(observed.resource), observed.spec
        volumes = {
            shard.index: echo.VolumeInputs(
                capacity=shard.decision.capacity,
                claim_uid=shard.claim["metadata"]["uid"] if shard.claim else None,
            )
            for shard in allowed
        }
        around = echo.EchoInputs(
            volumes=volumes,
            bucket_encrypted=observed.table is not None and observed.table.holds,
        )
        children = desired.of_echo_store(owner, spec, self.context.platform, around)
        for shard in allowed:
            decision, index = shard.decision, shard.index
            if decision.claim_class:
                children.insert(0, echo.claim(owner, spec, decision.claim_class, decision.claim_size, index))
            if decision.proof and not decision.lock:
                children.append(echo.proof(owner, decision.proof, index))
        return children

    def _live_children(self, observed: ObservedEchoStore) -> dict[ChildKey, Manifest]:
        uid = observed.resource["metadata"]["uid"]
        live = self.context.informer.cache.children(observed.key, uid)
        for shard in observed.shards:
            if shard.own_claim is not None:
                live.setdefault((CLAIM.name, shard.own_claim["metadata"]["name"]), shard.own_claim)
        return live

    async def _record_classes(self, observed: ObservedEchoStore) -> None:
        """Record the judged classes before the claims exist."""
        before = observed.resource.get("status") or {}
        after = before
        for shard in observed.shards:
            known, record = shard.recorded.get("encryption") or {}, shard.decision.record
            if shard.decision.claim_class and known.get("classUID") != record.get("classUID"):
                after = with_shard(after, shard.index, {"encryption": record})
        if after is not before:
            await self.context.status.write(observed.resource, dict(after))

    # Report

    async def _report(self, observed: ObservedEchoStore, outcome: ApplyResult) -> float | None:
        key, resource, context = observed.key, observed.resource, self.context
        _, namespace, name = key
        children = self._live_children(observed)
        serving = {shard.index: await self._serving(observed, shard, children) for shard in observed.shards}
        conditions = worst_of(
            [(shard.index, [*shard.decision.conditions, serving[shard.index]]) for shard in observed.shards]
        )
        if not any(condition.type == "ResizePending" for condition in conditions):
            conditions.append(no("ResizePending", "AsRequested", "the size is the requested one"))
        if observed.tls.certificate:
            conditions.append(observed.tls.certificate)
        reading = await self._reading(observed, children)
        bands = {shard.index: self._used(observed, shard, serving[shard.index].holds) for shard in observed.shards}
        sealing = self._sealing(observed)
        conditions += filter(None, [observed.table, reading, sealing])
        refused_table = [observed.table] if observed.table and not observed.table.holds else []
        conditions += filter(None, [route_created(observed.spec.gateway, context.platform, "spec")])
        failed = context.failures.errors(key)
        refused_volumes = _distinct([error for shard in observed.shards for error in shard.decision.errors])
        errors = [
            *refused_volumes, *(ReconcileError(item.reason, item.message) for item in refused_table),
            *observed.refused, *observed.errors,
            *stuck([*serving.values(), *([reading] if reading else [])]), *failed,
        ]  # fmt: skip
        progress = outcome.progress()
        for shard in observed.shards:
            workload = children.get(("StatefulSet", f"{name}-{shard.component}"))
            if not outcome.done and workload is not None and not rolled_out(workload):
                progress = f"StatefulSet {name}-{shard.component} is rolling out"
        overall = status.overall(conditions, NEEDED, errors, is_paused(resource), progress, (VALID, ROUTED, SEALED))
        uid = resource["metadata"]["uid"]

        def stored(shard: ObservedShard) -> Manifest:
            claim = children.get((CLAIM.name, f"{name}-{shard.component}"))
            return storage(uid, claim, shard.decision, bands[shard.index])

        entrance = echo.READERS if observed.spec.shards > 1 else writer(0)
        rest: Manifest = {
            "version": observed.spec.version or context.platform.config.version,
            **shards_status(observed.shards, stored),
            "endpoint": f"https://{name}-{entrance}.{namespace}.svc:{API} (OTLP :{OTLP_GRPC})",
            "effective": status.effective(observed.spec),
        }
        sealed = figures(self._reports(observed)) if sealing else None
        if sealed:
            rest["sealing"] = sealed
        before = (resource.get("status") or {}).get("routedShards")
        routed = observed.spec.shards if all(item.holds for item in serving.values()) else before
        if routed:
            rest["routedShards"] = routed
        events = [
            *outcome.events(), *warnings([*refused_volumes, *failed]),
            *(event for shard in observed.shards for event in (*_proven(shard.decision), *_gone(shard))),
        ]  # fmt: skip
        wait = await context.status.report(resource, overall, rest, events)
        if before and routed != before:
            context.informer.requeue("FleetCluster")
        return soonest(
            wait,
            context.failures.retry_after(key),
            context.referenced.refresh_after(),
            context.pods.check_after(key, children.values()),
            RETRY_SECONDS if errors or outcome.waiting else None,
        )

    async def _serving(
        self, observed: ObservedEchoStore, shard: ObservedShard, children: dict[ChildKey, Manifest]
    ) -> Condition:
        """Whether a writer serves."""
        workload = children.get(("StatefulSet", f"{observed.key[2]}-{shard.component}"))
        if shard.decision.proof is None:
            if workload is not None:
                return no("Available", "Locked", "Echo starts when its volume is proven encrypted")
            return available("Available", workload, "Echo", None)
        problem = await self._why_unavailable(observed, shard.component, workload)
        return available("Available", workload, "Echo", problem)

    async def _reading(self, observed: ObservedEchoStore, children: dict[ChildKey, Manifest]) -> Condition | None:
        """Whether the readers serve; `None` where there are none."""
        if observed.spec.readers is None or observed.table is None or not observed.table.holds:
            return None
        deployment = children.get(("Deployment", f"{observed.key[2]}-{readers.COMPONENT}"))
        problem = await self._why_unavailable(observed, readers.COMPONENT, deployment)
        return available("ReadersAvailable", deployment, "the Deployment of readers", problem)

    async def _why_unavailable(
        self, observed: ObservedEchoStore, component: str, live: Manifest | None
    ) -> PodProblem | None:
        """Why writers or readers are unavailable, by their pods."""
        _, namespace, name = observed.key
        server = Server(f"{name}-{component}.{namespace}.svc", observed.tls.authority)
        return await self.context.pods.why_unavailable(observed.key, component, live, server)

    def _sealing(self, observed: ObservedEchoStore) -> Condition | None:
        """Whether events are sealed; `None` where none may be."""
        table = observed.spec.table
        if table is None or observed.table is None or not observed.table.holds:
            return None
        pending = all(self.context.volume_usage.pending(observed.key, shard.index) for shard in observed.shards)
        before = recorded(observed.resource.get("status") or {}, SEALED) if pending else None
        return sealing_current(table, self._reports(observed), before)

    def _reports(self, observed: ObservedEchoStore) -> list[SealingReport | None]:
        """What the writers said last of sealing."""
        return [self.context.volume_usage.sealing(observed.key, shard.index) for shard in observed.shards]

    def _used(self, observed: ObservedEchoStore, shard: ObservedShard, serving: bool) -> str | None:
        """How full the volume of a writer is, as Echo reports it.

        A rollout interrupts Echo for a moment, so the value in the status stays until several polls in a row failed.
        """
        before = (shard.recorded.get("storage") or {}).get("usedBand")
        if not serving and not before:
            return None
        _, namespace, name = observed.key
        service = f"{name}-{shard.component}"
        url = self.context.config.echo_url.format(name=name, service=service, namespace=namespace)
        return self.context.volume_usage.band(observed.key, url, observed.tls.authority, before, shard.index)

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


def _gone(shard: ObservedShard) -> list[KubernetesEvent]:
    """That a writer begins on a new volume, because its claim was deleted."""
    known = shard.recorded.get("encryption") or {}
    if shard.claim is not None or not known.get("volumeUID"):
        return []
    message = (
        f"the claim of {shard.component} was deleted, and Echo begins anew on another one; "
        f"volume {known.get('volume')} has the former events if it is still there (reclaim policy Retain)"
    )
    return [KubernetesEvent("Warning", "ClaimGone", message, f"gone/{known['volumeUID']}")]


def _distinct(errors: list[ReconcileError]) -> list[ReconcileError]:
    return list({(error.reason, error.message): error for error in errors}.values())
