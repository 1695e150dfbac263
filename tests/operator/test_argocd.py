"""ArgoCD's health check, run by a Lua interpreter over statuses that the operator writes, and kstatus."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa import LuaRuntime

from ingero_contract.kubernetes import STRAGGLER_CONDITION
from ingero_operator import status as shown
from ingero_operator.api.v1alpha1 import EchoStoreSpec, FleetClusterSpec
from ingero_operator.conditions import Condition, no, unknown, yes
from ingero_operator.errors import ReconcileError
from ingero_operator.render.crds import all_definitions

MANIFESTS = Path(__file__).parents[2] / "manifests"
CHECK = (MANIFESTS / "argocd/health.lua").read_text()

UP = [yes("FleetAvailable", "Available", "up"), yes("AgentsAvailable", "Available", "up")]
CALM = [no("QuorumMet", "NoQuorum", "too few"), no("TaintingAllowed", "Storm", "storm")]
DOWN = [no("FleetAvailable", "Progressing", "0 of 1"), UP[1]]


def resource(
    parts: list[Condition], errors: tuple[ReconcileError, ...] = (), working: str = "", **change: Any
) -> Any:
    conditions = shown.overall(parts, ("FleetAvailable", "AgentsAvailable"), list(errors), False, working)
    status = shown.assemble(conditions, {}, 3, "2026-01-01T00:00:00Z", False, {})
    return {"metadata": {"generation": 3, **change}, "status": status}


def lua(runtime: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return runtime.table_from({key: lua(runtime, item) for key, item in value.items()})
    if isinstance(value, list):
        return runtime.table_from([lua(runtime, item) for item in value])
    return value


def health(body: Any) -> tuple[str, str]:
    runtime = LuaRuntime(unpack_returned_tuples=True)
    runtime.globals().obj = lua(runtime, body)
    answer = runtime.execute(CHECK)
    return answer["status"], answer["message"]


def kstatus(body: Any) -> str:
    """The rules of cli-utils' generic status, which Flux and others follow."""
    metadata, status = body["metadata"], body.get("status") or {}
    if "deletionTimestamp" in metadata:
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    found = {item["type"]: item["status"] for item in status.get("conditions", [])}
    if found.get("Reconciling") == "True":
        return "InProgress"
    if found.get("Stalled") == "True":
        return "Failed"
    return "Current" if found.get("Ready", "True") == "True" else "InProgress"


REFUSED = ReconcileError("ClassNotEncrypted", "make another class")
SECRET = ReconcileError("SecretMissing", "make the Secret", stalls=False)


@pytest.mark.parametrize(
    ("body", "argo", "generic", "words"),
    [
        (resource([*UP, *CALM]), "Healthy", "Current", "Healthy"),
        (resource([*DOWN, *CALM], working="rolling out"), "Progressing", "InProgress", "rolling out"),
        (resource([*DOWN, *CALM]), "Progressing", "InProgress", "0 of 1"),
        (resource([unknown("FleetAvailable", "Pending", "soon"), UP[1]]), "Progressing", "InProgress", "soon"),
        (resource(UP, (REFUSED,)), "Degraded", "Failed", "make another class"),
        (resource(UP, (SECRET,)), "Degraded", "InProgress", "make the Secret"),
        (resource(UP, deletionTimestamp="now"), "Progressing", "Terminating", "Pending deletion"),
        (resource(UP) | {"metadata": {"generation": 4}}, "Progressing", "InProgress", "waiting for the operator"),
        (resource(UP, annotations={"ingero.io/paused": "true"}), "Suspended", "Current", "paused"),
    ],
    ids=["well", "rolling", "down", "new", "refused", "secret", "deleted", "stale", "paused"],
)
def test_every_phase_has_its_health(body: Any, argo: str, generic: str, words: str) -> None:
    status, message = health(body)

    assert (status, kstatus(body)) == (argo, generic)
    assert words in message


