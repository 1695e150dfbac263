"""The status of pods as a reason and a sentence with the cure."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ingero_contract import routes
from ingero_contract.node_problems import CHECK_CONTAINER, TraceProblem, format_problems
from ingero_http.http1.messages import Response
from ingero_kit.metrics_server import PageServer
from ingero_operator.api_client import ApiError
from ingero_operator.failures import Failures
from ingero_operator.pod_problems import Reported, common_problem, trace_problems
from ingero_operator.pod_reader import AVAILABLE_SECONDS, LACKING_SECONDS, MOST_PODS, UNAVAILABLE_SECONDS, PodReader
from ingero_operator.tracer_polls import ask_tracers
from ingero_operator.workloads import agents_available, available, stuck, tracing_complete

KEY = ("FleetCluster", "ml", "prod")


def pod(name: str = "a", node: str = "gpu-1", ready: bool = False, **status: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": name}, "spec": {"nodeName": node},
        "status": {"conditions": conditions, **status},
    }  # fmt: skip


def container(name: str = "fleet", **state: Any) -> dict[str, Any]:
    return {"name": name, "image": "example.org/fleet:1", "ready": False, **state}


def waiting(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [container(state={"waiting": {"reason": reason, "message": message}})]


def ended(code: int = 1, reason: str = "Error", message: str = "", again: str = "CrashLoopBackOff") -> Any:
    before = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return [container(state={"waiting": {"reason": again}}, lastState=before)]


NO_NODE = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient memory."}]
PULL = 'Back-off pulling image "x": ErrImagePull: registry refuses: 401 Unauthorized'
REFUSED = format_problems({TraceProblem.PRIVILEGES_REFUSED: "bpf(2) is refused: add BPF"})


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        ({"containerStatuses": waiting("ImagePullBackOff", PULL)}, "ImagePullFailed", "401 Unauthorized"),
        ({"containerStatuses": waiting("ImagePullBackOff", PULL)}, "ImagePullFailed", "spec.imagePullSecrets"),
        ({"initContainerStatuses": waiting("ErrImagePull")}, "ImagePullFailed", "example.org/fleet:1"),
        (
            {"containerStatuses": waiting("CreateContainerConfigError", 'secret "t" not found')},
            "ContainerConfigInvalid", 'secret "t" not found',
        ),
        ({"conditions": NO_NODE}, "Unschedulable", "3 Insufficient memory"),
        ({"containerStatuses": ended(137, "OOMKilled")}, "OutOfMemory", "resources.memory"),
        ({"containerStatuses": ended(message="starts\nno such setting: x\n")}, "ContainerCrashes", "no such setting"),
        ({"containerStatuses": ended(message=REFUSED)}, "PrivilegesRefused", "add BPF"),
        (
            {
                "initContainerStatuses": [
                    container(CHECK_CONTAINER, state={"terminated": {"exitCode": 0, "message": REFUSED}}, ready=True)
                ],
                "containerStatuses": [container("trace", state={"running": {}})],
            },
            "PrivilegesRefused", "add BPF",
        ),
        ({"containerStatuses": ended(0, "Completed")}, None, ""),
        ({"containerStatuses": waiting("ContainerCreating")}, None, ""),
        ({}, None, ""),
    ],
    ids=[
        "pull", "cure", "init", "config", "schedule", "memory", "crash", "tracer", "check", "completed", "starting",
        "new",
    ],
)  # fmt: skip
def test_a_pod_that_does_not_run_says_why(status: dict[str, Any], reason: str | None, words: str) -> None:
    found = common_problem([pod(**status)])

    assert (found.reason if found else None) == reason
    assert found is None or words in found.message


def test_the_most_frequent_problem_is_shown_whatever_the_order() -> None:
    odd = pod("o", "gpu-0", containerStatuses=ended(137, "OOMKilled"))
    pods = [pod(str(number), f"gpu-{number}", containerStatuses=waiting("ErrImagePull")) for number in (3, 2, 1)]
    fine = pod("f", "gpu-9", ready=True, containerStatuses=waiting("ErrImagePull"))
    leaving = pod("l", "gpu-8", containerStatuses=waiting("ErrImagePull"))
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    found = common_problem([fine, leaving, odd, *pods])

    assert found == common_problem([*reversed(pods), odd]) and found is not None
    assert (
        found.reason == "ImagePullFailed" and found.message.startswith("gpu-1: ") and "(of 3 pods)" in found.message
    )


def test_texts_of_a_pod_are_one_short_line() -> None:
    found = common_problem([pod(containerStatuses=ended(message="x\n\x1b[31m" + "y" * 5000))])

    assert found is not None and len(found.message) < 500 and found.message.isprintable()


def checked(name: str, node: str, text: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": 0, "reason": "Completed", "message": text}}
    return pod(name, node, ready=True, initContainerStatuses=[container(CHECK_CONTAINER, state=state)])


def test_what_tracing_lacks_is_said_with_the_nodes_while_it_runs() -> None:
    btf, nvml = TraceProblem.NO_BTF, TraceProblem.NO_NVML
    text = format_problems({btf: "no type information: boot a kernel with BTF"})
    both = text + format_problems({nvml: "no driver: mount libnvidia-ml.so.1"}) + "noise\n"
    pods = [checked(str(n), f"gpu-{n}", both if n == 4 else text) for n in range(5)] + [pod("x", "gpu-x")]

    condition = tracing_complete(trace_problems(pods))

    assert (condition.status, condition.reason) == ("False", "NoBTF")
    assert condition.message == (
        "NoBTF on gpu-0, gpu-1, gpu-2 and 2 more: no type information: boot a kernel with BTF; "
        "NoNVML on gpu-4: no driver: mount libnvidia-ml.so.1"
    )
    assert tracing_complete(trace_problems([checked("a", "gpu-1", "")])).holds and stuck([condition]) == []


def test_a_workload_shows_what_its_pods_say_and_counts_as_degraded() -> None:
    problem = common_problem([pod(containerStatuses=waiting("ErrImagePull"))])
    deployment = {"kind": "Deployment", "metadata": {"name": "prod-fleet"}, "spec": {"replicas": 1}}
    counts = {"observedGeneration": 1, "desiredNumberScheduled": 3, "numberReady": 2, "updatedNumberScheduled": 3}
    agents = {"kind": "DaemonSet", "metadata": {"name": "prod-push", "generation": 1}, "status": counts}
    assert problem is not None

    parts = [
        available("FleetAvailable", deployment, "Fleet", problem),
        agents_available([agents], None, {"prod-push": problem}),
    ]

    assert [part.reason for part in parts] == ["ImagePullFailed"] * 2
    assert [(error.reason, error.stalls) for error in stuck(parts)] == [("ImagePullFailed", False)] * 2
    assert "is ready on 2 of 3 nodes" in parts[1].message


class Pods:
    """An API server that has one list of pods, or refuses."""

    def __init__(self) -> None:
        self.items = [pod(containerStatuses=waiting("ErrImagePull"))]
        self.asked: list[dict[str, str]] = []
        self.refuses = False

    async def request(self, method: str, path: str, *, query: dict[str, str]) -> Any:
        assert (method, path) == ("GET", "/api/v1/namespaces/ml/pods")
        self.asked.append(query)
        if self.refuses:
            raise ApiError(403, "Forbidden", 'cannot list resource "pods"')
        return {"items": self.items}


def test_pods_are_read_only_while_needed_by_label_and_seldom() -> None:
    now, server = [0.0], Pods()
    failures = Failures(lambda: now[0], chance=lambda: 0.0)
    reader = PodReader(server, lambda: now[0], failures)  # type: ignore[arg-type]
    down = {"kind": "Deployment", "spec": {"replicas": 1}, "status": {"readyReplicas": 0}}
    up = {"kind": "Deployment", "spec": {"replicas": 1}, "status": {"readyReplicas": 1}}

    def ask(live: Any) -> str | None:
        found = asyncio.run(reader.why_unavailable(KEY, "fleet", live))
        return found.reason if found else None

    assert (ask(None), ask(up), server.asked) == (None, None, [])
    assert [ask(down) for _ in range(3)] == ["ImagePullFailed"] * 3
    assert server.asked == [
        {"labelSelector": "app.kubernetes.io/name=ingero-fleet,ingero.io/owner=prod", "limit": str(MOST_PODS)}
    ]
    assert (reader.check_after(KEY, [up]), reader.check_after(KEY, [up, down])) == (
        AVAILABLE_SECONDS,
        UNAVAILABLE_SECONDS,
    )

    now[0], server.refuses = UNAVAILABLE_SECONDS, True
    assert [ask(down) for _ in range(3)] == ["ImagePullFailed"] * 3 and len(server.asked) == 2
    assert [error.reason for error in failures.errors(KEY)] == ["Forbidden"]
    assert ask(up) is None and not failures.errors(KEY)


def test_the_tracer_s_pods_are_read_also_while_all_of_them_are_ready() -> None:
    now, server = [0.0], Pods()
    reader = PodReader(server, lambda: now[0], Failures(lambda: now[0]))  # type: ignore[arg-type]
    ready = {"kind": "DaemonSet", "status": {"numberReady": 1, "desiredNumberScheduled": 1}}

    for now[0] in (0.0, AVAILABLE_SECONDS / 2, AVAILABLE_SECONDS):
        asyncio.run(reader.trace_problem(KEY, "trace", ready))

    assert len(server.asked) == 2


def test_addresses_of_pods_are_read_again_when_their_workload_has_changed() -> None:
    now, server = [0.0], Pods()
    reader = PodReader(server, lambda: now[0], Failures(lambda: now[0]))  # type: ignore[arg-type]

    def running(address: str) -> dict[str, Any]:
        return {"metadata": {}, "status": {"podIP": address, "phase": "Running"}}

    def ask(version: str) -> tuple[str, ...]:
        live = {"kind": "Deployment", "metadata": {"resourceVersion": version}}
        return asyncio.run(reader.addresses(KEY, "fleet", 3, live))

    server.items = [running("10.0.0.1")]
    assert [ask("1"), ask("1")] == [("10.0.0.1",)] * 2 and len(server.asked) == 1

    server.items = [running("10.0.0.2")]
    assert (ask("1"), ask("2"), ask("2")) == (("10.0.0.1",), ("10.0.0.2",), ("10.0.0.2",))
    assert len(server.asked) == 2

    now[0] = UNAVAILABLE_SECONDS
    ask("2")
    assert len(server.asked) == 3


BODY = b'{"ready": true, "problems": {"NoCUDALibraries": "3 processes use the GPUs; set hostPID", "Other": "x"}}'


@contextmanager
def tracer(body: bytes) -> Iterator[int]:
    """An HTTP server that answers as a tracer; yields its port."""
    server = PageServer(
        ("127.0.0.1", 0), {routes.TRACER_HEALTH.encode(): lambda _: Response(200, body, b"application/json")}
    )
    try:
        yield server.port
    finally:
        server.stop()


def test_what_a_running_tracer_finds_out_is_a_condition_with_the_node() -> None:
    found = checked("a", "gpu-1", format_problems({TraceProblem.NO_BTF: "boot a kernel with BTF"}))
    running = {**found, "status": {**found["status"], "podIP": "127.0.0.1", "phase": "Running"}}
    with tracer(BODY) as port:
        reported = asyncio.run(ask_tracers([running, checked("b", "gpu-2", "")], port))

    condition = tracing_complete(trace_problems([running], reported))

    assert set(reported) == {"a"} and set(reported["a"]) == {TraceProblem.NO_CUDA_LIBRARIES}
    assert "NoCUDALibraries on gpu-1: 3 processes use the GPUs; set hostPID" in condition.message
    assert "NoBTF on gpu-1" in condition.message


@pytest.mark.parametrize("body", [b"[]", b"{", b"x" * 100_000], ids=["list", "damaged", "long"])
def test_an_unusable_answer_of_a_tracer_is_left_out(body: bytes) -> None:
    running = {"metadata": {"name": "a"}, "status": {"podIP": "127.0.0.1", "phase": "Running"}}
    with tracer(body) as port:
        assert asyncio.run(ask_tracers([running], port)) == {}
    assert asyncio.run(ask_tracers([running], port)) == {}, "nobody listens"


def test_tracers_are_asked_each_minute_while_one_lacks_something() -> None:
    now, server = [0.0], Pods()
    server.items = [checked("a", "gpu-1", "")]
    problems: dict[str, Reported] = {}

    async def ask(_: list[Any]) -> dict[str, Reported]:
        return problems

    reader = PodReader(server, lambda: now[0], Failures(lambda: now[0]), ask)  # type: ignore[arg-type]
    ready = {"kind": "DaemonSet", "status": {"numberReady": 1, "desiredNumberScheduled": 1}}

    def reason() -> str | None:
        found = asyncio.run(reader.trace_problem(KEY, "trace", ready))
        return found.reason if found else None

    assert (reason(), reader.check_after(KEY, [ready])) == (None, AVAILABLE_SECONDS)
    problems["a"] = {TraceProblem.NO_CUDA_LIBRARIES: "set hostPID"}
    now[0] = AVAILABLE_SECONDS
    assert (reason(), reader.check_after(KEY, [ready])) == ("NoCUDALibraries", LACKING_SECONDS)
    problems.clear()
    now[0] += LACKING_SECONDS
    assert (reason(), reader.check_after(KEY, [ready])) == (None, AVAILABLE_SECONDS)
