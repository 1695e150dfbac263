"""What Echo has kept is judged again by Fleet's tools."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_contract import routes
from ingero_echo.cli import main as ingero_echo
from ingero_fleet.cli import main as ingero_fleet
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_testing.collectives import Job
from ingero_testing.processes import Running
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}
HOUR = 3600.0


def push(service: Running, body: bytes) -> None:
    answer = web.post(service.url("otlp/http", routes.OTLP_METRICS), content=body, headers=PROTOBUF)
    assert (answer.status_code, answer.content) == (200, b"")


def scores(begin: float) -> bytes:
    """200 pushes of six nodes in one request; n2 loses 40 % from the 120th to the 160th."""
    noise = 0.03 * np.random.default_rng(3).normal(size=(200, 6))
    parts = [
        encode_report(
            HealthReport(
                node_id=f"n{node}", cluster_id="c", workload_type="training",
                score=0.75 * float(np.exp(noise[tick, node])) * (0.6 if node == 2 and 120 <= tick < 160 else 1.0),
                time_unix_nano=int((begin + 5 * tick) * 1e9),
            )
        ).SerializeToString()
        for tick in range(200)
        for node in range(6)
    ]  # fmt: skip
    return b"".join(parts)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, begin = tmp_path_factory.mktemp("echo"), time.time() - HOUR
    with start_echo(folder) as service:
        push(service, scores(begin))
        for cluster, late in (("ring", {3: 8.0}), ("even", {})):
            job = Job(late_ms=late, cluster=cluster, clock_seconds=60.0)
            job.moment = begin
            for body in job.pushes(100):
                push(service, body)
    return str(folder / "echo.duckdb")


def run(command: Any, *arguments: str) -> str:
    done = CliRunner().invoke(command, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_exported_scores_are_replayed_and_name_the_slow_node(database: str, tmp_path: Path) -> None:
    file = str(tmp_path / "scores.parquet")
    run(ingero_echo, "export", "--database", database, "--to", file, "--scores")

    (episode,) = json.loads(run(ingero_fleet, "replay", file, "--json"))["episodes"]

    assert (episode["cluster"], episode["node"], episode["kind"]) == ("c", "n2", "slow")
    assert episode["end"] - episode["start"] == pytest.approx(200, abs=30)


@pytest.mark.parametrize(("cluster", "kind", "ranks"), [("ring", "node", [3]), ("even", "none", [])])
def test_an_exported_timeline_is_diagnosed(
    database: str, tmp_path: Path, cluster: str, kind: str, ranks: list[int]
) -> None:
    file = str(tmp_path / "timeline.parquet")
    run(ingero_echo, "export", "--database", database, "--to", file, "--timeline", "--cluster", cluster)

    found = json.loads(run(ingero_fleet, "diagnose", file, "--json"))

    assert (found["kind"], found["ranks"]) == (kind, ranks)
    assert found["evidence"]["steps"] == 100
    assert found["evidence"]["step_seconds"] == pytest.approx(0.105, abs=0.01)
    assert found["evidence"]["compute_share"] > 0.8


def test_a_timeline_is_of_one_cluster(database: str, tmp_path: Path) -> None:
    arguments = ["export", "--database", database, "--to", str(tmp_path / "t.parquet"), "--timeline"]
    refused = CliRunner().invoke(ingero_echo, arguments)

    assert refused.exit_code == 1
    assert "name one cluster with --cluster; those with collectives: even, ring" in refused.output
