"""The status of both resources as types: what `kubectl get` shows and what survives a restart of the operator."""

from typing import Annotated, Final, Literal

from pydantic import Field

from ingero_operator.api.base import Part

Short = Annotated[str, Field(max_length=256)]
Sentence = Annotated[str, Field(max_length=4096)]
Moment = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]
MAX_NAMED: Final = 20
"""Names of nodes in one list."""
Effective = Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=256)]


class StatusCondition(Part):
    """A standard condition."""

    type: Annotated[str, Field(max_length=63)]
    """What the condition is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=127)]
    """Why, in one word."""
    message: Sentence = ""
    """Why, in a sentence with the fix."""
    observed_generation: int | None = None
    """Generation of the spec that was reconciled."""
    last_transition_time: Moment | None = None
    """When the status last changed."""


Conditions = Annotated[
    tuple[StatusCondition, ...],
    Field(max_length=20, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
]


class Workload(Part):
    """Pods of a kind, ready out of wanted."""

    ready: Short | None = None
    """Ready/wanted."""
    threshold: Short | None = None
    """Threshold that Fleet published last."""
    nodes: Short | None = None
    """Nodes that Fleet compares."""


class SharedLog(Part):
    """The log that Fleet's replicas share, as they report it."""

    state: Short | None = None
    """`ok`, `away`, `catching up`, `reseeding` or `unknown`."""
    answering: Short | None = None
    """Replicas that answer/wanted."""
    lag: int | None = None
    """Most messages that a replica has yet to apply."""
    state_tick: int | None = None
    """Latest tick whose state was hashed."""
    state_hash: Short | None = None
    """Hash of the state after it."""
    rules: Short | None = None
    """What the replicas judge by; several while an upgrade is in progress."""


class Stragglers(Part):
    """Stragglers at present."""

    confirmed: int = 0
    """Accused long enough to act on."""
    accused: int = 0
    """Below the threshold now."""
    nodes: Annotated[tuple[Short, ...], Field(max_length=MAX_NAMED)] = ()
    """Names of the accused, the first of them in order."""


class LateRank(Part):
    """A rank that the collectives of its job wait for, or a node whose throttled GPU delays them."""

    node: Short
    """Name of the node."""
    rank: int | None = None
    """Rank in the communicator; absent where a GPU of several is meant."""
    gpu: Short | None = None
    """GPU of the node, where the rank is known by it only, as from NCCL Inspector."""
    kind: Short | None = None
    """`late_rank` or `gpu_throttled`."""
    communicator: Short | None = None
    """Hash of the communicator, as in NCCL's logs."""
    pod: Short | None = None
    """Pod of the rank, where it is known."""
    job: Short | None = None
    """Job of the rank, where it is known."""
    since: Moment | None = None
    """Since when it is named."""
    lost_percent: float | None = None
    """Share of the job's time that is lost to it, percent, to one digit."""


class CostStatus(Part):
    """What the jobs of the cluster cost now, by the rates that Fleet knows."""

    currency: Short | None = None
    """Currency of the amounts."""
    per_hour: Short | None = None
    """What all jobs cost an hour."""
    waiting_per_hour: Short | None = None
    """What of it is spent waiting for stragglers, to two digits."""
    gpus_without_rate: int | None = None
    """GPUs that no rate is known for, and that are not in the sums."""


class AccusedNodeStatus(Part):
    """One accused node, and what prevents its taint or would be done."""

    node: Short
    """Name of the node."""
    check: Short
    """The policy check that prevents its taint, or `Next`."""
    message: Short = ""
    """A sentence."""


class NodeRecord(Part):
    """State of one node that survives restarts."""

    node: Short
    """Name of the node."""
    uid: Short
    """Its uid: another machine of the same name is another node."""
    verdict: Short | None = None
    """Identity of the taint that is on the node, while it is."""
    effect: Short | None = None
    """What is on the node."""
    releasing: Short | None = None
    """Why the taint is being removed, noted before it is."""
    tainted: Annotated[tuple[Moment, ...], Field(max_length=8)] = ()
    """When it was tainted in the last 24 hours."""
    released: Moment | None = None
    """When it was last released."""
    hands_off_until: Moment | None = None
    """Until when it is not tainted because another writer removed the taint."""
    overridden_by: Short | None = None
    """Who removed it."""


