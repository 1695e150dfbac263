"""Prometheus' own checker reads every page of real processes and complains of nothing."""

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

from ingero_testing.needs import needs_promtool
from ingero_testing.nvml import build_nvml
from ingero_testing.processes import BIN, Running, fleet, process, wait_until
from ingero_testing.web import web

pytestmark = needs_promtool


def port_in(file: Path) -> int:
    wait_until(file.exists, file.name)
    return int(json.loads(file.read_text())["metrics"])


def complaints(page: str) -> set[str]:
    """What promtool says about a page."""
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
    said = {line for line in (done.stdout + done.stderr).splitlines() if line}
    return said | {f"exit status {done.returncode}"} if done.returncode else said


def test_a_page_that_cannot_be_read_is_complained_of() -> None:
    assert complaints("no metric at all {\n")
    assert complaints("# TYPE requests counter\nrequests 1\n")


def test_every_page_is_clean(tmp_path: Path) -> None:
    script = tmp_path / "slow.yaml"
    script.write_text("stages: [{seconds: 3}, {seconds: 600, launches_per_second: 10}]\n")
    onward = {"endpoint": "http://127.0.0.1:9", "tls": {"insecure": True}}
    change = {
        "exporters": {"otlphttp": onward},
        "service": {"pipelines": {"metrics": {"processors": ["ingero"], "exporters": ["prometheus", "otlphttp"]}}},
    }
    driver = build_nvml(tmp_path)
    with ExitStack() as stack:
        service = stack.enter_context(fleet(tmp_path, change))

        def agent(node: str, *flags: str) -> Running:
            return stack.enter_context(
                process(
                    tmp_path / f"{node}.log", str(BIN / "ingero-agent"), "fleet-push", *flags,
                    "--fleet-endpoint", f"127.0.0.1:{service.ports['otlp/http']}", "--fleet-insecure",
                    "--fleet-cluster-id", 'l"a\\b', "--fleet-node-id", node, "--fleet-push-interval", "200ms",
                    "--warmup-samples", "5", "--no-detect-provider",
                    "--fleet-persist-path", str(tmp_path / f"{node}.baseline"),
                    LD_LIBRARY_PATH=str(driver), NVML_COUNT="2", NVML_REASONS="0x40,0",
                )
            )  # fmt: skip

        for node in ("n0", "n1", "n2"):
            agent(node, "--stub")
        agent(
            "slow", "--stub-script", str(script), "--remediate", "--remediate-socket", str(tmp_path / "socket"),
            "--metrics-listen", "127.0.0.1:0", "--ports-file", str(tmp_path / "agent.json"),
        )  # fmt: skip
        wait_until((tmp_path / "socket").exists, "the socket")
        stack.enter_context(
            process(
                tmp_path / "sink.log", str(BIN / "ingero-sink"), "--remediate-socket", str(tmp_path / "socket"),
                "--listen", "127.0.0.1:0", "--ports-file", str(tmp_path / "sink.json"),
            )
        )  # fmt: skip
        pages = {
            "findings": service.url("prometheus", "/metrics"),
            "telemetry": service.url("telemetry", "/metrics"),
            "agent": f"http://127.0.0.1:{port_in(tmp_path / 'agent.json')}/metrics",
            "sink": f"http://127.0.0.1:{port_in(tmp_path / 'sink.json')}/metrics",
        }
        straggling = {"findings": "ingero_fleet_straggler{", "sink": "ingero_sink_active_stragglers{"}
        for name, series in straggling.items():
            wait_until(lambda: series in web.get(pages[name]).text, f"the straggler at {name}")  # noqa: B023
        texts = {name: web.get(url).text for name, url in pages.items()}

    assert "gpu_throttle_thermal_active{" in texts["agent"]
    assert {name: found for name, text in texts.items() if (found := complaints(text))} == {}
