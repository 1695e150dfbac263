"""Marks as records for whoever Fleet forwards to: what they say, and that none is lost without being counted."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ingero_contract import attributes, metrics
from ingero_contract import echo as routes
from ingero_kit.backoff import Backoff
from ingero_kit.clock import steady_clock
from ingero_operator import retrying_exporter
from ingero_operator.audit_exporter import AuditExporter, OtlpTarget
from ingero_operator.taints.audit_events import log_request
from ingero_operator.taints.controller import describe
from ingero_operator.taints.model import Step
from ingero_operator.taints.nodes import StragglerTaint, read_taint
from ingero_operator.taints.patches import annotation
from ingero_testing import processes
from ingero_testing.fleets import Fleets, fleets
from ingero_testing.web import web

MARK = StragglerTaint(
    owner="u-1", verdict="0badcafe", effect="NoSchedule", since=100.0, expires=200.0, node_uid="n-1", score=0.4,
    threshold=0.7, windows=6,
)  # fmt: skip


def log_requests(
    taint: StragglerTaint | None = MARK, identity: str = "add/gpu-7", now: float = 150.0
) -> dict[str, Any]:
    step = Step(
        verb="add" if taint else "remove",
        node="gpu-7",
        uid="n-1",
        reason="Confirmed",
        taint=taint,
        removed="0badcafe",
    )
    return log_request(step, cluster="prod", owner="u-1", message="words", identity=identity, now=now)


def model(request: dict[str, Any]) -> dict[str, str]:
    (block,) = ParseDict(request, ExportLogsServiceRequest()).resource_logs
    (entry,) = block.scope_logs[0].log_records
    assert entry.event_name == metrics.TAINT_EVENT and entry.body.string_value == "words"
    return {item.key: item.value.string_value for item in [*block.resource.attributes, *entry.attributes]}


def test_a_record_is_otlp_and_carries_the_evidence_of_the_node() -> None:
    found = model(log_requests())

    assert (found[attributes.CLUSTER_ID], found[attributes.NODE_ID]) == ("prod", "gpu-7")
    assert (found[attributes.TAINT_ACTION], found[attributes.TAINT_VERDICT]) == ("add", "0badcafe")
    taint = {"value": "0badcafe", "effect": found[attributes.TAINT_EFFECT]}
    assert read_taint(found[attributes.TAINT_EVIDENCE], [taint]) == MARK
    assert model(log_requests(None))[attributes.TAINT_ACTION] == "remove"


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("slow", "its own rate is lost"),
        ("late_rank", "the job's time is lost to its rank"),
        ("gpu_throttled", "the job's time is lost to its throttled GPU"),
    ],
)
def test_an_event_says_what_is_lost_by_the_kind_that_the_node_carries(kind: str, lost: str) -> None:
    taint = replace(MARK, score=None, threshold=None, severity=0.3, kind=kind)
    written = read_taint(annotation(taint), [{"value": taint.verdict, "effect": taint.effect}])
    step = Step(verb="add", node="gpu-7", uid="n-1", reason="Confirmed", taint=written)
    text = f"Node gpu-7 was tainted (NoSchedule); 30% of {lost}, for 6 windows"
    assert describe(step).message == text


def test_what_is_reported_twice_has_one_id_and_what_differs_has_another() -> None:
    first = model(log_requests())[attributes.EVENT_ID]

    assert model(log_requests(now=999.0))[attributes.EVENT_ID] == first
    assert model(log_requests(identity="remove/gpu-7"))[attributes.EVENT_ID] != first


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work(), 20)

    asyncio.run(limited())


async def until(after_write: Callable[[], bool]) -> None:
    while not after_write():
        await asyncio.sleep(0.01)


def target(double: Fleets) -> OtlpTarget:
    return OtlpTarget(url=double.template.format(namespace="ml", name="prod"), token="t")


def test_a_record_waits_for_a_fleet_that_is_away() -> None:
    with fleets() as double:
        says = double.of("ml", "prod")
        says.refusing = True
        found = AuditExporter(steady_clock(), Backoff(first=0.02, longest=0.05))

        async def work() -> None:
            found.export(target(double), log_requests())
            await until(lambda: says.refused >= 2)
            says.refusing = False
            await until(lambda: found.sent == 1)

        run(work)
        assert says.log_requests == [log_requests()] and found.lost == 0


def test_what_no_fleet_takes_in_time_is_counted() -> None:
    with fleets() as double:
        found = AuditExporter(steady_clock(), Backoff(first=0.02, longest=0.05), kept_seconds=0.2)

        async def work() -> None:
            found.export(target(double), log_requests())
            await until(lambda: found.lost == 1 and len(found) == 0)

        run(work)
        assert found.sent == 0


def test_a_taint_reaches_echo_through_fleet_once(tmp_path: Path) -> None:
    with processes.echo(tmp_path / "echo") as store:
        exporter = {"endpoint": f"127.0.0.1:{store.ports['otlp/grpc']}", "tls": {"insecure": True}}
        change = {"exporters": {"otlp": exporter}, "service": {"pipelines": {"logs": {"exporters": ["otlp"]}}}}
        with processes.fleet(tmp_path / "fleet", change) as receiver:
            found = AuditExporter(steady_clock())

            def kept() -> list[list[Any]]:
                text = f"SELECT node_id, message FROM events WHERE metric_name = '{metrics.TAINT_EVENT}'"
                answer = web.post(store.url("api", routes.SQL), json={"sql": text}, timeout=60)
                return list(answer.raise_for_status().json()["rows"])

            async def work() -> None:
                to = OtlpTarget(url=receiver.url("otlp/http"))
                now = time.time()
                for taint, identity in ((MARK, "add"), (MARK, "add"), (None, "remove")):
                    found.export(to, log_requests(taint, identity, now))
                await until(lambda: found.sent == 3)

            run(work)
            processes.wait_until(lambda: len(kept()) >= 2, "both marks")
            assert len(kept()) == 2


def test_the_number_of_waiting_records_is_bounded() -> None:
    async def work() -> AuditExporter:
        found = AuditExporter(steady_clock())
        for _ in range(retrying_exporter.WAITING + 5):
            found.export(OtlpTarget(url="http://127.0.0.1:1"), log_requests())
        return found

    found = asyncio.run(work())
    assert found.lost == 5
