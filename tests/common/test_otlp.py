"""Reports survive OTLP in both encodings, and rubbish is named, counted and costs nobody else anything."""

import math
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_contract import attributes, metrics
from ingero_contract.events import StragglerStateEvent
from ingero_kit.health_report import HealthReport, MalformedPayload
from ingero_kit.otlp_decode import ReportDecoder
from ingero_kit.otlp_encode import encode_event, encode_report, to_json
from ingero_kit.otlp_wire import write_varint
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

    decoded = ReportDecoder().decode(encode(report, encoding), encoding, NOW)

    assert decoded.rejected == 0
    assert decoded.reports == [report]


def test_a_rank_that_is_not_known_is_not_sent_as_rank_zero() -> None:
    report = HealthReport(node_id="n", cluster_id="c", world_size=8)
    (decoded,) = ReportDecoder().decode(encode(report, "protobuf"), "protobuf", NOW).reports
    assert (decoded.world_size, decoded.rank) == (8, None)


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

    (report,) = ReportDecoder().decode(body, "json", NOW).reports

    assert (report.node_id, report.cluster_id, report.score, report.rank, report.world_size) == (
        "n1",
        "c1",
        0.9,
        0,
        8,
    )


def test_the_cluster_of_the_request_beats_that_of_the_payload() -> None:
    body = orjson.dumps({"resourceMetrics": [published()]})

    assert ReportDecoder().decode(body, "json", NOW, "other").reports[0].cluster_id == "other"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        pytest.param(published(score=1.5), "between 0 and 1", id="score above 1"),
        pytest.param(published(score="NaN"), "between 0 and 1", id="score not a number"),
        pytest.param(published(point={"timeUnixNano": str(2**63)}), "future", id="far future"),
        pytest.param(published(point={"timeUnixNano": "-5"}), "out of range", id="negative time"),
        pytest.param(published(node="a\r\nb"), "control characters", id="header injection"),
        pytest.param(published(node="x" * 10_000), "longer than", id="huge node id"),
        pytest.param(published(node=""), "is empty", id="no node id"),
    ],
)
def test_one_bad_report_is_named_and_the_others_are_taken(bad: dict[str, Any], words: str) -> None:
    body = orjson.dumps({"resourceMetrics": [published(), bad, published(node="n2")]})

    decoded = ReportDecoder().decode(body, "json", NOW)

    assert [report.node_id for report in decoded.reports] == ["n1", "n2"]
    assert decoded.rejected == 1
    assert words in decoded.message


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.1])
def test_a_score_that_is_none_is_rejected_in_protobuf(score: float) -> None:
    body = encode_report(HealthReport(node_id="n", cluster_id="c", score=score)).SerializeToString()

    decoded = ReportDecoder().decode(body, "protobuf", NOW)

    assert (decoded.reports, decoded.rejected) == ([], 1)


@given(st.binary(max_size=400), st.sampled_from(["protobuf", "json"]))
def test_any_bytes_are_read_or_refused_in_words(body: bytes, encoding: Literal["protobuf", "json"]) -> None:
    try:
        ReportDecoder().decode(body, encoding, NOW)
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
        ReportDecoder().decode(body, "json", NOW)
    except MalformedPayload as error:
        assert "the body" in str(error)


def test_the_memory_of_resource_blocks_is_bounded() -> None:
    decoder = ReportDecoder(remembered=10)

    for number in range(100):
        decoder.decode(
            encode_report(HealthReport(node_id=f"n{number}", cluster_id="c")).SerializeToString(), "protobuf", NOW
        )

    assert len(decoder._resources) <= 10


def test_a_straggler_event_is_no_health_report() -> None:
    event = StragglerStateEvent(
        node_id="n", cluster_id="c", detection_mode="fleet", threshold=0.8, score=0.2, dominant_signal="throughput",
        timestamp="", event_id="e", world_size=8, rank=0,
    )  # fmt: skip
    request = encode_event(event, straggler=True, time_unix_nano=1)

    decoded = ReportDecoder().decode(request.SerializeToString(), "protobuf", NOW)

    assert (decoded.reports, decoded.events) == ([], [("n", "c", True)])


