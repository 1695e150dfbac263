"""Streams a recorded history as ticks of the detector: rows in, one observation per tick out."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.tables import TableBatch, TableError, read_batches
from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.cohorts import CohortKey
from ingero_detect.observation import ACTIVE, Observation
from ingero_fleet.recording import EMPTY, MERGEABLE, PARTS, RECORDED, STATES

VALUES: Final = ("score", "rate", "step_seconds")
"""Columns of which exactly one must be present."""

OPTIONAL: Final = ("cluster", "cohort", "state", *PARTS, RECORDED)

CODES: Final = {"": ACTIVE, **{word: code for code, word in STATES.items()}}
"""Values that the column `state` may hold."""

NOBODY: Final = node_key("", "")
"""Stands for the nodes of a recorded tick without any."""

SHORTEST: Final = float(np.finfo(np.float64).tiny)
"""Seconds of a step whose inverse is a finite number."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordedTick:
    """One tick: the time of its last row, seconds, and the observation."""

    now: float
    seen: Observation


@dataclass
class BatchRows:
    """Rows of one batch as arrays."""

    time: Floats
    node: Ints
    cohort: Ints
    value: Floats
    state: npt.NDArray[np.uint8]

    def cut(self, part: Any) -> "BatchRows":
        """Some of the rows."""
        return BatchRows(self.time[part], self.node[part], self.cohort[part], self.value[part], self.state[part])

    @staticmethod
    def join(parts: Sequence["BatchRows"]) -> "BatchRows":
        """Rows one after another."""
        return BatchRows(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("time", "node", "cohort", "value", "state")
            )
        )


