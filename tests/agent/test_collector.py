"""The agent's pages: from a real agent against a real Fleet, and the documents that describe them."""

import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ingero_agent.collector import not_ready, stuck
from ingero_agent.health.phase import Phase
from ingero_kit.addresses import is_local_name, parse_listen
from ingero_kit.metrics_server import LIMITS, PageServer, metrics_pages
from ingero_testing.nvml import build_nvml
from ingero_testing.processes import BIN, Running, fleet, process, wait_until
from ingero_testing.web import web

ROOT = Path(__file__).parents[2]


def agent(folder: Path, service: Running, *flags: str, **environment: str) -> Any:
    """An agent with pages; `page` finds them."""
    return process(
        folder / "agent.log", str(BIN / "ingero-agent"), "fleet-push",
        "--fleet-endpoint", f"127.0.0.1:{service.ports['otlp/http']}", "--fleet-insecure",
        "--fleet-cluster-id", "lab", "--fleet-node-id", "n", "--fleet-push-interval", "200ms",
        "--warmup-samples", "3", "--no-detect-provider", "--fleet-persist-path", str(folder / "baseline.json"),
        "--metrics-listen", "127.0.0.1:0", "--ports-file", str(folder / "agent.json"), *flags, **environment,
    )  # fmt: skip


class Pages:
    """What a process serves."""

    def __init__(self, ports: Path) -> None:
        wait_until(ports.exists, "the pages")
        self.base = f"http://127.0.0.1:{json.loads(ports.read_text())['metrics']}"

    def get(self, path: str) -> tuple[int, str]:
        answer = web.get(self.base + path)
        return answer.status_code, answer.text

    def samples(self) -> dict[str, float]:
        status, text = self.get("/metrics")
        assert status == 200
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found


def test_pages_report_how_the_agent_is_and_what_it_sees(tmp_path: Path) -> None:
    driver = build_nvml(tmp_path)
    with ExitStack() as stack:
        service = stack.enter_context(fleet(tmp_path))
        running = stack.enter_context(
            agent(
                tmp_path, service, "--stub", "--remediate", "--remediate-socket", str(tmp_path / "socket"),
                LD_LIBRARY_PATH=str(driver), NVML_COUNT="2", NVML_USED_GIB="20,60", NVML_REASONS="0x40,0",
            )
        )  # fmt: skip
        pages = Pages(tmp_path / "agent.json")
        wait_until(lambda: pages.get("/readyz")[0] == 200, "readiness")
        wait_until(lambda: pages.samples()['ingero_agent_state{state="active"}'] == 1.0, "the active state")
        wait_until(lambda: pages.samples()["ingero_agent_pushes_total"] >= 3, "three pushes")
        seen = pages.samples()

        assert seen["ingero_agent_polls_total"] >= seen["ingero_agent_pushes_total"]
        assert seen["ingero_agent_last_push_age_seconds"] >= 0
        assert seen["ingero_agent_fleet_reachable"] == 1
        assert seen["ingero_agent_straggler"] == 0
        assert seen["ingero_node_health_score"] == pytest.approx(1.0)
        assert seen["ingero_node_throughput_rate"] == 100
        assert seen["ingero_node_memory_headroom"] == 0.5
        assert seen['ingero_node_info{gpu_count="2",gpu_model="NVIDIA Imaginary 80GB"}'] == 1
        assert seen['gpu_throttle_thermal_active{gpu_uuid="GPU-0"}'] == 1
        assert seen['gpu_throttle_thermal_active{gpu_uuid="GPU-1"}'] == 0
        assert seen['gpu_throttle_hw_event_total{gpu_uuid="GPU-0"}'] == 1
        assert seen["ingero_agent_event_consumers"] == 0
        assert sum(value for name, value in seen.items() if name.startswith("ingero_agent_push_failures_total")) == 0
        assert pages.get("/healthz") == (200, "ok\n")
        assert pages.get("/elsewhere") == (404, "not found; here is /metrics, /healthz, /readyz, /api/v1/explain\n")
        assert pages.get("/api/v1/explain")[1].startswith("this agent reads no trace")
        undocumented(seen)

        service.process.kill()
        service.process.wait(10)
        wait_until(lambda: pages.get("/readyz") == (503, "not ready: fleet_unreachable\n"), "the loss of Fleet")
        seen = pages.samples()
        assert seen['ingero_agent_push_failures_total{reason="unreachable"}'] >= 3
        assert seen["ingero_agent_push_retries_total"] >= 3
        assert seen["ingero_agent_fleet_reachable"] == 0
        assert pages.get("/healthz")[0] == 200

        running.process.send_signal(signal.SIGHUP)
        assert running.process.wait(20) == 0


