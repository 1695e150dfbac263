"""No request costs Echo more than a part of a second, however it is built; the batches of collectors are taken."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Literal

import orjson
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ingero_echo.auth import Callers
from ingero_echo.ingest import decode_request
from ingero_echo.ingest_audit import IngestAudit
from ingero_echo.ingest_batch import Batch
from ingero_echo.ingest_handler import IngestHandler
from ingero_echo.records import MalformedRequest
from ingero_echo.retention import RetentionClock
from ingero_echo.writer import Writer
from ingero_kit.otlp_receiver import Push, Status
from ingero_kit.otlp_signal import Signal
from ingero_kit.otlp_wire import write_varint

NOW = 1_800_000_000 * 10**9
Encoding = Literal["protobuf", "json"]


def part(number: int, content: bytes) -> bytes:
    return write_varint(number << 3 | 2) + write_varint(len(content)) + content


def take(signal: Signal, encoding: Encoding, body: bytes) -> int:
    return len(decode_request(signal, encoding, body, "c", NOW, lambda cluster: True).identities)


def cost(signal: Signal, encoding: Encoding, body: bytes) -> float:
    """Processor seconds that a request takes."""
    began = time.process_time()
    with contextlib.suppress(MalformedRequest):
        take(signal, encoding, body)
    return time.process_time() - began


@cache
def spans(count: int, at: int = NOW) -> bytes:
    """A batch of spans, none of which can be read but by the parser."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for number in range(count):
        span = scope.spans.add(name=f"span-{number}", trace_id=bytes(16), span_id=bytes(8), start_time_unix_nano=at)
        span.attributes.add(key="k").value.string_value = "v"
    return request.SerializeToString()


@cache
def yardstick() -> float:
    """Processor seconds for a batch as collectors make them by default."""
    return max(cost(Signal.TRACES, "protobuf", spans(8192)) for _ in range(2))


def metric(content: bytes) -> bytes:
    return part(1, part(2, part(2, part(1, b"x") + content)))


def log(content: bytes) -> bytes:
    return part(1, part(2, part(2, content)))


def span(content: bytes) -> bytes:
    return part(1, part(2, part(2, content)))


PROTOBUF: dict[str, tuple[Signal, Callable[[int], bytes]]] = {
    "empty blocks": (Signal.LOGS, lambda count: b"\x0a\x00" * count),
    "empty scopes": (Signal.LOGS, lambda count: part(1, b"\x12\x00" * count)),
    "empty records": (Signal.LOGS, lambda count: part(1, part(2, b"\x12\x00" * count))),
    "records of two lengths": (
        Signal.LOGS,
        lambda count: part(1, part(2, b"\x12\x00\x12\x02\x10\x01" * (count // 3))),
    ),
    "scopes among records": (Signal.LOGS, lambda count: part(1, part(2, b"\x1a\x00" * count))),
    "attributes of one record": (Signal.LOGS, lambda count: log(b"\x32\x00" * count)),
    "a map in a body": (Signal.LOGS, lambda count: log(part(5, part(6, b"\x0a\x00" * count)))),
    "attributes of a scope": (Signal.LOGS, lambda count: part(1, part(2, part(1, b"\x1a\x00" * count)))),
    "attributes of a resource": (Signal.METRICS, lambda count: part(1, part(1, b"\x0a\x00" * count))),
    "a list in an attribute": (
        Signal.METRICS,
        lambda count: part(1, part(1, part(1, part(2, part(5, b"\x0a\x00" * count))))),
    ),
    "attributes of one point": (Signal.METRICS, lambda count: metric(part(5, part(1, b"\x3a\x00" * count)))),
    "an unreadable point behind many": (
        Signal.METRICS,
        lambda count: metric(part(5, b"\x0a\x00" * count + part(1, b"\x3a\x03\x0a\x01\xff"))),
    ),
    "buckets": (Signal.METRICS, lambda count: metric(part(9, part(1, part(6, bytes(count // 8 * 8)))))),
    "exponential buckets": (Signal.METRICS, lambda count: metric(part(10, part(1, part(8, part(2, bytes(count))))))),
    "quantiles": (Signal.METRICS, lambda count: metric(part(11, part(1, b"\x32\x00" * count)))),
    "empty metrics": (Signal.METRICS, lambda count: part(1, part(2, b"\x12\x00" * count))),
    "empty points": (Signal.METRICS, lambda count: metric(part(5, b"\x0a\x00" * count))),
    "names of one metric": (Signal.METRICS, lambda count: metric(b"\x0a\x00" * count)),
    "empty spans": (Signal.TRACES, lambda count: part(1, part(2, b"\x12\x00" * count))),
    "events of one span": (Signal.TRACES, lambda count: span(b"\x5a\x00" * count)),
    "links of one span": (Signal.TRACES, lambda count: span(b"\x6a\x00" * count)),
    "attributes of one event": (Signal.TRACES, lambda count: span(part(11, b"\x1a\x00" * count))),
}
JSON: dict[str, tuple[Signal, Callable[[int], bytes]]] = {
    "empty blocks": (Signal.LOGS, lambda count: b'{"resourceLogs":[%b{}]}' % (b"{}," * count)),
    "empty records": (
        Signal.LOGS,
        lambda count: b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[%b{}]}]}]}' % (b"{}," * count),
    ),
    "attributes of a resource": (
        Signal.LOGS,
        lambda count: b'{"resourceLogs":[{"resource":{"attributes":[%b{"key":""}]}}]}' % (b'{"key":""},' * count),
    ),
    "letters for records": (
        Signal.LOGS,
        lambda count: b'{"resourceLogs":[{"scopeLogs":[{"logRecords":"%b"}]}]}' % (b"a" * count),
    ),
}
SHAPES = [
    *(("protobuf", name, *shape) for name, shape in PROTOBUF.items()),
    *(("json", name, *shape) for name, shape in JSON.items()),
]


@pytest.mark.serial
@pytest.mark.parametrize("count", [16_000, 200_000, 5_000_000])
@pytest.mark.parametrize(
    ("encoding", "shape", "signal", "make"), SHAPES, ids=[f"{encoding}-{name}" for encoding, name, *_ in SHAPES]
)
def test_no_shape_costs_more_than_a_batch_of_a_collector(
    encoding: Encoding, shape: str, signal: Signal, make: Callable[[int], bytes], count: int
) -> None:
    body = make(count)

    assert any(cost(signal, encoding, body) < 4 * yardstick() for _ in range(3))


def test_a_batch_of_a_collector_is_taken_whole() -> None:
    assert take(Signal.TRACES, "protobuf", spans(8192)) == 8192


def test_a_batch_of_a_collector_is_taken_whole_in_json() -> None:
    attributes = [{"key": f"k{number}", "value": {"stringValue": "v"}} for number in range(8)]
    one = {
        "traceId": "00" * 16,
        "spanId": "00" * 8,
        "name": "s",
        "startTimeUnixNano": str(NOW),
        "attributes": attributes,
    }
    body = orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [one] * 8192}]}]})

    assert take(Signal.TRACES, "json", body) == 8192


