"""Recognises events that were written before, with a bounded memory of the newest identities.

An identity is the event's id, followed by the interpreter's seeded hash of its name and cluster. Two events with one
id have the same identity once in 2^64 times, and a sender cannot cause it, as the seed is secret. So an identity that
is remembered as written need not be looked up. Identities are valid within one process only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ingero_echo.arrays import np

ID_BYTES: Final = 16
"""Length of an event id, the first part of an identity."""

IDENTITY_BYTES: Final = ID_BYTES + 8
"""Length of an identity: the id, and the hash of name and cluster."""


def identity_suffix(name: str, cluster: str) -> bytes:
    """The suffix that the identities of one name and cluster share."""
    return hash((name, cluster)).to_bytes(8, "big", signed=True)


def identity(event_id: bytes, name: str, cluster: str) -> bytes:
    """The identity of an event, equal for each of its deliveries."""
    return event_id + identity_suffix(name, cluster)


def identities(ids: bytes, suffixes: Iterable[bytes]) -> list[bytes]:
    """The identities of many events: their ids joined, and the suffix of each event."""
    rows = len(ids) // ID_BYTES
    matrix = np.empty((rows, IDENTITY_BYTES), dtype=np.uint8)
    matrix[:, :ID_BYTES] = np.frombuffer(ids, dtype=np.uint8).reshape(rows, ID_BYTES)
    matrix[:, ID_BYTES:] = np.frombuffer(b"".join(suffixes), dtype=np.uint8).reshape(rows, IDENTITY_BYTES - ID_BYTES)
    found: list[bytes] = matrix.view(f"V{IDENTITY_BYTES}").ravel().tolist()
    return found


class Deduplicator:
    """Remembers at least the newest `size` identities, in two generations: a full young one replaces the old one."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: set[bytes] = set()
        self._old: set[bytes] = set()
        self._uncertain: set[bytes] = set()
        """Identities of the two generations that may or may not be written."""
        self._complete = False

    def complete(self, identities: Iterable[bytes]) -> None:
        """Add what was written before this process began; until then no event is known to be new."""
        self._old.update(identities)
        self._complete = True

    def __len__(self) -> int:
        return len(self._recent) + len(self._old)

    def all_new(self, identities: Sequence[bytes]) -> bool:
        """Whether none of them was seen before and none occurs twice."""
        unique = set(identities)
        return (
            self._complete
            and len(unique) == len(identities)
            and self._recent.isdisjoint(unique)
            and self._old.isdisjoint(unique)
        )

    def written(self, identities: set[bytes]) -> set[bytes]:
        """Those of them that are known to be written."""
        return (identities & self._recent | identities & self._old) - self._uncertain

    def uncertain(self, identities: set[bytes]) -> set[bytes]:
        """Those of them that must be looked up in the database."""
        return identities & self._uncertain if self._complete else identities - self.written(identities)

    def add(self, identities: Iterable[bytes]) -> None:
        """Remember what was written."""
        self._recent.update(identities)
        if self._uncertain:
            self._uncertain.difference_update(identities)
        self._rotate()

    def mark_uncertain(self, identities: Iterable[bytes]) -> None:
        """Remember what may have been written."""
        self._recent.update(identities)
        self._uncertain.update(identities)
        self._rotate()

    def _rotate(self) -> None:
        if len(self._recent) >= self._size:
            self._old, self._recent = self._recent, set()
            self._uncertain &= self._old
