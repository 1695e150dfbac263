"""The Prometheus metrics of collectives."""

from collections.abc import Iterator
from typing import Final

from ingero_fleet.collectives.answers import MAX_SERIES
from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_kit.metrics_table import MetricRow, counter, gauge


def _shares(tracker: CollectivesTracker) -> Iterator[tuple[tuple[str, ...], float]]:
    for (cluster, node), item in list(tracker.stragglers.items())[:MAX_SERIES]:
        rank = item.get("gpu") or ("" if item["rank"] is None else str(item["rank"]))
        yield (cluster, node, item["comm"], rank), item["share"]


def _slow_network(tracker: CollectivesTracker) -> Iterator[tuple[tuple[str, ...], float]]:
    for cluster, verdict in list(tracker.network.now.items())[:MAX_SERIES]:
        for item in verdict["elements"] or [{"name": ""}]:
            yield (cluster, item.get("kind", verdict["kind"]), item["name"]), verdict["excess_share"]


COLLECTIVES: Final[tuple[MetricRow[CollectivesTracker], ...]] = (
    gauge(
        "ingero_fleet_collective_peer_lag_milliseconds",
        "Recent lag of a rank behind the median rank; the largest lags only.",
        lambda s: [((key.cluster, key.hash, str(rank), node), lag) for key, rank, node, lag in s.largest_lags()],
        "cluster_id",
        "comm",
        "rank",
        "node_id",
    ),
    gauge(
        "ingero_fleet_collective_culprit_share",
        "Share of time lost waiting for this rank alone.",
        _shares,
        "cluster_id",
        "node_id",
        "comm",
        "rank",
    ),
    gauge(
        "ingero_fleet_slow_network",
        "Relative excess of the slowest collectives, by the part of the network that is slow; no name where unknown.",
        _slow_network,
        "cluster_id",
        "kind",
        "name",
    ),
    gauge(
        "ingero_fleet_network_groups",
        "Groups of ranks whose collectives were compared to find slow parts of the network.",
        lambda s: [((cluster,), count) for cluster, count in list(s.network.compared.items())[:MAX_SERIES]],
        "cluster_id",
    ),
    gauge("ingero_fleet_transfer_series", "Series of collectives' durations kept.", lambda s: len(s.transfers)),
    gauge("ingero_fleet_communicators", "Communicators that are kept.", lambda s: len(s.windows)),
    gauge("ingero_fleet_gpus", "GPUs whose throttling is tracked.", lambda s: len(s.gpus)),
    counter("ingero_fleet_collective_points", "Collective points taken.", lambda s: s.points),
    counter(
        "ingero_fleet_collectives",
        "Collectives and points by outcome.",
        lambda s: {**s.outcomes, "pushes_over_limit": s.dropped},
        "outcome",
    ),
    counter(
        "ingero_fleet_collective_points_refused",
        "Points of collectives and GPUs left out, by reason.",
        lambda s: s.refused,
        "reason",
    ),
    counter(
        "ingero_fleet_collective_polls",
        "Polls of collectives between two ticks.",
        lambda s: {name: s.polls[name] for name in ("done", "failed")},
        "outcome",
    ),
)