def undocumented(seen: dict[str, float]) -> None:
    """What the page shows stands in the document, and the document names nothing that is not there."""
    text = (ROOT / "docs/metrics.md").read_text().partition("## Agent")[2].partition("\n## ")[0]
    documented = {name for row in text.splitlines() if row.startswith("| `") for name in row_names(row)}
    shown = {name.partition("{")[0] for name in seen}
    shown = {name for name in shown if not name.startswith(("process_", "python_")) and not name.endswith("_created")}
    sometimes = {name for row in text.splitlines() if "(when " in row for name in row_names(row)}

    assert shown - documented == set()
    assert documented - shown - sometimes == set()


def row_names(row: str) -> Iterator[str]:
    yield from re.findall(r"`((?:ingero|gpu)_[a-z_]+)`", row.split("|")[1])


def test_a_source_that_cannot_be_read_is_reported_and_its_signals_go(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("stages: [{seconds: 1}, {seconds: 600, fail: true}]\n")
    with fleet(tmp_path) as service, agent(tmp_path, service, "--stub-script", str(script)):
        pages = Pages(tmp_path / "agent.json")
        wait_until(lambda: pages.get("/readyz") == (503, "not ready: source_unreadable\n"), "the stale state")
        seen = pages.samples()

        assert "ingero_node_health_score" not in seen
        assert seen['ingero_agent_state{state="stale"}'] == 1
        assert seen["ingero_agent_failed_polls_total"] >= 3


def test_an_address_in_use_is_said_in_words(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with process(
            tmp_path / "log", str(BIN / "ingero-agent"), "fleet-push", "--stub", "--fleet-endpoint", "127.0.0.1:9",
            "--fleet-insecure", "--fleet-cluster-id", "c", "--no-detect-provider", "--metrics-listen", address,
            "--fleet-persist-path", str(tmp_path / "baseline.json"),
        ) as refused:  # fmt: skip
            assert refused.process.wait(60) == 1
            assert f"--metrics-listen {address}" in refused.words()
            assert "in use" in refused.words()


# Pure parts.


@pytest.mark.parametrize(
    ("phase", "pushed", "reachable", "reason"),
    [
        (Phase.ACTIVE, True, True, None),
        (Phase.IDLE, True, True, None),
        (Phase.CALIBRATING, False, True, "no_push_yet"),
        (Phase.ACTIVE, True, False, "fleet_unreachable"),
        (Phase.STALE, True, True, "source_unreadable"),
    ],
)
def test_readiness(phase: Phase, pushed: bool, reachable: bool, reason: str | None) -> None:
    assert not_ready(phase, pushed, reachable) == reason


@pytest.mark.parametrize(
    ("idle", "interval", "asked", "well"),
    [(49.0, 1.0, 0.0, True), (51.0, 1.0, 0.0, False), (300.0, 60.0, 0.0, True), (600.0, 1.0, 900.0, True)],
)
def test_a_loop_that_stopped_is_not_healthy(idle: float, interval: float, asked: float, well: bool) -> None:
    assert (stuck(idle, interval, 5.0, asked) is None) is well


@pytest.mark.parametrize(
    ("text", "address", "exposed"),
    [
        ("127.0.0.1:9465", ("127.0.0.1", 9465), False),
        (":9465", ("", 9465), True),
        ("[::1]:0", ("::1", 0), False),
        ("0.0.0.0:1", ("0.0.0.0", 1), True),
    ],
)
def test_addresses_to_listen_on(text: str, address: tuple[str, int], exposed: bool) -> None:
    assert parse_listen(text) == address
    assert is_local_name(address[0]) is not exposed


@pytest.mark.parametrize("text", ["9465", "host", "host:x", "host:70000", ""])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_listen(text)


def test_clients_that_say_nothing_make_room_for_those_who_ask() -> None:
    server = PageServer(("127.0.0.1", 0), metrics_pages([], lambda: None, lambda: None))
    hangers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(LIMITS.connections + 20)]
    try:
        for _ in range(3):
            assert web.get(f"http://127.0.0.1:{server.port}/readyz").status_code == 200
        assert web.head(f"http://127.0.0.1:{server.port}/healthz").text == ""
        for hanger in hangers[:20]:
            assert hanger.recv(1) == b""
    finally:
        for hanger in hangers:
            hanger.close()
        server.stop()
