"""Why pods do not run, or run without all that they need, from their status. Pure.

Tenants choose the images, so texts from a pod are shortened and printed on one line.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from ingero_contract.node_problems import CHECK_CONTAINER, TraceProblem, parse_problems
from ingero_operator.kinds import Manifest
from ingero_operator.taints.nodes import moment
from ingero_operator.taints.state import timestamp_seconds

IMAGE: Final = "ImagePullFailed"
CONFIG: Final = "ContainerConfigInvalid"
CRASH: Final = "ContainerCrashes"
MEMORY: Final = "OutOfMemory"
UNSCHEDULABLE: Final = "Unschedulable"
NOT_READY: Final = "PodNotReady"
NOT_STARTED: Final = "PodNotStarted"
NOT_ENDED: Final = "PodNotEnded"
LATE: Final = (NOT_READY, NOT_STARTED, NOT_ENDED)
"""Reasons of pods that have no other problem than that they should have been ready long ago."""
OBSTACLES: Final = (IMAGE, CONFIG, CRASH, MEMORY, *LATE, *map(str, TraceProblem))
"""Reasons that do not pass by waiting. A pod that no node takes may wait for an autoscaler."""

DEADLINE_SECONDS: Final = 300.0
"""How long a pod may take to become ready or to end: the progress deadline of the Deployments that are rendered."""

SHOWN: Final = 3
"""Nodes that a message names at most."""
MOST_TEXT: Final = 300
"""Most characters from a pod's status in a message."""

_IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_CURES: Final = {
    IMAGE: "check the image's name, spec.imagePullSecrets, and whether nodes reach the registry",
    CONFIG: "make what is missing, or change the spec",
    CRASH: "`kubectl logs --previous` has more",
    MEMORY: "give it more in resources.memory",
    UNSCHEDULABLE: "free or add resources, or change nodeSelector, tolerations or resources in the spec",
}


Reported = Mapping[TraceProblem, str]
"""What a tracer lacks: a sentence for each reason."""


@dataclass(frozen=True, kw_only=True)
class PodProblem:
    """Why a pod does not run, or lacks something: a reason of a condition, and a sentence."""

    reason: str
    message: str


def common_problem(pods: list[Manifest]) -> PodProblem | None:
    """The most frequent problem of pods that are not ready, with the number of pods and the cure."""
    found = [(pod, problem) for pod in sorted(pods, key=_place) if (problem := _problem(pod))]
    if not found:
        return None
    (reason, count), *_ = Counter(problem.reason for _, problem in found).most_common(1)
    pod, problem = next(item for item in found if item[1].reason == reason)
    cure = f"; {_CURES[reason]}" if reason in _CURES else ""
    where = f" (of {count} pods)" if count > 1 else ""
    return PodProblem(reason=reason, message=f"{_place(pod)}: {problem.message}{cure}{where}")


def late(pods: list[Manifest], now: float) -> list[Manifest]:
    """The pods that should have been ready, or gone, by `now` (Unix seconds)."""
    return [pod for pod in pods if 0 < _since(pod) <= now - DEADLINE_SECONDS]


def late_problem(pods: list[Manifest], answers: Mapping[str, str] = MappingProxyType({})) -> PodProblem | None:
    """Why pods are late, as far as it is known; the first by name speaks for all.

    `answers`: what they say of themselves, by name of the pod.
    """
    if not pods:
        return None
    pod = min(pods, key=lambda item: (bool(item["metadata"].get("deletionTimestamp")), item["metadata"]["name"]))
    name, since = pod["metadata"]["name"], timestamp_seconds(_since(pod))
    where = f" (of {len(pods)} pods)" if len(pods) > 1 else ""
    if pod["metadata"].get("deletionTimestamp"):
        message = (
            f"pod {name} should have ended at {since}, and its node has not said that it did: see `kubectl get "
            "nodes`; once nothing of it can run there any more, let another one start by "
            f"`kubectl delete pod {name} --force`"
        )
        return PodProblem(reason=NOT_ENDED, message=f"{_place(pod)}: {message}{where}")
    if not any("running" in (item.get("state") or {}) for item in _statuses(pod, "containerStatuses")):
        message = (
            f"the containers of pod {name} do not run since {since}: the events in `kubectl describe pod {name}` say "
            "which volume, Secret, image or network it waits for"
        )
        return PodProblem(reason=NOT_STARTED, message=f"{_place(pod)}: {message}{where}")
    says = answers.get(name)
    found = f"; asked whether it is ready, it answers: {_line(says)}" if says else ""
    cure = f"`kubectl logs {name}` has more, and `kubectl describe pod {name}` what the kubelet sees"
    return PodProblem(
        reason=NOT_READY,
        message=f"{_place(pod)}: pod {name} runs and is not ready since {since}{found}; {cure}{where}",
    )


