"""Converts OTLP/JSON to protobuf; records that cannot be read are left out and counted. Pure.

Unlike protobuf's own JSON mapping, identifiers are hexadecimal (https://opentelemetry.io/docs/specs/otlp/), and one
unreadable record does not make the request unreadable.
"""

import base64
import re
import struct
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from ingero_kit.otlp_limits import RequestTooExpensive
from ingero_kit.otlp_signal import Signal
from ingero_kit.otlp_wire import FIXED32, FIXED64, LENGTH, ONE_BYTE, VARINT, write_varint

REQUESTS: Final[dict[Signal, Any]] = {
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
    Signal.TRACES: ExportTraceServiceRequest,
}
LEVELS: Final = {
    Signal.METRICS: ("resource_metrics", "scope_metrics", "metrics"),
    Signal.LOGS: ("resource_logs", "scope_logs", "log_records"),
    Signal.TRACES: ("resource_spans", "scope_spans", "spans"),
}
"""The nested lists of a request, the outermost first."""

MAX_DEPTH: Final = 100
"""Levels of messages, as many as protobuf's parser accepts."""

UNREADABLE: Final = 8
"""Objects that a record which cannot be read counts as, because its error costs more than reading another one."""

_PARTS: Final = frozenset(name for names in LEVELS.values() for name in names) | {"data_points"}
"""Lists whose elements are left out one by one when they cannot be read."""

_IDENTIFIERS: Final = frozenset(("trace_id", "span_id", "parent_span_id"))

MAX_DIGITS: Final = 21
"""Longest integer in text."""
_DOUBLE: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?|NaN|-?Infinity", re.ASCII)
"""Numbers in text, as in protobuf's JSON mapping; other forms that Python reads are refused."""

_ERRORS: Final = (AttributeError, TypeError, ValueError, KeyError)
"""Errors that values of another type raise."""


def read_tree(signal: Signal, tree: Any, max_messages: int = 1 << 20) -> tuple[Any, Counter[str]]:
    """The request, and how many records were left out, by reason.

    Raises `ValueError` when nothing can be read, and `RequestTooExpensive` for more than `max_messages` objects.
    """
    body, unreadable = encode_tree(signal, tree, max_messages)
    return REQUESTS[signal].FromString(body), unreadable


def encode_tree(signal: Signal, tree: Any, max_messages: int = 1 << 20) -> tuple[bytes, Counter[str]]:
    """The same, but the request in protobuf."""
    encoder = _Encoder(max_messages)
    try:
        body = encoder.message(REQUESTS[signal].DESCRIPTOR, tree)
    except _ERRORS as error:
        reason = error if isinstance(error, ValueError) else _reason(error)
        raise ValueError(f"the body is not OTLP/JSON {signal.name.lower()}: {reason}") from None
    return body, encoder.unreadable


class _Field(NamedTuple):
    name: str
    tag: bytes
    is_list: bool
    inner: Any
    """The type of a message; `None` for other fields."""
    encode: Callable[[Any], bytes]
    """The content of a field that is no message, with its length."""


@cache
def _fields(kind: Any) -> dict[str, _Field]:
    """The fields of a message type by their names in JSON."""
    return {field.json_name: _field(field) for field in kind.fields}


def _field(field: Any) -> _Field:
    wire_type, encode = _ENCODINGS[field.type]
    if field.type == FieldDescriptor.TYPE_ENUM:
        encode = partial(_enumeration, field.enum_type)
    elif field.name in _IDENTIFIERS:
        encode = _identifier
    return _Field(
        field.name, write_varint(field.number << 3 | wire_type), field.is_repeated, field.message_type, encode
    )


_INT32: Final = (-1 << 31, (1 << 31) - 1)
_INT64: Final = (-1 << 63, (1 << 63) - 1)
_UINT32: Final = (0, (1 << 32) - 1)
_UINT64: Final = (0, (1 << 64) - 1)
"""Least and greatest number."""


def _integer(value: Any) -> int:
    """A 64-bit integer of OTLP/JSON; raises `ValueError` for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, str) and len(value) <= MAX_DIGITS and value.isascii() and value.removeprefix("-").isdigit():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise ValueError("a value is not an integer")


def _double(value: Any) -> float:
    """A double of OTLP/JSON; raises `ValueError` for anything else."""
    if type(value) is float or type(value) is int:
        return float(value)
    if isinstance(value, str) and _DOUBLE.fullmatch(value):
        return float(value)
    raise ValueError("a value is not a number")


def _list(value: Any) -> list[Any]:
    """A list of OTLP/JSON, empty if it is missing; raises `ValueError` for anything else."""
    if not isinstance(value, list | None):
        raise ValueError("a list was expected")
    return value or []


def _text(content: Any) -> bytes:
    if not isinstance(content, str):
        raise ValueError("a value is not a string")
    encoded = content.encode()
    length = len(encoded)
    return (ONE_BYTE[length] if length < 0x80 else write_varint(length)) + encoded


def _with_length(content: bytes) -> bytes:
    length = len(content)
    return (ONE_BYTE[length] if length < 0x80 else write_varint(length)) + content


def _flag(content: Any) -> bytes:
    if not isinstance(content, bool):
        raise ValueError("a value is not true or false")
    return b"\1" if content else b"\0"


def _varint(low: int, high: int, content: Any) -> bytes:
    value = _integer(content)
    if not low <= value <= high:
        raise ValueError("a value is out of range")
    return write_varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _zigzag(content: Any) -> bytes:
    value = _integer(content)
    return _varint(0, _UINT32[1], value << 1 if value >= 0 else ~(value << 1))


def _fixed(pack: Callable[[int], bytes], content: Any) -> bytes:
    try:
        return pack(_integer(content))
    except struct.error:
        raise ValueError("a value is out of range") from None


def _float64(content: Any) -> bytes:
    return _pack_double(_double(content))


def _enumeration(kind: Any, content: Any) -> bytes:
    """An enumeration's value, which may be given by its name."""
    named = isinstance(content, str) and not content.lstrip("-").isdigit()
    return _varint(*_INT32, kind.values_by_name[content].number if named else content)


