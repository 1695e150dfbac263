"""Several receiver processes are, to everybody outside, one Fleet."""

import asyncio
import os
import signal
import socket
from collections import Counter
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_contract import headers, routes
from ingero_contract.identifiers import node_key
from ingero_contract.values import NodeState, VerdictState
from ingero_fleet.agent_instances import instance_code
from ingero_fleet.export_state import ExportState
from ingero_fleet.receivers.messages import (
    MessageKind,
    VerdictCacheDecoder,
    decode_batch,
    decode_push,
    encode_batch,
    encode_message,
    encode_push,
    encode_verdict_cache,
    read_message,
)
from ingero_fleet.receivers.pool import ReceiverPool
from ingero_fleet.receivers.traffic import TRAFFIC_JSON, Traffic, total
from ingero_fleet.score_table import BATCH_COLUMNS, ScoreLimits, ScoreTable
from ingero_fleet.settings import FleetConfig
from ingero_fleet.verdict_cache import NodeVerdicts, VerdictCache
from ingero_http.limits import Counters
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Encoding, Signal
from ingero_testing.processes import BIN, FREE, Running, fleet, process, wait_until
from ingero_testing.web import web

LIMITS = ScoreLimits(nodes=100, clusters=10, ttl_seconds=1e9)
BY = ("job_id", "gpu_model")
REPORTS = st.builds(
    HealthReport,
    node_id=st.sampled_from("abcdefgh"),
    cluster_id=st.sampled_from(["one", "two"]),
    score=st.floats(0, 1),
    rate=st.none() | st.floats(0, 1e6),
    state=st.sampled_from(NodeState),
    job_id=st.sampled_from(["", "j", "k"]),
    gpu_model=st.sampled_from(["", "H100"]),
    gpu_count=st.integers(0, 8),
    world_size=st.integers(0, 64),
    rank=st.none() | st.integers(0, 63),
    last_verdict=st.sampled_from(["", "straggler; kind=slow", "healthy"]),
    instance_id=st.sampled_from(["", "a"]),
)


@given(st.lists(st.tuples(REPORTS, st.integers(0, 2), st.booleans())), st.integers(1, 5))
def test_what_several_maps_heard_is_what_one_map_would_have_heard(
    pushes: list[tuple[HealthReport, int, bool]], part: int
) -> None:
    alone, judge = ScoreTable(LIMITS, BY), ScoreTable(LIMITS, BY)
    heard = [ScoreTable(LIMITS, BY) for _ in range(3)]

    def hand_over() -> None:
        for table in heard:
            while (batch := table.take_fresh(part)).names:
                judge.merge(decode_batch(encode_batch(batch)))

    for now, (report, place, then) in enumerate(pushes):
        alone.observe(report, float(now))
        heard[place].observe(report, float(now))
        if then:
            hand_over()
    hand_over()

    def content(table: ScoreTable) -> dict[tuple[str, str], tuple[object, ...]]:
        found: dict[tuple[str, str], tuple[object, ...]] = {}
        for name in table.names:
            row = table.row_of(name)
            assert row is not None
            values = {column: table.view(column)[row].item() for column in BATCH_COLUMNS}
            values["cohort"], values["hardware"] = (
                table.cohorts[values["cohort"]],
                table.hardware[values["hardware"]],
            )
            found[name] = tuple(repr(value) for value in values.values())
        return found

    assert content(judge) == content(alone)
    assert int(judge.view("pushes").sum()) == len(pushes)
    assert bool(judge.view("fresh").all()) == bool(len(judge) == 0 or alone.view("fresh").all())


def test_a_later_report_of_a_node_is_not_replaced_by_an_earlier_one() -> None:
    judge, first, second = (ScoreTable(LIMITS, BY) for _ in range(3))
    first.observe(HealthReport(node_id="a", cluster_id="c", score=0.1, instance_id="one"), 1.0)
    second.observe(HealthReport(node_id="a", cluster_id="c", score=0.9, instance_id="two"), 2.0)

    judge.merge(second.take_fresh(10))
    judge.merge(first.take_fresh(10))

    assert judge.view("score").tolist() == [0.9]
    assert judge.view("instance").tolist() == [instance_code("two")]


def test_nodes_beyond_the_limit_of_the_judge_are_counted_and_the_rest_kept() -> None:
    judge = ScoreTable(ScoreLimits(nodes=2, clusters=9, ttl_seconds=10), BY)
    heard = ScoreTable(LIMITS, BY)
    for name in "abc":
        heard.observe(HealthReport(node_id=name, cluster_id="c", score=0.5), 1.0)

    judge.merge(heard.take_fresh(10))

    assert (len(judge), judge.losses["nodes_over_limit"]) == (2, 1)


