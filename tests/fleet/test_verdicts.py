"""The detector inside Fleet: verdicts in responses, exports, state after a kill, recordings."""

import asyncio
import csv
import io
import json
import math
import os
import signal
import subprocess
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from rich.console import Console

from ingero_analyze.replay.judge import replay
from ingero_analyze.replay.recorded_history import RecordedHistory
from ingero_analyze.replay.report import print_table
from ingero_contract import attributes, headers, metrics, routes
from ingero_contract.identifiers import node_key
from ingero_contract.values import NodeState
from ingero_contract.verdicts import parse_verdict
from ingero_fleet import threshold_rule, verdict_records
from ingero_fleet.collectors import ENGINE, FindingsCollector
from ingero_fleet.engine import Engine
from ingero_fleet.live_detector import LiveDetector, parameters_of
from ingero_fleet.processor_settings import CohortConfig, DetectorConfig, IngeroConfig, ProcessorsConfig, QuorumConfig
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ScoreLimits, ScoreTable
from ingero_fleet.state_machine import StateMachine
from ingero_fleet.threshold_rule import RuleState
from ingero_fleet.tick_snapshot import TickSnapshot, stragglers_answer
from ingero_kit.health_report import HealthReport
from ingero_kit.metrics_table import TableCollector
from ingero_kit.otlp_encode import encode_report
from ingero_testing.metrics import sample
from ingero_testing.processes import BIN, Running, fleet, wait_until
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}
NODES = ("a", "b", "d", "e")


def push(service: Running, node: str, score: float, last: str = "", rate: float | None = None) -> str:
    """Push one report; returns the verdict in the answer."""
    rate = 100 * score if rate is None else rate
    report = HealthReport(node_id=node, cluster_id="c", score=score, rate=rate, last_verdict=last)
    answer = web.post(
        service.url("otlp/http", routes.OTLP_METRICS),
        content=encode_report(report).SerializeToString(),
        headers=PROTOBUF,
    )
    assert answer.status_code == 200
    return answer.headers.get(headers.VERDICT, "")


def rounds(service: Running, node_verdicts: dict[str, str], **score_table: float) -> dict[str, str]:
    """One push of every node, which echoes its last verdict."""
    for node in NODES:
        node_verdicts[node] = push(
            service, node, score_table.get(node, 0.9), node_verdicts.get(node, "")
        ) or node_verdicts.get(node, "")
    return node_verdicts


def drive(service: Running, node_verdicts: dict[str, str], until: Any, what: str, **score_table: float) -> None:
    """Push rounds until something is so."""
    wait_until(lambda: bool(until(rounds(service, node_verdicts, **score_table))), what)


def stragglers(service: Running) -> list[str]:
    answer = web.get(service.url("threshold", routes.FLEET_STRAGGLERS))
    return [node["node_id"] for node in answer.json()["stragglers"]] if answer.status_code == 200 else []


def test_nodes_receive_their_verdict_and_its_evidence_can_be_asked_for(tmp_path: Path) -> None:
    with fleet(tmp_path) as service:
        node_verdicts: dict[str, str] = {}
        drive(service, node_verdicts, lambda now: set(now.values()) == {"healthy"}, "everybody to be known")
        drive(service, node_verdicts, lambda now: now["b"].startswith("straggler"), "a verdict", b=0.5)

        line = parse_verdict(node_verdicts["b"])
        assert line is not None
        assert line.severity == pytest.approx(0.44, abs=0.02)
        assert {node_verdicts[node] for node in "ade"} == {"healthy"}
        nodes = web.get(service.url("threshold", routes.FLEET_VERDICTS)).json()["nodes"]
        verdict = next(node["verdict"] for node in nodes if node["node_id"] == "b")
        assert verdict["axis"] == "own_history"
        assert verdict["value"] == pytest.approx(50)
        assert verdict["expected"] == pytest.approx(90)
        page = web.get(service.url("prometheus", "/metrics")).text
        assert 'ingero_fleet_accused_nodes{cluster_id="c",kind="slow"} 1.0' in page
        assert "ingero_fleet_accusations_total 1.0" in page

        drive(service, node_verdicts, lambda now: now["b"] == "healthy", "its recovery")
        assert stragglers(service) == []


