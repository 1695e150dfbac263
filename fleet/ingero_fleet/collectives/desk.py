"""Keeps the communicators beside the engine: takes points in, judges once a tick, answers, sends peer lags onward."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingero_contract import attributes, metrics
from ingero_contract.values import LATE_RANK
from ingero_detect.memory import NodeKey
from ingero_fleet.collectives.attribution import AttributionConfig, Claim, without_victims
from ingero_fleet.collectives.lags import Group, group_by, in_buckets, measure
from ingero_fleet.collectives.points import BLOCKED, NO_SEQ, Batch, CommKey, Reader, Source
from ingero_fleet.collectives.settings import NcclConfig
from ingero_fleet.collectives.window import Window
from ingero_kit.clock import rfc3339
from ingero_kit.otlp_server import Push, Signal

MAX_SERIES: Final = 1_000
"""Peer lags on the Prometheus page, the largest first."""

ANSWERED_RANKS: Final = 1_024
"""Ranks of one communicator in an answer, the latest first."""

Columns = dict[str, npt.NDArray[Any]]
_FIELDS: Final = ("comm", "op", "rank", "seq", "source", "kind", "value", "time", "received")


class CollectivesDesk:
    """One for each engine. `take` is called for every push with such points, from any thread; `judge` once a tick."""

    def __init__(self, config: NcclConfig, onward: Callable[[Push], None] | None = None) -> None:
        self.config = config
        self.points = 0
        self.dropped = 0
        self.outcomes: Counter[str] = Counter()
        self.culprits: dict[NodeKey, dict[str, Any]] = {}
        self._accused: dict[NodeKey, tuple[float, int]] = {}
        self.windows: dict[int, Window] = {}
        self.reader = Reader(config.max_communicators, config.max_ranks)
        self._onward = onward
        self._lock = threading.Lock()
        self._findings = threading.RLock()
        self._batch = Batch()
        self._held: Columns = _columns(Batch())
        self._attribution = AttributionConfig(error=config.error, share=config.share)

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
        lags: list[tuple[float, int, int]] = []
        if len(columns["rank"]):
            self._note_members(columns, [key.ranks for key in comms], now)
            columns = self._comparable(columns)
            columns["instance"] = self._instances(columns)
            group, again = group_by(
                (columns["comm"], columns["op"], columns["instance"]), columns["rank"], columns["received"]
            )
            self.outcomes["repeated"] += again
            held = self._settle(columns, group, now, lags)
            self._held = {name: columns[name][held] for name in _FIELDS}
        for window in self.windows.values():
            if len(window.arrived) and window.arrived[0] <= now - self.config.window_age:
                empty = np.zeros(0)
                window.add(empty.astype(np.int64), empty, empty, now, self.config.window, self.config.window_age)
                window.judge(self._attribution)
        self.culprits = self._culprits(now)
        self._send(lags, now)
        self._forget(now)

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

    def _settle(
        self, columns: Columns, group: Group, now: float, lags: list[tuple[float, int, int]]
    ) -> npt.NDArray[np.int64]:
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
        lags: list[tuple[float, int, int]],
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

    def _culprits(self, now: float) -> dict[NodeKey, dict[str, Any]]:
        claims: dict[str, list[Claim]] = {}
        for number, window in self.windows.items():
            if not window.finding or not window.finding.accused or now < window.disputed_until:
                continue
            cluster = self.reader.comms[number].cluster
            claims.setdefault(cluster, []).append(
                Claim(
                    number,
                    self._source(window, window.finding.rank).node,
                    window.finding.share,
                    self._waiting(window),
                )
            )
        culprits: dict[NodeKey, dict[str, Any]] = {}
        for cluster, found in claims.items():
            for claim in without_victims(found):
                known = culprits.get((cluster, claim.node))
                if claim.node and (known is None or claim.share > known["share"]):
                    culprits[(cluster, claim.node)] = self._describe(claim.communicator)
        before, self._accused = self._accused, {}
        for node, item in culprits.items():
            since, windows = before.get(node, (now, 0))
            self._accused[node] = since, windows + 1
            item |= {"since": rfc3339(since), "windows": windows + 1}
        return culprits

    def _source(self, window: Window, rank: int) -> Source:
        place = int(window.members[rank])
        return self.reader.sources[place] if place >= 0 else Source("", "", "")

    def _waiting(self, window: Window) -> dict[str, float]:
        """Share of time that each node's ranks wait in this communicator, at least."""
        period = window.elapsed_ms / max(1, len(window.time))
        waiting: dict[str, float] = {}
        for rank, wait in enumerate(window.waited.tolist()):
            node = self._source(window, rank).node
            if node and wait == wait and period > 0:
                waiting[node] = min(waiting.get(node, 1.0), wait / period)
        return waiting

    def _describe(self, number: int) -> dict[str, Any]:
        """One accusation in words and figures."""
        window, key = self.windows[number], self.reader.comms[number]
        finding = window.finding
        assert finding is not None
        source = self._source(window, finding.rank)
        return {
            "cluster_id": key.cluster,
            "kind": LATE_RANK,
            "comm": key.hash,
            "ranks": key.ranks,
            "rank": finding.rank,
            "node_id": source.node,
            "pod": source.pod or None,
            "share": round(finding.share, 6),
            "lag_ms": round(float(window.lag[finding.rank]), 6),
            "lasts": finding.lasts,
            "collectives": finding.collectives,
            "chance": finding.chance,
            "why": (
                f"Rank {finding.rank} came last in {finding.lasts} of the {finding.collectives} collectives that "
                f"cost the most; {100 * finding.share:.1f} % of the time was lost waiting for it alone."
            ),
        }

    def shares(self) -> dict[NodeKey, float]:
        """Share of its job's time that is lost waiting for each culprit alone."""
        return {node: float(item["share"]) for node, item in self.culprits.items()}

    def answer(self, cluster: str | None, now: float, limit: int = 100) -> dict[str, Any]:
        """Culprits, then communicators, the most lost first, with the lag of every rank."""
        with self._findings:
            return self._answer(cluster, now, limit)

    def _answer(self, cluster: str | None, now: float, limit: int) -> dict[str, Any]:
        numbers = [
            number
            for number in self.windows
            if cluster in (None, self.reader.comms[number].cluster)
        ]  # fmt: skip
        numbers.sort(key=lambda number: -(finding.share if (finding := self.windows[number].finding) else -1.0))
        return {
            "cluster_id": cluster,
            "culprits": [item for key, item in self.culprits.items() if cluster in (None, key[0])],
            "total": len(numbers),
            "communicators": [self._communicator(number, now) for number in numbers[:limit]],
            "points": self.points,
            "outcomes": dict(self.outcomes),
            "refused": dict(self.reader.refused),
        }

    def largest_lags(self) -> list[tuple[CommKey, int, str, float]]:
        """Communicator, rank, node and lag in milliseconds of those who came latest lately; the largest lags only."""
        with self._findings:
            found: list[tuple[float, int, int]] = []
            for number, window in self.windows.items():
                if len(window.lag):
                    values = np.nan_to_num(window.lag, nan=-np.inf)
                    found += [(float(values[rank]), number, rank) for rank in np.argsort(-values)[:8].tolist()]
            found.sort(key=lambda item: -item[0])
            return [
                (self.reader.comms[number], rank, self._source(self.windows[number], rank).node, value)
                for value, number, rank in found[:MAX_SERIES]
                if np.isfinite(value)
            ]

    def _communicator(self, number: int, now: float) -> dict[str, Any]:
        window, key = self.windows[number], self.reader.comms[number]
        finding = window.finding
        lag = window.lag if len(window.lag) else np.full(window.ranks, np.nan, np.float32)
        order = np.argsort(np.nan_to_num(-lag, nan=np.inf), kind="stable")[:ANSWERED_RANKS]
        return {
            "cluster_id": key.cluster,
            "comm": key.hash,
            "ranks": key.ranks,
            "judged": window.judged,
            "in_window": len(window.last),
            "verdict": self._verdict(window, now),
            "finding": None if finding is None else {
                "rank": finding.rank, "node_id": self._source(window, finding.rank).node or None,
                "share": round(finding.share, 6), "lasts": finding.lasts, "collectives": finding.collectives,
                "chance": finding.chance,
            },
            "lags": [
                {
                    "rank": rank, "node_id": (source := self._source(window, rank)).node or None,
                    "pod": source.pod or None,
                    "lag_ms": round(float(lag[rank]), 6) if lag[rank] == lag[rank] else None,
                }
                for rank in order.tolist()
            ],
        }  # fmt: skip

    def _verdict(self, window: Window, now: float) -> str:
        if now < window.disputed_until:
            return "unknown: two nodes claim the same rank, so that two communicators may share this hash"
        if not window.blocked_seen:
            return "unknown: the agents do not tell how long ranks waited, and clocks of different hosts do not"
        if window.finding is None:
            return "unknown: no collective was seen from enough of its ranks lately"
        return "culprit" if window.finding.accused else f"none: {window.finding.why_not}"

    def _send(self, lags: list[tuple[float, int, int]], now: float) -> None:
        if not self._onward or not lags:
            return
        lags.sort(key=lambda item: -abs(item[0]))
        self.outcomes["lags_not_sent"] += max(0, len(lags) - self.config.onward_points)
        blocks: dict[int, list[tuple[float, int, int]]] = {}
        for item in lags[: self.config.onward_points]:
            blocks.setdefault(int(self.windows[item[1]].members[item[2]]), []).append(item)
        request = ExportMetricsServiceRequest()
        for place, items in blocks.items():
            source = self.reader.sources[place]
            block = request.resource_metrics.add()
            for key, text in (
                (attributes.NODE_ID, source.node), (attributes.CLUSTER_ID, source.cluster),
                (attributes.POD_NAME, source.pod),
            ):  # fmt: skip
                if text:
                    block.resource.attributes.add(key=key).value.string_value = text
            metric = block.scope_metrics.add().metrics.add(name=metrics.COLLECTIVE_PEER_LAG, unit="ms")
            for value, number, rank in items:
                comm = self.reader.comms[number]
                point = metric.gauge.data_points.add(time_unix_nano=int(now * 1e9), as_double=value)
                point.attributes.add(key=attributes.NCCL_COMM_HASH).value.string_value = comm.hash
                point.attributes.add(key=attributes.NCCL_RANK).value.int_value = rank
                point.attributes.add(key=attributes.NCCL_NRANKS).value.int_value = comm.ranks
        self._onward(Push(Signal.METRICS, "protobuf", request.SerializeToString()))

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
            self.windows = {comm_numbers[old]: item for old, item in self.windows.items() if old in comm_numbers}
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