def test_an_older_report_that_another_receiver_took_later_does_not_replace_a_newer_one() -> None:
    limits = ScoreLimits(nodes=100, clusters=10, ttl_seconds=50)
    judge, first, second = (ScoreTable(limits, BY) for _ in range(3))
    for table, score, sent, heard in ((first, 0.9, 20, 1.0), (second, 0.1, 19, 2.0)):
        table.observe(HealthReport(node_id="a", cluster_id="c", score=score, time_unix_nano=sent * 10**9), heard)

    judge.merge(first.take_fresh(10))
    judge.merge(second.take_fresh(10))

    assert (judge.view("score").tolist(), judge.view("pushes").tolist()) == ([0.9], [2])


def test_cohorts_beyond_the_limit_of_the_judge_are_counted_and_the_rest_kept() -> None:
    judge = ScoreTable(ScoreLimits(nodes=9, clusters=9, ttl_seconds=10, cohorts=2), BY)
    heard = ScoreTable(LIMITS, BY)
    for name in "abc":
        heard.observe(HealthReport(node_id=name, cluster_id="c", score=0.5, job_id=f"job-{name}"), 1.0)

    judge.merge(heard.take_fresh(10))

    assert (len(judge), len(judge.cohorts), judge.losses["cohorts_over_limit"]) == (2, 2, 1)


def messages(data: list[bytes]) -> list[tuple[MessageKind, bytes]]:
    async def all_of() -> list[tuple[MessageKind, bytes]]:
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(data))
        return [await read_message(reader) for _ in data]

    return asyncio.run(all_of())


@given(st.integers(0, 2500), st.floats(0, 1e9))
def test_a_board_says_the_same_on_the_other_side(overrides: int, as_of: float) -> None:
    node_verdicts = {
        node_key("c", f"n{number}"): "straggler; kind=slow" if number % 2 else "" for number in range(overrides)
    }
    verdict_cache = VerdictCache(
        BY,
        {("c", "j", "H100"): 0.75, ("c", "", ""): 0.5},
        NodeVerdicts(str(VerdictState.HEALTHY), node_verdicts, as_of),
    )
    reader, found = VerdictCacheDecoder(), None

    for kind, body in messages(list(encode_verdict_cache(verdict_cache))):
        if kind is MessageKind.NODE_VERDICTS:
            reader.add_overrides(body)
        else:
            found = reader.verdict_cache(body)

    assert found == verdict_cache


def test_a_node_that_came_after_the_judgement_receives_no_verdict() -> None:
    verdict_cache = VerdictCache(
        (),
        {},
        NodeVerdicts(
            "healthy", {node_key("c", "bad"): "straggler; kind=slow", node_key("c", "unjudged"): ""}, as_of=10.0
        ),
    )

    def line(node: str, first_seen: float) -> bytes:
        return verdict_cache.answer(
            HealthReport(node_id=node, cluster_id="c"), node_key("c", node), first_seen
        ).http_headers

    assert line("any", 9.0) == f"{headers.VERDICT}: healthy\r\n".encode()
    assert line("any", 11.0) == b""
    assert line("unjudged", 9.0) == b""
    assert b"straggler" in line("bad", 9.0)


@pytest.mark.parametrize("signal", list(Signal))
@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_pushes_are_handed_on_as_they_came(encoding: Encoding, signal: Signal) -> None:
    push = Push(signal, encoding, b"\0body", "clüster")

    assert decode_push(encode_push(push, 12.5)) == (push, 12.5)


def test_counts_add_up_and_stay_when_a_process_ends() -> None:
    one = Traffic(
        Counter(metrics=3), Counter(late=1), Counter(reports=3, malformed_pushes=1),
        {"otlp_http": Counters(requests=3, open=2)}, {"otlp": Counter(sent=3)},
        {"otlp": ExportState(waiting=4)},
    )  # fmt: skip

    both = total([TRAFFIC_JSON.validate_json(TRAFFIC_JSON.dump_json(one)), one.gone()])

    assert (both.pushes["metrics"], both.totals["reports"], both.totals["malformed_pushes"]) == (6, 6, 2)
    assert both.listeners["otlp_http"] == Counters(requests=6, open=2)
    assert (both.exporters["otlp"]["sent"], both.exports["otlp"].waiting) == (6, 4)


def receivers(service: Running) -> list[int]:
    """Process ids of the receivers."""
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def push(service: Running, node: str, score: float = 0.9) -> httpx.Response:
    body = encode_report(HealthReport(node_id=node, cluster_id="c", score=score)).SerializeToString()
    kind = {"content-type": "application/x-protobuf"}
    return web.post(service.url("otlp/http", routes.OTLP_METRICS), content=body, headers=kind)


def metric(service: Running, name: str) -> float:
    page = web.get(service.url("telemetry", "/metrics")).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name))


