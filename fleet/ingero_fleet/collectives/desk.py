"""Keeps the communicators beside the engine: takes points in, judges once a tick, answers, tells what it found."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_detect.column_store import NodeKey
from ingero_fleet.collectives import answers
from ingero_fleet.collectives.attribution import AttributionConfig
from ingero_fleet.collectives.batch import Batch, columns_of
from ingero_fleet.collectives.culprits import Culprit, Culprits, Edge
from ingero_fleet.collectives.gpus import Gpus
from ingero_fleet.collectives.held_back import HeldBack
from ingero_fleet.collectives.known import Known
from ingero_fleet.collectives.ledger import Ledger
from ingero_fleet.collectives.onward import Lag, encode_edges, encode_lags
from ingero_fleet.collectives.points import CommKey, Reader
from ingero_fleet.collectives.settings import NcclConfig
from ingero_fleet.collectives.window import Window
from ingero_kit.logs import get
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal

log = get(__name__)

Onward = Callable[[Push], None]

LOOK_POINTS: Final = 200_000
"""With more points than this since the last tick the next one is waited for: a look would take a good part of it."""


def shared_error(config: NcclConfig, looks: int) -> tuple[AttributionConfig, AttributionConfig]:
    """How a tick judges, and a look: half of the chance of error is the tick's, all looks share the other half."""
    tick = AttributionConfig(error=config.error / 2 if looks else config.error, share=config.share)
    return tick, replace(tick, error=tick.error / max(1, looks))