class CollectivesPage(Collector):
    """Peer lags and culprits for the findings page, and what became of points."""

    def __init__(self, desk: CollectivesDesk) -> None:
        self._desk = desk

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        desk = self._desk
        lag = GaugeMetricFamily(
            "ingero_fleet_collective_peer_lag_milliseconds",
            "How much later than the median rank a rank came lately; the largest lags only.",
            labels=["cluster_id", "comm", "rank", "node_id"],
        )
        for key, rank, node, value in desk.largest_lags():
            lag.add_metric([key.cluster, key.hash, str(rank), node], value)
        share = GaugeMetricFamily(
            "ingero_fleet_collective_culprit_share",
            "Share of time lost waiting for this rank alone.",
            labels=["cluster_id", "node_id", "comm", "rank"],
        )
        for (cluster, node), item in list(desk.culprits.items())[:MAX_SERIES]:
            share.add_metric([cluster, node, item["comm"], str(item["rank"])], item["share"])
        communicators = GaugeMetricFamily("ingero_fleet_communicators", "Communicators that are kept.")
        communicators.add_metric([], len(desk.windows))
        points = CounterMetricFamily("ingero_fleet_collective_points", "Collective points taken.")
        points.add_metric([], desk.points)
        outcome = CounterMetricFamily(
            "ingero_fleet_collectives", "Collectives and points by what became of them.", labels=["outcome"]
        )
        for name, count in list(desk.outcomes.items()):
            outcome.add_metric([name], count)
        outcome.add_metric(["pushes_over_limit"], desk.dropped)
        refused = CounterMetricFamily(
            "ingero_fleet_collective_points_refused", "Points left out, by reason.", labels=["reason"]
        )
        for reason, count in list(desk.reader.refused.items()):
            refused.add_metric([reason], count)
        yield from (lag, share, communicators, points, outcome, refused)
