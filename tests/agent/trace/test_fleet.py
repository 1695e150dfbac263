"""What the trace agent sends and records, taken and judged by a real Fleet."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_contract import attributes, metrics
from ingero_testing.gpu_job import attached, build_job, children, go, job, receiver, said, tracing
from ingero_testing.processes import BIN, wait_until
from scripts.lab import Lab, Site

RANKS, STEPS, LATE, EXTRA_US = 4, 40, 2, 100_000  # more than what a loaded machine delays any rank


def diagnose(file: Path) -> dict[str, Any]:
    done = subprocess.run(
        [BIN / "ingero-fleet", "diagnose", file, "--json", "--quiet"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def counts(bodies: list[bytes]) -> dict[str, int]:
    """The latest count of every operation, and 1 for every other metric there was."""
    found: dict[str, int] = {}
    for body in bodies:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                found[metric.name] = 1
                if metric.name == metrics.OPERATION_COUNT:
                    for point in metric.sum.data_points:
                        keys = {pair.key: pair.value.string_value for pair in point.attributes}
                        found[keys[attributes.OPERATION]] = point.as_int
    return found


def collectives(bodies: list[bytes], processes: set[int]) -> Counter[str]:
    """Collectives of these processes, by the job that their resource names; empty where it names none.

    Other processes of this machine may call as well.
    """
    found = Counter[str]()
    for body in bodies:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            keys = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                if metric.name == metrics.COLLECTIVE_BARRIER_WAIT:
                    pids = (
                        pair.value.int_value
                        for point in metric.gauge.data_points
                        for pair in point.attributes
                        if pair.key == attributes.PROCESS_PID
                    )
                    found[keys.get(attributes.JOB_ID, "")] += sum(pid in processes for pid in pids)
    return +found


@pytest.mark.ebpf
def test_fleet_takes_every_point_and_a_recording_names_the_late_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    program, recorded = build_job(tmp_path), tmp_path / "run.csv"
    libraries = tmp_path / "libcudart.so.12", tmp_path / "libnccl.so.2"
    lab = Lab(tmp_path)
    site = Site(lab, "lab", 0.2, ())
    with receiver() as (port, bodies):
        try:
            site.start_fleet(
                exporters__otlphttp=f"{{endpoint: 'http://127.0.0.1:{port}', tls: {{insecure: true}}}}",
                service__pipelines__metrics__exporters="[prometheus, otlphttp]",
            )
            fleet = f"http://127.0.0.1:{site.ports['otlp/http']}"
            flags = ["--record", str(recorded), "--node", "n1", "--cluster", "lab"]
            with (
                tracing(tmp_path, *flags, "--otlp", fleet, "--otlp-interval", "0.5s") as agent,
                job(program, RANKS, STEPS, 1000, LATE, EXTRA_US) as running,
            ):
                wait_until(lambda: attached(agent, *libraries), "both libraries")
                go(running)
                assert said(running) == "done"
                wait_until(lambda: counts(bodies).get("ncclAllReduce", 0) >= RANKS * STEPS, "the calls")
                ranks = set(children(running.pid))
                wait_until(lambda: collectives(bodies, ranks).total() >= RANKS * STEPS, "the collectives")
            telemetry = lab.client.get(f"http://127.0.0.1:{site.ports['telemetry']}/metrics").text
        finally:
            lab.stop()

    assert counts(bodies)["cudaStreamSynchronize"] >= RANKS * STEPS
    assert metrics.OPERATION_DURATION in counts(bodies)
    assert set(collectives(bodies, ranks)) == {"4711"}
    assert not re.search(r"^ingero_fleet_(rejected_points|malformed_pushes)_total\S* [1-9]", telemetry, re.MULTILINE)
    found = diagnose(recorded)
    assert (found["kind"], found["ranks"]) == ("node", [LATE])
    assert found["seconds_lost_per_step"] > EXTRA_US / 2e6
