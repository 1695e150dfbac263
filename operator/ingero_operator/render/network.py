"""NetworkPolicies that allow only the traffic that each pod needs."""

from ingero_operator.api.base import Peer
from ingero_operator.api.shared_tables import Destination
from ingero_operator.api.v1alpha1 import EchoStoreSpec, FleetClusterSpec, Gateway, Ingress, Network, Source
from ingero_operator.kinds import Manifest
from ingero_operator.render import agents, echo, fleet, readers, receivers
from ingero_operator.render.common import (
    AGENT_API_PORT,
    API,
    FINDINGS,
    HEALTH,
    NAME,
    OTLP_GRPC,
    OTLP_HTTP,
    PAGE,
    PUSH_PORT,
    SINK_PORT,
    TRACE_PORT,
    VITALS,
    Owner,
    Platform,
    manifest,
    selector,
)
from ingero_operator.render.shards import writer

NAMESPACE_NAME = "kubernetes.io/metadata.name"


def _ports(*numbers: int) -> list[Manifest]:
    return [{"port": number, "protocol": "TCP"} for number in numbers]


def _pods(labels: dict[str, str]) -> Manifest:
    return {"podSelector": {"matchLabels": labels}}


def _peer(peer: Peer) -> Manifest:
    source = _pods(dict(peer.labels))
    if peer.namespace:
        source["namespaceSelector"] = {"matchLabels": {NAMESPACE_NAME: peer.namespace}}
    return source


def _monitoring(network: Network) -> Manifest:
    return {"namespaceSelector": {"matchLabels": dict(network.monitoring_namespace)}}


def _operator(platform: Platform) -> Manifest:
    return {
        "namespaceSelector": {"matchLabels": {NAMESPACE_NAME: platform.config.namespace}},
        "podSelector": {"matchLabels": {NAME: "ingero-operator"}},
    }


def _from_outside(wanted: Ingress | Gateway | None, *ports: int) -> list[Manifest]:
    """The controller of an Ingress, or the proxies of a Gateway, where there is one."""
    if wanted is None:
        return []
    return [{"from": [{"namespaceSelector": {"matchLabels": dict(wanted.namespace)}}], "ports": _ports(*ports)}]


