"""Pods that never become ready, never start, or never end: a condition with the reason in words and the cure."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trustme
from lupa import LuaRuntime

from ingero_operator import status as shown
from ingero_operator.conditions import Condition, yes
from ingero_operator.echo_stores import NEEDED
from ingero_operator.failures import Failures
from ingero_operator.pod_problems import DEADLINE_SECONDS, late, late_problem
from ingero_operator.pod_reader import PodReader
from ingero_operator.readiness import READY_ANSWER, Server, ask_ready
from ingero_operator.taints.nodes import moment
from ingero_operator.workloads import available, stuck
from ingero_testing.lakes import table_config
from ingero_testing.processes import unready_reader, wait_until

KEY = ("EchoStore", "ml", "events")
BEGAN = "2026-01-01T00:00:00Z"
THEN = moment(BEGAN)
NOW = THEN + DEADLINE_SECONDS
RUNNING = [{"name": "echo", "ready": False, "state": {"running": {"startedAt": BEGAN}}}]
CREATING = [{"name": "echo", "ready": False, "state": {"waiting": {"reason": "ContainerCreating"}}}]
HEALTH = (Path(__file__).parents[2] / "manifests/argocd/health.lua").read_text()


def pod(containers: Any = RUNNING, ready: str = "False", since: str = BEGAN, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "events-echo-0", "creationTimestamp": BEGAN, **metadata},
        "spec": {"nodeName": "storage-1"},
        "status": {
            "phase": "Running", "podIP": "127.0.0.1", "containerStatuses": containers,
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}],
        },
    }  # fmt: skip


def workload(kind: str = "StatefulSet", **status: Any) -> dict[str, Any]:
    return {
        "kind": kind, "metadata": {"name": "events-echo", "generation": 1}, "spec": {"replicas": 1},
        "status": {"observedGeneration": 1, "readyReplicas": 0, **status},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "reason", "words"),
    [
        (pod(), "PodNotReady", "runs and is not ready since 2026-01-01T00:00:00Z"),
        (pod(), "PodNotReady", "`kubectl logs events-echo-0`"),
        (pod(CREATING), "PodNotStarted", "`kubectl describe pod events-echo-0` say which volume, Secret"),
        (pod(None), "PodNotStarted", "do not run since"),
        (pod(deletionTimestamp=BEGAN), "PodNotEnded", "`kubectl delete pod events-echo-0 --force`"),
    ],
    ids=["running", "cure", "creating", "silent", "leaving"],
)
def test_a_pod_that_is_late_says_what_it_waits_for(found: dict[str, Any], reason: str, words: str) -> None:
    problem = late_problem(late([found], NOW))

    assert problem is not None
    assert problem.reason == reason and words in problem.message and problem.message.startswith("storage-1: ")


@pytest.mark.parametrize(
    ("found", "now"),
    [
        (pod(), NOW - 1),
        (pod(ready="True"), NOW + 1e6),
        (pod(deletionTimestamp=BEGAN), NOW - 1),
        (pod(since="not a time", creationTimestamp=None), NOW),
        ({"metadata": {"name": "new"}}, NOW),
    ],
    ids=["starting", "ready", "ending", "no time", "new"],
)
def test_a_pod_in_time_is_waited_for(found: dict[str, Any], now: float) -> None:
    assert late_problem(late([found], now)) is None


def test_a_pod_that_no_node_takes_is_the_scheduler_s_matter() -> None:
    waiting = pod(None)
    waiting["status"]["conditions"].append({"type": "PodScheduled", "status": "False"})

    assert late([waiting], NOW) == []


class Pods:
    """An API server with one pod."""

    async def request(self, method: str, path: str, *, query: dict[str, str]) -> Any:
        return {"items": [pod()]}


def reason_at(now: float, live: dict[str, Any]) -> str | None:
    reader = PodReader(Pods(), lambda: now, Failures(lambda: now))  # type: ignore[arg-type]
    found = asyncio.run(reader.why_unavailable(KEY, "echo", live))
    return found.reason if found else None


def test_one_node_of_many_that_is_away_is_no_deadline_of_a_daemon_set() -> None:
    agents = {"kind": "DaemonSet", "status": {"numberReady": 1, "desiredNumberScheduled": 2}}

    assert (reason_at(NOW, workload()), reason_at(NOW - 1, workload())) == ("PodNotReady", None)
    assert reason_at(NOW, agents) is None


def conditions_of(serving: Condition, working: str = "") -> list[Condition]:
    parts = [
        yes("EncryptionVerified", "Verified", "proven"), yes("StorageBound", "Bound", "bound"), serving,
    ]  # fmt: skip
    return shown.overall(parts, NEEDED[:3], stuck([serving]), False, working)


def argo_health(conditions: list[Condition]) -> tuple[str, str]:
    status = shown.assemble(conditions, {}, 1, BEGAN, False, {})

    def lua(value: Any) -> Any:
        if isinstance(value, dict):
            return runtime.table_from({key: lua(item) for key, item in value.items()})
        return runtime.table_from([lua(item) for item in value]) if isinstance(value, list) else value

    runtime = LuaRuntime(unpack_returned_tuples=True)
    runtime.globals().obj = lua({"metadata": {"generation": 1}, "status": status})
    answer = runtime.execute(HEALTH)
    return answer["status"], answer["message"]


def test_an_echo_that_never_becomes_ready_is_degraded_and_no_longer_in_progress() -> None:
    starting = conditions_of(available("Available", workload(), "Echo"), "StatefulSet events-echo is rolling out")
    overdue = late_problem(late([pod()], NOW), {"events-echo-0": "the database is still being opened"})
    failing = conditions_of(
        available("Available", workload(), "Echo", overdue), "StatefulSet events-echo is rolling out"
    )

    assert argo_health(starting)[0] == "Progressing"
    status, message = argo_health(failing)
    assert status == "Degraded" and "it answers: the database is still being opened; `kubectl logs" in message
    found = {item.type: (item.status, item.reason) for item in failing}
    assert found["Degraded"] == ("True", "PodNotReady") and found["Ready"] == ("False", "PodNotReady")
    assert "Reconciling" not in found and "Stalled" not in found  # it may still become ready by itself


def test_a_deployment_past_its_deadline_keeps_its_reason_and_says_what_its_pod_says() -> None:
    late_deployment = workload(
        "Deployment",
        conditions=[
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out."}
        ],
    )
    overdue = late_problem(late([pod()], NOW), {"events-echo-0": "not heard of yet: 0"})

    part = available("ReadersAvailable", late_deployment, "readers", overdue)

    assert part.reason == "ProgressDeadlineExceeded"
    assert "timed out." in part.message and "not heard of yet: 0" in part.message
    assert [error.stalls for error in stuck([part])] == [True]


def test_a_real_echo_says_why_it_is_not_ready(tmp_path: Path) -> None:
    authority = trustme.CA()
    name = "events-readers.ml.svc"
    authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    secure = {"cert_file": str(tmp_path / "both.pem"), "key_file": str(tmp_path / "both.pem")}
    table = table_config(tmp_path / "lake").model_dump(mode="json", exclude_none=True)
    table["catalog"]["uri"] = f"sqlite:///{tmp_path}/later/catalog.db"
    trusted = authority.cert_pem.bytes().decode()

    def ask(port: int, server_name: str = name) -> str:
        return asyncio.run(ask_ready([pod()], Server(server_name, trusted, port)))["events-echo-0"]

    change = {"table": table, "read": {"every": "200ms"}, "tls": secure}
    with unready_reader(tmp_path / "reader", change) as reader:
        port = reader.ports["api"]
        refused, elsewhere = ask(port), ask(port, "another.ml.svc")
        (tmp_path / "later").mkdir()
        wait_until(lambda: ask(port) == READY_ANSWER, "readiness")

    assert "the shared tables were not read yet" in refused and "check table.catalog" in refused
    assert "its certificate is not accepted" in elsewhere
    assert "no connection" in ask(port)
    assert asyncio.run(ask_ready([pod() | {"status": {"phase": "Pending"}}], Server(name, trusted))) == {}
