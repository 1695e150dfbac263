"""Finds a throttled GPU that slows a job down where no rank arrives late. Pure.

A rank whose GPU is slow inside a collective blocks as long as its peers, so waits do not name it. Its agent may
report that the GPU is throttled; that alone is no accusation, because many throttled GPUs delay no job. A node of a
communicator without late ranks is named if its GPU has been throttled for a while, and either the collectives follow
each other more slowly since then, or its clock is far below that of its peers. Where several nodes could be the
cause, or nothing shows that the job is slower, the answer is unknown and lists the throttled GPUs. A power limit that
half of a communicator's nodes have reached is its load, and no reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, Final

import numpy as np

from ingero_contract.identifiers import NodeKey, node_key
from ingero_contract.values import GPU_THROTTLED
from ingero_fleet.collectives.communicators import Communicators
from ingero_fleet.collectives.gpu_states import GpuStates, GpuThrottling
from ingero_fleet.collectives.points import CommKey
from ingero_fleet.collectives.window import CommunicatorWindow
from ingero_fleet.tick_snapshot import rounded

MIN_THROTTLED_SECONDS: Final = 10.0
"""Seconds for which a GPU must have been throttled; agents may report it that much later than it began."""

SLOW_CLOCK: Final = 0.85
"""Share of its peers' clock below which a GPU is slow."""

MIN_SLOWDOWN: Final = 0.02
"""Least share of time that must have been lost since a GPU became throttled."""

FEWEST: Final = 4
"""Fewest ticks before and after that are compared, and fewest nodes whose clocks make a median."""

MAX_THROTTLED_NODES: Final = 32
"""Most nodes of one communicator with a throttled GPU for which it is checked whether the job waits for them."""

SHOWN: Final = 5
"""Most nodes that a sentence names."""


@dataclass(frozen=True)
class ThrottleCase:
    """A GPU and a communicator: the share of time lost since it became throttled, and its clock over its peers'."""

    throttled: GpuThrottling
    slower: float | None
    clock: float | None

    @property
    def proven(self) -> bool:
        """Whether the slower job or the lower clock proves the case; throttling alone does not."""
        return self.slower is not None or (self.clock is not None and self.clock <= SLOW_CLOCK)

    def evidence(self) -> dict[str, Any]:
        """The case in the APIs' format; `since` in seconds since the epoch."""
        return {
            "gpu": self.throttled.uuid, "throttled_by": list(self.throttled.kinds),
            "since": round(self.throttled.since, 3), "clock_hz": self.throttled.clock or None,
            "clock_over_peers": rounded(self.clock, 4), "slower_since": rounded(self.slower),
        }  # fmt: skip


@dataclass(frozen=True)
class ThrottleFindings:
    """The named nodes, each with the communicator that its GPU slows down, and the cases of all throttled GPUs."""

    named: Mapping[NodeKey, tuple[int, ThrottleCase]] = field(default_factory=dict)
    cases: Mapping[NodeKey, ThrottleCase] = field(default_factory=dict)


class ThrottleDetector:
    """Remembers what was measured when a GPU became throttled, for as long as it stays throttled."""

    def __init__(self) -> None:
        self._slower: dict[tuple[CommKey, NodeKey, float], float] = {}

    def state(self) -> list[Any]:
        """What was measured: communicator, node, since when its GPU is throttled, share of time lost."""
        return [[key, node, since, slower] for (key, node, since), slower in self._slower.items()]

    def restore(self, state: list[Any]) -> None:
        """Continue from a state that `state` returned."""
        self._slower = {(CommKey(*key), node_key(*node), since): slower for key, node, since, slower in state}

    def find(self, communicators: Communicators, gpus: GpuStates, now: float) -> ThrottleFindings:
        """Find nodes whose GPU slows down a communicator; every window with such a node receives a message."""
        for window in communicators.windows.values():
            window.gpu = ""
        throttled = {node: one for node, one in gpus.throttled().items() if now - one.since >= MIN_THROTTLED_SECONDS}
        members = _members(communicators, throttled)
        late = {
            number for number in members if (finding := communicators.windows[number].finding) and finding.accused
        }
        # A node that takes part in a communicator with a late rank may be delayed there.
        doubtful = {node for number in late for node in members[number]}
        before, self._slower = self._slower, {}
        found, cases_by_node = dict[NodeKey, tuple[int, ThrottleCase]](), dict[NodeKey, ThrottleCase]()
        for number, nodes in members.items():
            window, key = communicators.windows[number], communicators.reader.comms[number]
            theirs = _not_by_load(nodes & throttled.keys(), throttled, gpus, nodes)
            cases = {}
            for node in theirs[:MAX_THROTTLED_NODES]:
                mark = (key, node, throttled[node].since)
                # A heavier phase of the job slows it down, and by itself makes a GPU reach its power limit.
                slower = before.get(mark) or (
                    None if throttled[node].at_limit else slowdown(window, throttled[node].since)
                )
                if slower is not None:
                    self._slower[mark] = slower
                cases[node] = ThrottleCase(throttled[node], slower, _clock_share(gpus, node, throttled[node], nodes))
            cases_by_node |= cases
            if not theirs or number in late or window.finding is None:
                continue
            if not window.blocked_seen or now < window.disputed_until:
                continue
            named = _choose(cases, len(theirs), len(nodes))
            named = None if named in doubtful else named
            window.gpu = _sentence(cases, len(theirs), named)
            if named is not None:
                worse = found.get(named)
                if worse is None or (cases[named].slower or 0.0) > (worse[1].slower or 0.0):
                    found[named] = number, cases[named]
        return ThrottleFindings(found, cases_by_node)


