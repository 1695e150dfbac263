"""Fleet's state after a tick, and the answers of its APIs. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_contract.identifiers import NodeKey
from ingero_contract.signals import SIGNALS, HealthSignal
from ingero_contract.values import SLOW_FROM_START, VerdictState
from ingero_detect.nodes.codes import CODE
from ingero_detect.nodes.verdicts import Verdict
from ingero_detect.threshold import HYSTERESIS
from ingero_fleet.live_detector import Findings
from ingero_fleet.processor_settings import IngeroConfig
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ACTIVE, STATES
from ingero_fleet.threshold_rule import ClusterSummary, Tick
from ingero_kit.clock import rfc3339

_SIGNALS: Final = tuple(row.signal for row in SIGNALS)
"""The four signals, in the order of their weight."""


SEVERAL_AGENTS: Final = (
    "Several agents report as this node, so nothing acts on what is said of it: "
    "give each its own node id or cluster id, or stop all but one."
)
"""What a person is told of such a node first."""

MAX_SHOWN: Final = 20
"""Most nodes with several agents that an answer names."""

VERDICT_TIMES: Final = ("since", "detected", "recovered", "time")
"""Fields of a verdict that are times."""


@dataclass(frozen=True)
class TickSnapshot:
    """One tick: the scores it judged, the rule's result, and the detector's findings, which decide if present."""

    scores: ScoreSnapshot
    tick: Tick
    findings: Findings | None = None
    interval_seconds: float = 10.0

    @property
    def stopped(self) -> npt.NDArray[np.bool_]:
        """By row: nodes whose own work stopped while their cohort continues."""
        if self.findings is None:
            return np.zeros(len(self.scores.names), np.bool_)
        found: npt.NDArray[np.bool_] = self.findings.accused & (self.findings.states == CODE[VerdictState.STOPPED])
        return found

    @property
    def accused(self) -> npt.NDArray[np.bool_]:
        """By row: accused at present, by the detector where it judges, else by the threshold."""
        return self.findings.accused if self.findings else self.tick.straggling

    @property
    def straggling(self) -> npt.NDArray[np.bool_]:
        """By row: living nodes that are accused at present."""
        found: npt.NDArray[np.bool_] = self.accused & self.scores.columns["alive"]
        return found

    def rows(self, cluster: str | None = None) -> list[int]:
        """Rows of living nodes, of one cluster or of all."""
        alive = np.flatnonzero(self.scores.columns["alive"]).tolist()
        return [row for row in alive if cluster is None or self.scores.names[row][0] == cluster]


def threshold_answer(snapshot: TickSnapshot | None, cluster: str, node: str | None = None) -> dict[str, Any]:
    """The published GET answer: (0, false) until there is a quorum. With a node, its own cohort counts."""
    none = {"threshold": 0, "quorum_met": False}
    if snapshot is None:
        return none
    if node is not None:
        for row in snapshot.rows(cluster):
            if snapshot.scores.names[row][1] == node:
                value = float(snapshot.tick.threshold_by_row[row])
                return {"threshold": round(value, 6), "quorum_met": True} if np.isfinite(value) else none
    summary = snapshot.tick.clusters.get(cluster)
    if summary is None or summary.threshold is None:
        return none
    return {"threshold": round(summary.threshold, 6), "quorum_met": True}


def stragglers_answer(
    snapshot: TickSnapshot, cluster: str | None, interval_seconds: float,
    late: Mapping[NodeKey, dict[str, Any]] = MappingProxyType({}), actionable: bool = False,
    panic_fraction: float = 0.5,
) -> dict[str, Any]:  # fmt: skip
    """The current stragglers.

    `late` are the nodes whose rank the collectives wait for. They are listed under `culprits`, and under `stragglers`
    too when they are `actionable`. A node that the detector accuses as well is listed once, with both reasons.
    One that was slow from the start counts as a late rank then, because the collectives prove that ranks wait for it.
    `panic` follows whichever of detector and threshold names the stragglers: falling scores do not block a verdict
    that rates have proven.
    """
    alive = snapshot.rows(cluster)
    rows = [row for row in alive if snapshot.accused[row]]
    late = {node: item for node, item in late.items() if cluster in (None, node[0])}
    accused = {snapshot.scores.names[row] for row in rows}
    added = (
        [row for row in alive if snapshot.scores.names[row] in late.keys() - accused] if late and actionable else []
    )
    reported = accused | {snapshot.scores.names[row] for row in added}
    summaries = [summary for name, summary in snapshot.tick.clusters.items() if cluster in (None, name)]
    return {
        **_learning(snapshot.findings),
        "cluster_id": cluster,
        "generated_at": rfc3339(snapshot.tick.now),
        "interval_seconds": interval_seconds,
        "decided_by": "verdict" if snapshot.findings else "threshold",
        "quorum_met": bool(summaries) and all(summary.quorum_met for summary in summaries),
        "panic": _panics(snapshot, rows, summaries, panic_fraction),
        "coverage_low": any(summary.coverage_low for summary in summaries),
        "threshold": summaries[0].threshold if len(summaries) == 1 else None,
        "active_nodes": sum(summary.active for summary in summaries),
        "nodes": {
            name: sum(getattr(summary, name) for summary in summaries)
            for name in ("active", "idle", "calibrating", "expected")
        },
        "stragglers": [
            *(
                _late_answer(snapshot, row, item)
                if (item := late.get(snapshot.scores.names[row])) and actionable and _is_from_start(snapshot, row)
                else {**node_answer(snapshot, row), "collective": late.get(snapshot.scores.names[row])}
                for row in rows
            ),
            *(_late_answer(snapshot, row, late[snapshot.scores.names[row]]) for row in added),
        ],
        "culprits": [{**item, "straggler": node in reported} for node, item in late.items()],
        "several_agents": several_agents_answer(snapshot, cluster),
    }


def several_agents_answer(snapshot: TickSnapshot, cluster: str | None = None) -> dict[str, Any]:
    """Nodes as which several agents report: how many, and the first of them."""
    nodes = sorted(node for node in snapshot.scores.nodes_with_several_agents if cluster in (None, node[0]))
    shown = [{"cluster_id": cluster, "node_id": node} for cluster, node in nodes[:MAX_SHOWN]]
    return {"count": len(nodes), "nodes": shown}


def _learning(findings: Findings | None) -> dict[str, Any]:
    """Since when and until about when the detector accuses hardly anybody; nothing where no detector judges."""
    if findings is None:
        return {}
    phase = findings.learning
    if phase is None:
        return {"learning": None}
    return {
        "learning": {"since": rfc3339(phase.since), "until": rfc3339(phase.until), "reason": phase.reason or None}
    }


def _panics(snapshot: TickSnapshot, rows: list[int], summaries: list[ClusterSummary], fraction: float) -> bool:
    """Whether too large a share of a cluster is accused for any of it to be acted on."""
    if snapshot.findings is None:
        return any(summary.panic for summary in summaries)
    accused: Counter[str] = Counter(snapshot.scores.names[row][0] for row in rows)
    return any(accused[summary.cluster] > fraction * max(1, summary.active) for summary in summaries)


def _is_from_start(snapshot: TickSnapshot, row: int) -> bool:
    verdict = snapshot.findings.verdict(row) if snapshot.findings else None
    return verdict is not None and verdict.kind == SLOW_FROM_START


def _late_answer(snapshot: TickSnapshot, row: int, item: dict[str, Any]) -> dict[str, Any]:
    """A node that collectives accuse and the detector does not: in a synchronised job all rates fall alike."""
    return {
        **node_answer(snapshot, row),
        "straggler": True,
        **{name: item[name] for name in ("kind", "since", "windows")},
        "verdict": {
            "state": str(VerdictState.STRAGGLER), "kind": item["kind"], "axis": "collectives",
            "since": item["since"], "severity": item["share"],
        },
        "collective": item,
    }  # fmt: skip


def node_answer(snapshot: TickSnapshot, row: int) -> dict[str, Any]:
    """Everything about one node."""
    columns, tick = snapshot.scores.columns, snapshot.tick
    cluster, node = snapshot.scores.names[row]
    threshold = float(tick.threshold_by_row[row])
    verdict = snapshot.findings.verdict(row) if snapshot.findings else None
    accused = bool(snapshot.accused[row])
    since, windows, kind = float(tick.since[row]), int(tick.windows[row]), "slow"
    if verdict is not None:
        since, kind = verdict.since or 0.0, str(verdict.kind)
        windows = 1 + round((verdict.time - (verdict.detected or verdict.time)) / snapshot.interval_seconds)
    return {
        "cluster_id": cluster,
        "node_id": node,
        "state": str(STATES[int(columns["state"][row])]),
        "straggler": accused,
        "kind": kind if accused else None,
        "since": rfc3339(since) if accused and since else None,
        "score": round(float(columns["score"][row]), 6),
        "threshold": rounded(threshold),
        "below_threshold": bool(tick.straggling[row]),
        "windows": windows if accused else 0,
        "cohort": cohort_name(snapshot.scores.cohorts[int(columns["cohort"][row])]),
        "dominant_signal": str(dominant_signal(snapshot, row)),
        "several_agents": row in snapshot.scores.several_agents,
        "verdict": _verdict(verdict) if verdict else None,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """A verdict with times as text for people and the operator."""
    facts = verdict.to_json()
    return facts | {name: rfc3339(facts[name]) if facts[name] else None for name in VERDICT_TIMES}


def dominant_signal(snapshot: TickSnapshot, row: int) -> HealthSignal:
    """The signal furthest below the median of the node's cohort, relative to that median, so that signals compare."""
    columns = snapshot.scores.columns
    peers = columns["alive"] & (columns["state"] == ACTIVE) & (columns["cohort"] == columns["cohort"][row])
    worst, gap = HealthSignal.UNKNOWN, 0.0
    for signal in _SIGNALS:
        values = columns[str(signal)][peers]
        values = values[np.isfinite(values)]
        own = float(columns[str(signal)][row])
        if not len(values) or not np.isfinite(own):
            continue
        median = float(np.median(values))
        if median > 0 and (median - own) / median > gap:
            worst, gap = signal, (median - own) / median
    return worst


