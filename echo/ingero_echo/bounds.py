"""How much one request may ask of Echo, by its structure and not only by its length."""

from typing import Any, Final

from pydantic.alias_generators import to_camel

from ingero_kit.otlp_limits import RequestTooExpensive, check_density
from ingero_kit.otlp_receiver import Encoding, Signal

MOST_FIELDS: Final = 640 << 10
"""Most bytes of a protobuf body that may be the tag of a string or message, where records are parsed one by one.

The parser builds them all in one piece, and nothing else runs meanwhile.
"""

MOST_VALUES: Final = 1 << 19
"""Most objects, lists and commas of a JSON body."""

MOST_STEPS: Final = 1 << 17
"""Most resources, scopes, metrics and their parts; a resource counts as eight."""

MOST_RECORDS: Final = 200_000
"""Most records of a request."""

MOST_SINGLE: Final = 1 << 14
"""Most records of a request that are read one by one, because there are too few of their shape."""

_LISTS: Final = {
    Signal.METRICS: ("resource_metrics", "scope_metrics", "metrics"),
    Signal.LOGS: ("resource_logs", "scope_logs", "log_records"),
    Signal.TRACES: ("resource_spans", "scope_spans", "spans"),
}
_DATA: Final = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")


class Allowance:
    """What one request may still ask for; every method raises `RequestTooExpensive` when it is more."""

    def __init__(self) -> None:
        self._steps, self._single = MOST_STEPS, MOST_SINGLE

    def spend(self, steps: int) -> None:
        """Walk over resources, scopes and metrics."""
        self._steps -= steps
        if self._steps < 0:
            raise RequestTooExpensive("the request holds too many resources, scopes and metrics: send smaller ones")

    def single(self, records: int) -> None:
        """Read records one by one."""
        self._single -= records
        if self._single < 0:
            raise RequestTooExpensive(
                f"the request holds more than {MOST_SINGLE} records that are not alike: send smaller ones"
            )


def check_records(records: int) -> None:
    """Raise `RequestTooExpensive` when there are too many."""
    if records > MOST_RECORDS:
        raise RequestTooExpensive(f"the request holds more than {MOST_RECORDS} records: send smaller ones")


def check_body(body: bytes, encoding: Encoding) -> None:
    """Raise `RequestTooExpensive` for a body that holds too many parts to be parsed."""
    check_density(body, encoding, MOST_FIELDS if encoding == "protobuf" else MOST_VALUES)


def check_message(signal: Signal, message: Any) -> None:
    """Raise `RequestTooExpensive` for a parsed request that takes too long to read."""
    allowance = Allowance()
    outer, middle, inner = _LISTS[signal]
    blocks = getattr(message, outer)
    allowance.spend(8 * len(blocks))
    for block in blocks:
        scopes = getattr(block, middle)
        allowance.spend(len(scopes))
        for scope in scopes:
            records = getattr(scope, inner)
            if signal is not Signal.METRICS:
                allowance.single(len(records))
                continue
            allowance.spend(len(records))
            for metric in records:
                kind = metric.WhichOneof("data")
                allowance.single(len(getattr(metric, kind).data_points) if kind else 0)


def check_tree(signal: Signal, tree: Any) -> None:
    """The same for JSON, where what should be a list may be anything."""
    allowance = Allowance()
    outer, middle, inner = (to_camel(name) for name in _LISTS[signal])
    blocks = _items(tree, outer)
    allowance.spend(8 * len(blocks))
    for block in blocks:
        scopes = _items(block, middle)
        allowance.spend(len(scopes))
        for scope in scopes:
            records = _items(scope, inner)
            if signal is not Signal.METRICS:
                allowance.single(len(records))
                continue
            allowance.spend(len(records))
            for metric in records:
                for kind in _DATA if isinstance(metric, dict) else ():
                    allowance.single(len(_items(metric.get(kind), "dataPoints")))


def _items(outer: Any, name: str) -> list[Any]:
    """A list inside an object; raises `RequestTooExpensive` for anything else in its place."""
    found = outer.get(name) if isinstance(outer, dict) else None
    if not isinstance(found, list | None):
        raise RequestTooExpensive(f"the body is not OTLP/JSON: {name} is a list")
    return found or []
