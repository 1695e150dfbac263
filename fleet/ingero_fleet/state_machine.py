"""All the state by which Fleet decides, and every step that changes it.

There is no clock in here: each step takes the time. Equal steps in an equal order lead to an equal state.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_detect.nodes.column_store import SnapshotError
from ingero_fleet import threshold_rule, verdict_records
from ingero_fleet.collectives.migrations import with_transfer_times, with_work
from ingero_fleet.collectives.tracker import CollectivesTracker, polls_per_tick
from ingero_fleet.cost.tracker import CostTracker
from ingero_fleet.hangs import HangTracker
from ingero_fleet.live_detector import Findings, LiveDetector
from ingero_fleet.processor_settings import ProcessorsConfig
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ReportBatch, ScoreTable
from ingero_fleet.state_codec import State, unsealed
from ingero_fleet.taints import records as taints
from ingero_fleet.taints.tracker import TaintTracker
from ingero_fleet.tick_snapshot import TickSnapshot
from ingero_fleet.verdict_cache import VerdictCache, with_collectives, without
from ingero_kit import hang_records
from ingero_kit.logs import get
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal

log = get(__name__)

ZIP: Final = b"PK"
"""The first bytes of a snapshot of the detector alone."""

TICKS_PER_EARLY_POLL: Final = 3
"""At most one in so many ticks is preceded by an early poll."""

VERSION: Final = 3
"""Version of the state. A change that an older state does not have needs an entry in `MIGRATIONS`."""

MIGRATIONS: Final[dict[int, Callable[[State], State]]] = {1: with_transfer_times, 2: with_work}
"""By version: makes a state of the next version from it."""

Export = Callable[[Push], None]


@dataclass(frozen=True)
class TickResult:
    """What a tick decided: the snapshot that the APIs read, and the answers to pushes until the next tick."""

    snapshot: TickSnapshot
    verdict_cache: VerdictCache

    def changes(self) -> bytes | None:
        """The changes of verdicts as OTLP log records; `None` without changes."""
        findings, scores = self.snapshot.findings, self.snapshot.scores
        return verdict_records.encode(findings.edges, scores.nodes_with_several_agents) if findings else None


def migrated(state: State) -> State:
    """A state of this version; raises `SnapshotError` if there is no way from its version."""
    while (version := state.get("version")) != VERSION:
        if version not in MIGRATIONS:
            raise SnapshotError(f"the snapshot has version {version}, which this Fleet cannot read")
        state = MIGRATIONS[version](state)
    return state


def read_state(data: bytes) -> State:
    """The state in a snapshot file; raises `SnapshotError`. Older files hold the detector alone."""
    if data.startswith(ZIP):
        return {"version": VERSION, "detector": {"detector": data}}
    return unsealed(data)


class StateMachine:
    """Score map, threshold rule, detector, collectives, cost, taints and hangs.

    A tick is `start_tick`, `copies`, `judge`, `conclude` and `book`, in this order; `tick` does all of them. `judge`
    and `book` may run in a thread while reports are taken, everything else may not.
    """

    def __init__(
        self,
        config: ProcessorsConfig,
        started: float,
        export: Export | None = None,
        export_logs: Export | None = None,
    ) -> None:
        """`export` takes metrics, `export_logs` takes log records; both may be called on any thread."""
        self.config = config.ingero
        self.table = ScoreTable.of(config.ingero)
        self.detector = LiveDetector(config.ingero)
        self.rule = threshold_rule.RuleState()
        self.taints = TaintTracker()
        self.hangs = HangTracker()
        self.polls = polls_per_tick(config.ingero.push_interval, config.nccl.poll_interval)
        self.collectives = CollectivesTracker(config.nccl, export, export_logs, polls=self.polls)
        self.cost = CostTracker(config.cost, self.table.hardware, config.ingero.cohort.by, started, export)
        self.ticks = 0
        self.early_polls = 0
        self.failed_bookings = 0
        self._next_early_poll = 0

    # State

    def state(self, now: float, table: State | None = None) -> State:
        """Everything that later steps depend on; `now` is the time of the last one.

        `table` is an earlier copy of the score map, for a caller in another thread than the one that takes reports.
        """
        return {
            "version": VERSION, "by": list(self.config.cohort.by), "ticks": self.ticks,
            "next_early_poll": self._next_early_poll, "early_polls": self.early_polls,
            "table": table or self.table.state(),
            "rule": self.rule.state(), "detector": self.detector.state(), "collectives": self.collectives.state(),
            "cost": self.cost.state(), "taints": self.taints.state(now), "hangs": self.hangs.state(now),
        }  # fmt: skip

    def restore(self, state: State, *, continued: bool) -> None:
        """Continue from a state that `state` returned; raises `SnapshotError` if it cannot be used.

        A state that is not `continued` at once, or is taken under other settings, is used as far as possible.
        """
        try:
            self._restore(migrated(state), continued)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, SnapshotError):
                raise
            raise SnapshotError(f"the snapshot does not fit this Fleet: {type(error).__name__} {error}") from error

    def _restore(self, state: State, continued: bool) -> None:
        try:
            self.detector.restore(state["detector"], continued=continued)
        except SnapshotError as error:
            if continued:
                raise
            log.warning("snapshot_refused", part="detector", reason=str(error))
            self.detector.learns_anew(str(error))
        if "table" not in state:
            return
        self.ticks, self._next_early_poll = state["ticks"], state["next_early_poll"]
        self.early_polls = state["early_polls"]
        if state["by"] == list(self.config.cohort.by):
            self.table.restore(state["table"])
            self.rule = threshold_rule.RuleState.restored(state["rule"])
        elif continued:
            raise SnapshotError("the snapshot was taken with other cohorts (processors.ingero.cohort.by)")
        self.collectives.restore(state["collectives"])
        self.cost.restore(state["cost"])
        self.taints.restore(state["taints"])
        self.hangs.restore(state.get("hangs", []))

    # Inputs

    def merge(self, batch: ReportBatch) -> None:
        """Take reports that another score map collected."""
        self.table.merge(batch)

    def take(self, push: Push, now: float) -> None:
        """Take a push with more than health reports: taints of nodes, jobs that hang, and collectives."""
        if push.signal is not Signal.LOGS:
            self.collectives.take(push, now)
            return
        if taints.NEEDLE in push.body:
            self.taints.take(push, now)
        if hang_records.NEEDLE in push.body:
            self.hangs.take(push, now)

    def interrupted(self, seconds: float, now: float) -> None:
        """No report could arrive for so long, until now: nobody is silent, forgotten or cleared for that.

        Every node counts as seen one push interval ago at the latest, so that its next report is a newer one.
        """
        self.table.excuse(seconds, now - self.config.push_interval)
        self.detector.interrupted(seconds)

    # Between two ticks

    @property
    def may_poll_early(self) -> bool:
        """Whether an early poll may precede the next tick: regular ticks go on where some node always falls."""
        return self.ticks >= self._next_early_poll

    def fallen(self) -> npt.NDArray[np.int64]:
        """Rows of the nodes that an early poll would judge now."""
        return self.detector.fallen(self.table) if self.may_poll_early else np.zeros(0, np.int64)

    def judge_early(self, scores: ScoreSnapshot, rows: npt.NDArray[np.int64]) -> None:
        """Judge the nodes of these rows, which `fallen` returned, before the tick is due."""
        self._next_early_poll = self.ticks + TICKS_PER_EARLY_POLL
        self.early_polls += 1
        self.detector.judge_early(scores, rows)

    def early_poll(self, now: float) -> bool:
        """Judge nodes that have fallen far since the last tick; returns whether there were any."""
        rows = self.fallen()
        if not len(rows):
            return False
        self.judge_early(ScoreSnapshot.take(self.table, now, rows), rows)
        return True

    # A tick

    def start_tick(self, now: float) -> dict[int, str]:
        """Forget silent nodes; returns, by row, the accusations that nodes echoed since the last tick."""
        self.table.expire(now)
        last_verdicts, self.table.last_verdict = self.table.last_verdict, {}
        return last_verdicts

    def copies(self, now: float, rows: npt.NDArray[np.int64] | None = None) -> Iterator[ScoreSnapshot]:
        """Copy the score map a few rows at a time; the last copy is the complete one."""
        return ScoreSnapshot.in_pieces(self.table, now, rows)

    def judge(self, scores: ScoreSnapshot, last_verdicts: dict[int, str]) -> tuple[threshold_rule.Tick, Findings]:
        """Run threshold rule and detector on a copy of the score map."""
        return threshold_rule.compute(scores, self.rule, self.config), self.detector.judge(scores, last_verdicts)

    def conclude(self, scores: ScoreSnapshot, tick: threshold_rule.Tick, findings: Findings) -> TickResult:
        """Put a judged tick in force."""
        self.rule = tick.memory
        threshold_rule.apply(tick, scores, self.table)
        self.ticks += 1
        verdicts = with_collectives(findings.node_verdicts, self.collectives.accused_kinds())
        verdicts = without(verdicts, scores.nodes_with_several_agents)
        return TickResult(
            TickSnapshot(scores, tick, findings, self.config.push_interval),
            VerdictCache(self.config.cohort.by, tick.thresholds, verdicts),
        )

    def book(self, snapshot: TickSnapshot) -> None:
        """Judge the collectives and add up the cost of a tick. A failure is logged and counted; the tick stands."""
        self.hangs.expire(snapshot.tick.now)
        for step in (self._judge_collectives, self._book_costs):
            try:
                step(snapshot)
            except Exception:
                self.failed_bookings += 1
                log.exception("after_tick_failed")

    def _judge_collectives(self, snapshot: TickSnapshot) -> None:
        self.collectives.judge(snapshot.tick.now)

    def _book_costs(self, snapshot: TickSnapshot) -> None:
        self.cost.book(snapshot, self.config.push_interval, self.collectives.shares())

    def tick(self, now: float) -> TickResult:
        """All steps of a tick."""
        last_verdicts = self.start_tick(now)
        *_, scores = self.copies(now)
        result = self.conclude(scores, *self.judge(scores, last_verdicts))
        self.book(result.snapshot)
        return result
