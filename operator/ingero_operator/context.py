"""What the reconcilers of both kinds share: reading Secrets, writing status, timing."""

import hashlib
import random
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_operator import status as shown
from ingero_operator.admission import NodePolicyProbe
from ingero_operator.api.base import Part
from ingero_operator.api.v1alpha1 import PAUSED
from ingero_operator.api_client import ApiClient
from ingero_operator.audit_exporter import AuditExporter
from ingero_operator.cache import OwnerKey
from ingero_operator.children import ChildApplier
from ingero_operator.conditions import Condition
from ingero_operator.errors import ReconcileError
from ingero_operator.events import Event, EventRecorder
from ingero_operator.failures import Failures
from ingero_operator.fleet_poller import FleetPoller
from ingero_operator.informer import RESOURCES, Informer
from ingero_operator.kinds import BY_NAME, CONFIG_MAP, NAMESPACE, SECRET, Kind
from ingero_operator.render.common import Owner, Platform
from ingero_operator.settings import OperatorConfig
from ingero_operator.taints.state import timestamp
from ingero_operator.volume_usage import VolumeUsagePoller

log = get(__name__)

Manifest = dict[str, Any]
Spec = TypeVar("Spec", bound=Part)
_Value = TypeVar("_Value")
_Remembered = OrderedDict[tuple[str, str], tuple[float, dict[str, _Value]]]
"""What was read of named objects, and when, by namespace and name."""

REMEMBER_SECONDS: Final = 60.0
REMEMBERED: Final = 4096
"""Secrets and namespaces that are remembered; the oldest are asked for again."""
TELEMETRY_SECONDS: Final = 60.0
SECRETS_AT_FULL_PACE: Final = 500
"""Resources beyond which each Secret is looked at less often."""
RETRY_SECONDS: Final = 30.0
"""When to look again at something that somebody else has to put right."""