def _identifier(content: str) -> bytes:
    """A hexadecimal identifier, or one in base64: the padding of 8 or 16 bytes tells them apart."""
    try:
        return _with_length(base64.b64decode(content) if content.endswith("=") else bytes.fromhex(content))
    except ValueError:
        raise ValueError("an identifier is neither hexadecimal nor base64") from None


def _bytes(content: Any) -> bytes:
    return _with_length(base64.b64decode(content))


_SHORT: Final = 0x80 - 4
"""Key and value that are shorter, together, have lengths of one byte on all levels."""

_pack_double: Final = struct.Struct("<d").pack

_ENCODINGS: Final[dict[int, tuple[int, Callable[[Any], bytes]]]] = {
    FieldDescriptor.TYPE_MESSAGE: (LENGTH, _text),
    FieldDescriptor.TYPE_STRING: (LENGTH, _text),
    FieldDescriptor.TYPE_BYTES: (LENGTH, _bytes),
    FieldDescriptor.TYPE_BOOL: (VARINT, _flag),
    FieldDescriptor.TYPE_ENUM: (VARINT, _flag),
    FieldDescriptor.TYPE_INT32: (VARINT, partial(_varint, *_INT32)),
    FieldDescriptor.TYPE_INT64: (VARINT, partial(_varint, *_INT64)),
    FieldDescriptor.TYPE_UINT32: (VARINT, partial(_varint, *_UINT32)),
    FieldDescriptor.TYPE_UINT64: (VARINT, partial(_varint, *_UINT64)),
    FieldDescriptor.TYPE_SINT32: (VARINT, _zigzag),
    FieldDescriptor.TYPE_FIXED32: (FIXED32, partial(_fixed, struct.Struct("<I").pack)),
    FieldDescriptor.TYPE_FIXED64: (FIXED64, partial(_fixed, struct.Struct("<Q").pack)),
    FieldDescriptor.TYPE_SFIXED64: (FIXED64, partial(_fixed, struct.Struct("<q").pack)),
    FieldDescriptor.TYPE_DOUBLE: (FIXED64, _float64),
}
"""Wire type and encoding of the types of fields that OTLP has."""


_ATTRIBUTE: Final = KeyValue.DESCRIPTOR
_VALUES: Final = {name: field for name, field in _fields(AnyValue.DESCRIPTOR).items() if field.inner is None}


def _short_attribute(tree: Any) -> bytes | None:
    """An attribute with a short plain value, with its length: most of what requests hold. `None` for any other."""
    try:
        ((kind, content),), name = tree["value"].items(), tree["key"].encode()
        if kind == "stringValue":
            text = content.encode()
            value = b"\x0a%c%b" % (len(text), text) if len(text) < _SHORT else None
        else:
            field = _VALUES[kind]
            value = field.tag + field.encode(content)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    if value is None or len(tree) != 2 or len(name) + len(value) >= _SHORT:
        return None
    return b"%c\x0a%c%b\x12%c%b" % (len(name) + len(value) + 4, len(name), name, len(value), value)


class _Encoder:
    """Encodes one request, and counts the records that are left out."""

    def __init__(self, max_messages: int) -> None:
        self.unreadable = Counter[str]()
        self._left = max_messages

    def message(self, kind: Any, tree: Any, depth: int = 0) -> bytes:
        """A message from JSON. Unknown names are ignored, as in protobuf."""
        if not isinstance(tree, dict):
            raise ValueError("a value is not an object")
        if depth > MAX_DEPTH:
            raise ValueError("a value is nested too deeply")
        parts: list[bytes] = []
        fields = _fields(kind)
        for key, content in tree.items():
            field = fields.get(key)
            if field is None or content is None:
                continue
            _, tag, is_list, inner, encode = field
            if inner is None and not is_list:
                parts += (tag, encode(content))
                continue
            items = _list(content) if is_list else (content,)
            if inner is None:
                for item in items:
                    parts += (tag, encode(item))
                continue
            self._spend(len(items))
            for item in items:
                encoded = _short_attribute(item) if inner is _ATTRIBUTE else None
                encoded = encoded or self._inner(field, item, depth + 1)
                if encoded:
                    parts += (tag, encoded)
        return b"".join(parts)

    def _spend(self, messages: int) -> None:
        self._left -= messages
        if self._left < 0:
            raise RequestTooExpensive("the body holds more objects than one request may: send smaller requests")

    def _inner(self, field: _Field, tree: Any, depth: int) -> bytes | None:
        """A message inside of another with its length; `None` for a record that is left out."""
        try:
            encoded = _with_length(self.message(field.inner, tree, depth))
            if field.name == "metrics" and not tree.get("name"):
                raise ValueError("a metric has no name")
            return encoded
        except _ERRORS as error:
            if field.name not in _PARTS:
                raise
            self._spend(UNREADABLE)
            self.unreadable[f"it is not OTLP/JSON: {_reason(error)}"] += 1
            return None


def _reason(error: Exception) -> str:
    """An error in words, without values, which would give the counters of reasons too many names."""
    return str(error).partition(":")[0] if isinstance(error, ValueError) else "a value is of another type"
