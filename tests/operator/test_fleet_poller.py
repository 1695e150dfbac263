"""Fleet's answers as evidence: read from a real Fleet's shape, refused in words when they are none."""

import asyncio
import contextlib
import gzip
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero_fleet import threshold_rule
from ingero_fleet.processor_settings import CohortConfig, IngeroConfig, QuorumConfig
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ScoreLimits, ScoreTable
from ingero_fleet.tick_snapshot import TickSnapshot, node_answer, stragglers_answer
from ingero_kit.health_report import HealthReport
from ingero_operator.fleet_answers import PollRequest, PollResult, WarmUp
from ingero_operator.fleet_answers import parse_response as read_answer
from ingero_operator.fleet_poller import MAX_ANSWER, FleetPoller
from ingero_operator.fleet_status import agents_unique, evidence_fresh
from ingero_operator.forwarding import Forwarding
from ingero_operator.taints.model import Evidence
from ingero_operator.tasks import Tasks
from ingero_operator.untrusted_http import NoResponse
from ingero_operator.workloads import stuck
from ingero_testing.fleets import Fleets, Says, fleets

KEY = ("FleetCluster", "ml", "prod")
QUESTION = PollRequest(url="http://fleet", cluster="c", tainted=frozenset({"a", "b"}))


def parse_response(stragglers: Any, nodes: list[Any], now: float, before: Evidence | None) -> PollResult:
    return read_answer(stragglers, {"nodes": nodes}, QUESTION, now, before)


def result(**change: Any) -> dict[str, Any]:
    return {**Says(stragglers={"a"}, nodes={"a", "b"}).answer(), "generated_at": "t1", **change}


def test_an_answer_becomes_evidence() -> None:
    found = parse_response(result(), [Says().node("b")], 100.0, None)

    assert found.evidence is not None
    assert (set(found.evidence.accused), found.evidence.healthy) == ({"a"}, frozenset({"b"}))
    assert found.evidence.accused["a"].active and found.threshold == 0.71


def test_a_node_with_several_agents_is_said_to_have_them_and_is_not_known_to_be_healthy() -> None:
    mixed = {"several_agents": True}
    answer = result(
        stragglers=[{**Says(stragglers={"a"}).node("a"), **mixed}],
        several_agents={"count": 7, "nodes": [{"cluster_id": "c", "node_id": name} for name in "abcdef"]},
    )

    found = parse_response(answer, [{**Says().node("b"), **mixed}], 100.0, None)

    assert found.evidence is not None
    assert (found.evidence.accused["a"].several_agents, found.evidence.healthy) == (True, frozenset())
    said = agents_unique(found, "prod")
    assert said is not None and (said.status, said.reason) == ("False", "SeveralAgents")
    assert "as a, b, c, d, e and 2 more" in said.message and "'prod'" in said.message


@pytest.mark.parametrize("payload", [None, [], {"count": -1, "nodes": []}, {"count": 1, "nodes": [3]}])
def test_several_agents_that_cannot_be_read_are_no_condition_and_hide_no_straggler(payload: Any) -> None:
    found = parse_response(result(several_agents=payload), [], 100.0, None)

    assert agents_unique(found, "prod") is None and found.evidence and set(found.evidence.accused) == {"a"}


def test_where_the_detector_decides_the_evidence_is_its_severity() -> None:
    accused = {**Says(stragglers={"a"}).node("a"), "kind": "late_rank", "verdict": {"severity": 0.52}}

    evidence = parse_response(result(decided_by="verdict", stragglers=[accused]), [], 1.0, None).evidence

    assert evidence is not None
    item = evidence.accused["a"]
    assert (item.severity, item.kind, item.score, item.threshold) == (0.52, "late_rank", None, None)


def test_statistics_that_repeat_themselves_grow_old() -> None:
    first = parse_response(result(), [], 100.0, None).evidence
    second = parse_response(result(), [], 200.0, first).evidence
    third = parse_response(result(generated_at="t2"), [], 300.0, second).evidence

    assert second is not None and third is not None
    assert (second.received, third.received) == (100.0, 300.0)