def test_slowing_all_nodes_accuses_nobody(tmp_path: Path) -> None:
    with fleet(tmp_path) as service:
        node_verdicts: dict[str, str] = {}
        drive(service, node_verdicts, lambda now: set(now.values()) == {"healthy"}, "everybody to be known")

        def settled(now: dict[str, str]) -> bool:
            assert not any("straggler" in line for line in now.values())
            return "ingero_fleet_job_slow{" in web.get(service.url("prometheus", "/metrics")).text

        drive(service, node_verdicts, settled, "the job to be called slow", a=0.5, b=0.5, d=0.5, e=0.5)
        assert stragglers(service) == []


def test_scores_that_fall_everywhere_do_not_stop_what_rates_prove(tmp_path: Path) -> None:
    with fleet(tmp_path) as service:
        node_verdicts: dict[str, str] = {}
        drive(service, node_verdicts, lambda now: set(now.values()) == {"healthy"}, "everybody to be known")

        def seen() -> bool:
            for node in NODES:
                node_verdicts[node] = (
                    push(service, node, 0.3, node_verdicts[node], 45.0 if node == "b" else 90.0)
                    or node_verdicts[node]
                )
            page = web.get(service.url("prometheus", "/metrics")).text
            return stragglers(service) == ["b"] and 'ingero_fleet_panic_mode{cluster_id="c"} 1.0' in page

        wait_until(seen, "the straggler, and the threshold to panic")
        assert web.get(service.url("threshold", routes.FLEET_STRAGGLERS)).json()["panic"] is False


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_kill_in_the_middle_of_an_episode_forgets_no_straggler_and_clears_none(
    tmp_path: Path, snapshot: bool
) -> None:
    detector = {"snapshot": str(tmp_path / "state.npz"), "snapshot_interval": "1s"} if snapshot else {}
    change = {"processors": {"ingero": {"detector": detector}}}
    node_verdicts: dict[str, str] = {}
    with fleet(tmp_path, change) as service:
        drive(service, node_verdicts, lambda now: set(now.values()) == {"healthy"}, "everybody to be known")
        drive(service, node_verdicts, lambda now: now["b"].startswith("straggler"), "a verdict", b=0.5)
        if snapshot:
            (tmp_path / "state.npz").unlink(missing_ok=True)
            drive(service, node_verdicts, lambda _: (tmp_path / "state.npz").exists(), "a snapshot", b=0.5)
        booked_since = web.get(service.url("threshold", routes.FLEET_COST)).json()["since"]
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait(10)
    with fleet(tmp_path, change) as service:
        drive(
            service, node_verdicts, lambda _: stragglers(service) == ["b"], "the straggler to be known again", b=0.5
        )
        states: set[str] = set()

        def learnt(now: dict[str, str]) -> bool:
            states.add(now["b"].split(";")[0])
            return now["a"] == "healthy"

        drive(service, node_verdicts, learnt, "the others to be known", b=0.5)
        assert states == {"straggler"}
        drive(service, node_verdicts, lambda now: now["b"] == "healthy", "its recovery", b=0.9)
        assert stragglers(service) == []
        kept = web.get(service.url("threshold", routes.FLEET_COST)).json()["since"] == booked_since
        hashed = "state_hash" in web.get(service.url("zpages", "/debug/servicez")).text
        assert kept is hashed is snapshot


