"""Pushes are counted and limited by token."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub

from ingero_contract import attributes, routes
from ingero_echo.auth import Identity
from ingero_echo.ingest_audit import MAX_BEARERS, MAX_CLUSTERS, IngestAudit
from ingero_testing import telemetry
from ingero_testing.processes import Running
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

Lines = list[dict[str, Any]]


def identity(number: int) -> Identity:
    return Identity(name=f"name-{number}", digest=f"{number:064x}")


def audit() -> tuple[IngestAudit, Lines]:
    lines: Lines = []
    return IngestAudit(lambda **fields: lines.append(fields)), lines


def test_a_bearer_has_one_line_for_all_its_pushes() -> None:
    pushes, lines = audit()
    for cluster in ("b", "a", "b"):
        pushes.count(identity(1), requests=1, bytes=10)
        pushes.count(identity(1), {cluster}, events=5, rejected=1)
    pushes.count(identity(2), requests=1, rate_limited=1)
    pushes.write_lines()
    pushes.write_lines()

    none = {"malformed": 0, "rate_limited": 0, "unauthenticated": 0}
    assert lines == [
        {
            "token_sha256": identity(1).digest, "name": "name-1", "method": "OTLP", "requests": 3, "bytes": 30,
            "events": 15, "rejected": 3, **none, "clusters": ["a", "b"],
        },
        {
            "token_sha256": identity(2).digest, "name": "name-2", "method": "OTLP", "requests": 1, "bytes": 0,
            "events": 0, "rejected": 0, **none, "rate_limited": 1, "clusters": [],
        },
    ]  # fmt: skip


def test_bearers_and_clusters_are_bounded() -> None:
    pushes, lines = audit()
    pushes.count(identity(0), {f"cluster-{number}" for number in range(3 * MAX_CLUSTERS)}, events=1)
    for number in range(MAX_BEARERS + 20):
        pushes.refuse(f"Bearer wrong-{number}", None)
    pushes.write_lines()

    assert len(lines) == MAX_BEARERS + 1
    assert len(lines[0]["clusters"]) == MAX_CLUSTERS
    assert (lines[-1]["token_sha256"], lines[-1]["unauthenticated"]) == ("", 21)


def push(service: Running, token: str) -> Any:
    body = telemetry.logs([("note", "", {attributes.CLUSTER_ID: "c"})] * 3, "c")
    headers = {"content-type": "application/x-protobuf", "authorization": f"Bearer {token}"}
    return web.post(service.url("otlp/http", routes.OTLP_LOGS), content=body.SerializeToString(), headers=headers)


def test_pushes_of_a_token_are_limited_and_audited(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("right name=right\nother name=other\nreader name=reader scopes=read\n")
    file = tmp_path / "audit.jsonl"
    change = {
        "auth": {"tokens_file": str(tmp_path / "tokens"), "audit_file": str(file)},
        "ingest": {"requests_per_second": 0.001},
    }
    with start_echo(tmp_path, change) as service:
        first, second = push(service, "right"), push(service, "right")
        other, reader, wrong = (push(service, token).status_code for token in ("other", "reader", "wrong-one"))
        address = f"127.0.0.1:{service.ports['otlp/grpc']}"
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
            LogsServiceStub(channel).Export(  # type: ignore[no-untyped-call]
                telemetry.logs([("note", "", {})], "c"), metadata=[("authorization", "Bearer right")], timeout=30
            )

    assert (first.status_code, second.status_code, other, reader, wrong) == (200, 429, 200, 401, 401)
    assert int(second.headers["retry-after"]) >= 1
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    lines = {line["name"]: line for line in map(json.loads, file.read_text().splitlines())}
    assert {name: [line[key] for key in ("requests", "events", "rate_limited", "unauthenticated", "clusters")]
            for name, line in lines.items()} == {
        "right": [3, 3, 2, 0, ["c"]],
        "other": [1, 3, 0, 0, ["c"]],
        "reader": [0, 0, 0, 1, []],
        None: [0, 0, 0, 1, []],
    }  # fmt: skip
    assert lines["right"]["bytes"] > 0
    assert "wrong-one" not in file.read_text()
