"""Reads many records of one shape without parsing each: protobuf bytes → columns. Pure.

Records of one length that were written by one program differ only in a few places: times, values, identifiers. The
first record is parsed. Every other record must equal it byte for byte outside those places, so it has the same
structure, and the places are read for all records at once. Records that do not match are left to the parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from ingero_echo.arrays import np, pa
from ingero_echo.records import Origin, encoded_scope
from ingero_echo.request_limits import (
    BLOCK,
    MAX_RECORDS,
    METRIC,
    SCOPE,
    STEP,
    RequestBudget,
    check_records,
    check_ungrouped,
)
from ingero_kit.otlp_signal import Signal
from ingero_kit.otlp_wire import UnsupportedLayout, iter_fields, read_varint

MIN_GROUP: Final = 16
"""Fewest records of one shape that are read as columns."""

MAX_SCOPE_BYTES: Final = 1024
"""Most bytes of a scope; parsed scopes are cached."""

_LENGTH, _FIXED64, _VARINT = 2, 1, 0

ByteMatrix: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
BoolArray: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


class Span(NamedTuple):
    """One record: its ordinal in the request, its position in the body, and its origin."""

    ordinal: int
    start: int
    end: int
    origin: Origin


Run = tuple[int, int, int, int]
"""Records at equal distances: ordinal of the first in the block, its position, the distance, their number."""

Runs = dict[tuple[Origin, int], list[Run]]
"""All records of a block, by origin and length."""


class Resource(NamedTuple):
    """One resource block: the resource still encoded, its records, and their number."""

    resource: bytes
    runs: Runs
    records: int


def split_records(signal: Signal, body: bytes, budget: RequestBudget) -> list[Resource]:
    """Find the records of a request.

    Raises `UnsupportedLayout` for anything but log records, and gauges and sums of numbers, and for every unknown
    part: the parser handles those. Raises `RequestTooExpensive` for more than one request may contain.
    """
    if signal is Signal.TRACES:
        raise UnsupportedLayout
    found: list[Resource] = []
    records = 0
    try:
        for _, start, end in _messages(body, 0, len(body), (1,)):
            budget.spend(BLOCK)
            found.append(_block(signal, body, start, end, budget))
            records += found[-1].records
            check_records(records)
        return found
    except (IndexError, UnicodeDecodeError, DecodeError):
        raise UnsupportedLayout from None


def _messages(body: bytes, start: int, end: int, known: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Field number, begin and end of every part; raises `UnsupportedLayout` for an unknown or a numeric one."""
    for part in iter_fields(body, start, end):
        if part.kind != _LENGTH or part.number not in known:
            raise UnsupportedLayout
        yield part.number, part.start, part.end


def _block(signal: Signal, body: bytes, start: int, end: int, budget: RequestBudget) -> Resource:
    resource = b""
    runs: Runs = {}
    count = 0
    for number, begin, stop in _messages(body, start, end, (1, 2, 3)):
        budget.spend(SCOPE)
        if number == 1:
            if resource:
                raise UnsupportedLayout
            resource = body[begin:stop]
        elif number == 3:
            body[begin:stop].decode()
        elif signal is Signal.LOGS:
            count = _log_records(body, begin, stop, runs, count, budget)
        else:
            scope = b""
            before = count
            for inner, at, to in _messages(body, begin, stop, (1, 2, 3)):
                if inner == 2:
                    count = _points(body, at, to, scope, runs, count, budget)
                else:
                    budget.spend(STEP)
                    scope = _scope(inner, body[at:to], scope, before == count)
    return Resource(resource, runs, count)


def _scope(number: int, content: bytes, before: bytes, first: bool) -> bytes:
    """The scope, encoded. It must occur once, before its records. The schema URL must be valid UTF-8."""
    if number != 1:
        content.decode()
        return before
    if before or not first or len(content) > MAX_SCOPE_BYTES:
        raise UnsupportedLayout
    encoded_scope(content)
    return content


