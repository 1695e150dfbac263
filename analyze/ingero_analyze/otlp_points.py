"""Data points of OTLP in JSON, as the file exporter of a Collector writes requests, as rows. Pure.

Names and encoding: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from collections.abc import Iterator
from typing import Any, Final

_KINDS: Final = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")
_CUMULATIVE: Final = (2, "AGGREGATION_TEMPORALITY_CUMULATIVE")
_VALUES: Final = ("stringValue", "intValue", "doubleValue", "boolValue")
_PUSHED: Final = {
    "ingero.node.id": "node", "ingero.node.rank": "rank of the node", "ingero.cluster.id": "cluster",
    "ingero.node.state": "state",
}  # fmt: skip
"""Attributes of the pushes of agents, by what they are."""


Totals = dict[tuple[str, ...], tuple[float, int]]
"""By series of a cumulative histogram its last sum and count."""


def rows_of_request(found: dict[str, Any], before: Totals | None = None) -> Iterator[dict[str, Any]] | None:
    """A row for each data point of a request to export metrics: its time in nanoseconds since 1970, its value, the
    name of the metric, and the attributes of the resource and of the point; `None` for any other object.

    The value of a histogram or summary is its mean, of a cumulative histogram that since the point of the same series
    in the requests before, which `before` keeps. Points without a time or a value are left out.
    """
    resources = found.get("resourceMetrics")
    return _points(resources, {} if before is None else before) if isinstance(resources, list) else None


def _points(resources: list[Any], before: Totals) -> Iterator[dict[str, Any]]:
    for resource in _objects(resources):
        around = attributes_of(resource.get("resource"))
        for scope in _objects(resource.get("scopeMetrics")):
            for metric in _objects(scope.get("metrics")):
                cumulative = _temporality(metric) in _CUMULATIVE
                for point in _points_of(metric):
                    labels = around | attributes_of(point)
                    if cumulative:
                        key = (str(metric.get("name")), *sorted(f"{name}={text}" for name, text in labels.items()))
                        point = _since(point, before, key)
                    time, value = point.get("timeUnixNano"), _value(point)
                    if time and value is not None:
                        yield {"time": str(time), "value": value, "metric": metric.get("name")} | labels


def _points_of(metric: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in _KINDS:
        if isinstance(held := metric.get(kind), dict):
            yield from _objects(held.get("dataPoints"))


def _temporality(metric: dict[str, Any]) -> Any:
    """Of what time the points of a histogram are; `None` for any other metric."""
    held = metric.get("histogram") or metric.get("exponentialHistogram")
    return held.get("aggregationTemporality") if isinstance(held, dict) else None


def _since(point: dict[str, Any], before: Totals, key: tuple[str, ...]) -> dict[str, Any]:
    """A point of a cumulative histogram as one of what came since the last one; the point itself where it is the
    first one, or begins anew."""
    try:
        total, count = float(point["sum"]), int(point["count"])
    except (KeyError, TypeError, ValueError):
        return point
    last = before.get(key)
    before[key] = (total, count)
    if last is None or count < last[1] or total < last[0]:
        return point
    return point | {"sum": total - last[0], "count": count - last[1]}


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
