"""What stands in the operator's way on a real control plane: each is named in a condition, and nothing loops."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ingero_operator.render.install import NAMESPACE, OPERATOR, everything
from ingero_testing.fleets import Fleets
from ingero_testing.processes import wait_until
from ingero_testing.taint_lab import Lab
from scripts.controlplane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]


def cluster(namespace: str, name: str = "prod", **spec: Any) -> dict[str, Any]:
    spec = {"clusterId": name, "agents": {"nodeSelector": {"test.ingero.io/pool": "none"}}, **spec}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "ingero.io/v1alpha1", "kind": "FleetCluster", "metadata": metadata, "spec": spec}


def condition(plane: ControlPlane, namespace: str, kind: str = "Degraded") -> tuple[str, str, str]:
    found = plane.read("-n", namespace, "fleetcluster", "prod") or {}
    for item in (found.get("status") or {}).get("conditions", []):
        if item["type"] == kind:
            return item["status"], item["reason"], item["message"]
    return "", "", ""


@pytest.fixture
def somewhere(plane: ControlPlane) -> Iterator[None]:
    """A node on which Fleet runs."""
    plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "somewhere"}})
    yield
    plane.delete("node", "somewhere")


@contextmanager
def without(plane: ControlPlane, resource: str, verb: str) -> Iterator[None]:
    """The operator's ClusterRole lacks a right."""
    role = next(item for item in everything("0.1.0") if item["kind"] == "ClusterRole")
    holed = json.loads(json.dumps(role))
    for rule in holed["rules"]:
        if resource in rule["resources"]:
            rule["verbs"] = [item for item in rule["verbs"] if item != verb] or ["deletecollection"]
    plane.apply(holed)
    account = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
    name, _, part = resource.partition("/")
    right = ("auth", "can-i", verb, name, f"--subresource={part}", "-n", "default", "--as", account)
    wait_until(lambda: plane.kubectl(*right, check=False).startswith("no"), "the hole")
    try:
        yield
    finally:
        plane.apply(role)


