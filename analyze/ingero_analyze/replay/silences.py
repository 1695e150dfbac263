"""Which nodes stopped reporting, and when: a dead node, and one that was taken away, look the same. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_contract.identifiers import NodeKey
from ingero_detect.nodes.observation import ABSENT, Observation

MOST_SPELLS: Final = 1000
"""Spells of silence that ended and are listed; all are counted."""

MOST_FOUND: Final = 200_000
"""Spells of silence that ended and can be found by their node."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Silence:
    """A node without a report from `since` to `until`, seconds; `None` if it is silent at the end. `value`: the last
    one before; `returned`: the first one after it."""

    node: NodeKey
    last_report: float
    since: float
    until: float | None
    value: float = np.nan
    returned: float = np.nan


class Silences:
    """Spells in which nodes report nothing for more than so many `ticks`; a tick without any node is nobody's."""

    def __init__(self, ticks: int) -> None:
        self.ended: list[Silence] = []
        self._by_node: dict[NodeKey, list[Silence]] = {}
        self.count = 0
        self._ticks = ticks
        self._tick = 0
        self._numbers = NodeNumbers()
        self._last_tick = np.zeros(0, np.int64)
        self._last, self._since, self._value = np.zeros(0), np.zeros(0), np.zeros(0)
        self._reports = np.zeros(0, np.int64)

    def note(self, now: float, seen: Observation) -> None:
        """Add a tick."""
        reported = np.asarray(seen.state) != ABSENT
        here = self._places(seen.names)[reported]
        if not len(here):
            return
        self._tick += 1
        value = np.asarray(seen.value)[reported]
        back = np.flatnonzero((self._tick - self._last_tick[here] > self._ticks + 1) & (self._last_tick[here] > 0))
        for place, returned in zip(here[back].tolist(), value[back].tolist(), strict=True):
            self._end(place, now, returned)
        self._last_tick[here] = self._tick
        self._last[here] = now
        self._value[here] = value
        self._reports[here] += 1
        self._since[self._last_tick == self._tick - 1] = now

    def knows(self, node: NodeKey) -> bool:
        """Whether there was a row of this node."""
        return node in self._numbers

    def reports(self, node: NodeKey) -> tuple[int, float]:
        """In how many ticks a node has reported, and when it did last, seconds."""
        place = self._numbers[node]
        return int(self._reports[place]), float(self._last[place])

    def silent(self, node: NodeKey) -> bool:
        """Whether a node that has reported is silent now."""
        return bool(self._silent()[self._numbers[node]])

    def at_end(self) -> list[Silence]:
        """The nodes that are silent now, longest first."""
        gone = np.flatnonzero(self._silent())
        found = [self._spell(self._numbers.names, place, None) for place in gone.tolist()]
        return sorted(found, key=lambda silence: (silence.since, silence.node))

    def after(self, node: NodeKey, since: float, until: float) -> Silence | None:
        """The first spell of silence of a node whose last report is between two times."""
        spells = [*self._by_node.get(node, ()), *([self._spell_now(node)] if self.silent(node) else [])]
        return next((spell for spell in spells if since <= spell.last_report <= until), None)

    def _silent(self) -> Bools:
        found: Bools = (self._tick - self._last_tick > self._ticks) & (self._last_tick > 0)
        return found

    def _end(self, place: int, now: float, returned: float) -> None:
        self.count += 1
        if self.count > MOST_FOUND:
            return
        spell = self._spell(self._numbers.names, place, now, returned)
        self._by_node.setdefault(spell.node, []).append(spell)
        if len(self.ended) < MOST_SPELLS:
            self.ended.append(spell)

    def _spell(
        self, names: Sequence[NodeKey] | Mapping[int, NodeKey], place: int, until: float | None,
        returned: float = np.nan,
    ) -> Silence:  # fmt: skip
        last, since, value = (float(each[place]) for each in (self._last, self._since, self._value))
        return Silence(names[place], last, since, until, value, returned)

    def _spell_now(self, node: NodeKey) -> Silence:
        return self._spell({self._numbers[node]: node}, self._numbers[node], None)

    def _places(self, names: Sequence[NodeKey]) -> Ints:
        """Numbers of nodes, entering new ones."""
        places, nodes = self._numbers.of(names), len(self._numbers)
        self._last_tick, self._reports = longer(self._last_tick, nodes, 0), longer(self._reports, nodes, 0)
        self._last, self._since, self._value = (
            longer(each, nodes, 0.0) for each in (self._last, self._since, self._value)
        )
        return places
