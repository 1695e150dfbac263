"""Agents, Fleet and sink as real processes: the slow one is named, all the way to Prometheus."""

import json
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ingero_contract import routes
from ingero_testing.processes import BIN, Running, fleet, process, wait_until
from ingero_testing.web import web

TAKEN = 'ingero_agent_thresholds_total{outcome="taken"}'
STAGES = "stages: [{seconds: 3}, {seconds: 600, launches_per_second: 10}]\n"


def agent(folder: Path, service: Running, node: str, *source: str, protocol: str = "http") -> Any:
    return process(
        folder / f"{node}.log", str(BIN / "ingero-agent"), "fleet-push", *source, "--fleet-protocol", protocol,
        "--fleet-endpoint", f"127.0.0.1:{service.ports[f'otlp/{protocol}']}", "--fleet-insecure",
        "--fleet-cluster-id", "lab", "--fleet-node-id", node, "--fleet-push-interval", "200ms",
        "--warmup-samples", "5", "--no-detect-provider", "--fleet-persist-interval", "200ms",
        "--fleet-persist-path", str(folder / f"{node}.json"),
        "--remediate", "--remediate-socket", str(folder / f"{node}.sock"),
        "--metrics-listen", "127.0.0.1:0", "--ports-file", str(folder / f"{node}.ports"),
    )  # fmt: skip


def port_of(folder: Path, node: str) -> int:
    return int(json.loads((folder / f"{node}.ports").read_text())["metrics"])


def metrics(port: int) -> dict[str, float]:
    page = web.get(f"http://127.0.0.1:{port}/metrics").text
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line[0] != "#"}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_slow_node_reaches_prometheus_and_every_consumer(tmp_path: Path, protocol: str) -> None:
    script = tmp_path / "slow.yaml"
    script.write_text(STAGES)
    with ExitStack() as stack:
        service = stack.enter_context(fleet(tmp_path))
        for node in ("n0", "n1", "n2"):
            stack.enter_context(agent(tmp_path, service, node, "--stub", protocol=protocol))
        slow = stack.enter_context(agent(tmp_path, service, "slow", "--stub-script", str(script), protocol=protocol))
        ports = tmp_path / "sink.json"
        sink = stack.enter_context(
            process(
                tmp_path / "sink.log", str(BIN / "ingero-sink"), "--remediate-socket", str(tmp_path / "slow.sock"),
                "--listen", "127.0.0.1:0", "--reconnect-delay", "100ms", "--ports-file", str(ports),
            )
        )  # fmt: skip
        wait_until(ports.exists, "the sink")
        port = json.loads(ports.read_text())["metrics"]
        with socket.socket(socket.AF_UNIX) as second:
            wait_until(lambda: second.connect_ex(str(tmp_path / "slow.sock")) == 0, "the agent's socket")
            second.settimeout(90)
            first_line = second.makefile().readline()
        active = 'ingero_sink_active_stragglers{cluster_id="lab",node_id="slow"}'
        wait_until(lambda: metrics(port).get(active) == 1.0, "the straggler at the sink")

        assert json.loads(first_line)["node_id"] == "slow"
        assert web.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        named = web.get(service.url("threshold", routes.FLEET_STRAGGLERS)).json()["stragglers"]
        assert [node["node_id"] for node in named] == ["slow"]
        assert metrics(port)["ingero_sink_parse_errors_total"] == 0

        slow.process.terminate()
        assert slow.process.wait(10) == 0
        wait_until(lambda: active not in metrics(port), "the straggler to be resolved at the agent's end")
        wait_until(lambda: metrics(port)["ingero_sink_connected"] == 0.0, "the sink to notice")
        assert sink.process.poll() is None


def test_fleet_may_go_and_come_back(tmp_path: Path) -> None:
    protocols = {"n0": "http", "n1": "grpc", "n2": "http"}
    with ExitStack() as stack:
        service = stack.enter_context(fleet(tmp_path))
        nodes = {
            name: stack.enter_context(agent(tmp_path, service, name, "--stub", protocol=protocol))
            for name, protocol in protocols.items()
        }

        def all_in(mode: str, times: int = 1) -> bool:
            return all(node.words().count(f'"new": "{mode}"') >= times for node in nodes.values())

        wait_until(lambda: all_in("fleet"), "the mode fleet")
        wait_until(
            lambda: all(metrics(port_of(tmp_path, name)).get(TAKEN, 0) > 0 for name in nodes),
            "a threshold to fall back upon",
        )
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait(10)
        wait_until(lambda: all_in("local-cached"), "the mode local-cached")

        listen = {
            protocol: {"endpoint": f"127.0.0.1:{service.ports[f'otlp/{protocol}']}"} for protocol in ("http", "grpc")
        }
        again = stack.enter_context(fleet(tmp_path / "again", {"receivers": {"otlp": {"protocols": listen}}}))
        url = again.url("threshold", f"{routes.FLEET_THRESHOLD}?cluster_id=lab")
        wait_until(lambda: web.get(url).json()["quorum_met"], "the quorum to be back")
        wait_until(lambda: all_in("fleet", 2), "the mode fleet again")


def test_a_killed_agent_comes_back_without_a_new_warm_up(tmp_path: Path) -> None:
    with fleet(tmp_path) as service:
        with agent(tmp_path, service, "n0", "--stub") as first:
            wait_until((tmp_path / "n0.json").exists, "the saved baseline")
            os.kill(first.process.pid, signal.SIGKILL)
            first.process.wait(10)
        with agent(tmp_path, service, "n0", "--stub") as second:
            wait_until(lambda: '"outcome": "fresh"' in second.words(), "the restored baseline")


def test_settings_that_make_no_sense_are_named(tmp_path: Path) -> None:
    with process(tmp_path / "log", str(BIN / "ingero-agent"), "fleet-push", "--stub", "--watch-pid", "1",
                 "--fleet-endpoint", "x:1", "--fleet-cluster-id", "c") as refused:  # fmt: skip
        assert refused.process.wait(30) == 2
        assert "choose one source" in refused.words()