def cohort_name(key: tuple[str, ...]) -> str:
    """A cohort with a message, without its cluster; `all` when its nodes reported no common property."""
    parts = [part for part in key[1:] if part]
    return "/".join(parts) if parts else "all"


def why_answer(snapshot: TickSnapshot, row: int, config: IngeroConfig) -> dict[str, Any]:
    """Why a node is, or is not, a straggler: the facts, and one sentence on which a person can act."""
    facts = node_answer(snapshot, row)
    columns = snapshot.scores.columns
    key = snapshot.scores.cohorts[int(columns["cohort"][row])]
    summary = next(item for item in snapshot.tick.cohorts if item.key == key)
    state, score, threshold = facts["state"], facts["score"], facts["threshold"]
    verdict = facts["verdict"]
    if verdict:
        sentence = verdict_sentence(verdict, summary.active - (state == "active"))
    elif state != "active":
        sentence = f"The node reports {state}; only active nodes are judged."
    elif threshold is None:
        sentence = (
            f"No threshold: the cohort has {summary.active} active nodes and the quorum is "
            f"{config.quorum.statistical_min}."
        )
    elif facts["below_threshold"]:
        sentence = (
            f"Score {score:.3f} lies below the threshold {threshold:.3f} "
            f"(or has not yet come {HYSTERESIS} above it), for {facts['windows']} reports."
        )
    else:
        sentence = f"Score {score:.3f} lies above the threshold {threshold:.3f}."
    if facts["several_agents"]:
        sentence = f"{SEVERAL_AGENTS} {sentence}"
    return {
        **facts,
        "why": sentence,
        "peers": {
            "cohort": cohort_name(key),
            "merged_into": cohort_name(summary.merged_into) if summary.merged_into else None,
            "active": summary.active,
            "median": rounded(summary.median),
            "mad": rounded(summary.mad),
        },
        "signals": {str(signal): rounded(float(columns[str(signal)][row])) for signal in _SIGNALS},
        "rate": rounded(float(columns["rate"][row])),
        "last_push_age_seconds": round(snapshot.tick.now - float(columns["seen"][row]), 3),
        "pushes": int(columns["pushes"][row]),
    }


