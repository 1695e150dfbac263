"""No request may cost more than a part of a second, however it is built; a large one of honest nodes is taken."""

import contextlib
import struct
import time
from collections.abc import Callable
from functools import cache
from typing import Literal

import orjson
import pytest

from ingero_contract import attributes, metrics
from ingero_kit.health_report import HealthReport, MalformedPayload
from ingero_kit.otlp_decode import ReportDecoder
from ingero_kit.otlp_encode import encode_report, to_json
from ingero_kit.otlp_limits import ALWAYS_ALLOWED_BYTES, MAX_COST, RequestTooExpensive
from ingero_kit.otlp_limits import POINT as POINT_WORK
from ingero_kit.otlp_repair import MAX_PARTS
from ingero_kit.otlp_wire import write_varint
from ingero_testing.reports import NOW

Encoding = Literal["protobuf", "json"]


def part(number: int, content: bytes) -> bytes:
    return write_varint(number << 3 | 2) + write_varint(len(content)) + content


def metric(name: str, points: bytes) -> bytes:
    return part(1, part(2, part(2, part(1, name.encode()) + part(5, points))))


def text(key: str, value: str) -> bytes:
    return part(1, key.encode()) + part(2, part(1, value.encode()))


def named(node: str) -> bytes:
    return part(1, text(attributes.NODE_ID, node)) + part(1, text(attributes.CLUSTER_ID, "c"))


def blocks(count: int) -> list[bytes]:
    return [part(1, part(1, named(f"n{number}"))) for number in range(count)]


POINT = b"\x19" + bytes(8) + b"\x21" + struct.pack("<d", 0.5)

PROTOBUF: dict[str, Callable[[int], bytes]] = {
    "empty blocks": lambda count: b"\x0a\x00" * count,
    "empty scopes": lambda count: part(1, b"\x12\x00" * count),
    "empty metrics": lambda count: part(1, part(2, b"\x12\x00" * count)),
    "empty points": lambda count: metric("x", b"\x0a\x00" * count),
    "empty points of collectives": lambda count: metric(metrics.COLLECTIVE_DURATION, b"\x0a\x00" * count),
    "attributes of a score": lambda count: metric(metrics.HEALTH_SCORE, part(1, POINT + b"\x3a\x00" * count)),
    "attributes of a resource": lambda count: part(1, part(1, b"\x0a\x00" * count)),
    "a list in an attribute": lambda count: part(1, part(1, part(1, part(2, part(5, b"\x0a\x00" * count))))),
    "scores": lambda count: metric(metrics.HEALTH_SCORE, part(1, POINT) * count),
    "blocks of nodes": lambda count: b"".join(blocks(99)) * (count // 99),
    "unreadable points": lambda count: metric("x", part(1, b"\x3a\x03\x0a\x01\xff") * count),
    "an unreadable point behind many": lambda count: metric(
        "x", b"\x0a\x00" * count + part(1, b"\x3a\x03\x0a\x01\xff")
    ),
}

JSON: dict[str, Callable[[int], bytes]] = {
    "empty blocks": lambda count: b'{"resourceMetrics":[%b{}]}' % (b"{}," * count),
    "empty scopes": lambda count: b'{"resourceMetrics":[{"scopeMetrics":[%b{}]}]}' % (b"{}," * count),
    "numbers for blocks": lambda count: b'{"resourceMetrics":[%b0]}' % (b"0," * count),
    "letters for points": lambda count: (
        b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"x","gauge":{"dataPoints":"%b"}}]}]}]}'
        % (b"a" * count)
    ),
    "letters for metrics": lambda count: (
        b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":"%b"}]}]}' % (b"a" * count)
    ),
    "nested lists": lambda count: b'{"resourceMetrics":%b' % (b"[" * count),
}

SHAPES = [
    *(("protobuf", name, make) for name, make in PROTOBUF.items()),
    *(("json", name, make) for name, make in JSON.items()),
]


@cache
def honest(encoding: Encoding, nodes: int) -> bytes:
    """One request with the reports of many nodes, as a collector between joins them."""
    reports = [
        HealthReport(
            node_id=f"n{number}", cluster_id="c", score=0.9, throughput=0.9, compute=0.9, memory=0.9, cpu=0.9,
            rate=7.5, job_id="j", stage="s", gpu_model="H100", workload_type="training",
        )
        for number in range(nodes)
    ]  # fmt: skip
    if encoding == "protobuf":
        return b"".join(encode_report(report).SerializeToString() for report in reports)
    blocks = [orjson.loads(to_json(encode_report(report)))["resourceMetrics"][0] for report in reports]
    return orjson.dumps({"resourceMetrics": blocks})


def cost(encoding: Encoding, body: bytes) -> float:
    """Processor seconds that reading a request takes."""
    decoder, began = ReportDecoder(), time.process_time()
    with contextlib.suppress(MalformedPayload):
        decoder.decode(body, encoding, NOW)
    return time.process_time() - began


@cache
def yardstick(encoding: Encoding) -> float:
    """Processor seconds for a request with the reports of 400 honest nodes."""
    return max(cost(encoding, honest(encoding, 400)) for _ in range(3))


@pytest.mark.serial
@pytest.mark.parametrize("count", [6_000, 25_000, 2_000_000])
@pytest.mark.parametrize(("encoding", "shape", "make"), SHAPES, ids=[f"{kind}-{name}" for kind, name, _ in SHAPES])
def test_no_shape_costs_more_than_an_honest_request(
    encoding: Encoding, shape: str, make: Callable[[int], bytes], count: int
) -> None:
    body = make(count)
    if len(body) > 16 << 20:
        body = make(count // 8)

    assert any(cost(encoding, body) < 6 * yardstick(encoding) for _ in range(3))


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_a_large_request_of_honest_nodes_is_taken_whole(encoding: Encoding) -> None:
    body = honest(encoding, 700)
    assert len(body) > 10 * ALWAYS_ALLOWED_BYTES

    assert len(ReportDecoder().decode(body, encoding, NOW).reports) == 700


@pytest.mark.parametrize(
    ("encoding", "make"),
    [
        ("protobuf", lambda: b"\x0a\x00" * 8_000_000),
        ("protobuf", lambda: b"\x0a\x00" * 100_000),
        ("json", lambda: JSON["empty blocks"](100_000)),
        ("protobuf", lambda: honest("protobuf", 1000)),
        ("json", lambda: honest("json", 800)),
    ],
    ids=["empty blocks", "few empty blocks", "empty blocks in JSON", "nodes", "nodes in JSON"],
)
def test_a_request_for_too_much_is_refused_in_words(encoding: Encoding, make: Callable[[], bytes]) -> None:
    with pytest.raises(RequestTooExpensive, match="more"):
        ReportDecoder().decode(make(), encoding, NOW)


def test_what_was_mended_counts_as_work() -> None:
    """Each part of it is checked before it is read."""
    bad, good = part(1, b"\x3a\x03\x0a\x01\xff"), b"\x0a\x00"
    most = MAX_COST // POINT_WORK - 1000

    assert ReportDecoder().decode(metric("x", good * most), "protobuf", NOW).rejected == most
    with pytest.raises(RequestTooExpensive):
        ReportDecoder().decode(
            metric("x", good * 11_000 + bad) + metric("y", good * (most - 11_000)), "protobuf", NOW
        )


@pytest.mark.parametrize("count", [MAX_PARTS, 200_000])
def test_a_request_is_not_mended_without_end(count: int) -> None:
    with pytest.raises(MalformedPayload):
        ReportDecoder().decode(PROTOBUF["unreadable points"](count), "protobuf", NOW)
