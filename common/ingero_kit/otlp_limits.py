"""Limits the work of one request by its structure, not only by its length. Pure.

A few compressed kilobytes can hold millions of empty blocks. Two limits keep every request below a fraction of a
second. Before a body is parsed, the bytes that may begin a part are counted. Before a large body is read, its blocks,
scopes, metrics, points and attributes are counted.
"""

from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_kit.health_report import MalformedPayload
from ingero_kit.otlp_signal import Encoding

ALWAYS_ALLOWED_BYTES: Final = 16 << 10
"""Bodies up to this length, bytes, are too small to be checked."""

MAX_FIELDS: Final = 640 << 10
"""Most bytes of a protobuf body that may be the tag of a string or message; usual content of 5 MB has as many."""

MAX_JSON_VALUES: Final = 256 << 10
"""Most objects, lists and commas of a JSON body."""

MAX_COST: Final = 240_000
"""Most work of one request, in units of about half a microsecond."""

MAX_JSON_COST: Final = 215_000
"""The same for JSON, whose parts take somewhat longer."""

MAX_MESSAGES: Final = 1 << 17
"""Most objects of a JSON body that are converted to protobuf messages."""

BLOCK, SCOPE, METRIC, POINT, ATTRIBUTE, PART = 20, 9, 11, 8, 3, 8
"""Work for each part that is read; a collector's protobuf batch of 8,192 points stays below the limit. A `PART` is
parsed by itself because the request as a whole is unreadable."""

RESOURCE_ATTRIBUTE: Final = 4
"""An attribute of a resource costs more than one of a point, because all of them form the identity of a node."""

_TAGS: Final = bytes(byte for byte in range(256) if byte & 7 == 2)
_MARKS: Final = b"{[,"
_PIECE: Final = 1 << 18


class RequestTooExpensive(MalformedPayload):
    """The request needs more work than the limit allows."""


def check_density(body: bytes, encoding: Encoding, most: int | None = None) -> None:
    """Raise `RequestTooExpensive` for a body of too many parts; reads every byte at most once."""
    if len(body) <= ALWAYS_ALLOWED_BYTES:
        return
    marks, usual = (_TAGS, MAX_FIELDS) if encoding == "protobuf" else (_MARKS, MAX_JSON_VALUES)
    most = usual if most is None else most
    if len(body) <= most:
        return
    found = 0
    for start in range(0, len(body), _PIECE):
        piece = body[start : start + _PIECE]
        found += len(piece) - len(piece.translate(None, marks))
        if found > most:
            raise RequestTooExpensive(f"the body holds more than {most} parts: send smaller requests")


class CostBudget:
    """The work that one request may still cost."""

    def __init__(self, units: int = MAX_COST) -> None:
        self._left = units

    def spend(self, units: int) -> None:
        """Subtract from the budget; raises `RequestTooExpensive` when it is used up."""
        self._left -= units
        if self._left < 0:
            raise RequestTooExpensive(
                "the body holds more blocks, metrics, points and attributes than one request may"
            )


def check_cost(request: ExportMetricsServiceRequest, encoding: Encoding, repaired: int = 0) -> None:
    """Raise `RequestTooExpensive` for metrics that cost too much to read; `repaired` parts of them were repaired."""
    spend = CostBudget((MAX_COST if encoding == "protobuf" else MAX_JSON_COST) - PART * repaired).spend
    spend(BLOCK * len(request.resource_metrics))
    for block in request.resource_metrics:
        spend(SCOPE * len(block.scope_metrics) + RESOURCE_ATTRIBUTE * len(block.resource.attributes))
        for scope in block.scope_metrics:
            spend(METRIC * len(scope.metrics))
            for metric in scope.metrics:
                points = metric.gauge.data_points or metric.sum.data_points
                spend(POINT * len(points))
                for point in points:
                    spend(ATTRIBUTE * len(point.attributes))
