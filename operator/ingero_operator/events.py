"""Events that users read with `kubectl describe`: one object for each, counted when it is repeated."""

import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from ingero_contract.kubernetes import GROUP, MANAGER, VERSION
from ingero_kit.logs import get
from ingero_operator.api_client import ApiClient, ApiError
from ingero_operator.kinds import EVENT

log = get(__name__)

REPEAT_SECONDS: Final = 300.0
_REMEMBERED: Final = 10_000


@dataclass(frozen=True)
class KubernetesEvent:
    """An Event about an object. With `once`, an identity, it is written only once, also after a restart; without it
    repeated messages are counted."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    once: str = ""


class EventRecorder:
    """Writes Events; a failed write is never an error of the reconcile."""

    def __init__(self, api: ApiClient, instance: str) -> None:
        self._api = api
        self._instance = instance
        self._recorded: OrderedDict[str, float] = OrderedDict()

    async def record(self, about: dict[str, Any], *events: KubernetesEvent) -> None:
        """Write Events about an object, of which kind and metadata are read."""
        for event in events:
            try:
                await self._record(about, event)
            except ApiError as error:
                log.info("event_not_written", reason=error.message, about=event.message)

    async def _record(self, about: dict[str, Any], event: KubernetesEvent) -> None:
        metadata = about["metadata"]
        identity = event.once or f"{event.type}/{event.reason}/{event.message}"
        digest = hashlib.sha256(f"{metadata['uid']}/{identity}".encode()).hexdigest()[:16]
        name = f"{metadata['name'][:200]}.{digest}"
        last = self._recorded.get(name)
        if last is not None and (event.once or time.monotonic() - last < REPEAT_SECONDS):
            return
        self._recorded[name] = time.monotonic()
        if len(self._recorded) > _REMEMBERED:
            self._recorded.popitem(last=False)
        namespace, now = metadata.get("namespace") or "default", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:1024],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "reportingInstance": self._instance,
            "involvedObject": reference(about),
        }
        try:
            await self._api.create(EVENT, namespace, body)
        except ApiError as error:
            if error.status != 409:
                raise
            if not event.once:
                found = await self._api.get(EVENT, namespace, name) or {}
                count = int(found.get("count") or 1) + 1
                await self._api.merge(EVENT, namespace, name, {"count": count, "lastTimestamp": now})


def reference(about: dict[str, Any]) -> dict[str, Any]:
    """The reference of an Event to its object."""
    metadata = about["metadata"]
    ours = about["kind"] in ("FleetCluster", "EchoStore")
    out = {
        "apiVersion": f"{GROUP}/{VERSION}" if ours else about.get("apiVersion", "v1"),
        "kind": about["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    if metadata.get("namespace"):
        out["namespace"] = metadata["namespace"]
    return out