def test_a_node_that_falls_soon_after_a_restart_is_named_by_its_second_report(tmp_path: Path) -> None:
    """After the second start the snapshot is older than a gap that counts as silence of all nodes."""
    node_verdicts: dict[str, str] = {}
    state = tmp_path / "state.npz"

    def restarted(name: str) -> AbstractContextManager[Running]:
        files = {"snapshot": str(state), "record": str(tmp_path / name)}
        return fleet(tmp_path, {"processors": {"ingero": {"push_interval": "500ms", "detector": files}}})

    with restarted("first.csv") as service:
        drive(service, node_verdicts, lambda now: set(now.values()) == {"healthy"}, "everybody to be known")
    old = state.read_bytes()
    with restarted("second.csv") as service:
        drive(service, node_verdicts, lambda _: len(reports(tmp_path / "second.csv", "b")) > 8, "the snapshot to age")
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait(10)
    state.write_bytes(old)
    with restarted("third.csv") as service:

        def after(b: float) -> list[float]:
            for node in ("new-1", "new-2"):
                push(service, node, 0.9)
            rounds(service, node_verdicts, b=b)
            return reports(tmp_path / "third.csv", "b")

        wait_until(lambda: len(after(0.9)) >= 2, "two ticks after the restart")
        wait_until(lambda: bool(after(0.45)) and stragglers(service) == ["b"], "the straggler")
        nodes = web.get(service.url("threshold", routes.FLEET_VERDICTS)).json()["nodes"]
        verdict = next(node["verdict"] for node in nodes if node["node_id"] == "b")
        assert verdict["expected"] == pytest.approx(90)
        fallen = [rate for rate in reports(tmp_path / "third.csv", "b", verdict["detected"]) if rate < 90]
        assert fallen == pytest.approx([45, 45])
        assert {node_verdicts[node] for node in "ade"} == {"healthy"}


def reports(record: Path, node: str, until: str | None = None) -> list[float]:
    """The rates of a node in the ticks that Fleet has recorded so far, or until a time."""
    if not record.exists():
        return []
    end = datetime.fromisoformat(until).timestamp() if until else math.inf
    lines = record.read_text().rpartition("\n")[0].splitlines()
    rows = [row for row in csv.DictReader(lines) if row["node"] == node and row["rate"]]
    return [float(row["rate"]) for row in rows if float(row["time"]) <= end + 0.001]


def test_edges_of_verdicts_go_onward_as_log_records(tmp_path: Path) -> None:
    with fleet(tmp_path / "next", {"service": {"pipelines": {"logs": {"exporters": ["otlphttp"]}}},
                                   "exporters": {"otlphttp": {"endpoint": "127.0.0.1:9"}}}) as service:  # fmt: skip
        node_verdicts: dict[str, str] = {}
        drive(service, node_verdicts, lambda now: set(now.values()) == {"healthy"}, "everybody to be known")
        drive(service, node_verdicts, lambda now: now["b"].startswith("straggler"), "a verdict", b=0.5)

        wait_until(
            lambda: (
                'ingero_fleet_export_queue{exporter="otlphttp"}' in web.get(service.url("telemetry", "/metrics")).text
            ),
            "the queue",
        )
        assert "verdict" in service.words()


CONFIG = IngeroConfig(
    push_interval=10.0, quorum=QuorumConfig(statistical_min=3), cohort=CohortConfig(by=("workload_type", "gpu_model"))
)


def judged(folder: Path, ticks: int = 120) -> tuple[LiveDetector, list[Any]]:
    """Fleet's own path from reports to edges, with a recording; some nodes come late, fall silent, rest, or move."""
    config = CONFIG.model_copy(update={"detector": DetectorConfig(warmup_ticks=10, record=folder / "record.csv")})
    table = ScoreTable(ScoreLimits(nodes=100, clusters=10, ttl_seconds=50), config.cohort.by)
    detector, rng, found = LiveDetector(config), np.random.default_rng(5), []
    for tick in range(ticks):
        now = 1_700_000_000.0 + 10 * tick + rng.uniform(-2, 2)
        for number in range(9):
            if (number == 8 and tick < 20) or (number == 7 and 30 < tick < 45) or rng.random() < 0.05:
                continue
            idle = number == 6 and tick > 90
            rate = 100 * float(np.exp(0.03 * rng.normal())) * (0.5 if number == 2 and 60 < tick < 90 else 1)
            report = HealthReport(
                node_id=f"n{number}", cluster_id="c", state=NodeState.IDLE if idle else NodeState.ACTIVE,
                score=0.0 if idle else 0.9, rate=None if number == 5 else 0.0 if idle else rate,
                workload_type="train", gpu_model="H100" if number != 4 else "H200",
            )  # fmt: skip
            assert isinstance(table.observe(report, now), int)
        table.expire(now)
        findings = detector.judge(ScoreSnapshot.take(table, now), {})
        found += findings.edges
    detector.close()
    return detector, found


