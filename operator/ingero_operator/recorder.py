"""Events that people read with `kubectl describe`: one object for each happening, counted when it happens again."""

import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from ingero_contract.kubernetes import GROUP, MANAGER, VERSION
from ingero_kit.logs import get
from ingero_operator.cluster import Api, ApiError
from ingero_operator.kinds import EVENT

log = get(__name__)

REPEAT_SECONDS: Final = 300.0
_REMEMBERED: Final = 10_000


@dataclass(frozen=True)
class Happening:
    """Something to tell about an object. `once`: an identity that makes a second telling impossible, also after a
    restart; without it the same words are counted."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    once: str = ""


class Recorder:
    """Writes Events; failing to is never an error of the work itself."""

    def __init__(self, api: Api, instance: str) -> None:
        self._api = api
        self._instance = instance
        self._told: OrderedDict[str, float] = OrderedDict()

    async def tell(self, about: dict[str, Any], *happenings: Happening) -> None:
        """Tell about an object (its kind and metadata are read)."""
        for happening in happenings:
            try:
                await self._tell(about, happening)
            except ApiError as error:
                log.info("event_not_written", reason=error.message, about=happening.message)

    async def _tell(self, about: dict[str, Any], happening: Happening) -> None:
        metadata = about["metadata"]
        identity = happening.once or f"{happening.type}/{happening.reason}/{happening.message}"
        digest = hashlib.sha256(f"{metadata['uid']}/{identity}".encode()).hexdigest()[:16]
        name = f"{metadata['name'][:200]}.{digest}"
        last = self._told.get(name)
        if last is not None and (happening.once or time.monotonic() - last < REPEAT_SECONDS):
            return
        self._told[name] = time.monotonic()
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        namespace, now = metadata.get("namespace") or "default", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "type": happening.type,
            "reason": happening.reason,
            "message": happening.message[:1024],
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
            if not happening.once:
                found = await self._api.get(EVENT, namespace, name) or {}
                count = int(found.get("count") or 1) + 1
                await self._api.merge(EVENT, namespace, name, {"count": count, "lastTimestamp": now})


def reference(about: dict[str, Any]) -> dict[str, Any]:
    """What an Event says about its object."""
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