def points_of(report: HealthReport, name: str) -> tuple[Any, Any]:
    """A push, and the only point of one of its metrics."""
    request = encode_report(report)
    (found,) = (m for m in request.resource_metrics[0].scope_metrics[0].metrics if m.name == name)
    return request, found.gauge.data_points[0]


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@pytest.mark.parametrize("name", [metrics.HEALTH_SCORE, metrics.THROUGHPUT_RATE])
@pytest.mark.parametrize("flagged", [True, False])
def test_a_value_that_was_not_recorded_is_none_and_not_zero(
    encoding: Literal["protobuf", "json"], name: str, flagged: bool
) -> None:
    request, point = points_of(HealthReport(node_id="n", cluster_id="c", score=0.9, rate=5.0), name)
    if flagged:
        point.flags = 1
    else:
        point.ClearField("as_double")
    body = request.SerializeToString() if encoding == "protobuf" else to_json(request)
    decoder = ReportDecoder()

    for _ in range(3):
        decoded = decoder.decode(body, encoding, NOW)

        if name == metrics.HEALTH_SCORE:
            assert decoded.reports == []
        else:
            assert [(report.score, report.rate) for report in decoded.reports] == [(0.9, None)]
        assert decoded.rejected == (0 if flagged else 1)


@pytest.mark.parametrize("size", [2**31, 2**40, 2**62, -1])
@pytest.mark.parametrize("key", [attributes.WORLD_SIZE, attributes.NODE_RANK])
def test_a_rank_that_no_job_has_is_taken_for_none_and_a_world_size_for_the_largest(key: str, size: int) -> None:
    request = encode_report(HealthReport(node_id="n", cluster_id="c", world_size=8, rank=3))
    for pair in request.resource_metrics[0].resource.attributes:
        if pair.key == key:
            pair.value.int_value = size

    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        if metric.name == metrics.WORLD_SIZE_GAUGE:
            metric.gauge.data_points[0].as_int = size if key == attributes.WORLD_SIZE else 8

    (report,) = ReportDecoder().decode(request.SerializeToString(), "protobuf", NOW).reports

    largest = 2**31 - 1 if size > 0 else 0
    assert (report.rank, report.world_size) == ((3, largest) if key == attributes.WORLD_SIZE else (None, 8))


def test_a_second_resource_in_a_block_does_not_rename_the_nodes_of_others() -> None:
    victim = encode_report(HealthReport(node_id="victim", cluster_id="c", score=0.9))
    other = encode_report(HealthReport(node_id="other", cluster_id="c", score=0.1))
    block = victim.resource_metrics[0]
    resources = [item.resource_metrics[0].resource.SerializeToString() for item in (victim, other)]
    scope = block.scope_metrics[0].SerializeToString()
    inner = b"".join(b"\x0a" + write_varint(len(item)) + item for item in resources)
    inner += b"\x12" + write_varint(len(scope)) + scope
    decoder = ReportDecoder()

    for _ in range(3):
        decoder.decode(b"\x0a" + write_varint(len(inner)) + inner, "protobuf", NOW)
        (report,) = decoder.decode(victim.SerializeToString(), "protobuf", NOW).reports
        assert report.node_id == "victim"


@pytest.mark.parametrize("key", ["resource", "\\u0072esource"])
def test_a_second_resource_in_json_does_not_rename_the_nodes_of_others(key: str) -> None:
    victim = to_json(encode_report(HealthReport(node_id="victim", cluster_id="c", score=0.9)))
    other = victim.replace(b"victim", b"other")
    resource = orjson.dumps(orjson.loads(other)["resourceMetrics"][0]["resource"])
    assert victim.endswith(b"]}]}")
    forged = victim[:-3] + b',"%b":%b}]}' % (key.encode(), resource)
    decoder = ReportDecoder()

    for _ in range(3):
        assert decoder.decode(forged, "json", NOW).reports[0].node_id == "other"
        assert decoder.decode(victim, "json", NOW).reports[0].node_id == "victim"


def broken(place: str) -> bytes:
    """A push of three nodes, the second of which says something that is no UTF-8."""
    middle = encode_report(HealthReport(node_id="n2", cluster_id="c", score=0.9, job_id="JJJJ"))
    scope = middle.resource_metrics[0].scope_metrics[0]
    scope.scope.name = "SSSS"
    scope.metrics[0].description = "DDDD"
    scope.metrics[1].name = "MMMM"
    scope.metrics[0].gauge.data_points[0].attributes.add(key="k").value.string_value = "PPPP"
    around = [encode_report(HealthReport(node_id=name, cluster_id="c", score=0.9)) for name in ("n1", "n3")]
    bad = middle.SerializeToString().replace(place.encode() * 4, b"\xff\xfe\xfd\xfc")
    return around[0].SerializeToString() + bad + around[1].SerializeToString()


