"""Decodes pushes of a known shape without parsing them again.

Every number of an OTLP data point is a fixed64, so two pushes of one agent differ only in eight-byte fields at known
offsets. A `Layout` is learnt from a push that was parsed in full. A later push fits it only if every other byte is
equal, so the structure is the same by construction; its numbers are then read at their offsets. Anything that does
not fit is parsed in full again. Pure.
"""

import operator
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

_LENGTH, _FIXED64, _FIXED32, _VARINT = 2, 1, 5, 0
_RESOURCE_METRICS, _RESOURCE, _SCOPE_METRICS, _METRICS = 1, 1, 2, 2
_NAME, _GAUGE, _DATA_POINTS = 1, 5, 1
_TIME, _AS_DOUBLE, _AS_INT, _FLAGS = 3, 4, 6, 8


class UnsupportedLayout(Exception):
    """No layout can be learnt from the push."""


class WireField(NamedTuple):
    """One field of a message: number, wire type, and the position of its content."""

    number: int
    kind: int
    start: int
    end: int


class NumberField(NamedTuple):
    """One eight-byte field of a data point: metric, which field, offset in the tail."""

    metric: str
    field: int
    offset: int


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
        if kind == _LENGTH:
            length, at = read_varint(body, at)
        elif kind == _FIXED64:
            length = 8
        elif kind == _FIXED32:
            length = 4
        elif kind == _VARINT:
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


def split_resource(body: bytes) -> tuple[int, int]:
    """Start and end of the resource of a push, if it is the first part of its only block; (0, 0) otherwise."""
    try:
        if body[0] != 0x0A:
            return 0, 0
        length, at = read_varint(body, 1)
        if at + length != len(body) or body[at] != 0x0A:
            return 0, 0
        length, at = read_varint(body, at + 1)
    except (IndexError, UnsupportedLayout):
        return 0, 0
    return (at, at + length) if at + length <= len(body) else (0, 0)


def find_numbers(body: bytes, tail: int) -> list[NumberField]:
    """Every time and value after the resource, for a push of gauges with one point each.

    Raises `UnsupportedLayout` for any other shape.
    """
    found: list[NumberField] = []
    try:
        for scope in iter_fields(body, tail, len(body)):
            if scope.number != _SCOPE_METRICS or scope.kind != _LENGTH:
                raise UnsupportedLayout
            for metric in iter_fields(body, scope.start, scope.end):
                if metric.number == _METRICS and metric.kind == _LENGTH:
                    found += _metric(body, metric, tail)
    except (IndexError, UnicodeDecodeError):
        raise UnsupportedLayout from None
    return found


def _metric(body: bytes, metric: WireField, tail: int) -> list[NumberField]:
    name, points = "", []
    for part in iter_fields(body, metric.start, metric.end):
        if part.number == _NAME:
            name = body[part.start : part.end].decode()
        elif part.number == _GAUGE and part.kind == _LENGTH:
            points += list(iter_fields(body, part.start, part.end))
        elif part.number > _GAUGE:
            raise UnsupportedLayout
    if len(points) != 1 or points[0].number != _DATA_POINTS or points[0].kind != _LENGTH:
        raise UnsupportedLayout
    fields = list(iter_fields(body, points[0].start, points[0].end))
    numbers = [part for part in fields if part.kind == _FIXED64 and part.number in (_TIME, _AS_DOUBLE, _AS_INT)]
    if len({part.number for part in numbers}) != len(numbers) or sum(part.number != _TIME for part in numbers) != 1:
        raise UnsupportedLayout
    if any(part.number == _FLAGS for part in fields):  # flags may say that there is no value
        raise UnsupportedLayout
    return [NumberField(name, part.number, part.start - tail) for part in numbers]


@dataclass(frozen=True)
class Layout:
    """A shape: the bytes that must be equal, and the numbers that are read between them.

    `names`: report fields that the numbers fill, in order; `fixed`: report fields that the equal bytes define.
    """

    statics: struct.Struct
    expected: tuple[bytes, ...]
    numbers: struct.Struct
    names: tuple[str, ...]
    fixed: dict[str, Any]

    def read(self, tail: bytes) -> tuple[Any, ...] | None:
        """The numbers of a tail of this layout's length; `None` when it has another shape."""
        return self.numbers.unpack(tail) if self.statics.unpack(tail) == self.expected else None


