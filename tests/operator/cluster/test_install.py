"""The rights and policies of the installation, on a real API server."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ingero_operator.render.install import (
    GUARD,
    NAMESPACE,
    OPERATOR,
    everything,
    namespace_access,
    rules,
)
from ingero_testing.processes import answer, wait_until
from ingero_testing.taint_lab import TEAM, Lab
from scripts.controlplane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]

ROOT = Path(__file__).parents[3]
RBAC = "rbac.authorization.k8s.io"
Ask = Callable[..., tuple[int, str]]


def installed(kind: str, name: str = OPERATOR) -> dict[str, Any]:
    return next(item for item in everything("0.1.0") if (item["kind"], item["metadata"]["name"]) == (kind, name))


def bind(kind: str, name: str, role: str, account: str, namespace: str) -> dict[str, Any]:
    """A binding of a ClusterRole, in the whole cluster or in the account's namespace."""
    metadata = {"name": name, **({"namespace": namespace} if kind == "RoleBinding" else {})}
    return {
        "apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }  # fmt: skip


@contextmanager
def account(plane: ControlPlane, namespace: str, name: str = OPERATOR) -> Iterator[Ask]:
    """An account and how it asks the API server."""
    plane.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}})
    token = plane.kubectl("-n", namespace, "create", "token", name).strip()
    with httpx.Client(base_url=f"https://127.0.0.1:{plane.port}", verify=False, trust_env=False) as client:

        def ask(method: str, path: str, body: Any) -> tuple[int, str]:
            content = "application/json" if method == "POST" else "application/merge-patch+json"
            headers = {"Authorization": f"Bearer {token}", "Content-Type": content}
            answer = client.request(method, path, content=json.dumps(body), headers=headers)
            return answer.status_code, answer.json().get("message", "")

        yield ask


def config_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"volume": "v"}}


def test_an_operator_in_another_namespace_is_guarded_and_may_write_proofs(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    overlay = ROOT / "manifests/base"
    (tmp_path / "operator.yaml").write_text((overlay / "operator.yaml").read_text())
    (tmp_path / "kustomization.yaml").write_text(f"resources: [operator.yaml]\nnamespace: {namespace}\n")
    items = list(yaml.safe_load_all(plane.kubectl("kustomize", str(tmp_path))))
    plane.apply(*(item for item in items if item["kind"].startswith("ValidatingAdmissionPolicy")))
    plane.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n-{namespace}"}, "spec": {"taints": [TEAM]}}
    )
    proofs = f"/api/v1/namespaces/{namespace}/configmaps"
    with account(plane, namespace) as ask:
        plane.apply(bind("RoleBinding", "all", "cluster-admin", OPERATOR, namespace))
        wait_until(lambda: ask("POST", proofs, config_map("plain"))[0] in (201, 409), "the right to make ConfigMaps")

        forged = ask("POST", proofs, config_map("a-volume-proof"))
        assert forged == (403, forged[1]) and "only the operator may write a volume proof" in forged[1]

        plane.apply(bind("ClusterRoleBinding", namespace, OPERATOR, OPERATOR, namespace))
        try:
            wait_until(lambda: ask("POST", proofs, config_map("a-volume-proof"))[0] in (201, 409), "the proof")
            node = f"/api/v1/nodes/n-{namespace}"
            status, message = ask("PATCH", node, {"metadata": {"labels": {"x": "y"}}})
            assert (status, "may not change labels" in message) == (403, True), message
            assert ask("PATCH", node, {"metadata": {"annotations": {"ingero.io/straggler": "{}"}}})[0] == 200
        finally:
            plane.kubectl("delete", "clusterrolebinding", namespace)
            plane.delete("node", f"n-{namespace}")


def test_a_namespaces_own_administrator_can_orphan_a_proof_and_not_change_it(
    plane: ControlPlane, namespace: str
) -> None:
    proofs = f"/api/v1/namespaces/{namespace}/configmaps"
    with account(plane, NAMESPACE) as operator, account(plane, namespace, "owner") as owner:
        plane.apply(bind("RoleBinding", "all", "cluster-admin", "owner", namespace))
        reference = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "x",
            "uid": "00000000-0000-0000-0000-000000000000",
        }
        body = config_map("a-volume-proof")
        body["metadata"] |= {"ownerReferences": [reference], "labels": {"ingero.io/volume-proof": "true"}}
        plane.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": namespace}})
        uid = plane.read("-n", namespace, "cm", "x")["metadata"]["uid"]
        reference["uid"] = uid
        assert operator("POST", proofs, body)[0] == 201
        path = f"{proofs}/a-volume-proof"
        wait_until(lambda: owner("PATCH", path, {"metadata": {"annotations": {"a": "b"}}})[0] == 200, "the rights")

        assert owner("PATCH", path, {"data": {"volume": "another"}})[0] == 403
        assert owner("PATCH", path, {"metadata": {"labels": {"ingero.io/volume-proof": None}}})[0] == 403
        assert owner("PATCH", path, {"metadata": {"ownerReferences": None}})[0] == 200


