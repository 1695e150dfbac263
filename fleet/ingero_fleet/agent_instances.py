"""Notices that several agents report as one node: a cloned machine image, two services on one host, two clusters with
one name and equal host names.

Every agent process sends a random `service.instance.id`. A new id alone is an agent that restarted. Of two processes
of which one follows the other, the reports may arrive mixed, but all of the first were sent before those of the
second. So ids that take turns, with times that overlap, are two agents. Addresses are no evidence, because collectors
and proxies forward for many nodes. Pure; times in seconds on the receiver's clock.
"""

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any, Final
from zlib import crc32

UNKNOWN: Final = 0
"""Code of the instance of a node that has not reported yet."""

MAX_PAIRS: Final = 10_000
"""Most nodes whose last change of the agent is remembered; changes beyond that are not compared."""


def instance_code(instance_id: str) -> int:
    """A number from 1 for an instance id; senders without one are one instance."""
    return 1 + crc32(instance_id.encode())


@dataclass(slots=True)
class _AgentSeen:
    """One instance: when its reports arrived, and the times that they give, in nanoseconds."""

    instance: int
    first: float
    last: float
    least_ns: int
    most_ns: int

    def heard(self, sent_ns: int, now: float) -> None:
        self.last = max(now, self.last)
        self.least_ns, self.most_ns = min(sent_ns, self.least_ns), max(sent_ns, self.most_ns)

    def overlaps(self, other: "_AgentSeen", window: float) -> bool:
        """Whether neither can have followed the other: by the times in their reports, or because reports of both have
        arrived for longer than any could be on its way (their clocks may differ by hours)."""
        sent = self.most_ns > other.least_ns and other.most_ns > self.least_ns
        return sent or min(self.last, other.last) - max(self.first, other.first) > window


@dataclass(slots=True)
class _AgentPair:
    """The two instances of a node that are compared. A third one is left out until one of them is silent."""

    agents: tuple[_AgentSeen, _AgentSeen]
    latest: int
    """The instance that reported last."""
    returned: float = -math.inf
    """When an instance last took its turn again although the other one cannot have followed it."""
    several: float = -math.inf
    """When the node was last known to have several agents."""

    def replace_silent(self, agent: _AgentSeen, window: float) -> None:
        older, newer = sorted(self.agents, key=lambda one: one.last)
        if agent.first - older.last > window:
            self.agents, self.latest = (newer, agent), agent.instance


class AgentInstances:
    """The nodes whose agent has changed within `window` seconds, by row of the score map."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._pairs: dict[int, _AgentPair] = {}

    def __contains__(self, row: int) -> bool:
        """Whether the next report of this row must be noted even if its instance is the same again."""
        return row in self._pairs

    def note(self, row: int, before: tuple[int, int], instance: int, sent_ns: int, now: float) -> bool:
        """Take a report; returns whether it contradicts that one agent followed another.

        `before`: the instance of the previous report, and the latest time that a report of the node gave. `sent_ns`
        is the time in this report, 0 for none.
        """
        pair, mine = self._pairs.get(row), _AgentSeen(instance, now, now, sent_ns, sent_ns)
        if pair is None:
            if len(self._pairs) < MAX_PAIRS and before[0] not in (UNKNOWN, instance):
                self._pairs[row] = _AgentPair((_AgentSeen(before[0], now, now, before[1], before[1]), mine), instance)
            return False
        known = next((agent for agent in pair.agents if agent.instance == instance), None)
        if known is None:
            pair.replace_silent(mine, self._window)
            return False
        known.heard(sent_ns, now)
        took_turn, pair.latest = pair.latest != instance, instance
        if not took_turn or not pair.agents[0].overlaps(pair.agents[1], self._window):
            return False
        if now - pair.returned <= self._window:  # once may be due to a clock that was set back
            pair.several = now
        pair.returned = now
        return True

    def mark(self, row: int, now: float) -> None:
        """Another score map knew at that time that the node has several agents."""
        nobody = _AgentSeen(UNKNOWN, now, -math.inf, 0, 0)
        pair = self._pairs.setdefault(row, _AgentPair((nobody, nobody), UNKNOWN))
        pair.several = max(now, pair.several)

    def several(self, now: float) -> list[int]:
        """Rows of the nodes for which several agents have reported of late."""
        return [row for row, moment in self.proven().items() if now - moment <= self._window]

    def proven(self) -> dict[int, float]:
        """By row, when the node was last known to have several agents."""
        return {row: pair.several for row, pair in self._pairs.items() if pair.several > -math.inf}

    def tracked(self) -> list[int]:
        """The rows of which every report is noted."""
        return list(self._pairs)

    def expire(self, now: float) -> None:
        """Forget changes that are older than the window."""
        for row in [row for row, pair in self._pairs.items() if self._is_over(pair, now)]:
            del self._pairs[row]

    def _is_over(self, pair: _AgentPair, now: float) -> bool:
        silent = min(agent.last for agent in pair.agents)
        return now - max(pair.several, silent) > self._window

    def forget(self, row: int) -> None:
        """The node of this row is gone."""
        self._pairs.pop(row, None)

    def state(self) -> list[Any]:
        """A copy of what later steps depend on."""
        return [[row, *astuple(pair)] for row, pair in self._pairs.items()]

    def restore(self, state: Iterable[Any]) -> None:
        """Continue from what `state` returned."""
        self._pairs = {
            row: _AgentPair((_AgentSeen(*first), _AgentSeen(*second)), *rest) for row, (first, second), *rest in state
        }
