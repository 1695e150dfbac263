"""Finds the slow part of the network from the times of collectives, every few ticks, as `diagnose` does.

A verdict counts once two judgements in a row agree. It names a NIC, pair, link, switch or interconnect. Where groups
do not separate the causes, or a GPU or a node may be the cause, it is unknown and lists what remains. It accuses no
node.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ingero_detect.network.links import Element, GroupExcess, RankPort, SlowElements, compared_groups, explained
from ingero_detect.ranks.timeline import FEWEST_STEPS
from ingero_fleet.collectives.communicators import Communicators
from ingero_fleet.collectives.points import PointSource
from ingero_fleet.collectives.transfer_times import TransferSeries, TransferTimes
from ingero_kit.clock import rfc3339

TICKS_PER_JUDGEMENT: Final = 3

NAMED: Final = frozenset({"interconnect", "nic", "pair", "link", "switch"})
"""Kinds that a verdict may name; GPUs and nodes are listed at most."""

UNKNOWN_SIZE: Final[Element] = ("work", "collectives of unknown size")
"""Groups without a message size may be slow because their messages are larger."""

SHOWN: Final = 32
"""Most groups and possible causes in an answer."""

SHOWN_NAMES: Final = 8
"""Most possible causes in a sentence."""

NetworkVerdict = dict[str, Any]
"""A verdict in the APIs' format."""


@dataclass(frozen=True)
class NetworkChange:
    """Another verdict on a cluster's network; `None` when no part is slow any more."""

    cluster: str
    verdict: NetworkVerdict | None
    time: float


