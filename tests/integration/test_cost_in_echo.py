"""What a late rank costs: counted by Fleet, exported, answered by Echo."""

from pathlib import Path
from typing import Any

from ingero_contract import echo, routes
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_testing.collectives import Job
from ingero_testing.processes import echo as start_echo
from ingero_testing.processes import fleet, wait_until
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}


def test_echo_answers_with_the_dollars_that_fleet_counted(tmp_path: Path) -> None:
    with start_echo(tmp_path) as store:
        change = {
            "exporters": {"otlphttp": {"endpoint": store.url("otlp/http", ""), "tls": {"insecure": True}}},
            "service": {"pipelines": {"metrics": {"exporters": ["prometheus", "otlphttp"]}}},
        }
        with fleet(tmp_path, change) as service:
            for rank, body in enumerate(Job(8, late_ms={5: 5.0}).pushes(100)):
                report = HealthReport(
                    node_id=f"node-{rank}", cluster_id="c", score=0.9, provider="aws",
                    gpu_model="NVIDIA H100 80GB HBM3", gpu_count=8,
                )  # fmt: skip
                for content in (encode_report(report).SerializeToString(), body):
                    web.post(service.url("otlp/http", routes.OTLP_METRICS), content=content, headers=PROTOBUF)

            def answer() -> Any:
                got = web.post(store.url("api", echo.TOOLS + echo.TOOL_PREFIX + "get_cost"), json={"cluster_id": "c"})
                return got.json()["rows"]

            wait_until(lambda: bool(answer()), "Echo to know what the late rank costs")
            row = answer()[0]
            billed = web.get(service.url("threshold", f"{routes.FLEET_COST}?cluster_id=c")).json()["culprits"][0]

    assert (
        (row["node_id"], row["source"], row["currency"])
        == (billed["node_id"], "fleet", "USD")
        == ("node-5", "fleet", "USD")
    )
    assert 0 < row["cost"] <= billed["share"] + 1e-9
