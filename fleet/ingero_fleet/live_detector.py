"""Runs the detector live: a snapshot of the score map in, findings on every node out. Runs in the engine's worker.

A node is judged by its rate of work where it reports one, otherwise by its score; the two are never compared.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from ingero_contract.identifiers import NodeKey
from ingero_contract.values import SLOW_FROM_START
from ingero_contract.verdicts import VerdictLine, parse_verdict
from ingero_detect.nodes.codes import IDLING, LEARNING, SILENT, is_accused
from ingero_detect.nodes.codes import STATES as VERDICT_STATES
from ingero_detect.nodes.cohorts import CohortKey
from ingero_detect.nodes.detector import Detector
from ingero_detect.nodes.fingerprint import state_hash
from ingero_detect.nodes.observation import (
    ABSENT,
    ACTIVE,
    CALIBRATING,
    HELD,
    IDLE,
    Edge,
    JobSlow,
    Observation,
    Outcome,
)
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.sequential_tests import LARGEST_SHARE
from ingero_detect.nodes.verdict_view import VerdictView
from ingero_detect.nodes.verdicts import Verdict
from ingero_fleet import score_table
from ingero_fleet.processor_settings import IngeroConfig
from ingero_fleet.recording import MERGEABLE, PARTS, TickRecorder
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.verdict_cache import NodeVerdicts

BY_SCORE: Final = "score"
"""Last part of the cohort key of nodes that report no rate."""

REPORTED_SHARE: Final = 0.75
"""Share of the nodes that must have reported before the detector judges."""

MAX_WAIT_TICKS: Final = 6
"""Ticks after which it judges the nodes that have reported."""

FALLEN_SHARE: Final = 0.82
"""Share of a node's expected value below which its report is judged before the tick is due."""

NOTHING_ADDED: Final = 2.0
"""Standard deviations of its noise by which a fallen node may be below what it is expected to do without any evidence
against it: the drift of the test, and the errors of its baseline and of the common level."""

LATEST_EARLY_POLL: Final = 0.9
"""An early poll counts as at most this long after a tick, in ticks."""

STATE_TICKS: Final = 12
"""Ticks between two state hashes of a recording."""

MAX_HELD_TICKS: Final = 1.5
"""Ticks after which a report is too old to represent its node in an early poll."""

_CODES: Final = {score_table.ACTIVE: ACTIVE, score_table.IDLE: IDLE, score_table.CALIBRATING: CALIBRATING}

EDGES: Final = TypeAdapter(list[Edge])
JOBS: Final = TypeAdapter(list[JobSlow])

_NO_ROWS: Final = np.zeros(0, np.int64)

_UNACCUSED_LINES: Final = [*(str(state) for state in VERDICT_STATES), ""]
"""Verdict lines of nodes that are not accused, by code; the last one, of nodes not judged, is empty."""

_NOT_JUDGED: Final = len(VERDICT_STATES)

_MAX_ECHOED_SEVERITY: Final = 0.99
"""Largest loss that is taken from an echoed verdict."""

MOST_REASON: Final = 200
"""Most characters of the reason why the detector learns anew."""


@dataclass(frozen=True)
class LearningPhase:
    """Most nodes that work are in their warm-up, so hardly any can be accused. Times in seconds since the epoch."""

    since: float
    until: float
    """When nodes that work without a pause have ended their warm-up."""
    reason: str = ""
    """Why the state of an earlier Fleet could not be used; empty if there was none."""


@dataclass(frozen=True)
class Findings:
    """The detector's results after a tick. Arrays are by row of the snapshot; `slots` index the view or are -1.

    `accusations` and their `delay_seconds`, onset to alarm, are sums since Fleet started; so is `dropped`, how often
    a node or a cohort exceeded the limits.
    """

    view: VerdictView
    slots: npt.NDArray[np.int64]
    states: npt.NDArray[np.uint8]
    accused: npt.NDArray[np.bool_]
    node_verdicts: NodeVerdicts
    edges: list[Edge] = field(default_factory=list)
    jobs: list[JobSlow] = field(default_factory=list)
    estimates: Mapping[str, float] = field(default_factory=dict)
    accusations: int = 0
    delay_seconds: float = 0.0
    dropped: Mapping[str, int] = field(default_factory=dict)
    learning: LearningPhase | None = None

    def verdict(self, row: int) -> Verdict | None:
        """The verdict on the node of a row."""
        slot = int(self.slots[row])
        return self.view.verdict(slot) if slot >= 0 else None


