"""Writes the status of a resource, and the Events that go with it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_operator import status
from ingero_operator.api_client import ApiClient
from ingero_operator.cache import Cache, OwnerKey
from ingero_operator.conditions import Condition
from ingero_operator.errors import ReconcileError
from ingero_operator.events import EventRecorder, KubernetesEvent
from ingero_operator.kinds import BY_NAME, Manifest
from ingero_operator.resources import is_paused, key_from
from ingero_operator.taints.state import timestamp_seconds

log = get(__name__)

TELEMETRY_SECONDS: Final = 60.0
"""Least time between two writes of values that change continuously."""


@dataclass
class StatusWriter:
    """Writes only differences, so that a resource at rest causes no writes."""

    api: ApiClient
    cache: Cache
    recorder: EventRecorder
    clock: Clock
    writes: int = 0
    _written: dict[OwnerKey, float] = field(default_factory=dict)

    async def write(self, resource: Manifest, after: Manifest) -> float | None:
        """Write the difference. Returns the seconds to wait when only telemetry differs and its last write was less
        than a minute ago."""
        key = key_from(resource)
        patch = status.patch(resource.get("status") or {}, after)
        if not patch:
            return None
        if not status.without_telemetry(patch):
            wait = self._written.get(key, 0.0) + TELEMETRY_SECONDS - self.clock()
            if wait > 0:
                return wait
        response = await self.api.merge(BY_NAME[key[0]], key[1], key[2], {"status": patch}, sub="status")
        self._written[key] = self.clock()
        self.writes += 1
        log.debug("status_written", key=str(key), patch=patch)
        self.cache.put(key[0], response)
        resource["status"] = response.get("status") or {}
        resource["metadata"]["resourceVersion"] = response["metadata"]["resourceVersion"]
        return None

    async def report(
        self, resource: Manifest, conditions: list[Condition], rest: Manifest, events: list[KubernetesEvent]
    ) -> float | None:
        """Write the whole status and the Events at the end of a reconcile; seconds to wait as of `write`."""
        after = status.assemble(
            conditions, resource.get("status") or {}, int(resource["metadata"].get("generation", 1)),
            timestamp_seconds(self.clock()), is_paused(resource), rest,
        )  # fmt: skip
        wait = await self.write(resource, after)
        await self.recorder.record(resource, *events)
        return wait

    async def report_error(self, resource: Manifest, parts: Iterable[str], error: ReconcileError) -> float | None:
        """Report an error that prevented the reconcile; everything else in the status stays."""
        conditions, rest = status.with_error(resource.get("status") or {}, parts, error)
        return await self.report(resource, conditions, rest, warnings([error]))

    def forget(self, key: OwnerKey) -> None:
        """Drop the state of a deleted resource."""
        self._written.pop(key, None)


def warnings(errors: Iterable[ReconcileError]) -> list[KubernetesEvent]:
    """Errors as Events."""
    return [KubernetesEvent("Warning", item.reason, item.message) for item in errors]