def test_a_batch_of_points_from_many_resources_is_taken_whole() -> None:
    request = ExportMetricsServiceRequest()
    for number in range(2048):
        block = request.resource_metrics.add()
        for key in range(5):
            block.resource.attributes.add(key=f"k{key}").value.string_value = f"v{number}"
        scope = block.scope_metrics.add()
        for name in "wxyz":
            scope.metrics.add(name=name).gauge.data_points.add(time_unix_nano=NOW, as_double=1.0)

    assert take(Signal.METRICS, "protobuf", request.SerializeToString()) == 8192


def test_many_records_of_one_shape_are_taken_whole() -> None:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for number in range(50_000):
        records.add(time_unix_nano=NOW - number, event_name="e")

    assert take(Signal.LOGS, "protobuf", request.SerializeToString()) == 50_000


def test_too_many_records_are_refused_in_words() -> None:
    body = orjson.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [{}] * 20_000}]}]})

    with pytest.raises(MalformedRequest, match="send smaller ones"):
        take(Signal.LOGS, "json", body)


class Shelf(Writer):
    """A writer that only keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def check_room(self, size: int, sender: str, coming: Mapping[str, int]) -> None: ...

    def put(self, batch: Batch, size: int, sender: str = "") -> Future[int]:
        self.batches.append(batch)
        done: Future[int] = Future()
        done.set_result(0)
        return done


@pytest.mark.serial
def test_a_large_request_is_read_next_to_the_event_loop_and_in_order() -> None:
    shelf = Shelf()
    now = time.time_ns()
    clock = RetentionClock(None, now, time.monotonic_ns())
    intake = IngestHandler(Callers(None, 0.0), shelf, now / 1e9, clock, IngestAudit(lambda **_: None))
    counts = (8192, 8191, 500, 400)
    pushes = [Push(Signal.TRACES, "protobuf", spans(count, now)) for count in counts]

    async def push(request: Push) -> None:
        answer = intake(request)
        assert isinstance(answer, Awaitable)
        assert (await answer).status is Status.OK

    async def scenario() -> float:
        """Processor seconds of the loop's own thread."""
        began = time.thread_time()
        await asyncio.gather(*(push(request) for request in pushes))
        return time.thread_time() - began

    spent = asyncio.run(scenario())
    intake.close()

    assert spent < yardstick() / 4
    assert [len(batch.identities) for batch in shelf.batches] == list(counts)
