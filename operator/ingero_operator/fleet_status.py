"""A FleetCluster's conditions and figures, from its children and from Fleet's response. Pure."""

from collections.abc import Sequence
from typing import Final

from ingero_operator.api.status import MAX_NAMED
from ingero_operator.api.v1alpha1 import FleetClusterSpec, Source
from ingero_operator.certificates import VALID
from ingero_operator.conditions import Condition, no, unknown, yes
from ingero_operator.fleet_answers import PollResult, WarmUp
from ingero_operator.forwarding import FORWARDED
from ingero_operator.job_hangs import PROGRESS
from ingero_operator.kinds import Manifest
from ingero_operator.log_conditions import LOG_CONDITIONS
from ingero_operator.network_health import NETWORK
from ingero_operator.plan import ChildKey, rolled_out
from ingero_operator.status import effective
from ingero_operator.untrusted_http import TOKEN_REFUSED
from ingero_operator.workloads import ROUTED, TRACING, ready_of

NEEDED: Final = ("FleetAvailable", "AgentsAvailable", "EvidenceFresh")
UNIQUE: Final = "AgentsUnique"
INFORMING: Final = (
    *LOG_CONDITIONS,
    FORWARDED,
    "QuorumMet",
    UNIQUE,
    "Learned",
    ROUTED,
    VALID,
    TRACING,
    NETWORK,
    PROGRESS,
)
"""Conditions that Ready does not depend on (at night, for example, no job runs). The summary shows them."""
CONDITIONS: Final = (*NEEDED, "QuorumMet", "TaintingAllowed")


def daemon_sets(name: str, spec: FleetClusterSpec) -> list[str]:
    """Names of the DaemonSets of a FleetCluster."""
    return [*([f"{name}-trace"] if spec.agents.source is Source.TRACE else []), f"{name}-push"]


def rollout_order(name: str, spec: FleetClusterSpec) -> tuple[ChildKey, ...]:
    """Workloads in the order of an upgrade: the receiver first, so that agents never push to an older one."""
    sets = tuple(("DaemonSet", set_name) for set_name in daemon_sets(name, spec))
    receivers = (("Deployment", f"{name}-receivers"),) if spec.fleet.receivers else ()
    return (("Deployment", f"{name}-fleet"), *receivers, *sets)


def evidence_fresh(result: PollResult | None, serving: bool) -> Condition:
    """Whether Fleet answers with current statistics. `serving`: its pods are ready, so it should answer."""
    kind = "EvidenceFresh"
    if not serving and (result is None or result.failure):
        return unknown(kind, "Pending", "Fleet is polled when its pods are ready")
    if result is None:
        return unknown(kind, "NotPolled", "Fleet has not been polled yet")
    if TOKEN_REFUSED in result.failure:
        message = (
            f"Fleet: {result.failure}. It and the operator read spec.tokenSecret; Fleet follows a change within "
            "two minutes, and one in spec.fleet.settings never: use one token"
        )
        return no(kind, "TokenRefused", message)
    if result.failure:
        return no(kind, "FleetUnreachable", f"Fleet gives no answer that can be used: {result.failure}")
    if result.stale:
        return no(kind, "StaleEvidence", "Fleet answers, but its statistics are old: see the logs of its pod")
    return yes(kind, "Fresh", "Fleet answers with current statistics")


def quorum_met(result: PollResult | None, spec: FleetClusterSpec) -> Condition:
    """Whether there are enough nodes to compare, as far as is known now."""
    kind = "QuorumMet"
    if result is None:
        return unknown(kind, "NotPolled", "Fleet has not been polled yet")
    if not result.current or result.evidence is None:
        return unknown(kind, "NoEvidence", "there are no current statistics of the nodes: see EvidenceFresh")
    if result.evidence.quorum:
        return yes(kind, "QuorumMet", "enough active nodes to compare with each other")
    least, expected = spec.fleet.quorum.statistical_min, spec.fleet.quorum.expected_nodes
    message = (
        f"too few nodes are active ({result.active}) to compare with each other, so no straggler can be found: "
        f"spec.fleet.quorum.statisticalMin asks for {least}"
    )
    never = f", more than the {expected} of spec.fleet.quorum.expectedNodes" if 0 < expected < least else ""
    return no(kind, "NoQuorum", message + never)


