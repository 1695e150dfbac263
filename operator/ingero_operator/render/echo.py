"""Children of an EchoStore: claim, ConfigMap, StatefulSet, Services, and the proof that its pod needs to start."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ingero_contract import echo as names
from ingero_contract.kubernetes import PROOF_LABEL
from ingero_operator.api.nats import NatsStream
from ingero_operator.api.shared_tables import TableSpec
from ingero_operator.api.v1alpha1 import EchoStoreSpec, OnDelete
from ingero_operator.kinds import Manifest
from ingero_operator.plan import quantity
from ingero_operator.render import nats
from ingero_operator.render.common import (
    API,
    HEALTH,
    OTLP_GRPC,
    Owner,
    Platform,
    confined,
    container,
    digest,
    disruption_budget,
    http_route,
    ingress,
    manifest,
    placed,
    probe,
    pulled,
    sealed,
    service,
    service_account,
    service_monitor,
    unprivileged,
    workload,
)
from ingero_operator.render.fleet import CONFIG, TLS, TOKEN, secret_volume
from ingero_operator.render.shards import stream, writer
from ingero_operator.render.text import dump_bare

DATA: Final = "/var/lib/ingero"
PROOF: Final = "/etc/ingero/volume-proof"
PORTS: Final = {"otlp-grpc": (OTLP_GRPC, "grpc"), "api": (API, "http")}


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the gate found about the volume."""

    volume: str
    volume_uid: str
    class_name: str
    class_uid: str
    level: str


@dataclass(frozen=True, kw_only=True)
class VolumeInputs:
    """What the operator found of the volume of one writer."""

    capacity: str | None = None
    """Present size of the volume, which may be less than the requested size."""
    claim_uid: str | None = None
    """Uid of the claim; the writer's name in shared tables has it, as another volume needs another name."""


@dataclass(frozen=True, kw_only=True)
class EchoInputs:
    """What the operator found around an EchoStore. By default nothing is sealed."""

    volumes: Mapping[int, VolumeInputs] = field(default_factory=lambda: {0: VolumeInputs()})
    """The writers that may be made."""
    bucket_encrypted: bool = False
    """Whether the gate lets events into the bucket."""

    def table(self, spec: EchoStoreSpec) -> TableSpec | None:
        """The shared tables, where events may be sealed into them."""
        return spec.table if self.bucket_encrypted else None

    def source(self, spec: EchoStoreSpec) -> NatsStream | None:
        """The stream that is read, where what was read can be sealed."""
        return spec.source.nats if spec.source and self.table(spec) else None

    def answering(self, spec: EchoStoreSpec) -> str:
        """The component that answers from the events of all writers, where one does."""
        return READERS if spec.shards > 1 and self.table(spec) and spec.readers else writer(0)


READERS: Final = "readers"
CATALOG: Final = "/etc/ingero/catalog"
SOURCE: Final = "source"

SEAL_IDLE_MB: Final = 120
"""Memory of the clients of catalog and object storage, megabytes."""

IDLE_MB: Final = 280
"""Memory of Echo and of the processes that run users' SQL, without the memory of queries, megabytes."""

SQL_PROCESSES: Final = 2


def config(owner: Owner, spec: EchoStoreSpec, around: EchoInputs, index: int = 0) -> Manifest:
    """Echo's settings file. The pod's memory and the volume's size limit memory and stored events.

    The engine and users' SQL have equal parts of the memory that the processes do not need for themselves; the sort
    before a seal has a third part where there is one.
    """
    table, size, volume = around.table(spec), quantity(spec.storage.size), around.volumes[index]
    room = quantity(spec.resources.memory or "1Gi") / 10**6 - IDLE_MB - (SEAL_IDLE_MB if table else 0)
    part = room / (3 if table else 2)
    if volume.capacity is not None:
        size = min(size, quantity(volume.capacity))
    sealed_into = {}
    if table and volume.claim_uid:
        sealer = {
            "shard": shard(owner, spec, volume.claim_uid, index), **former_shard(owner, spec, volume.claim_uid),
            "every": table.seal_interval, "keep": table.keep,
            "memory_mb": min(256, max(64, int(part))), "retention": table.retention,
        }  # fmt: skip
        sealed_into = {"table": {**table_config(table), **sealer}, **source_config(around.source(spec), index)}
    return {
        "store": {"path": f"{DATA}/echo.duckdb", "memory_limit_mb": max(64, int(part))},
        "query": {"sql_at_once": SQL_PROCESSES, "sql_memory_mb": max(64, int(part / SQL_PROCESSES))},
        **sealed_into,
        "ingest": {"grpc_endpoint": f"0.0.0.0:{OTLP_GRPC}", "http_endpoint": None},
        "retention": {
            "age": spec.retention,
            "size_mb": max(1, int(size * 7 / 10 / 10**6)),
        },
        "api": {"endpoint": f"0.0.0.0:{API}", "health_endpoint": f"0.0.0.0:{HEALTH}"},
        **access(spec),
    }