def test_a_replica_that_is_behind_changes_nothing_until_the_others_are_gone() -> None:
    newest = parse_response(result(generated_at="t5"), [], 100.0, None).evidence
    assert newest is not None
    behind = result(generated_at="t4", stragglers=[])
    assert parse_response(behind, [], 100.1, newest).evidence == newest
    late = 100.0 + 10 * newest.interval
    alone = parse_response(behind, [], late, newest).evidence
    assert alone is not None and (alone.tick, alone.received) == ("t4", late)


def test_late_ranks_are_shown_the_costliest_first() -> None:
    late = {
        "node_id": "b",
        "kind": "late_rank",
        "comm": "00000000000000ab",
        "rank": 3,
        "since": "2026-01-01T00:00:00Z",
    }
    other = {**late, "node_id": "a", "rank": 1, "share": 0.0123, "pod": "train-1", "job_id": "4711"}

    ranks = parse_response(
        result(culprits=[{**late, "share": 0.004}, other, {"rank": 5}, "x"]), [], 1.0, None
    ).late_ranks

    assert [(one["node"], one["rank"], one["lostPercent"]) for one in ranks] == [("a", 1, 1.0), ("b", 3, 0.4)]
    assert (ranks[0]["pod"], ranks[0]["job"]) == ("train-1", "4711") and not {"pod", "job"} & ranks[1].keys()


def test_a_late_rank_that_is_known_by_its_gpu_only_is_shown_with_it() -> None:
    late = {"node_id": "b", "kind": "late_rank", "comm": "ab", "rank": None, "gpu": "GPU2", "share": 0.1}

    (shown,) = parse_response(result(culprits=[late]), [], 1.0, None).late_ranks
    assert (shown["node"], shown["gpu"], "rank" in shown) == ("b", "GPU2", False)


@pytest.mark.parametrize("culprits", [None, {}, "x", [[]]])
def test_late_ranks_that_cannot_be_read_hide_no_straggler(culprits: Any) -> None:
    found = parse_response(result(culprits=culprits), [], 1.0, None)

    assert found.late_ranks == () and found.evidence is not None and set(found.evidence.accused) == {"a"}


def test_an_accused_node_is_never_well() -> None:
    contradiction = {"node_id": "a", "state": "active", "straggler": False}

    evidence = parse_response(result(), [contradiction], 1.0, None).evidence

    assert evidence is not None and evidence.healthy == frozenset()


def cost(per_hour: float, waiting: float, unpriced: int = 0) -> dict[str, Any]:
    return {
        "currency": "USD", "cost_per_hour": per_hour, "waiting_per_hour": waiting, "gpus_without_rate": unpriced
    }  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (None, None),
        (cost(0, 0), None),
        (cost(98.321, 0), {"currency": "USD", "perHour": "98.32", "waitingPerHour": "0.00"}),
        (cost(98.321, 0.0449), {"currency": "USD", "perHour": "98.32", "waitingPerHour": "0.04"}),
        (cost(98.321, 4.1499), {"currency": "USD", "perHour": "98.32", "waitingPerHour": "4.1"}),
        (cost(98.321, 9.96), {"currency": "USD", "perHour": "98.32", "waitingPerHour": "10"}),
        (cost(4000, 1234.5, 8),
         {"currency": "USD", "perHour": "4000.00", "waitingPerHour": "1200", "gpusWithoutRate": 8}),
        (cost(0, 0, 16), {"gpusWithoutRate": 16}),
        ({}, None),
        ([1], None),
        (cost(float("nan"), 0), None),
        (cost(98, float("inf")), None),
        (cost(1, 0) | {"cost_per_hour": "much"}, None),
    ],
)  # fmt: skip
def test_what_is_shown_of_the_cost_moves_in_steps(payload: Any, shown: Any) -> None:
    found = parse_response(result(cost=payload), [], 1.0, None)

    assert found.cost == shown and found.evidence


