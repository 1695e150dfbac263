"""The two Prometheus pages: what Fleet found (9090) and how Fleet itself is (8888)."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

from ingero_detect.codes import STATES
from ingero_fleet.live_detector import Findings
from ingero_fleet.receivers.traffic import Traffic
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.tick_snapshot import TickSnapshot, cohort_name
from ingero_http.limits import COUNTER_KINDS

MAX_COHORT_SERIES: Final = 1_000
"""Cohorts with series of their own on a page, the largest; the rest are counted."""

MAX_NODE_SERIES: Final = 10_000
"""Nodes with series of their own on a page; the rest are counted."""

_LABELS: Final = ["cluster_id", "cohort", "cgroup_path_hash"]


class FindingsCollector(Collector):
    """Thresholds, counts and scores after the latest tick."""

    def __init__(self, snapshot: Callable[[], TickSnapshot | None], by: tuple[str, ...]) -> None:
        self._picture = snapshot
        self._hash_at = by.index("cgroup_path_hash") + 1 if "cgroup_path_hash" in by else None

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        snapshot = self._picture()
        if snapshot is None:
            return
        threshold = GaugeMetricFamily("ingero_fleet_threshold", "Score below which a node straggles.", labels=_LABELS)
        median = GaugeMetricFamily("ingero_fleet_median", "Median score of the active nodes.", labels=_LABELS)
        mad = GaugeMetricFamily("ingero_fleet_mad", "Median absolute deviation of the scores.", labels=_LABELS)
        active = GaugeMetricFamily("ingero_fleet_active_nodes", "Nodes in the statistics.", labels=_LABELS)
        cohorts = sorted(snapshot.tick.cohorts, key=lambda item: -item.active)
        for summary in cohorts[:MAX_COHORT_SERIES]:
            labels = [
                summary.key[0],
                cohort_name(summary.key),
                summary.key[self._hash_at] if self._hash_at else "",
            ]
            active.add_metric(labels, summary.active)
            if summary.active:
                median.add_metric(labels, summary.median)
                mad.add_metric(labels, summary.mad)
            if summary.threshold is not None:
                threshold.add_metric(labels, summary.threshold)
        hidden = GaugeMetricFamily("ingero_fleet_cohorts_without_series", "Cohorts left out of this page.")
        hidden.add_metric([], max(0, len(cohorts) - MAX_COHORT_SERIES))
        yield from (threshold, median, mad, active, hidden)
        yield from self._clusters(snapshot)
        yield from self._nodes(snapshot)
        if snapshot.findings is not None:
            yield from _verdicts(snapshot, snapshot.findings)

    def _clusters(self, snapshot: TickSnapshot) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | UnknownMetricFamily] = {
            "idle": GaugeMetricFamily("ingero_fleet_idle_nodes", "Nodes without work.", labels=["cluster_id"]),
            "calibrating": GaugeMetricFamily(
                "ingero_fleet_calibrating_nodes", "Nodes that still learn their baseline.", labels=["cluster_id"]
            ),
            "expected": GaugeMetricFamily(
                "ingero_fleet_expected_nodes", "Nodes that should report.", labels=["cluster_id"]
            ),
            "coverage_low": GaugeMetricFamily(
                "ingero_fleet_coverage_low", "1 while too few of the expected nodes report.", labels=["cluster_id"]
            ),
            "panic": GaugeMetricFamily(
                "ingero_fleet_panic_mode", "1 while too large a share straggles to act on any.", labels=["cluster_id"]
            ),
            # A gauge whose name ends so would be complained of; the name is published, so it goes without a type.
            "stragglers": UnknownMetricFamily(
                "ingero_fleet_straggler_count", "Nodes below their threshold.", labels=["cluster_id"]
            ),
        }
        for summary in snapshot.tick.clusters.values():
            for name, family in families.items():
                family.add_metric([summary.cluster], float(getattr(summary, name)))
        yield from families.values()

    def _nodes(self, snapshot: TickSnapshot) -> Iterator[Metric]:
        score = GaugeMetricFamily(
            "ingero_node_health_score", "Latest score of a node.", labels=["cluster_id", "node_id"]
        )
        straggler = GaugeMetricFamily(
            "ingero_fleet_straggler", "1 for every node that is accused at present.", labels=["cluster_id", "node_id"]
        )
        rows = snapshot.rows()
        for row in rows[:MAX_NODE_SERIES]:
            score.add_metric(snapshot.scores.names[row], float(snapshot.scores.columns["score"][row]))
        for row in [row for row in rows if snapshot.accused[row]][:MAX_NODE_SERIES]:
            straggler.add_metric(snapshot.scores.names[row], 1)
        hidden = GaugeMetricFamily("ingero_fleet_nodes_without_series", "Nodes left out of this page.")
        hidden.add_metric([], max(0, len(rows) - MAX_NODE_SERIES))
        yield from (score, straggler, hidden)


def _verdicts(snapshot: TickSnapshot, findings: Findings) -> Iterator[Metric]:
    """What the detector says, and how well it keeps its budget."""
    states = GaugeMetricFamily(
        "ingero_fleet_verdicts", "Nodes by the state of their verdict.", labels=["cluster_id", "state"]
    )
    kinds = GaugeMetricFamily(
        "ingero_fleet_accused_nodes", "Accused nodes by what is wrong.", labels=["cluster_id", "kind"]
    )
    by_state: Counter[tuple[str, str]] = Counter()
    by_kind: Counter[tuple[str, str]] = Counter()
    names = snapshot.scores.names
    for row in snapshot.rows():
        by_state[names[row][0], str(STATES[int(findings.states[row])])] += 1
        if findings.accused[row]:
            verdict = findings.verdict(row)
            by_kind[names[row][0], str(verdict.kind) if verdict else ""] += 1
    for family, counted in ((states, by_state), (kinds, by_kind)):
        for labels, count in sorted(counted.items()):
            family.add_metric(labels, count)
    slow = GaugeMetricFamily(
        "ingero_fleet_job_slow", "Share of its rate that a cohort lost as a whole.", labels=["cluster_id", "cohort"]
    )
    for job in findings.jobs[:MAX_COHORT_SERIES]:
        slow.add_metric([job.cohort[0], cohort_name(job.cohort)], job.severity)
    estimate = GaugeMetricFamily(
        "ingero_fleet_estimated_false_alarms", "False alarms expected per node-hour.", labels=["estimate"]
    )
    for name in ("own_tail", "mirror"):
        estimate.add_metric([name], findings.estimates.get(name, 0.0))
    yield from (states, kinds, slow, estimate)
    yield _gauge(
        "ingero_fleet_false_alarm_budget",
        "False alarms allowed per node-hour.",
        findings.estimates.get("budget", 0.0),
    )
    judged = findings.estimates.get("node_hours", 0.0) * 3600
    yield _counter("ingero_fleet_judged_node_seconds", "Node-seconds judged.", judged)
    yield _counter("ingero_fleet_accusations", "Nodes accused.", findings.accusations)
    dropped = CounterMetricFamily(
        "ingero_fleet_not_judged", "Times that a node or cohort found no room in the detector.", labels=["what"]
    )
    for what, count in sorted(findings.dropped.items()):
        dropped.add_metric([what], count)
    yield dropped
    yield _counter(
        "ingero_fleet_accusation_delay_seconds", "Time from onset to alarm, over all accusations.",
        findings.delay_seconds,
    )  # fmt: skip


class RuntimeStats(Protocol):
    """What the page about Fleet itself reads of the engine."""

    table: ScoreTable
    tick_seconds: float
    ticks: int
    late_ticks: int
    failed_ticks: int
    failed_listeners: int
    early_polls: int


class RuntimeStatsCollector(Collector):
    """Pushes, losses, queues and the cost of a tick."""

    def __init__(self, stats: RuntimeStats, traffic: Callable[[], Traffic]) -> None:
        self._stats = stats
        self._traffic = traffic

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        stats, traffic = self._stats, self._traffic()
        pushes = CounterMetricFamily("ingero_fleet_pushes", "Pushes by signal.", labels=["signal"])
        for signal, count in traffic.pushes.items():
            pushes.add_metric([signal], count)
        rejected = CounterMetricFamily(
            "ingero_fleet_rejected_points", "Points left out, by reason.", labels=["reason"]
        )
        for reason, count in traffic.rejected.items():
            rejected.add_metric([reason], count)
        yield from (pushes, rejected)
        yield _counter("ingero_fleet_reports", "Health reports taken.", traffic.reports)
        yield _counter("ingero_fleet_malformed_pushes", "Pushes that could not be read.", traffic.malformed)
        yield _counter("ingero_fleet_expired_nodes", "Nodes forgotten after silence.", stats.table.losses.expired)
        yield _counter("ingero_fleet_nodes_over_limit", "Reports refused at max_nodes.", traffic.nodes_over_limit)
        yield _counter(
            "ingero_fleet_clusters_over_limit", "Reports refused at max_clusters.", traffic.clusters_over_limit
        )
        yield _counter(
            "ingero_fleet_cohorts_over_limit", "Reports refused at max_cohorts.", traffic.cohorts_over_limit
        )
        yield _counter(
            "ingero_fleet_late_reports", "Reports older than one of their node before.", traffic.late_reports
        )
        yield _counter(
            "ingero_fleet_receiver_restarts",
            "Receiver processes put in the place of others.",
            traffic.receiver_restarts,
        )
        yield _counter("ingero_fleet_ticks", "Ticks computed.", stats.ticks)
        yield _counter("ingero_fleet_late_ticks", "Ticks that took longer than the interval.", stats.late_ticks)
        yield _counter("ingero_fleet_failed_ticks", "Ticks that failed.", stats.failed_ticks)
        yield _counter("ingero_fleet_early_looks", "Looks between ticks at nodes that fell far.", stats.early_polls)
        yield _counter(
            "ingero_fleet_failed_followers",
            "Failures of what follows a tick: collectives, costs, live page.",
            stats.failed_listeners,
        )
        yield _gauge("ingero_fleet_tick_seconds", "Time of the latest tick.", stats.tick_seconds)
        yield _gauge("ingero_fleet_nodes", "Nodes in the score map.", len(stats.table))
        yield from _listeners(traffic)
        yield from _exporters(traffic)


def _listeners(traffic: Traffic) -> Iterator[Metric]:
    events = CounterMetricFamily(
        "ingero_fleet_listener_events", "What happened at a listener, by kind.", labels=["listener", "kind"]
    )
    connections = GaugeMetricFamily("ingero_fleet_connections", "Open connections.", labels=["listener"])
    for name, counters in traffic.listeners.items():
        for kind in COUNTER_KINDS:
            events.add_metric([name, kind], getattr(counters, kind))
        connections.add_metric([name], counters.open)
    yield from (events, connections)


def _exporters(traffic: Traffic) -> Iterator[Metric]:
    outcome = CounterMetricFamily(
        "ingero_fleet_exported_pushes", "Pushes by what became of them.", labels=["exporter", "outcome"]
    )
    refused = CounterMetricFamily(
        "ingero_fleet_export_rejected_records",
        "Records that a receiver refused while it took others.",
        labels=["exporter"],
    )
    waiting = GaugeMetricFamily("ingero_fleet_export_queue", "Pushes waiting.", labels=["exporter"])
    for name, counters in traffic.exporters.items():
        for kind in ("sent", "dropped_queue_full", "dropped_permanent", "dropped_elapsed", "retries"):
            outcome.add_metric([name, kind], getattr(counters, kind))
        refused.add_metric([name], counters.rejected_records)
        waiting.add_metric([name], traffic.waiting[name])
    yield from (outcome, refused, waiting)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value if np.isfinite(value) else 0.0)
    return family