@pytest.mark.parametrize(
    ("place", "nodes", "rejected"),
    [
        pytest.param("J", ["n1", "n2", "n3"], 0, id="a label of a node"),
        pytest.param("S", ["n1", "n2", "n3"], 0, id="the name of a scope"),
        pytest.param("D", ["n1", "n2", "n3"], 0, id="a description"),
        pytest.param("M", ["n1", "n2", "n3"], 1, id="the name of a metric"),
        pytest.param("P", ["n1", "n3"], 1, id="an attribute of the score"),
    ],
)
def test_a_string_that_is_no_text_costs_only_what_it_belongs_to(place: str, nodes: list[str], rejected: int) -> None:
    decoded = ReportDecoder().decode(broken(place), "protobuf", NOW)

    assert [report.node_id for report in decoded.reports] == nodes
    assert decoded.rejected == rejected
    assert "UTF-8" in decoded.message
    assert decoded.repaired is not None
    assert ReportDecoder().decode(decoded.repaired, "protobuf", NOW).reports == decoded.reports


def test_bytes_that_are_no_text_cost_nobody_else_anything_in_json() -> None:
    body = orjson.dumps({"resourceMetrics": [published(node="n1"), published(node="n2"), published(node="n3")]})

    decoded = ReportDecoder().decode(body.replace(b"n2", b"n\xff"), "json", NOW)

    assert [report.node_id for report in decoded.reports] == ["n1", "n3"]
    assert decoded.rejected == 1


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_a_metric_without_a_name_is_reported_and_the_others_are_taken(encoding: Literal["protobuf", "json"]) -> None:
    request = encode_report(HealthReport(node_id="n", cluster_id="c", score=0.9))
    request.resource_metrics[0].scope_metrics[0].metrics[1].ClearField("name")
    body = request.SerializeToString() if encoding == "protobuf" else to_json(request)

    decoded = ReportDecoder().decode(body, encoding, NOW)

    assert len(decoded.reports) == 1
    assert decoded.rejected == 1
    assert decoded.message.endswith("a metric has no name (1)")


@pytest.mark.parametrize(
    "point",
    [
        {"asDouble": "0_9"}, {"asDouble": " 0.9"}, {"asDouble": "nan"}, {"asDouble": "\uff11"}, {"asDouble": True},
        {"asDouble": [1]}, {"asDouble": None, "asInt": 0.5}, {"asDouble": None, "asInt": "0x1"},
        {"asDouble": None, "asInt": True}, {"timeUnixNano": "1_000"}, {"timeUnixNano": 1.5},
        {"timeUnixNano": "9" * 5000},
        {"timeUnixNano": {}},
    ],
)  # fmt: skip
def test_what_only_python_takes_for_a_number_is_refused_and_the_others_are_taken(point: dict[str, Any]) -> None:
    body = orjson.dumps({"resourceMetrics": [published(node="n1"), published(point=point), published(node="n3")]})

    decoded = ReportDecoder().decode(body, "json", NOW)

    assert [report.node_id for report in decoded.reports] == ["n1", "n3"]
    assert decoded.rejected == 1


@pytest.mark.parametrize("value", ["0.50", 0.5, "5e-1", "5E-1"])
def test_a_double_in_json_is_a_number_or_its_text(value: Any) -> None:
    body = orjson.dumps({"resourceMetrics": [published(score=value)]})

    assert ReportDecoder().decode(body, "json", NOW).reports[0].score == 0.5


def test_the_later_of_two_scores_in_a_push_counts_in_whatever_order_they_come() -> None:
    request, point = points_of(
        HealthReport(node_id="n", cluster_id="c", score=0.9, time_unix_nano=int(NOW * 1e9)), metrics.HEALTH_SCORE
    )
    found = next(m for m in request.resource_metrics[0].scope_metrics[0].metrics if m.name == metrics.HEALTH_SCORE)
    older = found.gauge.data_points.add()
    older.CopyFrom(point)
    older.as_double, older.time_unix_nano = 0.1, point.time_unix_nano - 10**9

    (report,) = ReportDecoder().decode(request.SerializeToString(), "protobuf", NOW).reports

    assert report.score == 0.9
