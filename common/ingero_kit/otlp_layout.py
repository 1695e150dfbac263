"""Decodes pushes of a known shape without parsing them again.

Every number of an OTLP data point is a fixed64, so two pushes of one agent differ only in eight-byte fields at known
offsets. A `Layout` is learnt from a push that was parsed in full. A later push fits it only if every other byte is
equal, so the structure is the same by construction; its numbers are then read at their offsets. Anything that does
not fit is parsed in full again. Pure.
"""

import operator
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ingero_kit.otlp_json import read_tree
from ingero_kit.otlp_signal import Encoding, Signal
from ingero_kit.otlp_wire import (
    FIXED64,
    LENGTH,
    UnsupportedLayout,
    WireField,
    iter_fields,
    read_varint,
)

_RESOURCE_METRICS, _RESOURCE, _SCOPE_METRICS, _METRICS = 1, 1, 2, 2
_NAME, _GAUGE, _DATA_POINTS = 1, 5, 1
_TIME, _AS_DOUBLE, _AS_INT, _FLAGS = 3, 4, 6, 8


class NumberField(NamedTuple):
    """One eight-byte field of a data point: metric, which field, offset in the tail."""

    metric: str
    field: int
    offset: int


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
            if scope.number != _SCOPE_METRICS or scope.kind != LENGTH:
                raise UnsupportedLayout
            for metric in iter_fields(body, scope.start, scope.end):
                if metric.number == _METRICS and metric.kind == LENGTH:
                    found += _metric(body, metric, tail)
    except (IndexError, UnicodeDecodeError):
        raise UnsupportedLayout from None
    return found


def _metric(body: bytes, metric: WireField, tail: int) -> list[NumberField]:
    name, points = "", []
    for part in iter_fields(body, metric.start, metric.end):
        if part.number == _NAME:
            name = body[part.start : part.end].decode()
        elif part.number == _GAUGE and part.kind == LENGTH:
            points += list(iter_fields(body, part.start, part.end))
        elif part.number > _GAUGE:
            raise UnsupportedLayout
    if len(points) != 1 or points[0].number != _DATA_POINTS or points[0].kind != LENGTH:
        raise UnsupportedLayout
    fields = list(iter_fields(body, points[0].start, points[0].end))
    numbers = [part for part in fields if part.kind == FIXED64 and part.number in (_TIME, _AS_DOUBLE, _AS_INT)]
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

    def read(self, tail: bytes) -> Sequence[Any] | None:
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
_MAX_DIGITS: Final = 19
"""Most digits of a time; every number of as many fits into 64 bits."""
_KINDS: Final = frozenset((int, float))


class JsonNumber(NamedTuple):
    """One number in a tail: its offsets, and whether it is a time, which is in quotes."""

    start: int
    end: int
    is_time: bool


def split_json_resource(body: bytes) -> int:
    """Offset of `scopeMetrics` after the resource, for a push in the usual order; 0 otherwise."""
    if not body.startswith(_HEAD):
        return 0
    return max(0, body.find(_SCOPES))


def read_resource(head: bytes, encoding: Encoding) -> Resource | None:
    """The resource of a push from its encoded bytes, in JSON from the text before `scopeMetrics`.

    `None` if it cannot be read, or if that text does not end inside the only block.
    """
    try:
        if encoding == "protobuf":
            return Resource.FromString(head)
        tree = orjson.loads(head + b'"scopeMetrics":[]}]}')
        request, unreadable = read_tree(Signal.METRICS, tree)
    except (DecodeError, ValueError):
        return None
    whole = list(tree) == ["resourceMetrics"] and len(request.resource_metrics) == 1 and not unreadable
    return request.resource_metrics[0].resource if whole else None


@dataclass(frozen=True)
class JsonLayout:
    """The text around numbers, the position of the times among them, and the numbers that fill the fields `names`.

    `pieces`: the text before the first number, then for each number an empty piece and the text after it.
    `stops`: for each number the first byte and the length of the text after it.
    """

    pieces: list[bytes]
    stops: tuple[tuple[bytes, int], ...]
    times: Callable[[list[bytes]], tuple[bytes, ...]]
    wanted: Callable[[list[bytes]], tuple[bytes, ...]]
    names: tuple[str, ...]
    fixed: dict[str, Any]

    def read(self, tail: bytes) -> Sequence[Any] | None:
        """The numbers of a tail; `None` when it has another shape or a value that is not a number."""
        at, texts = len(self.pieces[0]), []
        for stop, length in self.stops:
            end = tail.find(stop, at)
            texts.append(tail[at:end])
            at = end + length
        pieces = self.pieces.copy()
        pieces[1::2] = texts
        if b"".join(pieces) != tail:
            return None
        if not all(time.isdigit() and len(time) <= _MAX_DIGITS for time in set(self.times(texts))):
            return None
        try:
            numbers: list[Any] = orjson.loads(b"[%b]" % b",".join(self.wanted(texts)))
        except orjson.JSONDecodeError:
            return None
        return numbers if len(numbers) == len(self.names) and _KINDS.issuperset(map(type, numbers)) else None


def find_json_numbers(tail: bytes) -> list[JsonNumber]:
    """The numbers of a tail.

    Raises `UnsupportedLayout` when there are none, or when a second resource follows the first.
    """
    found = [JsonNumber(*one.span(1 if one[1] else 2), is_time=bool(one[1])) for one in _NUMBER.finditer(tail)]
    if not 2 <= len(found) < 999 or b'"resource"' in tail:
        raise UnsupportedLayout
    return found


def with_numbers(tail: bytes, numbers: list[JsonNumber], texts: list[bytes]) -> bytes:
    """The tail with its numbers replaced."""
    out, at = [], 0
    for number, text in zip(numbers, texts, strict=True):
        out += [tail[at : number.start], text]
        at = number.end
    return b"".join([*out, tail[at:]])


def learn_json_layout(tail: bytes, numbers: list[JsonNumber], names: list[str], fixed: dict[str, Any]) -> JsonLayout:
    """Build the layout of a tail; `names`: the report field of each number, empty for a time that is not wanted."""
    starts = [0, *(number.end for number in numbers)]
    ends = [*(number.start for number in numbers), len(tail)]
    statics = [tail[start:end] for start, end in zip(starts, ends, strict=True)]
    return JsonLayout(
        pieces=[piece for static in statics for piece in (b"", static)][1:],
        stops=tuple((static[:1], len(static)) for static in statics[1:]),
        times=_take([place for place, number in enumerate(numbers) if number.is_time]),
        wanted=_take([place for place, name in enumerate(names) if name]),
        names=tuple(filter(None, names)),
        fixed=fixed,
    )


def _take(places: list[int]) -> Callable[[list[bytes]], tuple[bytes, ...]]:
    """A function that returns the items at these places."""
    if len(places) < 2:
        return lambda texts: tuple(texts[place] for place in places)
    return operator.itemgetter(*places)
