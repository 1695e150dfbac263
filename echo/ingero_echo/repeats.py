"""Recognises events that were written before: a bounded memory of the newest identities.

An identity is made of event id, name and cluster by the interpreter's own seeded hash: good within one process only,
and no pattern of ids makes many of them alike.
"""

from collections.abc import Iterable, Sequence


def kind(name: str, cluster: str) -> int:
    """What the identities of one name and cluster have in common."""
    return hash((name, cluster))


def identity(event_id: bytes, name: str, cluster: str) -> int:
    """What two deliveries of one event have in common."""
    return hash(event_id) ^ kind(name, cluster)


def identities(ids: bytes, kinds: Iterable[int]) -> list[int]:
    """The identities of many events: ids of 16 bytes joined, and what `kind` says of each event."""
    return [one ^ hash(ids[16 * place : 16 * place + 16]) for place, one in enumerate(kinds)]


class Repeats:
    """Remembers the newest `size` identities at least, in two generations: when the young is full, the old goes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._young: set[int] = set()
        self._old: set[int] = set()
        self._complete = False

    def complete(self, identities: Iterable[int]) -> None:
        """Remember what was written before this process began; until then nothing is known to be new."""
        self._old.update(identities)
        self._complete = True

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def fresh(self, identities: Sequence[int]) -> bool:
        """Whether none of them was seen, neither before nor twice among themselves."""
        unique = set(identities)
        return (
            self._complete
            and len(unique) == len(identities)
            and self._young.isdisjoint(unique)
            and self._old.isdisjoint(unique)
        )

    def seen(self, identity: int) -> bool:
        """Whether this one may have been written."""
        return not self._complete or identity in self._young or identity in self._old

    def add(self, identities: Iterable[int]) -> None:
        """Remember what was written."""
        self._young.update(identities)
        if len(self._young) >= self._size:
            self._old, self._young = self._young, set()
