"""The provider stands on every exported metric, and nothing else of it changes."""

import ipaddress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_contract import attributes
from ingero_fleet.cost.providers import NodeLocation, ProviderMap, Rule
from ingero_fleet.otlp_parts import as_protobuf
from ingero_fleet.provider_tag import ProviderTag
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_testing.collectives import Job, as_json

RULES = ProviderMap((Rule(provider="lambda", nodes=("l-*",)),), "coreweave", {"k": NodeLocation({}, (), "gce")})


def nobody(node: tuple[str, str]) -> str:
    return ""


def request(*nodes: str, provider: str = "", cluster: str = "c") -> bytes:
    reports = [HealthReport(node_id=node, cluster_id=cluster, score=0.9, provider=provider) for node in nodes]
    return b"".join(encode_report(report).SerializeToString() for report in reports)


def providers(body: bytes) -> list[str | None]:
    found = []
    for block in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        pairs = [pair.value.string_value for pair in block.resource.attributes if pair.key == attributes.PROVIDER]
        assert len(pairs) <= 1
        found.append(pairs[0] if pairs else None)
    return found


def without_providers(body: bytes) -> ExportMetricsServiceRequest:
    message = ExportMetricsServiceRequest.FromString(body)
    for block in message.resource_metrics:
        kept = [pair for pair in block.resource.attributes if pair.key != attributes.PROVIDER]
        del block.resource.attributes[:]
        block.resource.attributes.extend(kept)
    return message


@pytest.mark.parametrize(
    ("node", "configured", "reported", "provider"),
    [
        ("n", "", "", "coreweave"),
        ("n", "aws", "", "aws"),
        ("n", "", "azure", "azure"),
        ("l-1", "aws", "azure", "lambda"),
        ("k", "", "", "gcp"),
    ],
    ids=["default", "its own word", "its health report", "a rule", "providerID"],
)
def test_what_a_rule_says_counts_then_the_node_s_word_then_what_is_known(
    node: str, configured: str, reported: str, provider: str
) -> None:
    tag, body = ProviderTag(RULES, lambda _: reported), request(node, provider=configured)

    for _ in range(2):
        tagged = tag(body, "")
        assert providers(tagged) == [provider]
        assert without_providers(tagged) == without_providers(body)


def test_the_cluster_of_the_request_counts_before_the_payload_s() -> None:
    tag = ProviderTag(ProviderMap((Rule(provider="lambda", clusters=("east",)),)), nobody)

    assert providers(tag(request("n"), "east")) == ["lambda"]
    assert providers(tag(request("n"), "")) == [None]


def test_what_is_not_known_yet_is_asked_again() -> None:
    known = [""]
    tag = ProviderTag(ProviderMap(), lambda _: known[0])

    assert tag(request("n"), "") == request("n")
    known[0] = "aws"
    assert providers(tag(request("n"), "")) == ["aws"]


def test_collectives_too_in_both_encodings() -> None:
    body = Job(2).pushes(3)[0]
    json = as_protobuf(Push(Signal.METRICS, "json", as_json(body))).body
    assert json is not None

    for encoded in (body, json):
        assert providers(ProviderTag(RULES, nobody)(encoded, "")) == ["coreweave"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero_fleet.provider_tag.MAX_REMEMBERED", 10)
    tag = ProviderTag(RULES, nobody)
    for number in range(100):
        assert providers(tag(request(f"l-{number}"), "")) == ["lambda"]
        assert len(tag._known) <= 10


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8"), max_size=300), st.sampled_from(["", "aws", "azure"])),
        max_size=5,
    )
)
def test_nothing_else_changes(nodes: list[tuple[str, str]]) -> None:
    message = ExportMetricsServiceRequest()
    for node, provider in nodes:
        block = message.resource_metrics.add()
        for key, text in ((attributes.NODE_ID, node), (attributes.PROVIDER, provider)):
            if text:
                block.resource.attributes.add(key=key).value.string_value = text
        block.resource.dropped_attributes_count = 1
        block.scope_metrics.add().metrics.add(name="m").gauge.data_points.add(as_double=1.5)
        block.schema_url = "s" * len(node)
    body = message.SerializeToString()
    tagged = ProviderTag(RULES, nobody)(body, "")

    assert without_providers(tagged) == without_providers(body)
    expected = [
        ("lambda" if node.startswith("l-") else provider or ("gcp" if node == "k" else "coreweave")) if node
        else provider or None
        for node, provider in nodes
    ]  # fmt: skip
    assert providers(tagged) == expected


@given(st.binary(max_size=200) | st.builds(lambda cut: request("n", "m")[:cut], st.integers(0, 400)))
def test_what_is_no_request_comes_back_as_it_is(body: bytes) -> None:
    tagged = ProviderTag(RULES, nobody)(body, "")

    assert tagged == body or parses(body)


def parses(body: bytes) -> bool:
    try:
        ExportMetricsServiceRequest.FromString(body)
    except Exception:  # whatever protobuf raises
        return False
    return True


def test_networks_decide_by_the_node_s_name() -> None:
    network: Any = ipaddress.ip_network("10.0.0.0/8")
    tag = ProviderTag(ProviderMap((Rule(provider="ec2", networks=(network,)),)), nobody)

    assert providers(tag(request("10.1.2.3", "11.1.2.3"), "")) == ["aws", None]
