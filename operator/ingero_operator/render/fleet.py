"""Children of Fleet: ConfigMap, Deployment, Service, PodDisruptionBudget."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from ingero_contract import routes
from ingero_operator.api.base import ConfigMapKey, SecretKey
from ingero_operator.api.nats import NatsStream
from ingero_operator.api.v1alpha1 import CostSpec, FleetClusterSpec, Forward
from ingero_operator.kinds import Manifest
from ingero_operator.render import nats, topology
from ingero_operator.render.common import (
    API,
    FINDINGS,
    HEALTH,
    OTLP_GRPC,
    OTLP_HTTP,
    PAGE,
    VITALS,
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
    selector,
    service,
    service_account,
    service_monitor,
    unprivileged,
    workload,
)
from ingero_operator.render.shards import stream, writer
from ingero_operator.render.text import dump_bare

COMPONENT: Final = "fleet"
TOPOLOGY_PART: Final = "topology"
CONFIG: Final = "/etc/ingero/config"
TOKEN: Final = "/etc/ingero/token"
TLS: Final = "/etc/ingero/tls"
FORWARD_TOKEN: Final = "/etc/ingero/forward"
FORWARD_AUTHORITY: Final = "/etc/ingero/forward-authority"
STATE: Final = "/var/lib/ingero"
RATES: Final = "/etc/ingero/rates"
TOPOLOGY: Final = "/etc/ingero/topology"
PROVIDERS: Final = "/etc/ingero/providers"
LOG: Final = "log"
STREAM: Final = "stream"
PORTS: Final = {
    "otlp-grpc": (OTLP_GRPC, "grpc"),
    "otlp-http": (OTLP_HTTP, "http"),
    "api": (API, "http"),
    "findings": (FINDINGS, "http"),
    "vitals": (VITALS, "http"),
    "health": (HEALTH, "http"),
}
REPLICAS_AGREE: Final = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
"""Environment of replicas, which must come to equal results."""


_API_ROUTES: Final = (routes.FLEET_THRESHOLD, routes.FLEET_STRAGGLERS, routes.FLEET_VERDICTS, routes.FLEET_COST)
PUBLIC: Final = {**dict.fromkeys(_API_ROUTES, "api"), "/": "page"}
"""Ports by path of the Ingress: the API, and the page with its own data."""


def ports(spec: FleetClusterSpec) -> dict[str, tuple[int, str]]:
    """Ports of the Service, with their application protocol."""
    return {**PORTS, **({"page": (PAGE, "http")} if spec.fleet.ingress or spec.fleet.gateway else {})}


@dataclass(frozen=True, kw_only=True)
class FleetInputs:
    """Inputs from outside the resource that change how Fleet runs."""

    echo_authority: str = ""
    """Secret with the ca.crt of the EchoStore that it forwards to."""
    echo_shard: int = 0
    """Writer of that EchoStore that takes the events of this cluster."""
    echo_stream: NatsStream | None = None
    """Stream that this EchoStore reads."""
    file_digest: str = ""
    """Digest of the ConfigMaps with rates, rules and topology: Fleet reads them at start, so a change triggers a
    rollout."""
    topology: str = ""
    """Topology from labels of nodes, which Fleet reads again when it changes."""
    provider: str = ""
    """Provider that every watched Node's `providerID` names."""


