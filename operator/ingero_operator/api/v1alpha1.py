"""FleetCluster and EchoStore, version v1alpha1: what a user writes, with the defaults filled in memory.

The CRDs are printed from these types (`make generate`). Defaults never reach the schema: what is stored is what was
applied, and `status.effective` shows what it means.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from ingero_operator.api.base import (
    NAME_PATTERN,
    OBJECT_PATTERN,
    ConfigMapKey,
    Confinement,
    Image,
    Interval,
    Label,
    LabelKey,
    Labels,
    Namespace,
    ObjectName,
    Part,
    Peer,
    Percent,
    PullSecrets,
    Resources,
    SecretKey,
    Span,
    Text,
    Toleration,
    rules,
)
from ingero_operator.api.nats import EchoSource, Nats, NatsAccess
from ingero_operator.api.shared_tables import ReadersSpec, TableSpec

LEAST_SIZE: Final = "100Mi"
PAUSED: Final = "ingero.io/paused"
"""Annotation on a resource: the operator leaves its children and its nodes as they are."""


class Mode(StrEnum):
    """How far the operator may go with a confirmed straggler, weakest first."""

    OBSERVE = "Observe"
    ANNOTATE = "Annotate"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_SCHEDULE = "NoSchedule"


class Policy(StrEnum):
    """The least that must vouch for encryption at rest."""

    DECLARED = "Declared"
    PROVIDER_DEFAULT = "ProviderDefault"
    PROVEN = "Proven"


class OnDelete(StrEnum):
    """What becomes of the volume when the store is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class Source(StrEnum):
    """Where agents take their signals from."""

    TRACE = "Trace"
    STUB = "Stub"


class Images(Part):
    """Images that differ from the operator's own choice."""

    fleet: Image | None = None
    """Fleet."""
    agent: Image | None = None
    """Agent, for both DaemonSets."""
    sink: Image | None = None
    """Sink sidecar."""


class Quorum(Part):
    """Fewest nodes for statistics."""

    statistical_min: Annotated[int, Field(ge=2, le=100_000)] = 5
    """Fewest active nodes of a cohort for a threshold."""
    expected_nodes: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Nodes that the cluster should have; 0 takes the most that were seen at once."""
    coverage_percent: Annotated[int, Field(ge=1, le=100)] = 80
    """Reporting nodes, percent of the expected ones, below which coverage counts as low."""


class Threshold(Part):
    """The published rule: median - max(k x 1.4826 x MAD, minBand)."""

    k: Annotated[float, Field(gt=0, le=20)] = 2.0
    """Scaled median absolute deviations below the median."""
    min_band: Annotated[float, Field(ge=0, le=0.5)] = 0.05
    """Smallest distance between median and threshold."""


class Forward(Part):
    """Where Fleet sends what it receives and finds."""

    echo_store: ObjectName | None = None
    """Name of an EchoStore in this namespace."""
    endpoint: (
        Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9.\[\]:-]+:[1-9][0-9]{0,4}$")] | None
    ) = None
    """`host:port` of any OTLP/gRPC receiver, with TLS."""
    token_secret: SecretKey | None = None
    """Bearer token to send."""
    nats: NatsAccess | None = None
    """Publish to the stream that the EchoStore reads (its `spec.source`) instead of sending to its pod; who Fleet is
    there. An empty object suffices where the servers want neither credentials nor TLS."""

    model_config = rules(
        (
            "has(self.echoStore) != has(self.endpoint)",
            "spec.fleet.forward needs either echoStore or endpoint",
            "",
        ),
        ("!has(self.nats) || has(self.echoStore)", "spec.fleet.forward.nats needs echoStore", ".nats"),
        (
            "!has(self.endpoint) || int(self.endpoint.substring(self.endpoint.lastIndexOf(':') + 1)) <= 65535",
            "spec.fleet.forward.endpoint: no port is larger than 65535",
            ".endpoint",
        ),
    )


OWN_FIELDS: Final = {
    "processors.ingero.push_interval": "pushInterval", "processors.ingero.max_nodes": "maxNodes",
    "processors.ingero.quorum.statistical_min": "quorum.statisticalMin",
    "processors.ingero.quorum.coverage_fraction": "quorum.coveragePercent",
    "processors.ingero.threshold.k": "threshold.k", "processors.ingero.threshold.min_band": "threshold.minBand",
    "processors.ingero.quorum.expected_nodes": "quorum.expectedNodes",
    "processors.ingero.detector.snapshot": "snapshots",
    "processors.nccl.actionable": "collectives.actionable", "processors.nccl.share": "collectives.leastShare",
    "processors.nccl.time_tolerance": "collectives.timeTolerance",
    "processors.nccl.topology_file": "collectives.topology",
    "processors.cost.rates_file": "cost.rates", "processors.cost.providers_file": "cost.providers",
    "processors.cost.default_provider": "cost.defaultProvider",
}  # fmt: skip
"""Settings of Fleet that have a field of their own under `spec.fleet`."""


class Setting(Part):
    """A setting of Fleet that has no field of its own."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^processors(\.[a-z0-9_]+)+$")]
    """Its path, such as `processors.ingero.cohort.by`; those of listeners and exporters are the operator's."""
    value: Annotated[str, Field(max_length=512)]
    """Its value as YAML, such as `[workload_type]`."""

    model_config = rules(
        (
            f"!(self.name in [{', '.join(repr(name) for name in OWN_FIELDS)}])",
            "spec.fleet.settings: this one has a field of its own under spec.fleet",
            ".name",
        )
    )


