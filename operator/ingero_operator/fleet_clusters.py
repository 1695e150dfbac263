"""Reconciling a FleetCluster: children, stragglers, status. Reads what is seen, decides by pure rooms, then acts."""

import re
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from ingero_contract.kubernetes import TAINT_FINALIZER
from ingero_kit.logs import get
from ingero_operator import status as shown
from ingero_operator.api.base import seconds
from ingero_operator.api.v1alpha1 import FleetClusterSpec, Mode, Source
from ingero_operator.api_client import ApiError
from ingero_operator.cache import OwnerKey, owner_of
from ingero_operator.children import GROUP, Outcome
from ingero_operator.conditions import Condition, no, unknown, yes
from ingero_operator.context import RETRY_SECONDS, ReconcileContext, digest_of, is_paused, key_from, owner_from, parse
from ingero_operator.errors import ReconcileError, image_not_allowed
from ingero_operator.events import Event
from ingero_operator.failures import Operation
from ingero_operator.fleet_poller import PollRequest, PollResult
from ingero_operator.kinds import FLEET_CLUSTER, SERVICE_MONITOR
from ingero_operator.plan import ChildKey, plan, rolled_out
from ingero_operator.render import desired, fleet
from ingero_operator.render.common import digest
from ingero_operator.taints.controller import TaintController, TaintReport
from ingero_operator.workloads import agents_available, available, ready_of, stuck

log = get(__name__)

Manifest = dict[str, Any]
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]{0,62})://")
NEEDED: Final = ("FleetAvailable", "AgentsAvailable", "EvidenceFresh")
INFORMING: Final = ("QuorumMet",)
"""Parts that a cluster does without, as at night when no job runs, and that its summary tells all the same."""
PARTS: Final = (*NEEDED, *INFORMING, "TaintingAllowed")


@dataclass(frozen=True)
class _Named:
    """What a spec names and lies in other objects, and what of it is not there."""

    errors: list[ReconcileError]
    token: str | None
    authority: str | None
    prices: str
    """Digest of the price files."""


