"""The published rule over a history, for comparison: median - 2 x 1.4826 x MAD under an exponential average."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_analyze.replay.recorded_history import RecordedTick
from ingero_contract.identifiers import NodeKey
from ingero_contract.values import VerdictState
from ingero_detect.nodes.cohorts import CohortKey
from ingero_detect.nodes.observation import ACTIVE, Edge
from ingero_detect.nodes.verdicts import Axis, Kind, Verdict
from ingero_detect.threshold import HYSTERESIS, cohort_statistics, raw_threshold, smooth

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class PublishedRuleJudge:
    """A straggler recovers at 0.02 above the threshold; rates count against the median of a warm-up."""

    def __init__(self, measure: str, tick_seconds: float, warmup: int, k: float = 2.0, alpha: float = 0.2) -> None:
        self.node_hours = 0.0
        self._scores = measure == "score"
        self._tick_hours = tick_seconds / 3600
        self._warmup, self._k, self._alpha = warmup, k, alpha
        self._smoothed: dict[CohortKey, float] = {}
        self._nodes = NodeNumbers()
        self._first: dict[int, list[float]] = {}
        self._base = np.zeros(0)
        self._since = np.zeros(0)
        self._names: list[NodeKey] = []
        self._speeds = np.zeros(0, np.float32)

    def tick(self, moment: RecordedTick) -> list[Edge]:
        """Judge one tick."""
        seen = moment.seen
        numbers = self._numbers(seen.names)
        active = np.flatnonzero(seen.state == ACTIVE)
        scores = self._score(numbers[active], seen.value[active])
        known = np.isfinite(scores)
        active, scores = active[known], scores[known]
        self.node_hours += len(active) * self._tick_hours
        present, group = np.unique(seen.cohort[active], return_inverse=True)
        cohorts = [seen.cohorts[number] for number in present.tolist()]
        raw = raw_threshold(cohort_statistics(scores, group, len(cohorts)), self._k, 0.0)
        previous = np.array([self._smoothed.get(key, np.nan) for key in cohorts])
        smoothed = smooth(previous, raw, self._alpha)
        self._smoothed.update(zip(cohorts, smoothed.tolist(), strict=True))
        threshold, judged = smoothed[group], numbers[active]
        was = np.isfinite(self._since[judged])
        slow = scores < threshold + np.where(was, HYSTERESIS, 0.0)
        edges = []
        for place in np.flatnonzero(slow != was).tolist():
            node, since = int(judged[place]), moment.now
            if was[place]:
                since = float(self._since[node])
            self._since[node] = np.nan if was[place] else since
            edges.append(
                _edge(
                    seen.names[int(active[place])], cohorts[int(group[place])], moment.now, since,
                    float(scores[place]), float(threshold[place]), bool(slow[place]), len(group),
                )
            )  # fmt: skip
        self._names = [seen.names[row] for row in active.tolist()]
        self._speeds = scores.astype(np.float32)
        return edges + self._gone(judged, moment.now)

    def _numbers(self, names: Sequence[NodeKey]) -> Ints:
        """Numbers of nodes, entering new ones."""
        places, nodes = self._nodes.of(names), len(self._nodes)
        self._base, self._since = longer(self._base, nodes, np.nan), longer(self._since, nodes, np.nan)
        return places

    def _score(self, numbers: Ints, value: Floats) -> Floats:
        """Scores of nodes, NaN in their warm-up."""
        if self._scores:
            return value
        for place in np.flatnonzero(np.isnan(self._base[numbers])).tolist():
            number = int(numbers[place])
            first = self._first.setdefault(number, [])
            first.append(float(value[place]))
            if len(first) == self._warmup:
                self._base[number] = float(np.median(first)) or 1.0
                del self._first[number]
        return np.minimum(1.0, value / self._base[numbers])

    def _gone(self, judged: Ints, now: float) -> list[Edge]:
        """End the accusations of stragglers that were not judged in this tick."""
        accused = np.isfinite(self._since)
        accused[judged] = False
        if not accused.any():
            return []
        names, edges = self._nodes.names, []
        for number in np.flatnonzero(accused).tolist():
            since, self._since[number] = float(self._since[number]), np.nan
            edges.append(_edge(names[number], ("", ""), now, since, 0.0, 0.0, False, 0))
        return edges

    def open_verdicts(self, nodes: list[NodeKey]) -> Iterator[Verdict]:
        """None; this rule reports changes only."""
        return iter(())

    def names(self) -> list[NodeKey]:
        """Nodes of the last tick."""
        return self._names

    def speeds(self) -> npt.NDArray[np.float32]:
        """Scores of the last tick."""
        return self._speeds

    def summary(self) -> dict[str, Any]:
        return {
            "budget": None,
            "estimated_false_alarms": None,
            "parameters": {"k": self._k, "alpha": self._alpha, "hysteresis": HYSTERESIS, "warmup": self._warmup},
            "digest": "",
        }


def _edge(
    node: NodeKey, cohort: CohortKey, now: float, since: float, score: float, threshold: float, slow: bool, size: int
) -> Edge:
    verdict = Verdict(
        cluster=node[0], node=node[1], state=VerdictState.STRAGGLER if slow else VerdictState.HEALTHY,
        kind=Kind.SLOW, axis=Axis.PEERS, since=since, detected=since, recovered=None if slow else now,
        severity=max(0.0, 1 - score), value=score, expected=threshold, residual=None, scale=None, evidence=None,
        level=None, cohort="/".join(part for part in cohort[1:] if part), cohort_size=size, merged=False,
        time=now, digest="",
    )  # fmt: skip
    return Edge("accused" if slow else "cleared", verdict)
