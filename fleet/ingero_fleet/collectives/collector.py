"""The Prometheus page of collectives."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingero_fleet.collectives.answers import MAX_SERIES
from ingero_fleet.collectives.tracker import CollectivesTracker


class CollectivesCollector(Collector):
    """Peer lags and culprits for the findings page, and what became of points."""

    def __init__(self, tracker: CollectivesTracker) -> None:
        self._tracker = tracker

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        tracker = self._tracker
        lag = GaugeMetricFamily(
            "ingero_fleet_collective_peer_lag_milliseconds",
            "How much later than the median rank a rank came lately; the largest lags only.",
            labels=["cluster_id", "comm", "rank", "node_id"],
        )
        for key, rank, node, value in tracker.largest_lags():
            lag.add_metric([key.cluster, key.hash, str(rank), node], value)
        share = GaugeMetricFamily(
            "ingero_fleet_collective_culprit_share",
            "Share of time lost waiting for this rank alone.",
            labels=["cluster_id", "node_id", "comm", "rank"],
        )
        for (cluster, node), item in list(tracker.stragglers.items())[:MAX_SERIES]:
            one = "" if item["rank"] is None else str(item["rank"])
            share.add_metric([cluster, node, item["comm"], one], item["share"])
        communicators = GaugeMetricFamily("ingero_fleet_communicators", "Communicators that are kept.")
        communicators.add_metric([], len(tracker.windows))
        gpus = GaugeMetricFamily("ingero_fleet_gpus_told", "GPUs of which it is kept whether they are held back.")
        gpus.add_metric([], len(tracker.gpus))
        points = CounterMetricFamily("ingero_fleet_collective_points", "Collective points taken.")
        points.add_metric([], tracker.points)
        outcome = CounterMetricFamily(
            "ingero_fleet_collectives", "Collectives and points by what became of them.", labels=["outcome"]
        )
        for name, count in list(tracker.outcomes.items()):
            outcome.add_metric([name], count)
        outcome.add_metric(["pushes_over_limit"], tracker.dropped)
        refused = CounterMetricFamily(
            "ingero_fleet_collective_points_refused",
            "Points of collectives and GPUs left out, by reason.",
            labels=["reason"],
        )
        for reason, count in list(tracker.refused.items()):
            refused.add_metric([reason], count)
        polls = CounterMetricFamily(
            "ingero_fleet_collective_looks", "Looks at collectives between two ticks.", labels=["outcome"]
        )
        for name in ("done", "failed"):
            polls.add_metric([name], tracker.polls[name])
        yield from (lag, share, communicators, points, outcome, refused, polls, gpus)
