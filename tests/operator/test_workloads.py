"""What is seen of Fleet and of workloads as conditions: what waits, what is stuck, what only informs."""

from dataclasses import replace
from typing import Any

import pytest

from ingero_operator import status as shown
from ingero_operator.api.v1alpha1 import FleetClusterSpec
from ingero_operator.conditions import Condition, no, yes
from ingero_operator.fleet_answers import PollResult, WarmUp
from ingero_operator.fleet_status import INFORMING, NEEDED, evidence_fresh, learned, quorum_met
from ingero_operator.taints.model import Evidence
from ingero_operator.workloads import agents_available, available, stuck

SPEC = FleetClusterSpec.model_validate({"clusterId": "c"})
GOOD = PollResult(evidence=Evidence(tick="t", received=1.0))
FEW = PollResult(evidence=Evidence(tick="t", received=1.0, quorum=False))
GONE = PollResult(evidence=GOOD.evidence, failure="no answer in time")
OLD = PollResult(evidence=GOOD.evidence, stale=True)
UP = [yes("FleetAvailable", "Available", "up"), yes("AgentsAvailable", "Available", "up")]


def conditions_of(answer: PollResult | None, serving: bool = True, *others: Condition) -> dict[str, tuple[str, str]]:
    """Status and reason of every condition."""
    parts = [*(others or UP), evidence_fresh(answer, serving), quorum_met(answer, SPEC)]
    conditions = shown.overall(parts, NEEDED, stuck(parts), False, "", INFORMING)
    summary = shown.assemble(conditions, {}, 1, "2026-01-01T00:00:00Z", False, {})["summary"]
    return {item.type: (item.status, item.reason) for item in conditions} | {"": ("", summary)}


@pytest.mark.parametrize(
    ("answer", "ready", "degraded", "evidence", "enough"),
    [
        (GOOD, ("True", "Healthy"), "False", ("True", "Fresh"), ("True", "QuorumMet")),
        (FEW, ("True", "NoQuorum"), "False", ("True", "Fresh"), ("False", "NoQuorum")),
        (GONE, ("False", "FleetUnreachable"), "True", ("False", "FleetUnreachable"), ("Unknown", "NoEvidence")),
        (OLD, ("False", "StaleEvidence"), "True", ("False", "StaleEvidence"), ("Unknown", "NoEvidence")),
        (None, ("Unknown", "NotPolled"), "False", ("Unknown", "NotPolled"), ("Unknown", "NotPolled")),
    ],
    ids=["good", "few", "gone", "old", "new"],
)
def test_nobody_is_healthy_whose_fleet_says_nothing_of_now(
    answer: PollResult | None,
    ready: tuple[str, str],
    degraded: str,
    evidence: tuple[str, str],
    enough: tuple[str, str],
) -> None:
    found = conditions_of(answer)

    assert (found["Ready"], found["Degraded"][0]) == (ready, degraded)
    assert (found["EvidenceFresh"], found["QuorumMet"]) == (evidence, enough)
    assert found[""][1] == ready[1] and "Stalled" not in found


def test_a_fleet_whose_pods_are_not_ready_is_waited_for() -> None:
    down = (no("FleetAvailable", "Progressing", "0 of 1"), UP[1])

    found = conditions_of(GONE, False, *down)

    assert (found["Ready"], found["Degraded"][0]) == (("False", "Progressing"), "False")
    assert found["EvidenceFresh"] == ("Unknown", "Pending")
    assert conditions_of(None, False, *down)["EvidenceFresh"] == ("Unknown", "Pending")


def deployment(**conditions: tuple[str, str]) -> dict[str, Any]:
    return {
        "kind": "Deployment", "metadata": {"name": "prod-fleet", "generation": 1}, "spec": {"replicas": 1},
        "status": {
            "observedGeneration": 1, "readyReplicas": 0,
            "conditions": [
                {"type": kind, "status": state, "reason": reason, "message": "in words"}
                for kind, (state, reason) in conditions.items()
            ],
        },
    }  # fmt: skip


