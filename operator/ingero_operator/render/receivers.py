"""Children of Fleet's receivers: Deployment, Service, HorizontalPodAutoscaler, PodDisruptionBudget.

They take the pushes, which replicas of Fleet judge, and read the same settings file with another role.
"""

from typing import Final, Literal

from ingero_contract import routes
from ingero_operator.api.v1alpha1 import FleetClusterSpec, ReceiversSpec
from ingero_operator.kinds import Manifest
from ingero_operator.render import fleet
from ingero_operator.render.common import (
    HEALTH,
    OTLP_GRPC,
    OTLP_HTTP,
    VITALS,
    Owner,
    Platform,
    confined,
    container,
    disruption_budget,
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

COMPONENT: Final = "receivers"
PORTS: Final = {
    "otlp-grpc": (OTLP_GRPC, "grpc"),
    "otlp-http": (OTLP_HTTP, "http"),
    "vitals": (VITALS, "http"),
    "health": (HEALTH, "http"),
}
PUSHES_PER_SECOND: Final = "ingero_fleet_pushes_per_second"
"""The metric of a pod by which receivers are scaled; an adapter derives it from `ingero_fleet_pushes_total`."""

CONNECTION_AGE: Final = "5m"
"""Age at which a receiver closes a connection, so that a new receiver gets its share of the agents."""

_ROLE: Final = (
    "log.role=receiver",
    *(f"receivers.otlp.protocols.{kind}.max_connection_age={CONNECTION_AGE}" for kind in ("grpc", "http")),
)


def children(
    owner: Owner, spec: FleetClusterSpec, platform: Platform, around: fleet.FleetInputs
) -> list[Manifest | None]:
    """All children of the receivers; none where replicas take the pushes."""
    wanted = spec.fleet.receivers
    if wanted is None:
        return []
    return [
        service_account(owner, COMPONENT),
        service(owner, COMPONENT, PORTS),
        deployment(owner, spec, platform, around),
        autoscaler(owner, wanted) if wanted.autoscaler else None,
        disruption_budget(owner, COMPONENT),
        service_monitor(owner, platform, COMPONENT, ("vitals",), spec.service_monitors),
    ]


def autoscaler(owner: Owner, wanted: ReceiversSpec) -> Manifest:
    """The HorizontalPodAutoscaler, by pushes per second of each pod."""
    target = {"type": "AverageValue", "averageValue": str(wanted.pushes_per_second)}
    body = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": owner.child(COMPONENT)},
        "minReplicas": wanted.min,
        "maxReplicas": wanted.max,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": PUSHES_PER_SECOND}, "target": target}}],
    }
    return manifest(owner, "autoscaling/v2", "HorizontalPodAutoscaler", COMPONENT, COMPONENT, {"spec": body})


def deployment(owner: Owner, spec: FleetClusterSpec, platform: Platform, around: fleet.FleetInputs) -> Manifest:
    """The Deployment. It does not say how many pods there are: the autoscaler does."""
    wanted = spec.fleet.receivers
    assert wanted
    volumes, mounts = fleet.volumes(owner, spec, around)
    settings = [*(f"{item.name}={item.value}" for item in spec.fleet.settings), *_ROLE]
    scheme: Literal["HTTP", "HTTPS"] = "HTTPS" if spec.tls_secret else "HTTP"
    server = container(
        COMPONENT,
        platform.image_of("fleet", spec.version, spec.images.fleet),
        ["serve", "--config", f"{fleet.CONFIG}/fleet.yaml", *(word for item in settings for word in ("--set", item))],
        {name: port for name, (port, _) in PORTS.items()},
        wanted.resources,
        mounts,
        # Its own metrics need no verdicts: while nobody judges, a new receiver is unready, and not restarted.
        startupProbe=probe("/metrics", "vitals", period=1, failures=60),
        readinessProbe=probe(routes.FLEET_HEALTH, "health", period=5, scheme=scheme),
        livenessProbe=probe("/metrics", "vitals", period=10, failures=6),
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
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
        "affinity": fleet.away_from_gpus(),
        "containers": [server],
        "volumes": volumes,
        **placed(spec.fleet.node_selector, spec.fleet.tolerations),
        **pulled(platform, spec.image_pull_secrets),
    }
    special = {
        "progressDeadlineSeconds": 300,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
    }
    version, configured = spec.version or platform.config.version, fleet.config_digest(owner, spec, around)
    return workload(owner, "Deployment", COMPONENT, version, pod, special, configured)
