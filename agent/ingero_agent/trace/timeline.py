"""Converts collectives into a timeline of operations: when each rank computed, and when it communicated. Pure.

A rank's time is split at its waits. From the end of one wait to its arrival at the next collective it computed; from
the arrival to the end of the wait it communicated. `step` is the number of the first collective of the wait in the
rank's largest communicator: equal on all ranks and growing, but not counted one by one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from ingero_agent.trace.events import Collective

COLUMNS = ("rank", "op", "kind", "start", "duration", "step", "group", "seq")


@dataclass(frozen=True)
class TimelineRow:
    """One operation; `start` is a time of day, `duration` is in seconds. `seq` is empty where it is not exact."""

    rank: int
    op: str
    kind: str
    start: float
    duration: float
    step: int | None
    group: str
    seq: int | None


class CollectiveTimeline:
    """Remembers for each process when its last wait ended. `ranks`: ranks from the environment, by process."""

    def __init__(self) -> None:
        self.ranks: dict[int, int] = {}
        self._ended: dict[int, int] = {}

    def rows(self, collectives: Iterable[Collective]) -> Iterator[TimelineRow]:
        """Rows of new collectives, in the order of their ends; a process whose rank is not known has none."""
        ordered = sorted(collectives, key=lambda one: (one.end_ns, one.pid, one.arrival_ns))
        for (end, pid), group in groupby(ordered, key=lambda one: (one.end_ns, one.pid)):
            waited = list(group)
            main = max(waited, key=lambda one: (one.nranks, -one.seq))
            rank = self.ranks.get(pid, main.rank if main.rank is not None else -1)
            last, self._ended[pid] = self._ended.get(pid), end
            if rank < 0:
                continue
            step = min(one.seq for one in waited if one.communicator == main.communicator) if main.exact else None
            begun = min(one.arrival_ns for one in waited)
            if last is not None and begun > last:
                yield TimelineRow(rank, "compute", "compute", last / 1e9, (begun - last) / 1e9, step, "", None)
            for one in waited:
                yield TimelineRow(
                    rank, one.operation, "collective", one.arrival_ns / 1e9, (end - one.arrival_ns) / 1e9, step,
                    one.communicator or "", one.seq if one.exact else None,
                )  # fmt: skip

    def forget(self, alive: set[int]) -> None:
        """Drop processes that are gone, because their numbers are used again."""
        self._ended = {pid: end for pid, end in self._ended.items() if pid in alive}
        self.ranks = {pid: rank for pid, rank in self.ranks.items() if pid in alive}
