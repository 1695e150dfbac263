"""A step as a JSON patch: taint and annotation in one write, guarded by uid and resourceVersion. Pure."""

import json
from typing import Any

from ingero_contract.kubernetes import STRAGGLER_TAINT
from ingero_operator.taints.memory import stamp
from ingero_operator.taints.nodes import Mark, read_mark

Manifest = dict[str, Any]


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
        "windows": mark.windows,
        "probation": mark.probation,
    }
    return json.dumps({key: value for key, value in tree.items() if value not in (None, False)})


def patch(node: Manifest, uid: str, owner: str, mark: Mark | None) -> list[Manifest] | None:
    """Steps from the node as it is to the mark as it shall be; nothing when the node is not what was decided about.

    Only our own taint, known by our annotation with this owner, is ever changed or removed.
    """
    metadata = node["metadata"]
    if metadata["uid"] != uid:
        return None
    annotations = metadata.get("annotations") or {}
    taints = (node.get("spec") or {}).get("taints")
    at = [number for number, taint in enumerate(taints or []) if taint.get("key") == STRAGGLER_TAINT]
    text = annotations.get(STRAGGLER_TAINT)
    present = read_mark(text, [(taints or [])[number] for number in at])
    if (text is not None or at) and (present is None or present.owner != owner):
        return None
    if mark is None and present is None:
        return None
    steps: list[Manifest] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
    ]
    key = "/metadata/annotations/" + STRAGGLER_TAINT.replace("~", "~0").replace("/", "~1")
    if mark is None:
        steps.append({"op": "remove", "path": key})
    elif annotations:
        steps.append({"op": "add", "path": key, "value": annotation(mark)})
    else:
        steps.append({"op": "add", "path": "/metadata/annotations", "value": {STRAGGLER_TAINT: annotation(mark)}})
    taint = {"key": STRAGGLER_TAINT, "value": mark.verdict, "effect": mark.effect} if mark and mark.effect else None
    if at:
        path = f"/spec/taints/{at[0]}"
        if taint is None:
            steps.append({"op": "remove", "path": path})
        elif (taints or [])[at[0]] != taint:
            steps.append({"op": "replace", "path": path, "value": taint})
    elif taint is not None:
        if taints:
            steps.append({"op": "add", "path": "/spec/taints/-", "value": taint})
        else:
            steps.append({"op": "add", "path": "/spec/taints", "value": [taint]})
    return steps
