"""A Node as the rails see it: the few facts that count, and our own mark on it. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ingero_contract.kubernetes import EXCLUDE_LABEL, STRAGGLER_TAINT
from ingero_operator.api.v1alpha1 import Mode

Manifest = dict[str, Any]

GPU: Final = "nvidia.com/gpu"
ZONE: Final = "topology.kubernetes.io/zone"
CONTROL_PLANE: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
DISRUPTION_TAINTS: Final = (
    "ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler", "karpenter.sh/disrupted",
    "karpenter.sh/disruption", "node.cloudprovider.kubernetes.io/shutdown",
)  # fmt: skip
REMEDIATION_ANNOTATIONS: Final = (
    "remediation.medik8s.io/node-remediation", "nvsentinel.nvidia.com/quarantine", "quarantineHealthEvent",
    "draino/drain-retry", "weave.works/kured-node-lock", "cluster.x-k8s.io/remediate-machine",
)  # fmt: skip
EFFECTS: Final = {
    Mode.OBSERVE: "", Mode.ANNOTATE: "", Mode.PREFER_NO_SCHEDULE: "PreferNoSchedule", Mode.NO_SCHEDULE: "NoSchedule"
}  # fmt: skip
STRENGTH: Final = {"": 0, "PreferNoSchedule": 1, "NoSchedule": 2}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What we wrote on a node: evidence in an annotation, and a taint unless the effect is empty."""

    owner: str
    """Uid of the FleetCluster."""
    verdict: str
    """Eight hexadecimal digits; also the taint's value."""
    effect: str
    """`NoSchedule`, `PreferNoSchedule` or nothing."""
    since: float
    expires: float
    node_uid: str
    probation: bool = False
    score: float | None = None
    threshold: float | None = None
    severity: float | None = None
    windows: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node."""

    name: str
    uid: str
    provider_id: str = ""
    created: float = 0.0
    version: str = field(default="", compare=False)
    """Of the object; two views are equal when the facts are."""
    labels: Mapping[str, str]
    gpu: bool = True
    control_plane: bool = False
    ready: bool = True
    cordoned: bool = False
    deleting: bool = False
    disrupted: str = ""
    """Key of a taint by which an autoscaler takes the node away."""
    remediated: str = ""
    """Annotation by which another controller works on it."""
    mark: Mark | None = None
    foreign: bool = False
    """Our key is on it, but not by us as we know ourselves."""

    @property
    def excluded(self) -> bool:
        """Whether people asked us to leave it alone."""
        return EXCLUDE_LABEL in self.labels


def moment(text: object) -> float:
    """Seconds since the epoch of an RFC 3339 time; 0 for none."""
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def view(body: Manifest) -> NodeView:
    """The facts of a Node object."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    taints = spec.get("taints") or []
    keys = [str(taint.get("key")) for taint in taints]
    ours = [taint for taint in taints if taint.get("key") == STRAGGLER_TAINT]
    mark = read_mark(annotations.get(STRAGGLER_TAINT), ours)
    ready = any(
        item.get("type") == "Ready" and item.get("status") == "True" for item in status.get("conditions") or []
    )
    capacity = str((status.get("capacity") or {}).get(GPU, "0"))
    return NodeView(
        name=metadata["name"],
        uid=metadata["uid"],
        provider_id=spec.get("providerID", ""),
        created=moment(metadata.get("creationTimestamp")),
        version=str(metadata.get("resourceVersion", "")),
        labels=labels,
        gpu=capacity not in ("", "0") or labels.get("nvidia.com/gpu.present") == "true",
        control_plane=any(key in labels or key in keys for key in CONTROL_PLANE),
        ready=ready,
        cordoned=bool(spec.get("unschedulable")),
        deleting="deletionTimestamp" in metadata,
        disrupted=next((key for key in keys if key in DISRUPTION_TAINTS), ""),
        remediated=next((key for key in REMEDIATION_ANNOTATIONS if key in annotations), ""),
        mark=mark,
        foreign=mark is None and (bool(ours) or STRAGGLER_TAINT in annotations),
    )


def read_mark(text: str | None, taints: list[Manifest]) -> Mark | None:
    """Our mark, if annotation and taint belong together; `None` for anything else, which is then not ours."""
    if text is None or len(taints) > 1:
        return None
    try:
        tree = json.loads(text)
        effect = ""
        if taints:
            effect = str(taints[0].get("effect"))
            if effect not in ("NoSchedule", "PreferNoSchedule") or taints[0].get("value") != tree["verdict"]:
                return None
        return Mark(
            owner=str(tree["owner"]),
            verdict=str(tree["verdict"]),
            effect=effect,
            since=moment(tree["since"]),
            expires=moment(tree["expires"]),
            node_uid=str(tree["node"]),
            probation=tree.get("probation") is True,
            score=tree.get("score"),
            threshold=tree.get("threshold"),
            severity=tree.get("severity"),
            windows=int(tree.get("windows", 0)),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
