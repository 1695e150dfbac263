"""Reconciles a FleetCluster: observe, plan, apply, report. Pure modules make the decisions."""

import re
from dataclasses import dataclass, field
from typing import Any, Final

from ingero_operator import status
from ingero_operator.api.base import SecretKey, seconds
from ingero_operator.api.nats import NatsStream
from ingero_operator.api.v1alpha1 import EchoStoreSpec, FleetClusterSpec, Mode, Source
from ingero_operator.cache import OwnerKey
from ingero_operator.children import ApplyResult, ChildPlan
from ingero_operator.conditions import Condition
from ingero_operator.context import ReconcileContext
from ingero_operator.echo_shards import routed_shards
from ingero_operator.errors import ReconcileError, image_not_allowed
from ingero_operator.failures import Operation, OperationKind
from ingero_operator.finalizer import has_finalizer, set_finalizer
from ingero_operator.fleet_answers import PollRequest, PollResult
from ingero_operator.fleet_status import (
    CONDITIONS,
    INFORMING,
    NEEDED,
    agents_unique,
    daemon_sets,
    evidence_fresh,
    figures,
    learned,
    quorum_met,
    rollout_order,
    rollout_progress,
)
from ingero_operator.forwarding import forward_available
from ingero_operator.job_hangs import jobs_progress
from ingero_operator.kinds import HTTP_ROUTE, SERVICE_MONITOR, Manifest
from ingero_operator.network_health import network_healthy
from ingero_operator.plan import ChildKey, plan
from ingero_operator.referenced import TlsSecret, missing, reading_references
from ingero_operator.render import desired, fleet, receivers, topology
from ingero_operator.render.common import digest
from ingero_operator.render.shards import shard_of
from ingero_operator.resources import (
    is_deleting,
    is_paused,
    owner_from,
    parse,
    readable_spec,
    soonest,
)
from ingero_operator.status_writer import warnings
from ingero_operator.taints.controller import TaintController, TaintReport
from ingero_operator.workloads import agents_available, available, ready_of, route_created, stuck, tracing_complete

RETRY_SECONDS: Final = 30.0
"""Time to the next reconcile while something waits for a user."""
DELETION_SECONDS: Final = 5.0
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]{0,62})://")


@dataclass(frozen=True, kw_only=True)
class Referenced:
    """What a spec refers to in other objects, and which part of it is missing."""

    errors: list[ReconcileError]
    token: str | None
    tls: TlsSecret
    files: str
    """Digest of the price files."""
    stream: NatsStream | None
    """The stream that the EchoStore reads which Fleet forwards to."""
    topology: str
    """Fleet's topology from labels of nodes."""

    @property
    def authority(self) -> str | None:
        """PEM of the CA that signed Fleet's certificate."""
        return self.tls.authority


@dataclass(frozen=True, kw_only=True)
class ObservedFleetCluster:
    """What one reconcile starts from."""

    key: OwnerKey
    resource: Manifest
    spec: FleetClusterSpec
    """The spec, or its readable part where `invalid` says what is wrong."""
    invalid: ReconcileError | None
    referenced: Referenced | None
    """`None` while the API server cannot be read."""
    poll: PollResult | None


