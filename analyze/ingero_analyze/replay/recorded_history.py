"""Streams a recorded history as ticks of the detector: rows in, one observation per tick out."""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay import tick_grid
from ingero_analyze.replay.behind import Behind
from ingero_analyze.replay.column_names import LABELS, is_gpu
from ingero_analyze.replay.counters import Increases, RisesAndFalls, evened
from ingero_analyze.replay.different_work import DifferentWork
from ingero_analyze.replay.drifts import Drift, Drifts
from ingero_analyze.replay.equal_work import WorkColumn
from ingero_analyze.replay.gains import Gains
from ingero_analyze.replay.hidden_groups import NodeLevels
from ingero_analyze.replay.irregularities import Irregularities
from ingero_analyze.replay.level_blocks import LevelBlocks
from ingero_analyze.replay.load_shares import LoadShares, load_shares
from ingero_analyze.replay.lockstep import Lockstep
from ingero_analyze.replay.numbering import CohortMembers
from ingero_analyze.replay.own_work import Gain
from ingero_analyze.replay.reading import (
    COUNTER,
    DIFFERENT,
    FILLED,
    GROUPS,
    HOSTLESS,
    LONG_STEPS,
    PLACEHOLDERS,
    SEVERAL,
    SORTED,
    UNNAMED,
    ZEROS,
    Reading,
)
from ingero_analyze.replay.report_intervals import interval_for_most, silence_by_chance, slow_steps, ticks_of_steps
from ingero_analyze.replay.rollouts import Rollout, Rollouts
from ingero_analyze.replay.row_parser import BatchRows
from ingero_analyze.replay.rows import RowReader
from ingero_analyze.replay.stuck_values import Stuck, filled_values, stuck_values
from ingero_analyze.replay.subjects import NOBODY, HiddenGroups, Subjects
from ingero_analyze.replay.timetables import TickValues, Timetable
from ingero_analyze.replay.unit_changes import OtherUnit, in_one_unit
from ingero_analyze.replay.zero_runs import placeholders, zeros_for_nothing
from ingero_analyze.table_errors import TableError
from ingero_contract.identifiers import NodeKey
from ingero_detect.nodes.cohorts import CohortKey, cohort_name
from ingero_detect.nodes.observation import ACTIVE, Observation

T = TypeVar("T")
Q = TypeVar("Q", Stuck, OtherUnit)

SORTED_ROWS: Final = 1 << 18
"""Rows of a part of a history that was sorted."""

MOST_SILENT: Final = 6
"""Ticks without any row that are judged, of those that follow one another: more make no difference."""

MUCH_MORE: Final = 1.5
"""Rows of one time that differ by more than this factor are hardly of one quantity."""