def test_a_new_price_is_news() -> None:
    before, same, after = (
        parse_response(result(cost=cost(98.3, waiting)), [], 1.0, None) for waiting in (0, 0.001, 4)
    )

    assert before.visible() == same.visible() != after.visible()


@pytest.mark.parametrize(
    "broken",
    [{}, {"generated_at": "t"}, result(stragglers=None), result(stragglers=[{"node_id": "a"}]),
     result(interval_seconds=None), result(stragglers=["a"]), result(interval_seconds=math.nan),
     result(interval_seconds=math.inf), result(interval_seconds=0), result(interval_seconds=-1.0),
     result(nodes={"active": 10**30}), result(threshold=1e300), result(quorum_met="yes"), result(generated_at=None),
     result(stragglers=[Says().node("a") | {"windows": 10**400}]), result(stragglers=[Says().node("n" * 300)])],
)  # fmt: skip
def test_what_is_no_answer_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(NoResponse, match="cannot be read"):
        parse_response(broken, [], 1.0, None)


def test_an_answer_about_another_cluster_is_none() -> None:
    with pytest.raises(NoResponse, match="answers for cluster 'other' instead of 'c'"):
        parse_response(result(cluster_id="other"), [], 1.0, None)
    with pytest.raises(NoResponse, match="answers for cluster 'other'"):
        parse_response(result(), [Says().node("a") | {"cluster_id": "other"}], 1.0, None)


def test_an_interval_that_fleet_makes_up_keeps_no_evidence_fresh() -> None:
    asked = PollRequest(url="http://fleet", cluster="c", interval=10.0)

    first = read_answer(result(interval_seconds=9e5), None, asked, 100.0, None)
    later = read_answer(result(interval_seconds=9e5), None, asked, 131.0, first.evidence)

    assert first.evidence is not None and first.evidence.interval == 10.0
    assert (first.stale, later.stale) == (False, True) and first.visible() != later.visible()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({*result(), *Says().node("a"), "verdict"})


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING), st.dictionaries(st.sampled_from(FIELDS), ANYTHING))
def test_whatever_fleet_says_is_an_answer_or_refused_in_words(top: dict[str, Any], node: dict[str, Any]) -> None:
    stragglers = result(**({"stragglers": [{**Says().node("a"), **node}]} | top))
    try:
        found = parse_response(stragglers, [{**Says().node("b"), **node}], 1.0, None)
    except NoResponse as error:
        assert len(str(error)) < 400
    else:
        assert found.evidence is not None and 0 < found.evidence.interval < math.inf
        assert len(json.dumps(found.cost)) < 200


def test_one_question_that_goes_astray_is_not_news_and_three_are() -> None:
    async def story() -> list[str]:
        heard: list[str] = []
        with fleets() as double:
            says = double.of("ml", "prod")
            says.interval = 60.0
            now = [0.0]

            def news(_: object) -> None:
                found = fleet_poller.result(KEY)
                heard.append(found.failure if found else "")

            def clock() -> float:
                now[0] += 0.001
                return now[0] + asyncio.get_running_loop().time()

            fleet_poller = FleetPoller(clock, 0.01, 1000.0, news)
            fleet_poller.watch(KEY, PollRequest(url=double.template.format(namespace="ml", name="prod"), cluster="c"))
            task = asyncio.create_task(fleet_poller.run())
            async with asyncio.timeout(20):
                while not heard:
                    await asyncio.sleep(0.005)
                says.status = 500
                while len(heard) < 2:
                    await asyncio.sleep(0.005)
            failures = fleet_poller.failed
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert failures >= 3
        return heard

    first, second = asyncio.run(story())[:2]
    assert first == "" and "500" in second


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.005)