def test_a_receiver_that_is_killed_is_replaced_and_the_others_serve_on(tmp_path: Path) -> None:
    with fleet(tmp_path, {"receivers": {"otlp": {"processes": 2}}}) as service:
        before = receivers(service)
        names = [f"n{number}" for number in range(12)]

        def everybody() -> bool:
            answers = [push(service, name) for name in names]
            return all(headers.THRESHOLD in answer.headers for answer in answers)

        wait_until(everybody, "thresholds from both receivers")
        taken = metric(service, "ingero_fleet_reports_total")
        os.kill(before[0], signal.SIGKILL)

        def served() -> bool:
            try:
                return push(service, "n0").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(served, "a push to be served")
        wait_until(lambda: before[0] not in receivers(service) and len(receivers(service)) == 2, "another receiver")
        wait_until(everybody, "thresholds from both receivers again")
        assert metric(service, "ingero_fleet_reports_total") >= taken
        assert "receiver_ended" in service.words()
        state = web.get(service.url("zpages", "/debug/servicez")).text
        assert "<td>receiver_restarts</td><td>1</td>" in state

        pids = receivers(service)
        service.process.terminate()
        assert service.process.wait(20) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_receivers_end_when_fleet_is_killed(tmp_path: Path) -> None:
    with fleet(tmp_path, {"receivers": {"otlp": {"processes": 2}}}) as service:
        pids = receivers(service)
        service.process.kill()
        wait_until(
            lambda: (
                not any(
                    Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
                    for pid in pids
                )
            ),
            "the receivers to end",
        )


def test_a_port_that_is_taken_is_an_error_in_words(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = (
            "receivers.otlp.processes=2",
            f"receivers.otlp.protocols={{http: {{endpoint: '127.0.0.1:{port}'}}, grpc: {{endpoint: '{FREE}'}}}}",
        )
        flags = [word for item in settings for word in ("--set", item)]
        with process(tmp_path / "log", str(BIN / "ingero-fleet"), "serve", *flags) as running:
            assert running.process.wait(60) == 1
            assert f"cannot listen on 127.0.0.1:{port}" in running.words()


PUSH_TAKEN = Push(Signal.METRICS, "protobuf", b"", "c")


def refuse(push: Push, now: float) -> None:
    """What takes pushes fails as nobody foresaw."""
    raise ZeroDivisionError


def pool() -> ReceiverPool:
    protocols = {"http": {"endpoint": FREE}, "grpc": {"endpoint": FREE}}
    config = FleetConfig.model_validate({"receivers": {"otlp": {"processes": 2, "protocols": protocols}}})
    return ReceiverPool(config, ScoreTable(LIMITS, BY), lambda: 0.0, refuse)


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def test_a_receiver_that_hangs_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero_fleet.receivers.pool.COLLECT_SECONDS", 0.2)
    monkeypatch.setattr("ingero_fleet.receivers.pool.HUNG_SECONDS", 0.5)
    before = children()

    async def scenario() -> None:
        receivers = pool()
        await receivers.start()
        first = children() - before
        hung = min(first)
        os.kill(hung, signal.SIGSTOP)
        async with asyncio.timeout(60):
            while receivers.restarts == 0 or receivers.facts()["receivers"] < 2 or hung in children():
                await receivers.gather()
        assert len((children() - before) & first) == 1
        await receivers.stop()

    asyncio.run(scenario())
    assert children() == before


def test_an_error_that_nobody_foresaw_replaces_the_receiver_and_ends_no_supervision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = [True]

    async def fail(self: ReceiverPool, number: int) -> None:
        failing.clear()
        raise ZeroDivisionError

    async def scenario() -> None:
        receivers = pool()
        start = ReceiverPool._start
        await receivers.start()
        first = receivers._running[0]
        first._reader.feed_data(encode_message(MessageKind.PUSH, encode_push(PUSH_TAKEN, 0.0)))
        monkeypatch.setattr(ReceiverPool, "_start", fail)
        async with asyncio.timeout(60):
            while failing:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(ReceiverPool, "_start", start)
            while receivers.facts() != {"receivers": 2, "receiver_restarts": 2}:
                await asyncio.sleep(0.01)
        await receivers.stop()

    asyncio.run(scenario())


def test_a_receiver_that_does_not_start_is_an_error_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 1000\n")
    stuck.chmod(0o755)
    monkeypatch.setattr("ingero_fleet.receivers.pool.sys.executable", str(stuck))
    monkeypatch.setattr("ingero_fleet.receivers.pool.START_SECONDS", 0.3)
    before = children()

    with pytest.raises(OSError, match=r"receiver process \d did not start"):
        asyncio.run(pool().start())

    assert children() == before