def test_an_accused_node_that_is_silent_for_a_day_is_released_when_it_is_forgotten() -> None:
    """Without a last edge it would stay accused for ever wherever edges are kept."""
    minutes = 600.0
    config = CONFIG.model_copy(update={"push_interval": minutes, "detector": DetectorConfig(warmup_ticks=10)})
    table, detector = ScoreTable(ScoreLimits(100, 10, 5 * minutes), config.cohort.by), LiveDetector(config)
    found, gone_at = [], 60
    for tick in range(gone_at + 2 * 144):
        now = 1_700_000_000.0 + minutes * tick
        for number in range(9):
            if number == 3 and tick >= gone_at:
                continue
            rate = 50.0 if number == 3 and tick >= 40 else 100.0 + number + tick % 3
            report = HealthReport(node_id=f"n{number}", cluster_id="c", score=0.9, rate=rate)
            assert isinstance(table.observe(report, now), int)
        table.expire(now)
        found += detector.judge(ScoreSnapshot.take(table, now), {}).edges

    accused, released = found
    assert [accused.verdict.node, accused.what, released.verdict.node, released.what] == [
        "n3", "accused", "n3", "cleared",
    ]  # fmt: skip
    assert released.verdict.time - accused.verdict.time >= 86_400
    body = verdict_records.encode([released])
    assert body is not None
    record = ExportLogsServiceRequest.FromString(body).resource_logs[0].scope_logs[0].log_records[0]
    states = {item.key: item.value.string_value for item in record.attributes}
    assert states[attributes.VERDICT_STATE] == "learning"
    assert "silent" in record.body.string_value


def test_ticks_until_nodes_reconnect_after_a_restart_are_no_silence() -> None:
    config = CONFIG.model_copy(update={"detector": DetectorConfig(warmup_ticks=10)})
    detector, now, found = LiveDetector(config), 1_700_000_000.0, []
    table = ScoreTable(ScoreLimits(100, 10, 1e9), config.cohort.by)
    for tick in range(40):
        now += 10.0
        if tick == 20:
            state = detector.state()
            detector, table = LiveDetector(config), ScoreTable(ScoreLimits(100, 10, 1e9), config.cohort.by)
            detector.restore(state, continued=False)
        for number in range(9 if not 20 <= tick < 25 else 2):
            rate = 45.0 if number == 7 and tick >= 27 else 100.0 + number + tick % 3
            report = HealthReport(node_id=f"n{number}", cluster_id="c", score=0.9, rate=rate)
            assert isinstance(table.observe(report, now), int)
        found += [(tick, edge) for edge in detector.judge(ScoreSnapshot.take(table, now), {}).edges]

    ((tick, edge),) = found
    assert (tick, edge.what, edge.verdict.node) == (28, "accused", "n7")


def test_pushes_that_come_slower_than_ticks_are_judged_by_the_round(tmp_path: Path) -> None:
    """Every node pushes once in five ticks, each at its own time."""
    config = CONFIG.model_copy(update={"push_interval": 1.0, "detector": DetectorConfig(warmup_ticks=8)})
    table, detector, found = ScoreTable(ScoreLimits(100, 10, 1e9), config.cohort.by), LiveDetector(config), []
    for tick in range(200):
        for number in range(10):
            if tick % 5 == number % 5:
                slow = number == 7 and tick >= 120
                report = HealthReport(node_id=f"n{number}", cluster_id="c", score=0.3 if slow else 0.9)
                assert isinstance(table.observe(report, float(tick)), int)
        found += [(tick, edge) for edge in detector.judge(ScoreSnapshot.take(table, float(tick)), {}).edges]

    ((tick, edge),) = found
    assert (edge.what, edge.verdict.node) == ("accused", "n7")
    assert tick <= 120 + 3 * 5


