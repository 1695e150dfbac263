"""Reads the objects that a spec refers to and that are not watched: Secrets, ConfigMaps, namespaces.

Watching Secrets would need the right to list every Secret of the cluster, so they are read one by one and cached.
"""

import random
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ingero_kit.clock import Clock
from ingero_operator.api.base import ConfigMapKey, SecretKey
from ingero_operator.api.nats import NatsAccess
from ingero_operator.api_client import ApiClient
from ingero_operator.cache import OwnerKey
from ingero_operator.certificates import certificate_errors, judge_certificate
from ingero_operator.conditions import Condition
from ingero_operator.errors import ReconcileError
from ingero_operator.failures import Operation, OperationKind
from ingero_operator.kinds import CONFIG_MAP, NAMESPACE, SECRET, Manifest, ResourceKind

NAMESPACE_SECONDS: Final = 60.0
KEPT: Final = 8192
"""Most objects in the cache; the oldest are dropped and read again."""
RESOURCES_AT_FULL_PACE: Final = 500
"""Number of resources above which each Secret is read less often."""
TLS_KEYS: Final = ("tls.crt", "tls.key", "ca.crt")


class TlsSecret(NamedTuple):
    """What the operator reads from `spec.tlsSecret`."""

    authority: str | None
    """PEM of the CA that signed the certificate."""
    certificate: Condition | None
    """`CertificateValid`."""


@dataclass
class ReferencedObjects:
    """Reads referenced objects, each at most once in `refresh` seconds."""

    api: ApiClient
    clock: Clock
    refresh: float
    resources: Callable[[], int]
    """The number of resources, which sets the read interval."""
    _kept: OrderedDict[tuple[str, str, str], tuple[float, Manifest]] = field(default_factory=OrderedDict)
    """What was read of an object and when, by kind, namespace and name."""

    async def value(
        self, namespace: str, source: SecretKey | ConfigMapKey | None, path: str, errors: list[ReconcileError]
    ) -> bytes:
        """The value of a key that a spec refers to at `path`; empty, with an error, where there is none."""
        if source is None:
            return b""
        if isinstance(source, SecretKey):
            text = (await self._data(SECRET, namespace, source.name)).get(source.key)
            found = b64decode(text) if text else None
        else:
            text = (await self._data(CONFIG_MAP, namespace, source.name)).get(source.key)
            found = None if text is None else text.encode()
        if found is None:
            errors.append(missing(path, "Secret" if isinstance(source, SecretKey) else "ConfigMap", source))
        return found or b""

    async def nats(self, namespace: str, access: NatsAccess | None, path: str, errors: list[ReconcileError]) -> None:
        """See whether the Secrets of a client of NATS exist."""
        if access is None:
            return
        await self.value(namespace, access.credentials_secret, f"{path}.credentialsSecret", errors)
        if access.tls and access.tls.ca_secret:
            authority = SecretKey(name=access.tls.ca_secret, key="ca.crt")
            await self.value(namespace, authority, f"{path}.tls.caSecret", errors)
        if access.tls and access.tls.client_secret:
            for key in ("tls.crt", "tls.key"):
                part = SecretKey(name=access.tls.client_secret, key=key)
                await self.value(namespace, part, f"{path}.tls.clientSecret", errors)

    async def tls(
        self, namespace: str, name: str | None, servers: Iterable[str], errors: list[ReconcileError]
    ) -> TlsSecret:
        """What `spec.tlsSecret`, a Secret of type kubernetes.io/tls, says to clients of `servers`; with an error
        where a part is missing or refused by them. The first server that is refused counts."""
        if name is None:
            return TlsSecret(None, None)
        data = await self._data(SECRET, namespace, name)
        absent = next((key for key in TLS_KEYS if not data.get(key)), None)
        if absent:
            errors.append(missing("spec.tlsSecret", "Secret", SecretKey(name=name, key=absent)))
        certificate = None
        if data.get("tls.crt"):
            for server in servers:
                certificate = judge_certificate(b64decode(data["tls.crt"]), name, server, self.clock())
                found = certificate_errors(certificate)
                if absent or found or not certificate.holds:
                    break
            errors += found
        return TlsSecret(b64decode(data.get("ca.crt", "")).decode(errors="replace") or None, certificate)

    async def privileged(self, namespace: str) -> bool | None:
        """Whether a namespace admits privileged pods; `None` when it has no such label."""
        found = await self._read(NAMESPACE, None, namespace, NAMESPACE_SECONDS)
        level = found.get("labels", {}).get("pod-security.kubernetes.io/enforce")
        return None if level is None else level == "privileged"

    async def _data(self, kind: ResourceKind, namespace: str, name: str) -> dict[str, str]:
        data: dict[str, str] = (await self._read(kind, namespace, name, 0.9 * self.refresh)).get("data", {})
        return data

    async def _read(self, kind: ResourceKind, namespace: str | None, name: str, seconds: float) -> Manifest:
        """Data and labels of an object, not older than so many seconds; empty where there is none."""
        key = (kind.name, namespace or "", name)
        known = self._kept.get(key)
        if known is not None and self.clock() - known[0] < seconds:
            return known[1]
        self._kept.pop(key, None)
        found = await self.api.get(kind, namespace, name)
        if found is None:
            return {}
        part = {"data": found.get("data") or {}, "labels": found["metadata"].get("labels") or {}}
        self._kept[key] = self.clock(), part
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return part

    def refresh_after(self) -> float:
        """Seconds until a resource's Secrets are read again; longer with many resources."""
        share = max(1.0, self.resources() / RESOURCES_AT_FULL_PACE)
        return self.refresh * share * random.uniform(1.0, 1.1)


def reading_references(key: OwnerKey) -> Operation:
    """The operation of reading what a resource names."""
    return Operation(OperationKind.READ, f"what {key[0]} {key[2]} names")


def missing(path: str, kind: str, source: SecretKey | ConfigMapKey) -> ReconcileError:
    """A Secret or ConfigMap, or a key of it, does not exist."""
    message = f"{path}: there is no {kind} {source.name} with the key {source.key}; make it in this namespace"
    return ReconcileError(f"{kind}Missing", message, stalls=False)
