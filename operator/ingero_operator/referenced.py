"""Reads the objects that a spec refers to and that are not watched: Secrets, ConfigMaps, namespaces.

Watching Secrets would need the right to list every Secret of the cluster, so they are read one by one and cached.
"""

import random
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ingero_kit.clock import Clock
from ingero_operator.api_client import ApiClient
from ingero_operator.errors import ReconcileError
from ingero_operator.kinds import CONFIG_MAP, NAMESPACE, SECRET, Kind

_Value = TypeVar("_Value")
_Kept = OrderedDict[tuple[str, str], tuple[float, dict[str, _Value]]]
"""Data of objects, and the time of the read, by namespace and name."""

NAMESPACE_SECONDS: Final = 60.0
KEPT: Final = 4096
"""Most objects in the cache; the oldest are dropped and read again."""
RESOURCES_AT_FULL_PACE: Final = 500
"""Number of resources above which each Secret is read less often."""


@dataclass
class ReferencedObjects:
    """Reads referenced objects, each at most once in `refresh` seconds."""

    api: ApiClient
    clock: Clock
    refresh: float
    resources: Callable[[], int]
    """The number of resources, which sets the read interval."""
    _secrets: _Kept[bytes] = field(default_factory=OrderedDict)
    _config_maps: _Kept[str] = field(default_factory=OrderedDict)
    _privileged: OrderedDict[str, tuple[float, bool | None]] = field(default_factory=OrderedDict)

    async def secret(self, namespace: str, name: str) -> dict[str, bytes] | None:
        """The data of a Secret; `None` when there is none."""
        return await self._data(SECRET, namespace, name, self._secrets, b64decode)

    async def config_map(self, namespace: str, name: str) -> dict[str, str] | None:
        """The data of a ConfigMap; `None` when there is none."""
        return await self._data(CONFIG_MAP, namespace, name, self._config_maps, str)

    async def _data(
        self, kind: Kind, namespace: str, name: str, kept: _Kept[_Value], decode: Callable[[str], _Value]
    ) -> dict[str, _Value] | None:
        known = kept.get((namespace, name))
        if known is not None and self.clock() - known[0] < 0.9 * self.refresh:
            return known[1]
        found = await self.api.get(kind, namespace, name)
        if found is None:
            kept.pop((namespace, name), None)
            return None
        data = {str(key): decode(value) for key, value in (found.get("data") or {}).items()}
        _keep(kept, (namespace, name), (self.clock(), data))
        return data

    async def tls_secret(self, namespace: str, name: str) -> tuple[dict[str, bytes], list[ReconcileError]]:
        """A Secret of type kubernetes.io/tls with ca.crt, and which part of it is missing."""
        data = await self.secret(namespace, name) or {}
        absent = next((key for key in ("tls.crt", "tls.key", "ca.crt") if not data.get(key)), None)
        return data, [secret_missing("spec.tlsSecret", name, absent)] if absent else []

    async def privileged(self, namespace: str) -> bool | None:
        """Whether a namespace admits privileged pods; `None` when it has no such label."""
        known = self._privileged.get(namespace)
        if known is None or self.clock() - known[0] > NAMESPACE_SECONDS:
            found = await self.api.get(NAMESPACE, None, namespace) or {"metadata": {}}
            level = (found["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce")
            known = (self.clock(), None if level is None else level == "privileged")
            _keep(self._privileged, namespace, known)
        return known[1]

    def refresh_after(self) -> float:
        """Seconds until a resource's Secrets are read again; longer with many resources."""
        share = max(1.0, self.resources() / RESOURCES_AT_FULL_PACE)
        return self.refresh * share * random.uniform(1.0, 1.1)


def _keep(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > KEPT:
        kept.popitem(last=False)


def secret_missing(field_name: str, secret: str, key: str) -> ReconcileError:
    """A Secret, or a key of it, does not exist."""
    message = f"{field_name}: there is no Secret {secret} with the key {key}; make it in this namespace"
    return ReconcileError("SecretMissing", message, stalls=False)


def config_map_missing(field_name: str, name: str, key: str) -> ReconcileError:
    """A ConfigMap, or a key of it, does not exist."""
    message = f"{field_name}: there is no ConfigMap {name} with the key {key}; make it in this namespace"
    return ReconcileError("ConfigMapMissing", message, stalls=False)
