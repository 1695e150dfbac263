"""Reading by shape gives what a full parse gives, for every push and every damage to it."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero_kit.otlp import Decoded, Decoder, HealthReport, MalformedPayload, encode_report
from ingero_testing.reports import NOW, REPORTS


def read(decoder: Decoder, body: bytes, cluster: str = "") -> Decoded | str:
    try:
        return decoder.decode(body, "protobuf", NOW, cluster)
    except MalformedPayload as error:
        return str(error)


def encoded(report: HealthReport) -> bytes:
    return encode_report(report).SerializeToString()


@given(st.lists(REPORTS, min_size=2, max_size=6), st.sampled_from(["", "other"]))
def test_a_decoder_that_has_learnt_reads_as_one_that_has_not(reports: list[HealthReport], cluster: str) -> None:
    learnt = Decoder()
    for body in map(encoded, reports * 2):
        assert read(learnt, body, cluster) == read(Decoder(), body, cluster)


@given(REPORTS, REPORTS)
def test_new_numbers_in_a_known_shape_are_read(first: HealthReport, second: HealthReport) -> None:
    learnt = Decoder()
    read(learnt, encoded(first))
    for name in ("score", "throughput", "compute", "memory", "cpu", "rate", "time_unix_nano", "degraded"):
        if getattr(first, name) is not None and getattr(second, name) is not None:
            setattr(first, name, getattr(second, name))

    assert read(learnt, encoded(first)) == read(Decoder(), encoded(first))


@settings(max_examples=300)
@given(REPORTS, st.integers(0, 2**32), st.integers(0, 255), st.sampled_from(["flip", "drop", "insert", "number"]))
def test_any_damage_is_seen_by_both_alike(report: HealthReport, seed: int, value: int, kind: str) -> None:
    body = encoded(report)
    learnt = Decoder()
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

    assert read(learnt, bytes(damaged)) == read(Decoder(), bytes(damaged))


def test_the_second_push_of_a_node_is_read_by_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt = Decoder()
    read(learnt, encoded(HealthReport(node_id="a", cluster_id="c", score=0.5, world_size=8, rank=1)))
    monkeypatch.setattr(learnt, "_protobuf", None)

    got = read(learnt, encoded(HealthReport(node_id="a", cluster_id="c", score=0.6, world_size=8, rank=1)))

    assert isinstance(got, Decoded)
    assert (got.reports[0].score, got.reports[0].world_size) == (0.6, 8)


def test_shapes_are_bounded() -> None:
    learnt = Decoder()
    for number in range(2000):
        read(
            learnt,
            encoded(HealthReport(node_id="a", cluster_id="c", workload_type="w" * (number % 200) + str(number))),
        )

    assert len(learnt._layouts) <= 256
    assert max(map(len, learnt._layouts.values())) <= 16