@dataclass
class FleetClusters:
    """The reconciler; one call of `reconcile` looks at one FleetCluster and leaves nothing half done in memory."""

    context: ReconcileContext
    taint_controller: TaintController
    _settled: dict[OwnerKey, tuple[Any, ...]] = field(default_factory=dict)

    async def reconcile(self, key: OwnerKey) -> float | None:
        """Bring one FleetCluster nearer to what it says; returns when to look again."""
        resource = self.context.informer.cache.get(key)
        if resource is None:
            self._forget(key)
            return None
        spec = parse(FleetClusterSpec, resource)
        if "deletionTimestamp" in resource["metadata"]:
            # What is wrong with a spec must not keep its marks on nodes.
            return await self._delete(
                resource, FleetClusterSpec(cluster_id="deleted") if isinstance(spec, ReconcileError) else spec
            )
        wrong = spec if isinstance(spec, ReconcileError) else None
        if isinstance(spec, ReconcileError):
            spec = readable_spec(resource, spec.message)
        context, named = self.context, None
        with context.failures.guarded(key, ("look", f"what {key[0]} {key[2]} names")):
            named = await self._named(resource, spec)
        self._ask(key, spec, named)
        result = context.fleet_poller.result(key)
        # Nodes come before everything that may hang or fail: to release one never waits for anything else.
        report = await self.taint_controller.reconcile(resource, spec, result)
        if wrong is not None:
            return await self._wrong(resource, wrong, report)
        outcome, refused = Outcome(), self._refused(spec)
        if is_paused(resource):
            context.failures.retain(key, GROUP, ())
            context.failures.resolve(key, building(key))
        elif named is not None:
            with context.failures.guarded(key, building(key)):
                outcome = await self._children(resource, spec, named, bool(refused))
        observed = context.informer.cache.children(key, resource["metadata"]["uid"])
        parts = await self._parts(resource, spec, observed, result)
        failed = context.failures.errors(key)
        stored = (resource.get("status") or {}).get("conditions")
        if result is None and stored and not outcome.done and not failed:
            # Just started: what an earlier process wrote stands until Fleet has been asked, a moment from now.
            return context.failures.retry_after(key)
        parts.append(report.decision.allowed)
        errors = [*(named.errors if named else ()), *refused, *failed, *stuck(parts)]
        working = _working(outcome, observed)
        conditions = shown.overall(parts, NEEDED, errors, is_paused(resource), working, INFORMING)
        rest = _figures(resource, spec, context.platform.version, observed, result, report)
        requeue_after = None
        with context.failures.guarded(key, telling(key)):
            requeue_after = await context.finish(resource, conditions, rest, [*outcome.events(), *_warnings(failed)])
        if not report.remaining and TAINT_FINALIZER in (resource["metadata"].get("finalizers") or []):
            await drop_finalizer(context, resource)
        waits = [requeue_after, report.again, context.failures.retry_after(key)]
        if errors or outcome.waiting:
            waits.append(RETRY_SECONDS)
        listed = (spec.token_secret, spec.tls_secret, spec.fleet.cost.rates, spec.fleet.cost.providers)
        if any(listed) or (spec.fleet.forward and spec.fleet.forward.token_secret):
            waits.append(context.secrets_refresh_after())
        return min((wait for wait in waits if wait is not None), default=None)

    async def _wrong(self, resource: Manifest, wrong: ReconcileError, report: TaintReport) -> float | None:
        """A spec that cannot be read: its marks are looked after, and everything else stands."""
        key, context = key_from(resource), self.context
        conditions, rest = shown.with_error(resource.get("status") or {}, PARTS, wrong)
        warnings = _warnings([wrong, *context.failures.errors(key)])
        requeue_after = None
        with context.failures.guarded(key, telling(key)):
            requeue_after = await context.finish(resource, conditions, {**rest, "taints": report.status}, warnings)
        waits = [requeue_after, report.again, context.failures.retry_after(key)]
        return min((wait for wait in waits if wait is not None), default=None)

    def _ask(self, key: OwnerKey, spec: FleetClusterSpec, named: _Named | None) -> None:
        """What to ask of Fleet from now on; as whom is as before while that cannot be read."""
        config, place = self.context.config, {"scheme": "https" if spec.tls_secret else "http", "name": key[2]}
        known: _Named | PollRequest | None = named or self.context.fleet_poller.poll_request(key)
        if known is None:
            return
        poll_request = PollRequest(
            url=config.fleet_url.format(**place, namespace=key[1]),
            otlp=config.fleet_otlp_url.format(**place, namespace=key[1]),
            cluster=spec.cluster_id,
            token=known.token,
            authority=known.authority,
            held=self.taint_controller.held(key),
            urgent=spec.taints.mode is not Mode.OBSERVE,
            interval=seconds(spec.fleet.push_interval),
        )
        self.context.fleet_poller.watch(key, poll_request)

    def _forget(self, key: OwnerKey) -> None:
        self._settled.pop(key, None)
        self.context.fleet_poller.forget(key)
        self.context.applier.forget(key)
        self.context.written.pop(key, None)
        self.taint_controller.forget(key)

    async def _named(self, resource: Manifest, spec: FleetClusterSpec) -> _Named:
        """Everything that the spec names and lies in other objects."""
        errors, token, authority = await self._secrets(resource, spec)
        lacking, prices = await self._prices(resource["metadata"]["namespace"], spec)
        return _Named([*errors, *lacking], token, authority, prices)

    async def _secrets(
        self, resource: Manifest, spec: FleetClusterSpec
    ) -> tuple[list[ReconcileError], str | None, str | None]:
        """Token and authority for asking Fleet, and what is missing."""
        namespace, errors = resource["metadata"]["namespace"], []
        token = authority = None
        if spec.token_secret:
            data = await self.context.secret(namespace, spec.token_secret.name)
            value = (data or {}).get(spec.token_secret.key, b"").decode(errors="replace")
            token = next((line.strip() for line in value.splitlines() if line.strip() and line[0] != "#"), None)
            if token is None:
                errors.append(missing("spec.tokenSecret", spec.token_secret.name, spec.token_secret.key))
        if spec.tls_secret:
            data, error = await tls_secret(self.context, namespace, spec.tls_secret)
            authority = data.get("ca.crt", b"").decode(errors="replace") or None
            errors += error
        forward = spec.fleet.forward
        if forward and forward.token_secret:
            data = await self.context.secret(namespace, forward.token_secret.name) or {}
            if not data.get(forward.token_secret.key):
                errors.append(
                    missing("spec.fleet.forward.tokenSecret", forward.token_secret.name, forward.token_secret.key)
                )
        store = forward.echo_store if forward else None
        if store and self.context.informer.cache.get(("EchoStore", namespace, store)) is None:
            message = f"there is no EchoStore {store} in this namespace; make it, or name another"
            errors.append(
                ReconcileError("EchoStoreMissing", f"spec.fleet.forward.echoStore: {message}", stalls=False)
            )
        return errors, token, authority

    async def _children(self, resource: Manifest, spec: FleetClusterSpec, named: _Named, refused: bool) -> Outcome:
        key, context = key_from(resource), self.context
        metadata = resource["metadata"]
        cleared = await context.applier.clear(key, metadata["uid"])
        if cleared:
            return cleared
        around = fleet.FleetInputs(
            token_digest=digest_of({"token": named.token.encode()} if named.token else None, "token"),
            echo_authority=self._echo_authority(key[1], spec),
            price_digest=named.prices,
            provider="" if spec.fleet.cost.default_provider else self._provider(spec),
        )
        inputs = (
            metadata["generation"],
            around,
            context.platform,
            context.informer.cache.fingerprint(key),
        )
        if self._settled.get(key) == inputs:
            return Outcome()
        asked = desired.of_fleet_cluster(owner_from(resource), spec, context.platform, around)
        observed = context.informer.cache.children(key, resource["metadata"]["uid"])
        await read_monitors(context, key, ("fleet", "push"), observed)
        asked, kept = desired.split(asked, observed, refused)
        actions = plan(asked, observed, staged=stages(key[2], spec), kept=kept)
        outcome = await context.applier.apply(key, metadata["uid"], actions)
        if not actions:
            self._settled[key] = inputs
        return outcome

    def _refused(self, spec: FleetClusterSpec) -> list[ReconcileError]:
        """Images that the operator may not run; its agents run as root and see every process of a node."""
        named = [(f"spec.images.{name}", image) for name, image in spec.images if image]
        return [image_not_allowed(*item) for item in named if self.context.platform.refuses(item[1])]

    async def _prices(self, namespace: str, spec: FleetClusterSpec) -> tuple[list[ReconcileError], str]:
        """What of the price files is not there, and a digest of the rest."""
        errors, texts, cost = [], [], spec.fleet.cost
        for field_name, source in (("rates", cost.rates), ("providers", cost.providers)):
            if source is None:
                continue
            text = (await self.context.config_map(namespace, source.name) or {}).get(source.key)
            if text is None:
                message = f"there is no ConfigMap {source.name} with the key {source.key}; make it in this namespace"
                errors.append(
                    ReconcileError("ConfigMapMissing", f"spec.fleet.cost.{field_name}: {message}", stalls=False)
                )
            texts.append(text)
        return errors, digest(texts) if texts else ""

    def _provider(self, spec: FleetClusterSpec) -> str:
        """The provider that the watched nodes agree on. Fleet starts anew when it changes, so nobody is spoken for
        where they differ."""
        nodes = self.context.informer.watched(spec.agents.node_selector).values()
        schemes = {found[1].lower() for node in nodes if (found := _SCHEME.match(node.provider_id))}
        return schemes.pop() if len(schemes) == 1 else ""

    def _echo_authority(self, namespace: str, spec: FleetClusterSpec) -> str:
        """The Secret that vouches for the EchoStore that Fleet forwards to."""
        forward = spec.fleet.forward
        if forward is None or forward.echo_store is None:
            return ""
        store = self.context.informer.cache.get(("EchoStore", namespace, forward.echo_store))
        return str(((store or {}).get("spec") or {}).get("tlsSecret") or "")

    async def _parts(
        self,
        resource: Manifest,
        spec: FleetClusterSpec,
        observed: dict[ChildKey, Manifest],
        result: PollResult | None,
    ) -> list[Condition]:
        name, namespace = resource["metadata"]["name"], resource["metadata"]["namespace"]
        sets = [observed.get(("DaemonSet", set_name)) for set_name in _daemon_sets(name, spec)]
        condition, look = agents_available(sets, None), ("look", f"Namespace {namespace}")
        if condition.status == "False" and spec.agents.source is Source.TRACE:
            with self.context.failures.guarded(key_from(resource), look):
                condition = agents_available(sets, await self.context.privileged(namespace))
        else:
            self.context.failures.resolve(key_from(resource), look)
        serving = available("FleetAvailable", observed.get(("Deployment", f"{name}-fleet")), "Fleet")
        return [serving, condition, fresh(result, serving.holds), quorum(result)]

    async def _delete(self, resource: Manifest, spec: FleetClusterSpec) -> float | None:
        """Release every node, then let the resource go; the garbage collector takes the children."""
        report = await self.taint_controller.reconcile(
            resource, spec, self.context.fleet_poller.result(key_from(resource))
        )
        await self.context.record_events(resource, _warnings(self.context.failures.errors(key_from(resource))))
        finalizers = resource["metadata"].get("finalizers") or []
        if TAINT_FINALIZER not in finalizers:
            return None
        if report.remaining:
            names = ", ".join(sorted(report.remaining)[:5])
            error = ReconcileError(
                "CleanupBlocked",
                f"nodes still carry our mark: {names}; `kubectl taint node NAME ingero.io/straggler-` and "
                "`kubectl annotate node NAME ingero.io/straggler-` remove it by hand",
                stalls=False,
            )
            conditions, rest = shown.with_error(resource.get("status") or {}, PARTS, error)
            with self.context.failures.guarded(key_from(resource), telling(key_from(resource))):
                await self.context.finish(resource, conditions, {**rest, "taints": report.status}, [])
            return min(report.again or 5.0, 5.0)
        await drop_finalizer(self.context, resource)
        return None


