"""Finds the incomplete tail of DuckDB's log, which the engine ignores silently. Pure: bytes in, number out.

Layout of version 2: a head of numbered fields, then entries of size, checksum (8 bytes each, little endian) and
content. A transaction ends with a commit entry; entries after the last commit are not replayed.
"""

import struct
from collections.abc import Iterator
from typing import Final

_END: Final = b"\xff\xff"
_IDENTIFIER: Final = b"\x64\x00\x62\x65\x00\x02\x66\x00\x10"
"""Fields 100: the kind "version", 101: version 2, 102: the database's identifier, 16 numbers, which follow."""

_CHECKPOINT: Final = b"\x67\x00"
"""Field 103: the number of the checkpoint that the log continues."""

_COMMITTED: Final = b"\x64\x00\x64" + _END
_SIZES: Final = struct.Struct("<QQ")


def uncommitted_tail(log: bytes) -> int | None:
    """Bytes after the last complete transaction; `None` when the layout is unknown."""
    whole = _head(log)
    if whole is None:
        return None
    for start, end in _entries(log, whole):
        if log[start:end] == _COMMITTED:
            whole = end
    return len(log) - whole


def _head(log: bytes) -> int | None:
    """Where the first entry begins."""
    at = _numbers_end(log, len(_IDENTIFIER), 16)
    if not log.startswith(_IDENTIFIER) or not log.startswith(_CHECKPOINT, at):
        return None
    at = _numbers_end(log, at + len(_CHECKPOINT), 1)
    return at + len(_END) if log.startswith(_END, at) else None


def _numbers_end(log: bytes, at: int, count: int) -> int:
    """The end of `count` variable-length numbers (seven bits a byte)."""
    for _ in range(count):
        while at < len(log) and log[at] > 0x7F:
            at += 1
        at += 1
    return at


def _entries(log: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the content of every complete entry."""
    while at + _SIZES.size <= len(log):
        size, _ = _SIZES.unpack_from(log, at)
        at += _SIZES.size
        if not size or at + size > len(log):
            return
        yield at, at + size
        at += size