def access(spec: EchoStoreSpec) -> Manifest:
    """Who may ask, and TLS, as settings."""
    return {
        "auth": {"tokens_file": f"{TOKEN}/{spec.token_secret.key}"},
        "tls": {"cert_file": f"{TLS}/tls.crt", "key_file": f"{TLS}/tls.key"},
    }


def shard(owner: Owner, spec: EchoStoreSpec, claim_uid: str, index: int = 0) -> str:
    """The writer's name in shared tables: a volume keeps it, another volume has another one.

    A writer with a stream keeps its name on another volume, where it reads again what the lost one had not sealed.
    """
    if spec.source is None:
        return _named_after(owner, claim_uid)
    return _named_after(owner, digest([owner.namespace, owner.name, stream(spec.source.nats.stream, index)]))


def former_shard(owner: Owner, spec: EchoStoreSpec, claim_uid: str) -> Manifest:
    """The name that a writer had in shared tables before the store had a stream, as a setting."""
    return {"former_shard": _named_after(owner, claim_uid)} if spec.source else {}


def _named_after(owner: Owner, identity: str) -> str:
    return f"{re.sub('[^a-z0-9-]', '-', owner.name)[:27]}-{identity[:12]}"


def source_config(source: NatsStream | None, index: int) -> Manifest:
    """The stream that a writer reads, as settings."""
    if source is None:
        return {}
    size = {"max_bytes": int(quantity(source.max_size))} if source.max_size else {}
    name = stream(source.stream, index)
    return {
        "source": {"nats": {"servers": list(source.servers), "stream": name, **size, **nats.access(SOURCE, source)}}
    }


def table_config(table: TableSpec) -> Manifest:
    """Where the tables are, as settings of the writer and of readers."""
    secret = table.credentials_secret
    return {
        "catalog": {item.name: item.value for item in table.catalog},
        "warehouse": table.warehouse,
        "namespace": table.namespace,
        **({"credentials_file": f"{CATALOG}/{secret.key}"} if secret else {}),
    }


def catalog_volume(table: TableSpec | None) -> tuple[list[Manifest], list[Manifest]]:
    """Volume and mount of the catalog's credentials."""
    if table is None or table.credentials_secret is None:
        return [], []
    mount = {"name": "catalog", "mountPath": CATALOG, "readOnly": True}
    return [secret_volume("catalog", table.credentials_secret)], [mount]


def children(owner: Owner, spec: EchoStoreSpec, platform: Platform, around: EchoInputs) -> list[Manifest | None]:
    """All children of the writers except claims and proofs, in the order in which they are applied."""
    entrance = around.answering(spec)
    found: list[Manifest | None] = [
        ingress(owner, entrance, spec.ingress, {"/": "api"}) if spec.ingress else None,
        http_route(owner, platform, entrance, spec.gateway, {"/": API}),
    ]
    for index in around.volumes:
        part, text = writer(index), dump_bare(config(owner, spec, around, index))
        found += [
            service_account(owner, part),
            manifest(owner, "v1", "ConfigMap", part, part, {"data": {"echo.yaml": text}}),
            service(owner, part, PORTS),
            service(owner, part, PORTS, headless=True),
            stateful_set(owner, spec, platform, around, index, digest([text])),
            disruption_budget(owner, part),
            service_monitor(owner, platform, part, ("api",), spec.service_monitors, **scraped(owner, spec, part)),
        ]
    return found