def _log_records(body: bytes, at: int, end: int, runs: Runs, ordinal: int, budget: RequestBudget) -> int:
    """The hot loop: read tag and length of every record, both short in practice; returns the next record's position.

    Where the next record begins with the same tag and length, all records that do so are counted at once.
    """
    alone, first, origin = 0, ordinal, Origin()
    while at < end:
        begun = at
        if body[at] != 0x12:
            budget.spend(STEP)
            tag, at = read_varint(body, at)
            length, at = read_varint(body, at)
            if tag not in (0x0A, 0x1A) or at + length > end:
                raise UnsupportedLayout
            origin = Origin(scope=_scope(tag >> 3, body[at : at + length], origin.scope, first == ordinal))
            at += length
            continue
        length = body[at + 1]
        at += 2
        if length > 0x7F:
            second = body[at]
            if second > 0x7F:
                length, at = read_varint(body, at - 1)
            else:
                length = length & 0x7F | second << 7
                at += 1
        step, times = at + length - begun, 1
        if alone:
            alone -= 1
        elif body.startswith(body[begun:at], begun + step):
            times = _count_same_header(body, begun, end, step, at - begun)
            alone = 0 if times >= MIN_GROUP else MIN_GROUP
        runs.setdefault((origin, length), []).append((ordinal, at, step, times))
        at = begun + step * times
        ordinal += times
        if ordinal > MAX_RECORDS:
            check_records(ordinal)
    if at != end:
        raise UnsupportedLayout
    return ordinal


def _count_same_header(body: bytes, start: int, end: int, step: int, width: int) -> int:
    """How many parts of `step` bytes, one after the other, begin with the same `width` bytes."""
    count = (end - start) // step
    heads = np.frombuffer(body, np.uint8, count * step, start).reshape(count, step)[:, :width]
    differ = np.flatnonzero((heads != heads[0]).any(axis=1))
    return int(differ[0]) if len(differ) else count


def _points(body: bytes, start: int, end: int, scope: bytes, runs: Runs, ordinal: int, budget: RequestBudget) -> int:
    texts, kind, temporality, monotonic = {1: "", 2: "", 3: ""}, 0, 0, 0
    points: list[tuple[int, int]] = []
    budget.spend(METRIC)
    for number, begin, stop in _messages(body, start, end, (1, 2, 3, 5, 7)):
        budget.spend(STEP)
        if number not in (5, 7):
            texts[number] = body[begin:stop].decode()
            continue
        if kind not in (0, number):
            raise UnsupportedLayout
        kind = number
        for point in iter_fields(body, begin, stop):
            if point.number == 1 and point.kind == _LENGTH:
                points.append((point.start, point.end))
                if len(points) > MAX_RECORDS:
                    check_records(len(points))
                continue
            budget.spend(STEP)
            if number == 5 or point.kind != _VARINT:
                raise UnsupportedLayout
            if point.number == 2:
                temporality, _ = read_varint(body, point.start)
            elif point.number == 3:
                monotonic, _ = read_varint(body, point.start)
    if temporality > 2:
        raise UnsupportedLayout
    origin = Origin(texts[1], scope, texts[3], temporality, bool(monotonic))
    for begin, stop in points:
        runs.setdefault((origin, stop - begin), []).append((ordinal, begin, 0, 1))
        ordinal += 1
    return ordinal


class VariableField(NamedTuple):
    """A field that may differ: its kind, the attribute's key if it is an attribute, its position."""

    kind: str
    key: str
    offset: int
    length: int


_LOG_PLACES: Final = {
    (1, _FIXED64): "time",
    (11, _FIXED64): "observed",
    (9, _LENGTH): "other",
    (10, _LENGTH): "other",
}
_POINT_PLACES: Final = {
    (2, _FIXED64): "observed", (3, _FIXED64): "time", (4, _FIXED64): "double", (6, _FIXED64): "integer",
}  # fmt: skip


