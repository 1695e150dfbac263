"""A Node as the policy checks see it: the few facts that matter, and the operator's taint on it. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from ingero_contract.kubernetes import EXCLUDE_LABEL, STRAGGLER_CONDITION, STRAGGLER_TAINT
from ingero_operator.api.v1alpha1 import Mode
from ingero_operator.kinds import Manifest

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
_VERDICT: Final = re.compile("[0-9a-f]{8}")
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
STRENGTH: Final = {"": 0, "PreferNoSchedule": 1, "NoSchedule": 2}


@dataclass(frozen=True, kw_only=True)
class StragglerTaint:
    """What the operator wrote to a node: evidence in an annotation, and a taint unless the effect is empty."""

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
    kind: str = ""
    windows: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeCondition:
    """The condition `ingero.io/Straggler` on a node, without its message."""

    status: str
    reason: str
    since: str
    """Time of the last transition, as it is stored."""


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node."""

    name: str
    uid: str
    provider_id: str = ""
    created: float = 0.0
    version: str = field(default="", compare=False)
    """resourceVersion of the object; not compared, so that two views with the same facts are equal."""
    labels: Mapping[str, str]
    gpu: bool = True
    control_plane: bool = False
    ready: bool = True
    cordoned: bool = False
    deleting: bool = False
    disrupted: str = ""
    """Key of a taint by which an autoscaler announces the removal of the node."""
    remediated: str = ""
    """Annotation of another controller that is remediating the node."""
    taint: StragglerTaint | None = None
    strays: frozenset[str] = frozenset()
    """Values of taints with our key but without our annotation: set by a user, or the rest of a taint of ours."""
    condition: NodeCondition | None = None
    foreign: bool = False
    """Whether our key is on the node, without evidence that the operator set it."""

    @property
    def excluded(self) -> bool:
        """Whether a user excluded the node."""
        return EXCLUDE_LABEL in self.labels


def moment(text: object) -> float:
    """An RFC 3339 time as seconds since the epoch, within those that can be written again; 0 for none."""
    if not text:
        return 0.0
    try:
        return min(max(datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp(), 0.0), _LATEST)
    except (ValueError, OverflowError):
        return 0.0


def node_view(body: Manifest) -> NodeView:
    """The facts of a Node object."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    taints = spec.get("taints") or []
    keys = [str(entry.get("key")) for entry in taints]
    ours = [entry for entry in taints if entry.get("key") == STRAGGLER_TAINT]
    taint = read_taint(annotations.get(STRAGGLER_TAINT), ours)
    verdict = taint.verdict if taint else None
    strays = frozenset(str(entry.get("value", "")) for entry in ours if not belongs(entry, verdict))
    conditions = {item.get("type"): item for item in status.get("conditions") or []}
    ready = conditions.get("Ready", {}).get("status") == "True"
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
        taint=taint,
        strays=strays,
        condition=_condition(conditions.get(STRAGGLER_CONDITION)),
        foreign=bool(strays) or (taint is None and STRAGGLER_TAINT in annotations),
    )


def _condition(found: Manifest | None) -> NodeCondition | None:
    if found is None:
        return None
    return NodeCondition(
        status=str(found.get("status")),
        reason=str(found.get("reason", "")),
        since=str(found.get("lastTransitionTime") or ""),
    )


def belongs(entry: Manifest, verdict: str | None) -> bool:
    """Whether a taint of our key is the one of a verdict. Any other taint of that key is not ours."""
    effects = (EFFECTS[Mode.NO_SCHEDULE], EFFECTS[Mode.PREFER_NO_SCHEDULE])
    return verdict is not None and entry.get("value") == verdict and entry.get("effect") in effects


def read_taint(text: str | None, taints: list[Manifest]) -> StragglerTaint | None:
    """Our taint: the annotation and the taint that belongs to it; `None` when the annotation is not ours."""
    if text is None:
        return None
    try:
        tree = json.loads(text)
        verdict = str(tree["verdict"])
        if not _VERDICT.fullmatch(verdict):
            return None
        effects = [str(entry["effect"]) for entry in taints if belongs(entry, verdict)]
        return StragglerTaint(
            owner=str(tree["owner"]),
            verdict=verdict,
            effect=max(effects, key=STRENGTH.__getitem__, default=""),
            since=moment(tree["since"]),
            expires=moment(tree["expires"]),
            node_uid=str(tree["node"]),
            probation=tree.get("probation") is True,
            score=_number(tree.get("score")),
            threshold=_number(tree.get("threshold")),
            severity=_number(tree.get("severity")),
            kind=str(tree.get("kind", "")),
            windows=int(tree.get("windows", 0)),
        )
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def remover(managed: list[Manifest], ours: str) -> str | None:
    """The other manager that last wrote a node's taints, if known: a write of the list makes its writer the owner.

    A removal of the annotation, or of the last taint, leaves no owner.
    """
    found = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in managed
        if entry.get("manager") != ours and "f:taints" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    return max(found)[1] if found else None
