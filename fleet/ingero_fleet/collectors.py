"""The two Prometheus pages: Fleet's findings (9090) and Fleet's own health (8888)."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from ingero_detect.nodes.codes import STATES
from ingero_fleet.engine import Engine
from ingero_fleet.live_detector import Findings
from ingero_fleet.receivers.traffic import Traffic
from ingero_fleet.threshold_rule import CohortSummary
from ingero_fleet.tick_snapshot import TickSnapshot, cohort_name
from ingero_kit.exposition import Family
from ingero_kit.metrics_table import (
    MetricRow,
    Samples,
    collect_rows,
    counter,
    gauge,
    gauge_now,
    listener_rows,
    untyped,
)  # fmt: skip

MAX_COHORT_SERIES: Final = 1_000
"""Most cohorts with their own series on a page, the largest first; the rest are counted."""

MAX_NODE_SERIES: Final = 10_000
"""Most nodes with their own series on a page; the rest are counted."""

EXPORT_OUTCOMES: Final = ("sent", "dropped_queue_full", "dropped_permanent", "dropped_elapsed", "retries")

CohortRows = list[tuple[tuple[str, ...], CohortSummary]]


def _cohort(name: str, text: str, value: Callable[[CohortSummary], float | None]) -> MetricRow[CohortRows]:
    def samples(rows: CohortRows) -> Samples:
        return [(labels, found) for labels, one in rows if (found := value(one)) is not None]

    return gauge(name, text, samples, "cluster_id", "cohort", "cgroup_path_hash")


COHORTS: Final[tuple[MetricRow[CohortRows], ...]] = (
    _cohort("ingero_fleet_threshold", "Score below which a node straggles.", lambda one: one.threshold),
    _cohort(
        "ingero_fleet_median", "Median score of the active nodes.", lambda one: one.median if one.active else None
    ),
    _cohort(
        "ingero_fleet_mad", "Median absolute deviation of the scores.", lambda one: one.mad if one.active else None
    ),
    _cohort("ingero_fleet_active_nodes", "Nodes in the statistics.", lambda one: one.active),
)


def _by_cluster(attribute: str) -> Callable[[TickSnapshot], Samples]:
    return lambda s: {one.cluster: float(getattr(one, attribute)) for one in s.tick.clusters.values()}


def _cluster(name: str, text: str, attribute: str) -> MetricRow[TickSnapshot]:
    return gauge(name, text, _by_cluster(attribute), "cluster_id")


NODES: Final[tuple[MetricRow[TickSnapshot], ...]] = (
    gauge(
        "ingero_fleet_cohorts_without_series",
        "Cohorts left out of this page.",
        lambda s: max(0, len(s.tick.cohorts) - MAX_COHORT_SERIES),
    ),
    _cluster("ingero_fleet_idle_nodes", "Nodes without work.", "idle"),
    _cluster("ingero_fleet_calibrating_nodes", "Nodes that still learn their baseline.", "calibrating"),
    _cluster("ingero_fleet_expected_nodes", "Nodes that should report.", "expected"),
    _cluster("ingero_fleet_coverage_low", "1 while too few of the expected nodes report.", "coverage_low"),
    _cluster("ingero_fleet_panic_mode", "1 while too large a share straggles to act on any.", "panic"),
    # Linters reject a gauge whose name ends in _count; the name is published, so it is exposed without a type.
    untyped(
        "ingero_fleet_straggler_count",
        "Nodes below their threshold.",
        _by_cluster("stragglers"),
        "cluster_id",
    ),
    gauge(
        "ingero_node_health_score",
        "Latest score of a node.",
        lambda s: [(s.scores.names[row], s.scores.columns["score"][row]) for row in s.rows()[:MAX_NODE_SERIES]],
        "cluster_id",
        "node_id",
    ),
    gauge(
        "ingero_fleet_straggler",
        "1 for every node that is accused at present.",
        lambda s: [(s.scores.names[row], 1) for row in s.rows() if s.accused[row]][:MAX_NODE_SERIES],
        "cluster_id",
        "node_id",
    ),
    gauge(
        "ingero_fleet_several_agents",
        "Nodes as which several agents report.",
        lambda s: Counter(cluster for cluster, _ in s.scores.nodes_with_several_agents),
        "cluster_id",
    ),
    gauge(
        "ingero_fleet_nodes_without_series",
        "Nodes left out of this page.",
        lambda s: max(0, len(s.rows()) - MAX_NODE_SERIES),
    ),
)

FINDINGS: Final[tuple[MetricRow[Findings], ...]] = (
    gauge(
        "ingero_fleet_job_slow",
        "Share of its rate that a cohort lost as a whole.",
        lambda s: [((job.cohort[0], cohort_name(job.cohort)), job.severity) for job in s.jobs[:MAX_COHORT_SERIES]],
        "cluster_id",
        "cohort",
    ),
    gauge(
        "ingero_fleet_estimated_false_alarms",
        "False alarms expected per node-hour.",
        lambda s: {name: s.estimates.get(name, 0.0) for name in ("own_tail", "mirror")},
        "estimate",
    ),
    gauge(
        "ingero_fleet_false_alarm_budget",
        "False alarms allowed per node-hour.",
        lambda s: s.estimates.get("budget", 0.0),
    ),
    counter(
        "ingero_fleet_judged_node_seconds",
        "Node-seconds judged.",
        lambda s: s.estimates.get("node_hours", 0.0) * 3600,
    ),
    counter("ingero_fleet_accusations", "Nodes accused.", lambda s: s.accusations),
    counter(
        "ingero_fleet_not_judged",
        "Times that a node or cohort found no room in the detector.",
        lambda s: s.dropped,
        "what",
    ),
    counter(
        "ingero_fleet_accusation_delay_seconds",
        "Time from onset to alarm, over all accusations.",
        lambda s: s.delay_seconds,
    ),
)


class FindingsCollector:
    """Thresholds, counts and scores after the latest tick."""

    def __init__(self, snapshot: Callable[[], TickSnapshot | None], by: tuple[str, ...]) -> None:
        self._snapshot = snapshot
        self._hash_at = by.index("cgroup_path_hash") + 1 if "cgroup_path_hash" in by else None

    def collect(self) -> Iterator[Family]:
        """Build the families anew for every scrape."""
        snapshot = self._snapshot()
        if snapshot is None:
            return
        cohorts = sorted(snapshot.tick.cohorts, key=lambda item: -item.active)[:MAX_COHORT_SERIES]
        yield from collect_rows(COHORTS, [(self._labels(one), one) for one in cohorts])
        yield from collect_rows(NODES, snapshot)
        if snapshot.findings is not None:
            yield from _verdicts(snapshot, snapshot.findings)
            yield from collect_rows(FINDINGS, snapshot.findings)

    def _labels(self, cohort: CohortSummary) -> tuple[str, ...]:
        cgroup = cohort.key[self._hash_at] if self._hash_at else ""
        return (cohort.key[0], cohort_name(cohort.key), cgroup)


def _verdicts(snapshot: TickSnapshot, findings: Findings) -> Iterator[Family]:
    by_state: Counter[tuple[str, str]] = Counter()
    by_kind: Counter[tuple[str, str]] = Counter()
    names = snapshot.scores.names
    for row in snapshot.rows():
        by_state[names[row][0], str(STATES[int(findings.states[row])])] += 1
        if findings.accused[row]:
            verdict = findings.verdict(row)
            by_kind[names[row][0], str(verdict.kind) if verdict else ""] += 1
    text = "Nodes by the state of their verdict."
    yield gauge_now("ingero_fleet_verdicts", text, by_state, "cluster_id", "state")
    yield gauge_now("ingero_fleet_accused_nodes", "Accused nodes by what is wrong.", by_kind, "cluster_id", "kind")


ENGINE: Final[tuple[MetricRow[Engine], ...]] = (
    counter("ingero_fleet_expired_nodes", "Nodes forgotten after silence.", lambda s: s.table.losses["expired"]),
    counter("ingero_fleet_ticks", "Ticks computed.", lambda s: s.ticks),
    counter("ingero_fleet_late_ticks", "Ticks that took longer than the interval.", lambda s: s.late_ticks),
    counter("ingero_fleet_failed_ticks", "Ticks that failed.", lambda s: s.failed_ticks),
    counter("ingero_fleet_early_polls", "Polls between ticks that judged a node.", lambda s: s.early_polls),
    counter(
        "ingero_fleet_failed_listeners",
        "Failures after a tick: collectives, costs, live page.",
        lambda s: s.failed_listeners,
    ),
    counter(
        "ingero_fleet_failed_writes",
        "Writes of snapshot and recording that failed.",
        lambda s: s.failed_writes,
        "file",
    ),
    gauge(
        "ingero_fleet_tick_seconds",
        "Time of the latest tick.",
        lambda s: s.tick_seconds if np.isfinite(s.tick_seconds) else 0.0,
    ),
    gauge("ingero_fleet_nodes", "Nodes in the score map.", lambda s: len(s.table)),
)


def _total(name: str, text: str) -> MetricRow[Traffic]:
    return counter(name, text, lambda s: s.totals[name.removeprefix("ingero_fleet_")])


TRAFFIC: Final[tuple[MetricRow[Traffic], ...]] = (
    counter("ingero_fleet_pushes", "Pushes by signal.", lambda s: s.pushes, "signal"),
    counter("ingero_fleet_rejected_points", "Points left out, by reason.", lambda s: s.rejected, "reason"),
    _total("ingero_fleet_reports", "Health reports taken."),
    _total("ingero_fleet_malformed_pushes", "Pushes that could not be read."),
    _total("ingero_fleet_nodes_over_limit", "Reports refused at max_nodes."),
    _total("ingero_fleet_clusters_over_limit", "Reports refused at max_clusters."),
    _total("ingero_fleet_cohorts_over_limit", "Reports refused at max_cohorts."),
    _total("ingero_fleet_world_sizes_over_limit", "World sizes above max_nodes, which are not used."),
    _total("ingero_fleet_late_reports", "Reports older than an earlier one of their node."),
    _total("ingero_fleet_contradicting_reports", "Reports of an agent after another one took over its node."),
    _total("ingero_fleet_receiver_restarts", "Receiver processes that replaced another one."),
    counter(
        "ingero_fleet_exported_pushes",
        "Pushes by outcome.",
        lambda s: {(name, kind): c[kind] for name, c in s.exporters.items() for kind in EXPORT_OUTCOMES},
        "exporter",
        "outcome",
    ),
    counter(
        "ingero_fleet_export_rejected_records",
        "Records that a receiver rejected from a push that it accepted.",
        lambda s: {name: c["rejected_records"] for name, c in s.exporters.items()},
        "exporter",
    ),
    gauge(
        "ingero_fleet_export_queue",
        "Pushes waiting.",
        lambda s: {name: state.waiting for name, state in s.exports.items()},
        "exporter",
    ),
)

LISTENERS: Final = listener_rows("ingero_fleet_listener_events", "ingero_fleet_connections")
