"""The plan: empty at rest, in words otherwise."""

import copy
from typing import Any

import pytest

from ingero_operator.api.v1alpha1 import EchoStoreSpec, FleetClusterSpec
from ingero_operator.plan import difference, plan, quantity, rolled_out
from ingero_operator.render import desired, fleet
from ingero_operator.render.common import Owner, Platform

OWNER = Owner(kind="FleetCluster", namespace="ml", name="prod", uid="u-1")
STAGED = (("Deployment", "prod-fleet"), ("DaemonSet", "prod-trace"), ("DaemonSet", "prod-push"))


def rendered(**change: Any) -> list[dict[str, Any]]:
    spec = FleetClusterSpec.model_validate({"clusterId": "c", **change})
    return desired.of_fleet_cluster(OWNER, spec, Platform(), fleet.FleetInputs())


def observed(children: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    out = {}
    for child in copy.deepcopy(children):
        child["metadata"] |= {"uid": "x", "resourceVersion": "1", "generation": 1}
        status = {"observedGeneration": 1, "desiredNumberScheduled": 3, "updatedNumberScheduled": 3}
        replicas = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
        child["status"] = status if child["kind"] == "DaemonSet" else status | replicas
        out[child["kind"], child["metadata"]["name"]] = child
    return out


def test_at_rest_there_is_nothing_to_do() -> None:
    assert plan(rendered(), observed(rendered()), staged=STAGED) == []


def test_items_of_a_listing_name_neither_kind_nor_version_and_are_no_difference() -> None:
    live = observed(rendered())
    for child in live.values():
        del child["apiVersion"]

    assert plan(rendered(), live, staged=STAGED) == []


def test_everything_missing_is_made_with_workloads_last() -> None:
    actions = plan(rendered(), {}, staged=STAGED)

    assert {action.verb for action in actions} == {"create"}
    assert [action.kind for action in actions[-3:]] == ["Deployment", "DaemonSet", "DaemonSet"]


def test_an_edit_by_hand_is_named_and_undone() -> None:
    live = observed(rendered())
    container = live["Deployment", "prod-fleet"]["spec"]["template"]["spec"]["containers"][0]
    container["image"] = "evil:latest"

    (action,) = plan(rendered(), live, staged=STAGED)

    assert (action.verb, action.kind) == ("apply", "Deployment")
    assert action.path == ".spec.template.spec.containers[fleet].image"
    assert "'evil:latest' instead of 'localhost/ingero/fleet:0.1.0'" in action.why


@pytest.mark.parametrize(
    ("spec", "kind", "name", "words"),
    [
        ({"fleet": {"maxNodes": 7}}, "ConfigMap", "prod-fleet",
         "of .data.fleet.yaml is '    max_nodes: 200000' instead of '    max_nodes: 7'"),
        ({"agents": {"push": {"resources": {"memory": "99Mi"}}}}, "DaemonSet", "prod-push",
         ".spec.template.spec.containers[push].resources.requests.memory is '128Mi' instead of '99Mi'"),
        ({"agents": {"jobId": "j"}}, "DaemonSet", "prod-push", "containers[push]"),
    ],
)  # fmt: skip
def test_a_change_is_named_by_its_line_or_field_and_not_by_a_digest(
    spec: dict[str, Any], kind: str, name: str, words: str
) -> None:
    (action,) = [
        item for item in plan(rendered(**spec), observed(rendered())) if (item.kind, item.name) == (kind, name)
    ]

    assert words in action.why and "hash" not in action.why


def test_what_others_add_is_left_alone() -> None:
    live = observed(rendered())
    deployment = live["Deployment", "prod-fleet"]
    deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    deployment["spec"]["template"]["spec"]["containers"].append({"name": "injected", "image": "mesh"})
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "IfNotPresent"
    deployment["spec"]["template"]["spec"]["volumes"].insert(0, {"name": "mesh", "emptyDir": {}})

    assert plan(rendered(), live, staged=STAGED) == []


def test_a_stateful_set_that_waits_for_its_pods_in_order_is_made_anew_once() -> None:
    spec = EchoStoreSpec.model_validate({"tlsSecret": "tls", "tokenSecret": {"name": "t"}})
    children = desired.of_echo_store(Owner(kind="EchoStore", namespace="ml", name="s", uid="u-2"), spec, Platform())
    live = observed(children)
    found = live["StatefulSet", "s-echo"]
    assert (found["spec"]["podManagementPolicy"], plan(children, live)) == ("Parallel", [])
    found["spec"]["podManagementPolicy"] = "OrderedReady"

    (action,) = plan(children, live)

    assert (action.verb, action.kind, action.manifest["metadata"]["uid"]) == ("delete", "StatefulSet", "x")
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert plan(children, live) == []


def test_a_field_that_is_no_longer_rendered_is_noticed_by_its_digest() -> None:
    live = observed(rendered(agents={"jobId": "j"}))

    assert difference(rendered()[0], live["ServiceAccount", "prod-fleet"]) is None
    assert any(action.kind == "DaemonSet" for action in plan(rendered(), live))


def test_what_is_no_longer_wanted_goes_but_not_twice() -> None:
    live = observed(rendered())
    assert [action.name for action in plan(rendered(network={"enabled": False}), live)] == [
        "prod-fleet", "prod-push", "prod-trace"
    ]  # fmt: skip
    live["NetworkPolicy", "prod-push"]["metadata"]["deletionTimestamp"] = "now"
    assert len(plan(rendered(network={"enabled": False}), live)) == 2


def test_an_upgrade_takes_one_workload_after_the_other() -> None:
    live = observed(rendered())
    new = rendered(version="9.9.9")

    assert [action.name for action in plan(new, live, staged=STAGED)] == ["prod-fleet"]
    live |= {("Deployment", "prod-fleet"): observed(new)["Deployment", "prod-fleet"]}
    live["Deployment", "prod-fleet"]["status"]["updatedReplicas"] = 0
    assert plan(new, live, staged=STAGED) == []
    live["Deployment", "prod-fleet"]["status"]["updatedReplicas"] = 1
    assert [action.name for action in plan(new, live, staged=STAGED)] == ["prod-trace"]


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("1", "1000m", True),
        ("512Mi", "536870912", True),
        ("1Gi", "1G", False),
        ("0.5", "500m", True),
        ("1E", "1000P", True),
        ("1Ei", "1024Pi", True),
        ("500000u", "0.5", True),
        ("1e3", "1k", True),
    ],
)
def test_quantities_compare_as_numbers(ours: str, theirs: str, same: bool) -> None:
    assert (quantity(ours) == quantity(theirs)) is same


def test_a_quantity_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="10GB"):
        quantity("10GB")


def test_a_rollout_is_done_when_the_latest_template_runs_everywhere() -> None:
    live = observed(rendered())["DaemonSet", "prod-push"]
    assert rolled_out(live)
    live["metadata"]["generation"] = 2
    assert not rolled_out(live)