Settings = Annotated[
    tuple[Setting, ...],
    Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
]


class Collectives(Part):
    """Which rank a synchronised job waits for, by the waits that the tracer sees."""

    actionable: bool = False
    """Whether the node of a late rank, or of a throttled GPU that delays the collectives, counts as a straggler, so
    that `spec.taints` decides about it too."""
    least_share: Annotated[float, Field(ge=0, lt=1)] = 0.003
    """Share of time that must be lost to a rank before it is named."""
    time_tolerance: Interval = "1s"
    """How far apart in time the points of one collective may lie where the tracer could not number them."""
    topology: ConfigMapKey | None = None
    """NICs of GPUs and the switches above them, YAML or JSON (docs/collectives.md). With it the condition
    NetworkHealthy names the slow part of the network; no node is tainted for it."""
    topology_labels: Annotated[tuple[LabelKey, ...], Field(max_length=8)] = ()
    """Labels of nodes that name the switches above them, the nearest first, such as
    `network.topology.nvidia.com/leaf`, instead of `topology`. NICs are then not told apart. Not with `log`."""

    model_config = rules(
        (
            "!has(self.topology) || !has(self.topologyLabels) || self.topologyLabels.size() == 0",
            "spec.fleet.collectives: use either topology or topologyLabels",
            ".topologyLabels",
        ),
    )


class Snapshots(Part):
    """A volume for what the detector has learnt. Without one it outlives a restart of the container only, and a new
    pod learns for thirty push intervals before it accuses anybody."""

    size: (
        Annotated[
            str,
            Field(
                max_length=20,
                json_schema_extra={
                    "x-kubernetes-validations": [
                        {
                            "rule": "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
                            "message": "spec.fleet.snapshots.size must be a quantity such as 1Gi",
                        },
                    ]
                },
            ),
        ]
        | None
    ) = None
    """Size of the claim, such as 1Gi (200 bytes a node are used). A pod with a volume is replaced, not rolled."""
    class_name: ObjectName | None = None
    """StorageClass; the cluster's default without it. Cannot be changed once the claim exists."""


class Log(Part):
    """The log that several replicas of Fleet share: each of them applies it, and comes to the same results."""

    nats: Nats | None = None
    """NATS JetStream."""


class CostSpec(Part):
    """What nodes cost. Without any of it list prices count, at the provider that agents and nodes name."""

    rates: ConfigMapKey | None = None
    """Rates by provider and GPU model, YAML, instead of the table that comes with Fleet."""
    providers: ConfigMapKey | None = None
    """Rules that say which nodes run at which provider, YAML; by names of nodes and by networks."""
    default_provider: Label | None = None
    """Provider of nodes that no rule and no agent names, such as `on-premise`; without it the one that the
    `providerID` of every watched Node names, if they agree."""


