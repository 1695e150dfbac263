"""Keeps the communicators beside the engine: takes points in, judges once a tick, answers, tells what it found."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_detect.memory import NodeKey
from ingero_fleet.collectives import answers
from ingero_fleet.collectives.attribution import AttributionConfig
from ingero_fleet.collectives.culprits import Culprit, Culprits, Edge
from ingero_fleet.collectives.known import Known
from ingero_fleet.collectives.lags import Group, group_by, in_buckets, measure
from ingero_fleet.collectives.onward import Lag, encode_edges, encode_lags
from ingero_fleet.collectives.points import BLOCKED, NO_SEQ, Batch, CommKey, Reader
from ingero_fleet.collectives.settings import NcclConfig
from ingero_fleet.collectives.window import Window
from ingero_kit.logs import get
from ingero_kit.otlp_server import Push, Signal

log = get(__name__)

Onward = Callable[[Push], None]
SAME_SECONDS: Final = 1e-6
"""Times closer than this are of one point, sent twice."""

Columns = dict[str, npt.NDArray[Any]]
_FIELDS: Final = ("comm", "op", "rank", "seq", "source", "kind", "value", "time", "received")


class CollectivesDesk:
    """One for each engine. `take` is called for every push with such points, from any thread; `judge` once a tick."""

    def __init__(self, config: NcclConfig, onward: Onward | None = None, tell: Onward | None = None) -> None:
        """`onward` takes peer lags, `tell` takes accusations as log records; both may be called from any thread."""
        self.config = config
        self.points = 0
        self.dropped = 0
        self.outcomes: Counter[str] = Counter()
        self.reader = Reader(config.max_communicators, config.max_ranks)
        self._known = Known(self.reader)
        self._culprits = Culprits()
        self._onward = onward
        self._tell = tell
        self._lock = threading.Lock()
        self._findings = threading.RLock()
        self._batch = Batch()
        self._held: Columns = _columns(Batch())
        self._attribution = AttributionConfig(error=config.error, share=config.share)

    @property
    def windows(self) -> dict[int, Window]:
        """Communicators by the reader's number."""
        return self._known.windows

    @property
    def culprits(self) -> dict[NodeKey, Culprit]:
        """Who is accused now, by node."""
        return self._culprits.now

    def take(self, push: Push, now: float) -> None:
        """Read the collective points of a push."""
        with self._lock:
            before = len(self._batch)
            if before + len(self._held["rank"]) >= self.config.max_points:
                self.dropped += 1
                return
            self.reader.read(push, self._batch, now)
            self.points += len(self._batch) - before

    def judge(self, now: float) -> None:
        """Group what came in, find who was late, and forget what is old."""
        with self._findings:
            self._judge(now)

    def _judge(self, now: float) -> None:
        with self._lock:
            batch, self._batch = self._batch, Batch()
            comms = list(self.reader.comms)
        columns = {name: np.concatenate([self._held[name], fresh]) for name, fresh in _columns(batch).items()}
        lags: list[Lag] = []
        if len(columns["rank"]):
            self._note_members(columns, [key.ranks for key in comms], now)
            columns = self._comparable(columns)
            columns["instance"] = self._instances(columns)
            group, again = group_by(
                (columns["comm"], columns["op"], columns["instance"]), columns["rank"], columns["received"]
            )
            self.outcomes["repeated"] += len(again)
            self._dispute(columns, again, now)
            held = self._settle(columns, group, now, lags)
            self._held = {name: columns[name][held] for name in _FIELDS}
        for window in self.windows.values():
            if len(window.arrived) and window.arrived[0] <= now - self.config.window_age:
                empty = np.zeros(0)
                window.add(empty.astype(np.int64), empty, empty, now, self.config.window, self.config.window_age)
                window.judge(self._attribution)
        self._culprits.renew(self._known, now)
        self._announce(self._culprits.edges(self._known, now))
        self._send(lags, now)
        self._forget(now)

    def close(self, now: float) -> None:
        """Take back what was said: nobody watches from now on."""
        with self._findings:
            self._announce(self._culprits.withdraw(now))

    def _note_members(self, columns: Columns, ranks: list[int], now: float) -> None:
        """Remember who is which rank; a rank that two nodes claim at once makes its communicator unfit to judge."""
        order = np.lexsort((columns["source"], columns["rank"], columns["comm"]))
        comm, rank, source = (columns[name][order] for name in ("comm", "rank", "source"))
        again = (comm[1:] == comm[:-1]) & (rank[1:] == rank[:-1]) & (source[1:] != source[:-1])
        disputed = set(comm[1:][again].tolist())
        starts = np.flatnonzero(np.diff(comm, prepend=-1))
        for first, end in zip(starts.tolist(), [*starts[1:].tolist(), len(comm)], strict=True):
            number = int(comm[first])
            window = self.windows.get(number)
            if window is None:
                window = self.windows[number] = Window(ranks[number], np.full(ranks[number], -1, np.int32), now)
            window.members[rank[first:end]] = source[first:end]
            window.seen = now
            if number in disputed:
                window.disputed_until = now + self.config.window_age
        blocked = columns["comm"][columns["kind"] == BLOCKED]
        for number in np.unique(blocked).tolist():
            self.windows[number].blocked_seen = True

    def _comparable(self, columns: Columns) -> Columns:
        """Only waits can be compared over hosts; points that carry none are counted."""
        fit = columns["kind"] == BLOCKED
        self.outcomes["without_wait"] += int(np.count_nonzero(~fit))
        return {name: column[fit] for name, column in columns.items()}

    def _instances(self, columns: Columns) -> npt.NDArray[np.int64]:
        """The sequence number, or a number by time, below 0, for points without one."""
        instance = columns["seq"].copy()
        loose = np.flatnonzero(instance == NO_SEQ)
        if len(loose):
            key = columns["comm"][loose].astype(np.int64) * 64 + columns["op"][loose]
            order = np.argsort(key, kind="stable")
            edges = np.flatnonzero(np.diff(key[order], prepend=-1))
            for part in np.split(loose[order], edges[1:]):
                numbers = in_buckets(columns["time"][part], columns["rank"][part], self.config.time_tolerance)
                instance[part] = -1 - numbers
        return instance

    def _dispute(self, columns: Columns, again: npt.NDArray[np.int64], now: float) -> None:
        """One number of one rank at two times is two collectives: whoever has such numbers is unfit to judge.

        A point that was sent again says the same time. A job that began anew within a tick is unfit for a while too.
        """
        apart = np.abs(columns["time"][again[:, 0]] - columns["time"][again[:, 1]]) > SAME_SECONDS
        for number in np.unique(columns["comm"][again[apart, 0]]).tolist():
            self.windows[number].disputed_until = now + self.config.window_age

    def _settle(self, columns: Columns, group: Group, now: float, lags: list[Lag]) -> npt.NDArray[np.int64]:
        """Judge collectives that are whole or have waited long enough; returns the places of points that wait on."""
        sizes, firsts = group.sizes, group.order[group.starts[:-1]]
        comm = columns["comm"][firsts]
        known = sorted(self.windows)
        ranks = np.zeros(known[-1] + 1 if known else 1, np.int64)
        ranks[known] = [self.windows[number].ranks for number in known]
        whole = sizes >= ranks[comm]
        newest = np.maximum.reduceat(columns["received"][group.order], group.starts[:-1])
        over = ~whole & (newest <= now - self.config.hold)
        # Half of the ranks show who is late among them; fewer would compare too little.
        usable = over & (sizes >= 2) & (2 * sizes >= ranks[comm])
        self.outcomes["whole"] += int(whole.sum())
        self.outcomes["partial"] += int(usable.sum())
        self.outcomes["incomplete"] += int((over & ~usable).sum())
        member = np.repeat(np.arange(len(sizes)), sizes)
        self._judge_groups(columns, group, whole | usable, member, now, lags)
        waiting: npt.NDArray[np.int64] = group.order[~(whole | over)[member]]
        return waiting

    def _judge_groups(
        self, columns: Columns, group: Group, ready: npt.NDArray[np.bool_], member: npt.NDArray[np.int64], now: float,
        lags: list[Lag],
    ) -> None:  # fmt: skip
        if not ready.any():
            return
        chosen = Group(group.order[ready[member]], np.append(0, np.cumsum(group.sizes[ready])))
        found = measure(chosen, columns["rank"], columns["value"], columns["time"])
        comm_of_point = columns["comm"][chosen.order]
        comm = comm_of_point[chosen.starts[:-1]]
        rank = columns["rank"][chosen.order]
        waited = columns["value"][chosen.order].astype(np.float64)
        extra = waited - np.repeat(np.minimum.reduceat(waited, chosen.starts[:-1]), chosen.sizes)
        starts = np.flatnonzero(np.diff(comm, prepend=-1))
        for first, end in zip(starts.tolist(), [*starts[1:].tolist(), len(comm)], strict=True):
            window = self.windows[int(comm[first])]
            points = slice(int(chosen.starts[first]), int(chosen.starts[end]))
            count = np.bincount(rank[points], minlength=window.ranks)
            with np.errstate(invalid="ignore"):
                mean = np.bincount(rank[points], weights=found.lag[points], minlength=window.ranks) / count
                wait = np.bincount(rank[points], weights=extra[points], minlength=window.ranks) / count
            window.blend(mean, wait)
            window.add(
                found.last[first:end], found.lost[first:end], found.time[first:end], now, self.config.window,
                self.config.window_age,
            )  # fmt: skip
            window.judge(self._attribution)
            if self._onward and self.config.onward_points:
                number = int(comm[first])
                lags += [(float(mean[place]), number, place) for place in np.flatnonzero(count).tolist()]

    def shares(self) -> dict[NodeKey, float]:
        """Share of its job's time that is lost waiting for each culprit alone."""
        return {node: float(item["share"]) for node, item in self.culprits.items()}

    def answer(self, cluster: str | None, now: float, limit: int = 100) -> dict[str, Any]:
        """Culprits, then communicators, the most lost first, with the lag of every rank."""
        with self._findings:
            numbers = answers.numbers_by_loss(self._known, cluster)
            return {
                "cluster_id": cluster,
                "culprits": [item for key, item in self.culprits.items() if cluster in (None, key[0])],
                "total": len(numbers),
                "communicators": [answers.communicator(self._known, number, now) for number in numbers[:limit]],
                "points": self.points,
                "outcomes": dict(self.outcomes),
                "refused": dict(self.reader.refused),
            }

    def largest_lags(self) -> list[tuple[CommKey, int, str, float]]:
        """Communicator, rank, node and lag in milliseconds of those who came latest lately; the largest lags only."""
        with self._findings:
            return answers.largest_lags(self._known)

    def _announce(self, edges: list[Edge]) -> None:
        """Log the edges of accusations, and send them onward as log records."""
        for edge in edges:
            item = edge.culprit
            log.info(
                "late_rank", edge=edge.what, cluster=item["cluster_id"], node=item["node_id"], rank=item["rank"],
                comm=item["comm"], share=item["share"],
            )  # fmt: skip
        if edges and self._tell:
            self._tell(Push(Signal.LOGS, "protobuf", encode_edges(edges)))

    def _send(self, lags: list[Lag], now: float) -> None:
        if not self._onward or not lags:
            return
        lags.sort(key=lambda item: -abs(item[0]))
        self.outcomes["lags_not_sent"] += max(0, len(lags) - self.config.onward_points)
        body = encode_lags(self._known, lags[: self.config.onward_points], now)
        self._onward(Push(Signal.METRICS, "protobuf", body))

    def _forget(self, now: float) -> None:
        """Forget communicators without points, and sources that belong to none, when enough of them have gathered."""
        gone = [number for number, window in self.windows.items() if now - window.seen > self.config.ttl]
        used = np.unique(np.concatenate([np.zeros(0, np.int32), *(item.members for item in self.windows.values())]))
        if not gone and len(self.reader.sources) <= 2 * len(used) + 1024:
            return
        with self._lock:
            stale = set(gone)
            unseen = set(range(len(self.reader.comms))) - set(self.windows)
            busy = set(self._held["comm"].tolist()) | set(self._batch.comm)
            comms = [number for number in range(len(self.reader.comms)) if number not in stale or number in busy]
            comms = [number for number in comms if number not in unseen or number in busy]
            sources = sorted(
                {
                    place
                    for number in comms
                    if number in self.windows
                    for place in np.unique(self.windows[number].members).tolist()
                }
                | set(self._held["source"].tolist())
                | set(self._batch.source)
            )
            sources = [place for place in sources if place >= 0]
            self.reader.forget(comms, sources)
            comm_numbers = {old: new for new, old in enumerate(comms)}
            source_numbers = {old: new for new, old in enumerate(sources)} | {-1: -1}
            kept = {comm_numbers[old]: item for old, item in self.windows.items() if old in comm_numbers}
            self._known.windows = kept
            for window in self.windows.values():
                window.members = _renumbered(window.members, source_numbers)
            for name, numbers in (("comm", comm_numbers), ("source", source_numbers)):
                self._held[name] = _renumbered(self._held[name], numbers)
                column = getattr(self._batch, name)
                column[:] = type(column)(column.typecode, [numbers[number] for number in column])


def _renumbered(column: npt.NDArray[Any], numbers: dict[int, int]) -> npt.NDArray[Any]:
    return np.array([numbers[number] for number in column.tolist()], column.dtype)


def _columns(batch: Batch) -> Columns:
    return {name: np.array(getattr(batch, name), _TYPES[name]) for name in _FIELDS}


_TYPES: Final = {
    "comm": np.int32, "op": np.int32, "rank": np.int32, "seq": np.int64, "source": np.int32, "kind": np.int8,
    "value": np.float32, "time": np.float64, "received": np.float64,
}  # fmt: skip
