"""Data points of OTLP in JSON, as the file exporter of a Collector writes requests, as rows. Pure.

Names and encoding: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from collections.abc import Iterator
from typing import Any, Final

_KINDS: Final = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")
_VALUES: Final = ("stringValue", "intValue", "doubleValue", "boolValue")
_PUSHED: Final = {
    "ingero.node.id": "node", "ingero.node.rank": "rank of the node", "ingero.cluster.id": "cluster",
    "ingero.node.state": "state",
}  # fmt: skip
"""Attributes of the pushes of agents, by what they are."""


def rows_of_request(found: dict[str, Any]) -> Iterator[dict[str, Any]] | None:
    """A row for each data point of a request to export metrics: its time in nanoseconds since 1970, its value, the
    name of the metric, and the attributes of the resource and of the point; `None` for any other object.

    The value of a histogram or summary is its mean. Points without a time or a value are left out.
    """
    resources = found.get("resourceMetrics")
    return _points(resources) if isinstance(resources, list) else None


def _points(resources: list[Any]) -> Iterator[dict[str, Any]]:
    for resource in _objects(resources):
        around = attributes_of(resource.get("resource"))
        for scope in _objects(resource.get("scopeMetrics")):
            for metric in _objects(scope.get("metrics")):
                for point in _points_of(metric):
                    time, value = point.get("timeUnixNano"), _value(point)
                    if time and value is not None:
                        named = {"time": str(time), "value": value, "metric": metric.get("name")}
                        yield named | around | attributes_of(point)


def _points_of(metric: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in _KINDS:
        if isinstance(held := metric.get(kind), dict):
            yield from _objects(held.get("dataPoints"))


def _value(point: dict[str, Any]) -> Any:
    single = point.get("asDouble", point.get("asInt"))
    if single is not None:
        return single
    try:
        total, count = float(point["sum"]), int(point["count"])
    except (KeyError, TypeError, ValueError):
        return None
    return total / count if count else None


def attributes_of(owner: Any) -> dict[str, Any]:
    """The attributes of a resource or a point by name; those of agents by what they are."""
    found = {}
    for pair in _objects(owner.get("attributes") if isinstance(owner, dict) else None):
        key, value = pair.get("key"), pair.get("value")
        if isinstance(key, str) and isinstance(value, dict):
            single = next((value[kind] for kind in _VALUES if kind in value), None)
            if single is not None:
                found[_PUSHED.get(key, key)] = single
    return found


def _objects(cells: Any) -> Iterator[dict[str, Any]]:
    return (each for each in cells if isinstance(each, dict)) if isinstance(cells, list) else iter(())