class Ingress(Part):
    """An Ingress with TLS. Every client needs a token."""

    host: Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_PATTERN)]
    """DNS name by which clients outside of the cluster call."""
    tls_secret: ObjectName
    """Secret of type kubernetes.io/tls with the certificate for that name."""
    class_name: ObjectName | None = None
    """IngressClass; the cluster's default without it."""
    annotations: Annotated[dict[LabelKey, Annotated[str, Field(max_length=1024)]], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """Annotations for its controller, which must state that its backend serves HTTPS, such as
    `nginx.ingress.kubernetes.io/backend-protocol: HTTPS`."""
    namespace: Labels = Field(default={"kubernetes.io/metadata.name": "ingress-nginx"})
    """Labels of the namespace that its controller runs in."""


class ParentRef(Part):
    """A Gateway that the route attaches to; its listener must allow routes of this namespace."""

    name: ObjectName
    """Name of the Gateway."""
    namespace: Namespace | None = None
    """Its namespace; the same one without it."""
    section_name: ObjectName | None = None
    """Name of its listener; all of them without it."""


class Gateway(Part):
    """An HTTPRoute of the Gateway API. Every client needs a token. The Gateway terminates TLS, and must be told by a
    BackendTLSPolicy that the backend serves HTTPS."""

    hostname: Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_PATTERN)]
    """DNS name by which clients outside of the cluster call."""
    parent_refs: Annotated[tuple[ParentRef, ...], Field(min_length=1, max_length=4)]
    """The Gateways."""
    namespace: Annotated[Labels, Field(min_length=1)]
    """Labels of the namespace that the proxies of the Gateway run in."""


class ReceiversSpec(Part):
    """Pods that take the pushes and judge nothing. Agents then push to the Service `NAME-receivers`."""

    min: Annotated[int, Field(ge=1, le=500)] = 2
    """Fewest pods."""
    max: Annotated[int, Field(ge=1, le=500)] = 10
    """Most pods."""
    pushes_per_second: Annotated[int, Field(ge=1, le=20_000)] = 4000
    """Pushes per second of a pod at which another one is added. The metrics API must serve
    `ingero_fleet_pushes_per_second` for pods."""
    autoscaler: bool = True
    """Make a HorizontalPodAutoscaler. Without it nothing but your own autoscaler, such as KEDA, sets the number."""
    resources: Resources = Resources(cpu="500m", memory="256Mi")
    """Resources of the container."""

    model_config = rules(
        (
            "(has(self.min) ? self.min : 2) <= (has(self.max) ? self.max : 10)",
            "spec.fleet.receivers: min is larger than max",
            "",
        ),
    )


class FleetSpec(Confinement):
    """The receiving side."""

    replicas: Annotated[int, Field(ge=1, le=7)] = 1
    """Pods that all take pushes and all know every verdict; more than one need `log`."""
    log: Log = Log()
    """The log that the replicas share."""
    receivers: ReceiversSpec | None = None
    """Pods that only take pushes, as many as those need; without it the replicas take them. They need `log`."""
    push_interval: Interval = "10s"
    """How often agents push; statistics are computed as often."""
    quorum: Quorum = Quorum()
    """Fewest nodes for statistics."""
    threshold: Threshold = Threshold()
    """The rule."""
    max_nodes: Annotated[int, Field(ge=1, le=1_000_000)] = 200_000
    """Nodes kept at most."""
    resources: Resources = Resources(cpu="250m", memory="512Mi")
    """Resources of the container."""
    node_selector: Labels = Field(default_factory=dict)
    """Nodes that Fleet may run on."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Further taints that Fleet may run on, besides our own."""
    peers: Annotated[tuple[Peer, ...], Field(max_length=16)] = ()
    """Pods that may push to Fleet, besides its agents: those of jobs with NCCL Inspector, or with an agent inside."""
    forward: Forward | None = None
    """Where everything is sent onward."""
    snapshots: Snapshots = Snapshots()
    """Where the detector keeps what it has learnt."""
    collectives: Collectives = Collectives()
    """Which rank a synchronised job waits for."""
    cost: CostSpec = CostSpec()
    """What nodes cost."""
    ingress: Ingress | None = None
    """An Ingress for Fleet's page and API; none without it. It needs spec.tlsSecret and spec.tokenSecret. Browsers
    ask for the token as password, with any user."""
    gateway: Gateway | None = None
    """An HTTPRoute instead of an Ingress, with the same needs."""
    settings: Settings = ()
    """Further settings of Fleet's processors, for what has no field here. Fleet checks them: one that it does not
    know keeps the new pod from starting, and the old one goes on."""

    model_config = rules(
        (
            "!has(self.replicas) || self.replicas == 1 || (has(self.log) && has(self.log.nats))",
            "spec.fleet.replicas: more than one need spec.fleet.log.nats",
            ".replicas",
        ),
        (
            "!has(self.receivers) || (has(self.log) && has(self.log.nats))",
            "spec.fleet.receivers need spec.fleet.log.nats",
            ".receivers",
        ),
        (
            "!has(self.log) || !has(self.log.nats) || !has(self.snapshots) || !has(self.snapshots.size)",
            "spec.fleet.snapshots.size: with spec.fleet.log the snapshots are stored with the log",
            ".snapshots",
        ),
        (
            "!has(self.log) || !has(self.log.nats) || !has(self.collectives) || "
            "!has(self.collectives.topologyLabels) || self.collectives.topologyLabels.size() == 0",
            "spec.fleet.collectives.topologyLabels: replicas on one log need equal files: use topology",
            ".collectives",
        ),
        (
            "!has(self.ingress) || !has(self.gateway)",
            "spec.fleet.gateway: use either gateway or ingress",
            ".gateway",
        ),
    )


