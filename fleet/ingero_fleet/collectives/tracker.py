"""Keeps the communicators of an engine: takes points, judges them once a tick, answers and exports the findings."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ingero_contract.identifiers import NodeKey
from ingero_detect.network.links import RankPort
from ingero_fleet.collectives import answers
from ingero_fleet.collectives.attribution import AttributionConfig
from ingero_fleet.collectives.batch import PointBatch, renumbered
from ingero_fleet.collectives.communicators import Communicators
from ingero_fleet.collectives.export import encode_lags, encode_network_changes, encode_rank_edges
from ingero_fleet.collectives.gpu_states import GpuStates
from ingero_fleet.collectives.lags import PeerLag
from ingero_fleet.collectives.matcher import CollectiveMatcher
from ingero_fleet.collectives.points import CommKey, PointReader
from ingero_fleet.collectives.slow_network import NetworkChange, SlowNetwork
from ingero_fleet.collectives.straggler_ranks import RankEdge, StragglerRank, StragglerRanks
from ingero_fleet.collectives.throttling import ThrottleDetector
from ingero_fleet.collectives.topology_file import read_topology
from ingero_fleet.collectives.transfer_times import TransferTimes
from ingero_fleet.collectives.window import CommunicatorWindow
from ingero_fleet.processor_settings import NcclConfig
from ingero_kit.logs import get
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal

log = get(__name__)

Export = Callable[[Push], None]

MAX_POLL_POINTS: Final = 200_000
"""With more new points than this, no poll runs before the next tick: it would take a large part of the interval."""


def polls_per_tick(tick_seconds: float, poll_seconds: float) -> int:
    """The most polls between two ticks; 0 when the poll interval is as long as a tick."""
    return max(0, math.ceil(tick_seconds / poll_seconds) - 1)


def shared_error(config: NcclConfig, polls: int) -> tuple[AttributionConfig, AttributionConfig]:
    """Settings for a tick and for a poll: the tick has half of the chance of error, all polls share the rest."""
    tick = AttributionConfig(error=config.error / 2 if polls else config.error, share=config.share)
    return tick, replace(tick, error=tick.error / max(1, polls))


class CollectivesTracker:
    """One for each engine. `take` is called for every push with such points, from any thread; `judge` once a tick."""

    def __init__(
        self, config: NcclConfig, export: Export | None = None, export_logs: Export | None = None, *, polls: int = 0
    ) -> None:
        """`export` takes peer lags, `export_logs` takes accusations as log records; both may be called on any thread.

        `polls`: how often `early_poll` may be called between two ticks; the chance of error is shared with them.
        """
        self.config = config
        self.points = 0
        self.dropped = 0
        self.polls: Counter[str] = Counter()
        self.gpus = GpuStates(config.max_gpus, config.gpu_age)
        self.reader = PointReader(config.max_communicators, config.max_ranks, self.gpus)
        attribution, self._of_polls = shared_error(config, polls)
        wanted = export is not None and config.onward_points > 0
        self.network = SlowNetwork(read_topology(config.topology_file))
        self.transfers = TransferTimes()
        self._matcher = CollectiveMatcher(
            Communicators(self.reader), config, attribution, lags=wanted,
            transfers=self.transfers if config.topology_file else None,
        )  # fmt: skip
        self._shown = self._matcher.communicators
        self._stragglers = StragglerRanks(self.transfers if config.topology_file else None)
        self._throttling = ThrottleDetector()
        self._export = export
        self._export_logs = export_logs
        self._lock = threading.Lock()
        self._findings = threading.RLock()
        self._batch = PointBatch()
        self._polled_at = 0

    @property
    def windows(self) -> dict[int, CommunicatorWindow]:
        """Communicators by the number that the reader gave them."""
        return self._matcher.communicators.windows

    @property
    def outcomes(self) -> Counter[str]:
        """Numbers of collectives and points by outcome."""
        return self._matcher.outcomes

    @property
    def refused(self) -> dict[str, int]:
        """Points of collectives and GPUs that were left out, by reason."""
        return {**self.reader.refused, **self.gpus.refused, **self.transfers.dropped}

    @property
    def stragglers(self) -> dict[NodeKey, StragglerRank]:
        """The ranks that are accused now, by node."""
        return self._stragglers.now

    @property
    def has_new_points(self) -> bool:
        """Whether points came in since the last tick or poll."""
        return self.points != self._polled_at

    def accused_kinds(self) -> dict[NodeKey, str]:
        """The kind of each accusation, by node."""
        return {key: item["kind"] for key, item in self.stragglers.items()}

    def take(self, push: Push, now: float) -> None:
        """Read the collective points of a push."""
        with self._lock:
            before = len(self._batch)
            if before + len(self._matcher.waiting["rank"]) >= self.config.max_points:
                self.dropped += 1
                return
            self.reader.read(push, self._batch, now)
            self.points += len(self._batch) - before

    def use_topology(self, ports: Mapping[str, RankPort]) -> None:
        """Judge the network by another topology from the next tick on."""
        with self._findings:
            self.network.use(ports)

    def judge(self, now: float) -> None:
        """Group the points that came in, find late ranks, and forget what is old."""
        with self._findings:
            with self._lock:
                batch, self._batch = self._batch, PointBatch()
                ranks = [key.ranks for key in self.reader.comms]
            matcher = self._matcher
            self.transfers.next_tick()
            lags = matcher.take(batch.columns(), ranks, now)
            matcher.age(now)
            self.network.tick(matcher.communicators, self.transfers, now)
            self._announce_network(self.network.changes(now))
            self._shown, self._polled_at = matcher.communicators, self.points
            silent = self.gpus.silent(now)
            with self._lock:
                self.gpus.forget(silent, now)
            slow = self._throttling.find(matcher.communicators, self.gpus, now)
            self._stragglers.renew(matcher.communicators, matcher.waiting, now, slow)
            self._announce(self._stragglers.edges(matcher.communicators, now))
            self._send(lags, now)
            self._forget(now)

    def early_poll(self, now: float) -> None:
        """Between two ticks: find late ranks in the points since the last tick, which the next tick judges again.

        Does nothing without new points, or with so many that the poll would be expensive.
        """
        with self._findings:
            with self._lock:
                if (
                    self.points == self._polled_at
                    or len(self._batch) + len(self._matcher.waiting["rank"]) > MAX_POLL_POINTS
                ):
                    return
                fresh, self._polled_at = self._batch.columns(), self.points
                ranks = [key.ranks for key in self.reader.comms]
            self.polls["done"] += 1
            matcher = self._matcher.trial(fresh, self._of_polls)
            matcher.take(fresh, ranks, now)
            self._shown = matcher.communicators
            self._stragglers.add(matcher.communicators, matcher.waiting, now)
            self._announce(self._stragglers.edges(matcher.communicators, now))

    def state(self) -> dict[str, Any]:
        """Everything that later steps depend on."""
        with self._findings, self._lock:
            return {
                "points": self.points,
                "polled_at": self._polled_at,
                "batch": bytes(self._batch.packed),
                "reader": self.reader.state(),
                "gpus": self.gpus.state(),
                "matcher": self._matcher.state(),
                "stragglers": self._stragglers.state(),
                "throttling": self._throttling.state(),
                "transfers": self.transfers.state(),
                "network": self.network.state(),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        with self._findings, self._lock:
            self.points, self._polled_at = state["points"], state["polled_at"]
            self._batch = PointBatch(bytearray(state["batch"]))
            self.reader.restore(state["reader"])
            self.gpus.restore(state["gpus"])
            self._matcher.restore(state["matcher"])
            self._stragglers.restore(state["stragglers"])
            self._throttling.restore(state["throttling"])
            self.transfers.restore(state["transfers"])
            self.network.restore(state["network"])
            self._shown = self._matcher.communicators

    def close(self, now: float) -> None:
        """Withdraw all accusations, because communicators are no longer observed."""
        with self._findings:
            self._announce(self._stragglers.withdraw(now))

    def shares(self) -> dict[NodeKey, float]:
        """By straggler, the share of its job's time that is lost waiting for it alone, where that was measured."""
        return {node: float(item["share"]) for node, item in self.stragglers.items() if item["share"]}

    def answer(self, cluster: str | None, now: float, limit: int = 100) -> dict[str, Any]:
        """Late ranks, then communicators with the lag of every rank; those that lost the most time first."""
        with self._findings:
            numbers = answers.numbers_by_loss(self._shown, cluster)
            return {
                "cluster_id": cluster,
                "culprits": [item for key, item in self.stragglers.items() if cluster in (None, key[0])],
                "network": [item for key, item in self.network.now.items() if cluster in (None, key)],
                "total": len(numbers),
                "communicators": [answers.communicator(self._shown, number, now) for number in numbers[:limit]],
                "points": self.points,
                "outcomes": dict(self.outcomes),
                "refused": self.refused,
            }

    def largest_lags(self) -> list[tuple[CommKey, int | str, str, float]]:
        """Communicator, rank or GPU, node and lag in milliseconds of the ranks with the largest recent lags."""
        with self._findings:
            return answers.largest_lags(self._shown)

    def _announce(self, edges: list[RankEdge]) -> None:
        """Log changes of accusations, and export them as log records."""
        for edge in edges:
            item = edge.straggler
            log.info(
                item["kind"], edge=edge.what, cluster=item["cluster_id"], node=item["node_id"], rank=item["rank"],
                comm=item["comm"], share=item["share"],
            )  # fmt: skip
        if edges and self._export_logs:
            self._export_logs(Push(Signal.LOGS, "protobuf", encode_rank_edges(edges)))

    def _announce_network(self, changes: list[NetworkChange]) -> None:
        for change in changes:
            item = change.verdict or {"kind": "none", "why": ""}
            log.info("slow_network", cluster=change.cluster, kind=item["kind"], why=item["why"])
        if changes and self._export_logs:
            self._export_logs(Push(Signal.LOGS, "protobuf", encode_network_changes(changes)))

    def _send(self, lags: list[PeerLag], now: float) -> None:
        if not self._export or not lags:
            return
        lags.sort(key=lambda item: -abs(item[0]))
        self.outcomes["lags_not_sent"] += max(0, len(lags) - self.config.onward_points)
        body = encode_lags(self._matcher.communicators, lags[: self.config.onward_points], now)
        self._export(Push(Signal.METRICS, "protobuf", body))

    def _forget(self, now: float) -> None:
        """Forget communicators without points, and sources without a communicator, once enough have accumulated."""
        gone = [number for number, window in self.windows.items() if now - window.seen > self.config.ttl]
        used = np.unique(np.concatenate([np.zeros(0, np.int32), *(item.members for item in self.windows.values())]))
        if not gone and len(self.reader.sources) <= 2 * len(used) + 1024:
            return
        with self._lock:
            unused = set(gone) | (set(range(len(self.reader.comms))) - set(self.windows))
            pending = self._batch.columns()
            busy = set(self._matcher.waiting["comm"].tolist()) | set(pending["comm"].tolist())
            comms = [number for number in range(len(self.reader.comms)) if number in busy or number not in unused]
            sources = sorted(
                {
                    place
                    for number in comms
                    if number in self.windows
                    for place in np.unique(self.windows[number].members).tolist()
                }
                | set(self._matcher.waiting["source"].tolist())
                | set(pending["source"].tolist())
            )
            sources = [place for place in sources if place >= 0]
            self.reader.forget(comms, sources)
            comm_numbers = {old: new for new, old in enumerate(comms)}
            source_numbers = {old: new for new, old in enumerate(sources)} | {-1: -1}
            kept = {comm_numbers[old]: item for old, item in self.windows.items() if old in comm_numbers}
            self._matcher.communicators.windows = kept
            for window in self.windows.values():
                window.members = renumbered(window.members, source_numbers)
            for name, numbers in (("comm", comm_numbers), ("source", source_numbers)):
                self._matcher.waiting[name] = renumbered(self._matcher.waiting[name], numbers)
                self._batch.renumber(name, numbers)