def config(owner: Owner, spec: FleetClusterSpec, around: FleetInputs) -> Manifest:
    """Fleet's settings file."""
    tls: Manifest = {"tls": {"cert_file": f"{TLS}/tls.crt", "key_file": f"{TLS}/tls.key"}} if spec.tls_secret else {}
    auth: Manifest = {"auth": {"bearer_token_file": f"{TOKEN}/{spec.token_secret.key}"}} if spec.token_secret else {}
    wires = _topology_file(owner, spec)
    tree: Manifest = {
        "receivers": {
            "otlp": {
                "protocols": {
                    "grpc": {"endpoint": f"0.0.0.0:{OTLP_GRPC}", **tls, **auth},
                    "http": {"endpoint": f"0.0.0.0:{OTLP_HTTP}", **tls, **auth},
                }
            }
        },
        "processors": {
            "ingero": {
                "push_interval": spec.fleet.push_interval,
                "max_nodes": spec.fleet.max_nodes,
                "quorum": {
                    "statistical_min": spec.fleet.quorum.statistical_min,
                    "coverage_fraction": spec.fleet.quorum.coverage_percent / 100,
                    "expected_nodes": spec.fleet.quorum.expected_nodes,
                },
                **({} if spec.fleet.log.nats else {"detector": {"snapshot": f"{STATE}/detector.npz"}}),
                "threshold": {"k": spec.fleet.threshold.k, "min_band": spec.fleet.threshold.min_band},
            },
            "nccl": {
                "actionable": spec.fleet.collectives.actionable,
                "share": spec.fleet.collectives.least_share,
                "time_tolerance": spec.fleet.collectives.time_tolerance,
                **({"topology_file": f"{TOPOLOGY}/{wires.key}"} if wires else {}),
            },
            **_cost(spec.fleet.cost, around),
        },
        "extensions": {
            "ingero_threshold": {"agent_endpoint": f"0.0.0.0:{API}", **tls, **auth, **_page(spec, tls, auth)},
            "healthee": {"endpoint": f"0.0.0.0:{HEALTH}", **tls, **auth},
        },
        "exporters": {"prometheus": {"endpoint": f"0.0.0.0:{FINDINGS}"}},
        "service": {"telemetry": {"metrics": {"address": f"0.0.0.0:{VITALS}"}}},
    }
    if spec.fleet.log.nats:
        log = spec.fleet.log.nats
        tree["log"] = {"nats": {"servers": list(log.servers), "prefix": log.prefix, **nats.access(LOG, log)}}
    if spec.fleet.forward:
        kind, exporter = _exporter(owner, spec.fleet.forward, around)
        tree["exporters"][kind] = exporter
        tree["service"]["pipelines"] = {
            "metrics": {"processors": ["ingero"], "exporters": ["prometheus", kind]},
            "logs": {"exporters": [kind]},
            "traces": {"exporters": [kind]},
        }
    return tree


def _page(spec: FleetClusterSpec, tls: Manifest, auth: Manifest) -> Manifest:
    """The page's settings where an Ingress or a Gateway leads to it: otherwise it listens on loopback."""
    if spec.fleet.ingress is None and spec.fleet.gateway is None:
        return {}
    return {"admin_endpoint": f"0.0.0.0:{PAGE}", **{f"admin_{name}": value for name, value in (tls | auth).items()}}


def _cost(cost: CostSpec, around: FleetInputs) -> Manifest:
    out: Manifest = {}
    if cost.rates:
        out["rates_file"] = f"{RATES}/{cost.rates.key}"
    if cost.providers:
        out["providers_file"] = f"{PROVIDERS}/{cost.providers.key}"
    provider = cost.default_provider or around.provider
    if provider:
        out["default_provider"] = provider
    return {"cost": out} if out else {}


def _topology_file(owner: Owner, spec: FleetClusterSpec) -> ConfigMapKey | None:
    """Where the topology is: in a ConfigMap of the user, or in one that is written from labels."""
    if spec.fleet.collectives.topology_labels:
        return ConfigMapKey(name=owner.child(TOPOLOGY_PART), key=topology.KEY)
    return spec.fleet.collectives.topology


def publishes_to(forward: Forward | None, around: FleetInputs) -> NatsStream | None:
    """The stream that Fleet publishes to instead of sending to Echo."""
    return around.echo_stream if forward and forward.nats else None


