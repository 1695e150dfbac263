"""The result of a preview as JSON for machines and as text for people. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ingero_kit.clock import rfc3339
from ingero_operator.preview.history import COLLECTIVES, History, longest_gap
from ingero_operator.preview.replay import NodeOutcome, ReplayResult, Taint, until_or

SHOWN: Final = 50
"""Most rows of a table for people; JSON has all."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Both policies over one record."""

    cluster: str
    history: History
    proposed: ReplayResult
    present: ReplayResult | None = None
    """`None` where there is no present policy."""
    nodes: int
    """Nodes that the record or the cluster shows."""
    notes: tuple[str, ...] = ()
    """What the record does not say."""


def notes(history: History, interval: float, *, facts: bool, actionable: bool) -> tuple[str, ...]:
    """What the record does not say, and what is assumed instead. `facts`: whether the cluster's nodes are known;
    `actionable`: whether the proposed FleetCluster counts late ranks."""
    found = ["the preview begins without taints; pauses, refusals and removals by users in the past are not known"]
    begin, gap = history.begin, longest_gap(interval)
    if not history.runs:
        found.append("no health reports in the record: each node counts as active, quorum and coverage as met")
    elif begin is not None and begin > history.since + gap:
        found.append(f"the record begins at {_time(begin)}")
    if history.end < history.until - gap:
        found.append(f"the record has no health report after {_time(history.end)}")
    if not history.accusations:
        found.append("no verdict in the record: no node was accused, or Fleet's detector was off")
    partial = sum(not item.whole for item in history.accusations)
    if partial:
        found.append(f"{partial} of {len(history.accusations)} accusations began before the record")
    late = sum(item.source == COLLECTIVES for item in history.accusations)
    if late and not actionable:
        found.append(
            f"{late} accusations are of collectives, which count with spec.fleet.collectives.actionable only"
        )
    if history.unreadable:
        found.append(f"{history.unreadable} rows of Echo could not be read and are left out")
    if facts:
        found.append("labels, GPUs and ages of nodes are those of now; a node counts as ready while it reports")
    else:
        found.append(
            "the cluster was not asked: each node of the record counts as a GPU node, old enough, without labels, so "
            "Domain, Zone, Excluded and TooYoung stop nothing"
        )
    return tuple(found)


def as_json(preview: Preview) -> dict[str, Any]:
    """The preview for machines; times are RFC 3339 and durations seconds."""
    history = preview.history
    return {
        "cluster": preview.cluster,
        "since": rfc3339(history.since),
        "until": rfc3339(history.until),
        "nodes": preview.nodes,
        "accusations": len(history.accusations),
        "present": None if preview.present is None else _outcome(preview.present, history),
        "proposed": _outcome(preview.proposed, history),
        "notes": list(preview.notes),
    }


def _outcome(outcome: ReplayResult, history: History) -> dict[str, Any]:
    pods = _pods(outcome)
    return {
        "mode": str(outcome.mode),
        "taintedNodes": len({taint.node for taint in outcome.taints}),
        "taintedSeconds": round(_tainted(outcome, history), 3),
        "mostAtOnce": outcome.most,
        "pods": None if pods is None else sorted(pods),
        "taints": [
            {
                "node": taint.node,
                "from": rfc3339(taint.begin),
                "to": None if taint.end is None else rfc3339(taint.end),
                "seconds": round(until_or(taint.end, history.until) - taint.begin, 3),
                "effects": list(taint.effects),
                "reason": taint.reason or None,
                "pods": None if taint.pods is None else sorted(taint.pods),
            }
            for taint in outcome.taints
        ],
        "accused": [
            {
                "node": node.node,
                "accusations": node.accusations,
                "kinds": list(node.kinds),
                "seconds": round(node.accused, 3),
                "taintedSeconds": round(node.tainted, 3),
                "stoppedBy": [
                    {"check": check, "seconds": round(lasted, 3), "message": node.messages[check]}
                    for check, lasted in node.stopped.items()
                ],
            }
            for node in outcome.nodes
        ],
    }