def learned(result: PollResult | None, spec: FleetClusterSpec) -> Condition | None:
    """Whether the warm-up of most nodes has ended; `None` where Fleet does not say."""
    kind = "Learned"
    if result is None or result.warm_up is None:
        return None
    if not result.current:
        return unknown(kind, "NoEvidence", "there are no current statistics of the nodes: see EvidenceFresh")
    warm_up = result.warm_up
    if result.reporting == 0:
        return unknown(kind, "NoNodes", "no node reports, so nothing was learnt yet")
    if not warm_up.since:
        return yes(kind, "Learned", "Fleet knows what is normal for most of the nodes that work")
    message = (
        f"since {warm_up.since} Fleet learns what is normal, and accuses no node that is in its warm-up; that ends "
        f"at about {warm_up.until} for nodes that work all the time, and later for others. "
        f"{_why_it_learns(warm_up, spec)}"
    )
    return no(kind, "SnapshotRefused" if warm_up.refusal else "Learning", message)


def agents_unique(result: PollResult | None, cluster: str) -> Condition | None:
    """Whether one agent alone reports as each node; `None` where Fleet does not say."""
    if result is None or result.several_agents is None or not result.current:
        return None
    found = result.several_agents
    if not found.count:
        return yes(UNIQUE, "OneAgentEach", "no node has several agents")
    more = f" and {found.count - len(found.nodes)} more" if found.count > len(found.nodes) else ""
    message = (
        f"several agents report as {', '.join(found.nodes)}{more}: a cloned machine image, an agent outside of "
        f"Kubernetes, or another cluster with the clusterId {cluster!r}. Such nodes are neither tainted nor "
        "released; stop all agents but one, or give them other names"
    )
    return no(UNIQUE, "SeveralAgents", message)


def _why_it_learns(warm_up: WarmUp, spec: FleetClusterSpec) -> str:
    if warm_up.refusal:
        return (
            f"Its snapshot could not be used: {warm_up.refusal}. Undo the change of version or settings, or wait; "
            "if the file is damaged, check the volume"
        )
    if spec.fleet.snapshots.size or spec.fleet.log.nats:
        return "There was no snapshot, as at the first start: wait"
    return "There was no snapshot: set spec.fleet.snapshots.size so that Fleet's state outlives its pod"


def rollout_progress(children: dict[ChildKey, Manifest]) -> str:
    """The first workload that is rolling out, as a sentence; nothing when none is."""
    for (kind, name), live in sorted(children.items()):
        if kind in ("Deployment", "DaemonSet") and not rolled_out(live):
            return f"{kind} {name} is rolling out"
    return ""


def figures(
    name: str, spec: FleetClusterSpec, version: str, children: dict[ChildKey, Manifest], result: PollResult | None,
    confirmed: int, accused: Sequence[str],
) -> Manifest:  # fmt: skip
    """The status without conditions and taints. `confirmed`: how many of the accused nodes are."""
    fleet_ready, fleet_desired = ready_of(children.get(("Deployment", f"{name}-fleet")))
    pairs = [ready_of(children.get(("DaemonSet", item))) for item in daemon_sets(name, spec)]
    out: Manifest = {
        "version": spec.version or version,
        "fleet": {"ready": f"{fleet_ready}/{fleet_desired}"},
        "agents": {"ready": f"{min(pair[0] for pair in pairs)}/{max(pair[1] for pair in pairs)}"},
        "effective": effective(spec),
    }
    if spec.fleet.receivers:
        ready, desired = ready_of(children.get(("Deployment", f"{name}-receivers")))
        out["receivers"] = {"ready": f"{ready}/{desired}"}
    if result and result.log_figures:
        out["log"] = result.log_figures
    if result and result.current:  # omitted otherwise: old figures would be taken for current ones
        if result.threshold is not None:
            out["fleet"]["threshold"] = f"{result.threshold:.2f}"
        out["fleet"]["nodes"] = f"{result.active}/{result.expected}"
        out["stragglers"] = {"confirmed": confirmed, "accused": len(accused)}
        if accused:
            out["stragglers"]["nodes"] = list(accused[:MAX_NAMED])
        if result.late_ranks:
            out["lateRanks"] = list(result.late_ranks)
        if result.cost:
            out["cost"] = result.cost
    return out
