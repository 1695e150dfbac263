"""The log that Fleet's replicas share: their answers as conditions with the cure, and as figures."""

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import ValidationError

from ingero_contract import routes
from ingero_operator.conditions import Condition
from ingero_operator.fleet_answers import PollRequest, PollResult
from ingero_operator.fleet_poller import LogState, ask_replicas, with_log
from ingero_operator.log_conditions import LOG_CONDITIONS, ReplicaLog, log_conditions, log_figures, taint_problem
from ingero_operator.pod_reader import pod_addresses
from ingero_operator.taints.model import Evidence
from ingero_operator.untrusted_http import open_session
from ingero_operator.workloads import stuck

SINCE = "2026-08-02T10:00:00Z"


def says(replica: str = "a", **change: Any) -> dict[str, Any]:
    answer = {"state": "ok", "lag": 2, "state_hash": "h1", "state_hash_tick": 24, "rules": "1-ab", "parked": False}
    return {"replica": replica, **answer, **change}


def replica_log(replica: str = "a", **change: Any) -> ReplicaLog:
    return ReplicaLog.model_validate(says(replica, **change))


def judged(*answers: ReplicaLog) -> dict[str, Condition]:
    return {item.type: item for item in log_conditions(answers)}


def test_replicas_that_follow_and_agree_have_three_true_conditions() -> None:
    found = judged(replica_log("a"), replica_log("b"), replica_log("c"))

    assert tuple(found) == LOG_CONDITIONS
    assert all(item.holds for item in found.values()) and taint_problem(list(found.values())) == ""


@pytest.mark.parametrize(
    ("change", "kind", "reason", "cure", "taints"),
    [
        ({"state": "away", "away_since": SINCE}, "LogReady", "LogAway", f"{SINCE}; pushes are answered", False),
        ({"state": "away", "away_since": SINCE}, "LogReady", "LogAway", "whether the NATS pods run", False),
        ({"rewound": True}, "LogConsistent", "LogRewound", "Do not delete or restore the stream", True),
        ({"state": "reseeding"}, "LogConsistent", "Reseeding", "max_age and max_bytes", True),
        ({"state_hash": "h2"}, "ReplicasAgree", "StatesDiffer", "one kind of processor", False),
        ({"rules": "2-cd", "parked": True}, "ReplicasAgree", "RulesDiffer", "the same image and settings", True),
    ],
)
def test_one_replica_of_three_is_enough_for_a_false_condition_with_its_cure(
    change: dict[str, Any], kind: str, reason: str, cure: str, taints: bool
) -> None:
    found = judged(replica_log("a"), replica_log("b", **change), replica_log("c"))

    assert [item.type for item in found.values() if not item.holds] == [kind]
    assert (found[kind].status, found[kind].reason) == ("False", reason) and cure in found[kind].message
    assert (taint_problem(list(found.values())) == "") is taints
    assert stuck(list(found.values())) == []


def test_states_of_different_ticks_are_not_compared() -> None:
    assert judged(replica_log("a"), replica_log("b", state_hash="h2", state_hash_tick=36))["ReplicasAgree"].holds


def test_while_all_catch_up_nothing_is_tainted_and_one_that_starts_does_not_matter() -> None:
    behind = replica_log("a", state="catching_up")

    assert judged(behind)["LogReady"].reason == "CatchingUp" and taint_problem(log_conditions([behind]))
    assert judged(behind, replica_log("b"))["LogReady"].holds


def test_before_the_first_hash_agreement_is_unknown() -> None:
    assert judged(replica_log(state_hash="", state_hash_tick=0))["ReplicasAgree"].reason == "NotCompared"


def test_without_an_answer_all_is_unknown_and_nothing_is_tainted() -> None:
    found = log_conditions([])

    assert {(item.status, item.reason) for item in found} == {("Unknown", "NotAnswered")} and taint_problem(found)
    assert log_figures([], 3) == {"state": "unknown", "answering": "0/3"}


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        (("ok", "ok"), "ok"), (("ok", "away"), "away"), (("reseeding", "ok"), "reseeding"),
        (("catching_up", "ok"), "ok"), (("catching_up", "catching_up"), "catching up"),
    ],
)  # fmt: skip
def test_the_status_has_the_worst_state_the_greatest_lag_and_the_latest_hash(
    states: tuple[str, str], shown: str
) -> None:
    later = replica_log("b", state=states[1], lag=7, state_hash="h2", state_hash_tick=36)

    assert log_figures([replica_log("a", state=states[0]), later], 3) == {
        "state": shown, "answering": "2/3", "lag": 7, "stateTick": 36, "stateHash": "h2", "rules": "1-ab",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"state": "odd"}, {"lag": -1}, {"replica": "a\nb"}, {"state_hash": "<b>"}, {"away_since": "x y"}]
)
def test_an_answer_that_is_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        replica_log(**change)


def test_the_evidence_says_why_nothing_may_be_tainted_and_a_fleet_without_log_has_no_conditions() -> None:
    result = PollResult(evidence=Evidence(tick="t", received=1.0))
    away = with_log(result, LogState(answers=(replica_log(state="away"),), wanted=3))
    back = with_log(away, LogState(answers=(replica_log(),), wanted=3))

    assert away.evidence is not None and "NATS" in away.evidence.log_problem
    assert away.visible() != back.visible() and back.evidence is not None and back.evidence.log_problem == ""
    assert with_log(result, None).log == () and with_log(result, None).log_figures is None


async def _asked(answer: Any, **request: Any) -> LogState | None:
    async def respond(_: web.Request) -> web.Response:
        return web.json_response(answer)

    app = web.Application()
    app.router.add_get(routes.FLEET_LOG, respond)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        session: aiohttp.ClientSession = open_session(20, 8)
        async with session:
            return await ask_replicas(
                session, PollRequest(url=f"http://localhost:{port}", cluster="c", replicas_wanted=3, **request)
            )
    finally:
        await runner.cleanup()


def test_every_replica_is_asked_by_its_address_and_one_that_is_gone_is_left_out() -> None:
    found = asyncio.run(_asked(says(), replicas=("127.0.0.1", "127.0.0.2")))
    assert found == LogState(answers=(replica_log(),), wanted=3)
    assert asyncio.run(_asked([3])) == asyncio.run(_asked({"replica": 3})) == LogState(answers=(), wanted=3)


def test_pods_that_run_have_an_address() -> None:
    def pod(address: str, phase: str = "Running", **meta: str) -> dict[str, Any]:
        return {"metadata": meta, "status": {"phase": phase, "podIP": address}}

    pods = [pod("10.0.0.2"), pod("10.0.0.1"), pod("10.0.0.3", "Pending"), pod("10.0.0.4", deletionTimestamp=SINCE)]

    assert pod_addresses([*pods, {"metadata": {}}]) == ("10.0.0.1", "10.0.0.2")
