"""HPACK (RFC 7541): header blocks are decoded with the connection's dynamic table and encoded without one. Pure.

A table is immutable: decoding a block returns the fields and the table after it. That is the same object if the block
did not change it, so a result computed from a block can be cached as long as the table stays the same object.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from hpack import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

Field = tuple[bytes, bytes]
"""Name, in lower case, and value."""

STATIC: Final = HeaderTable.STATIC_TABLE
"""The static table (RFC 7541, Appendix A); the field at index i is at position i - 1."""

_INDEX: Final = {field: number for number, field in reversed(list(enumerate(STATIC, 1)))}
_NAME_INDEX: Final = {name: number for number, (name, _) in reversed(list(enumerate(STATIC, 1)))}

ENTRY_OVERHEAD: Final = 32
"""Bytes that an entry counts in addition to its name and value (RFC 7541, 4.1), in tables and header list sizes."""

DEFAULT_TABLE: Final = 4096
"""Bytes of a dynamic table unless SETTINGS_HEADER_TABLE_SIZE says otherwise (RFC 9113, 6.5.2)."""

EMPTY_TABLE: Final = b"\x20"
"""A size update to zero (RFC 7541, 6.3). It precedes the first block of a connection and is valid for every size that
the peer allows, now and later."""


class HpackError(ValueError):
    """A block that cannot be decoded: a connection error (RFC 9113, 4.3)."""


class HeaderListTooLarge(HpackError):
    """A block whose fields are several times larger than allowed."""


_MAX_EXCESS: Final = 4
"""Multiple of the allowed size above which decoding stops."""


_MAX_SIZE_UPDATES: Final = 2
"""Table size updates at the start of a block: the smallest size since the last block and the current one (4.2)."""


class DynamicTable(NamedTuple):
    """A dynamic table: its entries, newest first, their size and their largest size, bytes."""

    entries: tuple[Field, ...] = ()
    size: int = 0
    limit: int = DEFAULT_TABLE


def decode_block(block: bytes, table: DynamicTable, max_bytes: int) -> tuple[list[Field] | None, DynamicTable]:
    """The fields of a complete block, in order, and the table after it.

    `max_bytes` limits the fields as SETTINGS_MAX_HEADER_LIST_SIZE counts them. A larger block is read to its end, to
    keep the table correct, and gives `None`. Raises `HpackError`, and `HeaderListTooLarge` for a block that is
    several times too large.
    """
    try:
        return _read(block, table, max_bytes)
    except IndexError:
        raise HpackError("a header block ends early or names a field that is in no table") from None
    except HPACKDecodingError as error:
        raise HpackError(str(error)) from None


def _read(block: bytes, table: DynamicTable, max_bytes: int) -> tuple[list[Field] | None, DynamicTable]:
    entries, size, limit = table
    fields: list[Field] = []
    at, end, total, updates = 0, len(block), 0, 0
    changed = False
    while at < end:
        byte = block[at]
        if byte & 0x80:
            index = byte & 0x7F
            if index < 0x7F:
                at += 1
            else:
                index, at = _integer(block, at, 0x7F)
            field = _entry(index, entries)
        elif byte & 0xE0 == 0x20:
            updates += 1
            if total:
                raise HpackError("a table size update after a field")
            if updates > _MAX_SIZE_UPDATES:
                raise HpackError(f"more than {_MAX_SIZE_UPDATES} table size updates in a block")
            limit, at = _integer(block, at, 0x1F)
            if limit > DEFAULT_TABLE:
                raise HpackError(f"a table of {limit} bytes: {DEFAULT_TABLE} are allowed")
            entries, size = _evict(entries, size, limit)
            changed = True
            continue
        else:
            index, at = _integer(block, at, 0x3F if byte & 0x40 else 0x0F)
            if index:
                name = _entry(index, entries)[0]
            else:
                name, at = _string(block, at)
            value, at = _string(block, at)
            field = (name, value)
            if byte & 0x40:
                own = len(name) + len(value) + ENTRY_OVERHEAD
                entries, size = _evict((field, *entries), size + own, limit)
                changed = True
        total += len(field[0]) + len(field[1]) + ENTRY_OVERHEAD
        if total <= max_bytes:
            fields.append(field)
        elif total > _MAX_EXCESS * max_bytes:
            raise HeaderListTooLarge("a header list is too large")
    if changed and (limit != table.limit or entries != table.entries):
        table = DynamicTable(entries, size, limit)
    return (fields if total <= max_bytes else None), table


def _entry(index: int, entries: tuple[Field, ...]) -> Field:
    if index > 61:
        return entries[index - 62]
    if not index:
        raise IndexError
    return STATIC[index - 1]


def _evict(entries: tuple[Field, ...], size: int, limit: int) -> tuple[tuple[Field, ...], int]:
    kept = len(entries)
    while size > limit:
        kept -= 1
        size -= len(entries[kept][0]) + len(entries[kept][1]) + ENTRY_OVERHEAD
    return entries[:kept], size


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """An integer with a prefix (RFC 7541, 5.1) and the offset after it."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise HpackError("an integer of more than 32 bits")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """A string (RFC 7541, 5.2) and the offset after it."""
    coded = block[at] & 0x80
    length, at = _integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise IndexError
    text = block[at:end]
    return (decode_huffman(text) if coded else text), end


def encode_block(fields: Iterable[Field]) -> bytes:
    """A block that neither uses nor changes the peer's dynamic table, so that it may be sent on any connection."""
    out = bytearray()
    for name, value in fields:
        whole = _INDEX.get((name, value))
        if whole:
            out.append(0x80 | whole)
            continue
        index = _NAME_INDEX.get(name, 0)
        out += _prefixed(index, 0x0F)
        if not index:
            out += _prefixed(len(name), 0x7F) + name
        out += _prefixed(len(value), 0x7F) + value
    return bytes(out)


def _prefixed(number: int, mask: int) -> bytes:
    if number < mask:
        return bytes((number,))
    out = bytearray((mask,))
    number -= mask
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
