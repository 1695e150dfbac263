"""The detector: one tick of observations in, states and edges out. No clock, no I/O; same inputs, same answer.

A tick goes through five steps: who is here; learning; residuals against own history and peers; the sequential tests;
the states. docs/detection.md has the formulas.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_contract.values import VerdictState
from ingero_detect import budget
from ingero_detect.cohorts import CohortKey, merge
from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.memory import CODE, RUNS, Memory, NodeKey, SnapshotError
from ingero_detect.parameters import Parameters
from ingero_detect.reference import Reference, find_reference
from ingero_detect.threshold import MAD_TO_SIGMA
from ingero_detect.verdicts import Axis, Kind, Verdict
from ingero_detect.view import AXES, KINDS, View, is_accused

ABSENT, ACTIVE, IDLE, CALIBRATING = range(4)
"""Codes of what a node reports."""

FURTHEST: Final = 7.0
"""Bound of residuals, log units; a rate of zero counts as this far below."""

HALF: Final = float(np.log(2.0))
"""A loss of more than half, log units: a collapse."""

NOTHING: Final = float(np.log(100.0))
"""A loss beyond this is work that stopped, log units."""

LEARNING, HEALTHY, SUSPECTED, STRAGGLER, RECOVERING, IDLING, STOPPED, SILENT = (
    CODE[state]
    for state in (
        VerdictState.LEARNING, VerdictState.HEALTHY, VerdictState.SUSPECTED, VerdictState.STRAGGLER,
        VerdictState.RECOVERING, VerdictState.IDLE, VerdictState.STOPPED, VerdictState.SILENT,
    )
)  # fmt: skip

_LATE_PHASE_COUNT: Final = 10
"""Samples that a baseline is worth once the job has entered a new phase."""

_OFFSET_TICKS: Final = 12
"""Ticks between two looks at how far the nodes of a cohort lie apart, and between two calibrations."""

_LONGEST_WAIT: Final = 6.5
"""Ticks between two looks beyond which everybody counts as having been away."""

_ONSET: Final = 0.1
"""Share of the alarm level at which evidence counts as begun: below it the noise of every healthy node wanders."""

_SAMPLE: Final = 8192
"""Nodes whose steps are booked in one tick, or whose warm-up is worked on at once."""

_SHORT_RUN: Final = 12
"""A collapse that ends by itself within so many ticks counts against confirming collapses early."""


@dataclass(frozen=True)
class Observation:
    """One tick: by row the node, its cohort (a number into `cohorts`), its value and what it reports.

    `value` is larger-is-better, not negative, NaN without a report; `state` holds the codes above. `echo`: the loss
    in log units that a node says it was accused of before, by row, for nodes that the detector does not know.
    """

    names: Sequence[NodeKey]
    cohort: Ints
    cohorts: Sequence[CohortKey]
    value: Floats
    state: npt.NDArray[np.uint8]
    echo: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Edge:
    """A node that was accused, began to recover, relapsed or was cleared in this tick."""

    what: str
    verdict: Verdict


@dataclass(frozen=True)
class JobSlow:
    """A cohort that lost speed together: a new phase of its job, or a slow job; no node is to blame."""

    cohort: CohortKey
    since: float
    severity: float


@dataclass(frozen=True)
class Outcome:
    """The result of a tick. `slots` leads from rows of the observation to columns of the detector, -1 for no room."""

    now: float
    slots: Ints
    edges: list[Edge]
    jobs: list[JobSlow]
    digest: str


class Detector:
    """Judges every node at every tick. Ticks come in order; rows sorted by (cluster, node) make runs comparable."""

    def __init__(self, parameters: Parameters | None = None, mergeable: Sequence[int] = ()) -> None:
        self.parameters = parameters or Parameters()
        self.mergeable = tuple(mergeable)
        self.memory = self._fresh()
        self.ticks = 0
        self.node_hours = 0.0
        self.theory = budget.theoretical_level(
            1 / (self.parameters.budget * self.parameters.tick_hours), self.parameters.drift
        )
        about = json.dumps([asdict(self.parameters), self.mergeable], sort_keys=True)
        self._digest = hashlib.blake2b(about.encode(), digest_size=16).digest()
        self._hashed: tuple[Any, ...] = ()
        self._placed: tuple[Any, ...] = ()
        self._now = 0.0
        self._merged_for: dict[CohortKey, int] = {}
        self._merged: dict[CohortKey, CohortKey] = {}

    def _fresh(self) -> Memory:
        parameters = self.parameters
        return Memory(parameters.warmup, parameters.max_nodes, parameters.max_cohorts)

    def tick(self, now: float, seen: Observation) -> Outcome:
        """Judge one tick."""
        memory, parameters = self.memory, self.parameters
        if self.ticks and (now - self._now) / parameters.tick_seconds > _LONGEST_WAIT:
            memory.node("absent")[:] += parameters.silent_ticks + 1
        self._now = now
        slots = memory.slots(seen.names)
        before = memory.node("state").copy()
        value, code = self._enter(now, seen, slots)
        self._regroup(seen, slots)
        in_group = memory.node("group") >= 0
        working = (code == ACTIVE) & np.isfinite(value) & in_group
        self._presence(code, working)
        with np.errstate(divide="ignore"):
            logs = np.log(value)
        memory.node("value")[working] = value[working]
        memory.node("value")[code == IDLE] = 0.0

        judged = working & memory.node("learned")
        everyone = bool(judged.all())
        index = slice(None) if everyone else np.flatnonzero(judged)
        reference = self._judge(now, index, logs)
        learning = working & ~memory.node("learned") & (value > 0)
        self._learn(np.flatnonzero(learning), logs, reference)
        self._rest(now, code)
        self._levels(reference, now)
        self.ticks += 1
        if self.ticks % 64 == 0:
            memory.forget(now - parameters.forget_hours * 3600)
        digest = self._chain(now, seen)
        return Outcome(now, slots, self._edges(before, digest), self._jobs(), digest)

    # Who is here

    def _enter(self, now: float, seen: Observation, slots: Ints) -> tuple[Floats, npt.NDArray[np.uint8]]:
        memory = self.memory
        total = len(memory.names)
        value, code = np.full(total, np.nan), np.zeros(total, np.uint8)
        known = slots >= 0
        if known.all():
            value[slots], code[slots] = seen.value, seen.state
            memory.node("seen")[slots[seen.state != ABSENT]] = now
        else:
            value[slots[known]], code[slots[known]] = seen.value[known], seen.state[known]
            memory.node("seen")[slots[known & (seen.state != ABSENT)]] = now
        for row, loss in seen.echo.items():
            slot = int(slots[row])
            if slot >= 0 and not memory.node("filled")[slot] and memory.node("state")[slot] == LEARNING:
                memory.node("echo")[slot] = loss
                memory.node("state")[slot] = STRAGGLER
                memory.node("kind")[slot] = KINDS.index(Kind.SLOW)
                memory.node("axis")[slot] = AXES.index(Axis.ECHO)
                memory.node("loss")[slot] = loss
                for column in ("since", "detected"):
                    memory.node(column)[slot] = now
        return value, code

    def _regroup(self, seen: Observation, slots: Ints) -> None:
        """Keep homes and groups current. Another job is another history; another group is only another level."""
        memory = self.memory
        known = slots >= 0
        if self._placed and self._is_placed(seen, slots):
            return
        home_of = np.array([memory.home(key) for key in seen.cohorts], np.int32)
        rows = slots[known]
        home = home_of[seen.cohort[known]] if len(home_of) else np.zeros(0, np.int32)
        column = memory.node("home")
        if not np.array_equal(column[rows], home):
            moved = rows[(column[rows] >= 0) & (column[rows] != home)]
            if len(moved):
                kept = {name: memory.node(name)[moved].copy() for name in ("seen", "was_active")}
                memory.clear(moved)
                for name, values in kept.items():
                    memory.node(name)[moved] = values
            memory.node("home")[rows] = home
        homes = memory.node("home")
        inside = memory.node("used") & (homes >= 0)
        counts = np.bincount(homes[inside], minlength=len(memory.homes)).tolist()
        sizes = {key: count for key, count in zip(memory.homes, counts, strict=True) if count}
        if sizes != self._merged_for:
            self._merged = merge(sizes, self.mergeable, self.parameters.min_peers)
            self._merged_for = sizes
        group_of = np.array(
            [memory.group_number(self._merged[key]) if key in self._merged else -1 for key in memory.homes], np.int32
        )
        wanted = np.where(homes >= 0, group_of[homes], -1) if len(group_of) else np.full(len(homes), -1, np.int32)
        group = memory.node("group")
        other = (wanted != group) & memory.node("used")
        if other.any():
            level = memory.group("level")
            shifted = np.flatnonzero(other & (group >= 0) & (wanted >= 0) & memory.node("learned"))
            for slot in shifted.tolist():
                old, new = level[group[slot]], level[wanted[slot]]
                if np.isnan(new) and np.isfinite(old):
                    level[wanted[slot]] = new = old
                if np.isfinite(old):
                    memory.node("baseline")[slot] += old - new
            group[other] = wanted[other]
        members = memory.node("used") & (group >= 0)
        memory.group("size")[:] = np.bincount(group[members], minlength=len(memory.groups))
        self._placed = (seen.cohorts, seen.cohort, slots, memory.forgotten)

    def _is_placed(self, seen: Observation, slots: Ints) -> bool:
        """Whether everybody still is where the last tick found them."""
        cohorts, cohort, at, forgotten = self._placed
        return (
            slots is at
            and forgotten == self.memory.forgotten
            and (seen.cohorts is cohorts or list(seen.cohorts) == list(cohorts))
            and (seen.cohort is cohort or np.array_equal(seen.cohort, cohort))
        )

    def _presence(self, code: npt.NDArray[np.uint8], working: Bools) -> None:
        memory, parameters = self.memory, self.parameters
        state, absent, last = memory.node("state"), memory.node("absent"), memory.node("code")
        absent += 1
        away = absent > parameters.silent_ticks
        here = code != ABSENT
        back = here & (away | (last == IDLE) | (last == CALIBRATING)) & (code == ACTIVE) & memory.node("learned")
        if back.any():
            rows = np.flatnonzero(back)
            memory.node("grace")[rows] = parameters.hold_ticks
            memory.node("run")[rows] = 0
            for column in ("slow", "fast", "below"):
                memory.node(column)[rows] = 0
            memory.node("previous")[rows] = np.nan
        accused = self.accused()
        calm = ~accused & memory.node("used")
        state[calm & ~here & away] = SILENT
        state[calm & (code == CALIBRATING)] = LEARNING
        returned = calm & (code == ACTIVE) & ((state == SILENT) | (state == IDLING))
        state[returned] = np.where(memory.node("learned")[returned], HEALTHY, LEARNING)
        absent[here] = 0
        last[here] = code[here]
        memory.node("was_active")[working] = True

    # Learning

    def _learn(self, rows: Ints, logs: Floats, reference: Reference) -> None:
        """Collect what a node does relative to its cohort; after the warm-up its median is the baseline.

        While nobody of a cohort is known yet, what its nodes do together is told from what each of them did so far:
        it does not matter who of them reports in which tick.
        """
        memory, parameters = self.memory, self.parameters
        if not len(rows):
            return
        group = memory.node("group")[rows].astype(np.int64)
        level = memory.group("level")
        m = len(memory.groups)
        _, middle = grouped_median(logs[rows], group, m)
        fresh = ~np.isfinite(level) & np.isfinite(middle)
        level[fresh] = middle[fresh]
        window, filled, sofar = memory.window(), memory.node("filled"), memory.node("sofar")
        above = logs[rows] - level[group]
        known = filled[rows] > 0
        _, moved = grouped_median((above - sofar[rows])[known], group[known], m)
        alone = np.where(np.isfinite(moved), moved, 0.0)
        common = np.where(reference.count == 0, alone, reference.level)
        above = above - common[group]
        window[rows, filled[rows]] = above
        filled[rows] += 1
        sofar[rows] += (above - sofar[rows]) / filled[rows]
        done = rows[filled[rows] == parameters.warmup]
        if not len(done):
            return
        middle_own, spread, lagged, squares = _learned(window, done)
        echo = memory.node("echo")[done].astype(np.float64)
        ill = np.isfinite(echo) & (middle_own < -parameters.absolute_band)
        memory.node("baseline")[done] = middle_own + np.where(ill, echo, 0.0)
        memory.node("own")[done] = spread
        memory.node("learned")[done] = True
        memory.node("count")[done] = parameters.warmup
        state = memory.node("state")
        state[done[state[done] == LEARNING]] = HEALTHY
        groups = memory.node("group")[done].astype(np.int64)
        _, typical = grouped_median(spread, groups, m)
        scale = memory.group("scale")
        unknown = np.isnan(scale) & np.isfinite(typical)
        scale[unknown] = typical[unknown]
        memory.group("lagged")[:] += np.bincount(groups, lagged, m)
        memory.group("squares")[:] += np.bincount(groups, squares, m)
        if not (memory.node("used") & ~memory.node("learned")).any():
            memory.end_of_learning()

    # Residuals and tests

    def _judge(self, now: float, index: Any, logs: Floats) -> Reference:
        memory, parameters = self.memory, self.parameters
        m = len(memory.groups)
        group = memory.node("group")[index].astype(np.int64)
        by_group = memory.group
        scale_g = np.nan_to_num(by_group("scale"), nan=0.0)
        level = np.nan_to_num(by_group("level"), nan=0.0)
        baseline = memory.node("baseline")[index]
        residual = np.clip(logs[index] - baseline - level[group], -FURTHEST, FURTHEST)
        tolerance = np.maximum(parameters.own_band, 3 * scale_g)
        reference = find_reference(residual, group, m, tolerance)
        if not len(group):
            return reference
        gap = residual - reference.level[group]

        count = memory.node("count")[index]
        own = memory.node("own")[index].astype(np.float64)
        trust = np.minimum(count, 300)
        sigma = np.sqrt((trust * own**2 + 30 * (scale_g**2)[group]) / (trust + 30))
        sigma = np.maximum(sigma, 1e-12)
        ratio = np.clip(by_group("lagged") / np.maximum(by_group("squares"), 1e-12), 0.0, 0.95)
        stretch = np.sqrt((1 + ratio) / (1 - ratio))
        scale = np.maximum(sigma * stretch[group], 0.5 * parameters.own_band)
        if reference.common.any():
            scale = np.where(reference.common[group], np.maximum(scale, reference.spread[group]), scale)

        state = memory.node("state")
        accused = self.accused()[index]
        relearn = memory.node("relearn")[index]
        grace = memory.node("grace")[index]
        eligible = (reference.count >= parameters.min_peers)[group]
        ready = grace <= 0
        alarm = self._alarm_levels()
        band = np.where(relearn > 0, parameters.absolute_band, parameters.own_band)
        z = -gap / scale
        allowance = np.maximum(parameters.drift, band / scale)
        low = (z > np.maximum(allowance, 3.0)) & ~accused & ready
        crowd = np.bincount(group[low], minlength=m)
        crowded = (crowd >= 2) & (crowd > 0.2 * reference.count)
        cap = np.minimum(parameters.largest_step, 0.75 * alarm)
        cap = np.where(crowded, np.minimum(cap, alarm / 5), cap)[group]
        top = alarm[group]

        slow_before = memory.node("slow")[index]
        fast_before = memory.node("fast")[index]
        floor = -parameters.largest_step - allowance
        slow = np.maximum(0.0, slow_before + np.minimum(np.maximum(z - allowance, floor), cap)) * ready
        fast = np.maximum(0.0, fast_before + np.minimum(np.maximum(-z - allowance, floor), cap)) * ready
        slow = np.where(eligible, slow, slow_before)
        fast = np.where(eligible, np.minimum(fast, 1.5 * top), fast_before)
        free = ~accused & ready & eligible
        self._book_peaks(index, group, free, slow_before, slow, fast_before, fast)
        self._book_steps(group[free], z[free], allowance[free], cap[free])
        onset = memory.node("onset")[index]
        begins = (slow > _ONSET * top) & (onset == 0)
        onset = np.where(slow <= _ONSET * top, 0.0, np.where(begins, now, onset))
        shortfall = np.where(begins, 0.0, memory.node("shortfall")[index]) - np.where(eligible, gap, 0.0)
        spell = np.where(begins, 0, memory.node("spell")[index]) + eligible

        absolute = logs[index] - self._peer_level(logs[index], group, m)[group]
        absolute = np.clip(absolute, -FURTHEST, FURTHEST)
        self._offsets(absolute, group, m)
        offsets = np.nan_to_num(by_group("offsets"), nan=0.0)
        line = np.maximum(parameters.absolute_band, 4 * offsets)[group]
        below_before = memory.node("below")[index]
        below_step = -absolute / scale - np.maximum(parameters.drift, line / scale)
        below = np.maximum(0.0, below_before + np.minimum(np.maximum(below_step, floor), cap)) * ready
        below = np.where(eligible, below, below_before)
        below_onset = memory.node("below_onset")[index]
        below_begins = (below > _ONSET * top) & (below_onset == 0)
        below_onset = np.where(below <= _ONSET * top, 0.0, np.where(below_begins, now, below_onset))
        few = np.bincount(group[(below > 0) & ~accused], minlength=m) <= np.maximum(1, 0.1 * reference.count)

        falling = (gap < -HALF) & (-gap > 4 * scale) & ready
        run_before = memory.node("run")[index].astype(np.int64)
        run = np.where(falling, np.minimum(run_before + 1, 30_000), 0)
        run = np.where(eligible, run, run_before)
        self._book_runs(group, run_before, run)
        confirm = np.where(crowded, np.maximum(by_group("confirm"), 5), by_group("confirm"))[group]

        by_own = (slow > top) & eligible
        by_collapse = (run >= confirm) & eligible
        by_peers = (below > top) & few[group] & eligible
        suspected = eligible & ((slow > 0.5 * top) | ((below > 0.5 * top) & few[group]) | (run > 0))

        calm = ~accused & (slow < 0.5 * top) & ~falling & ~reference.common[group] & ready & eligible
        gain = np.maximum(1.0 / np.maximum(count, 1), 1.0 / parameters.baseline_ticks)
        memory.node("baseline")[index] = baseline + np.where(calm, gain * np.clip(gap, -2 * sigma, 2 * sigma), 0.0)
        wide = np.maximum(1.0 / np.maximum(count, 1), 1 / 300)
        deviation = np.minimum(np.abs(gap), 4 * np.maximum(sigma, 0.2 * scale))
        memory.node("own")[index] = np.where(calm, own + wide * (1.2533 * deviation - own), own)
        memory.node("count")[index] = count + calm
        memory.node("relearn")[index] = np.maximum(relearn - 1, 0)
        memory.node("grace")[index] = np.maximum(grace - 1, 0)
        previous = memory.node("previous")[index]
        current = np.clip(gap / sigma, -3, 3)
        pair = calm & np.isfinite(previous)
        product = np.where(pair, current * previous, 0.0)
        squared = np.where(pair, current * current, 0.0)
        for name, values in (("lagged", product), ("squares", squared)):
            by_group(name)[:] = by_group(name) * (1 - 1 / 500) + np.bincount(group, values, m)
        memory.node("previous")[index] = np.where(calm, current, np.nan)

        for name, values in (
            ("slow", slow), ("fast", fast), ("below", below), ("onset", onset), ("below_onset", below_onset),
            ("shortfall", shortfall), ("spell", spell), ("run", run), ("residual", gap), ("scale", scale),
            ("expected", baseline + level[group] + reference.level[group]),
        ):  # fmt: skip
            memory.node(name)[index] = values
        new = np.where(suspected, SUSPECTED, HEALTHY)
        held = accused | (state[index] == LEARNING)
        state[index] = np.where(held, state[index], new)
        rows = np.arange(len(memory.names))[index]
        alarmed = (by_own | by_collapse | by_peers) & ~accused
        if alarmed.any():
            self._accuse(now, rows[alarmed], by_own[alarmed], by_collapse[alarmed], absolute[alarmed])
        enough = reference.count >= np.minimum(parameters.min_peers, by_group("size"))
        followed = accused & enough[group]
        if followed.any():
            again = by_own | by_collapse | by_peers
            self._follow(now, rows[followed], gap[followed], absolute[followed], line[followed], again[followed])
        hours = np.bincount(group[~accused], minlength=m) * parameters.tick_hours
        by_group("hours")[:] += hours
        self.node_hours += len(group) * parameters.tick_hours
        return reference

    def _peer_level(self, logs: Floats, group: Ints, m: int) -> Floats:
        _, middle = grouped_median(np.maximum(logs, -1e3), group, m)
        return np.nan_to_num(middle, nan=0.0)

    def _offsets(self, absolute: Floats, group: Ints, m: int) -> None:
        """How far nodes of a cohort lie apart, as a standard deviation that leans on 4 % while they are few."""
        column = self.memory.group("offsets")
        if self.ticks % _OFFSET_TICKS and np.isfinite(column[group]).all():
            return
        count, deviation = grouped_median(np.abs(absolute), group, m)
        spread = np.nan_to_num(deviation, nan=0.0) * MAD_TO_SIGMA
        current = np.sqrt((count * spread**2 + 8 * 0.04**2) / (count + 8))
        column[:] = np.where(
            count == 0, column, np.where(np.isnan(column), current, column + 0.1 * (current - column))
        )

    def _book_peaks(
        self,
        index: Any,
        group: Ints,
        calm: Bools,
        slow_before: Floats,
        slow: Floats,
        fast_before: Floats,
        fast: Floats,
    ) -> None:
        memory = self.memory
        for side, before, after in (("slow", slow_before, slow), ("fast", fast_before, fast)):
            column = memory.node(f"{side}_peak")
            peak = column[index]
            ended = (before > 0) & (after <= 0) & calm
            if ended.any():
                table = memory.peaks(side)
                np.add.at(table, (group[ended], budget.bins_of(peak[ended].astype(np.float64))), 1)
            column[index] = np.where(after > 0, np.maximum(peak, after), 0.0)

    def _book_steps(self, group: Ints, z: Floats, allowance: Floats, cap: Floats) -> None:
        """Take a sample of what the tick added on both sides; a large fleet needs no more than some thousands."""
        stride = 1 + len(z) // _SAMPLE
        part = slice(self.ticks % stride, None, stride)
        for side, sign in (("slow", 1.0), ("fast", -1.0)):
            steps = np.minimum(sign * z[part] - allowance[part], cap[part])
            table = self.memory.steps(side)
            np.add.at(table, (group[part], budget.step_bins_of(steps)), 1)

    def _book_runs(self, group: Ints, before: Ints, after: Ints) -> None:
        ended = (before > 0) & (after == 0) & (before <= _SHORT_RUN)
        if ended.any():
            np.add.at(self.memory.runs(), (group[ended], np.minimum(before[ended], RUNS - 1)), 1)

    def _alarm_levels(self) -> Floats:
        """The alarm level of every group; a twelfth of them is calibrated anew in a tick."""
        memory, parameters = self.memory, self.parameters
        alarm = memory.group("alarm")
        alarm[np.isnan(alarm)] = min(budget.CAUTION * self.theory, budget.HIGHEST_LEVEL)
        part = slice(self.ticks % _OFFSET_TICKS, None, _OFFSET_TICKS)
        hours = memory.group("hours")[part]
        if len(hours):
            peaks, steps = (
                [table(side)[part] for side in ("slow", "fast")] for table in (memory.peaks, memory.steps)
            )
            tails = [budget.fit_tail(*pair, hours) for pair in zip(peaks, steps, strict=True)]
            ticks = hours / parameters.tick_hours
            alarm[part] = budget.calibrated_levels(tails, ticks, parameters.budget, self.theory)
            runs = memory.runs()[part]
            tolerable = runs[:, ::-1].cumsum(axis=1)[:, ::-1] <= (1 + parameters.budget * hours)[:, None]
            tolerable[:, -1] = True
            memory.group("confirm")[part] = np.maximum(2, tolerable.argmax(axis=1))
            fade = 0.5 ** (_OFFSET_TICKS * parameters.tick_hours / 48.0)
            for table in (*peaks, *steps, runs, hours):
                table *= fade
        return alarm.copy()

    # States

    def accused(self) -> Bools:
        """By slot: accused and not yet proven well again."""
        return is_accused(self.memory.node("state"))

    def _accuse(self, now: float, rows: Ints, by_own: Bools, by_collapse: Bools, absolute: Floats) -> None:
        memory = self.memory
        gap = memory.node("residual")[rows].astype(np.float64)
        spell = np.maximum(memory.node("spell")[rows], 1)
        own = by_own | by_collapse
        mean = memory.node("shortfall")[rows] / spell
        loss = np.where(own, np.where(by_collapse, -gap, mean), np.maximum(-absolute, 0.0))
        memory.node("loss")[rows] = loss
        kind = np.full(len(rows), KINDS.index(Kind.SLOW))
        kind[by_collapse] = KINDS.index(Kind.COLLAPSE)
        kind[own & (-gap > NOTHING)] = KINDS.index(Kind.STOPPED)
        memory.node("kind")[rows] = kind
        memory.node("axis")[rows] = np.where(own, AXES.index(Axis.OWN), AXES.index(Axis.PEERS))
        started = np.where(own, memory.node("onset")[rows], memory.node("below_onset")[rows])
        fell = now - (memory.node("run")[rows] - 1) * self.parameters.tick_seconds
        started = np.where(by_collapse, np.where(by_own, np.minimum(started, fell), fell), started)
        memory.node("since")[rows] = np.minimum(started, now)
        memory.node("detected")[rows] = now
        memory.node("state")[rows] = np.where(kind == KINDS.index(Kind.STOPPED), STOPPED, STRAGGLER)
        memory.node("reached")[rows] = memory.node("slow")[rows]
        memory.node("well")[rows] = 0.0

    def _follow(self, now: float, rows: Ints, gap: Floats, absolute: Floats, line: Floats, again: Bools) -> None:
        """Look for proof that accused nodes are well again, and for relapses of those who seemed to be."""
        memory, parameters = self.memory, self.parameters
        state = memory.node("state")
        against_peers = memory.node("axis")[rows] == AXES.index(Axis.PEERS)
        error = np.where(against_peers, absolute, gap)
        scale = memory.node("scale")[rows].astype(np.float64)
        top = memory.group("alarm")[memory.node("group")[rows]]
        loss = memory.node("loss")[rows].astype(np.float64)
        still = -error > 0.5 * loss
        loss = np.where(still, loss + 0.1 * (-error - loss), loss)
        memory.node("loss")[rows] = loss
        half = np.maximum(0.5 * loss, np.where(against_peers, 0.5 * line, 0.5 * parameters.own_band))
        step = np.clip((error + half) / scale - 0.5 * parameters.drift, -2 * parameters.largest_step, 0.75 * top)
        before = memory.node("well")[rows].astype(np.float64)
        well = np.maximum(0.0, before + step)
        memory.node("well_since")[rows] = np.where((well > 0) & (before <= 0), now, memory.node("well_since")[rows])
        recovering = state[rows] == RECOVERING
        hold = memory.node("hold")[rows]
        proven = ~recovering & (well > top)
        relapsed = recovering & again
        healthy = recovering & ~again & (hold <= 1) & (memory.node("slow")[rows] < 0.5 * top)
        memory.node("hold")[rows] = np.where(proven, parameters.hold_ticks, np.maximum(hold - 1, 0))
        memory.node("well")[rows] = np.where(relapsed, 0.0, well)
        resumed = (state[rows] == STOPPED) & (-error < NOTHING) & ~proven
        state[rows[resumed]] = STRAGGLER
        state[rows[proven]] = RECOVERING
        for column in ("slow", "below"):
            memory.node(column)[rows[proven]] = 0.0
        memory.node("run")[rows[proven]] = 0
        state[rows[relapsed]] = STRAGGLER
        state[rows[healthy]] = HEALTHY
        memory.node("previous")[rows[healthy]] = np.nan
        self._book_short_alarms(rows[healthy])

    def _book_short_alarms(self, rows: Ints) -> None:
        """An accusation that passed by itself within a minute was chance: its peak counts against the budget."""
        memory = self.memory
        lasted = (memory.node("well_since")[rows] - memory.node("since")[rows]) / self.parameters.tick_seconds
        chance = rows[(lasted <= _SHORT_RUN) & (memory.node("reached")[rows] > 0)]
        place = (memory.node("group")[chance], budget.bins_of(memory.node("reached")[chance].astype(np.float64)))
        np.add.at(memory.peaks("slow"), place, 1)

    def _rest(self, now: float, code: npt.NDArray[np.uint8]) -> None:
        """Idle nodes: stopped while their cohort goes on, otherwise at rest with it."""
        memory, parameters = self.memory, self.parameters
        group, state = memory.node("group"), memory.node("state")
        inside = group >= 0
        m = len(memory.groups)
        idle = (code == IDLE) & inside
        if not idle.any():
            return
        working = np.bincount(group[(code == ACTIVE) & inside], minlength=m)
        resting = np.bincount(group[idle], minlength=m)
        goes_on = (working >= 2) & (working > resting)
        left = idle & memory.node("was_active") & goes_on[group]
        run = memory.node("idle_run")
        run[:] = np.where(left, np.minimum(run + 1, 30_000), np.where(code == ABSENT, run, 0))
        accused = self.accused()
        ended = np.flatnonzero(left & (run >= 2) & (state != STOPPED))
        if len(ended):
            known = accused[ended]
            memory.node("kind")[ended] = KINDS.index(Kind.STOPPED)
            memory.node("axis")[ended] = AXES.index(Axis.STATE)
            begun = now - (run[ended] - 1) * parameters.tick_seconds
            memory.node("since")[ended] = np.where(known, memory.node("since")[ended], begun)
            memory.node("detected")[ended] = np.where(known, memory.node("detected")[ended], now)
            memory.node("loss")[ended] = FURTHEST
            memory.node("well")[ended] = 0.0
            state[ended] = STOPPED
        at_rest = idle & ~left & ((state == STOPPED) | ~accused)
        memory.node("well_since")[at_rest & (state == STOPPED)] = now
        state[at_rest] = IDLING
        waiting = idle & left & ~self.accused()
        state[waiting] = IDLING

    # Common level

    def _levels(self, reference: Reference, now: float) -> None:
        """Let the scale and the common level follow; a level that lasts is a new phase of the job."""
        memory, parameters = self.memory, self.parameters
        level, scale, ticks = memory.group("level"), memory.group("scale"), memory.group("ticks")
        if len(reference.count) < len(level):
            return
        some = reference.count > 0
        steady = some & ~reference.common
        usual = steady & ~reference.partial & (reference.count >= 2)
        gain = np.maximum(1.0 / (parameters.warmup + ticks + 1), 1 / 60)
        scale[usual] = scale[usual] + gain[usual] * (reference.spread[usual] - scale[usual])
        ticks[usual] += 1
        level[steady] += 0.05 * reference.level[steady]
        moved = memory.group("moved")
        moved[:] = np.where(some & reference.common, moved + 1, np.where(some, 0, moved))
        shift, slow_since = memory.group("shift"), memory.group("slow_since")
        shift *= 1 - min(1.0, parameters.tick_hours)
        settled = moved >= parameters.settle_ticks
        if settled.any():
            level[settled] += reference.level[settled]
            shift[settled] += reference.level[settled]
            moved[settled] = 0
            calm = settled[memory.node("group")] & (memory.node("group") >= 0) & ~self.accused()
            memory.node("count")[calm] = np.minimum(memory.node("count")[calm], _LATE_PHASE_COUNT)
            memory.node("relearn")[calm] = parameters.warmup
        slow = shift < -0.1
        started = now - parameters.settle_ticks * parameters.tick_seconds
        slow_since[:] = np.where(slow, np.where(slow_since > 0, slow_since, max(started, 1e-9)), 0.0)

    def _jobs(self) -> list[JobSlow]:
        memory = self.memory
        found = np.flatnonzero(memory.group("slow_since") > 0).tolist()
        return [
            JobSlow(
                memory.groups[number],
                float(memory.group("slow_since")[number]),
                float(1 - np.exp(memory.group("shift")[number])),
            )
            for number in found
        ]

    # What is told

    def _chain(self, now: float, seen: Observation) -> str:
        """Fold this tick's inputs into the digest of everything that was judged so far."""
        known = self._hashed
        if (
            not known
            or known[0] != seen.names
            or known[1] != seen.cohorts
            or not np.array_equal(known[2], seen.cohort)
        ):
            present, first, back = np.unique(seen.cohort, return_index=True, return_inverse=True)
            order = np.argsort(first)
            keys = [list(seen.cohorts[number]) for number in present[order].tolist()]
            about = hashlib.blake2b(digest_size=16)
            about.update("\0".join(part for name in seen.names for part in name).encode())
            about.update(json.dumps(keys, separators=(",", ":")).encode())
            about.update(np.argsort(order)[back].astype(np.int64).tobytes())
            self._hashed = (list(seen.names), list(seen.cohorts), seen.cohort.copy(), about.digest())
        chain = hashlib.blake2b(self._digest, digest_size=16)
        chain.update(np.float64(now).tobytes())
        chain.update(self._hashed[3])
        chain.update(np.ascontiguousarray(seen.value, np.float64).tobytes())
        chain.update(np.ascontiguousarray(seen.state, np.uint8).tobytes())
        if seen.echo:
            chain.update(json.dumps(sorted(seen.echo.items())).encode())
        self._digest = chain.digest()
        return self._digest.hex()

    def _edges(self, before: npt.NDArray[np.uint8], digest: str) -> list[Edge]:
        after = self.memory.node("state")
        was = is_accused(before)
        is_now = self.accused()
        edges = []
        changed = np.flatnonzero((before != after) & (was | is_now))
        for slot in changed.tolist():
            if not was[slot]:
                what = "accused"
            elif not is_now[slot]:
                what = "cleared"
            elif after[slot] == RECOVERING:
                what = "recovering"
            elif before[slot] == RECOVERING:
                what = "relapsed"
            else:
                what = "changed"
            edges.append(Edge(what, self.verdict(slot, digest)))
        return edges

    def verdict(self, slot: int, digest: str | None = None) -> Verdict:
        """Everything about the node in a slot, as of the last tick."""
        return View.take(self.memory, self._now, digest or self._digest.hex(), copy=False).verdict(slot)

    def view(self) -> View:
        """A copy of what is known, to be read while the next tick runs."""
        return View.take(self.memory, self._now, self._digest.hex(), copy=True)

    def estimates(self) -> dict[str, float]:
        """The budget's bookkeeping: node-hours judged, and false alarms a node-hour by own tail and mirror."""
        memory = self.memory
        hours, alarm = memory.group("hours"), np.nan_to_num(memory.group("alarm"), nan=self.theory)
        found = {"node_hours": self.node_hours, "budget": self.parameters.budget}
        total = float(hours.sum())
        for name, side in (("own_tail", "slow"), ("mirror", "fast")):
            if total <= 0:
                found[name] = 0.0
                continue
            tail = budget.fit_tail(memory.peaks(side), memory.steps(side), hours)
            found[name] = float((tail.rate(alarm) * hours).sum() / total)
        return found

    # Snapshot

    def snapshot(self) -> bytes:
        """Everything that a restart needs to go on as if nothing had happened."""
        facts = {
            "parameters": asdict(self.parameters), "mergeable": list(self.mergeable), "ticks": self.ticks,
            "node_hours": self.node_hours, "now": self._now, "digest": self._digest.hex(),
        }  # fmt: skip
        return self.memory.snapshot(facts)

    def restore(self, data: bytes) -> float:
        """Go on from a snapshot taken under the same parameters; returns the time of its last tick, seconds.

        `SnapshotError` leaves the detector as it was.
        """
        memory = self._fresh()
        facts = memory.restore(data)
        if facts["parameters"] != asdict(self.parameters) or facts["mergeable"] != list(self.mergeable):
            raise SnapshotError("the snapshot was taken under other parameters")
        self.memory = memory
        self.ticks, self.node_hours = int(facts["ticks"]), float(facts["node_hours"])
        self._now, self._digest = float(facts["now"]), bytes.fromhex(facts["digest"])
        self._hashed, self._placed, self._merged_for, self._merged = (), (), {}, {}
        return self._now


def _learned(window: npt.NDArray[np.float32], rows: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """Of every row's warm-up: median, spread, and the two sums of its lag-one correlation; in parts that fit."""
    middle, spread, lagged, squares = (np.empty(len(rows)) for _ in range(4))
    for start in range(0, len(rows), _SAMPLE):
        part = slice(start, start + _SAMPLE)
        values = window[rows[part]].astype(np.float64)
        middle[part] = np.median(values, axis=1)
        centred = values - middle[part, None]
        spread[part] = np.median(np.abs(centred), axis=1) * MAD_TO_SIGMA
        clipped = np.clip(centred / np.maximum(spread[part], 1e-12)[:, None], -3, 3)
        lagged[part] = (clipped[:, 1:] * clipped[:, :-1]).sum(axis=1)
        squares[part] = (clipped[:, 1:] ** 2).sum(axis=1)
    return middle, spread, lagged, squares