class CollectivesDesk:
    """One for each engine. `take` is called for every push with such points, from any thread; `judge` once a tick."""

    def __init__(
        self, config: NcclConfig, onward: Onward | None = None, tell: Onward | None = None, *, looks: int = 0
    ) -> None:
        """`onward` takes peer lags, `tell` takes accusations as log records; both may be called from any thread.

        `looks`: how often `look` may be called between two ticks; the chance of error is shared with them.
        """
        self.config = config
        self.points = 0
        self.dropped = 0
        self.looks: Counter[str] = Counter()
        self.gpus = Gpus(config.max_gpus, config.gpu_age)
        self.reader = Reader(config.max_communicators, config.max_ranks, self.gpus)
        attribution, self._of_looks = shared_error(config, looks)
        wanted = onward is not None and config.onward_points > 0
        self._ledger = Ledger(Known(self.reader), config, attribution, lags=wanted)
        self._shown = self._ledger.known
        self._culprits = Culprits()
        self._held_back = HeldBack()
        self._onward = onward
        self._tell = tell
        self._lock = threading.Lock()
        self._findings = threading.RLock()
        self._batch = Batch()
        self._looked_at = 0

    @property
    def windows(self) -> dict[int, Window]:
        """Communicators by the reader's number."""
        return self._ledger.known.windows

    @property
    def outcomes(self) -> Counter[str]:
        """Collectives and points by what became of them."""
        return self._ledger.outcomes

    @property
    def refused(self) -> dict[str, int]:
        """Points of collectives and GPUs that were left out, by reason."""
        return {**self.reader.refused, **self.gpus.refused}

    @property
    def culprits(self) -> dict[NodeKey, Culprit]:
        """Who is accused now, by node."""
        return self._culprits.now

    def take(self, push: Push, now: float) -> None:
        """Read the collective points of a push."""
        with self._lock:
            before = len(self._batch)
            if before + len(self._ledger.held["rank"]) >= self.config.max_points:
                self.dropped += 1
                return
            self.reader.read(push, self._batch, now)
            self.points += len(self._batch) - before

    def judge(self, now: float) -> None:
        """Group what came in, find who was late, and forget what is old."""
        with self._findings:
            with self._lock:
                batch, self._batch = self._batch, Batch()
                ranks = [key.ranks for key in self.reader.comms]
            ledger = self._ledger
            lags = ledger.take(columns_of(batch), ranks, now)
            ledger.age(now)
            self._shown, self._looked_at = ledger.known, self.points
            silent = self.gpus.silent(now)
            with self._lock:
                self.gpus.forget(silent, now)
            slow = self._held_back.find(ledger.known, self.gpus, now)
            self._culprits.renew(ledger.known, ledger.held, now, slow)
            self._announce(self._culprits.edges(ledger.known, now))
            self._send(lags, now)
            self._forget(now)

    def look(self, now: float) -> None:
        """Between two ticks: find who was late by what came in since the last one, which the next one judges anew.

        Nothing is done without news, and not with so many points that it would be dear.
        """
        with self._findings:
            with self._lock:
                if self.points == self._looked_at or len(self._batch) + len(self._ledger.held["rank"]) > LOOK_POINTS:
                    return
                fresh, self._looked_at = columns_of(self._batch), self.points
                ranks = [key.ranks for key in self.reader.comms]
            self.looks["done"] += 1
            ledger = self._ledger.trial(fresh, self._of_looks)
            ledger.take(fresh, ranks, now)
            self._shown = ledger.known
            self._culprits.add(ledger.known, ledger.held, now)
            self._announce(self._culprits.edges(ledger.known, now))

    def close(self, now: float) -> None:
        """Take back what was said: nobody watches from now on."""
        with self._findings:
            self._announce(self._culprits.withdraw(now))

    def shares(self) -> dict[NodeKey, float]:
        """Share of its job's time that is lost waiting for each culprit alone, where that was measured."""
        return {node: float(item["share"]) for node, item in self.culprits.items() if item["share"]}

    def answer(self, cluster: str | None, now: float, limit: int = 100) -> dict[str, Any]:
        """Culprits, then communicators, the most lost first, with the lag of every rank."""
        with self._findings:
            numbers = answers.numbers_by_loss(self._shown, cluster)
            return {
                "cluster_id": cluster,
                "culprits": [item for key, item in self.culprits.items() if cluster in (None, key[0])],
                "total": len(numbers),
                "communicators": [answers.communicator(self._shown, number, now) for number in numbers[:limit]],
                "points": self.points,
                "outcomes": dict(self.outcomes),
                "refused": self.refused,
            }

    def largest_lags(self) -> list[tuple[CommKey, int, str, float]]:
        """Communicator, rank, node and lag in milliseconds of those who came latest lately; the largest lags only."""
        with self._findings:
            return answers.largest_lags(self._shown)

    def _announce(self, edges: list[Edge]) -> None:
        """Log the edges of accusations, and send them onward as log records."""
        for edge in edges:
            item = edge.culprit
            log.info(
                item["kind"], edge=edge.what, cluster=item["cluster_id"], node=item["node_id"], rank=item["rank"],
                comm=item["comm"], share=item["share"],
            )  # fmt: skip
        if edges and self._tell:
            self._tell(Push(Signal.LOGS, "protobuf", encode_edges(edges)))

    def _send(self, lags: list[Lag], now: float) -> None:
        if not self._onward or not lags:
            return
        lags.sort(key=lambda item: -abs(item[0]))
        self.outcomes["lags_not_sent"] += max(0, len(lags) - self.config.onward_points)
        body = encode_lags(self._ledger.known, lags[: self.config.onward_points], now)
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
            busy = set(self._ledger.held["comm"].tolist()) | set(self._batch.comm)
            comms = [number for number in range(len(self.reader.comms)) if number not in stale or number in busy]
            comms = [number for number in comms if number not in unseen or number in busy]
            sources = sorted(
                {
                    place
                    for number in comms
                    if number in self.windows
                    for place in np.unique(self.windows[number].members).tolist()
                }
                | set(self._ledger.held["source"].tolist())
                | set(self._batch.source)
            )
            sources = [place for place in sources if place >= 0]
            self.reader.forget(comms, sources)
            comm_numbers = {old: new for new, old in enumerate(comms)}
            source_numbers = {old: new for new, old in enumerate(sources)} | {-1: -1}
            kept = {comm_numbers[old]: item for old, item in self.windows.items() if old in comm_numbers}
            self._ledger.known.windows = kept
            for window in self.windows.values():
                window.members = _renumbered(window.members, source_numbers)
            for name, numbers in (("comm", comm_numbers), ("source", source_numbers)):
                self._ledger.held[name] = _renumbered(self._ledger.held[name], numbers)
                column = getattr(self._batch, name)
                column[:] = type(column)(column.typecode, [numbers[number] for number in column])


def _renumbered(column: npt.NDArray[Any], numbers: dict[int, int]) -> npt.NDArray[Any]:
    return np.array([numbers[number] for number in column.tolist()], column.dtype)