def scraped(owner: Owner, spec: EchoStoreSpec, component: str) -> Manifest:
    """How Prometheus scrapes an Echo, which requires TLS and a token."""
    token = spec.service_monitors.token_secret or spec.token_secret
    return {
        "path": names.METRICS_PAGE,
        "scheme": "https",
        "tlsConfig": {
            "ca": {"secret": {"name": spec.tls_secret, "key": "ca.crt"}},
            "serverName": f"{owner.child(component)}.{owner.namespace}.svc",
        },
        "authorization": {"type": "Bearer", "credentials": {"name": token.name, "key": token.key}},
    }


def claim(owner: Owner, spec: EchoStoreSpec, class_name: str, size: str, index: int = 0) -> Manifest:
    """The claim, always with an explicit class. It outlives its owner unless the owner says otherwise."""
    body = {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "storageClassName": class_name,
            "resources": {"requests": {"storage": size}},
        }
    }
    owned = spec.storage.on_delete is OnDelete.DELETE
    return manifest(owner, "v1", "PersistentVolumeClaim", writer(index), writer(index), body, owned=owned)


def proof_name(index: int) -> str:
    """Suffix of a writer's proof."""
    return "volume-proof" if index == 0 else f"volume-proof-{index}"


def proof(owner: Owner, found: Proof, index: int = 0) -> Manifest:
    """The ConfigMap that unlocks the pod; it is created only after the volume was judged."""
    body = {
        "data": {
            "volume": found.volume,
            "volume-uid": found.volume_uid,
            "class": found.class_name,
            "class-uid": found.class_uid,
            "level": found.level,
        }
    }
    child = manifest(owner, "v1", "ConfigMap", proof_name(index), writer(index), body)
    child["metadata"]["labels"][PROOF_LABEL] = "true"
    return sealed(child)


def stateful_set(
    owner: Owner, spec: EchoStoreSpec, platform: Platform, around: EchoInputs, index: int, config_digest: str
) -> Manifest:
    """The StatefulSet of one writer. One process owns a database, so it has one replica, whose pod needs the proof of
    its volume."""
    part = writer(index)
    catalog, catalog_mount = catalog_volume(around.table(spec))
    source = nats.secrets(SOURCE, around.source(spec))
    volumes: list[Manifest] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": owner.child(part)}},
        # Not optional: until the operator has seen that the volume is encrypted, no container of this pod can start.
        {"name": "volume-proof", "configMap": {"name": owner.child(proof_name(index)), "optional": False}},
        {"name": "config", "configMap": {"name": owner.child(part)}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        secret_volume("token", spec.token_secret),
        secret_volume("tls", spec.tls_secret),
        *catalog,
        *(secret_volume(name, secret) for name, secret, _ in source),
    ]
    mounts: list[Manifest] = [
        {"name": "data", "mountPath": DATA},
        {"name": "volume-proof", "mountPath": PROOF, "readOnly": True},
        {"name": "config", "mountPath": CONFIG, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "token", "mountPath": TOKEN, "readOnly": True},
        {"name": "tls", "mountPath": TLS, "readOnly": True},
        *catalog_mount,
        *({"name": name, "mountPath": path, "readOnly": True} for name, _, path in source),
    ]
    # Probes use a separate listener, so that clients of the API cannot crowd out the kubelet.
    alive, serving = probe(names.LIVE, "health", period=5), probe(names.READY, "health", period=5)
    server = container(
        writer(0),
        platform.image_of("echo", spec.version, spec.image),
        ["serve", "--config", f"{CONFIG}/echo.yaml"],
        {**{name: port for name, (port, _) in PORTS.items()}, "health": HEALTH},
        spec.resources,
        mounts,
        startupProbe={**alive, "failureThreshold": 120},
        readinessProbe=serving,
        livenessProbe={**alive, "periodSeconds": 20, "failureThreshold": 6},
    )
    pod: Manifest = {
        "securityContext": {**unprivileged(), **confined(spec), "fsGroupChangePolicy": "OnRootMismatch"},
        "terminationGracePeriodSeconds": 120,
        "containers": [server],
        "volumes": volumes,
        **placed(spec.node_selector, spec.tolerations),
        **pulled(platform, spec.image_pull_secrets),
    }
    special = {
        "replicas": 1,
        "serviceName": owner.child(f"{part}-pods"),
        # OrderedReady would wait for ever for a pod that cannot start, also after its template was corrected.
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
    }
    return workload(
        owner, "StatefulSet", part, spec.version or platform.config.version, pod, special, config_digest
    )  # fmt: skip
