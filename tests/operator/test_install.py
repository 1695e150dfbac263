"""The installation survives what people do to it with kustomize."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingero_operator.render.install import everything
from ingero_testing.needs import CONTROL_PLANE
from scripts.controlplane import find_assets

ROOT = Path(__file__).parents[2]
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
Built = Callable[[dict[str, Any]], list[dict[str, Any]]]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """Builds an overlay over manifests/base with kubectl's own kustomize."""
    assets = find_assets("kubectl")
    kubectl = str(assets / "kubectl") if assets else shutil.which("kubectl")
    if kubectl is None:
        pytest.skip(CONTROL_PLANE)
    shutil.copytree(ROOT / "crds", tmp_path / "crds")
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")

    def build(overlay: dict[str, Any]) -> list[dict[str, Any]]:
        folder = tmp_path / "manifests/mine"
        folder.mkdir(exist_ok=True)
        (folder / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["../base"], **overlay}))
        done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))

    return build


def test_another_namespace_leaves_no_trace_of_the_old_one(built: Built) -> None:
    found = built({"namespace": "gpu-watch"})

    assert "ingero-system" not in yaml.safe_dump_all(found)
    ours = {(item["kind"], item["metadata"]["name"]): item["spec"] for item in everything("x") if "spec" in item}
    policies = [item for item in found if item["kind"] in POLICIES]
    assert len(policies) == 4
    for item in policies:
        assert item["spec"] == ours[item["kind"], item["metadata"]["name"]]


def test_for_some_namespaces_only_their_roles_reach_what_has_a_namespace(built: Built) -> None:
    found = built({"resources": ["../namespaced"]})
    rules = {item["metadata"]["name"]: item["rules"] for item in found if item["kind"] in ("ClusterRole", "Role")}
    held = {name: {r for rule in rules[name] for r in rule["resources"]} for name in rules}
    (role,) = (item for item in found if item["metadata"]["name"] == "ingero-operator-resources" and "rules" in item)
    (pod,) = (item["spec"]["template"]["spec"] for item in found if item["kind"] == "Deployment")
    env = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}

    wide = next(
        {r for rule in item["rules"] for r in rule["resources"]}
        for item in found
        if (item["kind"], item["metadata"]["name"]) == ("ClusterRole", "ingero-operator")
    )
    assert wide == {
        "nodes", "nodes/status", "storageclasses", "persistentvolumes", "namespaces", "volumeproofs", "events"
    }  # fmt: skip
    assert {"secrets", "daemonsets", "fleetclusters/status"} <= held["ingero-operator-resources"]
    assert not wide & held["ingero-operator-resources"]
    assert env["INGERO_OPERATOR_WATCH_NAMESPACES"] == role["metadata"]["namespace"] == "ingero"


def test_with_a_prefix_and_a_suffix_each_binding_finds_its_policy(built: Built) -> None:
    found = built({"namePrefix": "team-", "nameSuffix": "-blue"})

    names = {item["metadata"]["name"] for item in found if item["kind"] == POLICIES[0]}
    assert {item["spec"]["policyName"] for item in found if item["kind"] == POLICIES[1]} == names
    accounts = {item["metadata"]["name"] for item in found if item["kind"] == "ServiceAccount"}
    (pod,) = (item["spec"]["template"]["spec"] for item in found if item["kind"] == "Deployment")
    assert accounts == {pod["serviceAccountName"]} == {"team-ingero-operator-blue"}
