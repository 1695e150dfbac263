"""Turns a step into a JSON patch: taint and annotation in one write, guarded by uid and resourceVersion. Pure."""

import json
from typing import Final

from ingero_contract.kubernetes import STRAGGLER_TAINT
from ingero_operator.kinds import Manifest
from ingero_operator.taints.nodes import StragglerTaint, belongs, read_taint
from ingero_operator.taints.state import timestamp

NOTE: Final = "/metadata/annotations/" + STRAGGLER_TAINT.replace("~", "~0").replace("/", "~1")


def annotation(taint: StragglerTaint) -> str:
    """The evidence in the form that is written to the node."""
    tree = {
        "owner": taint.owner,
        "node": taint.node_uid,
        "verdict": taint.verdict,
        "since": timestamp(taint.since),
        "expires": timestamp(taint.expires),
        "score": taint.score,
        "threshold": taint.threshold,
        "severity": taint.severity,
        "kind": taint.kind,
        "windows": taint.windows,
        "probation": taint.probation,
    }
    return json.dumps({key: value for key, value in tree.items() if value not in (None, False, "")})


def patch(
    node: Manifest, uid: str, owner: str, taint: StragglerTaint | None, verdict: str = ""
) -> list[Manifest] | None:
    """The JSON patch from the node to the desired taint; `None` when it is not the node that was decided about.

    Only the operator's own taint is changed or removed. It is recognised by the annotation with this owner or, where
    the annotation was removed, by the recorded verdict.
    """
    metadata = node["metadata"]
    if metadata["uid"] != uid:
        return None
    annotations = metadata.get("annotations") or {}
    taints = (node.get("spec") or {}).get("taints") or []
    mine = [entry for entry in taints if entry.get("key") == STRAGGLER_TAINT]
    text = annotations.get(STRAGGLER_TAINT)
    present = read_taint(text, mine)
    vouched = present is not None and present.owner == owner
    known = {verdict, present.verdict if present and vouched else ""} - {""}
    at = [
        number
        for number, entry in enumerate(taints)
        if entry.get("key") == STRAGGLER_TAINT and any(belongs(entry, item) for item in known)
    ]
    if taint is None:
        return _removal(metadata, text is not None and (vouched or (bool(at) and present is None)), at)
    if not vouched and (text is not None or mine):
        return None
    steps = _guards(metadata)
    if annotations:
        steps.append({"op": "add", "path": NOTE, "value": annotation(taint)})
    else:
        steps.append({"op": "add", "path": "/metadata/annotations", "value": {STRAGGLER_TAINT: annotation(taint)}})
    entry = {"key": STRAGGLER_TAINT, "value": taint.verdict, "effect": taint.effect} if taint.effect else None
    keep = at[:1] if entry is not None else []
    if keep and taints[keep[0]] != entry:
        steps.append({"op": "replace", "path": f"/spec/taints/{keep[0]}", "value": entry})
    steps += _without(at[len(keep) :])
    if entry is not None and not keep:
        if taints:
            steps.append({"op": "add", "path": "/spec/taints/-", "value": entry})
        else:
            steps.append({"op": "add", "path": "/spec/taints", "value": [entry]})
    return steps


def _removal(metadata: Manifest, annotated: bool, at: list[int]) -> list[Manifest] | None:
    if not annotated and not at:
        return None
    return [*_guards(metadata), *([{"op": "remove", "path": NOTE}] if annotated else []), *_without(at)]


def _guards(metadata: Manifest) -> list[Manifest]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
    ]


def _without(at: list[int]) -> list[Manifest]:
    """Remove operations, last index first, so that each index is valid when its operation is applied."""
    return [{"op": "remove", "path": f"/spec/taints/{number}"} for number in reversed(at)]