def _exporter(owner: Owner, forward: Forward, around: FleetInputs) -> tuple[str, Manifest]:
    """Name of the exporter and its settings."""
    published = publishes_to(forward, around)
    if published and forward.nats:
        name = stream(published.stream, around.echo_shard)
        return "nats", {"servers": list(published.servers), "stream": name, **nats.access(STREAM, forward.nats)}
    out: Manifest = {}
    if forward.echo_store:
        out["endpoint"] = f"{forward.echo_store}-{writer(around.echo_shard)}.{owner.namespace}.svc:{OTLP_GRPC}"
        if around.echo_authority:
            out["tls"] = {"ca_file": f"{FORWARD_AUTHORITY}/ca.crt"}
    else:
        out["endpoint"] = forward.endpoint
    if forward.token_secret:
        out["bearer_token_file"] = f"{FORWARD_TOKEN}/{forward.token_secret.key}"
    return "otlp", out


def config_digest(owner: Owner, spec: FleetClusterSpec, around: FleetInputs) -> str:
    """Digest of all that a pod reads at its start: a change replaces the pods."""
    return digest([dump_bare(config(owner, spec, around)), around.file_digest])


def children(owner: Owner, spec: FleetClusterSpec, platform: Platform, around: FleetInputs) -> list[Manifest | None]:
    """All children of Fleet, in the order in which they are applied."""
    text = dump_bare(config(owner, spec, around))
    return [
        service_account(owner, COMPONENT),
        manifest(owner, "v1", "ConfigMap", COMPONENT, COMPONENT, {"data": {"fleet.yaml": text}}),
        topology_map(owner, around.topology) if spec.fleet.collectives.topology_labels else None,
        claim(owner, spec) if spec.fleet.snapshots.size else None,
        service(owner, COMPONENT, ports(spec)),
        deployment(owner, spec, platform, around),
        disruption_budget(owner, COMPONENT),
        ingress(owner, COMPONENT, spec.fleet.ingress, PUBLIC) if spec.fleet.ingress else None,
        http_route(
            owner,
            platform,
            COMPONENT,
            spec.fleet.gateway,
            {path: ports(spec)[port][0] for path, port in PUBLIC.items()} if spec.fleet.gateway else {},
        ),
        service_monitor(owner, platform, COMPONENT, ("findings", "vitals"), spec.service_monitors),
    ]


def topology_map(owner: Owner, text: str) -> Manifest:
    """The ConfigMap with the topology from labels."""
    data = {topology.KEY: text or '{"nodes":{}}'}
    return manifest(owner, "v1", "ConfigMap", TOPOLOGY_PART, COMPONENT, {"data": data})


def claim(owner: Owner, spec: FleetClusterSpec) -> Manifest:
    """The claim for the detector's snapshots; it is deleted with the resource."""
    wanted = spec.fleet.snapshots
    body: Manifest = {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": wanted.size}},
        **({"storageClassName": wanted.class_name} if wanted.class_name else {}),
    }  # fmt: skip
    return manifest(owner, "v1", "PersistentVolumeClaim", COMPONENT, COMPONENT, {"spec": body})


