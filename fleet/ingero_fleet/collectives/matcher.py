"""Sorts points into communicators' windows: groups them by collective and judges collectives that are complete."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_fleet.collectives.attribution import AttributionConfig
from ingero_fleet.collectives.batch import POINT, Columns, PointBatch
from ingero_fleet.collectives.communicators import Communicators
from ingero_fleet.collectives.lags import Group, PeerLag, group_by, in_buckets, mean_lags, measure
from ingero_fleet.collectives.points import BLOCKED, NO_SEQ, NO_WORK
from ingero_fleet.collectives.transfer_times import TransferTimes
from ingero_fleet.collectives.unequal_work import WorkRoom, WorkTable
from ingero_fleet.collectives.window import CommunicatorWindow
from ingero_fleet.processor_settings import NcclConfig

SAME_SECONDS: Final = 1e-6
"""Two times closer than this, seconds, are those of one point that was sent twice."""


class CollectiveMatcher:
    """Communicators, the points that wait for others of their collective, and counts of the rest by outcome."""

    def __init__(
        self,
        communicators: Communicators,
        config: NcclConfig,
        attribution: AttributionConfig,
        *,
        lags: bool = False,
        transfers: TransferTimes | None = None,
    ) -> None:
        """`lags`: whether the lags of ranks are needed. `transfers` takes how long collectives last."""
        self.communicators = communicators
        self.waiting: Columns = PointBatch().columns()
        self.outcomes: Counter[str] = Counter()
        self._config = config
        self._attribution = attribution
        self._lags = lags
        self._transfers = transfers

    def state(self) -> dict[str, Any]:
        """Everything that later points depend on."""
        windows = self.communicators.windows.items()
        return {"waiting": self.waiting, "windows": [[number, window.state()] for number, window in windows]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self.waiting = dict(state["waiting"])
        self.communicators.windows = {
            number: CommunicatorWindow.restored(window) for number, window in state["windows"]
        }

    def trial(self, fresh: Columns, attribution: AttributionConfig) -> "CollectiveMatcher":
        """A copy that takes these points and judges by these settings, without changing this one."""
        copied = CollectiveMatcher(
            Communicators(self.communicators.reader, dict(self.communicators.windows)), self._config, attribution
        )
        copied.waiting = dict(self.waiting)
        for number in np.unique(np.concatenate([self.waiting["comm"], fresh["comm"]])).tolist():
            window = self.communicators.windows.get(number)
            if window is not None:
                copied.communicators.windows[number] = replace(window, members=window.members.copy())
        return copied

    def take(self, fresh: Columns, ranks: list[int], now: float) -> list[PeerLag]:
        """Take points and judge the communicators whose collectives they complete; returns the lags of ranks.

        `ranks` are the communicators' sizes by number at the time when the points were read.
        """
        columns = {name: np.concatenate([self.waiting[name], column]) for name, column in fresh.items()}
        lags: list[PeerLag] = []
        if len(columns["rank"]):
            self._note_members(columns, ranks, now)
            columns = self._comparable(columns)
            columns["instance"] = self._instances(columns)
            group, again = group_by(
                (columns["comm"], columns["op"], columns["instance"]), columns["rank"], columns["received"]
            )
            self.outcomes["repeated"] += len(again)
            self._dispute(columns, again, now)
            waiting = self._settle(columns, group, now, lags)
            self.waiting = {name: columns[name][waiting] for name in POINT.names or ()}
        return lags

    def age(self, now: float) -> None:
        """Judge again the communicators that hold collectives too old to count."""
        size, age = self._config.window, self._config.window_age
        for window in self.communicators.windows.values():
            if len(window.arrived) and window.arrived[0] <= now - age:
                empty = np.zeros(0)
                window.add(empty.astype(np.int64), empty, empty, now, size, age)
                window.judge(self._attribution)

    def _note_members(self, columns: Columns, ranks: list[int], now: float) -> None:
        """Remember the node of each rank; a communicator with a rank that two nodes claim at once is not judged."""
        order = np.lexsort((columns["source"], columns["rank"], columns["comm"]))
        comm, rank, source = (columns[name][order] for name in ("comm", "rank", "source"))
        again = (comm[1:] == comm[:-1]) & (rank[1:] == rank[:-1]) & (source[1:] != source[:-1])
        disputed = set(comm[1:][again].tolist())
        starts = np.flatnonzero(np.diff(comm, prepend=-1))
        for first, end in zip(starts.tolist(), [*starts[1:].tolist(), len(comm)], strict=True):
            number = int(comm[first])
            window = self.communicators.windows.get(number)
            if window is None:
                window = self.communicators.windows[number] = CommunicatorWindow(
                    ranks[number], np.full(ranks[number], -1, np.int32), now
                )
            window.members[rank[first:end]] = source[first:end]
            window.seen = now
            if number in disputed:
                window.disputed_until = now + self._config.window_age
        blocked = columns["comm"][columns["kind"] == BLOCKED]
        for number in np.unique(blocked).tolist():
            self.communicators.windows[number].blocked_seen = True

    def _comparable(self, columns: Columns) -> Columns:
        """Keep points with a wait, because only waits can be compared between hosts; count the others."""
        fit = columns["kind"] == BLOCKED
        self.outcomes["without_wait"] += int(np.count_nonzero(~fit))
        return {name: column[fit] for name, column in columns.items()}

    def _instances(self, columns: Columns) -> npt.NDArray[np.int64]:
        """The sequence number, or for points without one a negative number by time."""
        instance = columns["seq"].copy()
        loose = np.flatnonzero(instance == NO_SEQ)
        if len(loose):
            key = columns["comm"][loose].astype(np.int64) * 64 + columns["op"][loose]
            order = np.argsort(key, kind="stable")
            edges = np.flatnonzero(np.diff(key[order], prepend=-1))
            for part in np.split(loose[order], edges[1:]):
                numbers = in_buckets(columns["time"][part], columns["rank"][part], self._config.time_tolerance)
                instance[part] = -1 - numbers
        return instance

    def _dispute(self, columns: Columns, again: npt.NDArray[np.int64], now: float) -> None:
        """Suspend communicators in which one number of a rank has two times, because those are two collectives.

        A point that was sent twice has the same time. A job that restarted within a tick is not judged for a while
        either.
        """
        apart = np.abs(columns["time"][again[:, 0]] - columns["time"][again[:, 1]]) > SAME_SECONDS
        for number in np.unique(columns["comm"][again[apart, 0]]).tolist():
            self.communicators.windows[number].disputed_until = now + self._config.window_age

    def _settle(self, columns: Columns, group: Group, now: float, lags: list[PeerLag]) -> npt.NDArray[np.int64]:
        """Judge collectives that are complete or have waited long enough; returns the indices of waiting points."""
        sizes, firsts = group.sizes, group.order[group.starts[:-1]]
        comm = columns["comm"][firsts]
        communicators = sorted(self.communicators.windows)
        ranks = np.zeros(communicators[-1] + 1 if communicators else 1, np.int64)
        ranks[communicators] = [self.communicators.windows[number].ranks for number in communicators]
        whole = sizes >= ranks[comm]
        newest = np.maximum.reduceat(columns["received"][group.order], group.starts[:-1])
        over = ~whole & (newest <= now - self._config.hold)
        # Half of the ranks suffice to show which of them is late; with fewer, the comparison is too weak.
        usable = over & (sizes >= 2) & (2 * sizes >= ranks[comm])
        self.outcomes["whole"] += int(whole.sum())
        self.outcomes["partial"] += int(usable.sum())
        self.outcomes["incomplete"] += int((over & ~usable).sum())
        member = np.repeat(np.arange(len(sizes)), sizes)
        if self._transfers is not None and whole.any():
            shortest = np.minimum.reduceat(columns["value"][group.order], group.starts[:-1])
            size = np.maximum.reduceat(columns["size"][group.order], group.starts[:-1])
            reader = self.communicators.reader
            self._transfers.add(
                reader.comms, reader.ops, comm[whole].astype(np.int64), columns["op"][firsts][whole].astype(np.int64),
                size[whole], shortest[whole] / 1000.0,
            )  # fmt: skip
        self._judge_groups(columns, group, whole | usable, member, now, lags)
        waiting: npt.NDArray[np.int64] = group.order[~(whole | over)[member]]
        return waiting

    def _judge_groups(
        self, columns: Columns, group: Group, ready: npt.NDArray[np.bool_], member: npt.NDArray[np.int64], now: float,
        lags: list[PeerLag],
    ) -> None:  # fmt: skip
        if not ready.any():
            return
        chosen = Group(group.order[ready[member]], np.append(0, np.cumsum(group.sizes[ready])))
        found = measure(chosen, columns["rank"], columns["value"], columns["time"])
        comm_of_point = columns["comm"][chosen.order]
        comm = comm_of_point[chosen.starts[:-1]]
        rank, op = columns["rank"][chosen.order], columns["op"][chosen.order]
        waited = columns["value"][chosen.order].astype(np.float64)
        instance = columns["instance"][chosen.order][chosen.starts[:-1]]
        ops = op[chosen.starts[:-1]]
        told = np.isfinite(columns["work"]).any()
        work = columns["work"][chosen.order] if told else np.full(len(waited), NO_WORK, np.float32)
        room = WorkRoom((window.work for window in self.communicators.windows.values()), self._config.window)
        extra = waited - np.repeat(np.minimum.reduceat(waited, chosen.starts[:-1]), chosen.sizes)
        starts = np.flatnonzero(np.diff(comm, prepend=-1))
        for first, end in zip(starts.tolist(), [*starts[1:].tolist(), len(comm)], strict=True):
            window = self.communicators.windows[int(comm[first])]
            points = slice(int(chosen.starts[first]), int(chosen.starts[end]))
            count = np.bincount(rank[points], minlength=window.ranks)
            with np.errstate(invalid="ignore"):
                mean = np.bincount(rank[points], weights=found.lag[points], minlength=window.ranks) / count
                wait = np.bincount(rank[points], weights=extra[points], minlength=window.ranks) / count
            kinds, place = np.unique(op[points], return_inverse=True)
            by_op = np.bincount(
                place * window.ranks + rank[points], weights=extra[points], minlength=len(kinds) * window.ranks
            ).reshape(len(kinds), window.ranks) / (end - first)
            op_waits = dict(zip(kinds.tolist(), np.where(count > 0, by_op, np.nan), strict=True))
            window.blend(mean, wait, op_waits, now, self._config.window_age)
            # Numbers may count each operation by itself.
            same = ops[first:end] == np.bincount(ops[first:end]).argmax()
            window.note_pace(instance[first:end][same], found.time[first:end][same], now)
            if window.work is not None or (told and np.isfinite(work[points]).any()):
                row = np.repeat(np.arange(end - first), chosen.sizes[first:end])
                cells = (end - first, window.ranks)
                window.note_work(
                    WorkTable.of(row, rank[points], waited[points], work[points], ops[first:end], cells), room
                )
            window.add(
                found.last[first:end], found.lost[first:end], found.time[first:end], now, self._config.window,
                self._config.window_age,
            )  # fmt: skip
            window.judge(self._attribution)
            if self._lags:
                number = int(comm[first])
                for kind in kinds.tolist():
                    own = op[points] == kind
                    lags += mean_lags(found.lag[points][own], rank[points][own], number, kind)