class Trace(Confinement):
    """The DaemonSet that counts CUDA and NCCL calls in the kernel."""

    sys_admin: bool = False
    """Add SYS_ADMIN, which kernels below 5.8 need."""
    export_interval: Interval = "2s"
    """How often collectives, throttled GPUs and counters are sent to Fleet; a late rank is not named sooner."""
    unconfined: bool = False
    """Run without a seccomp profile, for runtimes whose default refuses bpf(2)."""
    resources: Resources = Resources(cpu="50m", memory="256Mi")
    """Resources of the container."""


class PushSpec(Confinement):
    """The DaemonSet that pushes health to Fleet."""

    resources: Resources = Resources(cpu="50m", memory="128Mi")
    """Resources of the container."""
    sink_resources: Resources = Resources(cpu="10m", memory="64Mi")
    """Resources of the sink sidecar."""


class AgentApiSpec(Part):
    """The listener of the pushing pods that answers questions about a node: `/api/v1/explain`, and MCP at `/mcp`."""

    token_secret: SecretKey
    """Tokens that open it, one a line."""
    tls_secret: ObjectName
    """Secret with `tls.crt` and `tls.key` for the names by which clients call."""
    peers: Annotated[tuple[Peer, ...], Field(max_length=16)] = ()
    """Pods that may reach it; none by default. `kubectl port-forward` needs none."""


class Agents(Part):
    """The two DaemonSets."""

    source: Source = Source.TRACE
    """Trace: both DaemonSets. Stub: fleet-push alone with made-up signals, for trying things out; a scenario in
    /run/ingero/stub.yaml of its pod changes them."""
    node_selector: Annotated[dict[LabelKey, Label], Field(min_length=1, max_length=16)] = Field(
        default={"nvidia.com/gpu.present": "true"}
    )
    """Nodes to watch."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Further taints to tolerate, besides those of GPUs and our own."""
    workload_type: Label = "unknown"
    """What runs here; nodes are compared only within it."""
    job_id: Label = ""
    """The job; nodes are compared only within it."""
    world_size: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Nodes of the job; 0 when it is not distributed. Above 1 the cost of waiting for its slowest node is counted,
    and the quorum expects as many nodes unless spec.fleet.quorum.expectedNodes is set."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass that gives pods access to the GPU's management library."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""
    max_unavailable_percent: Annotated[int, Field(ge=1, le=100)] = 10
    """Agents that a rollout may take away at once."""
    trace: Trace = Trace()
    """The tracing DaemonSet."""
    push: PushSpec = PushSpec()
    """The pushing DaemonSet."""
    api: AgentApiSpec | None = None
    """Answers about each node to humans and their tools; without it only in the pod, by `kubectl exec`."""


class ServiceMonitors(Part):
    """ServiceMonitors of the Prometheus operator, made where its CRD exists."""

    token_secret: SecretKey | None = None
    """Secret with the one bearer token that Prometheus sends to Echo; without it that of spec.tokenSecret, which must
    then hold no more than a token. Fleet's pages need none."""

    enabled: bool = True
    """Make them."""
    labels: Labels = Field(default_factory=dict)
    """Labels by which Prometheus selects them."""
    interval: Interval = "30s"
    """How often to scrape."""


class Network(Part):
    """NetworkPolicies for the pods of this resource."""

    enabled: bool = True
    """Make them."""
    monitoring_namespace: Labels = Field(default={"kubernetes.io/metadata.name": "monitoring"})
    """Labels of the namespace that Prometheus scrapes from."""