def born_slow(echo: str = "") -> tuple[ScoreTable, LiveDetector, list[tuple[int, Any]], float]:
    """Twelve nodes, of which one does 30 % less from its first push; it reports `echo` as its last verdict."""
    config = CONFIG.model_copy(update={"push_interval": 1.0, "detector": DetectorConfig(warmup_ticks=10)})
    table, detector, found, now = (
        ScoreTable(ScoreLimits(100, 10, 1e9), config.cohort.by),
        LiveDetector(config),
        [],
        0.0,
    )
    rng = np.random.default_rng(3)
    for tick in range(40):
        now = float(tick)
        for number in range(12):
            rate = 100 * float(np.exp(0.01 * rng.normal())) * (0.7 if number == 5 else 1)
            last = echo if number == 5 else ""
            report = HealthReport(node_id=f"n{number}", cluster_id="c", score=0.9, rate=rate, last_verdict=last)
            assert isinstance(table.observe(report, now), int)
        echoed, table.last_verdict = table.last_verdict, {}
        found += [(tick, edge) for edge in detector.judge(ScoreSnapshot.take(table, now), echoed).edges]
    return table, detector, found, now


def test_a_node_that_is_slow_from_its_first_push_is_a_straggler_of_its_own_kind() -> None:
    for echo in ("", "straggler;kind=slow_from_start;since=1700000000;severity=0.3000"):
        _, _, found, _ = born_slow(echo)

        ((tick, edge),) = found
        assert (edge.what, edge.verdict.node, str(edge.verdict.kind)) == ("accused", "n5", "slow_from_start")
        assert tick <= 20


def test_collectives_that_wait_for_a_node_slow_from_the_start_make_it_a_late_rank() -> None:
    table, detector, _, now = born_slow()
    scores = ScoreSnapshot.take(table, now)
    findings = detector.judge(scores, {})
    snapshot = TickSnapshot(scores, threshold_rule.compute(scores, RuleState(), CONFIG), findings)
    late = {node_key("c", "n5"): {"kind": "late_rank", "since": "2026-01-01T00:00:00Z", "windows": 3, "share": 0.2}}

    kinds = [
        [item["kind"] for item in stragglers_answer(snapshot, "c", 1.0, late, actionable)["stragglers"]]
        for actionable in (False, True)
    ]

    assert kinds == [["slow_from_start"], ["late_rank"]]


def early(folder: Path) -> tuple[LiveDetector, list[Any], list[float]]:
    """Nine nodes that push once a tick; between two ticks the work of one collapses, and it says so at once."""
    config = CONFIG.model_copy(update={"detector": DetectorConfig(warmup_ticks=10, record=folder / "record.csv")})
    table, detector, rng = (
        ScoreTable(ScoreLimits(100, 10, 1e9), config.cohort.by),
        LiveDetector(config),
        np.random.default_rng(5),
    )
    found, polls, now = [], [], 1_700_000_000.0

    def report(number: int, rate: float) -> None:
        last_verdicts = HealthReport(node_id=f"n{number}", cluster_id="c", score=0.9, rate=rate, gpu_model="H100")
        assert isinstance(table.observe(last_verdicts, now), int)

    for tick in range(60):
        for number in range(9):
            report(number, 100 * float(np.exp(0.03 * rng.normal())) * (0.0 if number == 4 and tick >= 40 else 1))
        found += detector.judge(ScoreSnapshot.take(table, now), {}).edges
        if tick == 39:
            now += 4.0
            assert len(detector.fallen(table)) == 0
            report(4, 40.0)
            report(5, 99.0)
            rows = detector.fallen(table)
            assert [table.names[row][1] for row in rows.tolist()] == ["n4"]
            detector.judge_early(ScoreSnapshot.take(table, now, rows), rows)
            assert [table.names[row][1] for row in np.flatnonzero(table.view("fresh")).tolist()] == ["n5"]
            report(4, 30.0)
            assert len(detector.fallen(table)) == 0, "once between two ticks"
            polls.append(now)
        now += 10.0
    detector.close()
    return detector, found, polls


def test_a_collapse_between_ticks_is_confirmed_by_the_next_one(tmp_path: Path) -> None:
    _, found, (polled_at,) = early(tmp_path)

    (edge,) = found
    assert (edge.what, edge.verdict.node) == ("accused", "n4")
    assert edge.verdict.time == pytest.approx(polled_at + 10, abs=5)


