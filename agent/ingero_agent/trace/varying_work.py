"""Which collectives are sent with the work of their process: only those of communicators whose work varies. Pure.

Work that never varies says nothing about why a rank comes late, and costs bytes.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final

from ingero_agent.trace.events import Collective

LEAST_CHANGE: Final = 0.01
"""Work that changes less, relative to the larger, does not vary."""

TELLING: Final = 256
"""Collectives of a communicator that are sent with their work after the latest change."""

MAX_KINDS: Final = 16
"""Kinds of collectives of a communicator whose work is remembered: operation and size, which recur in each step."""

MAX_COMMUNICATORS: Final = 4096


@dataclass
class _Told:
    latest: dict[tuple[str, int | None], int] = field(default_factory=dict)
    left: int = 0


class VaryingWork:
    """Remembers the latest work of each process's communicators."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str], _Told] = {}

    def told(self, one: Collective) -> Collective:
        """The collective, without its work where that does not vary; collectives of a process come in their order."""
        return one if one.work is None or self._varies(one, one.work) else replace(one, work=None)

    def _varies(self, one: Collective, work: int) -> bool:
        if one.communicator is None:
            return False
        key = (one.pid, one.communicator)
        told = self._told.get(key)
        if told is None:
            if len(self._told) >= MAX_COMMUNICATORS:
                return False
            told = self._told[key] = _Told()
        kind = (one.operation, one.size)
        before = told.latest.get(kind)
        if before is not None or len(told.latest) < MAX_KINDS:
            told.latest[kind] = work
        told.left = max(0, told.left - 1)
        if before is not None and abs(work - before) > LEAST_CHANGE * max(work, before):
            told.left = TELLING
        return told.left > 0

    def forget(self, alive: Collection[int]) -> None:
        """Forget processes that are gone, because their numbers are used again."""
        self._told = {key: told for key, told in self._told.items() if key[0] in alive}
