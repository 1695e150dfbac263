"""Recognises events that were written before: a bounded memory of the newest identities.

An identity is 64 bits made of event id, name and cluster, good within one process only.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]

_halves: Final = struct.Struct("<QQ").unpack
_MASK: Final = (1 << 64) - 1
_FACTORS: Final = tuple(int.from_bytes(os.urandom(8)) | 1 for _ in range(2))
"""Drawn anew by every process, so that no pattern of ids makes many of them alike."""


def kind(name: str, cluster: str) -> int:
    """What the identities of one name and cluster have in common."""
    return hash((name, cluster)) & _MASK


def identity(event_id: bytes, name: str, cluster: str) -> int:
    """What two deliveries of one event have in common."""
    high, low = _halves(event_id)
    mixed: int = (high * _FACTORS[0] + low * _FACTORS[1]) & _MASK
    return mixed ^ kind(name, cluster)


def identities(ids: bytes, kinds: Words) -> list[int]:
    """The identities of many events: ids of 16 bytes joined, and what `kind` says of each event, or of all."""
    halves: Words = np.frombuffer(ids, dtype="<u8").astype(np.uint64).reshape(-1, 2)
    high, low = np.uint64(_FACTORS[0]), np.uint64(_FACTORS[1])
    found: list[int] = ((halves[:, 0] * high + halves[:, 1] * low) ^ kinds).tolist()
    return found


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
