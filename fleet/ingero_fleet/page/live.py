"""Collects what the page shows after every tick and wakes open pages. Updates are built only while one is open."""

import asyncio
import base64
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import numpy as np
import orjson

from ingero_contract.identifiers import NodeKey
from ingero_detect.network.topology import nearest_switches
from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_fleet.cost.tracker import CostTracker
from ingero_fleet.hangs import HangTracker
from ingero_fleet.page.health_history import HealthHistory
from ingero_fleet.page.node_history import NodeHistory
from ingero_fleet.processor_settings import IngeroConfig
from ingero_fleet.taints.tracker import TaintTracker
from ingero_fleet.tick_snapshot import (
    TickSnapshot,
    cohort_name,
    rounded,
    several_agents_answer,
    summary_answer,
    why_answer,
)

MAX_WATCHERS: Final = 32
"""Pages that receive server-sent events at the same time; further ones poll."""

SHOWN: Final = 50
"""Most stragglers, cohorts and late ranks in one update; the update also carries their total numbers."""

SHOWN_COMMUNICATORS: Final = 12
SHOWN_RANKS: Final = 64


class LivePage:
    """The state behind the page.

    `record` is called in a thread after every tick; everything else on the event loop or a request's thread. `latest`
    returns the engine's snapshot: a reference kept here would keep the old snapshot in memory during the next tick.
    """

    def __init__(
        self,
        latest: Callable[[], TickSnapshot | None],
        config: Callable[[], IngeroConfig],
        cost: CostTracker,
        collectives: CollectivesTracker,
        taints: TaintTracker,
        hangs: HangTracker,
    ) -> None:
        self.history = HealthHistory()
        self.nodes = NodeHistory()
        self.version = 0
        self.watchers = 0
        self.closed = False
        self._config = config
        self._cost = cost
        self._collectives = collectives
        self._taints = taints
        self._hangs = hangs
        self._latest = latest
        self._event: tuple[int, bytes] = (-1, b"")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._lock = threading.Lock()

    def record(self, snapshot: TickSnapshot) -> None:
        """Add a tick."""
        with self._lock:
            self.history.add(snapshot, [cohort_name(key) for key in snapshot.scores.cohorts])
            self.nodes.add(snapshot)
        if self.watchers:
            event = self._build(snapshot)
            self._event = (self.version + 1, event)
        self.version += 1
        if self._loop:
            self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """End all event streams, so that a shutdown does not wait for them."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._woken.set()
        self._woken = asyncio.Event()

    def update(self) -> bytes:
        """The latest tick as JSON; empty before the first."""
        version, snapshot = self.version, self._latest()
        if not version or snapshot is None:
            return b""
        if self._event[0] != version:
            self._event = (version, self._build(snapshot))
        return self._event[1]

    async def watch(self) -> AsyncIterator[bytes]:
        """Server-sent events, one for every tick, until the page disconnects or Fleet stops."""
        self._loop = asyncio.get_running_loop()
        if self.watchers >= MAX_WATCHERS:
            # Too many pages connected at once: ask this one to reconnect in 10 s.
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
            cohorts = history.cohorts
        names = sorted(set(cohorts))
        places = {name: place for place, name in enumerate(names)}
        clusters = sorted({node[0] for node in nodes})
        numbers = {name: number for number, name in enumerate(clusters)}
        switch_of = nearest_switches(self._collectives.network.ports.values())
        switches = sorted(set(switch_of.values()))
        switch_numbers = {name: number for number, name in enumerate(switches)}
        return {
            "layout": number,
            "times": times,
            "clusters": clusters,
            "cluster": [numbers[node[0]] for node in nodes],
            "nodes": [node[1] for node in nodes],
            "cohorts": names,
            "cohort": [places[name] for name in cohorts],
            "switches": switches,
            "switch": [switch_numbers.get(switch_of.get(node[1], ""), -1) for node in nodes] if switches else [],
            "levels": base64.b64encode(levels).decode(),
        }

    def node(self, node: NodeKey) -> dict[str, Any]:
        """What one node and its peers did over the latest ticks."""
        with self._lock:
            return self.nodes.answer(node)

    def _build(self, snapshot: TickSnapshot) -> bytes:
        config = self._config()
        with self._lock:
            layout, column, hidden = self.history.layout, self.history.latest(), self.history.hidden
        taints = self._taints.taints(snapshot.tick.now)
        return orjson.dumps(
            {
                "layout": layout,
                "version": self.version,
                "time": snapshot.tick.now,
                "interval_seconds": config.push_interval,
                "column": base64.b64encode(column).decode(),
                "hidden_nodes": hidden,
                "several_agents": several_agents_answer(snapshot),
                **self._accused(snapshot, config, {_node(item): item for item in taints}),
                "taint_counts": dict(Counter(item["cluster_id"] for item in taints)),
                "taints": taints[:SHOWN],
                "hangs": [
                    {name: item[name] for name in _HANG} for item in self._hangs.hangs(snapshot.tick.now)[:SHOWN]
                ],
                **_cohorts(snapshot),
                "collectives": self._lags(snapshot),
                "cost": self._money(),
            },
            option=orjson.OPT_SERIALIZE_NUMPY,
        )

    def _accused(self, snapshot: TickSnapshot, config: IngeroConfig, taints: dict[NodeKey, Any]) -> dict[str, Any]:
        """Clusters, stragglers and late ranks."""
        rows = np.flatnonzero(snapshot.straggling).tolist()
        accused: Counter[str] = Counter(snapshot.scores.names[row][0] for row in rows)
        late = self._collectives.stragglers
        stragglers = [why_answer(snapshot, row, config) for row in rows[:SHOWN]]
        names = {_node(item) for item in stragglers}
        money = self._cost.culprits(names)
        return {
            "clusters": [
                {**summary_answer(item), "accused": accused[item.cluster]} for item in snapshot.tick.clusters.values()
            ],
            "straggler_count": len(rows),
            "stragglers": [
                {
                    **{name: item[name] for name in _STRAGGLER},
                    "severity": (item["verdict"] or {}).get("severity"),
                    "cost": money.get(_node(item)),
                    "collective": late.get(_node(item)),
                    "taint": taints.get(_node(item)),
                }
                for item in stragglers
            ],
            "late_ranks": [{**item, "taint": taints.get(node)} for node, item in late.items() if node not in names][
                :SHOWN
            ],
        }

    def _money(self) -> dict[str, Any]:
        """The sums, and the costliest culprits."""
        found, sums = self._cost.answer(limit=SHOWN), self._cost.summary()
        return {
            **{key: found[key] for key in ("currency", "symbol", "since", "cost", "waiting")},
            **{key: sums[key] for key in ("cost_per_hour", "waiting_per_hour", "gpus_without_rate")},
            "culprit_count": found["culprits_total"],
            "culprits": found["culprits"],
            "missing_rates": found["missing_rates"][:10],
        }

    def _lags(self, snapshot: TickSnapshot) -> dict[str, Any]:
        found = self._collectives.answer(None, snapshot.tick.now, SHOWN_COMMUNICATORS)
        for communicator in found["communicators"]:
            communicator["lags"] = communicator["lags"][:SHOWN_RANKS]
        network = [{name: item[name] for name in ("cluster_id", "kind", "why")} for item in found["network"][:SHOWN]]
        return {"total": found["total"], "network": network, "communicators": found["communicators"]}


_HANG: Final = ("cluster_id", "job_id", "kind", "since", "why", "comm", "op", "reported_by")
"""What the page shows of a job that hangs."""

_STRAGGLER: Final = (
    "cluster_id", "node_id", "kind", "since", "score", "threshold", "cohort", "why", "dominant_signal", "signals",
)  # fmt: skip


def _node(item: dict[str, Any]) -> NodeKey:
    return item["cluster_id"], item["node_id"]


def _cohorts(snapshot: TickSnapshot) -> dict[str, Any]:
    """The largest cohorts, and how many there are."""
    cohorts = sorted(snapshot.tick.cohorts, key=lambda item: -item.active)
    return {
        "cohort_count": len(cohorts),
        "cohorts": [
            {
                "cluster_id": item.key[0],
                "name": cohort_name(item.key),
                "active": item.active,
                "median": rounded(item.median),
                "mad": rounded(item.mad),
                "threshold": rounded(item.threshold),
                "merged_into": cohort_name(item.merged_into) if item.merged_into else None,
            }
            for item in cohorts[:SHOWN]
        ],
    }