def test_only_a_pause_of_fleet_itself_excuses_silent_nodes() -> None:
    """Nodes are forgotten after 50 s. Nothing arrives while a process stands still."""
    now = [1_700_000_000.0]
    engine = Engine(StateMachine(ProcessorsConfig(ingero=CONFIG), now[0]), lambda: now[0])

    def report(*numbers: int) -> None:
        for number in numbers:
            engine.table.observe(HealthReport(node_id=f"n{number}", cluster_id="c", score=0.9, rate=1.0), now[0])

    async def known_after(*steps: tuple[float, tuple[int, ...]]) -> int:
        for seconds, numbers in steps:
            now[0] += seconds
            report(*numbers)
            await engine.tick()
        return len(engine.table)

    async def run() -> list[int]:
        return [
            await known_after((10, (0, 1, 2)), (10, ()), (90, ())), await known_after(*[(10, (0, 1))] * 6),
            await known_after((45, (0,)), (45, (0,))),
        ]  # fmt: skip

    assert asyncio.run(run()) == [3, 2, 1]


def test_an_early_poll_sees_what_other_processes_heard() -> None:
    now = [1_700_000_000.0]
    config = CONFIG.model_copy(update={"detector": DetectorConfig(warmup_ticks=10)})
    engine = Engine(StateMachine(ProcessorsConfig(ingero=config), now[0]), lambda: now[0])

    def report(number: int, rate: float) -> None:
        last_verdicts = HealthReport(node_id=f"n{number}", cluster_id="c", score=0.9, rate=rate)
        assert isinstance(engine.table.observe(last_verdicts, now[0]), int)

    async def heard() -> None:
        report(4, 60.0)

    async def run() -> list[bool]:
        for tick in range(30):
            for number in range(9):
                report(number, 100.0 + (number + tick) % 3)
            await engine.tick()
            now[0] += config.push_interval
        before = await engine.early_poll()
        engine.collect_reports = heard
        return [before, await engine.early_poll()]

    assert asyncio.run(run()) == [False, True]
    assert engine.early_polls == 1
    engine.close()


def test_a_recording_with_early_polls_replays_to_the_same_bytes(tmp_path: Path) -> None:
    detector, live, _ = early(tmp_path)

    done = replay(RecordedHistory([str(tmp_path / "record.csv")], 10.0), "ingero", detector.detector.parameters)

    assert done.summary()["digest"] == detector.detector.view().digest
    assert [edge.verdict.encode() for edge in live] == [episode.first.encode() for episode in done.episodes]


def test_nodes_without_room_in_the_detector_are_counted_on_the_page() -> None:
    config = CONFIG.model_copy(update={"max_nodes": 3})
    table, detector = ScoreTable(ScoreLimits(100, 10, 1e9), config.cohort.by), LiveDetector(config)
    for name in "abcde":
        assert isinstance(table.observe(HealthReport(node_id=name, cluster_id="c", score=0.9), 0.0), int)
    scores = ScoreSnapshot.take(table, 0.0)

    findings = detector.judge(scores, {})

    snapshot = TickSnapshot(
        scores, threshold_rule.compute(scores, threshold_rule.RuleState(), config), findings, config.push_interval
    )
    collector = FindingsCollector(lambda: snapshot, config.cohort.by)
    assert sample(collector, "ingero_fleet_not_judged_total", what="node") == 2
    assert sample(collector, "ingero_fleet_not_judged_total", what="cohort") == 0


def test_what_fails_after_a_tick_is_counted_on_the_page_and_the_tick_stands() -> None:
    engine = Engine(StateMachine(ProcessorsConfig(ingero=CONFIG), 1_700_000_000.0), lambda: 1_700_000_000.0)

    def fails(_: TickSnapshot) -> None:
        raise ZeroDivisionError

    engine.after_tick.append(fails)

    asyncio.run(engine.tick())

    counted = TableCollector(ENGINE, lambda: engine)
    assert sample(counted, "ingero_fleet_failed_listeners_total") == 1
    assert sample(counted, "ingero_fleet_ticks_total") == 1