YEAR: Final = 365.25 * 86_400.0
LONGEST_YEARS: Final = 10.0
"""Years that a history lasts at most."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class NotInOrder(TableError):
    """Rows run backwards by more than a tick."""


class NotRegular(Exception):
    """Nodes report at long intervals, or repeat values: what that means is told from the whole history."""


@dataclass(frozen=True)
class RecordedTick:
    """One tick: the time of its last row, seconds, and the observation."""

    now: float
    seen: Observation


@dataclass(frozen=True)
class _Order:
    """How the nodes of a tick are sorted; the same for every tick with the same nodes."""

    key: bytes
    sorting: Ints
    names: list[NodeKey]


class RecordedHistory:
    """Files as ticks. After the first tick `tick_seconds` and `reading` are known.

    `ticks` raises `NotInOrder` when rows run backwards by more than a tick, and `NotRegular` once nodes are seen to
    report irregularly; `sorted` takes both.
    A tick is never shorter than the interval between rows: 5 s become a minute where rows are a minute apart. Where
    times are numbers of steps, it is that interval, unless the tick was given.
    Rows of a recording belong to one tick if they have the same time.
    """

    def __init__(
        self,
        files: Sequence[str],
        tick_seconds: float,
        progress: Callable[[int], None] = lambda _: None,
        chosen: Mapping[str, Sequence[str]] | None = None,
        labels: Sequence[str] = LABELS,
        metric: str | None = None,
        wide: str | None = None,
        tick_given: bool = False,
        in_order: bool = True,
        groups: HiddenGroups | None = None,
        work: Sequence[WorkColumn] = (),
        timetables: Mapping[NodeKey, Timetable] | None = None,
    ) -> None:
        self.files = list(files)
        self.tick_seconds = tick_seconds
        self._given = (self.files, tick_seconds, progress, chosen, labels, metric, wide, tick_given)
        self._equal_work, self.has_groups = work, bool(groups)
        self._in_order = in_order and "-" not in files
        self._progress = progress
        self._reader = RowReader(self.files, chosen or {}, labels, metric, wide, groups, work)
        if groups:
            self.reading.note(GROUPS)
        self._started, self._tick_given, self._phase = False, tick_given, 0.0
        self._interval: float | None = None
        self._order = _Order(b"", np.zeros(0, np.int64), [])
        self._cohorts_now: list[CohortKey] = []
        self._last_tick: int | None = None
        self._rises, self._increases, self.lockstep = RisesAndFalls(), Increases(), Lockstep()
        self._earliest, self._latest = np.inf, -np.inf
        self._node_ticks = self._different = self._several = self._unequal = 0
        self._irregularities = Irregularities()
        self._stuck: list[Stuck] = []
        self._other_units: list[OtherUnit] = []
        self.silent_by_chance = 0
        """Ticks without a report of a node that rows missing at random explain."""
        self._drifts: Drifts | None = None
        self._members = CohortMembers()
        self._blocks, self._levels = LevelBlocks(self._members), NodeLevels(self._members)
        self._work, self._gains = DifferentWork(self._members), Gains(self._members)
        self._rollouts = Rollouts(self._members)
        self._values = TickValues()
        self.timetables = timetables or {}
        """Nodes that lose work on a timetable; their rows at these times count as no reports."""
        self.left_out = max((table.longest for table in self.timetables.values()), default=0)
        """Ticks in a row, at most, in which such rows are."""
        self._planned = {node: frozenset(table.ticks().tolist()) for node, table in self.timetables.items()}

    @property
    def reading(self) -> Reading:
        """How the files were read so far."""
        return self._reader.reading

    @property
    def subjects(self) -> Subjects:
        """The nodes and cohorts that are judged."""
        return self._reader.subjects

    def drifts(self) -> list[tuple[NodeKey, Drift]]:
        """Nodes that fell behind their peers slowly, over all ticks so far."""
        names = list(self.subjects.nodes)
        return [(names[drift.node], drift) for drift in (self._drifts.found() if self._drifts else ())]

    def behind(self) -> list[tuple[NodeKey, Behind]]:
        """Nodes that are behind their peers in job after job."""
        names = list(self.subjects.nodes)
        return [(names[one.node], one) for one in (self._drifts.behind() if self._drifts else ())]

    def different_work(self) -> set[NodeKey]:
        """Nodes of cohorts that do different work at different times."""
        names = list(self.subjects.nodes)
        return {names[node] for node in self._work.found()}

    def gains(self) -> dict[tuple[str, str], list[Gain]]:
        """By cluster and cohort what nodes gained for good, where some did."""
        names = list(self.subjects.nodes)
        return {cohort: gains.of(names) for cohort, gains in self.by_cohort(self._gains.found()).items()}

    def by_cohort(self, found: Mapping[int, T]) -> dict[tuple[str, str], T]:
        """What was found by number of a cohort, by its cluster and its name in verdicts."""
        cohorts = list(self.subjects.cohorts)
        return {(cohorts[number][0], cohort_name(cohorts[number])): one for number, one in found.items()}

    def load_shares(self) -> dict[CohortKey, LoadShares]:
        """Cohorts in whose load nodes have shares of their own."""
        names, cohorts = list(self.subjects.nodes), list(self.subjects.cohorts)
        found = {
            cohorts[cohort]: load_shares(levels, [names[node] for node in nodes])
            for cohort, nodes, levels in self._levels.of_cohorts()
        }
        return {cohort: shares for cohort, shares in found.items() if shares}

    def timetables_of(self, accused: Collection[NodeKey]) -> dict[NodeKey, Timetable]:
        """By node the timetable on which it loses work, of cohorts in which one of the accused nodes has one."""
        names = list(self.subjects.nodes)
        found = self._values.timetables({self.subjects.nodes[node] for node in accused})
        return {names[node]: table for node, table in found.items()}

    def rollouts(self) -> dict[NodeKey, Rollout]:
        """By node the change that its cohort made alike, one node after another."""
        names = list(self.subjects.nodes)
        return {names[node]: rollout for node, rollout in self._rollouts.found().items()}

    def stuck(self) -> list[tuple[NodeKey, Stuck]]:
        """Nodes that repeated a value as an exporter that hangs does; these rows count as no reports."""
        return self._named(self._stuck)

    def other_units(self) -> list[tuple[NodeKey, OtherUnit]]:
        """Nodes that had rows in another unit than the others; their values were converted."""
        found = self._named(self._other_units)
        if self.reading.measure != "step_seconds":
            return found
        return [(node, replace(one, factor=1 / one.factor)) for node, one in found]

    def _named(self, found: Sequence[Q]) -> list[tuple[NodeKey, Q]]:
        names, of = list(self.subjects.nodes), np.array([one.source for one in found], np.int64)
        return [(names[node], one) for node, one in zip(self.subjects.nodes_of(of), found, strict=True)]

    def sorted(self) -> "RecordedHistory":
        """The same files, all of which are read and sorted by time before the first tick."""
        return RecordedHistory(*self._given, in_order=False, work=self._equal_work)

    def again(
        self, groups: HiddenGroups | None = None, timetables: Mapping[NodeKey, Timetable] | None = None
    ) -> "RecordedHistory | None":
        """The same files, to be read again the same way; `None` for a recording and for standard input."""
        if self.reading.recorded or "-" in self.files:
            return None
        return RecordedHistory(
            *self._given, in_order=self._in_order, groups=groups, work=self._equal_work, timetables=timetables
        )

    def with_shorter_ticks(self, ticks: int) -> "RecordedHistory | None":
        """The same files, read again with shorter ticks, if there were few of those that nobody has asked for; `None`
        where there are enough, in a recording, and of standard input."""
        if self._tick_given or self.reading.recorded or "-" in self.files:
            return None
        tick = tick_grid.shorter(self.tick_seconds, self._interval, ticks)
        if tick is None:
            return None
        files, _, progress, chosen, labels, metric, wide, _ = self._given
        return RecordedHistory(
            files, tick, progress, chosen, labels, metric, wide, True, in_order=self._in_order, work=self._equal_work
        )

    def groups(self) -> HiddenGroups:
        """Groups of nodes that no column tells, by node and cohort; none in a recording, and of standard input."""
        found = {} if self.reading.recorded or "-" in self.files else self._levels.found()
        nodes, cohorts = list(self.subjects.nodes), list(self.subjects.cohorts)
        return {(nodes[node], cohorts[cohort]): group for (node, cohort), group in found.items()}

    def ticks(self) -> Iterator[RecordedTick]:
        """Stream the ticks in order. `TableError` names the place of what cannot be used."""
        held: list[BatchRows] = []
        waiting = 0
        for rows in map(self._as_rates, self._merged()) if self._in_order else self._sorted():
            if not len(rows.time):
                continue
            held.append(rows)
            waiting += len(rows.time)
            if waiting < 1 << 16 and self._started:
                continue
            yield from self._release(held, final=False)
            waiting = sum(len(part.time) for part in held)
        if held:
            yield from self._release(held, final=True)
        if error := self.reading.unusable():
            raise error
        if not self.reading.rows:
            raise TableError(", ".join(self.files), "there are no rows")
        if not self._started:
            raise TableError(", ".join(self.files), "no counter rises from one row of a node to the next")
        self.subjects.finish()
        self.reading.note_names(self.subjects)
        if self._rises.seem_counted():
            self.reading.doubt(COUNTER)
        different = 2 * self._different > self._node_ticks
        hostless = 2 * self._several > self._node_ticks and any(map(is_gpu, self.reading.used["node"]))
        if different:
            self.reading.doubt(DIFFERENT)
        if hostless:
            self.reading.doubt(HOSTLESS)
        if not different and not hostless and 2 * self._unequal > self._node_ticks and self.reading.ignored:
            self.reading.doubt(UNNAMED)
        if self._latest - self._earliest > LONGEST_YEARS * YEAR:
            self.reading.doubt(
                f"the rows span {(self._latest - self._earliest) / YEAR:.0f} years: are all times right?"
            )

    def _as_rates(self, rows: BatchRows) -> BatchRows:
        """The rows with rates instead of counters, without those that have none."""
        if self.reading.measure != "counter":
            return rows
        value, kept = self._increases.rates(rows.source, rows.time, rows.value)
        return replace(rows, value=value).cut(kept)

    def _release(self, held: list[BatchRows], final: bool) -> Iterator[RecordedTick]:
        """Emit whole ticks; the last two are kept, because rows may come one tick late."""
        rows = BatchRows.join(held)
        if not self._started:
            if len(rows.time) < 4096 and not final:
                held[:] = [rows]
                return
            self._fit_tick(rows)
        tick = np.floor((rows.time - self._phase) / self.tick_seconds + 1e-9).astype(np.int64)
        if self.reading.recorded:
            tick = np.unique(rows.time, return_inverse=True)[1]
        node, cohort = self.subjects.assign(rows.source, tick, rows.value, exact=self.reading.recorded)
        order = np.lexsort((np.arange(len(tick)), rows.source, node, tick))
        rows, tick, node, cohort = rows.cut(order), tick[order], node[order], cohort[order]
        limit = np.iinfo(np.int64).max if final else int(tick.max()) - 1
        edges = np.flatnonzero(np.diff(tick)) + 1
        starts = [0, *edges.tolist(), len(tick)]
        kept = 0
        for start, stop in pairwise(starts):
            if tick[start] >= limit:
                break
            kept = stop
            here = slice(start, stop)
            moment = self._moment(int(tick[start]), rows.cut(here), node[here], cohort[here])
            if (
                self._in_order
                and not self.reading.recorded
                and self._irregularities.found(counted=self.reading.measure == "counter")
            ):
                raise NotRegular
            if not self.reading.recorded:
                yield from self._silence_before(int(tick[start]), moment.now)
            yield moment
        held[:] = [rows.cut(slice(kept, None))] if kept < len(tick) else []

    def _silence_before(self, tick: int, now: float) -> Iterator[RecordedTick]:
        """The last ticks before this one in which nobody reported: a live Fleet judges those too."""
        before, self._last_tick = self._last_tick, tick
        missing = min(tick - before - 1, MOST_SILENT) if before is not None else 0
        for number in range(missing, 0, -1):
            nobody = Observation([], np.zeros(0, np.int64), self._cohorts_now, np.zeros(0), np.zeros(0, np.uint8))
            yield RecordedTick(now - number * self.tick_seconds, nobody)

    def _fit_tick(self, rows: BatchRows) -> None:
        self._started = True
        interval = tick_grid.usual_interval(rows.time, rows.source)
        if interval is None:
            interval = tick_grid.usual_interval(rows.time, self.subjects.hosts(rows.source))
        if interval is None:
            return
        self._interval = interval
        steps = self.reading.steps and not self._tick_given
        self.tick_seconds = interval if steps else tick_grid.fitting(self.tick_seconds, interval)
        self._phase = tick_grid.phase(rows.time, self.tick_seconds)

    def _moment(self, tick: int, rows: BatchRows, node: Ints, cohort: Ints) -> RecordedTick:
        """One tick from its rows, sorted by node and source: the median of the values of a node's last source, the
        last of its other columns."""
        now = float(rows.time.max())
        self._earliest, self._latest = min(self._earliest, now), max(self._latest, now)
        known = node != self.subjects.nodes[NOBODY]
        rows, node, cohort = rows.cut(known), node[known], cohort[known]
        last = np.flatnonzero(np.diff(node, append=-1))
        value = rows.value[last]
        self._node_ticks += len(last)
        if len(last) < len(node):
            first = np.flatnonzero(np.diff(rows.source, prepend=-1) | np.diff(node, prepend=-1))
            first = first[np.searchsorted(first, last, side="right") - 1]
            if at_once := bool(((np.diff(rows.time) == 0) & (np.diff(node) == 0)).any()):
                self.reading.note(SEVERAL)
                self._several += int((last > first).sum())
            for place in np.flatnonzero(last > first).tolist():
                several = rows.value[first[place] : last[place] + 1]
                several = several[np.isfinite(several)]
                self._different += at_once and bool(len(several) and several.max() > MUCH_MORE * several.min())
                self._unequal += at_once and bool(len(several) and several.max() > several.min())
                value[place] = np.median(several) if len(several) else np.nan
        node, cohort, state = node[last], cohort[last], rows.state[last]
        if self.reading.measure == "rate":
            self._rises.note(node, value)
        if self.reading.measure in ("rate", "step_seconds"):
            self.lockstep.note(node, cohort, value)
        self._irregularities.note(tick, node, value)
        self._values.note(tick, node[state == ACTIVE], cohort[state == ACTIVE], value[state == ACTIVE])
        if self._planned:
            kept = ~np.isin(node, [self.subjects.nodes[one] for one, ticks in self._planned.items() if tick in ticks])
            node, cohort, state, value = node[kept], cohort[kept], state[kept], value[kept]
        self._drifts = self._drifts or Drifts(self.tick_seconds, self._members)
        working = state == ACTIVE
        worked = self._members.tick(node[working], cohort[working], value[working])
        self._drifts.note(now, worked)
        if (block := self._blocks.add(worked)) is not None:
            self._work.note(block)
            self._gains.note(block)
            self._rollouts.note(now, block)
        self._levels.note(worked)
        key = node.tobytes()
        if key != self._order.key:
            every = list(self.subjects.nodes)
            places = sorted(range(len(node)), key=lambda place: every[node[place]])
            self._order = _Order(key, np.array(places, np.int64), [every[node[place]] for place in places])
        if len(self._cohorts_now) != len(self.subjects.cohorts):
            self._cohorts_now = list(self.subjects.cohorts)
        sorting = self._order.sorting
        seen = Observation(self._order.names, cohort[sorting], self._cohorts_now, value[sorting], state[sorting])
        return RecordedTick(now, seen)

    def _merged(self) -> Iterator[BatchRows]:
        if len(self.files) == 1:
            yield from self._read(self.files[0])
            return
        streams = [self._read(file) for file in self.files]
        heads = []
        for number, stream in enumerate(streams):
            rows = next(stream, None)
            if rows is not None:
                heads.append((float(rows.time[0]), number, rows))
        heapq.heapify(heads)
        while heads:
            _, number, rows = heapq.heappop(heads)
            until = heads[0][0] if heads else np.inf
            stop = int(np.searchsorted(np.maximum.accumulate(rows.time), until, side="right")) or 1
            yield rows.cut(slice(0, stop))
            rest: BatchRows | None = rows.cut(slice(stop, None))
            if rest is not None and not len(rest.time):
                rest = next(streams[number], None)
            if rest is not None:
                heapq.heappush(heads, (float(rest.time[0]), number, rest))

    def _sorted(self) -> Iterator[BatchRows]:
        """All rows in order of time, with rates, as far as they are reports."""
        parts = [rows for file in self.files for rows in self._read(file)]
        if not parts:
            return
        rows = self._as_rates(BatchRows.join(parts))
        parts.clear()
        if not self.reading.recorded and len(rows.time):
            self._fit_tick(rows)
            rows = self._regular(rows)
        order = np.argsort(rows.time, kind="stable")
        for start in range(0, len(order), SORTED_ROWS):
            yield rows.cut(order[start : start + SORTED_ROWS])

    def _regular(self, rows: BatchRows) -> BatchRows:
        """The rows in one unit, without zeros where there was no value and repetitions of values that are stuck, with
        a row in every tick of a slow step."""
        rows = rows.cut(np.lexsort((rows.time, rows.source)))
        cohort = self.subjects.cohorts_of_sources()
        value = np.where(rows.state == ACTIVE, rows.value, np.nan)
        if self.reading.measure == "counter":
            value, kept = evened(rows.time, rows.source, value)
            rows, value = rows.cut(kept), value[kept]
        if self.reading.measure != "score":
            of_times = self.reading.measure == "step_seconds"
            value, self._other_units = in_one_unit(rows.time, rows.source, value, cohort, self.tick_seconds, of_times)
        rows = replace(rows, value=np.where(rows.state == ACTIVE, value, rows.value))
        missing = zeros_for_nothing(rows.time, rows.source, value, cohort, self.tick_seconds)
        with_zeros = np.isin(cohort, cohort[rows.source[missing]])
        if missing.any():
            self.reading.note(ZEROS.format(int(missing.sum())))
            rows, value = rows.cut(~missing), value[~missing]
        if (missing := placeholders(rows.source, value) & ~with_zeros[rows.source]).any():
            self.reading.note(PLACEHOLDERS.format(int(missing.sum())))
            rows, value = rows.cut(~missing), value[~missing]
        stuck, runs = stuck_values(rows.time, rows.source, value, cohort)
        if runs:
            rows, value = rows.cut(~stuck), value[~stuck]
            self._stuck = runs
        if (filled := filled_values(rows.source, value)).any():
            self.reading.note(FILLED.format(int(filled.sum())))
            rows, value = rows.cut(~filled), value[~filled]
        slow = np.zeros(len(rows.time), np.bool_)
        if self.reading.measure != "score" and not self.reading.steps:
            slow = slow_steps(rows.time, rows.source, value, cohort)
        others = ~slow
        tick = interval_for_most(rows.time[others], rows.source[others], self.tick_seconds)
        if tick != self.tick_seconds:
            self.tick_seconds = tick_grid.fitting(self.tick_seconds, tick)
            self._phase = tick_grid.phase(rows.time, self.tick_seconds)
        self.silent_by_chance = silence_by_chance(rows.time[others], rows.source[others], self.tick_seconds)
        which, when = ticks_of_steps(rows.time, slow, self.tick_seconds, self._phase)
        if len(which):
            self.reading.note(LONG_STEPS)
        return BatchRows.join([rows, replace(rows.cut(which), time=when)])

    def _read(self, file: str) -> Iterator[BatchRows]:
        newest = -np.inf
        for batch, rows, places in self._reader.read(file, self._progress):
            high = np.maximum.accumulate(np.concatenate(([newest], rows.time)))
            back = np.flatnonzero(rows.time < high[:-1] - self.tick_seconds)
            newest = float(high[-1])
            if len(back) and self._in_order:
                place = batch.place(int(places[back[0]]), "time")
                raise NotInOrder(place, "runs backwards by more than one tick")
            if len(back):
                self.reading.note(SORTED)
            yield rows