def running(pod: Manifest) -> bool:
    """Whether a pod runs and has an address."""
    status = pod.get("status") or {}
    return bool(status.get("podIP")) and status.get("phase") == "Running"


def _since(pod: Manifest) -> float:
    """Since when a pod is not ready, or should be gone, as Unix seconds; 0 for a pod that is ready."""
    if pod["metadata"].get("deletionTimestamp"):
        return moment(pod["metadata"]["deletionTimestamp"])
    conditions = {item.get("type"): item for item in (pod.get("status") or {}).get("conditions") or []}
    ready = conditions.get("Ready", {})
    if ready.get("status") == "True" or conditions.get("PodScheduled", {}).get("status") == "False":
        return 0.0
    return moment(ready.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp"))


def trace_problems(
    pods: list[Manifest], reported: Mapping[str, Reported] = MappingProxyType({})
) -> PodProblem | None:
    """What tracing lacks on nodes, the most frequent reason first.

    It is in the messages of the tracer's check, and in what tracers that run have `reported`, by name of the pod.
    """
    nodes: dict[str, list[str]] = {}
    sentences: dict[str, str] = {}
    for pod in sorted(pods, key=_place):
        for reason, sentence in {**_lacking(pod), **reported.get(pod["metadata"]["name"], {})}.items():
            nodes.setdefault(reason, []).append(_place(pod))
            sentences.setdefault(reason, _line(sentence))
    if not nodes:
        return None
    order = sorted(nodes, key=lambda reason: (-len(nodes[reason]), reason))
    parts = [f"{reason} on {_names(nodes[reason])}: {sentences[reason]}" for reason in order]
    return PodProblem(reason=str(order[0]), message="; ".join(parts))


def _problem(pod: Manifest) -> PodProblem | None:
    """The problem of one pod; none while it is ready, starts or ends."""
    status = pod.get("status") or {}
    conditions = {item.get("type"): item for item in status.get("conditions") or []}
    if pod["metadata"].get("deletionTimestamp") or conditions.get("Ready", {}).get("status") == "True":
        return None
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return PodProblem(reason=UNSCHEDULABLE, message=f"no node takes it: {_line(scheduled.get('message'))}")
    for name in ("initContainerStatuses", "containerStatuses"):
        for container in _statuses(pod, name):
            problem = _container_problem(container)
            if problem:
                return problem
    refused = _lacking(pod).get(TraceProblem.PRIVILEGES_REFUSED)  # the tracer runs, and is not ready because of it
    return PodProblem(reason=str(TraceProblem.PRIVILEGES_REFUSED), message=_line(refused)) if refused else None


def _lacking(pod: Manifest) -> dict[TraceProblem, str]:
    """What the tracer's check left in the pod's status."""
    for status in _statuses(pod, "initContainerStatuses"):
        if status.get("name") == CHECK_CONTAINER:
            return parse_problems(_terminated(status).get("message") or "")
    return {}


def _container_problem(container: dict[str, Any]) -> PodProblem | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    why, name = waiting.get("reason"), _line(container.get("name"))
    if why in _IMAGE_REASONS:
        detail = str(waiting.get("message") or "").partition("ErrImagePull: ")[2]
        image = f"the image {_line(container.get('image'))} of {name} cannot be pulled"
        return PodProblem(reason=IMAGE, message=f"{image}: {_line(detail)}" if detail else image)
    if why in _CONFIG_REASONS:
        return PodProblem(reason=CONFIG, message=f"{name} cannot be started: {_line(waiting.get('message'))}")
    ended = _terminated(container)
    if container.get("ready") or not ended or (ended.get("exitCode") == 0 and ended.get("reason") == "Completed"):
        return None
    if ended.get("reason") == "OOMKilled":
        return PodProblem(reason=MEMORY, message=f"{name} was ended because it took more memory than its limit")
    text = str(ended.get("message") or "")
    for reason, sentence in parse_problems(text).items():
        return PodProblem(reason=str(reason), message=_line(sentence))
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    return PodProblem(reason=CRASH, message=f"{name} ended with status {ended.get('exitCode')}: {_line(last)}")


def _terminated(container: dict[str, Any]) -> dict[str, Any]:
    """How a container ended: now, or before it was restarted."""
    states = (container.get("state") or {}, container.get("lastState") or {})
    return next((state["terminated"] for state in states if state.get("terminated")), {})


def _statuses(pod: Manifest, name: str) -> list[dict[str, Any]]:
    return list((pod.get("status") or {}).get(name) or [])


def _place(pod: Manifest) -> str:
    """The node of a pod, otherwise the pod."""
    return str((pod.get("spec") or {}).get("nodeName") or pod["metadata"]["name"])


def _names(nodes: list[str]) -> str:
    more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return ", ".join(nodes[:SHOWN]) + more


def _line(text: object) -> str:
    """One printable line of limited length."""
    return re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", str(text or "")).strip()[:MOST_TEXT]
