"""One tick of the published rule: scores in, thresholds, stragglers and the state of the clusters out. Pure.

Threshold of a cohort: median - max(k x 1.4826 x MAD, min_band) over its active nodes, smoothed exponentially. A
cohort below the quorum takes the threshold of the cohort that it merges into (stage, then GPU model dropped); jobs
and workloads are never mixed. While a cluster panics (too large a share of it below its threshold) no node may be
acted on, and thresholds are frozen, but only for a limited time: a change that lasts is the new normal, otherwise a
panic could never end.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_detect.nodes.cohorts import CohortKey, drop_orders, widened
from ingero_detect.threshold import HYSTERESIS, cohort_statistics, raw_threshold, smooth
from ingero_fleet.processor_settings import IngeroConfig
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ACTIVE, CALIBRATING, IDLE, ScoreTable

MERGEABLE: Final = frozenset({"stage", "gpu_model", "cgroup_path_hash"})
"""Parts of its key that a small cohort may drop to find peers."""

PEAK_SECONDS: Final = 3600.0
"""Seconds for which the most nodes seen at once count as the size of a cluster that declares none."""

FREEZE_SECONDS: Final = 300.0
"""How long a panic freezes thresholds; afterwards they follow the scores again."""


@dataclass(frozen=True)
class CohortSummary:
    """The statistics of one cohort. `merged_into` names the wider cohort whose threshold it uses."""

    key: CohortKey
    active: int
    median: float
    mad: float
    threshold: float | None
    merged_into: CohortKey | None


@dataclass(frozen=True)
class ClusterSummary:
    """The statistics of one cluster; `threshold` is that of its largest cohort."""

    cluster: str
    active: int
    idle: int
    calibrating: int
    stragglers: int
    expected: int
    coverage_low: bool
    panic: bool
    threshold: float | None

    @property
    def quorum_met(self) -> bool:
        """Whether any cohort of the cluster has a threshold."""
        return self.threshold is not None


@dataclass(frozen=True)
class RuleState:
    """The state that one tick passes to the next.

    Smoothed thresholds by cohort, the size of clusters as (nodes, when), and since when clusters panic.
    """

    smoothed: Mapping[CohortKey, float] = field(default_factory=dict)
    peaks: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    panics: Mapping[str, float] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        """The same in the form of a snapshot."""
        return {name: sorted(value.items()) for name, value in vars(self).items()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "RuleState":
        """The state that `state` returned."""
        return cls(
            {tuple(key): value for key, value in state["smoothed"]},
            {cluster: (nodes, when) for cluster, (nodes, when) in state["peaks"]},
            dict(state["panics"]),
        )


@dataclass(frozen=True)
class Tick:
    """The outcome of one tick. The arrays are by row of the snapshot."""

    now: float
    thresholds: dict[CohortKey, float]
    cohorts: list[CohortSummary]
    clusters: dict[str, ClusterSummary]
    threshold_by_row: npt.NDArray[np.float64]
    straggling: npt.NDArray[np.bool_]
    since: npt.NDArray[np.float64]
    windows: npt.NDArray[np.int32]
    memory: RuleState


def compute(scores: ScoreSnapshot, memory: RuleState, config: IngeroConfig) -> Tick:
    """Run one tick over a snapshot."""
    columns = scores.columns
    alive, cohort = columns["alive"], columns["cohort"]
    active = alive & (columns["state"] == ACTIVE)
    count = len(scores.cohorts)
    cluster_names = sorted({key[0] for key in scores.cohorts})
    cluster_numbers = {name: number for number, name in enumerate(cluster_names)}
    cluster_of_cohort = np.array([cluster_numbers[key[0]] for key in scores.cohorts], np.int64)
    cluster = cluster_of_cohort[cohort] if count else np.zeros(len(cohort), np.int64)

    levels = _levels(scores.cohorts, config.cohort.by)
    chosen: list[CohortKey | None] = [None] * count
    summary: list[tuple[int, float, float]] = [(0, np.nan, np.nan)] * count
    smoothed: dict[CohortKey, float] = {}
    panicking = _panicking(active, columns["straggling"], cluster, cluster_names, config)
    panics = {name: memory.panics.get(name, scores.now) for name in panicking}
    held = {name for name, since in panics.items() if 0 <= scores.now - since < FREEZE_SECONDS}
    for depth, keys in enumerate(levels):
        if depth and all(key is not None for key in chosen):
            break
        groups = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        group_of_cohort = np.array([groups[key] for key in keys], np.int64)
        statistics = cohort_statistics(columns["score"][active], group_of_cohort[cohort[active]], len(groups))
        raw = raw_threshold(statistics, config.threshold.k, config.threshold.min_band)
        previous = np.array([memory.smoothed.get(key, np.nan) for key in groups])
        current = smooth(previous, raw, config.threshold.ema_alpha)
        frozen = np.array([key[0] in held for key in groups], bool) & np.isfinite(previous)
        current = np.where(frozen, previous, current)
        for number, key in enumerate(keys):
            group = groups[key]
            if not depth:
                summary[number] = (
                    int(statistics.count[group]), float(statistics.median[group]), float(statistics.mad[group])
                )  # fmt: skip
            if chosen[number] is None and statistics.count[group] >= config.quorum.statistical_min:
                chosen[number] = key
                smoothed[key] = float(current[group])
        for key in groups:
            if key in memory.smoothed:
                smoothed.setdefault(key, memory.smoothed[key])

    thresholds = {
        key: smoothed[group] for key, group in zip(scores.cohorts, chosen, strict=True) if group is not None
    }
    by_cohort = np.array([thresholds.get(key, np.nan) for key in scores.cohorts], np.float64)
    threshold_by_row = by_cohort[cohort] if count else np.full(len(cohort), np.nan)
    straggling, since, windows = _stragglers(scores, active, threshold_by_row)
    cohorts = [
        CohortSummary(
            key, active_count, median, mad, thresholds.get(key), group if group is not None and group != key else None
        )
        for key, group, (active_count, median, mad) in zip(scores.cohorts, chosen, summary, strict=True)
    ]
    clusters, peaks = _clusters(scores, cluster, cluster_names, straggling, cohorts, memory, config)
    return Tick(
        scores.now,
        thresholds,
        cohorts,
        clusters,
        threshold_by_row,
        straggling,
        since,
        windows,
        RuleState(smoothed, peaks, panics),
    )


def _levels(cohorts: list[CohortKey], by: tuple[str, ...]) -> list[list[CohortKey]]:
    """The key of every cohort as it is, then with one more of the droppable parts dropped at a time, last first."""
    mergeable = [place + 1 for place, part in enumerate(by) if part in MERGEABLE]
    return [[widened(key, dropped) for key in cohorts] for dropped in drop_orders(mergeable)]


def _panicking(
    active: npt.NDArray[np.bool_],
    straggling: npt.NDArray[np.bool_],
    cluster: npt.NDArray[np.int64],
    names: list[str],
    config: IngeroConfig,
) -> set[str]:
    total = np.bincount(cluster[active], minlength=len(names))
    below = np.bincount(cluster[active & straggling], minlength=len(names))
    return {
        name
        for name, nodes, low in zip(names, total.tolist(), below.tolist(), strict=True)
        if low > config.panic.straggler_fraction * nodes
    }


def _stragglers(
    scores: ScoreSnapshot,
    active: npt.NDArray[np.bool_],
    threshold: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64], npt.NDArray[np.int32]]:
    columns = scores.columns
    score, was = columns["score"], columns["straggling"]
    known = np.isfinite(threshold)
    line = np.where(was, threshold + HYSTERESIS, threshold)
    below = active & known & (score + 1e-9 < line)
    straggling = np.where(known, below, was & active)
    since = np.where(straggling, np.where(was, columns["since"], scores.now), 0.0)
    windows = np.where(straggling, columns["windows"] + columns["fresh"], 0).astype(np.int32)
    return straggling, since, windows


def _clusters(
    scores: ScoreSnapshot,
    cluster: npt.NDArray[np.int64],
    names: list[str],
    straggling: npt.NDArray[np.bool_],
    cohorts: Iterable[CohortSummary],
    memory: RuleState,
    config: IngeroConfig,
) -> tuple[dict[str, ClusterSummary], dict[str, tuple[int, float]]]:
    columns = scores.columns
    alive, state = columns["alive"], columns["state"]
    counts = {
        code: np.bincount(cluster[alive & (state == code)], minlength=len(names))
        for code in (ACTIVE, IDLE, CALIBRATING)
    }
    slow = np.bincount(cluster[alive & straggling], minlength=len(names))
    world = _declared_nodes(columns["world_size"][alive], cluster[alive], len(names))
    largest: dict[str, CohortSummary] = {}
    for summary in cohorts:
        best = largest.get(summary.key[0])
        if summary.threshold is not None and (best is None or summary.active > best.active):
            largest[summary.key[0]] = summary
    clusters, peaks = {}, {}
    for number, name in enumerate(names):
        reporting = int(sum(count[number] for count in counts.values()))
        if not reporting:
            continue
        peak, when = memory.peaks.get(name, (0, scores.now))
        if reporting >= peak or scores.now - when > PEAK_SECONDS:
            peak, when = reporting, scores.now
        peaks[name] = (peak, when)
        expected = config.quorum.expected_nodes or max(int(world[number]), peak)
        clusters[name] = ClusterSummary(
            cluster=name,
            active=int(counts[ACTIVE][number]),
            idle=int(counts[IDLE][number]),
            calibrating=int(counts[CALIBRATING][number]),
            stragglers=int(slow[number]),
            expected=expected,
            coverage_low=reporting < config.quorum.coverage_fraction * expected,
            panic=bool(slow[number] > config.panic.straggler_fraction * max(1, int(counts[ACTIVE][number]))),
            threshold=largest[name].threshold if name in largest else None,
        )
    return clusters, peaks


def _declared_nodes(
    sizes: npt.NDArray[np.int32], cluster: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.int32]:
    """The largest world size that two nodes of a cluster declare, or its only node does."""
    largest, second = np.zeros((2, count), np.int32)  # the column's type, otherwise NumPy converts every number
    np.maximum.at(largest, cluster, sizes)
    lower = sizes < largest[cluster]
    np.maximum.at(second, cluster[lower], sizes[lower])
    declared = np.bincount(cluster[~lower], minlength=count)
    nodes = np.bincount(cluster, minlength=count)
    found: npt.NDArray[np.int32] = np.where((declared > 1) | (nodes == 1), largest, second)
    return found


def apply(tick: Tick, scores: ScoreSnapshot, table: ScoreTable) -> None:
    """Write the threshold rule's state back to rows that still belong to the same node."""
    same = table.view("tenancy")[: len(scores.names)] == scores.columns["tenancy"]
    for name, column in (("straggling", tick.straggling), ("since", tick.since), ("windows", tick.windows)):
        place = table.view(name)[: len(column)]
        np.copyto(place, column, where=same)