def deployment(owner: Owner, spec: FleetClusterSpec, platform: Platform, around: FleetInputs) -> Manifest:
    """The Deployment. Without a shared log it has one replica: with two each would know half of the nodes."""
    shared = spec.fleet.log.nats
    pod_volumes, mounts = volumes(owner, spec, around)
    settings = [word for item in spec.fleet.settings for word in ("--set", f"{item.name}={item.value}")]
    scheme: Literal["HTTP", "HTTPS"] = "HTTPS" if spec.tls_secret else "HTTP"
    server = container(
        COMPONENT,
        platform.image_of("fleet", spec.version, spec.images.fleet),
        ["serve", "--config", f"{CONFIG}/fleet.yaml", *settings],
        {name: port for name, (port, _) in ports(spec).items()},
        spec.fleet.resources,
        mounts,
        **({"env": [{"name": name, "value": value} for name, value in REPLICAS_AGREE.items()]} if shared else {}),
        startupProbe=probe(routes.FLEET_HEALTH, "health", period=1, failures=60, scheme=scheme),
        readinessProbe=probe(routes.FLEET_HEALTH, "health", period=5, scheme=scheme),
        livenessProbe=probe(routes.FLEET_HEALTH, "health", period=10, failures=6, scheme=scheme),
    )
    pod: Manifest = {
        "securityContext": {**unprivileged(), **confined(spec.fleet)},
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector(owner, COMPONENT)},
            }
            for key in ("topology.kubernetes.io/zone", *(("kubernetes.io/hostname",) if shared else ()))
        ],
        "affinity": away_from_gpus() | (_on_one_architecture(owner) if shared else {}),
        "containers": [server],
        "volumes": pod_volumes,
        **placed(spec.fleet.node_selector, spec.fleet.tolerations),
        **pulled(platform, spec.image_pull_secrets),
    }
    special = {
        "replicas": spec.fleet.replicas,
        "progressDeadlineSeconds": 300,
        "strategy": {"type": "Recreate"}
        if spec.fleet.snapshots.size
        else {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
    }
    version, configured = spec.version or platform.config.version, config_digest(owner, spec, around)
    return workload(owner, "Deployment", COMPONENT, version, pod, special, configured)


def volumes(owner: Owner, spec: FleetClusterSpec, around: FleetInputs) -> tuple[list[Manifest], list[Manifest]]:
    """Volumes of the pod and their mounts: settings, Secrets, prices, space for temporary files."""
    forward, cost = spec.fleet.forward, spec.fleet.cost
    published = forward.nats if forward and publishes_to(forward, around) else None
    sources: list[tuple[str, SecretKey | ConfigMapKey | str | None, str]] = [
        ("token", spec.token_secret, TOKEN),
        ("tls", spec.tls_secret, TLS),
        ("forward", forward.token_secret if forward else None, FORWARD_TOKEN),
        (
            "forward-authority",
            SecretKey(name=around.echo_authority, key="ca.crt") if around.echo_authority else None,
            FORWARD_AUTHORITY,
        ),
        ("rates", cost.rates, RATES),
        ("providers", cost.providers, PROVIDERS),
        ("topology", _topology_file(owner, spec), TOPOLOGY),
        *nats.secrets(LOG, spec.fleet.log.nats),
        *nats.secrets(STREAM, published),
    ]
    found: list[Manifest] = [
        {"name": "config", "configMap": {"name": owner.child(COMPONENT)}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        {"name": "state", "persistentVolumeClaim": {"claimName": owner.child(COMPONENT)}}
        if spec.fleet.snapshots.size
        else {"name": "state", "emptyDir": {"sizeLimit": "256Mi"}},
    ]
    mounts: list[Manifest] = [
        {"name": "config", "mountPath": CONFIG, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "state", "mountPath": STATE},
    ]
    for name, source, path in sources:
        if source is None:
            continue
        if isinstance(source, ConfigMapKey):
            found.append({"name": name, "configMap": {"name": source.name, "items": _items(source)}})
        else:
            found.append(secret_volume(name, source))
        mounts.append({"name": name, "mountPath": path, "readOnly": True})
    return found, mounts


def _items(source: SecretKey | ConfigMapKey) -> list[Manifest]:
    return [{"key": source.key, "path": source.key}]


def secret_volume(name: str, secret: SecretKey | str) -> dict[str, Any]:
    """A volume of one key of a Secret, or of a whole one."""
    if isinstance(secret, str):
        return {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}}
    return {"name": name, "secret": {"secretName": secret.name, "items": _items(secret), "defaultMode": 0o440}}


def away_from_gpus() -> Manifest:
    """The affinity of pods that need no GPU."""
    expression = {"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]}
    preference = {"weight": 50, "preference": {"matchExpressions": [expression]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}


def _on_one_architecture(owner: Owner) -> Manifest:
    """Replicas compute the same on one processor architecture only."""
    term = {
        "topologyKey": "kubernetes.io/arch",
        "labelSelector": {"matchLabels": selector(owner, COMPONENT)},
    }
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
