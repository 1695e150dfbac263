"""Taint events of the operator: kept while the taints last, shown to people, bounded, and validated."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ingero_contract import attributes, routes
from ingero_contract.identifiers import node_key
from ingero_fleet.taints import tracker as trackers
from ingero_fleet.taints.records import MAX_BYTES, NEEDLE
from ingero_fleet.taints.tracker import DEFAULT_TAINT_SECONDS, MAX_TAINT_SECONDS, REMOVAL_MEMORY_SECONDS, TaintTracker
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_operator.taints.audit_events import log_request
from ingero_operator.taints.model import Step, Verb
from ingero_operator.taints.nodes import StragglerTaint
from ingero_testing.processes import Running, fleet, wait_until
from ingero_testing.web import web

NOW = 1_700_000_000.0
JSON = {"content-type": "application/json"}


def record(
    verb: Verb, node: str = "gpu-7", *, now: float = NOW, expires: float | None = None, effect: str = "NoSchedule"
) -> dict[str, Any]:
    """The operator's own record."""
    taint = StragglerTaint(
        owner="u", verdict="0badcafe", effect=effect, since=NOW - 60, expires=expires or NOW + 3600, node_uid="n",
        severity=0.3, windows=6,
    )  # fmt: skip
    left = None if verb == "remove" else taint
    step = Step(verb=verb, node=node, uid="n", reason="Confirmed", taint=left, removed="0badcafe")
    words = f"Node {node} was marked"
    return log_request(step, cluster="prod", owner="u", message=words, identity="i", now=now)


def take(tracker: TaintTracker, *requests: dict[str, Any], now: float = NOW) -> TaintTracker:
    for request in requests:
        message = ParseDict(request, ExportLogsServiceRequest()).SerializeToString()
        tracker.take(Push(Signal.LOGS, "protobuf", message), now)
    return tracker


def test_a_taint_stands_from_its_record_to_its_removal() -> None:
    tracker = take(TaintTracker(), record("add"))

    assert tracker.taints(NOW) == [
        {
            "cluster_id": "prod", "node_id": "gpu-7", "effect": "NoSchedule", "verdict": "0badcafe",
            "reason": "Confirmed", "message": "Node gpu-7 was marked", "since": "2023-11-14T22:12:20.000Z",
            "expires": "2023-11-14T23:13:20.000Z",
        }
    ]  # fmt: skip
    assert tracker.taint(node_key("prod", "gpu-7"), NOW) == tracker.taints(NOW, "prod")[0]
    assert tracker.taints(NOW, "other") == []
    take(tracker, record("lower", now=NOW + 1, effect=""))
    assert tracker.taints(NOW)[0]["effect"] is None
    take(tracker, record("remove", now=NOW + 2))
    assert (tracker.taints(NOW), tracker.taint(node_key("prod", "gpu-7"), NOW)) == ([], None)
    assert tracker.outcomes == {"add": 1, "lower": 1, "remove": 1}


def test_a_taint_ends_by_itself_unless_it_is_renewed() -> None:
    tracker = take(TaintTracker(), record("add", expires=NOW + 100), record("add", "gpu-8", expires=NOW + 100))
    take(tracker, record("renew", now=NOW + 50, expires=NOW + 200), now=NOW + 50)

    assert [item["node_id"] for item in tracker.taints(NOW + 150)] == ["gpu-7"]
    assert tracker.taints(NOW + 250) == []
    assert tracker.outcomes["expired"] == 2


