"""Converts OTLP attributes and numbers of data points, protobuf and JSON, to Python values. Pure.

Every reader of OTLP uses these functions. Each reader has its own loops over blocks, scopes and records, because each
is optimised differently: Fleet's pushes by learnt layouts, collectives by attributes left as bytes, Echo by columns.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

NO_RECORDED_VALUE: Final = 1
"""Flag of a data point that has no value."""


def attribute_value(value: AnyValue) -> Any:
    """The value of a protobuf attribute that is a string, number or boolean; `None` for any other type."""
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind in ("string_value", "int_value", "double_value", "bool_value") else None


def is_recorded(point: Any) -> bool:
    """Whether a point has a value and is not flagged as not recorded."""
    return not point.flags & NO_RECORDED_VALUE and bool(point.WhichOneof("value"))


# JSON: numbers are numbers or decimal text, as in protobuf's JSON mapping; other forms that Python reads are refused.

_INTEGER: Final = re.compile(r"-?\d{1,20}", re.ASCII)
_DOUBLE: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?|NaN|-?Infinity", re.ASCII)


def json_integer(value: Any) -> int:
    """A 64-bit integer of OTLP/JSON; raises `ValueError` for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise ValueError("a value is not an integer")


def json_double(value: Any) -> float:
    """A double of OTLP/JSON; raises `ValueError` for anything else."""
    if type(value) is float or type(value) is int:
        return float(value)
    if isinstance(value, str) and _DOUBLE.fullmatch(value):
        return float(value)
    raise ValueError("a value is not a number")


def json_number(point: dict[str, Any]) -> float | None:
    """The value of a data point of OTLP/JSON, `None` if it has none; raises `ValueError` if it is not a number."""
    number = point.get("asDouble")
    if number is not None:
        return json_double(number)
    number = point.get("asInt")
    return None if number is None else float(json_integer(number))


def json_int_field(point: dict[str, Any], name: str) -> int:
    """An integer field of an OTLP/JSON message, 0 if it is missing; raises `ValueError` for anything else."""
    value = point.get(name)
    return 0 if value is None else json_integer(value)


def json_list(value: Any) -> list[Any]:
    """A list of OTLP/JSON, empty if it is missing; raises `ValueError` for anything else."""
    if not isinstance(value, list | None):
        raise ValueError("a list was expected")
    return value or []


def json_attributes(found: list[dict[str, Any]] | None) -> Iterator[tuple[str, Any]]:
    """Keys and values of OTLP/JSON attributes."""
    for pair in found or ():
        yield pair["key"], json_attribute_value(pair.get("value") or {})


def json_attribute_value(value: dict[str, Any]) -> Any:
    """`attribute_value` for a JSON attribute; raises `ValueError` for a value of the wrong type."""
    text = value.get("stringValue")
    if text is not None:
        if not isinstance(text, str):
            raise ValueError("a stringValue is not a string")
        return text
    if value.get("intValue") is not None:
        return json_integer(value["intValue"])
    if value.get("doubleValue") is not None:
        return json_double(value["doubleValue"])
    flag = value.get("boolValue")
    if not isinstance(flag, bool | None):
        raise ValueError("a boolValue is not true or false")
    return flag
