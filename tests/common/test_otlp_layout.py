"""Reading by shape gives what a full parse gives, for every push and every damage to it."""

import random
import struct
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero_kit.health_report import DecodedReports, HealthReport, MalformedPayload
from ingero_kit.otlp_decode import ReportDecoder
from ingero_kit.otlp_encode import encode_report, to_json
from ingero_testing.reports import NOW, REPORTS

Encoding = Literal["protobuf", "json"]
BOTH = pytest.mark.parametrize("encoding", ["protobuf", "json"])


def read(
    decoder: ReportDecoder, body: bytes, cluster: str = "", encoding: Encoding = "protobuf"
) -> DecodedReports | str:
    try:
        return decoder.decode(body, encoding, NOW, cluster)
    except MalformedPayload:
        return "malformed"


def encoded(report: HealthReport, encoding: Encoding = "protobuf") -> bytes:
    request = encode_report(report)
    return request.SerializeToString() if encoding == "protobuf" else to_json(request)


@BOTH
@given(reports=st.lists(REPORTS, min_size=2, max_size=6), cluster=st.sampled_from(["", "other"]))
def test_a_decoder_that_has_learnt_reads_as_one_that_has_not(
    encoding: Encoding, reports: list[HealthReport], cluster: str
) -> None:
    learnt = ReportDecoder()
    for report in reports * 2:
        body = encoded(report, encoding)
        assert read(learnt, body, cluster, encoding) == read(ReportDecoder(), body, cluster, encoding)


@BOTH
@given(first=REPORTS, second=REPORTS)
def test_new_numbers_in_a_known_shape_are_read(encoding: Encoding, first: HealthReport, second: HealthReport) -> None:
    learnt = ReportDecoder()
    read(learnt, encoded(first, encoding), "", encoding)
    for name in ("score", "throughput", "compute", "memory", "cpu", "rate", "time_unix_nano", "degraded"):
        if getattr(first, name) is not None and getattr(second, name) is not None:
            setattr(first, name, getattr(second, name))

    body = encoded(first, encoding)
    assert read(learnt, body, "", encoding) == read(ReportDecoder(), body, "", encoding)


@settings(max_examples=300)
@given(REPORTS, st.integers(0, 2**32), st.integers(0, 255), st.sampled_from(["flip", "drop", "insert", "number"]))
def test_any_damage_is_seen_by_both_alike(report: HealthReport, seed: int, value: int, kind: str) -> None:
    body = encoded(report)
    learnt = ReportDecoder()
    read(learnt, body)
    damaged = bytearray(body)
    at = random.Random(seed).randrange(len(body))
    if kind == "flip":
        damaged[at] = value
    elif kind == "drop":
        del damaged[at]
    elif kind == "insert":
        damaged.insert(at, value)
    else:
        odd = [float("nan"), float("inf"), -1.0, 1e308, 5e-324]
        damaged[at : at + 8] = struct.pack("<d", odd[value % len(odd)])

    assert read(learnt, bytes(damaged)) == read(ReportDecoder(), bytes(damaged))


@settings(max_examples=300)
@given(REPORTS, st.integers(0, 2**32), st.sampled_from([*"0123456789.eE+-\"'{}[],: n\\", '"resource":', "NaN"]))
def test_any_damage_to_json_is_seen_by_both_alike(report: HealthReport, seed: int, text: str) -> None:
    body = encoded(report, "json")
    learnt = ReportDecoder()
    read(learnt, body, "", "json")
    at = random.Random(seed).randrange(len(body))
    damaged = body[:at] + text.encode() + body[at + seed % 2 :]

    assert read(learnt, damaged, "", "json") == read(ReportDecoder(), damaged, "", "json")


@given(REPORTS, st.integers(1, 2**63), st.integers(1, 2**63), st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_times_in_json_may_differ_and_may_resemble_other_text(
    report: HealthReport, first: int, second: int, changed: int, also: int, spoken: bool
) -> None:
    report.time_unix_nano, report.score = first, 0.5
    report.cgroup_path_hash = str(first) if spoken else "h"
    learnt = ReportDecoder()
    read(learnt, encoded(report, "json"), "", "json")
    parts = encoded(report, "json").split(str(first).encode())
    others = [str(second if at in (changed % len(parts), also % len(parts)) else first) for at in range(len(parts))]
    mixed = b"".join(part + other.encode() for part, other in zip(parts[:-1], others, strict=False)) + parts[-1]
    all_changed = str(second).encode().join(parts)

    for body in (mixed, all_changed):
        assert read(learnt, body, "", "json") == read(ReportDecoder(), body, "", "json")


@BOTH
def test_the_second_push_of_a_node_is_read_by_its_shape(encoding: Encoding, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt = ReportDecoder()
    first, second = (
        encoded(
            HealthReport(node_id="a", cluster_id="c", score=score, world_size=8, rank=1, time_unix_nano=9), encoding
        )
        for score in (0.5, 0.6)
    )
    read(learnt, first, "", encoding)
    monkeypatch.setattr(learnt, "_parse", None)

    got = read(learnt, second, "", encoding)

    assert isinstance(got, DecodedReports)
    assert (got.reports[0].score, got.reports[0].world_size) == (0.6, 8)


def test_shapes_are_bounded() -> None:
    learnt = ReportDecoder()
    for number in range(2000):
        read(
            learnt,
            encoded(HealthReport(node_id="a", cluster_id="c", workload_type="w" * (number % 200) + str(number))),
        )

    assert len(learnt._layouts) <= 256
    assert max(map(len, learnt._layouts.values())) <= 16


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_shapes_of_large_pushes_are_not_kept(encoding: Encoding) -> None:
    learnt = ReportDecoder()
    request = encode_report(HealthReport(node_id="a", cluster_id="c", score=0.5))
    request.resource_metrics[0].scope_metrics[0].scope.version = "v" * (1 << 20)

    read(learnt, request.SerializeToString() if encoding == "protobuf" else to_json(request), "", encoding)

    assert not learnt._layouts


def test_shapes_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero_kit.otlp_decode.MAX_LAYOUT_BYTES", 20_000)
    learnt = ReportDecoder()
    for number in range(100):
        read(learnt, encoded(HealthReport(node_id="a", cluster_id="c", workload_type="w" * number)))

    assert 0 < sum(length * len(found) for length, found in learnt._layouts.items()) <= 20_000


def test_labels_that_every_node_makes_up_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero_kit.otlp_decode.MAX_LABEL_CHARACTERS", 20_000)
    learnt = ReportDecoder()
    for number in range(200):
        read(learnt, encoded(HealthReport(node_id=f"n{number}", cluster_id="c", job_id=f"{number:0200}")))

    assert 0 < len(learnt._shared) < 50
    assert len(learnt._resources) < 100