def test_no_taint_is_believed_for_ever() -> None:
    without_end = record("add", "gpu-8")
    pairs = without_end["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["attributes"]
    pairs[:] = [pair for pair in pairs if pair["key"] != attributes.TAINT_EVIDENCE]
    tracker = take(TaintTracker(), record("add", expires=NOW + 1e8), without_end)

    assert len(tracker.taints(NOW + DEFAULT_TAINT_SECONDS - 1)) == 2
    assert [item["node_id"] for item in tracker.taints(NOW + DEFAULT_TAINT_SECONDS + 1)] == ["gpu-7"]
    assert tracker.taints(NOW + MAX_TAINT_SECONDS + 1) == []


def test_a_record_that_comes_late_brings_no_taint_back() -> None:
    tracker = take(
        TaintTracker(), record("add"), record("remove", now=NOW + 60), record("raise", now=NOW + 30), now=NOW + 61
    )

    assert tracker.taints(NOW + 62) == []
    assert tracker.outcomes["late"] == 1
    take(tracker, record("add", now=NOW + 70), now=NOW + 70)
    assert len(tracker.taints(NOW + 70)) == 1


def test_a_record_from_the_future_shuts_out_no_other() -> None:
    tracker = take(
        TaintTracker(), record("add", now=NOW + 1e6), record("add", "gpu-8", expires=NOW - 5), record("add")
    )

    assert [item["node_id"] for item in tracker.taints(NOW)] == ["gpu-7"]
    assert (tracker.outcomes["ahead"], tracker.outcomes["expired"]) == (1, 1)


def test_taints_beyond_the_limit_are_counted_and_removals_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "MAX_TAINTS", 3)
    tracker = take(TaintTracker(), *(record("add", f"gpu-{number}") for number in range(5)))
    assert (len(tracker.taints(NOW)), tracker.outcomes["over_limit"]) == (3, 2)
    take(tracker, record("remove", "gpu-0", now=NOW + 1))
    take(tracker, record("add", "gpu-4"), now=NOW + REMOVAL_MEMORY_SECONDS + 1)

    assert {item["node_id"] for item in tracker.taints(NOW + REMOVAL_MEMORY_SECONDS + 1)} == {
        "gpu-1",
        "gpu-2",
        "gpu-4",
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({attributes.NODE_ID: ""}, attributes.NODE_ID),
        ({attributes.NODE_ID: "x" * 300}, attributes.NODE_ID),
        ({attributes.CLUSTER_ID: "a\nb"}, attributes.CLUSTER_ID),
        ({attributes.TAINT_ACTION: "explode"}, attributes.TAINT_ACTION),
        ({attributes.TAINT_EFFECT: "NoExecute"}, attributes.TAINT_EFFECT),
        ({attributes.TAINT_EVIDENCE: "[1]"}, attributes.TAINT_EVIDENCE),
        ({attributes.TAINT_EVIDENCE: '{"expires": 5}'}, attributes.TAINT_EVIDENCE),
        ({attributes.TAINT_EVIDENCE: '{"since": "9999-12-31T23:59:59-12:00"}'}, attributes.TAINT_EVIDENCE),
        ({attributes.TAINT_EVIDENCE: "{" * 5000}, attributes.TAINT_EVIDENCE),
    ],
)
def test_what_is_no_taint_is_counted_with_its_reason_and_nothing_else_is_lost(
    change: dict[str, str], reason: str
) -> None:
    request = record("add")
    block = request["resourceLogs"][0]
    for pair in [*block["resource"]["attributes"], *block["scopeLogs"][0]["logRecords"][0]["attributes"]]:
        if pair["key"] in change:
            pair["value"]["stringValue"] = change[pair["key"]]
    request["resourceLogs"].append(record("add", "gpu-8")["resourceLogs"][0])
    tracker = take(TaintTracker(), request)

    assert [item["node_id"] for item in tracker.taints(NOW)] == ["gpu-8"]
    assert [(reason in text, count) for text, count in tracker.refused.items()] == [(True, 1)]


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_rubbish_never_fails(body: bytes) -> None:
    tracker = TaintTracker()
    tracker.take(Push(Signal.LOGS, "protobuf", body + NEEDLE), NOW)

    assert tracker.taints(NOW) == []


def test_a_push_that_is_too_large_is_not_read() -> None:
    tracker = TaintTracker()
    tracker.take(Push(Signal.LOGS, "protobuf", NEEDLE * MAX_BYTES), NOW)

    assert tracker.refused == {"the push is too large for taint records": 1}


def send(service: Running, request: dict[str, Any]) -> None:
    answer = web.post(service.url("otlp/http", routes.OTLP_LOGS), content=json.dumps(request), headers=JSON)
    assert answer.status_code == 200


@pytest.mark.parametrize("processes", [1, 2])
def test_a_running_fleet_says_of_a_node_that_it_is_tainted(tmp_path: Path, processes: int) -> None:
    with fleet(tmp_path, {"receivers": {"otlp": {"processes": processes}}}) as service:
        for number in range(3):
            report = HealthReport(node_id=f"gpu-{number}", cluster_id="prod", score=0.9)
            content = encode_report(report).SerializeToString()
            web.post(
                service.url("otlp/http", routes.OTLP_METRICS), content=content,
                headers={"content-type": "application/x-protobuf"},
            )  # fmt: skip
        send(service, record("add", "gpu-1", now=time.time(), expires=time.time() + 600))

        def why(node: str) -> Any:
            got = web.get(service.url("diagnostics", f"{routes.FLEET_WHY}?node_id={node}"))
            return got.json() if got.status_code == 200 else {}

        wait_until(lambda: bool(why("gpu-1").get("taint")), "the mark")
        assert why("gpu-1")["taint"]["effect"] == "NoSchedule"
        assert why("gpu-2")["taint"] is None

        def shown() -> Any:
            return web.get(service.url("diagnostics", routes.FLEET_PAGE_UPDATE)).json()

        wait_until(lambda: shown() is not None, "the page's first tick")
        update = shown()
        assert ([item["node_id"] for item in update["taints"]], update["taint_counts"]) == (["gpu-1"], {"prod": 1})
        page = web.get(service.url("prometheus", "/metrics")).text
        assert 'ingero_fleet_taint_records_total{outcome="add"} 1.0' in page