def parameters_of(config: IngeroConfig) -> Parameters:
    """The detector's parameters under these settings."""
    settings = config.detector
    return Parameters(
        tick_seconds=config.push_interval,
        budget=settings.false_alarms_per_node_hour,
        warmup=settings.warmup_ticks,
        min_peers=config.quorum.statistical_min,
        own_band=settings.own_band,
        absolute_band=settings.absolute_band,
        max_nodes=config.max_nodes,
    )


class LiveDetector:
    """Owns the detector between ticks."""

    def __init__(self, config: IngeroConfig) -> None:
        self.detector = Detector(parameters_of(config), MERGEABLE)
        self._lock = threading.Lock()
        self.accusations = 0
        self.delay_seconds = 0.0
        self._by = config.cohort.by
        self._interval = config.push_interval
        self._warmup_seconds = config.detector.warmup_ticks * config.push_interval
        self._learning_since: float | None = None
        self._refusal = ""
        self._now = 0.0
        self._ticked_at = 0.0
        self._known = (_NO_ROWS, _NO_ROWS)
        self._polled = False
        self._early_edges: list[Edge] = []
        self._fresh = np.zeros(0, np.bool_)
        self._waited = 0
        self._expected = 0
        self._last_verdicts: dict[int, str] = {}
        self._jobs: list[JobSlow] = []
        self._order: tuple[list[NodeKey], npt.NDArray[np.bool_], npt.NDArray[np.int64], list[NodeKey]]
        self._order = ([], np.zeros(0, np.bool_), np.zeros(0, np.int64), [])
        self._estimates: Mapping[str, float] = {}
        settings = config.detector
        self._recorder = TickRecorder(settings.record, settings.record_bytes) if settings.record else None

    def state(self) -> dict[str, Any]:
        """Everything that later ticks depend on."""
        with self._lock:
            slots, tenancy = self._known
            return {
                "detector": self.detector.snapshot(),
                "now": self._now,
                "ticked_at": self._ticked_at,
                "known_slots": slots,
                "known_tenancy": tenancy,
                "polled": self._polled,
                "early_edges": EDGES.dump_python(self._early_edges, mode="json"),
                "fresh": self._fresh,
                "waited": self._waited,
                "expected": self._expected,
                "last_verdicts": list(self._last_verdicts.items()),
                "jobs": JOBS.dump_python(self._jobs, mode="json"),
                "accusations": self.accusations,
                "delay_seconds": self.delay_seconds,
                "estimates": dict(self._estimates),
                "learning_since": self._learning_since,
                "refusal": self._refusal,
            }

    def restore(self, state: Mapping[str, Any], *, continued: bool) -> None:
        """Continue from a state that `state` returned; raises `SnapshotError`, and then nothing has changed.

        Unless the state is `continued` at once, reports have been missed meanwhile: the detector waits until most
        nodes of the state have reported again.
        """
        with self._lock:
            self._now = self.detector.restore(bytes(state["detector"]), continued=continued)
            self._expected = self.detector.present()
            self._polled = True
            self._learning_since, self._refusal = state.get("learning_since"), state.get("refusal", "")
            self.accusations, self.delay_seconds = state.get("accusations", 0), state.get("delay_seconds", 0.0)
            if continued:
                self._known = state["known_slots"], state["known_tenancy"]
                self._polled, self._ticked_at = state["polled"], state["ticked_at"]
                self._early_edges = EDGES.validate_python(state["early_edges"])
                self._fresh, self._waited, self._expected = state["fresh"], state["waited"], state["expected"]
                self._last_verdicts = dict(state["last_verdicts"])
                self._jobs = JOBS.validate_python(state["jobs"])
                self._estimates = state["estimates"]

    def learns_anew(self, reason: str) -> None:
        """The state of an earlier Fleet could not be used, for this reason."""
        with self._lock:
            self._refusal = reason[:MOST_REASON]

    def interrupted(self, seconds: float) -> None:
        """Reports were missed for so long: wait until most nodes have reported again, and take none for silent."""
        with self._lock:
            self.detector.interrupted(seconds)
            self._expected, self._waited, self._polled = self.detector.present(), 0, True

    def judge(self, scores: ScoreSnapshot, last_verdicts: Mapping[int, str]) -> Findings:
        """Judge one snapshot. `last_verdicts`: by row, the verdict that a node received before Fleet restarted."""
        with self._lock:
            return self._judge(scores, last_verdicts)

    def _judge(self, scores: ScoreSnapshot, last_verdicts: Mapping[int, str]) -> Findings:
        self._last_verdicts.update(last_verdicts)
        fresh = self._gathered(scores)
        if fresh is None:
            return self._unchanged(scores)
        last_verdicts, self._last_verdicts = self._last_verdicts, {}
        now = max(self._grid(scores.now), self._now + self._interval if self._now else 0.0)
        self._now, self._ticked_at = now, scores.now
        rows, names = self._sorted(scores)
        outcome = self._tick(now, self._observe(scores, fresh, rows, names, last_verdicts))
        edges, self._early_edges = [*self._early_edges, *outcome.edges], []
        self._jobs = outcome.jobs
        findings = self._findings(scores, rows, names, outcome.slots, edges, outcome.jobs)
        self._known, self._polled = (findings.slots, scores.columns["tenancy"]), False
        return findings

    def _tick(self, now: float, seen: Observation) -> Outcome:
        """Run one tick of the detector and record it."""
        outcome = self.detector.tick(now, seen)
        for edge in outcome.edges:
            if edge.what == "accused":
                self.accusations += 1
                self.delay_seconds += max(0.0, edge.verdict.time - (edge.verdict.since or edge.verdict.time))
        if self._recorder:
            self._recorder.write(now, seen)
            if self.detector.ticks % STATE_TICKS == 0:
                self._recorder.note_state(outcome.digest, state_hash(self.detector.memory))
        return outcome

    def fallen(self, table: ScoreTable) -> npt.NDArray[np.int64]:
        """Rows whose nodes have fallen far, or gone idle, since the last tick, by reports that no tick has judged.

        Far is what adds the largest step to the evidence: less would need two more ticks, which the early poll
        postpones. May run in parallel with the score map's owner: the rows are judged on a snapshot, so changes
        meanwhile do no harm.
        """
        with self._lock:
            if self._polled:
                return _NO_ROWS
            slots, tenancy = self._known
            known = min(len(slots), len(table.names))
            new = table.view("fresh")[:known] & table.view("alive")[:known] & (slots[:known] >= 0)
            rows = np.flatnonzero(new & (table.view("tenancy")[:known] == tenancy[:known]))
            rows = rows[self._healthy(slots[rows])]
            rate, reported = table.view("rate")[rows], table.view("state")[rows]
            value = np.where(np.isfinite(rate), rate, table.view("score")[rows])
            deviations = self.detector.parameters.largest_step + NOTHING_ADDED
            noise = deviations * self.detector.memory.node("scale")[slots[rows]].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                line = np.exp(
                    self.detector.memory.node("expected")[slots[rows]] - np.maximum(-np.log(FALLEN_SHARE), noise)
                )
                low = value < line
            found: npt.NDArray[np.int64] = rows[
                ((reported == score_table.ACTIVE) & low) | (reported == score_table.IDLE)
            ]
            return found

    def _healthy(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the nodes worked at the last tick, have a baseline, and little evidence.

        The reports of a tick and of an early poll soon after it share some time, so they must not accuse together.
        Nodes with more evidence are judged by the tick, which an early poll would postpone.
        """
        memory, largest = self.detector.memory, self.detector.parameters.largest_step
        alarms = memory.group("alarm")
        if not len(alarms):
            return np.zeros(len(slots), np.bool_)
        alarm = alarms[memory.node("group")[slots]]
        healthy = memory.node("learned")[slots] & (memory.node("code")[slots] == ACTIVE)
        room = memory.node("slow")[slots] <= alarm - np.minimum(largest, LARGEST_SHARE * alarm)
        found: npt.NDArray[np.bool_] = healthy & room & (memory.node("run")[slots] == 0)
        return found & ~is_accused(memory.node("state"))[slots]

    def judge_early(self, scores: ScoreSnapshot, rows: npt.NDArray[np.int64]) -> None:
        """Judge the nodes of these rows before the tick is due; the latest reports of the others are their cohorts.

        Thus a fall is first seen when it is reported, and the tick an interval later may confirm it.
        """
        with self._lock:
            self._polled = True
            fallen = np.zeros(len(scores.names), np.bool_)
            fallen[rows] = True
            self._fresh = self._fresh & ~fallen[: len(self._fresh)]
            since = (scores.now - self._ticked_at) / self._interval
            now = self._now + self._interval * min(max(since, 1 - LATEST_EARLY_POLL), LATEST_EARLY_POLL)
            current = scores.now - scores.columns["seen"] <= MAX_HELD_TICKS * self._interval
            places, names = self._sorted(scores)
            seen = self._observe(scores, fallen, places, names, {}, held=current & ~fallen)
            self._early_edges += self._tick(now, seen).edges

    def _findings(
        self,
        scores: ScoreSnapshot,
        rows: npt.NDArray[np.int64],
        names: list[NodeKey],
        of_names: npt.NDArray[np.int64],
        edges: list[Edge],
        jobs: list[JobSlow],
    ) -> Findings:
        slots = np.full(len(scores.names), -1, np.int64)
        slots[rows] = of_names
        view = self.detector.view()
        if not len(view.names):
            return Findings(
                view, slots, np.zeros(len(slots), np.uint8), np.zeros(len(slots), np.bool_), NodeVerdicts()
            )
        states = np.where(slots >= 0, view.columns["state"][slots], 0).astype(np.uint8)
        return Findings(
            view,
            slots,
            states,
            is_accused(states) & (slots >= 0),
            self._node_verdicts(view, names, of_names, scores.now),
            edges,
            jobs,
            self._estimate(),
            self.accusations,
            self.delay_seconds,
            {"node": self.detector.memory.dropped_nodes, "cohort": self.detector.memory.dropped_cohorts},
            self._learning(states[slots >= 0], self.detector.memory.node("learned")[slots[slots >= 0]], scores.now),
        )

    def _learning(
        self, states: npt.NDArray[np.uint8], learned: npt.NDArray[np.bool_], now: float
    ) -> LearningPhase | None:
        """The phase in which most nodes that work are in their warm-up, by the states of the judged nodes.

        `learned`: which of them have ended theirs. They do not need it again while only their agents calibrate.
        """
        working = (states != IDLING) & (states != SILENT)
        if not working.any():
            return None
        if 2 * np.count_nonzero(working & (states == LEARNING) & ~learned) <= np.count_nonzero(working):
            self._learning_since, self._refusal = None, ""
            return None
        if self._learning_since is None:
            self._learning_since = now
        since = self._learning_since
        return LearningPhase(since, since + self._warmup_seconds, self._refusal)

    def _gathered(self, scores: ScoreSnapshot) -> npt.NDArray[np.bool_] | None:
        """Which nodes have reported since the detector last judged; `None` to wait for more reports.

        Where pushes come slower than ticks, a tick sees only a few nodes, too few to compare. So the detector waits
        until most nodes have reported, but only for a limited time: silent nodes do not block the others. After a
        restart it also waits for most nodes of the snapshot, so that they are not silent while they reconnect.
        """
        alive = scores.columns["alive"]
        fresh: npt.NDArray[np.bool_] = scores.columns["fresh"] & alive
        before = self._fresh[: len(fresh)]
        fresh[: len(before)] |= before & alive[: len(before)]
        self._waited += 1
        if fresh.sum() < REPORTED_SHARE * max(alive.sum(), self._expected) and self._waited < MAX_WAIT_TICKS:
            self._fresh = fresh
            return None
        self._fresh, self._waited, self._expected = np.zeros(0, np.bool_), 0, 0
        return fresh

    def _unchanged(self, scores: ScoreSnapshot) -> Findings:
        """The latest findings for the rows of this snapshot; newer nodes are looked up by name."""
        rows, names = self._sorted(scores)
        slots, tenancy = self._known
        before = rows[rows < len(slots)]
        by_row = np.full(len(scores.names), -1, np.int64)
        by_row[before] = np.where(tenancy[before] == scores.columns["tenancy"][before], slots[before], -1)
        of_names = by_row[rows]
        for place in np.flatnonzero(of_names < 0).tolist():
            slot = self.detector.memory.slot(names[place])
            of_names[place] = -1 if slot is None else slot
        return self._findings(scores, rows, names, of_names, [], self._jobs)

    def _estimate(self) -> Mapping[str, float]:
        """Estimates of false alarms for the budget, updated once in twelve ticks."""
        if self.detector.ticks % 12 == 0 or not self._estimates:
            self._estimates = self.detector.estimates()
        return self._estimates

    @property
    def failed_recordings(self) -> int | None:
        """Ticks that could not be recorded; `None` without a recording."""
        return self._recorder.failures if self._recorder else None

    def close(self) -> None:
        """Close the recording, after a running tick has ended."""
        with self._lock:
            if self._recorder:
                self._recorder.close()

    def _grid(self, now: float) -> float:
        return round(now / self._interval) * self._interval

    def _sorted(self, scores: ScoreSnapshot) -> tuple[npt.NDArray[np.int64], list[NodeKey]]:
        """Rows of living nodes by (cluster, node); sorted again only when a node came or went.

        The previous order is kept as the start, because sorting nearly sorted rows is fast and blocks other threads
        only briefly.
        """
        alive = scores.columns["alive"]
        known, were, rows, names = self._order
        if known is not scores.names or not np.array_equal(were, alive):
            came = alive.copy()
            came[rows] = False
            found = [*rows[alive[rows]].tolist(), *np.flatnonzero(came).tolist()]
            found.sort(key=scores.names.__getitem__)
            rows, names = np.array(found, np.int64), [scores.names[row] for row in found]
            self._order = (scores.names, alive, rows, names)
        return rows, names

    def _observe(
        self,
        scores: ScoreSnapshot,
        fresh: npt.NDArray[np.bool_],
        rows: npt.NDArray[np.int64],
        names: list[NodeKey],
        last_verdicts: Mapping[int, str],
        held: npt.NDArray[np.bool_] | None = None,
    ) -> Observation:
        columns = scores.columns
        rate = columns["rate"][rows]
        by_rate = np.isfinite(rate)
        value = np.where(by_rate, rate, columns["score"][rows])
        fresh = fresh[rows]
        reported = columns["state"][rows]
        state = np.full(len(rows), ABSENT, np.uint8)
        for theirs, ours in _CODES.items():
            state[fresh & (reported == theirs)] = ours
        if held is not None:
            state[held[rows] & (reported == score_table.ACTIVE)] = HELD
        value = np.where(state == ABSENT, np.nan, value)
        cohort = 2 * columns["cohort"][rows].astype(np.int64) + ~by_rate
        return Observation(names, cohort, self._keys(scores.cohorts), value, state, _echoes(rows, last_verdicts))

    def _keys(self, cohorts: list[CohortKey]) -> list[CohortKey]:
        """Keys of cohorts as recordings name them, two for each: judged by rate, and by score."""
        places = [self._by.index(part) + 1 if part in self._by else None for part in PARTS[:-1]]
        keys: list[CohortKey] = []
        for key in cohorts:
            full = (key[0], *(key[place] if place else "" for place in places))
            keys += [(*full, ""), (*full, BY_SCORE)]
        return keys

    def _node_verdicts(
        self, view: VerdictView, names: list[NodeKey], slots: npt.NDArray[np.int64], now: float
    ) -> NodeVerdicts:
        """The verdict line of every node of a snapshot."""
        codes = np.where(slots >= 0, view.columns["state"][slots], _NOT_JUDGED)
        loud = is_accused(codes)
        quiet = codes[~loud & (slots >= 0)]
        default = int(np.bincount(quiet).argmax()) if len(quiet) else _NOT_JUDGED
        overrides = {
            names[place]: _line(view, int(slots[place])) if loud[place] else _UNACCUSED_LINES[codes[place]]
            for place in np.flatnonzero(codes != default).tolist()
        }
        return NodeVerdicts(_UNACCUSED_LINES[default], overrides, now)


def _line(view: VerdictView, slot: int) -> str:
    verdict = view.verdict(slot)
    return VerdictLine(
        state=verdict.state, kind=str(verdict.kind), since=verdict.since, severity=verdict.severity
    ).format()


def _echoes(rows: npt.NDArray[np.int64], last_verdicts: Mapping[int, str]) -> dict[int, float]:
    if not last_verdicts:
        return {}
    places = {row: place for place, row in enumerate(rows.tolist())}
    losses = {places[row]: _echoed(text) for row, text in last_verdicts.items() if row in places}
    return {place: loss for place, loss in losses.items() if loss is not None}


def _echoed(text: str) -> float | None:
    """The loss, log units, of an accusation that a node echoes; `None` for anything else.

    A node that was slow from the start is found again by its peers once its history has been learnt.
    """
    line = parse_verdict(text)
    if line is None or not line.is_straggler or line.kind == SLOW_FROM_START:
        return None
    return float(-np.log1p(-min(line.severity or 0.0, _MAX_ECHOED_SEVERITY)))