async def read_monitors(
    context: ReconcileContext, key: OwnerKey, suffixes: tuple[str, ...], observed: dict[ChildKey, Manifest]
) -> None:
    """ServiceMonitors are not watched, as their kind may come and go: they are read when children are compared."""
    look = ("look", "ServiceMonitors")
    if not context.platform.service_monitors:
        context.failures.resolve(key, look)
        return
    with context.failures.guarded(key, look):
        for suffix in suffixes:
            found = await context.api.get(SERVICE_MONITOR, key[1], f"{key[2]}-{suffix}")
            if found and owner_of(SERVICE_MONITOR.name, found) == key:
                observed[SERVICE_MONITOR.name, f"{key[2]}-{suffix}"] = {"kind": SERVICE_MONITOR.name, **found}


async def drop_finalizer(context: ReconcileContext, resource: Manifest) -> None:
    """Take our finalizer off, guarded by the version that was looked at."""
    metadata = resource["metadata"]
    left = [item for item in metadata.get("finalizers") or [] if item != TAINT_FINALIZER]
    body = {"metadata": {"finalizers": left, "resourceVersion": metadata["resourceVersion"]}}
    try:
        result = await context.api.merge(FLEET_CLUSTER, metadata["namespace"], metadata["name"], body)
    except ApiError as error:
        if not error.not_found:
            raise
        return
    context.informer.cache.put(FLEET_CLUSTER.name, result)
    metadata["finalizers"], metadata["resourceVersion"] = left, result["metadata"]["resourceVersion"]