_LETTERS: Final = {_TIME: "Q", _AS_DOUBLE: "d", _AS_INT: "q"}


def learn_layout(
    tail: bytes, numbers: list[NumberField], wanted: dict[tuple[str, bool], str], fixed: dict[str, Any]
) -> Layout:
    """Build the layout of a tail.

    `wanted` maps (metric, whether it is the time) to a report field. Times that are not wanted may differ; values
    that are not wanted must be equal.
    """
    statics, values, names, at = "<", "<", [], 0
    for number in sorted(numbers, key=lambda item: item.offset):
        name = wanted.get((number.metric, number.field == _TIME))
        if name is None and number.field != _TIME:
            continue
        gap = number.offset - at
        statics += f"{gap}s8x"
        values += f"{gap}x{_LETTERS[number.field] if name else '8x'}"
        if name:
            names.append(name)
        at = number.offset + 8
    statics += f"{len(tail) - at}s"
    values += f"{len(tail) - at}x"
    packed = struct.Struct(statics)
    return Layout(packed, packed.unpack(tail), struct.Struct(values), tuple(names), fixed)


# JSON: the same method for text. Numbers vary in length, so the equal parts are compared one after the other.

_NUMBER: Final = re.compile(rb'"(?:asDouble|timeUnixNano)":(?:"(\d+)"|(-?\d[0-9.eE+-]*))')
_HEAD: Final = b'{"resourceMetrics":[{"resource":{'
_SCOPES: Final = b'"scopeMetrics":'
_LONGEST: Final = 32
_SHORTEST_TIME: Final = 10
"""Fewest digits of a time that is searched for; shorter ones also occur inside other numbers."""
_KINDS: Final = frozenset((int, float))


def split_json_resource(body: bytes) -> int:
    """Offset of `scopeMetrics` after the resource, for a push in the usual order; 0 otherwise."""
    if not body.startswith(_HEAD):
        return 0
    return max(0, body.find(_SCOPES))


def is_whole_head(head: bytes, resource: Any) -> bool:
    """Whether the text before `scopeMetrics` ends inside the only resource block, after this resource."""
    try:
        tree = orjson.loads(head + b'"scopeMetrics":[]}]}')
    except orjson.JSONDecodeError:
        return False
    blocks = tree["resourceMetrics"]
    return list(tree) == ["resourceMetrics"] and len(blocks) == 1 and blocks[0].get("resource") == resource


@dataclass(frozen=True)
class JsonLayout:
    """The text between numbers, in order, and the report field that each number fills (empty: not wanted)."""

    statics: tuple[bytes, ...]
    stops: tuple[bytes, ...]
    names: tuple[str, ...]
    fixed: dict[str, Any]
    alike: "TimedPieces | None"
    """The same for tails whose times are all equal, which agents send."""

    def read(self, tail: bytes) -> tuple[tuple[str, ...], list[Any]] | None:
        """The names and numbers of a tail; `None` when it has another shape or a value that is not a number."""
        if self.alike:
            found = self.alike.read(tail, len(self.statics[0]))
            if found:
                return self.alike.names, found
        texts, at = [], 0
        for static, stop in zip(self.statics, self.stops, strict=False):
            if not tail.startswith(static, at):
                return None
            at += len(static)
            end = tail.find(stop, at, at + _LONGEST)
            if end < 0:
                return None
            text = tail[at:end]
            if stop == b'"' and not text.isdigit():
                return None
            texts.append(text)
            at = end
        if tail[at:] != self.statics[-1]:
            return None
        numbers = _numbers(texts, len(self.names))
        return (self.names, numbers) if numbers else None