@dataclass
class Vocabulary:
    """Numbers of nodes and cohorts, in the order of their first rows."""

    nodes: dict[NodeKey, int] = field(default_factory=dict)
    cohorts: dict[CohortKey, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Order:
    """How the nodes of a tick are sorted; the same for every tick with the same nodes."""

    key: bytes
    sorting: Ints
    names: list[NodeKey]


class RecordedHistory:
    """Files as ticks. After the first tick `tick_seconds`, `measure`, `mergeable` and `calendar` are known.

    A tick is never shorter than the interval between rows: 5 s become a minute where rows are a minute apart.
    Rows of a recording belong to one tick if they have the same time.
    """

    def __init__(
        self, files: Sequence[str], tick_seconds: float, progress: Callable[[int], None] = lambda _: None
    ) -> None:
        self.files = list(files)
        self.tick_seconds = tick_seconds
        self.measure = ""
        self.mergeable: tuple[int, ...] = ()
        self.calendar = False
        self.recorded = False
        self.words = Vocabulary({NOBODY: 0})
        self.rows = 0
        self._progress = progress
        self._texts: dict[str, dict[str, int]] = {}
        self._started = False
        self._order = _Order(b"", np.zeros(0, np.int64), [])
        self._cohorts_now: list[CohortKey] = []

    def ticks(self) -> Iterator[RecordedTick]:
        """Stream the ticks in order. `TableError` names the place of what cannot be used."""
        held: list[BatchRows] = []
        waiting = 0
        for rows in self._merged():
            held.append(rows)
            waiting += len(rows.time)
            if waiting < 1 << 16 and self._started:
                continue
            yield from self._release(held, final=False)
            waiting = sum(len(part.time) for part in held)
        if held:
            yield from self._release(held, final=True)
        if not self.rows:
            raise TableError(", ".join(self.files), "there are no rows")

    def _release(self, held: list[BatchRows], final: bool) -> Iterator[RecordedTick]:
        """Emit whole ticks; the last two are kept, because rows may come one tick late."""
        rows = BatchRows.join(held)
        if not self._started:
            if len(rows.time) < 4096 and not final:
                held[:] = [rows]
                return
            self._fit_tick(rows)
        tick = np.floor(rows.time / self.tick_seconds + 1e-9).astype(np.int64)
        if self.recorded:
            tick = np.unique(rows.time, return_inverse=True)[1]
        order = np.lexsort((np.arange(len(tick)), rows.node, tick))
        rows, tick = rows.cut(order), tick[order]
        limit = np.iinfo(np.int64).max if final else int(tick.max()) - 1
        edges = np.flatnonzero(np.diff(tick)) + 1
        starts = [0, *edges.tolist(), len(tick)]
        kept = 0
        for start, stop in pairwise(starts):
            if tick[start] >= limit:
                break
            kept = stop
            yield self._moment(rows.cut(slice(start, stop)))
        held[:] = [rows.cut(slice(kept, None))] if kept < len(tick) else []

    def _fit_tick(self, rows: BatchRows) -> None:
        self._started = True
        order = np.lexsort((rows.time, rows.node))
        gaps = np.diff(rows.time[order])[np.diff(rows.node[order]) == 0]
        gaps = gaps[gaps > 0]
        if len(gaps):
            usual = float(np.median(gaps))
            if usual > 1.5 * self.tick_seconds:
                self.tick_seconds *= max(1, round(usual / self.tick_seconds))

    def _moment(self, rows: BatchRows) -> RecordedTick:
        """One tick from its rows, sorted by node: the median of a node's values, the last of its other columns."""
        now = float(rows.time.max())
        rows = rows.cut(rows.node != self.words.nodes[NOBODY])
        last = np.flatnonzero(np.diff(rows.node, append=-1))
        value = rows.value[last]
        if len(last) < len(rows.node):
            first = np.concatenate(([0], last[:-1] + 1))
            for place in np.flatnonzero(last > first).tolist():
                several = rows.value[first[place] : last[place] + 1]
                several = several[np.isfinite(several)]
                value[place] = np.median(several) if len(several) else np.nan
        node, cohort, state = rows.node[last], rows.cohort[last], rows.state[last]
        key = node.tobytes()
        if key != self._order.key:
            every = list(self.words.nodes)
            places = sorted(range(len(node)), key=lambda place: every[node[place]])
            self._order = _Order(key, np.array(places, np.int64), [every[node[place]] for place in places])
        if len(self._cohorts_now) != len(self.words.cohorts):
            self._cohorts_now = list(self.words.cohorts)
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

    def _read(self, file: str) -> Iterator[BatchRows]:
        newest, consumed = -np.inf, 0
        for batch in read_batches(file, ("time", "node"), (*VALUES, *OPTIONAL)):
            if batch.rows:
                rows = self._rows(batch)
                high = np.maximum.accumulate(np.concatenate(([newest], rows.time)))
                back = np.flatnonzero(rows.time < high[:-1] - self.tick_seconds)
                if len(back):
                    index = int(back[0])
                    raise batch.error(
                        index, "time", f"runs backwards by {high[index] - rows.time[index]:g} s, more than one tick"
                    )
                newest = float(high[-1])
                self.rows += batch.rows
                yield rows
            self._progress(batch.consumed - consumed)
            consumed = batch.consumed

    def _rows(self, batch: TableBatch) -> BatchRows:
        present = [name for name in VALUES if name in batch.columns]
        if len(present) != 1:
            found = f"there are {' and '.join(present)}" if present else "there is none"
            raise TableError(batch.file, f"exactly one of the columns {', '.join(VALUES)} is needed; {found}")
        measure = present[0]
        if self.measure and measure != self.measure:
            raise TableError(
                batch.file, f"the column {measure} cannot be compared with {self.measure} of another file"
            )
        self.measure = measure
        self.recorded = RECORDED in batch.columns
        time, calendar = batch.times("time")
        self.calendar |= calendar
        value = batch.numbers(measure)
        state = self._states(batch)
        empty = self._empty(batch)
        working = (state == ACTIVE) & ~empty
        bad = np.flatnonzero(working & ~np.isfinite(value))
        if len(bad):
            raise batch.error(int(bad[0]), measure, "a finite number was expected")
        bad = np.flatnonzero(value < (SHORTEST if measure == "step_seconds" else 0))
        if len(bad):
            words = "negative" if measure != "step_seconds" else "too small" if value[bad[0]] > 0 else "not positive"
            raise batch.error(int(bad[0]), measure, f"{value[bad[0]]:g} is {words}")
        if measure == "score" and (value > 1).any():
            index = int(np.flatnonzero(value > 1)[0])
            raise batch.error(index, measure, f"a score lies between 0 and 1, this is {value[index]:g}")
        if measure == "step_seconds":
            value = 1.0 / value
        return BatchRows(time, self._nodes(batch, empty), self._cohorts(batch, empty), value, state)

    def _empty(self, batch: TableBatch) -> npt.NDArray[np.bool_]:
        """Which rows stand for a recorded tick without nodes."""
        if not self.recorded:
            return np.zeros(batch.rows, np.bool_)
        kinds = {EMPTY: 0}
        return np.asarray(batch.codes(RECORDED, kinds) == kinds[EMPTY])

    def _states(self, batch: TableBatch) -> npt.NDArray[np.uint8]:
        if "state" not in batch.columns:
            return np.full(batch.rows, ACTIVE, np.uint8)
        words: dict[str, int] = {}
        numbers = batch.codes("state", words)
        codes = [CODES.get(word.strip().lower()) for word in words]
        for number, (word, code) in enumerate(zip(words, codes, strict=True)):
            if code is None:
                index = int(np.flatnonzero(numbers == number)[0])
                raise batch.error(index, "state", f"{word[:40]!r} is none of active, idle, calibrating")
        return np.array(codes, np.uint8)[numbers]

    def _nodes(self, batch: TableBatch, empty: npt.NDArray[np.bool_]) -> Ints:
        names = self._texts.setdefault("node", {})
        node = batch.codes("node", names)
        unnamed = np.flatnonzero((node == names.get("", -1)) & ~empty)
        if len(unnamed):
            raise batch.error(int(unnamed[0]), "node", "a node needs a name")
        return self._numbered(
            [self._column(batch, "cluster"), (node, list(names))],
            lambda parts: self.words.nodes.setdefault(node_key(parts[0], parts[1]), len(self.words.nodes)),
        )

    def _cohorts(self, batch: TableBatch, empty: npt.NDArray[np.bool_]) -> Ints:
        named = "cohort" in batch.columns
        parts = [self._column(batch, "cluster")]
        if named:
            parts.append(self._column(batch, "cohort"))
        elif any(name in batch.columns for name in PARTS):
            parts += [self._column(batch, name) for name in PARTS]
            self.mergeable = MERGEABLE
        else:
            parts.append((np.zeros(batch.rows, np.int64), [""]))
        found = np.zeros(batch.rows, np.int64)
        found[~empty] = self._numbered(
            [(numbers[~empty], words) for numbers, words in parts],
            lambda key: self.words.cohorts.setdefault(tuple(key), len(self.words.cohorts)),
        )
        return found

    def _column(self, batch: TableBatch, name: str) -> tuple[Ints, list[str]]:
        if name not in batch.columns:
            return np.zeros(batch.rows, np.int64), [""]
        words = self._texts.setdefault(name, {})
        numbers = batch.codes(name, words)
        return numbers, list(words)

    @staticmethod
    def _numbered(parts: Sequence[tuple[Ints, list[str]]], number_of: Callable[[list[str]], int]) -> Ints:
        """Number every combination of texts."""
        combined = np.zeros(len(parts[0][0]), np.int64)
        for numbers, words in parts:
            combined = combined * len(words) + numbers
        different, where, back = np.unique(combined, return_index=True, return_inverse=True)
        known = np.zeros(len(different), np.int64)
        for place, row in sorted(enumerate(where.tolist()), key=lambda pair: pair[1]):
            known[place] = number_of([words[numbers[row]] for numbers, words in parts])
        return known[back]