def test_a_right_that_lacks_is_named_with_verb_and_resource_and_nothing_else_is_lost(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    plane.apply(cluster(namespace))
    wait_until(lambda: condition(plane, namespace)[0] == "False", "the first reconcile")
    before = plane.read("-n", namespace, "fc", "prod")["status"]
    with without(plane, "secrets", "get"):
        plane.apply(cluster(namespace, tokenSecret={"name": "fleet-token"}))
        wait_until(lambda: condition(plane, namespace)[1] == "Forbidden", "the reason")
        status, _, message = condition(plane, namespace)
        after = plane.read("-n", namespace, "fc", "prod")["status"]

    assert status == "True" and 'cannot get resource "secrets"' in message
    assert all(before[key].items() <= after[key].items() for key in ("effective", "fleet", "taints"))
    assert {item["type"] for item in after["conditions"]} >= {item["type"] for item in before["conditions"]} - {
        "Reconciling"
    }
    wait_until(lambda: condition(plane, namespace)[1] == "SecretMissing", "the right to be back")


def test_the_volume_of_a_store_is_judged_while_its_secrets_cannot_be_read(
    plane: ControlPlane, operator: Any, namespace: str
) -> None:
    spec = {"tlsSecret": "tls", "tokenSecret": {"name": "t"}, "storage": {"className": "not-there"}}
    metadata = {"name": "store", "namespace": namespace}
    store = {"apiVersion": "ingero.io/v1alpha1", "kind": "EchoStore", "metadata": metadata, "spec": spec}
    plane.apply(store)
    wait_until(lambda: "EncryptionVerified" in messages(plane, namespace), "the first reconcile")
    with without(plane, "secrets", "get"):
        plane.apply({**store, "spec": {**spec, "tlsSecret": "other", "storage": {"className": "nor-this"}}})
        wait_until(lambda: "nor-this" in messages(plane, namespace)["EncryptionVerified"], "the class to be judged")
        words = plane.kubectl("-n", namespace, "get", "events", "--field-selector", "reason=Forbidden")

    assert 'cannot get resource "secrets"' in words


def messages(plane: ControlPlane, namespace: str) -> dict[str, str]:
    """The messages of an EchoStore's conditions."""
    status = (plane.read("-n", namespace, "echo", "store") or {}).get("status") or {}
    return {item["type"]: item["message"] for item in status.get("conditions") or []}


def test_a_child_that_may_not_be_written_is_named(plane: ControlPlane, operator: Any, namespace: str) -> None:
    with without(plane, "poddisruptionbudgets", "patch"):
        plane.apply(cluster(namespace))
        wait_until(lambda: condition(plane, namespace)[1] == "Forbidden", "the reason")

    assert 'cannot patch resource "poddisruptionbudgets"' in condition(plane, namespace)[2]


def test_a_taint_that_is_refused_is_said_and_not_tried_all_the_time(lab: Lab, operator: Any) -> None:
    with without(lab.plane, "nodes", "patch"):
        lab.begin()
        lab.says.stragglers = {lab.names[0]}
        wait_until(lambda: condition(lab.plane, lab.namespace)[1] == "TaintRefused", "the reason")
        operator.settle(1)
        before = operator.writes()
        operator.settle(2)

        assert operator.writes() - before <= 1  # what the status shows by itself
        assert f"Node {lab.names[0]} was not changed" in condition(lab.plane, lab.namespace)[2]
    lab.says.stragglers = set()


def test_no_node_is_tainted_that_the_status_could_not_report_and_taints_are_still_removed(
    lab: Lab, operator: Any
) -> None:
    lab.begin()
    held, other = lab.names[0], lab.names[1]
    lab.says.stragglers = {held}
    wait_until(lambda: lab.marked() == {held}, "the mark")
    with without(lab.plane, "fleetclusters/status", "patch"):
        lab.says.stragglers = {held, other}
        wait_until(lambda: f'"node": "{other}"' in operator.running.words(), "the refusal to be logged")
        operator.settle(2)
        assert lab.marked() == {held}
        lab.says.stragglers = set()
        wait_until(lambda: lab.marked() == set(), "the release", 150)
    assert "status_refused" in operator.running.words() and "release_not_noted" in operator.running.words()


def test_what_spec_names_and_is_not_there_is_named(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    words: dict[str, dict[str, Any]] = {
        "spec.fleet.forward.tokenSecret: there is no Secret out": {
            "fleet": {"forward": {"endpoint": "a.b:4317", "tokenSecret": {"name": "out"}}}
        },
        "spec.fleet.forward.echoStore: there is no EchoStore nowhere": {
            "fleet": {"forward": {"echoStore": "nowhere"}}
        },
        "spec.fleet.cost.rates: there is no ConfigMap prices with the key rates.yaml": {
            "fleet": {"cost": {"rates": {"name": "prices", "key": "rates.yaml"}}}
        },
        "spec.tlsSecret: there is no Secret cert": {"tlsSecret": "cert"},
    }  # fmt: skip
    for text, spec in words.items():
        plane.apply(cluster(namespace, **spec))
        wait_until(lambda text=text: text in condition(plane, namespace)[2], text)  # type: ignore[misc]


def test_a_namespace_that_is_going_is_named_and_a_resource_deleted_half_way_leaves_nothing(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    plane.apply(cluster(namespace))
    wait_until(lambda: plane.read("-n", namespace, "ds", "prod-push") is not None, "the children")
    with plane.frozen("kube-controller-manager"):
        plane.delete("namespace", namespace)
        plane.delete("service", "prod-fleet", namespace)
        wait_until(lambda: condition(plane, namespace)[1] == "NamespaceTerminating", "the reason")
    wait_until(lambda: plane.read("namespace", namespace) is None, "the namespace to go")


def test_resources_that_go_while_their_children_are_made_leave_none_behind(
    plane: ControlPlane, operator: Any, namespace: str
) -> None:
    names = [f"short-{number}" for number in range(6)]
    kinds = "deploy,ds,svc,cm,sa,netpol,pdb"
    for number, name in enumerate(names):
        plane.apply(cluster(namespace, name))
        wait_until(
            lambda name=name, number=number: (  # type: ignore[misc]
                len(plane.read("-n", namespace, kinds, "-l", f"ingero.io/owner={name}")["items"]) >= 2 * number
            ),
            "some of the children",
        )
        plane.delete("fc", name, namespace)

    label = "app.kubernetes.io/managed-by=ingero-operator"
    wait_until(lambda: plane.read("-n", namespace, kinds, "-l", label)["items"] == [], "every child to go")


def pods_of(plane: ControlPlane, namespace: str) -> list[Any]:
    return list(plane.read("-n", namespace, "pod", "-l", "app.kubernetes.io/name=ingero-fleet")["items"])


def test_a_pod_that_does_not_run_is_named_with_the_reason_and_the_cure(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    plane.apply(cluster(namespace, fleet={"nodeSelector": {"test.ingero.io/pool": "none"}}))
    wait_until(lambda: condition(plane, namespace, "FleetAvailable")[1] == "Unschedulable", "the scheduler's words")
    assert "change nodeSelector" in condition(plane, namespace, "FleetAvailable")[2]
    assert condition(plane, namespace)[0] == "False"  # a node may be on its way

    waiting = {"reason": "ImagePullBackOff", "message": "Back-off: ErrImagePull: 401 Unauthorized"}
    status = {
        "name": "fleet", "image": "example.org/fleet:1", "imageID": "", "ready": False, "restartCount": 0,
        "state": {"waiting": waiting},
    }  # fmt: skip
    scheduled = {"type": "PodScheduled", "status": "True"}
    (pod,) = pods_of(plane, namespace)
    with plane.frozen("kube-scheduler"):
        change = {"status": {"conditions": [scheduled], "containerStatuses": [status]}}
        plane.patch("pod", pod["metadata"]["name"], change, namespace, "/status")
        wait_until(lambda: condition(plane, namespace)[1] == "ImagePullFailed", "the kubelet's words", 120)

    assert condition(plane, namespace, "FleetAvailable")[1] == "ImagePullFailed"
    message = condition(plane, namespace)[2]
    assert "example.org/fleet:1" in message and "401 Unauthorized" in message and "spec.imagePullSecrets" in message


def test_the_slow_part_of_the_network_is_a_condition_that_taints_nobody(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets, somewhere: None
) -> None:
    says = fleet_double.of(namespace, "prod")
    says.network = {"compared": 96, "verdict": None}
    plane.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "wires", "namespace": namespace},
         "data": {"topology.yaml": "nics: []"}},
        cluster(namespace, fleet={"collectives": {"topology": {"name": "wires", "key": "topology.yaml"}}}),
    )  # fmt: skip
    wait_until(lambda: condition(plane, namespace, "NetworkHealthy")[0] == "True", "a network that is well")
    nic = {"kind": "nic", "name": "node-1/mlx5_0"}
    says.network = {
        "compared": 96, "verdict": {"since": "2026-08-02T10:00:00Z", "elements": [nic], "possible": []},
    }  # fmt: skip
    wait_until(lambda: condition(plane, namespace, "NetworkHealthy")[1] == "SlowPart", "the slow NIC")

    assert "nic node-1/mlx5_0" in condition(plane, namespace, "NetworkHealthy")[2]
    settings = plane.read("-n", namespace, "configmap", "prod-fleet")["data"]
    assert "/etc/ingero/topology/topology.yaml" in str(settings)


def test_a_receiver_that_is_away_and_a_refused_token_are_named(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets, somewhere: None
) -> None:
    says = fleet_double.of(namespace, "prod")
    says.exporters = {
        "otlp": {"waiting": 9, "queue_full": 0.5, "dropped": {"queue_full": 7}, "failure": "unauthenticated",
                 "failing_since": "2026-08-02T10:00:00Z"},
    }  # fmt: skip
    plane.apply(cluster(namespace, fleet={"forward": {"endpoint": "collector.ml:4317"}}))
    wait_until(lambda: condition(plane, namespace, "ForwardAvailable")[1] == "TokenRefused", "the reason")
    assert "7 pushes or more were dropped" in condition(plane, namespace, "ForwardAvailable")[2]
    says.exporters = {"otlp": {"waiting": 0, "queue_full": 0.0, "dropped": {"queue_full": 7}}}
    wait_until(lambda: condition(plane, namespace, "ForwardAvailable")[0] == "True", "the receiver to be back")