def test_a_recording_replays_to_the_same_verdicts_byte_for_byte(tmp_path: Path) -> None:
    detector, live = judged(tmp_path)
    assert {edge.verdict.node for edge in live} >= {"n2", "n6"}

    done = replay(RecordedHistory([str(tmp_path / "record.csv")], 10.0), "ingero", detector.detector.parameters)

    assert done.summary()["digest"] == detector.detector.view().digest
    accusations = [edge.verdict.encode() for edge in live if edge.what == "accused"]
    assert sorted(accusations) == sorted(episode.first.encode() for episode in done.episodes)


def test_the_command_judges_with_fleets_own_settings(tmp_path: Path) -> None:
    detector, _ = judged(tmp_path)
    config = tmp_path / "fleet.yaml"
    processor = CONFIG.model_copy(update={"detector": DetectorConfig(warmup_ticks=10)})
    assert parameters_of(processor) == detector.detector.parameters
    config.write_text(json.dumps({"processors": {"ingero": processor.model_dump(mode="json")}}))

    done = subprocess.run(
        [BIN / "ingero-fleet", "replay", "--config", config, tmp_path / "record.csv", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert json.loads(done.stdout)["summary"]["digest"] == detector.detector.view().digest


def test_an_edge_is_a_log_record_with_everything_that_decided(tmp_path: Path) -> None:
    _, live = judged(tmp_path)
    edge = next(edge for edge in live if edge.verdict.node == "n2")

    body = verdict_records.encode([edge])

    assert body is not None
    (block,) = ExportLogsServiceRequest.FromString(body).resource_logs
    (record,) = block.scope_logs[0].log_records
    values = {pair.key: pair.value for pair in record.attributes}
    assert record.event_name == metrics.VERDICT_EVENT
    assert {pair.key: pair.value.string_value for pair in block.resource.attributes} == {
        attributes.NODE_ID: "n2", attributes.CLUSTER_ID: "c",
    }  # fmt: skip
    assert values[attributes.VERDICT_STATE].string_value == "straggler"
    assert values[attributes.VERDICT_SEVERITY].double_value == pytest.approx(edge.verdict.severity, abs=1e-6)
    assert json.loads(values[attributes.VERDICT_EVIDENCE].string_value)["level"] > 0
    assert values[attributes.VERDICT_DIGEST].string_value == edge.verdict.digest
    assert verdict_records.encode([]) is None


def test_the_record_of_a_node_with_several_agents_says_that_nothing_acts_on_it(tmp_path: Path) -> None:
    _, live = judged(tmp_path)
    edge = next(edge for edge in live if edge.verdict.node == "n2")

    body = verdict_records.encode([edge], {node_key("c", "n2")})

    assert body is not None
    record = ExportLogsServiceRequest.FromString(body).resource_logs[0].scope_logs[0].log_records[0]
    values = {pair.key: pair.value.string_value for pair in record.attributes}
    assert json.loads(values[attributes.VERDICT_EVIDENCE])["several_agents"] is True
    assert record.body.string_value.endswith("several agents report as this node, so nothing acts on it")


def test_a_replay_says_whether_its_results_are_those_of_the_recording(tmp_path: Path) -> None:
    """A state hash that differs stands for a processor on which NumPy's functions differ in the last bits."""
    detector, _ = judged(tmp_path)
    history = [str(tmp_path / "record.csv")]

    def again() -> tuple[Any, str]:
        done = replay(RecordedHistory(history, 10.0), "ingero", detector.detector.parameters)
        printed = io.StringIO()
        print_table(done, Console(file=printed, width=400))
        return done.summary()["recorded_states"], printed.getvalue()

    equal, printed = again()
    assert equal["compared"] == 9 and equal["differ"] == 0 and equal["replayed_with"].startswith("numpy ")
    assert "results are equal: all 9 recorded states are" in printed
    states = tmp_path / "record.csv.states"
    lines = states.read_text().splitlines()
    digest, _, processor = lines[-1].split(",")
    states.write_text("\n".join([*lines[:-1], f"{digest},{'0' * 32},{processor} other", "rubbish", ""]))
    differing, printed = again()
    assert differing == equal | {"differ": 1, "recorded_with": f"{processor} other"}
    assert "results may differ on this processor: 1 of 9" in printed
    states.unlink()
    assert again()[0] is None
