"""Reports survive OTLP in both encodings, and rubbish is named, counted and costs nobody else anything."""

import math
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_contract import attributes, metrics
from ingero_kit.health_report import HealthReport, MalformedPayload
from ingero_kit.otlp import Decoder
from ingero_kit.otlp_encode import encode_event, encode_report, to_json
from ingero_testing.reports import NOW, REPORTS


def encode(report: HealthReport, encoding: str) -> bytes:
    request = encode_report(report)
    return request.SerializeToString() if encoding == "protobuf" else to_json(request)


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@given(report=REPORTS, rank=st.none() | st.integers(0, 7))
def test_a_report_survives_the_wire(
    encoding: Literal["protobuf", "json"], report: HealthReport, rank: int | None
) -> None:
    if rank is not None:
        report.rank, report.world_size = rank, 8

    decoded = Decoder().decode(encode(report, encoding), encoding, NOW)

    assert decoded.rejected == 0
    assert decoded.reports == [report]


def published(score: Any = 0.9, **changes: Any) -> dict[str, Any]:
    """A push as the published agent writes it: integers as numbers, no start time."""
    point = {
        "timeUnixNano": str(int(NOW * 1e9)),
        "asDouble": score,
        "attributes": [{"key": attributes.NODE_STATE, "value": {"stringValue": "active"}}],
    }
    resource = [
        {"key": attributes.NODE_ID, "value": {"stringValue": changes.get("node", "n1")}},
        {"key": attributes.CLUSTER_ID, "value": {"stringValue": "c1"}},
        {"key": attributes.WORLD_SIZE, "value": {"intValue": 8}},
        {"key": attributes.NODE_RANK, "value": {"intValue": "0"}},
    ]
    point.update(changes.get("point", {}))
    return {
        "resource": {"attributes": resource},
        "scopeMetrics": [
            {"metrics": [{"name": metrics.HEALTH_SCORE, "unit": "1", "gauge": {"dataPoints": [point]}}]}
        ],
    }


def test_the_published_dialect_of_json_is_read() -> None:
    body = orjson.dumps({"resourceMetrics": [published()]})

    (report,) = Decoder().decode(body, "json", NOW).reports

    assert (report.node_id, report.cluster_id, report.score, report.rank, report.world_size) == (
        "n1",
        "c1",
        0.9,
        0,
        8,
    )


def test_the_cluster_of_the_request_beats_that_of_the_payload() -> None:
    body = orjson.dumps({"resourceMetrics": [published()]})

    assert Decoder().decode(body, "json", NOW, "other").reports[0].cluster_id == "other"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        pytest.param(published(score=1.5), "between 0 and 1", id="score above 1"),
        pytest.param(published(score="NaN"), "between 0 and 1", id="score not a number"),
        pytest.param(published(point={"timeUnixNano": str(2**63)}), "future", id="far future"),
        pytest.param(published(point={"timeUnixNano": "-5"}), "1970", id="negative time"),
        pytest.param(published(node="a\r\nb"), "control characters", id="header injection"),
        pytest.param(published(node="x" * 10_000), "longer than", id="huge node id"),
        pytest.param(published(node=""), "is empty", id="no node id"),
    ],
)
def test_one_bad_report_is_named_and_the_others_are_taken(bad: dict[str, Any], words: str) -> None:
    body = orjson.dumps({"resourceMetrics": [published(), bad, published(node="n2")]})

    decoded = Decoder().decode(body, "json", NOW)

    assert [report.node_id for report in decoded.reports] == ["n1", "n2"]
    assert decoded.rejected == 1
    assert words in decoded.message


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.1])
def test_a_score_that_is_none_is_rejected_in_protobuf(score: float) -> None:
    body = encode_report(HealthReport(node_id="n", cluster_id="c", score=score)).SerializeToString()

    decoded = Decoder().decode(body, "protobuf", NOW)

    assert (decoded.reports, decoded.rejected) == ([], 1)


@given(st.binary(max_size=400), st.sampled_from(["protobuf", "json"]))
def test_any_bytes_are_read_or_refused_in_words(body: bytes, encoding: Literal["protobuf", "json"]) -> None:
    try:
        Decoder().decode(body, encoding, NOW)
    except MalformedPayload as error:
        assert "the body" in str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["resourceMetrics", "resource", "attributes", "scopeMetrics", "metrics", "name", "gauge", "dataPoints",
             "asDouble", "asInt", "timeUnixNano", "key", "value", "stringValue", "intValue"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=30,
)  # fmt: skip


@given(JSON)
def test_any_json_is_read_or_refused_in_words(tree: Any) -> None:
    try:
        body = orjson.dumps({"resourceMetrics": [tree]})
    except TypeError:
        return
    try:
        Decoder().decode(body, "json", NOW)
    except MalformedPayload as error:
        assert "the body" in str(error)


def test_the_memory_of_resource_blocks_is_bounded() -> None:
    decoder = Decoder(remembered=10)

    for number in range(100):
        decoder.decode(
            encode_report(HealthReport(node_id=f"n{number}", cluster_id="c")).SerializeToString(), "protobuf", NOW
        )

    assert len(decoder._resources) <= 10


def test_a_straggler_event_is_no_health_report() -> None:
    event = encode_event(
        node_id="n", cluster_id="c", straggler=True, detection_mode="fleet", threshold=0.8, score=0.2,
        dominant_signal="throughput", event_id="e", time_unix_nano=1, world_size=8, rank=0,
    )  # fmt: skip

    decoded = Decoder().decode(event.SerializeToString(), "protobuf", NOW)

    assert (decoded.reports, decoded.events) == ([], [("n", "c", True)])