@dataclass
class FleetClusters:
    """The reconciler. One call of `reconcile` handles one FleetCluster and leaves no partial state in memory."""

    context: ReconcileContext
    taints: TaintController
    _up_to_date: dict[OwnerKey, tuple[Any, ...]] = field(default_factory=dict)
    """The inputs from which the children were rendered when no action was needed."""
    _uids: dict[OwnerKey, str] = field(default_factory=dict)
    """Which object of a name everything in memory is about."""

    async def reconcile(self, key: OwnerKey) -> float | None:
        """Move one FleetCluster towards its spec; returns the seconds to the next reconcile."""
        resource = self.context.informer.cache.get(key)
        uid = resource["metadata"]["uid"] if resource else ""
        if self._uids.setdefault(key, uid) != uid or resource is None:
            self._forget(key)
        if resource is None:
            return None
        self._uids[key] = uid
        observed = await self._observe(key, resource)
        # Nodes come first: the release of a node must not wait for anything that may hang or fail.
        taints = await self.taints.reconcile(resource, observed.spec, observed.poll)
        if is_deleting(resource):
            return await self._finish_deletion(observed, taints)
        if observed.invalid:
            return await self._report_invalid(observed, observed.invalid, taints)
        child_plan = await self._plan(observed)
        outcome = ApplyResult()
        if child_plan is not None:
            outcome = await self.context.applier.carry_out(key, resource["metadata"]["uid"], child_plan)
        return await self._report(observed, taints, outcome)

    # Observe

    async def _observe(self, key: OwnerKey, resource: Manifest) -> ObservedFleetCluster:
        parsed = parse(FleetClusterSpec, resource)
        invalid = parsed if isinstance(parsed, ReconcileError) else None
        spec = readable_spec(resource, parsed.message) if isinstance(parsed, ReconcileError) else parsed
        referenced = None
        if not is_deleting(resource):
            with self.context.failures.guarded(key, reading_references(key)):
                referenced = await self._references(key, spec)
                referenced.errors.extend(self._namesakes(key, resource))
            replicas: tuple[str, ...] = ()
            if spec.fleet.log.nats:
                live = self.context.informer.cache.get(("Deployment", key[1], f"{key[2]}-{fleet.COMPONENT}"))
                replicas = await self.context.pods.addresses(key, fleet.COMPONENT, spec.fleet.replicas, live)
            if self._polled(key) or ready_of(self._fleet(key, resource))[0]:
                # Before its own Fleet is ready, that of a deleted resource of this name may answer for a moment.
                self._poll(key, spec, referenced, replicas)
        poll = self.context.fleet_poller.result(key)
        return ObservedFleetCluster(
            key=key, resource=resource, spec=spec, invalid=invalid, referenced=referenced, poll=poll
        )

    async def _references(self, key: OwnerKey, spec: FleetClusterSpec) -> Referenced:
        """Everything that the spec refers to in other objects."""
        read, errors, fleet_spec, (_, namespace, name) = (
            self.context.referenced,
            list[ReconcileError](),
            spec.fleet,
            key,
        )
        lines = (await read.value(namespace, spec.token_secret, "spec.tokenSecret", errors)).decode(errors="replace")
        token = next((line.strip() for line in lines.splitlines() if line.strip() and line[0] != "#"), None)
        if spec.token_secret and lines and token is None:
            errors.append(missing("spec.tokenSecret", "Secret", spec.token_secret))
        tls = await self._tls(namespace, name, spec, errors)
        forward = fleet_spec.forward
        await read.nats(namespace, fleet_spec.log.nats, "spec.fleet.log.nats", errors)
        if forward:
            await read.value(namespace, forward.token_secret, "spec.fleet.forward.tokenSecret", errors)
            await read.nats(namespace, forward.nats, "spec.fleet.forward.nats", errors)
        api = spec.agents.api
        if api:
            await read.value(namespace, api.token_secret, "spec.agents.api.tokenSecret", errors)
            for field in ("tls.crt", "tls.key"):
                part = SecretKey(name=api.tls_secret, key=field)
                await read.value(namespace, part, "spec.agents.api.tlsSecret", errors)
        store, stream = forward.echo_store if forward else None, _source(self._echo_store(namespace, spec))
        if store and self.context.informer.cache.get(("EchoStore", namespace, store)) is None:
            message = f"there is no EchoStore {store} in this namespace; make it, or name another"
            errors.append(
                ReconcileError("EchoStoreMissing", f"spec.fleet.forward.echoStore: {message}", stalls=False)
            )
        elif forward and forward.nats and stream is None:
            message = (
                f"EchoStore {store} has no spec.source; set it there. Meanwhile Fleet sends to the pod of the store"
            )
            errors.append(
                ReconcileError("EchoStoreWithoutSource", f"spec.fleet.forward.nats: {message}", stalls=False)
            )
        texts = [
            (await read.value(namespace, source, f"spec.fleet.cost.{name}", errors)).decode()
            for name, source in (("rates", fleet_spec.cost.rates), ("providers", fleet_spec.cost.providers))
            if source
        ]
        wires = fleet_spec.collectives.topology
        if wires:
            texts.append((await read.value(namespace, wires, "spec.fleet.collectives.topology", errors)).decode())
        return Referenced(
            errors=errors, token=token, tls=tls, files=digest(texts) if texts else "",
            stream=stream, topology=self._topology(key, spec, errors),
        )  # fmt: skip

    def _namesakes(self, key: OwnerKey, resource: Manifest) -> list[ReconcileError]:
        """Whether an earlier FleetCluster sends verdicts under the same cluster id to the same place."""
        found = self.context.informer.scopes.earlier_namesake(key, resource)
        if found is None:
            return []
        (_, namespace, other), name = found
        message = (
            f"spec.clusterId: FleetCluster {namespace}/{other} forwards to {name.target} as {name.cluster!r} too, "
            "so nodes and verdicts of the two are mixed there; give one of them another clusterId"
        )
        return [ReconcileError("ClusterIdTaken", message, stalls=False)]

    def _topology(self, key: OwnerKey, spec: FleetClusterSpec, errors: list[ReconcileError]) -> str:
        """The topology file from labels of the watched nodes, where labels are named; while these cannot be used, the
        one that is there."""
        labels, informer = spec.fleet.collectives.topology_labels, self.context.informer
        if not labels:
            return ""
        watched = informer.watched(spec.agents.node_selector).values()
        try:
            return topology.topology_of(((node.name, node.labels) for node in watched), labels)
        except topology.TopologyUnusable as error:
            message = f"spec.fleet.collectives.topologyLabels: {error}"
            errors.append(ReconcileError("TopologyUnusable", message, stalls=False))
        before = informer.cache.get(("ConfigMap", key[1], f"{key[2]}-{fleet.TOPOLOGY_PART}")) or {}
        return str(before.get("data", {}).get(topology.KEY, ""))

    async def _tls(
        self, namespace: str, name: str, spec: FleetClusterSpec, errors: list[ReconcileError]
    ) -> TlsSecret:
        """What `spec.tlsSecret` says to clients of Fleet and its receivers."""
        services = ("fleet", *(("receivers",) if spec.fleet.receivers else ()))
        servers = (f"{name}-{service}.{namespace}.svc" for service in services)
        return await self.context.referenced.tls(namespace, spec.tls_secret, servers, errors)

    def _fleet(self, key: OwnerKey, resource: Manifest) -> Manifest | None:
        """The live Deployment of this resource's Fleet."""
        children = self.context.informer.cache.children(key, resource["metadata"]["uid"])
        return children.get(("Deployment", f"{key[2]}-{fleet.COMPONENT}"))

    def _polled(self, key: OwnerKey) -> bool:
        return self.context.fleet_poller.poll_request(key) is not None

    def _poll(
        self, key: OwnerKey, spec: FleetClusterSpec, referenced: Referenced | None, replicas: tuple[str, ...]
    ) -> None:
        """Have Fleet polled from now on; while its credentials cannot be read, with the previous ones."""
        config, place = self.context.config, {"scheme": "https" if spec.tls_secret else "http", "name": key[2]}
        known: Referenced | PollRequest | None = referenced or self.context.fleet_poller.poll_request(key)
        if known is None:
            return
        request = PollRequest(
            url=config.fleet_url.format(**place, namespace=key[1]),
            otlp=config.fleet_otlp_url.format(**place, namespace=key[1]),
            cluster=spec.cluster_id,
            token=known.token,
            authority=known.authority,
            tainted=self.taints.tainted_nodes(key, spec),
            urgent=spec.taints.mode is not Mode.OBSERVE or spec.taints.condition,
            replicas=replicas,
            replicas_wanted=spec.fleet.replicas if spec.fleet.log.nats else 0,
            interval=seconds(spec.fleet.push_interval),
        )
        self.context.fleet_poller.watch(key, request)

    # Plan

    async def _plan(self, observed: ObservedFleetCluster) -> ChildPlan | None:
        """The actions on the children; none while the resource is paused or its references cannot be read."""
        key, spec, context = observed.key, observed.spec, self.context
        uid = observed.resource["metadata"]["uid"]
        if is_paused(observed.resource):
            context.applier.pause(key)
            return None
        if observed.referenced is None:
            return None
        if context.informer.cache.leftovers(key, uid):
            return ChildPlan(clear=True)
        inputs = self._fleet_inputs(key[1], spec, observed.referenced)
        rendered_from = (
            observed.resource["metadata"]["generation"], inputs, context.platform,
            context.informer.cache.fingerprint(key),
        )  # fmt: skip
        if self._up_to_date.get(key) == rendered_from:
            return ChildPlan()
        children = desired.of_fleet_cluster(owner_from(observed.resource), spec, context.platform, inputs)
        live = context.informer.cache.children(key, uid)
        platform = context.platform
        scraped = ("fleet", "receivers", "push")
        live |= await context.applier.unwatched(key, SERVICE_MONITOR, scraped, platform.service_monitors)
        live |= await context.applier.unwatched(key, HTTP_ROUTE, (fleet.COMPONENT,), platform.http_routes)
        children, kept = desired.split(children, live, bool(self._refused_images(spec)))
        actions = plan(children, live, staged=rollout_order(key[2], spec), kept=kept)
        if not actions:
            self._up_to_date[key] = rendered_from
        return ChildPlan(actions=actions)

    def _fleet_inputs(self, namespace: str, spec: FleetClusterSpec, referenced: Referenced) -> fleet.FleetInputs:
        store = self._echo_store(namespace, spec)
        return fleet.FleetInputs(
            echo_authority=str((store.get("spec") or {}).get("tlsSecret") or ""),
            echo_shard=shard_of(spec.cluster_id, routed_shards(store)),
            echo_stream=referenced.stream,
            file_digest=referenced.files,
            topology=referenced.topology,
            provider="" if spec.fleet.cost.default_provider else self._provider(spec),
        )

    def _echo_store(self, namespace: str, spec: FleetClusterSpec) -> Manifest:
        """The EchoStore that Fleet forwards to; empty without one."""
        forward = spec.fleet.forward
        if forward is None or forward.echo_store is None:
            return {}
        return self.context.informer.cache.get(("EchoStore", namespace, forward.echo_store)) or {}

    def _provider(self, spec: FleetClusterSpec) -> str:
        """The provider that all watched nodes name, if they agree. Fleet restarts when it changes."""
        nodes = self.context.informer.watched(spec.agents.node_selector).values()
        schemes = {found[1].lower() for node in nodes if (found := _SCHEME.match(node.provider_id))}
        return schemes.pop() if len(schemes) == 1 else ""

    def _refused_images(self, spec: FleetClusterSpec) -> list[ReconcileError]:
        """Images that the operator may not run; its agents run as root and see every process of a node."""
        named = [(f"spec.images.{name}", image) for name, image in spec.images if image]
        return [image_not_allowed(*item) for item in named if self.context.platform.refuses(item[1])]

    # Report

    async def _report(
        self, observed: ObservedFleetCluster, taints: TaintReport, outcome: ApplyResult
    ) -> float | None:
        key, resource, spec, poll = observed.key, observed.resource, observed.spec, observed.poll
        context = self.context
        children = context.informer.cache.children(key, resource["metadata"]["uid"])
        conditions = await self._conditions(observed, children)
        failed = context.failures.errors(key)
        reported_before = (resource.get("status") or {}).get("conditions")
        if poll is None and self._polled(key) and reported_before and not outcome.done and not failed:
            # After a start the status of the previous process stays until Fleet has answered, which takes a moment.
            return context.failures.retry_after(key)
        if observed.referenced and observed.referenced.tls.certificate:
            conditions.append(observed.referenced.tls.certificate)
        conditions.append(taints.decision.allowed)
        errors = [
            *(observed.referenced.errors if observed.referenced else ()), *self._refused_images(spec), *failed,
            *stuck(conditions),
        ]  # fmt: skip
        progress = outcome.progress() or rollout_progress(children)
        overall = status.overall(conditions, NEEDED, errors, is_paused(resource), progress, INFORMING)
        confirmed, accused = taints.decision.confirmed, taints.decision.accused
        rest = figures(key[2], spec, context.platform.config.version, children, poll, confirmed, accused)
        rest["taints"] = taints.status
        wait = None
        with context.failures.guarded(key, _writing_status(key)):
            wait = await context.status.report(resource, overall, rest, [*outcome.events(), *warnings(failed)])
        if not taints.finalizer and has_finalizer(resource):
            await set_finalizer(context.api, context.informer.cache, resource, False)
        return soonest(
            wait,
            taints.check_after,
            context.failures.retry_after(key),
            RETRY_SECONDS if errors or outcome.waiting else None,
            context.referenced.refresh_after() if _has_references(spec) else None,
            context.pods.check_after(key, children.values()),
        )

    async def _conditions(
        self, observed: ObservedFleetCluster, children: dict[ChildKey, Manifest]
    ) -> list[Condition]:
        key, spec, failures = observed.key, observed.spec, self.context.failures
        pods, names = self.context.pods, daemon_sets(key[2], spec)
        sets = [children.get(("DaemonSet", name)) for name in names]
        components = [name.removeprefix(f"{key[2]}-") for name in names]
        problems = {
            live["metadata"]["name"]: problem
            for component, live in zip(components, sets, strict=True)
            if live and (problem := await pods.why_unavailable(key, component, live))
        }
        agents, reading = agents_available(sets, None, problems), Operation(OperationKind.READ, f"Namespace {key[1]}")
        if agents.status == "False" and spec.agents.source is Source.TRACE:
            with failures.guarded(key, reading):
                agents = agents_available(sets, await self.context.referenced.privileged(key[1]), problems)
        else:
            failures.resolve(key, reading)
        deployment = children.get(("Deployment", f"{key[2]}-fleet"))
        problem = await pods.why_unavailable(key, fleet.COMPONENT, deployment)
        serving = available("FleetAvailable", deployment, "Fleet", problem)
        if spec.fleet.receivers and serving.holds:
            deployment = children.get(("Deployment", f"{key[2]}-receivers"))
            problem = await pods.why_unavailable(key, receivers.COMPONENT, deployment)
            serving = available("FleetAvailable", deployment, "the Deployment of receivers", problem)
        out = [serving, agents, evidence_fresh(observed.poll, serving.holds)]
        if spec.agents.source is Source.TRACE and agents.status != "Unknown":
            out.append(tracing_complete(await pods.trace_problem(key, components[0], sets[0])))
        poll = observed.poll
        forwarded = forward_available(spec.fleet.forward, poll.forwarding if poll and poll.current else None)
        network = network_healthy(poll.network if poll and poll.current else None)
        progress = jobs_progress(poll.hangs if poll and poll.current else None)
        nodes = (quorum_met(poll, spec), agents_unique(poll, spec.cluster_id), learned(poll, spec))
        routed = route_created(spec.fleet.gateway, self.context.platform, "spec.fleet")
        log = poll.log if poll and spec.fleet.log.nats else ()
        return [
            *out,
            *log,
            *filter(None, (progress, network, forwarded, *nodes, routed)),
        ]

    async def _report_invalid(
        self, observed: ObservedFleetCluster, invalid: ReconcileError, taints: TaintReport
    ) -> float | None:
        """Report a spec that cannot be read: its taints were reconciled, and everything else stays as it is."""
        key, resource, context = observed.key, observed.resource, self.context
        conditions, rest = status.with_error(resource.get("status") or {}, CONDITIONS, invalid)
        events = warnings([invalid, *context.failures.errors(key)])
        wait = None
        with context.failures.guarded(key, _writing_status(key)):
            wait = await context.status.report(resource, conditions, {**rest, "taints": taints.status}, events)
        return soonest(wait, taints.check_after, context.failures.retry_after(key))

    async def _finish_deletion(self, observed: ObservedFleetCluster, taints: TaintReport) -> float | None:
        """Remove the finalizer when no node carries the taint; the garbage collector deletes the children."""
        key, resource, context = observed.key, observed.resource, self.context
        await context.recorder.record(resource, *warnings(context.failures.errors(key)))
        if not has_finalizer(resource):
            return None
        if not taints.remaining:
            await set_finalizer(context.api, context.informer.cache, resource, False)
            return None
        names = ", ".join(sorted(taints.remaining)[:5])
        blocked = ReconcileError(
            "CleanupBlocked",
            f"nodes still carry the operator's taint or condition: {names}; `kubectl taint node NAME "
            "ingero.io/straggler-` and `kubectl annotate node NAME ingero.io/straggler-` remove it by hand",
            stalls=False,
        )
        conditions, rest = status.with_error(resource.get("status") or {}, CONDITIONS, blocked)
        with context.failures.guarded(key, _writing_status(key)):
            await context.status.report(resource, conditions, {**rest, "taints": taints.status}, [])
        return min(taints.check_after or DELETION_SECONDS, DELETION_SECONDS)

    def _forget(self, key: OwnerKey) -> None:
        self._uids.pop(key, None)
        self._up_to_date.pop(key, None)
        self.context.fleet_poller.forget(key)
        self.context.applier.forget(key)
        self.context.status.forget(key)
        self.context.pods.forget(key)
        self.taints.forget(key)


def _source(store: Manifest) -> NatsStream | None:
    """The stream that an EchoStore reads."""
    spec = parse(EchoStoreSpec, store) if store else None
    return spec.source.nats if isinstance(spec, EchoStoreSpec) and spec.source else None


def _has_references(spec: FleetClusterSpec) -> bool:
    forward = spec.fleet.forward
    listed = (
        spec.token_secret, spec.tls_secret, spec.agents.api, spec.fleet.cost.rates, spec.fleet.cost.providers,
        spec.fleet.collectives.topology, spec.fleet.log.nats,
    )  # fmt: skip
    return any(listed) or bool(forward and (forward.token_secret or forward.nats))


def _writing_status(key: OwnerKey) -> Operation:
    return Operation(OperationKind.STATUS, f"status of {key[0]} {key[2]}")