def asked(
    double: Fleets, story: Callable[[FleetPoller, Says], Any], tasks: Tasks | None = None, **how: Any
) -> FleetPoller:
    """Ask a double over and over while a story goes on."""

    async def play() -> FleetPoller:
        says = double.of("ml", "prod")
        loop = asyncio.get_running_loop()
        fleet_poller = FleetPoller(loop.time, 0.005, 1000.0, lambda _: None, tasks=tasks or Tasks())
        fleet_poller.watch(
            KEY, PollRequest(url=double.template.format(namespace="ml", name="prod"), cluster="c", **how)
        )
        task = asyncio.create_task(fleet_poller.run())
        try:
            await story(fleet_poller, says)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return fleet_poller

    return asyncio.run(play())


DEEP = b'{"stragglers": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"


@pytest.mark.parametrize(
    ("raw", "headers", "words"),
    [
        (DEEP, {}, "no JSON"),
        (json.dumps(result(nodes=None)).encode(), {}, "cannot be read: nodes"),
        (json.dumps(result()).replace("0.2", "1e999").encode(), {}, "no JSON"),
        (b"[]", {}, "no JSON object"),
        (b"\xff\xfe", {}, "no JSON"),
        (gzip.compress(b" " * (MAX_ANSWER * 8)), {"content-encoding": "gzip"}, "compressed"),
        (b" " * (MAX_ANSWER + 1), {}, "larger than"),
        (b"{}", {"transfer-encoding": "chunked"}, "no HTTP that can be read"),
    ],
    ids=["deep", "null", "infinite", "list", "bytes", "gzip", "large", "broken"],
)  # fmt: skip
def test_an_odd_answer_is_said_and_fleet_is_asked_again(raw: bytes, headers: dict[str, str], words: str) -> None:
    async def story(fleet_poller: FleetPoller, says: Says) -> None:
        says.raw, says.headers = raw, headers
        await until(lambda: bool((found := fleet_poller.result(KEY)) and found.failure))
        found = fleet_poller.result(KEY)
        assert found is not None and words in found.failure
        says.raw = None
        says.headers = {}
        await until(lambda: bool((found := fleet_poller.result(KEY)) and found.current))

    tasks = Tasks()
    with fleets() as double:
        asked(double, story, tasks, tainted=frozenset({"a"}))
    assert not tasks.failures


def test_a_redirect_is_not_followed() -> None:
    with fleets() as double, fleets() as other:

        async def story(fleet_poller: FleetPoller, says: Says) -> None:
            says.status, says.headers = 302, {"location": other.template.format(namespace="ml", name="prod")}
            await until(lambda: fleet_poller.failed >= 3)
            found = fleet_poller.result(KEY)
            assert found is not None and "it answers 302" in found.failure

        asked(double, story)
        assert other.asked == 0


def test_a_refused_token_is_a_reason_of_its_own_with_the_cure() -> None:
    async def story(fleet_poller: FleetPoller, says: Says) -> None:
        says.status = 401
        await until(lambda: fleet_poller.failed >= 3)
        condition = evidence_fresh(fleet_poller.result(KEY), serving=True)
        assert condition.reason == "TokenRefused" and "spec.tokenSecret" in condition.message
        assert [error.reason for error in stuck([condition])] == ["TokenRefused"]

    with fleets() as double:
        asked(double, story)


def test_the_state_of_the_exporters_comes_with_the_answer() -> None:
    exporters = {"otlp": {"waiting": 1, "queue_full": 0.1, "dropped": {}}}

    assert parse_response(result(exporters=exporters), [], 1.0, None).forwarding == Forwarding(full_percent=10)
    assert parse_response(result(exporters=[3]), [], 1.0, None).forwarding is None


def test_a_certificate_authority_that_is_none_is_said() -> None:
    async def story(fleet_poller: FleetPoller, _: Says) -> None:
        await until(lambda: fleet_poller.failed >= 3)
        found = fleet_poller.result(KEY)
        assert found is not None and "ca.crt" in found.failure

    with fleets() as double:
        for text in ("no PEM", "\N{REPLACEMENT CHARACTER}"):
            asked(double, story, authority=text)