def _dns() -> Manifest:
    return {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


def _policy(owner: Owner, component: str, ingress: list[Manifest], egress: list[Manifest]) -> Manifest:
    spec = {
        "podSelector": {"matchLabels": selector(owner, component)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return manifest(owner, "networking.k8s.io/v1", "NetworkPolicy", component, component, {"spec": spec})


def of_fleet_cluster(
    owner: Owner, spec: FleetClusterSpec, platform: Platform, around: fleet.FleetInputs
) -> list[Manifest | None]:
    """Agents to Fleet, the operator to its API, Prometheus to metrics, Fleet to its exports."""
    if not spec.network.enabled:
        return []
    tracing, jobs = spec.agents.source is Source.TRACE, spec.fleet.peers
    onward: list[Manifest] = []
    if spec.fleet.forward:
        forward = spec.fleet.forward
        published = fleet.publishes_to(forward, around)
        if published:
            onward = [{"ports": _ports(*published.ports)}, _dns()]
        elif forward.echo_store:
            target = {NAME: f"ingero-{writer(around.echo_shard)}", "ingero.io/owner": forward.echo_store}
            onward = [{"to": [_pods(target)], "ports": _ports(OTLP_GRPC)}, _dns()]
        else:
            onward = [{"ports": _ports(int(str(forward.endpoint).rsplit(":", 1)[1]))}, _dns()]
    if spec.fleet.log.nats:
        onward = [*onward, {"ports": _ports(*spec.fleet.log.nats.ports)}, *([] if onward else [_dns()])]
    pushes = [
        {"from": [_pods(selector(owner, agents.PUSH))], "ports": _ports(OTLP_GRPC, OTLP_HTTP, API)},
        *([{"from": [_pods(selector(owner, agents.TRACE))], "ports": _ports(OTLP_HTTP)}] if tracing else []),
        *([{"from": [_peer(peer) for peer in jobs], "ports": _ports(OTLP_GRPC, OTLP_HTTP)}] if jobs else []),
    ]
    to_fleet = [_pods(selector(owner, fleet.COMPONENT))]
    if spec.fleet.receivers:
        to_fleet.append(_pods(selector(owner, receivers.COMPONENT)))
    return [
        _policy(
            owner,
            fleet.COMPONENT,
            [
                *pushes,
                {"from": [_operator(platform)], "ports": _ports(OTLP_HTTP, API)},  # taint events and polls
                {"from": [_monitoring(spec.network)], "ports": _ports(FINDINGS, VITALS, HEALTH)},
                *_from_outside(spec.fleet.ingress or spec.fleet.gateway, API, PAGE),
            ],
            onward,
        ),
        _policy(
            owner,
            receivers.COMPONENT,
            [*pushes, {"from": [_monitoring(spec.network)], "ports": _ports(VITALS, HEALTH)}],
            onward,
        )
        if spec.fleet.receivers
        else None,
        _policy(
            owner,
            agents.TRACE,
            [{"from": [_monitoring(spec.network), _operator(platform)], "ports": _ports(TRACE_PORT)}],
            [{"to": to_fleet, "ports": _ports(OTLP_HTTP)}, _dns()],
        )
        if tracing
        else None,
        _policy(
            owner,
            agents.PUSH,
            [
                {"from": [_monitoring(spec.network)], "ports": _ports(SINK_PORT, PUSH_PORT)},
                *(
                    {"from": [_peer(peer)], "ports": _ports(AGENT_API_PORT)}
                    for peer in (spec.agents.api.peers if spec.agents.api else ())
                ),
            ],
            [
                {"to": to_fleet, "ports": _ports(OTLP_HTTP, API)},
                {"to": [{"ipBlock": {"cidr": "169.254.169.254/32"}}], "ports": _ports(80)},
                _dns(),
            ],
        ),
    ]


def of_echo_store(
    owner: Owner, spec: EchoStoreSpec, platform: Platform, around: echo.EchoInputs
) -> list[Manifest | None]:
    """Every Fleet of the namespace, the named peers and the operator to Echo; no egress but to the shared tables.

    Peers and Prometheus reach the readers too, and the readers reach the writers.
    """
    if not spec.network.enabled:
        return []
    table = around.table(spec)
    read = table is not None and spec.readers is not None
    outside = _from_outside(spec.ingress or spec.gateway, API)
    outside_reads = around.answering(spec) == readers.COMPONENT
    peers: list[Manifest] = [{"from": [_peer(peer)], "ports": _ports(OTLP_GRPC, API)} for peer in spec.peers]
    ingress = [
        {"from": [_pods({NAME: name}) for name in ("ingero-fleet", "ingero-receivers")], "ports": _ports(OTLP_GRPC)},
        *peers,
        *([{"from": [_pods(selector(owner, readers.COMPONENT))], "ports": _ports(API)}] if read else []),
        *([] if outside_reads else outside),
        {"from": [_operator(platform)], "ports": _ports(API)},
        {"from": [_monitoring(spec.network)], "ports": _ports(API)},
    ]
    onward = [*map(_destination, table.egress), _dns()] if table else []
    source = around.source(spec)
    to_stream = [{"ports": _ports(*source.ports)}] if source else []
    asked = [*({"from": [_peer(peer)], "ports": _ports(API)} for peer in spec.peers)]
    to_writers = {"to": [_pods(selector(owner, writer(index))) for index in around.volumes], "ports": _ports(API)}
    return [
        *(_policy(owner, writer(index), ingress, [*onward, *to_stream]) for index in around.volumes),
        _policy(
            owner,
            readers.COMPONENT,
            [
                *asked,
                *(outside if outside_reads else []),
                {"from": [_operator(platform)], "ports": _ports(API)},  # why a reader is not ready
                {"from": [_monitoring(spec.network)], "ports": _ports(API)},
            ],
            [to_writers, *onward],
        )
        if read
        else None,
    ]


def _destination(wanted: Destination) -> Manifest:
    rule: Manifest = {"ports": _ports(wanted.port)}
    if wanted.cidr:
        rule["to"] = [{"ipBlock": {"cidr": wanted.cidr}}]
    elif wanted.peer:
        rule["to"] = [_peer(wanted.peer)]
    return rule
