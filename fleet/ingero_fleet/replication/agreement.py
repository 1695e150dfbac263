"""Which replicas there are, and whether all have the same state. Pure."""

from collections import Counter
from typing import Final

from ingero_fleet.replication.log_bodies import BatchHead

MAX_REPLICAS: Final = 64
"""Replicas remembered; beyond that, the one that has been silent longest is forgotten."""

MAX_RECEIVERS: Final = 1024
"""Receivers that do not judge, likewise."""

HASHES_KEPT: Final = 4
"""Latest hashed ticks that are compared."""


class Agreement:
    """Takes the heads of all batches in the log's order, the own ones included."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[BatchHead, float]] = {}
        self._receivers: dict[str, float] = {}
        self._hashes: dict[int, dict[str, str]] = {}

    def note(self, head: BatchHead, now: float) -> None:
        """Take a head; `now` in seconds of any clock that does not jump."""
        if not head.judges:
            self._receivers.pop(head.replica, None)
            self._receivers[head.replica] = now
            if len(self._receivers) > MAX_RECEIVERS:
                del self._receivers[next(iter(self._receivers))]
            return
        self._heads.pop(head.replica, None)
        self._heads[head.replica] = head, now
        if len(self._heads) > MAX_REPLICAS:
            del self._heads[next(iter(self._heads))]
        if head.state_hash:
            self._hashes.setdefault(head.hashed, {})[head.replica] = head.state_hash
            for tick in sorted(self._hashes)[:-HASHES_KEPT]:
                del self._hashes[tick]

    def alive(self, since: float) -> dict[str, BatchHead]:
        """The replicas that judge and were heard since a moment, by name."""
        return {name: head for name, (head, heard) in self._heads.items() if heard >= since}

    def place(self, name: str, cut_by: str, ticks: int, since: float) -> int:
        """How many replicas are to cut the next tick before this one: first the one that cut last, then by name.

        Counted are those heard since a moment that have applied all of the `ticks`: others would only be waited for.
        """
        level = {other for other, head in self.alive(since).items() if head.ticks >= ticks} | {name}
        return sorted(level, key=lambda other: (other != cut_by, other)).index(name)

    def receivers(self, since: float) -> int:
        """How many Fleets that only receive were heard since a moment."""
        return sum(heard >= since for heard in self._receivers.values())

    def chosen(self, tick: int) -> str:
        """The state hash after a tick that most replicas have, of equally many the one that came first."""
        hashes = self._hashes.get(tick, {})
        return Counter(hashes.values()).most_common(1)[0][0] if hashes else ""

    def differs(self, head: BatchHead, since: float) -> bool:
        """Whether the replica of a head has another state than most; not before all that judge were heard."""
        hashes = self._hashes.get(head.hashed, {})
        judging = {name for name, other in self.alive(since).items() if other.ticks >= head.hashed}
        heard = judging - {head.replica} <= hashes.keys()
        return bool(head.state_hash) and heard and head.state_hash != (self.chosen(head.hashed) or head.state_hash)
