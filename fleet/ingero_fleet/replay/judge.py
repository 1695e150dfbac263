"""Run a history through a rule: the detector that Fleet runs live, or the published one for comparison."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ingero_contract.values import VerdictState
from ingero_detect.detector import Detector
from ingero_detect.episodes import Episode, Episodes
from ingero_detect.memory import NodeKey
from ingero_detect.observation import ACTIVE, Edge, JobSlow
from ingero_detect.parameters import Parameters
from ingero_detect.threshold import HYSTERESIS, cohort_statistics, raw_threshold, smooth
from ingero_detect.verdicts import Axis, Kind, Verdict
from ingero_fleet.replay.history import History, Moment


class Rule(StrEnum):
    """Who judges."""

    INGERO = "ingero"
    MAD = "mad"


@dataclass
class Watch:
    """What a plot needs: for some ticks the speed of every node relative to what was expected of it."""

    most_cells: int = 4_000_000
    stride: int = 1
    times: list[float] = field(default_factory=list)
    speeds: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def note(self, tick: int, now: float, speed: npt.NDArray[np.float32]) -> None:
        """Keep a tick; every second one is dropped whenever there are too many."""
        if tick % self.stride:
            return
        self.times.append(now)
        self.speeds.append(speed)
        if len(self.times) * max(1, len(speed)) > self.most_cells:
            self.times, self.speeds = self.times[::2], self.speeds[::2]
            self.stride *= 2


class Judge(Protocol):
    """A rule over ticks."""

    @property
    def node_hours(self) -> float:
        """Node-hours judged."""

    def tick(self, moment: Moment) -> list[Edge]:
        """Judge one tick."""

    def open_verdicts(self, nodes: list[NodeKey]) -> Iterator[Verdict]:
        """The present verdicts of nodes that are accused."""

    def names(self) -> list[NodeKey]:
        """Nodes in the order of `speeds`."""

    def speeds(self) -> npt.NDArray[np.float32]:
        """Speed of every node in this tick relative to what was expected, NaN where it is not known."""

    def summary(self) -> dict[str, Any]:
        """Parameters, estimates and digest."""


class Ours:
    """The detector."""

    def __init__(self, parameters: Parameters, mergeable: tuple[int, ...]) -> None:
        self.detector = Detector(parameters, mergeable)
        self.digest = ""
        self.jobs: dict[tuple[str, ...], JobSlow] = {}

    @property
    def node_hours(self) -> float:
        """Node-hours judged."""
        return self.detector.node_hours

    def tick(self, moment: Moment) -> list[Edge]:
        """Judge one tick."""
        outcome = self.detector.tick(moment.now, moment.seen)
        self.digest = outcome.digest
        for job in outcome.jobs:
            self.jobs.setdefault((*job.cohort, str(job.since)), job)
        return outcome.edges

    def open_verdicts(self, nodes: list[NodeKey]) -> Iterator[Verdict]:
        """The present verdicts."""
        for node in nodes:
            slot = self.detector.memory.slot(node)
            if slot is not None:
                yield self.detector.verdict(slot)

    def names(self) -> list[NodeKey]:
        """Nodes by slot."""
        return self.detector.memory.names

    def speeds(self) -> npt.NDArray[np.float32]:
        """Value over expectation."""
        memory = self.detector.memory
        with np.errstate(divide="ignore", over="ignore"):
            speed = memory.node("value") / np.exp(memory.node("expected"))
        found: npt.NDArray[np.float32] = np.where(memory.node("absent") > 0, np.nan, speed).astype(np.float32)
        return found

    def summary(self) -> dict[str, Any]:
        """Budget, estimates, parameters, digest, jobs that slowed down as a whole."""
        estimates = self.detector.estimates()
        rate = max(estimates["own_tail"], estimates["mirror"])
        return {
            "budget": self.detector.parameters.budget,
            "estimated_false_alarms": float(f"{rate * self.node_hours:.4g}"),
            "parameters": asdict(self.detector.parameters),
            "digest": self.digest,
            "job_slow": [
                {"cohort": "/".join(job.cohort), "since": job.since, "severity": round(job.severity, 4)}
                for job in self.jobs.values()
            ],
        }


class Published:
    """median - 2 x 1.4826 x MAD under an exponential average; back 0.02 above it. Rates count against a warm-up."""

    def __init__(self, measure: str, tick_seconds: float, warmup: int, k: float = 2.0, alpha: float = 0.2) -> None:
        self.node_hours = 0.0
        self._scores = measure == "score"
        self._tick_hours = tick_seconds / 3600
        self._warmup, self._k, self._alpha = warmup, k, alpha
        self._first: dict[NodeKey, list[float]] = {}
        self._base: dict[NodeKey, float] = {}
        self._smoothed: dict[tuple[str, ...], float] = {}
        self._since: dict[NodeKey, float] = {}
        self._names: list[NodeKey] = []
        self._speeds = np.zeros(0, np.float32)

    def _score(self, node: NodeKey, value: float) -> float:
        if self._scores:
            return value
        base = self._base.get(node)
        if base is None:
            first = self._first.setdefault(node, [])
            first.append(value)
            if len(first) < self._warmup:
                return float("nan")
            base = self._base[node] = float(np.median(first)) or 1.0
            del self._first[node]
        return min(1.0, value / base)

    def tick(self, moment: Moment) -> list[Edge]:
        """Judge one tick."""
        seen = moment.seen
        active = np.flatnonzero(seen.state == ACTIVE)
        scores = np.array([self._score(seen.names[row], float(seen.value[row])) for row in active.tolist()])
        keep = np.isfinite(scores)
        active, scores = active[keep], scores[keep]
        self.node_hours += len(active) * self._tick_hours
        cohorts = sorted({seen.cohorts[number] for number in seen.cohort[active].tolist()})
        number_of = {key: number for number, key in enumerate(cohorts)}
        group = np.array([number_of[seen.cohorts[number]] for number in seen.cohort[active].tolist()], np.int64)
        raw = raw_threshold(cohort_statistics(scores, group, len(cohorts)), self._k, 0.0)
        previous = np.array([self._smoothed.get(key, np.nan) for key in cohorts])
        smoothed = smooth(previous, raw, self._alpha)
        self._smoothed.update(zip(cohorts, smoothed.tolist(), strict=True))
        edges = []
        judged = set()
        for row, score, number in zip(active.tolist(), scores.tolist(), group.tolist(), strict=True):
            node, threshold = seen.names[row], float(smoothed[number])
            judged.add(node)
            was = node in self._since
            slow = score < threshold + (HYSTERESIS if was else 0.0)
            if slow != was:
                since = self._since.pop(node) if was else self._since.setdefault(node, moment.now)
                edges.append(self._edge(node, cohorts[number], moment.now, since, score, threshold, slow, len(group)))
        for node in [node for node in self._since if node not in judged]:
            since = self._since.pop(node)
            edges.append(self._edge(node, ("", ""), moment.now, since, 0.0, 0.0, False, 0))
        self._names = [seen.names[row] for row in active.tolist()]
        self._speeds = scores.astype(np.float32)
        return edges

    @staticmethod
    def _edge(
        node: NodeKey, cohort: tuple[str, ...], now: float, since: float, score: float, threshold: float, slow: bool,
        size: int,
    ) -> Edge:  # fmt: skip
        verdict = Verdict(
            cluster=node[0], node=node[1], state=VerdictState.STRAGGLER if slow else VerdictState.HEALTHY,
            kind=Kind.SLOW, axis=Axis.PEERS, since=since, detected=since, recovered=None if slow else now,
            severity=max(0.0, 1 - score), value=score, expected=threshold, residual=None, scale=None, evidence=None,
            level=None, cohort="/".join(part for part in cohort[1:] if part), cohort_size=size, merged=False,
            time=now, digest="",
        )  # fmt: skip
        return Edge("accused" if slow else "cleared", verdict)

    def open_verdicts(self, nodes: list[NodeKey]) -> Iterator[Verdict]:
        """Nothing beyond the edges."""
        return iter(())

    def names(self) -> list[NodeKey]:
        """Nodes of the last tick."""
        return self._names

    def speeds(self) -> npt.NDArray[np.float32]:
        """Scores of the last tick."""
        return self._speeds

    def summary(self) -> dict[str, Any]:
        """What it was run with."""
        return {
            "budget": None,
            "estimated_false_alarms": None,
            "parameters": {"k": self._k, "alpha": self._alpha, "hysteresis": HYSTERESIS, "warmup": self._warmup},
            "digest": "",
        }


@dataclass
class Replay:
    """The result of a replay."""

    history: History
    judge: Judge
    episodes: list[Episode]
    ticks: int
    nodes: int
    first: float
    last: float
    watch: Watch | None

    def summary(self) -> dict[str, Any]:
        """The summary as JSON."""
        about = {
            "nodes": self.nodes,
            "ticks": self.ticks,
            "rows": self.history.rows,
            "node_hours": round(self.judge.node_hours, 6),
            "episodes": len(self.episodes),
            **self.judge.summary(),
        }
        about["parameters"] = {**about["parameters"], "tick_seconds": self.history.tick_seconds}
        return about


def replay(history: History, rule: Rule, parameters: Parameters, watch: Watch | None = None) -> Replay:
    """Judge a whole history; the tick is the history's. `TableError` when a file cannot be used."""
    judge: Judge | None = None
    episodes = Episodes()
    ticks, first, last = 0, 0.0, 0.0
    for moment in history.ticks():
        if judge is None:
            first = moment.now
            if rule is Rule.INGERO:
                judge = Ours(replace(parameters, tick_seconds=history.tick_seconds), history.mergeable)
            else:
                judge = Published(history.measure, history.tick_seconds, parameters.warmup)
        episodes.add(judge.tick(moment))
        if watch is not None:
            watch.note(ticks, moment.now, judge.speeds())
        ticks, last = ticks + 1, moment.now
    assert judge is not None, "a history without rows is an error before this"
    episodes.refresh(judge.open_verdicts(list(episodes.open)))
    return Replay(history, judge, episodes.all(), ticks, len(history.words.nodes), first, last, watch)
