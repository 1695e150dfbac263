"""Marks on real Node objects: found, proven, released; and what the admission policy refuses the operator itself."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ingero_testing.fleets import Fleets
from ingero_testing.processes import wait_until
from ingero_testing.taint_lab import KEY, TEAM, Lab, make_node, ready
from scripts.controlplane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]


def test_a_straggler_is_tainted_proven_well_and_released(lab: Lab, operator: Any) -> None:
    lab.begin()
    victim = lab.names[2]
    lab.says.stragglers = {victim}
    wait_until(lambda: lab.taint(victim) is not None, "the taint")

    taint, note = lab.taint(victim), lab.note(victim)
    assert taint is not None and note is not None
    assert taint["effect"] == "NoSchedule" and taint["value"] == note["verdict"]
    assert (note["score"], note["threshold"], note["windows"] >= 3) == (0.4, 0.71, True)
    wait_until(lambda: lab.status()["taints"]["used"] == "1/2", "the status")
    live = lab.plane.read("-n", lab.namespace, "fc", "prod")
    assert live["metadata"]["finalizers"] == ["ingero.io/taints"]
    wait_until(lambda: len(lab.events("Tainted")) == 1, "the Event")

    lab.says.stragglers = set()
    wait_until(lambda: lab.marked() == set(), "the release")
    wait_until(lambda: lab.events("Released") == [f"Node {victim} was released: Recovered"], "the Event")
    wait_until(
        lambda: "finalizers" not in lab.plane.read("-n", lab.namespace, "fc", "prod")["metadata"], "the finalizer"
    )
    assert lab.others_untouched()
    wait_until(lambda: len(lab.taint_events()) == 2, "the records for whoever Fleet forwards to")
    assert [item[:2] for item in lab.taint_events()] == [("add", victim), ("remove", victim)]


def test_an_idle_node_is_not_released_and_deleting_the_resource_releases_it(lab: Lab, operator: Any) -> None:
    lab.begin()
    victim = lab.names[0]
    lab.says.stragglers = {victim}
    wait_until(lambda: lab.taint(victim) is not None, "the taint")
    lab.says.idle, lab.says.stragglers = {victim}, set()
    operator.settle(2)
    assert lab.taint(victim) is not None

    lab.delete()
    assert lab.marked() == set() and lab.others_untouched()


def test_answers_that_make_no_sense_neither_taint_nor_release_and_are_said(lab: Lab, operator: Any) -> None:
    lab.begin()
    held, other = lab.names[0], lab.names[1]
    lab.says.stragglers = {held}
    wait_until(lambda: lab.taint(held) is not None, "the taint")
    shown = {"confirmed": 1, "accused": 1, "nodes": [held]}
    wait_until(lambda: lab.status().get("stragglers") == shown, "the figures")

    lab.says.stragglers, lab.says.raw = {other}, b'{"nodes": null, "interval_seconds": 1e999}'
    wait_until(lambda: lab.condition("QuorumMet") == ("Unknown", "NoEvidence"), "the reason")
    wait_until(lambda: "stragglers" not in lab.status(), "old figures to go", 150)
    operator.settle(2)
    assert lab.marked() == {held}
    assert lab.allowed() == "StaleEvidence" and set(lab.status()["fleet"]) == {"ready"}

    lab.says.raw, lab.says.stragglers = None, set()
    wait_until(lambda: lab.marked() == set(), "the release", 150)
    wait_until(lambda: lab.condition("EvidenceFresh") == ("True", "Fresh"), "the condition")
    assert operator.running.process.poll() is None and "task_failed" not in operator.running.words()


def test_who_removes_the_taint_is_respected(lab: Lab, operator: Any) -> None:
    lab.begin()
    victim = lab.names[1]
    lab.says.stragglers = {victim}
    wait_until(lambda: lab.taint(victim) is not None, "the taint")
    wait_until(lambda: lab.status()["taints"].get("nodes") is not None, "the record")

    lab.plane.kubectl("taint", "node", victim, f"{KEY}-", "--field-manager=alice")

    wait_until(lambda: len(lab.events("TaintOverridden")) == 1, "the Event")
    wait_until(lambda: lab.marked() == set(), "the rest of the mark to go")
    operator.settle(2)
    assert lab.marked() == set()
    (row,) = lab.status()["taints"]["nodes"]
    assert row["handsOffUntil"] and row["overriddenBy"] == "alice"


def test_a_new_machine_of_the_same_name_starts_clean(lab: Lab, operator: Any) -> None:
    lab.begin()
    victim = lab.names[3]
    lab.says.stragglers = {victim}
    wait_until(lambda: lab.taint(victim) is not None, "the taint")
    lab.says.since = lab.plane.read("node", victim)["metadata"]["creationTimestamp"].replace("Z", ".000Z")

    lab.plane.delete("node", victim)
    lab.says.since = "2020-01-01T00:00:00Z"
    lab.plane.apply(make_node(victim))
    wait_until(lambda: ready(lab.plane, victim), "the new machine")
    operator.settle(2)

    assert lab.taint(victim) is None
    wait_until(lambda: lab.status()["taints"]["used"] == "0/2", "the status")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [({"panic": True}, "Panic"), ({"quorum": False}, "NoQuorum"), ({"coverage_low": True}, "LowCoverage")],
)
def test_bad_evidence_stops_and_says_why(lab: Lab, operator: Any, fault: dict[str, Any], reason: str) -> None:
    for name, value in fault.items():
        setattr(lab.says, name, value)
    lab.begin()
    lab.says.stragglers = {lab.names[0]}

    wait_until(lambda: lab.allowed() == reason, "the reason")
    operator.settle(2)
    assert lab.marked() == set()


def test_a_storm_a_pause_and_a_frozen_fleet_stop_everything(lab: Lab, operator: Any) -> None:
    lab.begin(pauseRequests=["alice: firmware"])
    lab.says.stragglers = {lab.names[0]}
    wait_until(lambda: lab.allowed() == "Paused", "the pause")
    lab.says.stragglers = set(lab.names[:5])
    lab.configure(pauseRequests=[])
    wait_until(lambda: lab.allowed() == "Storm", "the storm")
    lab.says.stopped_at, lab.says.frozen, lab.says.stragglers = 1.0, True, {lab.names[0]}
    wait_until(lambda: lab.allowed() == "StaleEvidence", "the old evidence")
    operator.settle(2)

    assert lab.marked() == set()


def test_a_weaker_mode_takes_back_what_the_stronger_one_did(lab: Lab, operator: Any) -> None:
    lab.begin()
    victim = lab.names[4]
    lab.says.stragglers = {victim}
    wait_until(lambda: lab.taint(victim) is not None, "the taint")

    lab.configure(mode="PreferNoSchedule")
    wait_until(lambda: (lab.taint(victim) or {}).get("effect") == "PreferNoSchedule", "the weaker taint")
    lab.configure(mode="Annotate")
    wait_until(lambda: lab.taint(victim) is None and lab.note(victim) is not None, "the annotation alone")
    lab.configure(mode="Observe")
    wait_until(lambda: lab.marked() == set(), "nothing")

    assert lab.events("TaintOverridden") == []


def test_two_fleet_clusters_over_the_same_nodes_both_keep_off(lab: Lab, operator: Any, fleet_double: Fleets) -> None:
    lab.begin(mode="Observe")
    other = lab.plane.read("-n", lab.namespace, "fc", "prod")
    body = {"apiVersion": other["apiVersion"], "kind": other["kind"],
            "metadata": {"name": "second", "namespace": lab.namespace},
            "spec": {**other["spec"], "clusterId": "second"}}  # fmt: skip
    fleet_double.of(lab.namespace, "second")
    lab.plane.apply(body)
    wait_until(lambda: bool(lab.plane.read("-n", lab.namespace, "fc", "second").get("status")), "the second one")
    lab.configure(mode="NoSchedule")
    lab.says.stragglers = {lab.names[0]}

    wait_until(lambda: lab.allowed() == "Overlap", "the overlap")
    operator.settle(1)
    assert lab.marked() == set()


def test_the_condition_says_who_straggles_without_a_taint_and_goes_with_the_resource(
    lab: Lab, operator: Any, fleet_double: Fleets
) -> None:
    def conditions() -> dict[str, str]:
        nodes = {name: lab.plane.read("node", name)["status"]["conditions"] for name in lab.names}
        return {
            name: item["status"] for name, listed in nodes.items() for item in listed if item["type"] == CONDITION
        }

    lab.begin(mode="Observe", condition=True)
    wait_until(lambda: conditions() == dict.fromkeys(lab.names, "False"), "the conditions")
    operator.settle(1)
    victim, writes = lab.names[1], operator.writes()
    operator.settle(2)
    assert operator.writes() == writes

    lab.says.stragglers = {victim}
    wait_until(lambda: conditions()[victim] == "True", "the verdict")
    (entry,) = [item for item in lab.plane.read("node", victim)["status"]["conditions"] if item["type"] == CONDITION]
    assert (entry["reason"], entry["message"]) == ("Slow", "the score 0.400 of the node is below the threshold 0.710")
    assert lab.marked() == set() and ready(lab.plane, victim)

    lab.says.stragglers = set()
    wait_until(lambda: conditions()[victim] == "False", "the recovery")
    lab.delete()
    assert conditions() == {}


# What the API server refuses the operator's own account.


@pytest.fixture(scope="module")
def mine(plane: ControlPlane) -> Iterator[Any]:
    """Patches a node with the operator's own token; says the status and the message."""
    token = json.loads((plane.folder / "operator.kubeconfig").read_text())["users"][0]["user"]["token"]
    plane.apply(make_node("policy-0"))
    control = make_node("policy-1")
    control["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
    plane.apply(control)
    for name in ("policy-0", "policy-1"):
        wait_until(lambda name=name: plane.read("node", name)["spec"].get("taints") == [TEAM], "the node")  # type: ignore[misc]
    with httpx.Client(base_url=f"https://127.0.0.1:{plane.port}", verify=False, trust_env=False) as client:

        def patch(body: Any, kind: str = "merge-patch", name: str = "policy-0", sub: str = "") -> tuple[int, str]:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": f"application/{kind}+json"}
            answer = client.patch(f"/api/v1/nodes/{name}{sub}", content=json.dumps(body), headers=headers)
            return answer.status_code, answer.json().get("message", "")

        yield patch
    for name in ("policy-0", "policy-1"):
        plane.delete("node", name)


CONDITION = "ingero.io/Straggler"
OURS = {"key": KEY, "value": "0" * 8, "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"spec": {"taints": []}}, "other taints"),
        ({"spec": {"taints": [TEAM, {"key": "new", "effect": "NoSchedule"}]}}, "other taints"),
        ({"spec": {"taints": [{**TEAM, "value": "x"}]}}, "other taints"),
        ({"spec": {"taints": [TEAM, {**OURS, "effect": "NoExecute"}]}}, "two effects"),
        ({"spec": {"taints": [TEAM, {**OURS, "value": "bad"}]}}, "two effects"),
        ({"spec": {"taints": [TEAM, OURS, {**OURS, "effect": "PreferNoSchedule"}]}}, "two effects"),
        ({"spec": {"unschedulable": True}}, "cordon"),
        ({"metadata": {"labels": {"x": "y"}}}, "labels"),
        ({"metadata": {"annotations": {"x": "y"}}}, "annotations"),
        ({"metadata": {"finalizers": ["x.y/z"]}}, "finalizers"),
    ],
)
def test_the_operator_may_write_nothing_but_its_own_taint(
    plane: ControlPlane, mine: Any, body: dict[str, Any], words: str
) -> None:
    wait_until(lambda: mine({"metadata": {"labels": {"probe": "1"}}})[0] == 403, "the policy to be in force")

    status, message = mine(body)

    assert status == 403 and words in message, message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "no other condition"),
        ({"status": {"conditions": [{"type": "MemoryPressure", "status": "True"}]}}, "no other condition"),
        ({"status": {"capacity": {"nvidia.com/gpu": "9"}}}, "nothing else"),
        ({"metadata": {"labels": {"x": "y"}}}, "labels"),
        ({"metadata": {"annotations": {"x": "y"}}}, "annotations"),
    ],
)
def test_the_operator_may_set_no_condition_but_its_own(
    plane: ControlPlane, mine: Any, body: dict[str, Any], words: str
) -> None:
    own = {"status": {"conditions": [{"type": CONDITION, "status": "Unknown"}]}}
    wait_until(lambda: mine({"metadata": {"labels": {"probe": "1"}}})[0] == 403, "the policy to be in force")
    assert mine(own, "strategic-merge-patch", sub="/status")[0] == 200

    status, message = mine(body, "strategic-merge-patch", sub="/status")

    assert status == 403 and words in message, message


def test_the_operator_may_write_its_own_taint_but_not_on_the_control_plane(plane: ControlPlane, mine: Any) -> None:
    add = [{"op": "add", "path": "/spec/taints/-", "value": OURS}]

    assert mine(add, "json-patch")[0] == 200
    assert mine([{"op": "remove", "path": "/spec/taints/1"}], "json-patch")[0] == 200
    status, message = mine(add, "json-patch", "policy-1")
    assert status == 403 and "control plane" in message
    assert plane.read("node", "policy-0")["spec"]["taints"] == [TEAM]


def test_only_the_operator_may_write_a_volume_proof(plane: ControlPlane, namespace: str) -> None:
    forged = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a-volume-proof", "namespace": namespace}}

    with pytest.raises(RuntimeError, match="only the operator may write a volume proof"):
        plane.apply(forged)


def test_fleet_gets_the_provider_that_all_nodes_agree_on(lab: Lab, operator: Any) -> None:
    lab.begin(mode="Observe")

    def said() -> bool:
        found = lab.plane.read("-n", lab.namespace, "cm", "prod-fleet")
        return found is not None and "default_provider: lab" in found["data"]["fleet.yaml"]

    wait_until(said, "the provider of the nodes' providerID")