def variable_fields(signal: Signal, record: bytes) -> list[VariableField]:
    """The fields in which records like this one may differ. Raises `UnsupportedLayout`."""
    attributes = 6 if signal is Signal.LOGS else 7
    known = _LOG_PLACES if signal is Signal.LOGS else _POINT_PLACES
    found: list[VariableField] = []
    try:
        for part in iter_fields(record, 0, len(record)):
            kind = known.get((part.number, part.kind))
            if kind:
                found.append(VariableField(kind, "", part.start, part.end - part.start))
            elif part.number == attributes and part.kind == _LENGTH:
                found += _attribute(record, part.start, part.end)
            elif part.number == 5 and part.kind == _LENGTH and signal is Signal.LOGS:
                for variable in _any_value(record, part.start, part.end):
                    if variable.kind != "text":
                        raise UnsupportedLayout
                    found.append(VariableField("body", "", variable.offset, variable.length))
    except (IndexError, UnicodeDecodeError):
        raise UnsupportedLayout from None
    kinds = [variable.kind for variable in found if variable.kind not in ("text", "other")]
    keys = [variable.key for variable in found if variable.key]
    if len(set(kinds)) != len(kinds) or len(set(keys)) != len(keys) or {"double", "integer"} <= set(kinds):
        raise UnsupportedLayout
    return found


def _attribute(record: bytes, start: int, end: int) -> Iterator[VariableField]:
    key, value = "", None
    for part in iter_fields(record, start, end):
        if part.number == 1:
            key = record[part.start : part.end].decode()
        elif part.number == 2:
            value = part
    if value is not None:
        for variable in _any_value(record, value.start, value.end):
            yield VariableField(variable.kind, key, variable.offset, variable.length)


def _any_value(record: bytes, start: int, end: int) -> Iterator[VariableField]:
    for part in iter_fields(record, start, end):
        if part.number == 1 and part.kind == _LENGTH:
            yield VariableField("text", "", part.start, part.end - part.start)
        elif part.number == 4 and part.kind == _FIXED64:
            yield VariableField("other", "", part.start, 8)