def readable_spec(resource: Manifest, why: str) -> FleetClusterSpec:
    """What can be read of a spec that something is wrong with: enough to look after the marks that are there, by
    their own rules, and never to set one."""
    tree = {"clusterId": "unreadable", **(resource.get("spec") or {})}
    while True:
        try:
            spec = FleetClusterSpec.model_validate(tree)
            break
        except ValidationError as error:
            places = {item["loc"][0] for item in error.errors(include_url=False) if item["loc"]} & tree.keys()
            tree = {key: value for key, value in tree.items() if key not in places} if places else {}
            tree.setdefault("clusterId", "unreadable")
    # Modes that cannot be read weaken nothing.
    unread = "taints" in (resource.get("spec") or {}) and "taints" not in tree
    mode = Mode.NO_SCHEDULE if unread else spec.taints.mode
    taints = spec.taints.model_copy(update={"mode": mode, "pause_requests": (why,)})
    return spec.model_copy(update={"taints": taints})


def building(key: OwnerKey) -> Operation:
    """Making children at all, as a failure names it."""
    return "look", f"children of {key[0]} {key[2]}"


def telling(key: OwnerKey) -> Operation:
    """Writing the status at the end, as a failure names it: the next look at nodes comes soon all the same."""
    return "status", f"status of {key[0]} {key[2]}"


