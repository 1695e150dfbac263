"""Protobuf's wire format: variable-length integers, and the fields of a message without its schema. Pure."""

from collections.abc import Iterator
from typing import Final, NamedTuple

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5

ONE_BYTE: Final = [bytes((number,)) for number in range(0x80)]
"""The varints of numbers below 128."""


class UnsupportedLayout(Exception):
    """No layout can be learnt from the push."""


class WireField(NamedTuple):
    """One field of a message: number, wire type, and the position of its content."""

    number: int
    kind: int
    start: int
    end: int


def read_varint(body: bytes, at: int) -> tuple[int, int]:
    """A varint and the offset after it (protobuf encoding, 64 bits at most)."""
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise UnsupportedLayout


def write_varint(number: int) -> bytes:
    """Encode a non-negative number as a varint (protobuf encoding)."""
    if number < 0x80:
        return ONE_BYTE[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def iter_fields(body: bytes, at: int, end: int) -> Iterator[WireField]:
    """The fields between two offsets, in order."""
    while at < end:
        tag, at = read_varint(body, at)
        number, kind = tag >> 3, tag & 7
        if kind == LENGTH:
            length, at = read_varint(body, at)
        elif kind == FIXED64:
            length = 8
        elif kind == FIXED32:
            length = 4
        elif kind == VARINT:
            start = at
            _, at = read_varint(body, at)
            yield WireField(number, kind, start, at)
            continue
        else:
            raise UnsupportedLayout
        if at + length > end:
            raise UnsupportedLayout
        yield WireField(number, kind, at, at + length)
        at += length
