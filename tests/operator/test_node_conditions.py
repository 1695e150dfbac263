"""Which condition a node should have, from evidence and time."""

from dataclasses import replace
from typing import Any

import pytest

from ingero_operator.api.v1alpha1 import Taints
from ingero_operator.taints.model import Accused, ClusterObservation, Evidence
from ingero_operator.taints.node_conditions import STALE_SECONDS, ConditionWrite, condition_writes, reason_of
from ingero_operator.taints.nodes import NodeCondition, NodeView, node_view
from ingero_operator.taints.policy import decide
from ingero_operator.taints.state import TaintState

NOW = 1_700_000_000.0
POLICY = Taints(condition=True, confirm_windows=1, confirm_for="1m", recover_for="10m")
SLOW = Accused(active=True, windows=100, kind="late_rank", severity=0.12)
NODE = NodeView(name="n0", uid="u0", labels={}, created=NOW - 86_400)
TRUE = NodeCondition(status="True", reason="LateRank", since="2023-01-01T00:00:00Z")
FALSE = NodeCondition(status="False", reason="NotAccused", since="2023-01-01T00:00:00Z")


class Cluster:
    """One node over time; the taint policy keeps the state, as it does in the operator."""

    def __init__(self, node: NodeView = NODE, policy: Taints = POLICY) -> None:
        self.node, self.policy, self.state, self.now = node, policy, TaintState(), NOW

    def see(self, *accused: Accused, healthy: bool = False, seconds: float = 60.0, **change: Any) -> str:
        """Status and reason of what is written, `removed`, or nothing; with new evidence after so many seconds."""
        self.now += seconds
        evidence = replace(
            Evidence(
                tick=str(self.now), received=self.now, accused=dict.fromkeys(["n0"], *accused) if accused else {},
                healthy=frozenset({"n0"} if healthy else ()),
            ),
            **change,
        )  # fmt: skip
        return self.decide(evidence)

    def decide(self, evidence: Evidence | None, *, age: float = 0.0, **change: Any) -> str:
        observed = replace(
            ClusterObservation(owner="fc", nodes={"n0": self.node}, watched=frozenset({"n0"}), evidence=evidence),
            **change,
        )
        self.state = decide(self.policy, observed, self.state, self.now).state
        found = condition_writes([self.node], self.policy, observed, self.state, self.now - age, self.now)
        return " ".join(self.apply(write) for write in found)

    def apply(self, write: ConditionWrite) -> str:
        body = write.body(self.now)
        self.node = node_view(
            {**body, "metadata": {**body["metadata"], "labels": {"nvidia.com/gpu.present": "true"}}}
        )
        return f"{write.condition.status} {write.condition.reason}" if write.condition else "removed"


def test_a_node_goes_from_false_to_true_and_back_and_nothing_is_written_in_between() -> None:
    cluster = Cluster()

    assert cluster.see() == "False NotAccused"
    assert cluster.see() == ""
    assert [cluster.see(SLOW) for _ in range(3)] == ["", "True LateRank", ""]
    assert cluster.see() == "", "idleness is no recovery"
    assert [cluster.see(healthy=True, seconds=300) for _ in range(4)] == ["", "", "False NotAccused", ""]


def test_a_new_kind_of_the_same_verdict_keeps_the_transition_time() -> None:
    write = ConditionWrite(node=replace(NODE, condition=TRUE), condition=None)
    (other,) = condition_writes(
        [write.node], replace_policy(confirm_for="0s"), observation(replace(SLOW, kind="gpu_throttled")),
        decide(replace_policy(confirm_for="0s"), observation(SLOW), TaintState(), NOW).state, NOW, NOW,
    )  # fmt: skip

    (entry,) = other.body(NOW)["status"]["conditions"]
    assert (entry["reason"], entry["lastTransitionTime"]) == ("GpuThrottled", TRUE.since)
    assert entry["message"] == (
        "a throttled GPU of the node delays the collectives of its job, which costs 12% of its time"
    )
    assert other.body(NOW)["metadata"] == {"name": "n0", "uid": "u0"}


def replace_policy(**update: Any) -> Taints:
    return POLICY.model_copy(update=update)


def observation(item: Accused, node: NodeView = NODE) -> ClusterObservation:
    evidence = Evidence(tick="1", received=NOW, accused={"n0": item})
    return ClusterObservation(owner="fc", nodes={"n0": node}, watched=frozenset({"n0"}), evidence=evidence)


@pytest.mark.parametrize("change", [{"quorum": False}, {"panic": True}, {"coverage_low": True}, {"threshold": False}])
def test_evidence_that_cannot_be_trusted_changes_nothing(change: dict[str, Any]) -> None:
    cluster = Cluster(replace(NODE, condition=FALSE))

    assert [cluster.see(SLOW, **change) for _ in range(5)] == [""] * 5


def test_old_evidence_makes_a_condition_unknown_and_sets_none() -> None:
    assert Cluster(replace(NODE, condition=TRUE)).decide(None, age=STALE_SECONDS) == "Unknown StaleEvidence"
    assert Cluster(replace(NODE, condition=TRUE)).decide(None, age=STALE_SECONDS - 1) == ""
    assert Cluster().decide(None, age=STALE_SECONDS) == ""
    cluster = Cluster(replace(NODE, condition=NodeCondition(status="Unknown", reason="StaleEvidence", since="")))
    assert cluster.decide(None, age=2 * STALE_SECONDS) == ""
    assert cluster.see() == "False NotAccused"


@pytest.mark.parametrize(
    ("node", "policy", "change"),
    [
        ({}, {"condition": False}, {}),
        ({}, {}, {"deleting": True}),
        ({}, {}, {"watched": frozenset[str]()}),
        ({"labels": {"ingero.io/exclude": ""}}, {}, {}),
        ({"control_plane": True}, {}, {}),
        ({"gpu": False}, {}, {}),
    ],
)
def test_a_condition_that_is_not_asked_for_is_removed(
    node: dict[str, Any], policy: dict[str, Any], change: dict[str, Any]
) -> None:
    cluster = Cluster(replace(NODE, condition=TRUE, **node), replace_policy(**policy))

    assert cluster.decide(None, **change) == "removed"
    assert cluster.decide(None, **change) == ""


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("slow", "Slow"),
        ("late_rank", "LateRank"),
        ("gpu_throttled", "GpuThrottled"),
        ("", "Slow"),
        ("9\n: x", "Slow"),
    ],
)
def test_the_reason_is_the_kind_in_camel_case(kind: str, reason: str) -> None:
    assert reason_of(replace(SLOW, kind=kind)) == reason