class Budget(Part):
    """How many nodes may be tainted at once: the smaller of two limits."""

    max_nodes: Annotated[int, Field(ge=0, le=1000)] = 2
    """Nodes."""
    max_percent: Annotated[int, Field(ge=0, le=99)] = 10
    """Percent of the eligible GPU nodes, rounded down."""


class Taints(Part):
    """What may be done with a straggler, and the limits of it."""

    mode: Mode = Mode.OBSERVE
    """Observe, Annotate, PreferNoSchedule or NoSchedule."""
    condition: bool = False
    """Write the condition `ingero.io/Straggler` to every watched GPU node, in every mode."""
    budget: Budget = Budget()
    """How many nodes may be tainted at once."""
    confirm_for: Span = "10m"
    """How long a verdict must have lasted."""
    confirm_windows: Annotated[int, Field(ge=1, le=1000)] = 6
    """Consecutive statistics that must have confirmed it."""
    recover_for: Span = "10m"
    """How long a node must have been active and healthy before it is released."""
    min_healthy_percent: Percent = 80
    """Eligible nodes, percent, that must stay ready, schedulable and without this taint."""
    interval: Span = "5m"
    """Shortest time between two new taints."""
    storm_cooldown: Span = "15m"
    """Pause after too many candidates at once, which point to a common cause."""
    ttl: Span = "24h"
    """How long a taint lasts without fresh evidence."""
    probation: Span = "6h"
    """How long NoSchedule is followed by PreferNoSchedule when its time is over."""
    quiet: Span = "30m"
    """Pause for a node after it was released."""
    max_per_day: Annotated[int, Field(ge=1, le=8)] = 3
    """Most taints of one node in 24 hours."""
    hands_off: Span = "24h"
    """Pause for a node whose taint another writer removed."""
    min_node_age: Span = "30m"
    """Age below which a node is left alone."""
    slow_from_start: bool = False
    """Also taint nodes that were slower than their peers from the start. Rates alone cannot tell a slow GPU from a
    node with another role in the job."""
    domain_label: LabelKey = "nvidia.com/gpu.clique"
    """Label of the failure domain in which at most one node is tainted."""
    pause_requests: Annotated[tuple[Text, ...], Field(max_length=16)] = ()
    """Who asks for a pause and why; while there is one, no node is tainted."""


class FleetClusterSpec(Part):
    """One GPU cluster, or a part of one, whose nodes are compared with each other."""

    cluster_id: Annotated[str, Field(min_length=1, max_length=63, pattern=NAME_PATTERN)]
    """Name of the cluster in every push. Cannot be changed."""
    version: Annotated[str, Field(min_length=1, max_length=63, pattern=NAME_PATTERN)] | None = None
    """Version of the components; the operator's own without it."""
    images: Images = Images()
    """Images that differ from the operator's own choice, from repositories that the operator allows."""
    image_pull_secrets: PullSecrets = ()
    """Secrets for the registry, besides those that the operator was given."""
    token_secret: SecretKey | None = None
    """Secret with the bearer token of Fleet; without one Fleet is open to the pods that the policies admit."""
    tls_secret: ObjectName | None = None
    """Secret of type kubernetes.io/tls, with ca.crt, for Fleet's listeners. The certificate must name
    `NAME-fleet.NAMESPACE.svc`, and with spec.fleet.receivers also `NAME-receivers.NAMESPACE.svc`."""
    fleet: FleetSpec = FleetSpec()
    """The receiving side."""
    agents: Agents = Agents()
    """The agents."""
    taints: Taints = Taints()
    """What may be done with a straggler."""
    network: Network = Network()
    """NetworkPolicies."""
    service_monitors: ServiceMonitors = ServiceMonitors()
    """ServiceMonitors."""

    model_config = rules(
        ("self.clusterId == oldSelf.clusterId", "spec.clusterId cannot be changed", ".clusterId"),
        (
            "!has(self.fleet) || !has(self.fleet.ingress) || (has(self.tlsSecret) && has(self.tokenSecret))",
            "spec.fleet.ingress needs spec.tlsSecret and spec.tokenSecret",
            ".fleet.ingress",
        ),
        (
            "!has(self.fleet) || !has(self.fleet.gateway) || (has(self.tlsSecret) && has(self.tokenSecret))",
            "spec.fleet.gateway needs spec.tlsSecret and spec.tokenSecret",
            ".fleet.gateway",
        ),
    )