def as_text(preview: Preview) -> str:
    """The preview for people."""
    history, accused = preview.history, {item.node for item in preview.history.accusations}
    lines = [
        f"Cluster {preview.cluster}, {_time(history.since)} to {_time(history.until)} UTC: "
        f"{len(history.accusations)} accusations of {len(accused)} of {preview.nodes} nodes.",
        "",
    ]
    policies = [("PRESENT", preview.present), ("PROPOSED", preview.proposed)]
    rows = [["", *(name for name, found in policies if found is not None)]]
    cells: list[tuple[str, Callable[[ReplayResult], str]]] = [
        ("mode", lambda item: str(item.mode)),
        ("nodes tainted", lambda item: str(len({taint.node for taint in item.taints}))),
        ("taints", lambda item: str(len(item.taints))),
        ("time tainted, all nodes", lambda item: _span(_tainted(item, history))),
        ("most nodes at once", lambda item: str(item.most)),
        ("pods on tainted nodes", lambda item: _count(_pods(item))),
    ]
    rows += [[label, *(cell(found) for _, found in policies if found is not None)] for label, cell in cells]
    lines += _table(rows)
    for name, found in policies:
        if found is not None:
            lines += ["", *_section(name, found, history)]
    return "\n".join([*lines, "", *(f"Note: {note}." for note in preview.notes)])


def _section(name: str, outcome: ReplayResult, history: History) -> list[str]:
    taints = [_taint_row(taint, history) for taint in outcome.taints[:SHOWN]]
    lines = [f"{name}: taints" if taints else f"{name}: no node would have been tainted"]
    if taints:
        lines += _table([["NODE", "FROM", "FOR", "EFFECT", "REMOVED", "PODS"], *taints])
        lines += _more(outcome.taints)
    stopped = [node for node in outcome.nodes if node.stopped]
    if stopped:
        head = ["NODE", "ACCUSED", "KIND", "TAINTED", "STOPPED BY"]
        lines += ["", f"{name}: policy checks that prevented a taint, and for how long"]
        lines += [*_table([head, *(_node_row(node) for node in stopped[:SHOWN])]), *_more(stopped)]
    return lines


def _taint_row(taint: Taint, history: History) -> list[str]:
    effects = ", then ".join(effect or "annotation" for effect in taint.effects)
    lasted = _span(until_or(taint.end, history.until) - taint.begin)
    return [taint.node, _time(taint.begin), lasted, effects, taint.reason or "still tainted", _count(taint.pods)]


def _node_row(node: NodeOutcome) -> list[str]:
    stopped = ", ".join(f"{check} {_span(lasted)}" for check, lasted in node.stopped.items())
    kinds = ", ".join(node.kinds)
    return [node.node, f"{node.accusations}x, {_span(node.accused)}", kinds, _span(node.tainted), stopped]


def _more(rows: Sequence[object]) -> list[str]:
    return [f"... and {len(rows) - SHOWN} more (--json has all)"] if len(rows) > SHOWN else []


def _tainted(outcome: ReplayResult, history: History) -> float:
    return sum(until_or(taint.end, history.until) - taint.begin for taint in outcome.taints)


def _pods(outcome: ReplayResult) -> frozenset[str] | None:
    """Pods on tainted nodes; `None` when the record names none of any taint."""
    known = [taint.pods for taint in outcome.taints if taint.pods is not None]
    if outcome.taints and not known:
        return None
    return frozenset(pod for pods in known for pod in pods)


def _count(pods: Iterable[str] | None) -> str:
    return "unknown" if pods is None else str(len(list(pods)))


def _time(time: float) -> str:
    return rfc3339(time)[:16].replace("T", " ")


def _span(lasted: float) -> str:
    """A duration in its two largest units."""
    whole = timedelta(seconds=round(lasted))
    parts = {"d": whole.days, "h": whole.seconds // 3600, "m": whole.seconds // 60 % 60, "s": whole.seconds % 60}
    shown = [f"{number}{unit}" for unit, number in parts.items() if number]
    return "".join(shown[:2]) or "0s"


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def shown_nodes(history: History, known: Mapping[str, object]) -> int:
    """Number of nodes that the record or the cluster shows."""
    return len({item.node for item in history.accusations} | {run.node for run in history.runs} | set(known))