@dataclass
class ReconcileContext:
    """Everything that reconciling needs, wired once."""

    api: ApiClient
    informer: Informer
    applier: ChildApplier
    recorder: EventRecorder
    fleet_poller: FleetPoller
    volume_usage: VolumeUsagePoller
    audit_exporter: AuditExporter
    config: OperatorConfig
    clock: Clock
    leads: Callable[[], bool]
    admission: NodePolicyProbe
    failures: Failures
    platform: Platform = field(default_factory=Platform)
    written: dict[OwnerKey, float] = field(default_factory=dict)
    status_writes: int = 0
    node_writes: dict[tuple[str, str], int] = field(default_factory=dict)
    _secrets: _Remembered[bytes] = field(default_factory=OrderedDict)
    _config_maps: _Remembered[str] = field(default_factory=OrderedDict)
    _privileged: OrderedDict[str, tuple[float, bool | None]] = field(default_factory=OrderedDict)

    async def secret(self, namespace: str, name: str) -> dict[str, bytes] | None:
        """The data of a Secret, nearly as old as `secret_poll` at most; nothing when there is none."""
        return await self._data(SECRET, namespace, name, self._secrets, b64decode)

    async def config_map(self, namespace: str, name: str) -> dict[str, str] | None:
        """The data of a ConfigMap that a resource names, nearly as old as `secret_poll` at most."""
        return await self._data(CONFIG_MAP, namespace, name, self._config_maps, str)

    async def _data(
        self, kind: Kind, namespace: str, name: str, remembered: _Remembered[_Value], read: Callable[[str], _Value]
    ) -> dict[str, _Value] | None:
        known = remembered.get((namespace, name))
        if known is not None and self.clock() - known[0] < 0.9 * self.config.secret_poll:
            return known[1]
        found = await self.api.get(kind, namespace, name)
        if found is None:
            remembered.pop((namespace, name), None)
            return None
        data = {str(key): read(value) for key, value in (found.get("data") or {}).items()}
        _remember(remembered, (namespace, name), (self.clock(), data))
        return data

    def secrets_refresh_after(self) -> float:
        """When to look at a resource's Secrets again: with many resources each of them less often."""
        resources = self.informer.cache.count(*RESOURCES)
        return self.config.secret_poll * max(1.0, resources / SECRETS_AT_FULL_PACE) * random.uniform(1.0, 1.1)

    async def privileged(self, namespace: str) -> bool | None:
        """Whether a namespace admits privileged pods, if it says so."""
        known = self._privileged.get(namespace)
        if known is None or self.clock() - known[0] > REMEMBER_SECONDS:
            found = await self.api.get(NAMESPACE, None, namespace) or {"metadata": {}}
            level = (found["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce")
            known = (self.clock(), None if level is None else level == "privileged")
            _remember(self._privileged, namespace, known)
        return known[1]

    async def write_status(self, resource: Manifest, status: Manifest) -> float | None:
        """Write what differs. What only moves by itself waits for a minute to pass; says how long to wait then."""
        key = (resource["kind"], resource["metadata"]["namespace"], resource["metadata"]["name"])
        patch = shown.patch(resource.get("status") or {}, status)
        if not patch:
            return None
        if not shown.without_telemetry(patch):
            rest = self.written.get(key, 0.0) + TELEMETRY_SECONDS - self.clock()
            if rest > 0:
                return rest
        response = await self.api.merge(BY_NAME[key[0]], key[1], key[2], {"status": patch}, sub="status")
        self.written[key] = self.clock()
        self.status_writes += 1
        log.debug("status_written", key=str(key), patch=patch)
        self.informer.cache.put(key[0], response)
        resource["status"] = response.get("status") or {}
        resource["metadata"]["resourceVersion"] = response["metadata"]["resourceVersion"]
        return None

    async def record_events(self, resource: Manifest, events: list[Event]) -> None:
        """Events about a resource."""
        await self.recorder.record(resource, *events)

    async def finish(
        self, resource: Manifest, conditions: list[Condition], rest: Manifest, events: list[Event]
    ) -> float | None:
        """Status and Events at the end of a reconcile."""
        metadata = resource["metadata"]
        whole = shown.assemble(
            conditions, resource.get("status") or {}, int(metadata.get("generation", 1)),
            timestamp_seconds(self.clock()), is_paused(resource), rest,
        )  # fmt: skip
        again = await self.write_status(resource, whole)
        await self.record_events(resource, events)
        return again

    async def report_error(self, resource: Manifest, parts: Iterable[str], error: ReconcileError) -> float | None:
        """Say what stands before looking at a resource at all; everything else that its status tells stands."""
        conditions, rest = shown.with_error(resource.get("status") or {}, parts, error)
        return await self.finish(resource, conditions, rest, [Event("Warning", error.reason, error.message)])


def _remember(remembered: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    remembered[key] = value
    remembered.move_to_end(key)
    if len(remembered) > REMEMBERED:
        remembered.popitem(last=False)


def owner_from(resource: Manifest) -> Owner:
    """The owner of a resource's children."""
    metadata = resource["metadata"]
    return Owner(kind=resource["kind"], namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


def key_from(resource: Manifest) -> OwnerKey:
    """The key of a resource."""
    return resource["kind"], resource["metadata"]["namespace"], resource["metadata"]["name"]


def is_paused(resource: Manifest) -> bool:
    """Whether somebody asked the operator to leave everything of this resource as it is."""
    return (resource["metadata"].get("annotations") or {}).get(PAUSED) == "true"


def parse(kind: type[Spec], resource: Manifest) -> Spec | ReconcileError:
    """The spec, or what is wrong with it in words (an object from before a rule was added)."""
    try:
        return kind.model_validate(resource.get("spec") or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, first["loc"]))
        return ReconcileError("InvalidSpec", f"spec.{path}: {first['msg']}")


def digest_of(data: dict[str, bytes] | None, key: str) -> str:
    """Digest of one value of a Secret; never the value itself."""
    value = (data or {}).get(key)
    return hashlib.sha256(value).hexdigest()[:16] if value else ""


def timestamp_seconds(time: float) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes times."""
    return timestamp(float(int(time))).replace(".000Z", "Z")
