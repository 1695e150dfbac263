"""What a Collector writes of OTLP is a history."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from ingero_analyze.otlp_points import rows_of_request
from ingero_fleet.cli import main

START = 1_764_000_000


def attributes(**given: str | int) -> list[dict[str, Any]]:
    return [
        {"key": key.replace("_", "."), "value": {"intValue" if isinstance(value, int) else "stringValue": value}}
        for key, value in given.items()
    ]


def request(tick: int, nodes: dict[str, float]) -> dict[str, Any]:
    """A push of each node: its score, another gauge, and a counter that rises by as much in 5 s."""
    time = str((START + 5 * tick) * 10**9)

    def metrics(score: float) -> list[dict[str, Any]]:
        point = {"timeUnixNano": time, "attributes": attributes(ingero_node_state="active")}
        return [
            {"name": "ingero.node.health_score", "gauge": {"dataPoints": [point | {"asDouble": score}]}},
            {"name": "ingero.agent.detection_mode", "gauge": {"dataPoints": [point | {"asInt": "1"}]}},
            {
                "name": "ingero.node.calls_total",
                "sum": {"dataPoints": [point | {"asInt": str(int(1e6 * score * (tick + 1)))}]},
            },
        ]

    return {
        "resourceMetrics": [
            {
                "resource": {"attributes": attributes(ingero_node_id=node, ingero_cluster_id="prod")},
                "scopeMetrics": [{"metrics": metrics(score)}],
            }
            for node, score in nodes.items()
        ]
    }


def recorded(ticks: int = 160) -> list[dict[str, Any]]:
    return [
        request(
            tick,
            {
                f"n{node}": (0.6 if node == 2 and tick >= 100 else 0.9) + 0.001 * ((7 * tick + 3 * node) % 11)
                for node in range(5)
            },
        )
        for tick in range(ticks)
    ]


@pytest.mark.parametrize("whole", [False, True], ids=["a request a line", "one request"])
def test_health_scores_of_recorded_pushes_are_judged(tmp_path: Path, whole: bool) -> None:
    requests = recorded()
    if whole:
        requests = [{"resourceMetrics": [each for one in requests for each in one["resourceMetrics"]]}]
    file = tmp_path / "pushes.json"
    file.write_bytes(b"\n".join(map(orjson.dumps, requests)))

    done = CliRunner().invoke(main, ["replay", str(file), "--json"])

    assert done.exit_code == 0, done.stderr
    assert [episode["node"] for episode in orjson.loads(done.stdout)["episodes"]] == ["n2"]


def test_a_metric_called_total_is_a_counter(tmp_path: Path) -> None:
    (tmp_path / "pushes.json").write_bytes(b"\n".join(map(orjson.dumps, recorded(40))))
    arguments = ["replay", str(tmp_path / "pushes.json"), "--json", "--metric", "ingero.node.calls_total"]

    done = CliRunner().invoke(main, arguments)

    assert done.exit_code == 0, done.stderr
    assert "counter" in orjson.loads(done.stdout)["summary"]["columns"]["used"]


def test_points_of_all_kinds() -> None:
    time = {"timeUnixNano": "5"}
    means = [time | {"sum": 6, "count": "4"}, time | {"count": "0", "sum": 0}]
    metrics: list[dict[str, Any]] = [
        {"name": "took", "histogram": {"dataPoints": means}},
        {"name": "rate", "gauge": {"dataPoints": [time | {"asDouble": 2.5}, {"asDouble": 1}, "no point"]}},
        {"name": "none", "gauge": []},
    ]  # fmt: skip
    found = rows_of_request({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}, None]}, 3]})

    assert found is not None
    assert list(found) == [
        {"time": "5", "value": 1.5, "metric": "took"}, {"time": "5", "value": 2.5, "metric": "rate"},
    ]  # fmt: skip


def test_other_objects_are_none() -> None:
    assert rows_of_request({"resourceMetrics": "x"}) is None
    assert rows_of_request({"time": 1}) is None
