"""The preview of a taint policy from what Fleet sends to a running Echo."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_contract import routes
from ingero_contract.values import VerdictState
from ingero_detect.nodes.observation import Edge
from ingero_detect.nodes.verdicts import Axis, Kind, Verdict
from ingero_fleet.verdict_records import encode
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_operator.cli import main
from ingero_testing.processes import Running
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}
NODES = [f"n{number}" for number in range(10)]
HOUR = 3600.0
TOKEN = "a-token-that-may-ask"
MANIFEST = """
apiVersion: ingero.io/v1alpha1
kind: FleetCluster
metadata: {name: prod, namespace: gpu}
spec:
  clusterId: prod
  taints: {mode: %s, confirmFor: %s}
"""


def verdict(what: str, state: VerdictState, node: str, at: float, cluster: str = "prod") -> Edge:
    return Edge(
        what,
        Verdict(
            cluster=cluster, node=node, state=state, kind=Kind.SLOW, axis=Axis.OWN, since=at - 30, detected=at,
            recovered=None, severity=0.4, value=0.6, expected=1.0, residual=-0.5, scale=0.02, evidence=20.0,
            level=9.0, cohort="all", cohort_size=10, merged=False, time=at, digest=f"{node}{at}{what}",
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Echo with three hours of ten nodes: one straggled for an hour, one since before the last two hours."""
    folder = tmp_path_factory.mktemp("echo")
    (folder / "tokens").write_text(f"{TOKEN} scopes=sql\nthe-reader scopes=read\nthe-writer scopes=ingest\n")
    now = time.time()
    with start_echo(folder, {"auth": {"tokens_file": str(folder / "tokens")}, "query": {"max_rows": 7}}) as running:

        def push(path: str, body: bytes | None) -> None:
            headers = {**PROTOBUF, "authorization": "Bearer the-writer"}
            assert web.post(running.url("otlp/http", path), content=body, headers=headers).status_code == 200

        reports = ExportMetricsServiceRequest()
        for name in NODES:
            for minute in range(180):
                at = int((now - 60 * minute) * 1e9)
                report = HealthReport(node_id=name, cluster_id="prod", score=0.9, time_unix_nano=at)
                reports.resource_metrics.extend(encode_report(report).resource_metrics)
        push(routes.OTLP_METRICS, reports.SerializeToString())
        edges = [
            verdict("accused", VerdictState.STRAGGLER, "n1", now - 2.5 * HOUR),
            verdict("accused", VerdictState.STRAGGLER, "n2", now - 1.5 * HOUR),
            verdict("recovering", VerdictState.RECOVERING, "n2", now - 0.6 * HOUR),
            verdict("cleared", VerdictState.HEALTHY, "n2", now - 0.5 * HOUR),
            verdict("accused", VerdictState.STRAGGLER, "n3", now - HOUR, cluster="other"),
        ]
        push(routes.OTLP_LOGS, encode(edges))
        yield running


def run(store: Running, folder: Path, *more: str, token: str = TOKEN) -> Result:
    (folder / "proposed.yaml").write_text(MANIFEST % ("NoSchedule", "5m"))
    (folder / "present.yaml").write_text(MANIFEST % ("Observe", "10m"))
    (folder / "token").write_text(token)
    return CliRunner().invoke(
        main,
        [
            "preview", str(folder / "proposed.yaml"), "--offline", "--days", str(2 / 24),
            "--echo", store.url("api"), "--token-file", str(folder / "token"), *more,
        ],
    )  # fmt: skip


def test_what_the_proposed_policy_would_have_done_and_the_present_one_did_not(store: Running, tmp_path: Path) -> None:
    done = run(store, tmp_path, "--present", str(tmp_path / "present.yaml"), "--json")

    assert done.exit_code == 0, done.output
    tree: dict[str, Any] = json.loads(done.output)
    assert (tree["cluster"], tree["nodes"], tree["accusations"]) == ("prod", 10, 2)
    assert tree["present"]["taints"] == [] and tree["present"]["mode"] == "Observe"
    assert [(item["node"], item["reason"]) for item in tree["proposed"]["taints"]] == [("n1", None)]
    # The record begins in the middle of the accusation of n1, which takes the whole budget of ten nodes.
    assert tree["proposed"]["taints"][0]["seconds"] == pytest.approx(2 * HOUR - 300, abs=2)
    stopped = {item["node"]: [check["check"] for check in item["stoppedBy"]] for item in tree["proposed"]["accused"]}
    assert stopped == {"n1": ["Confirming"], "n2": ["Budget", "Confirming"]}
    assert "1 of 2 accusations began before the record" in tree["notes"]


def test_people_read_a_table(store: Running, tmp_path: Path) -> None:
    lines = [line.split() for line in run(store, tmp_path).output.splitlines()]

    assert ["nodes", "tainted", "1"] in lines
    (row,) = [line for line in lines if line[:1] == ["n1"] and line[-1] == "unknown"]
    assert row[3:] == ["1h55m", "NoSchedule", "still", "tainted", "unknown"]


@pytest.mark.parametrize(
    ("token", "problem"),
    [("the-reader", "the token lacks the scope sql"), ("nobody-knows-this", "refuses:")],
)
def test_a_token_that_may_not_ask_is_named(store: Running, tmp_path: Path, token: str, problem: str) -> None:
    done = run(store, tmp_path, token=token)

    assert done.exit_code == 1
    assert problem in done.stderr and token not in done.stderr


def test_a_cluster_without_a_record_is_no_preview(store: Running, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text(
        (MANIFEST % ("NoSchedule", "5m")).replace("clusterId: prod", "clusterId: empty")
    )

    (tmp_path / "token").write_text(TOKEN)
    done = CliRunner().invoke(
        main,
        ["preview", str(tmp_path / "empty.yaml"), "--offline", "--echo", store.url("api"),
         "--token-file", str(tmp_path / "token")],
    )  # fmt: skip

    assert (done.exit_code, done.stdout) == (1, "")
    assert "Echo has no record of cluster empty in the last 7 days" in done.stderr
