"""Three real Fleets on a real NATS server: one verdict everywhere, while Fleets end and the log comes and goes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from ingero_contract import headers, routes
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_testing.processes import Running, fleet, wait_until
from ingero_testing.web import web
from scripts.nats_servers import NatsServers, nats_servers

TOKEN = "secret-of-the-state"
PROTOBUF = {"content-type": "application/x-protobuf"}
NODES = "abcdefg"


@contextmanager
def replicas(folder: Path, servers: NatsServers, count: int, prefix: str) -> Iterator[list[Running]]:
    """Fleets that share a log."""
    with ExitStack() as stack:
        yield [stack.enter_context(replica(folder / str(number), servers, prefix)) for number in range(count)]


@contextmanager
def replica(folder: Path, servers: NatsServers, prefix: str) -> Iterator[Running]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(TOKEN)
    nats = {"servers": servers.urls, "prefix": prefix, "max_bytes": 16 << 20}
    change = {
        "log": {"nats": nats},
        "extensions": {"healthee": {"auth": {"bearer_token_file": str(folder / "token")}}},
    }
    with fleet(folder, change) as running:
        yield running


def state(one: Running) -> dict[str, Any]:
    found: dict[str, Any] = web.get(
        one.url("health", routes.FLEET_STATE), headers={"authorization": f"Bearer {TOKEN}"}
    ).json()
    return found


def log_answer(one: Running) -> dict[str, Any]:
    found: dict[str, Any] = web.get(one.url("threshold", routes.FLEET_LOG)).json()
    return found


def push(one: Running, node: str, rate: float) -> str:
    """Push a report; returns the verdict of the answer."""
    body = encode_report(HealthReport(node_id=node, cluster_id="c", score=0.9, rate=rate)).SerializeToString()
    answer = web.post(one.url("otlp/http", routes.OTLP_METRICS), content=body, headers=PROTOBUF)
    assert answer.status_code == 200
    return str(answer.headers.get(headers.VERDICT, ""))


class Traffic:
    """Nodes that push to the Fleets in turn."""

    def __init__(self, fleets: list[Running]) -> None:
        self.fleets, self.rounds = fleets, 0
        self.lines: dict[str, str] = {}

    def until(self, done: Any, what: str, **slow: float) -> None:
        """Push until something holds; a pause of about a third of an interval lies between two rounds."""

        def step() -> bool:
            self.rounds += 1
            for place, node in enumerate(NODES):
                one = self.fleets[(place + self.rounds) % len(self.fleets)]
                self.lines[node] = push(one, node, 90 * slow.get(node, 1.0)) or self.lines.get(node, "")
            return bool(done())

        wait_until(step, what)


def stragglers(one: Running) -> list[str]:
    answer = web.get(one.url("threshold", routes.FLEET_STRAGGLERS))
    return [item["node_id"] for item in answer.json()["stragglers"]] if answer.status_code == 200 else ["?"]


def agree(fleets: list[Running]) -> bool:
    """All have the same state hash of the same tick, and none ever differed."""
    facts = [state(one) for one in fleets]
    assert not any(item["replication"].get("states_differed") for item in facts)
    return (
        facts[0]["state_hash"] != "" and len({(item["state_hash_tick"], item["state_hash"]) for item in facts}) == 1
    )


def reload(one: Running, config: Path) -> None:
    """Change settings that replicas must have alike; Fleet names them, and keeps the old ones."""
    tree = yaml.safe_load(config.read_text())
    tree["processors"]["ingero"]["push_interval"] = "300ms"
    tree["log"]["nats"]["prefix"] = "other"
    config.write_text(yaml.safe_dump(tree))
    os.kill(one.process.pid, signal.SIGHUP)
    wait_until(lambda: "reloaded" in one.words(), "the settings to be read again")
    (warning,) = [line for line in one.words().splitlines() if "restart_needed" in line]
    assert json.loads(warning)["settings"] == ["processors.ingero.push_interval", "log"]


def test_three_fleets_give_one_verdict_through_the_end_of_one_and_the_absence_of_the_log(tmp_path: Path) -> None:
    with nats_servers(tmp_path / "nats") as servers, replicas(tmp_path, servers, 3, "three") as fleets:
        traffic = Traffic(fleets)
        traffic.until(lambda: set(traffic.lines.values()) == {"healthy"}, "everybody to be known")
        traffic.until(lambda: all(stragglers(one) == ["b"] for one in fleets), "one verdict everywhere", b=0.5)
        traffic.until(lambda: agree(fleets), "equal states", b=0.5)

        first = fleets[0]
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(10)
        traffic.fleets = fleets[1:]
        ticks = state(fleets[1])["ticks"]
        traffic.until(lambda: state(fleets[1])["ticks"] > ticks + 3, "ticks to go on", b=0.5)
        assert stragglers(fleets[1]) == stragglers(fleets[2]) == ["b"]

        with replica(tmp_path / "0", servers, "three") as again:
            traffic.fleets = [again, *fleets[1:]]
            traffic.until(lambda: stragglers(again) == ["b"] and agree(traffic.fleets), "the new one to agree", b=0.5)
            assert state(again)["replication"]["snapshots_loaded"] == 1
            traffic.until(lambda: all(stragglers(one) == [] for one in traffic.fleets), "its recovery")

            servers.kill(0)
            traffic.until(
                lambda: all(state(one)["log"].startswith("away since") for one in traffic.fleets), "the log's absence"
            )
            absent = [log_answer(one) for one in traffic.fleets]
            assert [item["state"] for item in absent] == ["away"] * 3 and all(item["away_since"] for item in absent)
            # A tick that was sent before the end of the log may still be judged.
            traffic.until(lambda: state(again)["last_tick_age_seconds"] > 3, "the last tick")
            ticks = state(again)["ticks"]
            traffic.until(lambda: state(again)["last_tick_age_seconds"] > 6, "results to age")
            assert state(again)["ticks"] == ticks and state(again)["healthy"]
            assert web.get(again.url("health", routes.FLEET_HEALTH)).status_code == 200
            servers.start(0)
            traffic.until(lambda: state(again)["ticks"] > ticks + 10, "ticks to come back")
            traffic.until(lambda: agree(traffic.fleets), "equal states after the absence")
            assert [stragglers(one) for one in traffic.fleets] == [[], [], []]
            traffic.until(
                lambda: {log_answer(one)["state"] for one in traffic.fleets} == {"ok"}, "a log that is read"
            )
            reload(again, tmp_path / "0/fleet.yaml")
            ticks = state(again)["ticks"]
            traffic.until(lambda: state(again)["ticks"] > ticks + 3, "ticks after the reload")
            answers = [log_answer(one) for one in traffic.fleets]
            assert len({item["replica"] for item in answers}) == 3 and len({item["rules"] for item in answers}) == 1
            assert all(item["state_hash"] and item["state_hash_tick"] for item in answers)
            assert not any(item["parked"] or item["rewound"] for item in answers)
            assert "edge=accused" not in again.words()


def test_a_fleet_that_is_alone_imports_nothing_of_the_log() -> None:
    code = "import sys, ingero_fleet.cli, ingero_fleet.app; print([m for m in sys.modules if 'nats' in m.split('.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
