"""Recognises events that were written before: a bounded memory of the newest identities."""

from collections.abc import Iterable, Sequence


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