@dataclass(frozen=True)
class TimedPieces:
    """The pieces of a tail that is split at every occurrence of its one time.

    A piece is either `plain` or contains a number: its slice, and the text `around` it. `names`: the report field of
    the time, then those of the other numbers.
    """

    count: int
    take_plain: Callable[[list[bytes]], tuple[bytes, ...]]
    plain: tuple[bytes, ...]
    around: tuple[tuple[int, bytes, bytes, slice], ...]
    names: tuple[str, ...]

    def read(self, tail: bytes, start: int) -> list[Any] | None:
        """The time at `start` and the other numbers; `None` when the tail has another shape."""
        time = tail[start : tail.find(b'"', start, start + _LONGEST)]
        if not time.isdigit() or len(time) < _SHORTEST_TIME:
            return None
        pieces = tail.split(time)
        if len(pieces) != self.count or self.take_plain(pieces) != self.plain:
            return None
        texts = [time]
        for place, begin, end, text in self.around:
            piece = pieces[place]
            if not piece.startswith(begin) or not piece.endswith(end):
                return None
            texts.append(piece[text])
        return _numbers(texts, len(texts))


def _numbers(texts: list[bytes], count: int) -> list[Any] | None:
    """Parse these texts; `None` unless each of them is one JSON number."""
    try:
        numbers: list[Any] = orjson.loads(b"[%b]" % b",".join(texts))
    except orjson.JSONDecodeError:
        return None
    return numbers if len(numbers) == count and _KINDS.issuperset(map(type, numbers)) else None


def find_json_numbers(tail: bytes) -> list[tuple[int, int]]:
    """Positions of the numbers of a tail, as (start, end).

    Raises `UnsupportedLayout` when there are none, or when a second resource follows the first.
    """
    spans = [found.span(1) if found.group(1) else found.span(2) for found in _NUMBER.finditer(tail)]
    if not spans or b'"resource"' in tail or any(end - start >= _LONGEST for start, end in spans):
        raise UnsupportedLayout
    return spans


def with_numbers(tail: bytes, spans: list[tuple[int, int]], texts: list[bytes]) -> bytes:
    """The tail with its numbers replaced."""
    out, at = [], 0
    for (start, end), text in zip(spans, texts, strict=True):
        out += [tail[at:start], text]
        at = end
    return b"".join([*out, tail[at:]])


def learn_json_layout(
    tail: bytes, spans: list[tuple[int, int]], names: tuple[str, ...], fixed: dict[str, Any]
) -> JsonLayout:
    """Build the layout of a tail."""
    edges = [0, *(position for span in spans for position in span), len(tail)]
    statics = tuple(tail[edges[index] : edges[index + 1]] for index in range(0, len(edges), 2))
    stops = tuple(static[:1] for static in statics[1:])
    return JsonLayout(statics, stops, names, fixed, _timed_pieces(statics, stops, names))


def _timed_pieces(statics: tuple[bytes, ...], stops: tuple[bytes, ...], names: tuple[str, ...]) -> TimedPieces | None:
    """The pieces between times, which are the only numbers in quotes.

    `None` unless a time comes first, at most one of them is wanted, and two or more pieces are plain.
    """
    pieces: list[list[bytes]] = [[statics[0]]]
    for static, stop in zip(statics[1:], stops, strict=True):
        if stop == b'"':
            pieces.append([static])
        else:
            pieces[-1].append(static)
    plain = [place for place, piece in enumerate(pieces) if len(piece) == 1]
    times = [name for name, stop in zip(names, stops, strict=True) if stop == b'"' and name]
    if stops[0] != b'"' or len(times) > 1 or len(plain) < 2 or any(len(piece) > 2 for piece in pieces):
        return None
    return TimedPieces(
        count=len(pieces),
        take_plain=operator.itemgetter(*plain),
        plain=tuple(pieces[place][0] for place in plain),
        around=tuple(
            (place, piece[0], piece[1], slice(len(piece[0]), -len(piece[1])))
            for place, piece in enumerate(pieces)
            if len(piece) == 2
        ),
        names=("".join(times), *(name for name, stop in zip(names, stops, strict=True) if stop != b'"')),
    )