def slowdown(window: CommunicatorWindow, since: float) -> float | None:
    """Share of time lost since a moment, from the time between collectives; `None` when nothing shows it."""
    paces = window.paces.tolist()
    before = [period for time, period in paces if time <= since - MIN_THROTTLED_SECONDS][-2 * FEWEST :]
    after = [period for time, period in paces if time > since + MIN_THROTTLED_SECONDS][: 2 * FEWEST]
    if min(len(before), len(after)) < FEWEST:
        return None
    (_, default, slowest), (fastest, now, _) = quantiles(before), quantiles(after)
    lost = 1.0 - default / now
    return lost if lost >= MIN_SLOWDOWN and fastest > slowest else None


def describe(communicators: Communicators, number: int, node: NodeKey, case: ThrottleCase) -> dict[str, Any]:
    """The accusation in the format of `straggler_ranks.describe`; `rank` is `None` where the node has several."""
    window, key = communicators.windows[number], communicators.reader.comms[number]
    ranks = [rank for rank in range(window.ranks) if communicators.source(window, rank).node == node[1]]
    lag = float(window.lag[ranks].max()) if len(window.lag) else 0.0
    measured = (
        f"since then {100 * case.slower:.1f} % of the time is lost"
        if case.slower is not None
        else f"its clock is {100 * (case.clock or 0.0):.0f} % of its peers', what that costs was not measured"
    )
    rank = communicators.member(window, ranks[0])[0] if len(ranks) == 1 else None
    source = communicators.source(window, ranks[0])
    return {
        "cluster_id": key.cluster, "kind": GPU_THROTTLED, "comm": key.hash, "ranks": key.ranks,
        "rank": rank, "gpu": None, "node_id": node[1],
        "pod": source.pod or None, "job_id": source.job or None, "share": round(case.slower or 0.0, 6),
        "lag_ms": round(lag, 6), "lasts": None, "collectives": None, "chance": None, "nvml": case.evidence(),
        "why": f"No rank comes late, but GPU {case.throttled.uuid} is throttled by {_kinds(case)}; {measured}.",
    }  # fmt: skip


def _members(communicators: Communicators, throttled: Mapping[NodeKey, GpuThrottling]) -> dict[int, set[NodeKey]]:
    """The nodes of the communicators in which a node with such a GPU takes part."""
    sources = communicators.reader.sources
    # The last place stands for ranks that no node has claimed.
    theirs = np.array([*((sender.cluster, sender.node) in throttled for sender in sources), False])
    if not theirs.any():
        return {}
    return {
        number: {(sources[place].cluster, sources[place].node) for place in window.members.tolist() if place >= 0}
        for number, window in communicators.windows.items()
        if theirs[window.members].any()
    }


def _not_by_load(
    theirs: set[NodeKey], throttled: Mapping[NodeKey, GpuThrottling], gpus: GpuStates, nodes: set[NodeKey]
) -> list[NodeKey]:
    """The throttled nodes, those first that are not only at their power limit.

    Where half of all nodes are at that limit, one counts only if its clock is far below the others'.
    """
    at_limit = {node for node in theirs if throttled[node].at_limit}
    if 2 * len(at_limit) >= len(nodes):
        clocks = [clock for node in nodes if (clock := gpus.clock(node))]
        slow = SLOW_CLOCK * float(np.median(clocks)) if len(clocks) >= FEWEST else 0.0
        theirs = {node for node in theirs if node not in at_limit or 0 < throttled[node].clock <= slow}
    return sorted(theirs, key=lambda node: (node in at_limit, node))


def _clock_share(gpus: GpuStates, node: NodeKey, throttled: GpuThrottling, nodes: set[NodeKey]) -> float | None:
    clocks = [clock for peer in nodes - {node} if (clock := gpus.clock(peer))]
    if not throttled.clock or len(clocks) < FEWEST - 1:
        return None
    return throttled.clock / float(np.median(clocks))


def _choose(cases: Mapping[NodeKey, ThrottleCase], throttled: int, nodes: int) -> NodeKey | None:
    """The one node that is the cause, if there is exactly one and most nodes' GPUs are not throttled."""
    proven = [node for node, case in cases.items() if case.proven]
    return proven[0] if len(proven) == 1 and throttled <= MAX_THROTTLED_NODES and 2 * throttled < nodes else None


def _kinds(case: ThrottleCase) -> str:
    return " and ".join(case.throttled.kinds)


def _sentence(cases: Mapping[NodeKey, ThrottleCase], throttled: int, named: NodeKey | None) -> str:
    if named is not None:
        return f"GPU: nobody is late, and {named[1]} is throttled by {_kinds(cases[named])}"
    shown = ", ".join(f"{node[1]} ({_kinds(case)})" for node, case in list(cases.items())[:SHOWN])
    more = f" and {throttled - SHOWN} more" if throttled > SHOWN else ""
    return (
        f"unknown: nobody is late; GPUs are throttled on {shown}{more}, and nothing shows that the job waits for one"
    )