def stages(name: str, spec: FleetClusterSpec) -> tuple[ChildKey, ...]:
    """Workloads in the order of an upgrade: the receiver first, so that agents never push to an older one."""
    sets = tuple(("DaemonSet", set_name) for set_name in _daemon_sets(name, spec))
    return (("Deployment", f"{name}-fleet"), *sets)


def _daemon_sets(name: str, spec: FleetClusterSpec) -> list[str]:
    return [*([f"{name}-trace"] if spec.agents.source is Source.TRACE else []), f"{name}-push"]


def missing(field_name: str, secret: str, key: str) -> ReconcileError:
    """A Secret, or a key of it, that is not there."""
    return ReconcileError(
        "SecretMissing", f"{field_name}: there is no Secret {secret} with the key {key}; make it in this namespace",
        stalls=False,
    )  # fmt: skip


async def tls_secret(
    context: ReconcileContext, namespace: str, name: str
) -> tuple[dict[str, bytes], list[ReconcileError]]:
    """A Secret of type kubernetes.io/tls with ca.crt, and what of it is not there."""
    data = await context.secret(namespace, name) or {}
    absent = next((key for key in ("tls.crt", "tls.key", "ca.crt") if not data.get(key)), None)
    return data, [missing("spec.tlsSecret", name, absent)] if absent else []


def fresh(result: PollResult | None, serving: bool) -> Condition:
    """Whether Fleet answers with statistics of now. `serving`: its pods are ready, so that it should."""
    kind = "EvidenceFresh"
    if result is None:
        return unknown(kind, "NotAsked", "Fleet has not been asked yet")
    if result.failure and not serving:
        return unknown(kind, "Pending", "Fleet is asked when its pods are ready")
    if result.failure:
        return no(kind, "FleetUnreachable", f"Fleet gives no answer that can be used: {result.failure}")
    if result.stale:
        return no(kind, "StaleEvidence", "Fleet answers, but its statistics are old: see the logs of its pod")
    return yes(kind, "Fresh", "Fleet answers with statistics of now")


def quorum(result: PollResult | None) -> Condition:
    """Whether there are enough nodes to compare, as far as is known now."""
    kind = "QuorumMet"
    if result is None:
        return unknown(kind, "NotAsked", "Fleet has not been asked yet")
    if not result.current or result.evidence is None:
        return unknown(kind, "NoEvidence", "nothing is known of the nodes now: see EvidenceFresh")
    if result.evidence.quorum:
        return yes(kind, "QuorumMet", "enough active nodes to compare with each other")
    return no(kind, "NoQuorum", "too few active nodes to compare with each other: no straggler can be found")


def _warnings(errors: list[ReconcileError]) -> list[Event]:
    return [Event("Warning", item.reason, item.message) for item in errors]


def _working(outcome: Outcome, observed: dict[ChildKey, Manifest]) -> str:
    if outcome.waiting:
        return outcome.waiting
    if outcome.done:
        first = outcome.done[0]
        return f"{first.verb} {first.kind} {first.name}: {first.why}"
    for (kind, name), live in sorted(observed.items()):
        if kind in ("Deployment", "DaemonSet") and not rolled_out(live):
            return f"{kind} {name} is rolling out"
    return ""


def _figures(
    resource: Manifest,
    spec: FleetClusterSpec,
    version: str,
    observed: dict[ChildKey, Manifest],
    result: PollResult | None,
    report: TaintReport,
) -> Manifest:
    name = resource["metadata"]["name"]
    fleet_ready, fleet_wanted = ready_of(observed.get(("Deployment", f"{name}-fleet")))
    pairs = [ready_of(observed.get(("DaemonSet", item))) for item in _daemon_sets(name, spec)]
    out: Manifest = {
        "version": spec.version or version,
        "fleet": {"ready": f"{fleet_ready}/{fleet_wanted}"},
        "agents": {"ready": f"{min(pair[0] for pair in pairs)}/{max(pair[1] for pair in pairs)}"},
        "taints": report.status,
        "effective": shown.effective(spec),
    }
    if result and result.current:  # old figures look like new ones
        if result.threshold is not None:
            out["fleet"]["threshold"] = f"{result.threshold:.2f}"
        out["fleet"]["nodes"] = f"{result.active}/{result.expected}"
        out["stragglers"] = {"confirmed": report.decision.confirmed, "accused": report.decision.accused}
    if result and result.current and result.cost:
        out["cost"] = result.cost
    return out
