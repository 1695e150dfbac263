"""Reads OTLP/JSON into protobuf messages; records that cannot be read are left out and counted. Pure.

Unlike protobuf's own JSON mapping, identifiers are hexadecimal (https://opentelemetry.io/docs/specs/otlp/), and one
unreadable record does not make the request unreadable.
"""

import base64
import re
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ingero_kit.otlp_limits import RequestTooExpensive
from ingero_kit.otlp_signal import Signal

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

_PARTS: Final = frozenset(name for names in LEVELS.values() for name in names) | {"data_points"}
"""Lists whose elements are left out one by one when they cannot be read."""

_IDENTIFIERS: Final = frozenset(("trace_id", "span_id", "parent_span_id"))

_INTEGER: Final = re.compile(r"-?\d{1,20}", re.ASCII)
_DOUBLE: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?|NaN|-?Infinity", re.ASCII)
"""Numbers in text, as in protobuf's JSON mapping; other forms that Python reads are refused."""

_ERRORS: Final = (AttributeError, TypeError, ValueError, KeyError)
"""Errors that values of another type raise."""


def read_tree(signal: Signal, tree: Any, max_messages: int = 1 << 20) -> tuple[Any, Counter[str]]:
    """The request, and how many records were left out, by reason.

    Raises `ValueError` when nothing can be read, and `RequestTooExpensive` for more than `max_messages` objects.
    """
    request, reader = REQUESTS[signal](), _Reader(max_messages)
    try:
        reader.fill(request, tree)
    except _ERRORS as error:
        kind = type(error).__name__
        raise ValueError(f"the body is not OTLP/JSON {signal.name.lower()}: {kind}: {error}") from None
    return request, reader.unreadable


class _Field(NamedTuple):
    name: str
    is_list: bool
    convert: Callable[[Any], Any] | None
    """Reads one value; `None` for a message."""


@cache
def _fields(kind: Any) -> dict[str, _Field]:
    """The fields of a message type by their names in JSON."""
    return {field.json_name: _Field(field.name, field.is_repeated, _converter(field)) for field in kind.fields}


def _converter(field: Any) -> Callable[[Any], Any] | None:
    if field.type == field.TYPE_ENUM:
        return partial(_enumeration, field.enum_type)
    if field.type == field.TYPE_BYTES:
        return _identifier if field.name in _IDENTIFIERS else base64.b64decode
    converters = {
        field.CPPTYPE_MESSAGE: None, field.CPPTYPE_STRING: _text, field.CPPTYPE_BOOL: _flag,
        field.CPPTYPE_DOUBLE: _double,
    }  # fmt: skip
    return converters.get(field.cpp_type, _integer)


def _integer(value: Any) -> int:
    """A 64-bit integer of OTLP/JSON; raises `ValueError` for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
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


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise ValueError("a value is not a string")
    return content


def _flag(content: Any) -> bool:
    if not isinstance(content, bool):
        raise ValueError("a value is not true or false")
    return content


def _enumeration(kind: Any, content: Any) -> int:
    """The number of an enumeration's value, which may be given by its name."""
    named = isinstance(content, str) and not content.lstrip("-").isdigit()
    return int(kind.values_by_name[content].number) if named else _integer(content)


def _identifier(content: str) -> bytes:
    """A hexadecimal identifier, or one in base64: the padding of 8 or 16 bytes tells them apart."""
    try:
        return base64.b64decode(content) if content.endswith("=") else bytes.fromhex(content)
    except ValueError:
        raise ValueError("an identifier is neither hexadecimal nor base64") from None


class _Reader:
    """Reads one request, and counts the records that are left out."""

    def __init__(self, max_messages: int) -> None:
        self.unreadable = Counter[str]()
        self._left = max_messages

    def fill(self, message: Any, tree: Any, depth: int = 0) -> None:
        """Set a message's fields from JSON. Unknown names are ignored, as in protobuf."""
        self._left -= 1
        if self._left < 0:
            raise RequestTooExpensive("the body holds more objects than one request may: send smaller requests")
        if not isinstance(tree, dict):
            raise ValueError("a value is not an object")
        if depth > MAX_DEPTH:
            raise ValueError("a value is nested too deeply")
        fields = _fields(message.DESCRIPTOR)
        for key, content in tree.items():
            field = fields.get(key)
            if field is None or content is None:
                continue
            name, is_list, convert = field
            if convert and is_list:
                getattr(message, name).extend(map(convert, _list(content)))
            elif convert:
                setattr(message, name, convert(content))
            elif is_list:
                self._fill_list(getattr(message, name), name, _list(content), depth + 1)
            else:
                inner = getattr(message, name)
                inner.SetInParent()
                self.fill(inner, content, depth + 1)

    def _fill_list(self, items: Any, name: str, trees: list[Any], depth: int) -> None:
        for tree in trees:
            try:
                self.fill(items.add(), tree, depth)
                if name == "metrics" and not tree.get("name"):
                    raise ValueError("a metric has no name")
            except _ERRORS as error:
                if name not in _PARTS:
                    raise
                del items[-1]
                self.unreadable[f"it is not OTLP/JSON: {_reason(error)}"] += 1


def _reason(error: Exception) -> str:
    """The kind of an error and its text without values, which would give the counters of reasons too many names."""
    text = "" if isinstance(error, KeyError) else str(error).partition(":")[0]
    return f"{type(error).__name__}: {text}".removesuffix(": ")