def test_a_resource_that_nobody_reconciled_is_progressing() -> None:
    waiting = ("Progressing", "waiting for the operator")
    assert health({"metadata": {"generation": 1}}) == waiting

    for definition in all_definitions():
        (version,) = definition["spec"]["versions"]
        born = version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
        body = {"metadata": {"generation": 1}, "status": born}
        assert health(body) == waiting and kstatus(body) == "InProgress"


def test_the_pair_of_kstatus_comes_and_goes() -> None:
    def kinds(body: Any) -> set[str]:
        return {item["type"] for item in body["status"]["conditions"]}

    assert not {"Stalled", "Reconciling"} & kinds(resource(UP))
    assert "Stalled" in kinds(resource(UP, (REFUSED,))) and "Reconciling" in kinds(resource(DOWN, working="x"))


def test_the_check_is_installed_for_both_kinds() -> None:
    data = yaml.safe_load((MANIFESTS / "argocd/argocd-cm.yaml").read_text())["data"]

    assert set(data) == {
        "resource.customizations.health.ingero.io_FleetCluster", "resource.customizations.health.ingero.io_EchoStore"
    }  # fmt: skip
    assert set(data.values()) == {CHECK}


def test_the_application_asks_for_server_side_diff_and_ignores_nothing() -> None:
    application = yaml.safe_load((MANIFESTS / "argocd/application.yaml").read_text())

    assert application["metadata"]["annotations"]["argocd.argoproj.io/compare-options"] == "ServerSideDiff=true"
    assert "ServerSideApply=true" in application["spec"]["syncPolicy"]["syncOptions"]
    assert "ignoreDifferences" not in application["spec"]


@pytest.mark.parametrize("example", ["smallest", "taints", "store", "nats", "tables"])
def test_examples_are_whole(example: str) -> None:
    for item in yaml.safe_load_all((MANIFESTS / f"examples/{example}.yaml").read_text()):
        if item["kind"] == "FleetCluster":
            FleetClusterSpec.model_validate(item["spec"])
        if item["kind"] == "EchoStore":
            EchoStoreSpec.model_validate(item["spec"])


INTEGRATIONS = {
    "node-readiness-controller": ("readiness.node.x-k8s.io/v1alpha1", "NodeReadinessRule"),
    "kueue-configuration": ("config.kueue.x-k8s.io/v1beta2", "Configuration"),
    "device-taint-rule": ("resource.k8s.io/v1beta2", "DeviceTaintRule"),
    "slinky-values": (None, None),
    "nvsentinel-values": (None, None),
    "nvsentinel-events": ("kustomize.config.k8s.io/v1alpha1", "Component"),
}


def test_integrations_are_of_the_kinds_that_they_name() -> None:
    found = {}
    for file in sorted((MANIFESTS / "examples/integrations").glob("*.yaml")):
        tree = yaml.safe_load(file.read_text())
        found[file.stem] = (tree.get("apiVersion"), tree.get("kind"))

    assert found == INTEGRATIONS


@pytest.mark.parametrize("example", ["node-readiness-controller", "slinky-values", "nvsentinel-values"])
def test_integrations_name_the_condition_that_the_operator_writes(example: str) -> None:
    text = (MANIFESTS / f"examples/integrations/{example}.yaml").read_text()

    assert STRAGGLER_CONDITION in text.split("\n", 1)[1]


def test_transition_times_move_only_when_a_status_flips() -> None:
    first = resource(UP)["status"]
    later = shown.assemble(
        shown.overall([*DOWN], ("FleetAvailable", "AgentsAvailable"), [], False, ""), first, 3,
        "2026-02-02T00:00:00Z", False, {},
    )  # fmt: skip
    times = {item["type"]: item["lastTransitionTime"][:7] for item in later["conditions"]}

    assert times["FleetAvailable"] == times["Ready"] == "2026-02"
    assert times["AgentsAvailable"] == "2026-01"
