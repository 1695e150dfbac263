"""Finds hosts all of whose GPUs have been slow alike since their first tick. Pure.

Among GPUs several that are slow alike are a kind of hardware or a role. Those of one host share its faults, so hosts
are compared as well: each one's rate is the median of those of its GPUs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ingero_analyze.replay.costs import Presence, Presences
from ingero_analyze.replay.first_work import FirstWork
from ingero_analyze.replay.silences import Silences
from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.grouped import extremes, grouped_median
from ingero_detect.nodes.detector import Detector
from ingero_detect.nodes.episodes import Episode, Episodes
from ingero_detect.nodes.observation import ACTIVE, Edge, Observation
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.verdicts import Axis, Verdict

FEWEST_GPUS: Final = 2
"""GPUs of a host that can be slow alike."""


class SlowHosts:
    """Judges hosts by their GPUs. Verdicts are given for each GPU of a host; only those against peers are kept."""

    def __init__(
        self, parameters: Parameters, mergeable: tuple[int, ...], hosts: Mapping[NodeKey, NodeKey],
        silences: Silences, first_work: FirstWork, counts: bool,
    ) -> None:  # fmt: skip
        """`hosts`: by node that is judged its host, growing; `silences` and `first_work`: those of these nodes;
        `counts`: values may be numbers of events."""
        self._detector = Detector(parameters, mergeable, counts=counts)
        self._hosts, self._first_work = hosts, first_work
        self._presences = Presences(silences, parameters.tick_seconds)
        self._episodes = Episodes()
        self._names: Sequence[NodeKey] = ()
        self._host, self._every = np.zeros(0, np.int64), list[NodeKey]()
        self._gpus: dict[NodeKey, set[NodeKey]] = {}
        self._named: dict[NodeKey, tuple[NodeKey, ...]] = {}

    def note(self, now: float, seen: Observation) -> None:
        """Add a tick that the silences and the first work know already."""
        if not self._hosts:
            return
        hosts = self._of_hosts(seen)
        if hosts is None:
            return
        edges = [
            self._first_work.onset(now, Edge(edge.what, verdict))
            for edge in self._detector.tick(now, hosts).edges
            for verdict in self._each(edge)
        ]
        self._episodes.add(edges)
        self._presences.note(now, edges)

    def episodes(self, others: Iterable[Episode]) -> list[Episode]:
        """Accusations of the GPUs of hosts none of whose GPUs has one of the `others`, by itself."""
        memory = self._detector.memory
        for host, gpus in self._named.items():
            slot = memory.slot(host)
            if slot is not None:
                verdict = self._detector.verdict(slot)
                self._episodes.refresh(replace(verdict, node=gpu[1]) for gpu in gpus)
        named = {self._hosts.get(episode.node) for episode in others}
        return [one for one in self._episodes.all() if self._hosts.get(one.node) not in named]

    def presence(self, episode: Episode) -> Presence:
        """That of one of these episodes."""
        return self._presences.of(episode)

    def _each(self, edge: Edge) -> list[Verdict]:
        """The verdict on a host for each of its GPUs, if it was accused in comparison with its peers."""
        verdict = edge.verdict
        host = node_key(verdict.cluster, verdict.node)
        if edge.what == "accused":
            gpus = tuple(sorted(self._gpus.get(host, ())))
            if verdict.axis is not Axis.PEERS or len(gpus) < FEWEST_GPUS:
                return []
            self._named[host] = gpus
        found = [replace(verdict, node=gpu[1]) for gpu in self._named.get(host, ())]
        if edge.what == "cleared":
            self._named.pop(host, None)
        return found

    def _of_hosts(self, seen: Observation) -> Observation | None:
        """The hosts that have working GPUs, all of one cohort."""
        if seen.names is not self._names:
            self._names = seen.names
            of = [self._hosts.get(name, name) for name in seen.names]
            for gpu, host in zip(seen.names, of, strict=True):
                self._gpus.setdefault(host, set()).add(gpu)
            self._every = sorted(set(of))
            numbers = {host: number for number, host in enumerate(self._every)}
            self._host = np.array([numbers[host] for host in of], np.int64)
        works = (np.asarray(seen.state) == ACTIVE) & np.isfinite(seen.value)
        if not works.any():
            return None
        host, cohort = self._host[works], np.asarray(seen.cohort)[works]
        _, rate = grouped_median(np.asarray(seen.value)[works], host, len(self._every))
        lowest, highest = extremes(cohort, host, len(self._every))
        kept = np.flatnonzero(lowest == highest)
        names = [self._every[number] for number in kept.tolist()]
        return Observation(
            names, lowest[kept].astype(np.int64), seen.cohorts, rate[kept], np.full(len(kept), ACTIVE, np.uint8)
        )