class SlowNetwork:
    """The verdict on each cluster's network, and the one that waits for its confirmation."""

    def __init__(self, ports: Mapping[str, RankPort]) -> None:
        self.use(ports)
        self.now: dict[str, NetworkVerdict] = {}
        """Confirmed verdicts, by cluster."""
        self.compared: dict[str, int] = {}
        """Groups that the last judgement compared, by cluster."""
        self.missing: dict[str, list[str]] = {}
        """Nodes of communicators across nodes that the topology lacks, so that these are not compared; by cluster."""
        self._before: dict[str, NetworkVerdict | None] = {}
        self._sent: dict[str, NetworkVerdict] = {}
        self._ticks = 0

    def use(self, ports: Mapping[str, RankPort]) -> None:
        """Place ranks by these ports from now on."""
        self.ports = ports
        counted: dict[str, set[RankPort]] = {}
        for port in ports.values():
            counted.setdefault(port.node, set()).add(port)
        self.nodes = frozenset(counted)
        self._single = {node: next(iter(found)) for node, found in counted.items() if len(found) == 1}

    def tick(self, communicators: Communicators, times: TransferTimes, now: float) -> None:
        """Count a tick, and judge when it is due."""
        self._ticks += 1
        if self.ports and self._ticks % TICKS_PER_JUDGEMENT == 0:
            self._confirm(self._judge(communicators, times, now), now)

    def changes(self, now: float) -> list[NetworkChange]:
        """The verdicts that changed since the last call."""
        before, self._sent = self._sent, self.now
        return [
            NetworkChange(cluster, self.now.get(cluster), now)
            for cluster in sorted(before.keys() | self.now.keys())
            if _place(before.get(cluster)) != _place(self.now.get(cluster))
        ]

    def _confirm(self, found: dict[str, NetworkVerdict | None], now: float) -> None:
        """Put in force what this judgement and the one before agree on."""
        kept = {}
        for cluster in sorted(found.keys() | self.now.keys()):
            verdict, current = found.get(cluster), self.now.get(cluster)
            if cluster in self._before and _place(self._before[cluster]) == _place(verdict):
                current = verdict and {
                    **verdict,
                    "since": current["since"] if current and _place(current) == _place(verdict) else rfc3339(now),
                }
            if current:
                kept[cluster] = current
        self.now, self._before = kept, {**dict.fromkeys(self.now), **found}

    def _judge(
        self, communicators: Communicators, times: TransferTimes, now: float
    ) -> dict[str, NetworkVerdict | None]:
        members = _Members(communicators, self, now)
        table = times.table()
        known = np.isfinite(table).sum(axis=1) >= max(FEWEST_STEPS, table.shape[1] // 2)
        by_cluster: dict[str, list[int]] = {}
        for place in np.flatnonzero(known).tolist():
            by_cluster.setdefault(times.series[place].comm.cluster, []).append(place)
        self.compared, found = {}, {}
        for cluster, places in by_cluster.items():
            series = [times.series[place] for place in places]
            groups = [members.of(one) for one in series]
            usable = [number for number, ranks in enumerate(groups) if ranks]
            kinds = {kind: number for number, kind in enumerate(sorted({(one.op, one.size) for one in series}))}
            ops = [kinds[series[number].op, series[number].size] for number in usable]
            excesses = compared_groups(
                ops, [groups[number] for number in usable], table[[places[number] for number in usable]]
            )
            result = explained(excesses, members.ports)
            self.compared[cluster] = result.compared
            found[cluster] = _described(cluster, result, list(kinds), members.names) if result.slow else None
        self.missing = {cluster: sorted(nodes) for cluster, nodes in members.missing.items()}
        return found

    def answer(self, cluster: str) -> dict[str, Any] | None:
        """The verdict on one cluster, how many groups were compared, and which nodes the topology lacks.

        `None` without a topology.
        """
        if not self.ports:
            return None
        missing = self.missing.get(cluster, [])
        return {
            "compared": self.compared.get(cluster, 0), "verdict": self.now.get(cluster),
            "missing_nodes": missing[:SHOWN], "missing_node_count": len(missing),
        }  # fmt: skip

    def port(self, source: PointSource) -> RankPort | None:
        """The NIC of a sender: that of its GPU, the only one of its node, or all of its node as one."""
        if not source.gpu:
            return self._single.get(source.node)
        return self.ports.get(f"{source.node}:{source.gpu}") or self.ports.get(f"{source.node}:")

    def state(self) -> dict[str, Any]:
        """Everything that later ticks depend on."""
        return {"now": self.now, "before": self._before, "sent": self._sent, "ticks": self._ticks}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self.now, self._before, self._sent = dict(state["now"]), dict(state["before"]), dict(state["sent"])
        self._ticks = state["ticks"]


class _Members:
    """Numbers for the processes that take part in communicators, with their NICs and names."""

    def __init__(self, communicators: Communicators, network: SlowNetwork, now: float) -> None:
        self.ports: dict[int, RankPort] = {}
        self.names: list[str] = []
        self.missing: dict[str, set[str]] = {}
        self._network = network
        self._now = now
        self._communicators = communicators
        self._windows = {communicators.reader.comms[number]: number for number in communicators.windows}
        self._numbers: dict[str, int] = {}
        self._groups: dict[Any, tuple[int, ...]] = {}

    def of(self, series: TransferSeries) -> tuple[int, ...]:
        """The members of a series' communicator in the order of the ring; empty if one has no NIC."""
        if series.comm not in self._groups:
            self._groups[series.comm] = self._found(self._windows.get(series.comm))
        return self._groups[series.comm]

    def _found(self, number: int | None) -> tuple[int, ...]:
        if number is None:
            return ()
        window = self._communicators.windows[number]
        if self._now < window.disputed_until:
            return ()
        found: list[tuple[str, str, RankPort]] = []
        sources = [self._communicators.source(window, rank) for rank in range(window.ranks)]
        nodes = {source.node for source in sources}
        if len(nodes) > 1 and (missing := nodes - self._network.nodes):
            self.missing.setdefault(sources[0].cluster, set()).update(missing)
        for rank, source in enumerate(sources):
            port = self._network.port(source)
            if port is None:
                continue
            name = f"{source.node}:{source.gpu or source.pod}"
            found.append((name if source.gpu else f"{rank:06}", name, port))
        if len(found) < window.ranks:
            return ()
        members: list[int] = []
        for _, name, port in sorted(found):
            if name.endswith(":") or self._numbers.get(name) in members:
                # Nothing tells this process from others of its node, except for its rank in this communicator.
                name += f"{self._communicators.reader.comms[number].hash}.{len(members)}"
            place = self._numbers.setdefault(name, len(self.names))
            if place == len(self.names):
                self.names.append(name)
                self.ports[place] = port
            members.append(place)
        return tuple(members)


def _described(
    cluster: str, found: SlowElements, kinds: list[tuple[str, int]], names: list[str]
) -> NetworkVerdict:  # fmt: skip
    """The verdict in the APIs' format: `elements` if the cause is certain, else `possible`."""
    unsized = any(not kinds[group.op][1] for group in found.slow)
    causes = [[*cause, *([UNKNOWN_SIZE] if unsized else [])] for cause in found.causes]
    certain = found.certain and not unsized and all(cause[0][0] in NAMED for cause in causes)
    elements = [[_element(item, names) for item in cause] for cause in causes]
    kinds_found = sorted({item["kind"] for cause in elements for item in cause})
    groups = [_group(group, kinds, names) for group in sorted(found.slow, key=lambda group: -group.excess)[:SHOWN]]
    excess = max(group.excess for group in found.slow)
    return {
        "cluster_id": cluster,
        "why": _sentence(certain, elements, excess),
        "kind": "unknown" if not certain else kinds_found[0] if len(kinds_found) == 1 else "several",
        "elements": [cause[0] for cause in elements] if certain else [],
        "possible": [] if certain else [cause[:SHOWN] for cause in elements],
        "excess_share": round(excess, 4),
        "slow_groups": groups,
        "slow_group_count": len(found.slow),
        "compared_groups": found.compared,
    }


def _sentence(certain: bool, causes: list[list[dict[str, str]]], excess: float) -> str:
    slower = f"collectives take up to {100 * excess:.0f} % longer than like ones"
    if certain:
        return f"Slow: {' and '.join(_name(cause[0]) for cause in causes)}; {slower} there."
    lists = [", ".join(_name(item) for item in cause[:SHOWN_NAMES]) for cause in causes]
    possible = "; and one of: ".join(lists) if lists else "nothing in the topology explains which"
    return f"Unknown: {slower}; {'one of: ' if lists else ''}{possible}."


def _name(item: dict[str, str]) -> str:
    return f"{item['kind']} {item['name']}"


def _group(group: GroupExcess, kinds: list[tuple[str, int]], names: list[str]) -> dict[str, Any]:
    op, size = kinds[group.op]
    return {
        "op": op, "size_bytes": size or None, "ranks": len(group.ranks),
        "members": [names[rank] for rank in group.ranks[:SHOWN]], "excess_share": round(group.excess, 4),
    }  # fmt: skip


def _element(item: Element, names: list[str]) -> dict[str, str]:
    kind, name = item
    return {"kind": kind, "name": names[int(name)] if kind == "gpu" else name}


def _place(verdict: NetworkVerdict | None) -> tuple[Any, ...] | None:
    """What two judgements must agree on: the elements; of an unknown cause, that it is unknown."""
    if verdict is None:
        return None
    return verdict["kind"], sorted((item["kind"], item["name"]) for item in verdict["elements"])
