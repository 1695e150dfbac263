"""Converts OTLP attributes and points in protobuf to Python values. JSON is converted to protobuf first. Pure."""

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