class TaintStatus(Part):
    """What is being done with stragglers."""

    mode: Short | None = None
    """Mode in force."""
    used: Short | None = None
    """Tainted nodes/budget."""
    last_taint_time: Moment | None = None
    """When a node was last tainted."""
    storm_until: Moment | None = None
    """Until when nothing is tainted after a storm."""
    last_action: Short | None = None
    """The latest action."""
    preview: Annotated[tuple[AccusedNodeStatus, ...], Field(max_length=20)] = ()
    """What would be done next, and which policy check prevents the rest."""
    more: int | None = None
    """Rows left out of the preview."""
    nodes: Annotated[tuple[NodeRecord, ...], Field(max_length=64)] = ()
    """State of nodes that survives restarts."""
    history: Annotated[tuple[Short, ...], Field(max_length=20)] = ()
    """The latest actions, newest first."""


class ResourceStatus(Part):
    """What the status of every resource has."""

    observed_generation: int | None = None
    """Generation of the spec that this status is about."""
    summary: Short | None = None
    """Reason of the worst condition, or Healthy."""
    message: Sentence | None = None
    """Its sentence."""
    version: Short | None = None
    """Version of the components."""
    conditions: Conditions = ()
    """Conditions."""
    effective: Effective | None = None
    """The spec with every default filled in."""


class FleetClusterStatus(ResourceStatus):
    """What the operator knows about a FleetCluster."""

    fleet: Workload | None = None
    """Fleet."""
    receivers: Workload | None = None
    """Pods that only take pushes; absent without `spec.fleet.receivers`."""
    log: SharedLog | None = None
    """The log that Fleet's replicas share; absent without `spec.fleet.log`."""
    agents: Workload | None = None
    """Agents."""
    stragglers: Stragglers | None = None
    """Stragglers."""
    late_ranks: Annotated[tuple[LateRank, ...], Field(max_length=20)] = ()
    """Ranks that collectives wait for, the costliest first."""
    cost: CostStatus | None = None
    """What jobs cost, where Fleet knows a rate."""
    taints: TaintStatus | None = None
    """Taints."""


class EncryptionStatus(Part):
    """What vouches for encryption at rest. Recorded before the claim exists; never raised afterwards."""

    verdict: Short | None = None
    """Proven, ProviderDefault, Declared, Refused or Pending."""
    level: Short | None = None
    """Level of the class when it was judged."""
    class_name: Short | None = None
    """Class that was judged."""
    class_uid: Short | None = Field(default=None, alias="classUID")
    """Its uid."""
    key: Short | None = None
    """Key that the class names."""
    evidence: Sentence | None = None
    """What the class declared."""
    volume: Short | None = None
    """Volume that was proven."""
    volume_uid: Short | None = Field(default=None, alias="volumeUID")
    """Its uid."""
    claim_uid: Short | None = Field(default=None, alias="claimUID")
    """Claim that the volume was proven for."""


class StorageStatus(Part):
    """The claim."""

    class_name: Short | None = None
    """Class that the claim names."""
    claim_uid: Short | None = Field(default=None, alias="claimUID")
    """Uid of the claim; the class is fixed from now on."""
    capacity: Short | None = None
    """Size of the volume."""
    on_delete: Short | None = None
    """What would become of the claim if the store were deleted now."""
    used_band: Short | None = None
    """How full it is, in steps of ten percent."""


class ShardStatus(Part):
    """A writer after the first one."""

    shard: int
    """Its number."""
    encryption: EncryptionStatus | None = None
    """What vouches for encryption at rest."""
    storage: StorageStatus | None = None
    """Its claim."""


class SealingStatus(Part):
    """How far events are sealed into the shared tables; times in whole minutes."""

    sealed_until: Moment | None = None
    """Until when everything that arrived is in the tables; with several shards of the one that is furthest behind."""
    lag_seconds: int | None = None
    """Seconds from then to the latest poll."""
    files: int | None = None
    """Data files that the running writers have added."""


class EchoStoreStatus(ResourceStatus):
    """What the operator knows about an EchoStore."""

    encryption: EncryptionStatus | None = None
    """What vouches for encryption at rest."""
    storage: StorageStatus | None = None
    """The claim."""
    sealing: SealingStatus | None = None
    """How far events are sealed; absent without `spec.table`, and while Echo cannot be polled."""
    shards: Annotated[tuple[ShardStatus, ...], Field(max_length=16)] = ()
    """The writers after the first one, with `spec.shards`."""
    routed_shards: int | None = None
    """Writers that clusters are distributed over: `spec.shards`, once all of them are available."""
    endpoint: Short | None = None
    """Where to ask."""
