"""Gathers what the page shows after every tick, and wakes whoever watches. Built only when somebody does."""

import asyncio
import base64
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import numpy as np
import orjson

from ingero_fleet.collectives.desk import CollectivesDesk
from ingero_fleet.cost.desk import CostDesk
from ingero_fleet.page.history import History
from ingero_fleet.picture import Picture, cohort_name, summary_answer, why_answer
from ingero_fleet.settings import IngeroConfig
from ingero_fleet.taints.board import TaintBoard

MAX_WATCHERS: Final = 32
"""Pages that are kept up to date at once; further ones ask by themselves."""

SHOWN: Final = 50
"""Stragglers, cohorts, culprits in one update; how many there are in all is told."""

SHOWN_COMMUNICATORS: Final = 12
SHOWN_RANKS: Final = 64


class LivePage:
    """`record` is called in a thread after every tick; everything else on the event loop or a request's thread."""

    def __init__(
        self, config: Callable[[], IngeroConfig], cost: CostDesk, collectives: CollectivesDesk, taints: TaintBoard
    ) -> None:
        self.history = History()
        self.version = 0
        self.watchers = 0
        self.closed = False
        self._config = config
        self._cost = cost
        self._collectives = collectives
        self._taints = taints
        self._picture: Picture | None = None
        self._event: tuple[int, bytes] = (-1, b"")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._lock = threading.Lock()

    def record(self, picture: Picture) -> None:
        """Take in a tick."""
        with self._lock:
            self.history.add(picture, [cohort_name(key) for key in picture.frame.cohorts])
            self._picture = picture
        if self.watchers:
            event = self._build(picture)
            self._event = (self.version + 1, event)
        self.version += 1
        if self._loop:
            self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """Let watchers go, so that a stop does not wait for them."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._woken.set()
        self._woken = asyncio.Event()

    def update(self) -> bytes:
        """The latest tick as JSON; empty before the first."""
        if self._picture is None:
            return b""
        version = self.version
        if self._event[0] != version:
            self._event = (version, self._build(self._picture))
        return self._event[1]

    async def watch(self) -> AsyncIterator[bytes]:
        """Server-sent events, one for every tick, until the page goes or Fleet stops."""
        self._loop = asyncio.get_running_loop()
        if self.watchers >= MAX_WATCHERS:
            # Several came at once: this one is told to come back later.
            yield b"retry: 10000\n\n"
            return
        self.watchers += 1
        try:
            seen = -1
            while not self.closed:
                woken = self._woken
                if self.version != seen:
                    seen = self.version
                    event = self._event[1] if self._event[0] == seen else await asyncio.to_thread(self.update)
                    if event:
                        yield b"data: " + event + b"\n\n"
                        continue
                try:
                    await asyncio.wait_for(woken.wait(), 15)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self.watchers -= 1

    def layout(self) -> dict[str, Any]:
        """The nodes in order, with everything seen of them so far."""
        with self._lock:
            history = self.history
            number, times, nodes, levels = history.layout, history.times, history.nodes, history.all()
        clusters = sorted({node[0] for node in nodes})
        numbers = {name: number for number, name in enumerate(clusters)}
        return {
            "layout": number,
            "times": times,
            "clusters": clusters,
            "cluster": [numbers[node[0]] for node in nodes],
            "nodes": [node[1] for node in nodes],
            "levels": base64.b64encode(levels).decode(),
        }

    def _build(self, picture: Picture) -> bytes:
        config = self._config()
        with self._lock:
            layout, column, hidden = self.history.layout, self.history.latest(), self.history.hidden
        rows = np.flatnonzero(picture.straggling).tolist()
        accused = Counter(picture.frame.names[row][0] for row in rows)
        stragglers = [why_answer(picture, row, config) for row in rows[:SHOWN]]
        cost = self._cost.answer()
        money = {(item["cluster_id"], item["node_id"]): item for item in cost["culprits"]}
        late = self._collectives.culprits
        lags = self._collectives.answer(None, picture.tick.now, SHOWN_COMMUNICATORS)
        for communicator in lags["communicators"]:
            communicator["lags"] = communicator["lags"][:SHOWN_RANKS]
        marks = self._taints.marks(picture.tick.now)
        marked = {(item["cluster_id"], item["node_id"]): item for item in marks}
        names = {(item["cluster_id"], item["node_id"]) for item in stragglers}
        cohorts = sorted(picture.tick.cohorts, key=lambda item: -item.active)
        return orjson.dumps(
            {
                "layout": layout,
                "version": self.version,
                "time": picture.tick.now,
                "interval_seconds": config.push_interval,
                "column": base64.b64encode(column).decode(),
                "hidden_nodes": hidden,
                "clusters": [
                    {**summary_answer(item), "accused": accused[item.cluster]}
                    for item in picture.tick.clusters.values()
                ],
                "straggler_count": len(rows),
                "stragglers": [
                    {
                        **{key: item[key] for key in
                           ("cluster_id", "node_id", "kind", "since", "score", "threshold", "cohort", "why",
                            "dominant_signal", "signals")},
                        "severity": (item["verdict"] or {}).get("severity"),
                        "cost": money.get((item["cluster_id"], item["node_id"])),
                        "collective": late.get((item["cluster_id"], item["node_id"])),
                        "taint": marked.get((item["cluster_id"], item["node_id"])),
                    }
                    for item in stragglers
                ],
                "late_ranks": [
                    {**item, "taint": marked.get(key)} for key, item in late.items() if key not in names
                ][:SHOWN],
                "taint_counts": dict(Counter(item["cluster_id"] for item in marks)),
                "taints": marks[:SHOWN],
                "cohort_count": len(cohorts),
                "cohorts": [
                    {
                        "cluster_id": item.key[0],
                        "name": cohort_name(item.key),
                        "active": item.active,
                        "median": _finite(item.median),
                        "mad": _finite(item.mad),
                        "threshold": _finite(item.threshold),
                        "merged_into": cohort_name(item.merged_into) if item.merged_into else None,
                    }
                    for item in cohorts[:SHOWN]
                ],
                "collectives": {"total": lags["total"], "communicators": lags["communicators"]},
                "cost": {
                    **{key: cost[key] for key in ("currency", "symbol", "since", "cost", "waiting")},
                    "cost_per_hour": sum(item["cost_per_hour"] for item in cost["jobs"]),
                    "waiting_per_hour": sum(item["waiting_per_hour"] for item in cost["jobs"]),
                    "gpus_without_rate": sum(item["gpus_without_rate"] for item in cost["jobs"]),
                    "culprit_count": len(cost["culprits"]),
                    "culprits": cost["culprits"][:SHOWN],
                    "missing_rates": cost["missing_rates"][:10],
                },
            },
            option=orjson.OPT_SERIALIZE_NUMPY,
        )  # fmt: skip


def _finite(value: float | None) -> float | None:
    return None if value is None or value != value else round(float(value), 6)
