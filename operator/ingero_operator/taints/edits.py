"""A step as a JSON patch: taint and annotation in one write, guarded by uid and resourceVersion. Pure."""

import json
from typing import Any, Final

from ingero_contract.kubernetes import STRAGGLER_TAINT
from ingero_operator.taints.memory import stamp
from ingero_operator.taints.nodes import Mark, belongs, read_mark

Manifest = dict[str, Any]

NOTE: Final = "/metadata/annotations/" + STRAGGLER_TAINT.replace("~", "~0").replace("/", "~1")


def annotation(mark: Mark) -> str:
    """The evidence as it stands on the node."""
    tree = {
        "owner": mark.owner,
        "node": mark.node_uid,
        "verdict": mark.verdict,
        "since": stamp(mark.since),
        "expires": stamp(mark.expires),
        "score": mark.score,
        "threshold": mark.threshold,
        "severity": mark.severity,
        "windows": mark.windows,
        "probation": mark.probation,
    }
    return json.dumps({key: value for key, value in tree.items() if value not in (None, False)})


def patch(node: Manifest, uid: str, owner: str, mark: Mark | None, verdict: str = "") -> list[Manifest] | None:
    """Steps from the node as it is to the mark as it shall be; nothing when the node is not what was decided about.

    Only our own taint is ever changed or removed: known by our annotation with this owner, or, where somebody took
    the annotation away, by the verdict that we remember to have written.
    """
    metadata = node["metadata"]
    if metadata["uid"] != uid:
        return None
    annotations = metadata.get("annotations") or {}
    taints = (node.get("spec") or {}).get("taints") or []
    mine = [taint for taint in taints if taint.get("key") == STRAGGLER_TAINT]
    text = annotations.get(STRAGGLER_TAINT)
    present = read_mark(text, mine)
    vouched = present is not None and present.owner == owner
    known = {verdict, present.verdict if present and vouched else ""} - {""}
    at = [
        number
        for number, taint in enumerate(taints)
        if taint.get("key") == STRAGGLER_TAINT and any(belongs(taint, item) for item in known)
    ]
    if mark is None:
        return _removal(metadata, text is not None and (vouched or (bool(at) and present is None)), at)
    if not vouched and (text is not None or mine):
        return None
    steps = _guards(metadata)
    if annotations:
        steps.append({"op": "add", "path": NOTE, "value": annotation(mark)})
    else:
        steps.append({"op": "add", "path": "/metadata/annotations", "value": {STRAGGLER_TAINT: annotation(mark)}})
    taint = {"key": STRAGGLER_TAINT, "value": mark.verdict, "effect": mark.effect} if mark.effect else None
    keep = at[:1] if taint is not None else []
    if keep and taints[keep[0]] != taint:
        steps.append({"op": "replace", "path": f"/spec/taints/{keep[0]}", "value": taint})
    steps += _without(at[len(keep) :])
    if taint is not None and not keep:
        if taints:
            steps.append({"op": "add", "path": "/spec/taints/-", "value": taint})
        else:
            steps.append({"op": "add", "path": "/spec/taints", "value": [taint]})
    return steps


def _removal(metadata: Manifest, noted: bool, at: list[int]) -> list[Manifest] | None:
    if not noted and not at:
        return None
    return [*_guards(metadata), *([{"op": "remove", "path": NOTE}] if noted else []), *_without(at)]


def _guards(metadata: Manifest) -> list[Manifest]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
    ]


def _without(at: list[int]) -> list[Manifest]:
    """Last first: each index is one of the list as it is by then."""
    return [{"op": "remove", "path": f"/spec/taints/{number}"} for number in reversed(at)]