def test_a_fault_while_asking_is_counted_and_the_next_question_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise RecursionError("odd")

    tasks = Tasks()

    async def story(fleet_poller: FleetPoller, _: Says) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("ingero_operator.fleet_poller.parse_response", fault)
            await until(lambda: tasks.failures["fleet poll"] >= 3)
            found = fleet_poller.result(KEY)
            assert found is not None and "fault of the operator" in found.failure
        await until(lambda: bool((found := fleet_poller.result(KEY)) and found.current))

    with fleets() as double:
        asked(double, story, tasks)


def test_an_answer_without_an_end_is_cut_off_at_the_limit() -> None:
    async def play() -> tuple[int, str]:
        sent = 0

        async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                while not writer.is_closing():
                    writer.write(b"x" * 65_536)
                    await writer.drain()
                    sent += 65_536

        server = await asyncio.start_server(endless, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        fleet_poller = FleetPoller(asyncio.get_running_loop().time, 0.005, 1000.0, lambda _: None)
        fleet_poller.watch(KEY, PollRequest(url=f"http://{host}:{port}", cluster="c"))
        task = asyncio.create_task(fleet_poller.run())
        await until(lambda: fleet_poller.failed >= 1)
        task.cancel()
        server.close()
        found = fleet_poller.result(KEY)
        return sent, found.failure if found else ""

    sent, failure = asyncio.run(play())
    assert "larger than" in failure and sent < MAX_ANSWER + (32 << 20)


def test_asking_that_is_begun_anew_forgets_no_fleet() -> None:
    async def story(fleet_poller: FleetPoller, _: Says) -> None:
        second = asyncio.create_task(fleet_poller.run())
        before = fleet_poller.polls
        await until(lambda: fleet_poller.polls > before + 3)
        second.cancel()

    with fleets() as double:
        asked(double, story)


def test_what_a_real_fleet_answers_is_read() -> None:
    scores = ScoreTable(ScoreLimits(nodes=10, clusters=1, ttl_seconds=50), CohortConfig().by)
    for name, score in {"a": 0.9, "b": 0.9, "d": 0.9, "e": 0.1}.items():
        assert isinstance(scores.observe(HealthReport(node_id=name, cluster_id="c", score=score), 0.0), int)
    frame = ScoreSnapshot.take(scores, 1.0)
    config = IngeroConfig(quorum=QuorumConfig(statistical_min=3))
    snapshot = TickSnapshot(frame, threshold_rule.compute(frame, threshold_rule.RuleState(), config))
    stragglers, nodes = stragglers_answer(snapshot, "c", 10.0), [node_answer(snapshot, row) for row in range(2)]

    one, other = json.loads(json.dumps([stragglers, nodes]))
    found = parse_response(one, other, 1.0, None)

    assert found.current and found.evidence is not None and found.evidence.quorum
    assert (set(found.evidence.accused), found.evidence.healthy) == ({"e"}, frozenset({"a", "b"}))
    assert (found.active, found.expected, found.reporting) == (4, 4, 4)


PHASE = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:05:00Z", "reason": None}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, None),
        ({"learning": None}, WarmUp()),
        ({"learning": PHASE}, WarmUp(since=str(PHASE["since"]), until=str(PHASE["until"]))),
        ({"learning": {**PHASE, "since": "\x1b[2J"}}, None),
        ({"learning": {**PHASE, "reason": "x" * 10_000}}, None),
        ({"learning": 7}, None),
    ],
    ids=["silent", "learned", "learning", "control", "long", "number"],
)
def test_what_fleet_says_of_its_warm_up_is_read_and_never_hides_a_straggler(
    said: dict[str, Any], found: WarmUp | None
) -> None:
    answer = parse_response(result(**said), [], 1.0, None)

    assert answer.warm_up == found
    assert answer.evidence is not None and set(answer.evidence.accused) == {"a"}


def test_the_begin_and_the_end_of_a_warm_up_are_worth_a_reconcile_and_a_tick_between_is_not() -> None:
    first, second, third = (
        parse_response(result(generated_at=f"t{number}", learning=phase), [], 1.0, None).visible()
        for number, phase in enumerate([PHASE, PHASE, None])
    )

    assert first == second != third