@dataclass
class RecordGroup:
    """Records of one shape. `matrix` has one row for each; `ordinals` are their positions in the request."""

    matrix: ByteMatrix
    ordinals: Int64Array
    starts: Int64Array
    variable_fields: list[VariableField]
    origin: Origin

    @cached_property
    def constant(self) -> BoolArray:
        """Which bytes all its records share."""
        constant: BoolArray = (self.matrix == self.matrix[0]).all(axis=0)
        return constant

    @property
    def template(self) -> bytes:
        """The first record."""
        return bytes(self.matrix[0])

    def only(self, rows: BoolArray) -> RecordGroup:
        """Some of its records."""
        return RecordGroup(
            self.matrix[rows], self.ordinals[rows], self.starts[rows], self.variable_fields, self.origin
        )

    def spans(self) -> list[Span]:
        """Its records one by one, for the parser."""
        return _spans(self.ordinals, self.starts, self.matrix.shape[1], self.origin)

    def readable(self) -> tuple[RecordGroup | None, list[Span]]:
        """This group without the records that have a text that is not UTF-8, and these records as spans."""
        odd = np.zeros(len(self.ordinals), dtype=bool)
        for variable in self.variable_fields:
            if variable.kind in ("text", "body"):
                column = self.column(variable)
                for row in np.flatnonzero((column > 0x7F).any(axis=1)):
                    odd[row] |= not _is_utf8(column[row].tobytes())
        return self.only(~odd) if (~odd).sum() >= MIN_GROUP else None, self.only(odd).spans()

    def find(self, kind: str, key: str = "") -> VariableField | None:
        """The field of a kind, or of an attribute."""
        return next(
            (variable for variable in self.variable_fields if variable.kind == kind and variable.key == key), None
        )

    def is_constant(self, variable: VariableField) -> bool:
        """Whether all records have the same content in this field."""
        return bool(self.constant[variable.offset : variable.offset + variable.length].all())

    def column(self, variable: VariableField) -> ByteMatrix:
        """The bytes of a field, a row for each record, contiguous."""
        return np.ascontiguousarray(self.matrix[:, variable.offset : variable.offset + variable.length])

    def integers(self, variable: VariableField) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A field of eight bytes as integers."""
        return self.column(variable).view("<i8").ravel()

    def numbers(self, variable: VariableField) -> np.ndarray[Any, np.dtype[np.float64]]:
        """A field of eight bytes as floating point."""
        return self.column(variable).view("<f8").ravel()

    def texts(self, variable: VariableField) -> pa.Array:
        """A field as text; raises `UnsupportedLayout` when one is not UTF-8."""
        count = len(self.ordinals)
        if variable.length == 0:
            return pa.repeat(pa.scalar("", pa.string()), count)
        blob = self.column(variable).tobytes()
        fixed = pa.Array.from_buffers(pa.binary(variable.length), count, [None, pa.py_buffer(blob)])
        try:
            return fixed.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            raise UnsupportedLayout from None


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def group_records(
    signal: Signal, body: bytes, resource: Resource, first: int
) -> tuple[list[RecordGroup], list[Span]]:
    """Group the records of a block by shape; returns the groups, and the records to parse one by one.

    `first` is the ordinal of the block's first record in the request.
    """
    shaped: list[RecordGroup] = []
    rest: list[Span] = []
    for (origin, length), runs in resource.runs.items():
        count = sum(run[3] for run in runs)
        if not length or count < MIN_GROUP:
            check_ungrouped(len(rest) + count)
            rest += [
                Span(first + ordinal + one, start + one * step, start + one * step + length, origin)
                for ordinal, start, step, times in runs
                for one in range(times)
            ]
            continue
        ordinals, starts = _unrolled(runs)
        ordinals += first
        try:
            group, odd = _group(signal, body, origin, length, ordinals, starts)
        except UnsupportedLayout:
            rest += _spans(ordinals, starts, length, origin)
            continue
        shaped.append(group)
        rest += odd
    return shaped, rest


def _unrolled(runs: list[Run]) -> tuple[Int64Array, Int64Array]:
    """Ordinal in the block, and position in the body, of every record of the runs."""
    ordinal, start, step, times = np.array(runs, dtype=np.int64).T
    within = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    return np.repeat(ordinal, times) + within, np.repeat(start, times) + np.repeat(step, times) * within


def _spans(ordinals: Int64Array, starts: Int64Array, length: int, origin: Origin) -> list[Span]:
    check_ungrouped(len(ordinals))
    pairs = zip(ordinals.tolist(), starts.tolist(), strict=True)
    return [Span(ordinal, start, start + length, origin) for ordinal, start in pairs]


def _group(
    signal: Signal, body: bytes, origin: Origin, length: int, ordinals: Int64Array, starts: Int64Array
) -> tuple[RecordGroup, list[Span]]:
    """The records that have the shape of the first one, and the others."""
    found = variable_fields(signal, body[starts[0] : starts[0] + length])
    group = RecordGroup(_matrix(body, starts, length), ordinals, starts, found, origin)
    fixed = np.ones(length, dtype=bool)
    for variable in found:
        fixed[variable.offset : variable.offset + variable.length] = False
    if group.constant[fixed].all():
        return group, []
    fits = (group.matrix == group.matrix[0])[:, fixed].all(axis=1)
    if fits.sum() < MIN_GROUP:
        raise UnsupportedLayout
    return group.only(fits), group.only(~fits).spans()


def _matrix(body: bytes, starts: Int64Array, length: int) -> ByteMatrix:
    """The records as rows of a matrix, without a copy when they are at equal distances."""
    flat = np.frombuffer(body, dtype=np.uint8)
    steps = np.diff(starts)
    if (steps == steps[0]).all():
        return np.lib.stride_tricks.as_strided(
            flat[starts[0] :], shape=(len(starts), length), strides=(int(steps[0]), 1), writeable=False
        )
    gathered: ByteMatrix = flat[starts[:, None] + np.arange(length)]
    return gathered


_DASHES: Final = [8, 13, 18, 23]


def uuid_bytes(column: ByteMatrix) -> bytes:
    """16 bytes for every UUID that is written out in lower case; raises `UnsupportedLayout` for any other text."""
    if column.shape[1] != 36 or (column[:, _DASHES] != ord("-")).any():
        raise UnsupportedLayout
    digits = np.delete(column, _DASHES, axis=1).tobytes().decode("latin-1")
    try:
        ids = bytes.fromhex(digits)
    except ValueError:
        raise UnsupportedLayout from None
    if ids.hex() != digits:  # upper case, or blanks that `fromhex` skips
        raise UnsupportedLayout
    return ids
