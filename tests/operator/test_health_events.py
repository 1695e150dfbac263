"""Health events for NVSentinel: which transitions they are made of, and what arrives over gRPC."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
import trustme
from google.protobuf import empty_pb2
from google.protobuf.unknown_fields import UnknownFieldSet

from ingero_kit.backoff import Backoff
from ingero_kit.clock import steady_clock
from ingero_operator.nvsentinel import METHOD, STORE_ONLY, HealthEventExporter, HealthEvents, request_of
from ingero_operator.taints.health_events import RECENT_SECONDS, Exported, HealthEvent, health_events
from ingero_operator.taints.model import Accused
from ingero_operator.taints.nodes import NodeCondition, NodeView, moment
from ingero_operator.tasks import Tasks

SINCE = "2023-11-14T22:13:20Z"
NOW = moment(SINCE) + 60
SLOW = Accused(active=True, windows=9, kind="late_rank", severity=0.12, since=NOW - 100)


def node(status: str | None, reason: str = "LateRank", since: str = SINCE) -> NodeView:
    condition = NodeCondition(status=status, reason=reason, since=since) if status else None
    return NodeView(name="n0", uid="u0", labels={}, condition=condition)


def exported(*nodes: NodeView, now: float = NOW) -> list[HealthEvent]:
    """The events for one node in several states, one after the other."""
    before: Exported = {}
    return [event for view in nodes for event in health_events([view], "ml/prod", {"n0": SLOW}, before, now)]


def test_an_accusation_and_a_recovery_are_one_event_each() -> None:
    later = "2023-11-14T22:14:00Z"

    accused, recovered = exported(
        node("True"), node("True"), node("False", "NotAccused", later), node("False", "NotAccused", later)
    )

    assert (accused.healthy, accused.key, accused.time) == (False, f"u0.straggler.{NOW - 60:.0f}", NOW - 60)
    assert "12%" in accused.message
    assert accused.metadata == {
        "reason": "LateRank", "fleetCluster": "ml/prod", "kind": "late_rank", "severity": "0.12",
        "since": f"{SLOW.since:g}",
    }  # fmt: skip
    assert (recovered.healthy, recovered.metadata["reason"]) == (True, "NotAccused")


def test_a_condition_that_is_unknown_says_nothing_and_one_that_is_gone_ends_what_was_said() -> None:
    accused, ended = exported(node("True"), node("Unknown", "StaleEvidence"), node(None), node(None))

    assert (accused.healthy, ended.healthy, ended.metadata["reason"]) == (False, True, "NotWatched")


def test_an_operator_that_has_just_started_exports_only_recent_transitions() -> None:
    assert exported(node("True"), now=NOW + RECENT_SECONDS) == []
    assert len(exported(node("True"), now=NOW + RECENT_SECONDS - 60)) == 1


def test_the_fields_have_the_numbers_of_the_published_definition() -> None:
    (event,) = exported(node("True"))
    batch = UnknownFieldSet(empty_pb2.Empty.FromString(request_of(event)))
    inner = UnknownFieldSet(empty_pb2.Empty.FromString(batch[1].data))

    assert batch[0].field_number == 1
    found = {part.field_number: part.data for part in (inner[number] for number in range(len(inner)))}
    assert sorted(found) == [1, 2, 3, 4, 7, 9, 10, 11, 12, 13, 16]
    assert (found[2], found[4], found[9]) == (b"ingero", b"IngeroStraggler", b"INGERO_STRAGGLER")
    assert (found[7], found[13], found[16]) == (event.message.encode(), b"n0", STORE_ONLY)


@dataclass
class Connector:
    """A platform connector: answers with `statuses`, one after the other, then takes everything."""

    port: int
    statuses: list[grpc.StatusCode] = field(default_factory=list)
    taken: list[tuple[str, str, HealthEvents]] = field(default_factory=list)
    calls: int = 0

    def serve(self, body: bytes, context: grpc.ServicerContext) -> empty_pb2.Empty:
        self.calls += 1
        if self.statuses:
            context.abort(self.statuses.pop(0), "not now")
        headers = dict(context.invocation_metadata())
        self.taken.append(
            (str(headers["authorization"]), str(headers["idempotency-key"]), HealthEvents.FromString(body))
        )
        return empty_pb2.Empty()


@contextmanager
def connector(folder: Path) -> Iterator[Connector]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    (folder / "token").write_text("secret\n")
    server = authority.issue_cert("localhost")
    credentials = grpc.ssl_server_credentials(
        [(server.private_key_pem.bytes(), b"".join(blob.bytes() for blob in server.cert_chain_pems))]
    )
    found = Connector(0)
    served = grpc.server(futures.ThreadPoolExecutor(2))
    _, service, method = METHOD.split("/")
    handler = grpc.unary_unary_rpc_method_handler(
        found.serve, None, response_serializer=empty_pb2.Empty.SerializeToString
    )
    served.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    found.port = served.add_secure_port("localhost:0", credentials)
    served.start()
    try:
        yield found
    finally:
        served.stop(None).wait()


def export(
    folder: Path, peer: Connector, event: HealthEvent, until: Callable[[HealthEventExporter], bool]
) -> HealthEventExporter:
    """Export one event and wait until a condition holds."""

    async def work() -> HealthEventExporter:
        exporter = HealthEventExporter(
            steady_clock(), f"localhost:{peer.port}", folder / "ca.crt", folder / "token", Tasks()
        )
        exporter.backoff = Backoff(first=0.02, longest=0.05)
        exporter.export(event)
        await _reached(lambda: until(exporter))
        return exporter

    return asyncio.run(asyncio.wait_for(work(), 30))


def _reached(condition: Callable[[], bool]) -> Awaitable[None]:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    return poll()


def test_an_event_arrives_as_stored_only_with_token_key_and_evidence(tmp_path: Path) -> None:
    (event,) = exported(node("True"))
    with connector(tmp_path) as peer:
        export(tmp_path, peer, event, lambda found: found.sent == 1)

    ((token, key, request),) = peer.taken
    (got,) = request.events
    assert (token, key) == ("Bearer secret", event.key)
    assert (got.nodeName, got.isHealthy, got.isFatal, got.processingStrategy) == ("n0", False, False, STORE_ONLY)
    assert (got.agent, got.checkName, list(got.errorCode)) == ("ingero", "IngeroStraggler", ["INGERO_STRAGGLER"])
    assert dict(got.metadata) == event.metadata and got.generatedTimestamp.ToJsonString() == SINCE


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED])
def test_an_event_waits_for_a_connector_that_is_away_or_refuses_the_token(
    tmp_path: Path, status: grpc.StatusCode
) -> None:
    (event,) = exported(node("True"))
    with connector(tmp_path) as peer:
        peer.statuses = [status] * 2
        found = export(tmp_path, peer, event, lambda found: found.sent == 1)

    assert (peer.calls, found.lost) == (3, 0)


def test_an_event_that_no_retry_can_deliver_is_counted(tmp_path: Path) -> None:
    (event,) = exported(node("True"))
    with connector(tmp_path) as peer:
        peer.statuses = [grpc.StatusCode.INVALID_ARGUMENT]
        found = export(tmp_path, peer, event, lambda found: found.lost == 1)

    assert (peer.calls, found.sent) == (1, 0)
