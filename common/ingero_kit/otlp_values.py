"""Converts OTLP attributes and numbers of data points, protobuf and JSON, to Python values. Pure.

JSON is converted to protobuf messages (`otlp_json`), so that every reader has one loop for both encodings.
"""

import re
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


def json_list(value: Any) -> list[Any]:
    """A list of OTLP/JSON, empty if it is missing; raises `ValueError` for anything else."""
    if not isinstance(value, list | None):
        raise ValueError("a list was expected")
    return value or []