def verdict_sentence(verdict: dict[str, Any], active: int) -> str:
    """A verdict as one sentence on which a person can act."""
    state, lost = verdict["state"], f"{100 * verdict['severity']:.0f} %"
    if state == "stopped":
        return f"Its work stopped while {active} nodes of its cohort go on."
    if state in ("straggler", "recovering"):
        from_start = verdict["kind"] == SLOW_FROM_START
        against = {"own_history": "its own history", "echo": "what Fleet knew before its restart"}
        reason = f"It lost {lost} of its rate against {against.get(verdict['axis'], 'its cohort')}"
        if from_start:
            reason = f"It has been {lost} slower than its peers from the start"
        elif verdict["value"] is not None and verdict["expected"] is not None:
            now = f"{verdict['value']:.4g} where {verdict['expected']:.4g} was expected"
            reason += f", on average since its onset; now {now}"
        evidence, level = verdict["evidence"], verdict["level"]
        # Below its level it is not what accuses: a collapse needs none, and it shrinks while a node recovers.
        if evidence is not None and level is not None and evidence > level:
            reason += f" (evidence {evidence:.1f}, alarm level {level:.1f})"
        return reason + (". It seems to recover." if state == "recovering" else ".")
    return {
        "learning": "The detector is still learning what is normal for this node.",
        "healthy": "It does what its own history and its peers lead to expect.",
        "suspected": "It is slower than expected, not yet for long enough to be sure.",
        "idle": "It rests; nobody is judged without work.",
        "silent": "It has not reported of late.",
    }[state]


def summary_answer(summary: ClusterSummary) -> dict[str, Any]:
    """One cluster in figures."""
    facts = asdict(summary)
    return {
        "cluster_id": facts.pop("cluster"), **facts, "threshold": rounded(summary.threshold),
        "quorum_met": summary.quorum_met,
    }  # fmt: skip


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A number for JSON; `None` for one that is not finite."""
    return round(value, digits) if value is not None and np.isfinite(value) else None
