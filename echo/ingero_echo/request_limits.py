"""Limits on the structure of a request, because its length does not bound the work.

One `RequestBudget` is spent while a request is read: on resources, scopes and metrics as they are found, on
records before they are converted, on attributes as they are converted. Large requests are read on a thread of their
own, which lets the event loop run every few milliseconds.
"""

from typing import Any, Final

from ingero_kit.otlp_json import LEVELS
from ingero_kit.otlp_limits import RequestTooExpensive, check_density
from ingero_kit.otlp_signal import Encoding, Signal

MAX_FIELDS: Final = 640 << 10
"""Most bytes of a protobuf body that may be the tag of a string or message, where records are parsed one by one.

The parser builds all of them in one call, and nothing else runs meanwhile.
"""

MAX_VALUES: Final = 400_000
"""Most objects, lists and commas of a JSON body."""

MAX_MESSAGES: Final = 90_000
"""Most resources, scopes, records and attributes of a JSON body: 8,192 spans may have nine attributes each."""

MAX_RECORDS: Final = 150_000
"""Most records of a request."""

MAX_COST: Final = 256_000
"""Most work of one request, in units of at most a microsecond of a slow core.

A collector's batch of 8,192 points from 2,048 resources fits.
"""

BLOCK, SCOPE, METRIC, UNGROUPED_RECORD, NESTED, STEP = 18, 3, 3, 16, 3, 2
"""Work for each part; an attribute costs 1. `UNGROUPED_RECORD` is converted by itself, because there are too
few of its shape. `NESTED` is an event, link or quantile inside of a record. `STEP` is any other field on the way to
records."""

BUCKETS_PER_UNIT: Final = 8
"""Buckets of a histogram that cost one unit."""

MAX_UNGROUPED: Final = MAX_COST // UNGROUPED_RECORD
"""Most records of a request that are read one by one."""


class RequestBudget:
    """The remaining budget of one request."""

    def __init__(self) -> None:
        self.left = MAX_COST

    def spend(self, units: int) -> None:
        """Raise `RequestTooExpensive` when the budget is exceeded."""
        self.left -= units
        if self.left < 0:
            raise RequestTooExpensive(
                "the request holds too many resources, records and attributes: send smaller ones"
            )


def check_records(records: int) -> None:
    """Raise `RequestTooExpensive` when there are too many."""
    if records > MAX_RECORDS:
        raise RequestTooExpensive(f"the request holds more than {MAX_RECORDS} records: send smaller ones")


def check_ungrouped(records: int) -> None:
    """Raise `RequestTooExpensive` when there are too many to be read one by one."""
    if records > MAX_UNGROUPED:
        raise RequestTooExpensive(
            f"the request holds more than {MAX_UNGROUPED} records that are not alike: send smaller ones"
        )


def check_body(body: bytes, encoding: Encoding) -> None:
    """Raise `RequestTooExpensive` for a body that holds too many parts to be parsed."""
    check_density(body, encoding, MAX_FIELDS if encoding == "protobuf" else MAX_VALUES)


def check_message(signal: Signal, message: Any, budget: RequestBudget) -> None:
    """Spend for the resources, scopes, metrics and records of a parsed request, before they are converted."""
    outer, middle, inner = LEVELS[signal]
    blocks = getattr(message, outer)
    budget.spend(BLOCK * len(blocks))
    for block in blocks:
        scopes = getattr(block, middle)
        budget.spend(SCOPE * len(scopes))
        for scope in scopes:
            records = getattr(scope, inner)
            if signal is not Signal.METRICS:
                budget.spend(UNGROUPED_RECORD * len(records))
                continue
            budget.spend(METRIC * len(records))
            for metric in records:
                kind = metric.WhichOneof("data")
                if kind:
                    budget.spend(UNGROUPED_RECORD * len(getattr(metric, kind).data_points))
