"""Children of an EchoStore's readers: Deployment, Service, ConfigMap, PodDisruptionBudget."""

from typing import Final

from ingero_contract import echo as names
from ingero_operator.api.v1alpha1 import EchoStoreSpec
from ingero_operator.kinds import Manifest
from ingero_operator.plan import quantity
from ingero_operator.render import echo
from ingero_operator.render.common import (
    API,
    HEALTH,
    Owner,
    Platform,
    confined,
    container,
    digest,
    disruption_budget,
    manifest,
    placed,
    probe,
    pulled,
    sealed,
    selector,
    service,
    service_account,
    service_monitor,
    unprivileged,
    workload,
)
from ingero_operator.render.fleet import CONFIG, TLS, TOKEN, away_from_gpus, secret_volume
from ingero_operator.render.shards import writer
from ingero_operator.render.text import dump_bare

COMPONENT: Final = echo.READERS
PORTS: Final = {"api": (API, "http")}
CACHE: Final = "/var/cache/ingero"
WRITER_TOKEN: Final = "/etc/ingero/writer-token"

CACHED_SHARE: Final = 0.6
"""Share of the volume for copies of data files; unsealed rows and large queries need the rest."""

SPILL_SHARE: Final = 0.15


def config(owner: Owner, spec: EchoStoreSpec, around: echo.EchoInputs) -> Manifest | None:
    """The readers' settings file; none where there are no readers."""
    table, wanted = around.table(spec), spec.readers
    uids = {index: volume.claim_uid for index, volume in around.volumes.items() if volume.claim_uid}
    if table is None or wanted is None or not uids:
        return None
    room = quantity(wanted.resources.memory or "1Gi") / 10**6 - echo.IDLE_MB - echo.SEAL_IDLE_MB
    size = float(quantity(wanted.cache)) / 10**6
    return {
        "store": {"memory_limit_mb": max(64, int(room / 2)), "spill_limit_mb": int(size * SPILL_SHARE)},
        "query": {"sql_at_once": echo.SQL_PROCESSES, "sql_memory_mb": max(64, int(room / 2 / echo.SQL_PROCESSES))},
        "table": echo.table_config(table),
        "read": {
            "cache": CACHE,
            "cache_mb": int(size * CACHED_SHARE),
            "shards": {
                echo.shard(
                    owner, spec, uid, index
                ): f"https://{owner.child(writer(index))}.{owner.namespace}.svc:{API}"
                for index, uid in uids.items()
            },
            "token_file": f"{WRITER_TOKEN}/{wanted.token_secret.key}",
            "ca_file": f"{TLS}/ca.crt",
        },
        "ingest": {"grpc_endpoint": None, "http_endpoint": None},
        "api": {"endpoint": f"0.0.0.0:{API}", "health_endpoint": f"0.0.0.0:{HEALTH}"},
        **echo.access(spec),
    }


def children(owner: Owner, spec: EchoStoreSpec, platform: Platform, around: echo.EchoInputs) -> list[Manifest | None]:
    """All children of the readers; none before events may be sealed."""
    settings = config(owner, spec, around)
    if settings is None:
        return []
    text = dump_bare(settings)
    monitored = echo.scraped(owner, spec, COMPONENT)
    return [
        service_account(owner, COMPONENT),
        manifest(owner, "v1", "ConfigMap", COMPONENT, COMPONENT, {"data": {"echo.yaml": text}}),
        _service(owner),
        deployment(owner, spec, platform, around, digest([text])),
        disruption_budget(owner, COMPONENT),
        service_monitor(owner, platform, COMPONENT, ("api",), spec.service_monitors, **monitored),
    ]


def _service(owner: Owner) -> Manifest:
    """The Service. A client stays with one reader, because a session of MCP belongs to one process."""
    child = service(owner, COMPONENT, PORTS)
    child["spec"]["sessionAffinity"] = "ClientIP"
    return sealed(child)


def deployment(
    owner: Owner, spec: EchoStoreSpec, platform: Platform, around: echo.EchoInputs, config_digest: str
) -> Manifest:
    """The Deployment."""
    wanted = spec.readers
    assert wanted
    catalog, catalog_mount = echo.catalog_volume(around.table(spec))
    volumes: list[Manifest] = [
        {"name": "cache", "emptyDir": {"sizeLimit": wanted.cache}},
        {"name": "config", "configMap": {"name": owner.child(COMPONENT)}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        secret_volume("token", spec.token_secret),
        secret_volume("writer-token", wanted.token_secret),
        secret_volume("tls", spec.tls_secret),
        *catalog,
    ]
    mounts: list[Manifest] = [
        {"name": "cache", "mountPath": CACHE},
        {"name": "config", "mountPath": CONFIG, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "token", "mountPath": TOKEN, "readOnly": True},
        {"name": "writer-token", "mountPath": WRITER_TOKEN, "readOnly": True},
        {"name": "tls", "mountPath": TLS, "readOnly": True},
        *catalog_mount,
    ]
    alive, serving = probe(names.LIVE, "health", period=5), probe(names.READY, "health", period=5)
    server = container(
        COMPONENT,
        platform.image_of("echo", spec.version, spec.image),
        ["read", "--config", f"{CONFIG}/echo.yaml"],
        {"api": API, "health": HEALTH},
        wanted.resources,
        mounts,
        startupProbe={**alive, "failureThreshold": 60},
        readinessProbe=serving,
        livenessProbe={**alive, "periodSeconds": 20, "failureThreshold": 6},
    )
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(owner, COMPONENT)},
    }
    pod: Manifest = {
        "securityContext": {**unprivileged(), **confined(spec)},
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [spread],
        "affinity": away_from_gpus(),
        "containers": [server],
        "volumes": volumes,
        **placed(spec.node_selector, spec.tolerations),
        **pulled(platform, spec.image_pull_secrets),
    }
    special = {
        "replicas": wanted.replicas,
        "progressDeadlineSeconds": 300,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
    }
    version = spec.version or platform.config.version
    return workload(owner, "Deployment", COMPONENT, version, pod, special, config_digest)
