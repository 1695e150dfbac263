"""Conditions from the state of Deployments, DaemonSets and StatefulSets. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ingero_operator.api.v1alpha1 import Gateway
from ingero_operator.conditions import Condition, no, unknown, yes
from ingero_operator.errors import ReconcileError
from ingero_operator.forwarding import FORWARDED
from ingero_operator.job_hangs import PROGRESS
from ingero_operator.kinds import Manifest
from ingero_operator.network_health import NETWORK
from ingero_operator.plan import rolled_out
from ingero_operator.pod_problems import LATE, OBSTACLES, PodProblem
from ingero_operator.render.common import Platform

STUCK: Final = {
    "PodSecurity": True, "ProgressDeadlineExceeded": True, "PodsRefused": False,
    "FleetUnreachable": False, "StaleEvidence": False, "TokenRefused": False, **dict.fromkeys(OBSTACLES, False),
}  # fmt: skip
"""Reasons that do not pass by waiting, and whether only a user's change helps."""


TRACING: Final = "TracingComplete"
ROUTED: Final = "RouteCreated"
_INFORMING: Final = ("TaintingAllowed", FORWARDED, NETWORK, PROGRESS, TRACING, ROUTED)


def stuck(parts: list[Condition]) -> list[ReconcileError]:
    """The parts that are obstacles, not just in progress, as errors."""
    return [
        ReconcileError(part.reason, part.message, stalls=STUCK[part.reason])
        for part in parts
        if part.status == "False" and part.type not in _INFORMING and part.reason in STUCK
    ]


def ready_of(live: Manifest | None) -> tuple[int, int]:
    """Ready and wanted pods."""
    if live is None:
        return 0, 0
    status = live.get("status", {})
    if live["kind"] == "DaemonSet":
        return int(status.get("numberReady", 0)), int(status.get("desiredNumberScheduled", 0))
    return int(status.get("readyReplicas", 0)), int(live.get("spec", {}).get("replicas", 1))


def reported(live: Manifest, **fields: str) -> str | None:
    """The message of the Deployment's condition with these fields, if there is one."""
    for condition in live.get("status", {}).get("conditions", []):
        if fields.items() <= condition.items():
            return str(condition.get("message", ""))
    return None


def available(kind: str, live: Manifest | None, what: str, problem: PodProblem | None = None) -> Condition:
    """Whether a Deployment or StatefulSet serves. `problem`: what its pods say."""
    if live is None:
        return unknown(kind, "Pending", f"{what} is not made yet")
    ready, desired = ready_of(live)
    name = f"{live['kind']} {live['metadata']['name']}"
    failure = reported(live, type="ReplicaFailure", status="True")  # quota, admission, security
    if ready < desired and failure:
        return no(kind, "PodsRefused", f"{name}: {failure}")
    overdue = reported(live, type="Progressing", reason="ProgressDeadlineExceeded")
    if ready < desired and problem and not (overdue and problem.reason in LATE):
        return no(kind, problem.reason, f"{name}: {problem.message}")
    if ready < desired and overdue:
        why = problem.message if problem else "See `kubectl describe pod` of its pods."
        return no(kind, "ProgressDeadlineExceeded", f"{name}: {overdue} {why}")
    # Once rolled out, a Deployment never passes its deadline, whatever becomes of its pods.
    rolled_out_before = reported(live, type="Progressing", reason="NewReplicaSetAvailable") is not None
    if ready < desired and rolled_out_before:
        hint = "if that lasts, this message will say why; `kubectl describe pod` of its pods has what is known now"
        return no(kind, "Unavailable", f"{name} has {ready} of {desired} pods ready; {hint}")
    if ready < desired:
        return no(kind, "Progressing", f"{name} has {ready} of {desired} pods ready")
    return yes(kind, "Available", f"{name} has {ready} of {desired} pods ready")


def unavailable(live: Manifest | None) -> bool:
    """Whether a workload lacks pods that are ready."""
    ready, desired = ready_of(live)
    return ready < desired


def agents_available(
    sets: list[Manifest | None], privileged: bool | None, problems: Mapping[str, PodProblem] = MappingProxyType({})
) -> Condition:
    """Whether every GPU node is watched. `privileged`: whether the namespace admits privileged pods, if known;
    `problems`: what the pods of a DaemonSet say, by its name."""
    kind = "AgentsAvailable"
    present = [item for item in sets if item is not None]
    if len(present) < len(sets):
        return unknown(kind, "Pending", "the DaemonSets are not made yet")
    for live in present:
        status, name = live.get("status", {}), f"DaemonSet {live['metadata']['name']}"
        if status.get("observedGeneration", 0) < live["metadata"].get("generation", 0):
            return unknown(kind, "Pending", f"{name} is not observed yet")
        ready, desired = ready_of(live)
        if desired == 0:
            return no(
                kind, "NoMatchingNodes",
                f"{name}: no node matches spec.agents.nodeSelector "
                f"({_selector(live)}); label the GPU nodes or change the selector",
            )  # fmt: skip
        if status.get("currentNumberScheduled", 0) < desired and privileged is False:
            return no(
                kind, "PodSecurity",
                f"{name} lacks pods on {desired - int(status.get('currentNumberScheduled', 0))} of {desired} nodes "
                "and the namespace does not admit privileged pods; label it "
                "pod-security.kubernetes.io/enforce=privileged",
            )  # fmt: skip
        if ready < desired:
            problem = problems.get(live["metadata"]["name"])
            if problem:
                return no(kind, problem.reason, f"{name} is ready on {ready} of {desired} nodes: {problem.message}")
            reason = "Progressing" if not rolled_out(live) else "Unavailable"
            return no(kind, reason, f"{name} is ready on {ready} of {desired} nodes")
    ready, desired = ready_of(present[-1])
    return yes(kind, "Available", f"agents are ready on {ready} of {desired} nodes")


def tracing_complete(problem: PodProblem | None) -> Condition:
    """Whether the tracer has all that it needs on every node where it runs. `problem`: what its pods say."""
    if problem:
        return no(TRACING, problem.reason, problem.message)
    return yes(TRACING, "AsExpected", "the tracer reports nothing that it lacks")


def route_created(wanted: Gateway | None, platform: Platform, place: str) -> Condition | None:
    """Whether the HTTPRoute that `place` asks for can be created; `None` where none is asked for."""
    if wanted is None:
        return None
    if platform.http_routes:
        return yes(ROUTED, "AsExpected", "the status of the HTTPRoute says whether its Gateway accepts it")
    message = (
        f"{place}.gateway: the API server does not serve httproutes of gateway.networking.k8s.io/v1; install the "
        f"CRDs of the Gateway API (1.0 or newer) and a controller, or use {place}.ingress"
    )
    return no(ROUTED, "GatewayAPIMissing", message)


def _selector(live: Manifest) -> str:
    chosen = live["spec"]["template"]["spec"].get("nodeSelector", {})
    return ", ".join(f"{key}={value}" for key, value in chosen.items())