class Encryption(Part):
    """The gate before the volume."""

    policy: Policy = Policy.PROVEN
    """Proven, ProviderDefault or Declared."""


class Storage(Part):
    """The volume of a store."""

    class_name: ObjectName | None = None
    """StorageClass; the cluster's default without it. Fixed once a claim exists."""
    size: Annotated[str, Field(min_length=1, max_length=20)] = "50Gi"
    """Size; it may only grow."""
    on_delete: OnDelete = OnDelete.RETAIN
    """What becomes of the volume when the store is deleted."""
    encryption: Encryption = Encryption()
    """The gate before the volume."""

    model_config = rules(
        (
            "!has(self.size) || isQuantity(self.size)",
            "spec.storage.size must be a quantity such as 50Gi",
            ".size",
        ),
        (
            "!has(self.size) || !isQuantity(self.size) || "
            f"quantity(self.size).compareTo(quantity('{LEAST_SIZE}')) >= 0",
            f"spec.storage.size must be at least {LEAST_SIZE}",
            ".size",
        ),
        (
            "!has(oldSelf.size) || (has(self.size) && isQuantity(self.size) && isQuantity(oldSelf.size) && "
            "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0)",
            "spec.storage.size can only grow",
            "",
        ),
    )


class EchoStoreSpec(Confinement):
    """One event store on an encrypted volume."""

    version: Annotated[str, Field(min_length=1, max_length=63, pattern=NAME_PATTERN)] | None = None
    """Version of Echo; the operator's own without it."""
    image: Image | None = None
    """Image that differs from the operator's own choice, from a repository that the operator allows."""
    image_pull_secrets: PullSecrets = ()
    """Secrets for the registry, besides those that the operator was given."""
    retention: Span = "30d"
    """How long events are kept."""
    token_secret: SecretKey
    """Secret with the bearer tokens, one a line."""
    tls_secret: ObjectName
    """Secret of type kubernetes.io/tls, with ca.crt: Echo accepts no plain text over a network. The certificate
    must name `NAME-echo.NAMESPACE.svc`, with spec.readers also `NAME-readers.NAMESPACE.svc`, and with spec.shards
    also `NAME-echo-1.NAMESPACE.svc` and so on."""
    storage: Storage = Storage()
    """The volume."""
    table: TableSpec | None = None
    """Shared tables of Apache Iceberg that events are sealed into; without it all events stay on the volume."""
    readers: ReadersSpec | None = None
    """Pods that answer from the shared tables; they need `table`."""
    source: EchoSource | None = None
    """What Echo reads by itself; it needs `table`."""
    shards: Annotated[int, Field(ge=1, le=16)] = 1
    """Writers, each with a volume; every cluster's events go to one of them. More than one need `table` and
    `readers`, which answer from all. It can only grow."""
    resources: Resources = Resources(cpu="250m", memory="1Gi")
    """Resources of the container."""
    node_selector: Labels = Field(default_factory=dict)
    """Nodes that Echo may run on."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Further taints that Echo may run on, besides our own."""
    peers: Annotated[tuple[Peer, ...], Field(max_length=16)] = ()
    """Pods that may ask, besides every Fleet of this namespace."""
    ingress: Ingress | None = None
    """An Ingress for the API; none without it."""
    gateway: Gateway | None = None
    """An HTTPRoute for the API instead of an Ingress."""
    network: Network = Network()
    """NetworkPolicies."""
    service_monitors: ServiceMonitors = ServiceMonitors()
    """ServiceMonitors."""

    model_config = rules(
        ("!has(self.ingress) || !has(self.gateway)", "spec.gateway: use either gateway or ingress", ".gateway"),
        ("!has(self.readers) || has(self.table)", "spec.readers need spec.table", ".readers"),
        ("!has(self.source) || has(self.table)", "spec.source needs spec.table", ".source"),
        (
            "!has(self.shards) || self.shards == 1 || (has(self.table) && has(self.readers))",
            "spec.shards: more than one need spec.table and spec.readers",
            ".shards",
        ),
        (
            "!has(oldSelf.source) || has(self.source)",
            "spec.source cannot be removed: what is in the stream would not be read",
            "",
        ),
        (
            "!has(oldSelf.shards) || (has(self.shards) ? self.shards : 1) >= oldSelf.shards",
            "spec.shards can only grow: each shard may have events that are not sealed",
            "",
        ),
    )