@contextmanager
def without_node_policy(plane: ControlPlane) -> Iterator[None]:
    """Somebody took the binding of the policy over nodes away."""
    probe = json.dumps({"metadata": {"annotations": {"x": "y"}}})
    user = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"

    def refused(node: str) -> bool:
        words = plane.kubectl(
            "patch", "node", node, "--type=merge", "-p", probe, "--dry-run=server", "--as", user, check=False
        )
        return "may not change other annotations" in words

    plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "probe"}})
    plane.kubectl("delete", "validatingadmissionpolicybinding", GUARD)
    try:
        wait_until(lambda: not refused("probe"), "the policy to be gone")
        yield
    finally:
        plane.apply(installed("ValidatingAdmissionPolicyBinding", GUARD))
        wait_until(lambda: refused("probe"), "the policy to be back")
        plane.delete("node", "probe")


def test_without_the_node_policy_no_node_is_tainted_until_it_is_back(lab: Lab, start: Any) -> None:
    with without_node_policy(lab.plane), start() as instance:
        lab.begin()
        lab.says.stragglers = {lab.names[0]}
        wait_until(lambda: lab.allowed() == "NodePolicyMissing", "the reason")
        instance.settle(2)

        assert lab.marked() == set() and instance.page()["ingero_operator_node_policy_missing"] == 1
        lab.plane.apply(installed("ValidatingAdmissionPolicyBinding", GUARD))
        wait_until(lambda: lab.marked() == {lab.names[0]}, "the taint once the policy is back")
        assert instance.page()["ingero_operator_node_policy_missing"] == 0
        lab.delete()


def fleet_cluster(namespace: str) -> dict[str, Any]:
    metadata = {"name": "prod", "namespace": namespace}
    spec = {"clusterId": "prod", "agents": {"nodeSelector": {"test.ingero.io/pool": "none"}}}
    return {"apiVersion": "ingero.io/v1alpha1", "kind": "FleetCluster", "metadata": metadata, "spec": spec}


def test_the_operator_manages_the_namespaces_that_it_has_roles_in_and_starts_anew_for_another_one(
    plane: ControlPlane, start: Any, namespace: str
) -> None:
    other = f"{namespace}-other"
    plane.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}},
        {**installed("ClusterRole"), "rules": rules(True)}, *namespace_access(namespace),
    )  # fmt: skip
    user = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"

    def may(where: str) -> bool:
        return plane.kubectl("auth", "can-i", "get", "secrets", "-n", where, "--as", user, check=False)[:3] == "yes"

    try:
        wait_until(lambda: may(namespace) and not may(other), "the rights")
        plane.apply(fleet_cluster(namespace), fleet_cluster(other))
        with start("--watch-namespaces", f"{namespace},{other}") as instance:
            wait_until(lambda: plane.read("-n", namespace, "ds", "prod-push") is not None, "the agents")
            wait_until(lambda: "effective" in plane.read("-n", namespace, "fc", "prod")["status"], "the status")
            instance.settle(2)
            plane.delete("ds", "prod-push", namespace)
            wait_until(lambda: plane.read("-n", namespace, "ds", "prod-push") is not None, "the agents again")

            assert plane.read("-n", other, "deploy,ds,sa", "-l", "ingero.io/owner=prod")["items"] == []
            words = instance.running.words().splitlines()
            assert all("namespace_not_watched" in line for line in words if "orbidden" in line), words
            plane.apply(*namespace_access(other))
            wait_until(lambda: instance.running.process.poll() == 1, "the restart with the new rights")
    finally:
        plane.apply(installed("ClusterRole"))
        wait_until(lambda: may(other), "the rights of others")
        plane.delete("namespace", other)


def test_who_views_a_namespace_sees_our_kinds_and_only_who_may_taint_nodes_makes_a_fleet_cluster(
    plane: ControlPlane, namespace: str
) -> None:
    def may(role: str, verb: str, resource: str, *more: str) -> bool:
        user = (*more, "--as", f"system:serviceaccount:{namespace}:{role}")
        return plane.kubectl("auth", "can-i", verb, resource, "-n", namespace, *user, check=False)[:3] == "yes"

    for role in ("view", "edit", "ingero-fleetclusters-edit"):
        plane.apply(bind("RoleBinding", role, role, role, namespace))
    wait_until(lambda: may("view", "list", "fleetclusters"), "the aggregated roles")
    wait_until(lambda: may("edit", "create", "echostores"), "the aggregated roles")

    assert may("edit", "get", "fleetclusters") and may("ingero-fleetclusters-edit", "create", "fleetclusters")
    assert not any(may(role, "create", "fleetclusters") for role in ("view", "edit"))
    assert not any(may(role, "patch", "echostores", "--subresource=status") for role in ("view", "edit"))
    assert not may("view", "create", "echostores")


def test_a_replica_without_rights_on_leases_is_not_ready_and_leads_when_it_has_them(
    plane: ControlPlane, start: Any
) -> None:
    role = installed("Role")
    plane.apply({**role, "rules": []})
    user = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
    right = ("auth", "can-i", "get", "leases/ingero-operator", "-n", NAMESPACE, "--as", user)
    try:
        wait_until(lambda: plane.kubectl(*right, check=False).startswith("no"), "the hole")
        with start("--lease-duration", "2s", election=True) as instance:
            page = instance.running.url("http", "/readyz")
            wait_until(lambda: "leases" in answer(page)[1], "the words")
            assert answer(page)[0] == 503 and answer(instance.running.url("http", "/healthz"))[0] == 200
            plane.apply(role)
            wait_until(lambda: answer(page) == (200, "leading\n"), "to lead")
    finally:
        plane.apply(role)
