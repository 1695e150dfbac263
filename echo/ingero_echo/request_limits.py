"""Limits on the structure of a request, because its length does not bound the work."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from pydantic.alias_generators import to_camel

from ingero_kit.otlp_limits import RequestTooExpensive, check_density
from ingero_kit.otlp_signal import Encoding, Signal

MAX_FIELDS: Final = 640 << 10
"""Most bytes of a protobuf body that may be the tag of a string or message, where records are parsed one by one.

The parser builds all of them in one call, and nothing else runs meanwhile.
"""

MAX_VALUES: Final = 1 << 19
"""Most objects, lists and commas of a JSON body."""

MAX_STEPS: Final = 1 << 17
"""Most resources, scopes, metrics and their parts; a resource counts as eight."""

MAX_RECORDS: Final = 200_000
"""Most records of a request."""

MAX_UNGROUPED: Final = 1 << 14
"""Most records of a request that are read one by one, because there are too few of their shape."""

_LEVELS: Final = {
    Signal.METRICS: ("resource_metrics", "scope_metrics", "metrics"),
    Signal.LOGS: ("resource_logs", "scope_logs", "log_records"),
    Signal.TRACES: ("resource_spans", "scope_spans", "spans"),
}
_DATA: Final = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")


class RequestBudget:
    """The remaining budget of one request; every method raises `RequestTooExpensive` when it is exceeded."""

    def __init__(self) -> None:
        self._steps, self._ungrouped = MAX_STEPS, MAX_UNGROUPED

    def spend(self, steps: int) -> None:
        """Walk over resources, scopes and metrics."""
        self._steps -= steps
        if self._steps < 0:
            raise RequestTooExpensive("the request holds too many resources, scopes and metrics: send smaller ones")

    def ungrouped(self, records: int) -> None:
        """Read records one by one."""
        self._ungrouped -= records
        if self._ungrouped < 0:
            raise RequestTooExpensive(
                f"the request holds more than {MAX_UNGROUPED} records that are not alike: send smaller ones"
            )


def check_records(records: int) -> None:
    """Raise `RequestTooExpensive` when there are too many."""
    if records > MAX_RECORDS:
        raise RequestTooExpensive(f"the request holds more than {MAX_RECORDS} records: send smaller ones")


def check_body(body: bytes, encoding: Encoding) -> None:
    """Raise `RequestTooExpensive` for a body that holds too many parts to be parsed."""
    check_density(body, encoding, MAX_FIELDS if encoding == "protobuf" else MAX_VALUES)


def check_message(signal: Signal, message: Any) -> None:
    """Raise `RequestTooExpensive` for a parsed request that takes too long to read."""
    _check_levels(signal, message, _LEVELS[signal], getattr, _point_lists)


def check_tree(signal: Signal, tree: Any) -> None:
    """The same for JSON, where what should be a list may be anything."""
    _check_levels(signal, tree, [to_camel(name) for name in _LEVELS[signal]], _items, _json_point_lists)


def _check_levels(
    signal: Signal,
    request: Any,
    levels: Sequence[str],
    items: Callable[[Any, str], Any],
    point_lists: Callable[[Any], Iterable[Any]],
) -> None:
    """Walk over resources, scopes and records or metrics; `items` gives a list by its name."""
    budget = RequestBudget()
    outer, middle, inner = levels
    blocks = items(request, outer)
    budget.spend(8 * len(blocks))
    for block in blocks:
        scopes = items(block, middle)
        budget.spend(len(scopes))
        for scope in scopes:
            records = items(scope, inner)
            if signal is not Signal.METRICS:
                budget.ungrouped(len(records))
                continue
            budget.spend(len(records))
            for metric in records:
                for points in point_lists(metric):
                    budget.ungrouped(len(points))


def _point_lists(metric: Any) -> Iterator[Any]:
    kind = metric.WhichOneof("data")
    if kind:
        yield getattr(metric, kind).data_points


def _json_point_lists(metric: Any) -> Iterator[Any]:
    for kind in _DATA if isinstance(metric, dict) else ():
        yield _items(metric.get(kind), "dataPoints")


def _items(outer: Any, name: str) -> list[Any]:
    """A list inside an object; raises `RequestTooExpensive` for anything else in its place."""
    found = outer.get(name) if isinstance(outer, dict) else None
    if not isinstance(found, list | None):
        raise RequestTooExpensive(f"the body is not OTLP/JSON: {name} is a list")
    return found or []