LATE = deployment(Progressing=("False", "ProgressDeadlineExceeded"))
REFUSED = deployment(ReplicaFailure=("True", "FailedCreate"))
STARTING = deployment(Progressing=("True", "ReplicaSetUpdated"))
FROZEN = deployment(Progressing=("True", "NewReplicaSetAvailable"))
PODLESS = {
    "kind": "DaemonSet", "metadata": {"name": "prod-trace", "generation": 1}, "spec": {"template": {"spec": {}}},
    "status": {"observedGeneration": 1, "desiredNumberScheduled": 3, "currentNumberScheduled": 0, "numberReady": 0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "reason", "stalls"),
    [
        (available("FleetAvailable", LATE, "Fleet"), "ProgressDeadlineExceeded", True),
        (available("FleetAvailable", REFUSED, "Fleet"), "PodsRefused", False),
        (agents_available([PODLESS], False), "PodSecurity", True),
    ],
    ids=["late", "refused", "podless"],
)
def test_what_does_not_pass_by_waiting_is_degraded(part: Condition, reason: str, stalls: bool) -> None:
    parts = [part if item.type == part.type else item for item in UP]

    found = conditions_of(GONE, False, *parts)

    assert found["Degraded"] == ("True", reason) and found["Ready"] == ("False", reason)
    assert (found.get("Stalled") == ("True", reason)) is stalls


def test_what_passes_by_waiting_is_not() -> None:
    starting = available("FleetAvailable", STARTING, "Fleet")

    assert stuck([starting, agents_available([PODLESS], None), quorum_met(FEW, SPEC), *UP]) == []


def test_a_fleet_that_ran_and_is_not_ready_is_not_said_to_progress() -> None:
    frozen = available("FleetAvailable", FROZEN, "Fleet")

    assert (frozen.status, frozen.reason) == ("False", "Unavailable") and "kubectl describe pod" in frozen.message
    assert conditions_of(GONE, False, frozen, UP[1])["Ready"] == ("False", "FleetUnavailable")
    assert available("FleetAvailable", STARTING, "Fleet").reason == "Progressing"


@pytest.mark.parametrize(
    ("quorum", "words"),
    [
        ({}, "too few nodes are active (3) to compare with each other, so no straggler can be found: "
             "spec.fleet.quorum.statisticalMin asks for 5"),
        ({"expectedNodes": 100}, "statisticalMin asks for 5"),
        ({"statisticalMin": 30, "expectedNodes": 4}, "30, more than the 4 of spec.fleet.quorum.expectedNodes"),
    ],
    ids=["defaults", "more expected", "never"],
)  # fmt: skip
def test_too_few_nodes_are_counted_with_the_setting_that_asks_for_more(quorum: dict[str, int], words: str) -> None:
    spec = FleetClusterSpec.model_validate({"clusterId": "c", "fleet": {"quorum": quorum}})

    assert quorum_met(replace(FEW, active=3), spec).message.endswith(words)


WARM_UP = WarmUp(since="2026-01-01T00:00:00Z", until="2026-01-01T00:05:00Z")
NO_SNAPSHOT = replace(WARM_UP, refusal="it is damaged")


@pytest.mark.parametrize(
    ("answer", "spec", "status", "reason", "words"),
    [
        (replace(GOOD, warm_up=WarmUp()), {}, "True", "Learned", "most"),
        (replace(GOOD, warm_up=WARM_UP), {}, "False", "Learning",
         "at about 2026-01-01T00:05:00Z for nodes that work all the time, and later for others"),
        (replace(GOOD, warm_up=WARM_UP), {}, "False", "Learning", "set spec.fleet.snapshots.size"),
        (replace(GOOD, warm_up=WARM_UP), {"snapshots": {"size": "1Gi"}}, "False", "Learning", "first start: wait"),
        (replace(GOOD, warm_up=NO_SNAPSHOT), {}, "False", "SnapshotRefused", "it is damaged"),
        (replace(GONE, warm_up=WARM_UP), {}, "Unknown", "NoEvidence", "EvidenceFresh"),
        (replace(GOOD, warm_up=WarmUp(), reporting=3), {}, "True", "Learned", "most"),
        (replace(GOOD, warm_up=WarmUp(), reporting=0), {}, "Unknown", "NoNodes", "no node reports"),
    ],
    ids=["learned", "until", "no volume", "volume", "refused", "gone", "nodes", "no nodes"],
)  # fmt: skip
def test_a_warm_up_is_a_condition_with_its_cure_and_fleet_stays_ready(
    answer: PollResult, spec: dict[str, Any], status: str, reason: str, words: str
) -> None:
    found = learned(answer, FleetClusterSpec.model_validate({"clusterId": "c", "fleet": spec}))

    assert found is not None
    assert (found.status, found.reason) == (status, reason) and words in found.message
    ready, *_ = shown.overall([*UP, evidence_fresh(GOOD, True), found], NEEDED, [], False, "", INFORMING)
    assert ready.holds


@pytest.mark.parametrize("answer", [None, GOOD], ids=["not polled", "older Fleet"])
def test_a_fleet_that_does_not_say_whether_it_learns_has_no_such_condition(answer: PollResult | None) -> None:
    assert learned(answer, SPEC) is None
