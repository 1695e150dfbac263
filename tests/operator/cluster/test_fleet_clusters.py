"""A FleetCluster on a real control plane, with the operator's own rights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ingero_operator.api.v1alpha1 import ReceiversSpec
from ingero_operator.plan import difference
from ingero_operator.render import receivers
from ingero_operator.render.common import Owner
from ingero_testing.fleets import Fleets
from ingero_testing.processes import wait_until
from scripts.controlplane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]

ROOT = Path(__file__).parents[3]
LABEL = "test.ingero.io/pool"


def cluster(namespace: str, name: str = "prod", *, pool: str = "none", **spec: Any) -> dict[str, Any]:
    spec = {"clusterId": name, **spec}
    spec["agents"] = {"nodeSelector": {LABEL: pool}, **spec.get("agents", {})}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "ingero.io/v1alpha1", "kind": "FleetCluster", "metadata": metadata, "spec": spec}


LOG = {"nats": {"servers": ["nats:4222"], "prefix": "prod"}}
OUTSIDE = {"host": "fleet.example.com", "tlsSecret": "public"}
GATEWAY = {
    "hostname": "fleet.example.com", "parentRefs": [{"name": "public"}],
    "namespace": {"kubernetes.io/metadata.name": "edge"},
}  # fmt: skip


def node(name: str, pool: str, **labels: str) -> dict[str, Any]:
    metadata = {
        "name": name,
        "labels": {LABEL: pool, "nvidia.com/gpu.present": "true", "kubernetes.io/arch": "amd64", **labels},
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def summary(plane: ControlPlane, namespace: str, name: str = "prod") -> str:
    found = plane.read("-n", namespace, "fleetcluster", name) or {}
    return str((found.get("status") or {}).get("summary", ""))


def condition(plane: ControlPlane, namespace: str, kind: str, name: str = "prod") -> tuple[str, str, str]:
    found = plane.read("-n", namespace, "fleetcluster", name) or {}
    for item in (found.get("status") or {}).get("conditions", []):
        if item["type"] == kind:
            return item["status"], item["reason"], item["message"]
    return "", "", ""


def events(plane: ControlPlane, namespace: str) -> list[str]:
    return [f"{item['reason']}: {item['message']}" for item in plane.read("-n", namespace, "events")["items"]]


@pytest.fixture(scope="module", autouse=True)
def pool(plane: ControlPlane) -> Iterator[None]:
    plane.apply(*(node(f"pool-{number}", "here") for number in range(3)))
    yield
    plane.kubectl("delete", "node", "-l", f"{LABEL}=here")


@pytest.fixture
def healthy(plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets) -> str:
    """A FleetCluster that is up; returns its namespace."""
    fleet_double.of(namespace, "prod").nodes = {"pool-0", "pool-1", "pool-2"}
    plane.apply(cluster(namespace, pool="here"))
    wait_until(lambda: summary(plane, namespace) == "Healthy", "the FleetCluster to be healthy")
    wait_until(lambda: condition(plane, namespace, "QuorumMet")[0] == "True", "the quorum")
    return namespace


def test_get_shows_the_whole_state(plane: ControlPlane, healthy: str) -> None:
    heads, row = (line.split() for line in plane.kubectl("-n", healthy, "get", "fc").splitlines())

    assert heads == [
        "NAME", "READY", "STATUS", "FLEET", "LOG", "AGENTS", "QUORUM", "THRESHOLD", "STRAGGLERS", "LATE-RANK-ON",
        "TAINTED", "MODE", "AGE",
    ]  # fmt: skip
    assert row[:10] == ["prod", "True", "Healthy", "1/1", "3/3", "True", "0.71", "0", "0/0", "Observe"]


def test_what_waiting_costs_is_reported_in_the_wide_columns(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    said = fleet_double.of(namespace, "prod")
    said.nodes, said.waiting = {"pool-0", "pool-1", "pool-2"}, 12.345
    plane.apply(cluster(namespace, pool="here"))
    wait_until(lambda: condition(plane, namespace, "QuorumMet")[0] == "True", "the quorum")

    heads, line = plane.kubectl("-n", namespace, "get", "fc", "-o", "wide").splitlines()
    row = [line[heads.index(name) :].split()[0] for name in ("NODES", "WAITING-PER-HOUR", "CURRENCY")]
    assert row == ["3/3", "12", "USD"]
    assert plane.read("-n", namespace, "fc", "prod")["status"]["cost"] == {
        "currency": "USD", "perHour": "98.32", "waitingPerHour": "12"
    }  # fmt: skip


def test_before_anybody_reconciled_a_resource_is_about_no_generation(plane: ControlPlane, namespace: str) -> None:
    desired = json.dumps(cluster(namespace))
    dry = plane.kubectl("apply", "--server-side", "--dry-run=server", "-o", "json", "-f", "-", stdin=desired)

    found = json.loads(dry)
    assert found["status"] == {"observedGeneration": -1} and found["metadata"]["generation"] == 1
    plane.apply(cluster(namespace))
    wait_until(
        lambda: plane.kubectl("diff", "--server-side", "-f", "-", stdin=desired, check=False) == "", "no difference"
    )


def test_a_fleet_that_cannot_be_asked_is_no_healthy_one_and_its_figures_go(
    plane: ControlPlane, operator: Any, healthy: str, fleet_double: Fleets
) -> None:
    said = fleet_double.of(healthy, "prod")
    said.status = 500

    wait_until(lambda: summary(plane, healthy) == "FleetUnreachable", "the reason")
    assert condition(plane, healthy, "Ready")[0] == "False" and condition(plane, healthy, "Degraded")[0] == "True"
    assert "it answers 500" in condition(plane, healthy, "EvidenceFresh")[2]
    assert condition(plane, healthy, "QuorumMet")[:2] == ("Unknown", "NoEvidence")
    wait_until(lambda: "stragglers" not in plane.read("-n", healthy, "fc", "prod")["status"], "old figures", 150)
    operator.rest()
    before = operator.writes()
    operator.settle(3)
    assert operator.writes() == before

    said.status = 200
    wait_until(lambda: summary(plane, healthy) == "Healthy", "the FleetCluster to be healthy")


def test_a_fleet_whose_statistics_stand_still_or_that_has_no_quorum_is_said(
    plane: ControlPlane, healthy: str, fleet_double: Fleets
) -> None:
    said = fleet_double.of(healthy, "prod")
    said.frozen = True
    wait_until(lambda: summary(plane, healthy) == "StaleEvidence", "the reason")
    assert condition(plane, healthy, "Ready")[0] == "False"

    said.frozen, said.quorum = False, False
    wait_until(lambda: summary(plane, healthy) == "NoQuorum", "the reason")
    assert condition(plane, healthy, "Ready")[:2] == ("True", "NoQuorum")


def test_a_namespace_that_does_not_admit_the_agents_is_stalled(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    level = "pod-security.kubernetes.io/enforce"
    plane.kubectl("label", "namespace", namespace, f"{level}=restricted")
    plane.apply(cluster(namespace, pool="here"))

    wait_until(lambda: condition(plane, namespace, "Stalled")[1] == "PodSecurity", "the reason")
    assert condition(plane, namespace, "Degraded")[1] == summary(plane, namespace) == "PodSecurity"

    plane.kubectl("label", "--overwrite", "namespace", namespace, f"{level}=privileged")
    wait_until(lambda: summary(plane, namespace) == "Healthy", "the FleetCluster to be healthy", 200)


def test_children_carry_nothing_of_the_owners_labels_and_the_owner_gets_no_annotation(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    desired = cluster(namespace, pool="here")
    desired["metadata"] |= {
        "labels": {"app.kubernetes.io/instance": "argo", "team": "ml"},
        "annotations": {"argocd.argoproj.io/tracking-id": "x", "argocd.argoproj.io/sync-options": "Prune=false"},
    }
    plane.apply(desired)
    wait_until(lambda: summary(plane, namespace) == "Healthy", "the FleetCluster to be healthy")

    children = plane.read("-n", namespace, "deploy,ds,svc,cm,sa,netpol,pdb", "-l", "ingero.io/owner=prod")["items"]

    assert len(children) == 13
    assert not any(word in json.dumps(children) for word in ("tracking-id", "sync-options", "instance", '"team"'))
    live = plane.read("-n", namespace, "fleetcluster", "prod")["metadata"]
    assert set(live["annotations"]) == set(desired["metadata"]["annotations"]) and "finalizers" not in live


def test_a_deleted_child_comes_back_and_an_edited_one_is_repaired(plane: ControlPlane, healthy: str) -> None:
    before = plane.read("-n", healthy, "service", "prod-fleet")["metadata"]["uid"]
    plane.kubectl("-n", healthy, "delete", "service", "prod-fleet")
    plane.kubectl("-n", healthy, "set", "image", "deployment/prod-fleet", "fleet=evil:latest")

    def repaired() -> bool:
        service = plane.read("-n", healthy, "service", "prod-fleet")
        deployment = plane.read("-n", healthy, "deployment", "prod-fleet")
        image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        return bool(service) and service["metadata"]["uid"] != before and image.startswith("localhost/ingero/fleet:")

    wait_until(repaired, "the repair")
    wait_until(lambda: any("'evil:latest' instead of" in text for text in events(plane, healthy)), "the Event")


def test_who_keeps_editing_a_child_is_named_and_not_fought(plane: ControlPlane, healthy: str) -> None:
    for number in range(8):
        plane.kubectl(
            "-n", healthy, "patch", "configmap", "prod-fleet", "--field-manager=stubborn", "--type=merge", "-p",
            json.dumps({"data": {"fleet.yaml": f"mine: {number}"}}),
        )  # fmt: skip
        wait_until(
            lambda: (
                "mine" not in plane.read("-n", healthy, "configmap", "prod-fleet")["data"]["fleet.yaml"]
                or condition(plane, healthy, "Degraded")[1] == "FieldContested"
            ),
            "a repair or a word",
        )
        if condition(plane, healthy, "Degraded")[1] == "FieldContested":
            break

    status, reason, message = condition(plane, healthy, "Degraded")
    assert (status, reason) == ("True", "FieldContested")
    assert "stubborn" in message and ".data.fleet.yaml" in message


def test_at_rest_nothing_is_written(plane: ControlPlane, healthy: str, operator: Any) -> None:
    operator.rest()
    before = operator.writes()
    operator.settle(4)

    assert operator.writes() == before


def test_a_restart_writes_nothing(plane: ControlPlane, healthy: str, start: Any) -> None:
    with start("--log-level", "debug") as second:
        second.settle(2)

        assert second.writes() == 0, second.running.words()


def test_applying_the_same_again_is_no_difference(plane: ControlPlane, healthy: str) -> None:
    text = json.dumps(cluster(healthy, pool="here"))

    assert plane.kubectl("diff", "--server-side", "--force-conflicts", "-f", "-", stdin=text, check=False) == ""


def test_an_upgrade_goes_from_fleet_to_the_agents(plane: ControlPlane, healthy: str, operator: Any) -> None:
    plane.apply(cluster(healthy, pool="here", version="9.9.9"))

    def images() -> set[str]:
        found = plane.read("-n", healthy, "deploy,ds")["items"]
        return {item["spec"]["template"]["spec"]["containers"][0]["image"].rsplit(":", 1)[1] for item in found}

    wait_until(lambda: images() == {"9.9.9"}, "every workload to be of the new version")
    wait_until(lambda: summary(plane, healthy) == "Healthy", "the upgrade to be over")
    lines = [json.loads(line) for line in operator.running.words().splitlines() if "9.9.9" in line]
    assert [line["name"] for line in lines] == ["prod-fleet", "prod-trace", "prod-push"]


def test_receivers_come_and_go_with_their_autoscaler(plane: ControlPlane, healthy: str) -> None:
    plane.apply(cluster(healthy, pool="here", fleet={"log": LOG, "receivers": {"pushesPerSecond": 5000}}))

    def live(kind: str) -> dict[str, Any] | None:
        found = plane.read("-n", healthy, kind, "-l", "app.kubernetes.io/name=ingero-receivers")["items"]
        return found[0] if found else None

    wait_until(lambda: live("hpa") is not None, "the autoscaler")
    wait_until(
        lambda: (
            (plane.read("-n", healthy, "fc", "prod")["status"].get("receivers") or {}).get("ready", "0/")[0] != "0"
        ),
        "receivers that are ready",
    )
    autoscaler = live("hpa")
    assert autoscaler and live("deploy")
    assert autoscaler["spec"]["metrics"][0]["pods"]["target"]["averageValue"] == "5k"
    spec = ReceiversSpec.model_validate({"pushesPerSecond": 5000})
    uid = plane.read("-n", healthy, "fc", "prod")["metadata"]["uid"]
    owner = Owner(kind="FleetCluster", namespace=healthy, name="prod", uid=uid)
    assert difference(receivers.autoscaler(owner, spec), autoscaler) is None, "5k is what was asked for"
    wait_until(
        lambda: "prod-receivers" in str(plane.read("-n", healthy, "ds", "prod-push")["spec"]),
        "agents that push there",
    )

    plane.apply(cluster(healthy, pool="here", fleet={"log": LOG}))
    wait_until(lambda: live("hpa") is None and live("deploy") is None, "the receivers to go")


def test_deleting_takes_everything_along(plane: ControlPlane, healthy: str) -> None:
    plane.kubectl("-n", healthy, "delete", "fleetcluster", "prod")

    kinds = "deploy,ds,svc,cm,sa,netpol,pdb"
    wait_until(
        lambda: plane.read("-n", healthy, kinds, "-l", "ingero.io/owner=prod")["items"] == [], "the children to go"
    )


def test_a_cluster_that_is_made_again_knows_nothing_of_the_one_before(plane: ControlPlane, healthy: str) -> None:
    """The Fleet of the one before may still answer under the name of the Service."""
    before = plane.read("-n", healthy, "fc", "prod")["metadata"]["uid"]
    again = cluster(healthy, pool="here", fleet={"nodeSelector": {"no": "node"}})
    plane.kubectl("replace", "--force", "-f", "-", stdin=json.dumps(again))
    wait_until(lambda: condition(plane, healthy, "FleetAvailable")[1] == "Unschedulable", "the new Fleet to wait")

    found = plane.read("-n", healthy, "fc", "prod")
    assert found["metadata"]["uid"] != before and "nodes" not in found["status"]["fleet"]
    assert condition(plane, healthy, "EvidenceFresh")[:2] == ("Unknown", "Pending")
    assert condition(plane, healthy, "QuorumMet")[:2] == ("Unknown", "NotPolled")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clusterId": "a b"}, "spec.clusterId"),
        ({"taints": {"mode": "NoExecute"}}, "spec.taints.mode"),
        ({"taints": {"budget": {"maxPercent": 100}}}, "spec.taints.budget.maxPercent"),
        ({"fleet": {"pushInterval": "5 s"}}, "spec.fleet.pushInterval"),
        (
            {"fleet": {"collectives": {"topology": {"name": "m", "key": "k"}, "topologyLabels": ["a/leaf"]}}},
            "use either topology or topologyLabels",
        ),
        (
            {
                "fleet": {
                    "collectives": {"topologyLabels": ["a/leaf"]},
                    "log": {"nats": {"servers": ["n:1"], "prefix": "p"}},
                }
            },
            "replicas on one log need equal files",
        ),
        ({"fleet": {"forward": {}}}, "spec.fleet.forward needs either"),
        ({"fleet": {"forward": {"endpoint": "a.b:1", "nats": {}}}}, "spec.fleet.forward.nats needs echoStore"),
        ({"fleet": {"forward": {"endpoint": "a.b:99999"}}}, "spec.fleet.forward.endpoint: no port is larger"),
        ({"fleet": {"forward": {"endpoint": "a.b:0"}}}, "spec.fleet.forward.endpoint"),
        ({"fleet": {"forward": {"endpoint": "no-port"}}}, "spec.fleet.forward.endpoint"),
        ({"fleet": {"quorum": {"statisticalMin": 1}}}, "spec.fleet.quorum.statisticalMin"),
        ({"fleet": {"replicas": 8}}, "spec.fleet.replicas"),
        ({"fleet": {"replicas": 2}}, "spec.fleet.replicas: more than one need spec.fleet.log.nats"),
        ({"fleet": {"receivers": {}}}, "spec.fleet.receivers need spec.fleet.log.nats"),
        ({"fleet": {"log": LOG, "receivers": {"min": 11}}}, "spec.fleet.receivers: min is larger than max"),
        ({"fleet": {"log": {"nats": {"servers": ["a:4222"], "prefix": "a.b"}}}}, "spec.fleet.log.nats.prefix"),
        ({"fleet": {"log": {"nats": {"servers": ["a"], "prefix": "p"}}}}, "spec.fleet.log.nats.servers[0]"),
        (
            {"fleet": {"log": {"nats": {"servers": ["a:1"], "prefix": "p"}}, "snapshots": {"size": "1Gi"}}},
            "with spec.fleet.log the snapshots are stored with the log",
        ),
        ({"fleet": {"threshold": {"k": 0}}}, "spec.fleet.threshold.k"),
        ({"fleet": {"resources": {"memory": "lots"}}}, "spec.fleet.resources.memory"),
        ({"fleet": {"tolerations": [{"effect": "Never"}]}}, "spec.fleet.tolerations[0].effect"),
        ({"fleet": {"cost": {"rates": {"name": "x"}}}}, "spec.fleet.cost.rates.key"),
        ({"images": {"fleet": "no image"}}, "spec.images.fleet"),
        ({"imagePullSecrets": [{"name": "Not A Name"}]}, "spec.imagePullSecrets[0].name"),
        ({"fleet": {"settings": [{"name": "receivers.otlp", "value": ""}]}}, "spec.fleet.settings[0].name"),
        (
            {"fleet": {"settings": [{"name": "processors.ingero.push_interval", "value": "1s"}]}},
            "this one has a field of its own",
        ),
        ({"agents": {"trace": {"appArmorProfile": {"type": "Localhost"}}}}, "appArmorProfile.localhostProfile"),
        ({"agents": {"push": {"seLinuxOptions": {"type": "a b"}}}}, "spec.agents.push.seLinuxOptions.type"),
        ({"version": "latest version"}, "spec.version"),
        ({"tokenSecret": {}}, "spec.tokenSecret.name"),
        ({"tlsSecret": "Not_A_Name"}, "spec.tlsSecret"),
        ({"agents": {"source": "Guess"}}, "spec.agents.source"),
        ({"agents": {"workloadType": "with space"}}, "spec.agents.workloadType"),
        ({"agents": {"maxUnavailablePercent": 0}}, "spec.agents.maxUnavailablePercent"),
        ({"taints": {"confirmFor": "soon"}}, "spec.taints.confirmFor"),
        ({"taints": {"budget": {"maxNodes": -1}}}, "spec.taints.budget.maxNodes"),
        ({"taints": {"minHealthyPercent": "most"}}, "spec.taints.minHealthyPercent"),
        ({"taints": {"maxPerDay": 100}}, "spec.taints.maxPerDay"),
        ({"taints": {"pauseRequests": ["x"] * 17}}, "spec.taints.pauseRequests"),
        ({"network": {"enabled": "perhaps"}}, "spec.network.enabled"),
        ({"serviceMonitors": {"interval": "0s"}}, "spec.serviceMonitors.interval"),
        ({"agents": {"nodeSelector": {}}}, "spec.agents.nodeSelector"),
        ({"unheardOf": 1}, "spec.unheardOf"),
        ({"fleet": {"resources": {"memory": "0"}}}, "spec.fleet.resources.memory: Invalid value"),
        ({"agents": {"trace": {"resources": {"memory": "9999m"}}}}, "memory must be at least 32Mi"),
        ({"agents": {"push": {"sinkResources": {"memory": "64"}}}}, "memory must be at least 32Mi"),
        ({"taints": {"ttl": "999999d999999d999999d"}}, "spec.taints.ttl"),
        ({"taints": {"ttl": "10000d"}}, "spec.taints.ttl"),
        ({"taints": {"domainLabel": "a//b"}}, "spec.taints.domainLabel"),
        ({"tokenSecret": {"name": "a..b"}}, "spec.tokenSecret.name"),
        ({"tokenSecret": {"name": "a", "key": ".."}}, "spec.tokenSecret.key"),
        ({"agents": {"runtimeClassName": "-a"}}, "spec.agents.runtimeClassName"),
        ({"agents": {"tolerations": [{"effect": "NoSchedule"}]}}, "needs operator: Exists"),
        ({"agents": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}, "has no value"),
        ({"fleet": {"ingress": OUTSIDE}}, "spec.fleet.ingress needs spec.tlsSecret and spec.tokenSecret"),
        ({"fleet": {"ingress": OUTSIDE}, "tlsSecret": "a"}, "spec.fleet.ingress needs"),
        ({"fleet": {"gateway": GATEWAY}, "tlsSecret": "a"}, "spec.fleet.gateway needs"),
        (
            {"fleet": {"gateway": GATEWAY, "ingress": OUTSIDE}, "tlsSecret": "a", "tokenSecret": {"name": "a"}},
            "use either gateway or ingress",
        ),
        ({"fleet": {"ingress": OUTSIDE}, "tokenSecret": {"name": "a"}}, "spec.fleet.ingress needs"),
    ],
)
def test_a_bad_spec_is_refused_by_the_api_server_with_its_field(
    plane: ControlPlane, namespace: str, change: dict[str, Any], words: str
) -> None:
    bad = {"apiVersion": "ingero.io/v1alpha1", "kind": "FleetCluster", "metadata": {"name": "x"},
           "spec": {"clusterId": "x", **change}}  # fmt: skip

    answer = plane.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(bad), check=False)

    assert words in answer and "created" not in answer


def test_what_cannot_be_changed_says_so(plane: ControlPlane, namespace: str) -> None:
    plane.apply(cluster(namespace, "kept"))
    patch = json.dumps({"spec": {"clusterId": "other"}})

    answer = plane.kubectl("-n", namespace, "patch", "fc", "kept", "--type=merge", "-p", patch, check=False)
    long = plane.kubectl(
        "create", "-f", "-", stdin=json.dumps(cluster(namespace, "n" * 41)), check=False
    )  # fmt: skip

    assert "spec.clusterId cannot be changed" in answer
    assert "metadata.name may have at most 40 characters" in long


def test_the_example_of_a_registry_names_it_for_the_operator_and_what_it_makes(plane: ControlPlane) -> None:
    built = plane.kubectl("kustomize", str(ROOT / "manifests/examples/registry"))

    (deployment,) = (item for item in yaml.safe_load_all(built) if item["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("registry.example.com/team/ingero/operator:")
    assert {"name": "INGERO_OPERATOR_IMAGE_REGISTRY", "value": "registry.example.com/team"} in container["env"]
    assert len(container["env"]) == 3


def test_an_image_that_the_operator_does_not_allow_runs_nowhere_and_is_named(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    own = "localhost/ingero/fleet:mine"
    plane.apply(cluster(namespace, images={"agent": "evil.example.com/agent:1", "fleet": own}))
    wait_until(lambda: summary(plane, namespace) == "ImageNotAllowed", "the reason")

    assert "spec.images.agent: evil.example.com/agent:1" in condition(plane, namespace, "Degraded")[2]
    assert plane.read("-n", namespace, "ds,deploy")["items"] == []
    plane.apply(cluster(namespace, images={"fleet": own}))
    wait_until(lambda: plane.read("-n", namespace, "ds", "prod-push") is not None, "the agents")
    plane.apply(cluster(namespace, images={"fleet": "evil.example.com/fleet:1"}))
    wait_until(lambda: summary(plane, namespace) == "ImageNotAllowed", "the reason again")

    kept = plane.read("-n", namespace, "deploy", "prod-fleet")["spec"]["template"]["spec"]["containers"][0]
    assert kept["image"] == own


def test_every_pod_may_be_confined_and_fleet_set_as_the_api_server_knows_it(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    confined = {"seLinuxOptions": {"type": "spc_t"}, "appArmorProfile": {"type": "Unconfined"}}
    settings = [{"name": "processors.ingero.cohort.by", "value": "[workload_type]"}]
    spec: dict[str, Any] = {
        "agents": {"trace": confined, "push": confined}, "fleet": {**confined, "settings": settings},
        "imagePullSecrets": [{"name": "registry"}],
    }  # fmt: skip
    plane.apply(cluster(namespace, **spec))
    wait_until(lambda: plane.read("-n", namespace, "ds", "prod-push") is not None, "the agents")
    operator.rest()

    trace = plane.read("-n", namespace, "ds", "prod-trace")["spec"]["template"]["spec"]
    assert trace["containers"][0]["securityContext"]["appArmorProfile"] == {"type": "Unconfined"}
    assert trace["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize("name", ["a.b", "1a", "a-"])
def test_a_name_that_no_service_can_have_is_refused(plane: ControlPlane, namespace: str, name: str) -> None:
    for kind, spec in (
        ("FleetCluster", {"clusterId": "x"}),
        ("EchoStore", {"tlsSecret": "tls", "tokenSecret": {"name": "t"}}),
    ):
        bad = {"apiVersion": "ingero.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        answer = plane.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(bad), check=False)
        assert "metadata.name must be" in answer or "RFC 1123" in answer


def test_the_widest_values_that_are_admitted_can_be_made(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    many = {f"{'k' * 40}-{number}": "v" * 63 for number in range(16)}
    taint = {"key": "a.example.com/" + "t" * 63, "operator": "Equal", "value": "v" * 63, "effect": "NoSchedule"}
    wide = cluster(
        namespace, version="v" * 63, tokenSecret={"name": "fleet-token", "key": ".t" + "k" * 200},
        fleet={
            "pushInterval": "9999m", "nodeSelector": many,
            "tolerations": [taint | {"value": str(number)} for number in range(16)],
            "resources": {"cpu": "1500m", "memory": "32Mi"},
        },
        agents={
            "nodeSelector": many, "tolerations": [taint], "jobId": "j" * 63, "workloadType": "w" * 63,
            "worldSize": 1_000_000,
            "api": {"tokenSecret": {"name": "fleet-token", "key": "token"}, "tlsSecret": "fleet-token",
                    "peers": [{"namespace": "n" * 63, "labels": many}] * 16},
        },
        taints={"ttl": "9999d9999d9999d", "pauseRequests": ["x" * 253] * 16},
        network={"monitoringNamespace": many}, serviceMonitors={"labels": many},
    )  # fmt: skip
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fleet-token", "namespace": namespace}}
    keys = (".t" + "k" * 200, "token", "tls.crt", "tls.key")
    plane.apply({**secret, "stringData": dict.fromkeys(keys, "s3cret")}, wide)

    wait_until(lambda: condition(plane, namespace, "AgentsAvailable")[1] == "NoMatchingNodes", "the agents")
    assert condition(plane, namespace, "Degraded")[0] == "False", condition(plane, namespace, "Degraded")
    assert plane.read("-n", namespace, "fc", "prod")["status"]["effective"]["taints.ttl"] == "9999d9999d9999d"


def test_explain_says_every_default(plane: ControlPlane) -> None:
    assert "Default: 24h" in plane.kubectl("explain", "fleetclusters.spec.taints.ttl")
    assert "Default: Proven" in plane.kubectl("explain", "echostores.spec.storage.encryption.policy")


def test_no_node_matches_is_said(plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets) -> None:
    fleet_double.of(namespace, "prod")
    plane.apply(cluster(namespace, pool="nowhere"))

    wait_until(lambda: condition(plane, namespace, "AgentsAvailable")[1] == "NoMatchingNodes", "the reason")
    wait_until(lambda: summary(plane, namespace) == "NoMatchingNodes", "the summary")
    assert f"{LABEL}=nowhere" in condition(plane, namespace, "AgentsAvailable")[2]


def test_the_topology_comes_from_labels_of_the_watched_nodes(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    collectives = {"topologyLabels": ["example.com/leaf", "example.com/spine"]}
    plane.apply(cluster(namespace, fleet={"collectives": collectives}))
    wait_until(
        lambda: "has the label example.com/leaf" in str(plane.read("-n", namespace, "fc", "prod")), "the reason"
    )
    assert plane.read("-n", namespace, "cm", "prod-topology")["data"] == {"topology.json": '{"nodes":{}}'}

    name = f"{namespace}-labelled"
    labels = {"example.com/leaf": "l1", "example.com/spine": "s1"}
    plane.apply(node(name, namespace, **labels))
    plane.patch("fc", "prod", {"spec": {"agents": {"nodeSelector": {LABEL: namespace}}}}, namespace)
    wait_until(
        lambda: (
            json.loads(plane.read("-n", namespace, "cm", "prod-topology")["data"]["topology.json"])
            == {"nodes": {name: "s1/l1"}, "switches": {"s1/l1": "s1"}}
        ),
        "the topology",
    )
    before = plane.read("-n", namespace, "cm", "prod-topology")
    plane.delete("node", name)
    plane.patch("fc", "prod", {"spec": {"agents": {"nodeSelector": {LABEL: "nowhere"}}}}, namespace)
    wait_until(
        lambda: "has the label example.com/leaf" in str(plane.read("-n", namespace, "fc", "prod")), "the reason again"
    )
    assert plane.read("-n", namespace, "cm", "prod-topology")["data"] == before["data"]


def test_a_missing_secret_is_named_and_found_later(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    plane.apply(cluster(namespace, pool="here", tokenSecret={"name": "fleet-token"}))
    wait_until(lambda: summary(plane, namespace) == "SecretMissing", "the reason")
    assert "there is no Secret fleet-token with the key token" in condition(plane, namespace, "Degraded")[2]

    plane.kubectl("-n", namespace, "create", "secret", "generic", "fleet-token", "--from-literal=token=s3cret")

    wait_until(lambda: summary(plane, namespace) == "Healthy", "the Secret to be found")


def test_a_certificate_without_the_name_that_agents_call_is_said(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    authority = trustme.CA()
    chain = authority.issue_cert("localhost").cert_chain_pems[0]
    data = {"tls.crt": chain.bytes().decode(), "tls.key": "x", "ca.crt": authority.cert_pem.bytes().decode()}
    metadata = {"name": "tls", "namespace": namespace}
    plane.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
    plane.apply(cluster(namespace, pool="here", tlsSecret="tls"))

    wait_until(lambda: summary(plane, namespace) == "CertificateName", "the reason")
    status, reason, message = condition(plane, namespace, "CertificateValid")
    assert (status, reason) == ("False", "CertificateName") and f"prod-fleet.{namespace}.svc" in message


def test_a_new_token_is_used_for_polls_without_a_resync_or_a_rollout(
    plane: ControlPlane, start: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fleet-token", "namespace": namespace}}
    plane.apply({**secret, "stringData": {"token": "one"}})
    plane.apply(cluster(namespace, tokenSecret={"name": "fleet-token"}))

    def template() -> Any:
        found = plane.read("-n", namespace, "deployment", "prod-fleet")
        return found and found["spec"]["template"]["metadata"]["annotations"]

    with start("--resync", "1h", "--secret-poll", "200ms"):
        wait_until(lambda: fleet_double.authorization == "Bearer one", "a poll")
        wait_until(lambda: template() is not None, "Fleet")
        before = template()
        plane.apply({**secret, "stringData": {"token": "two"}})
        wait_until(lambda: fleet_double.authorization == "Bearer two", "a poll with the new token")
        assert template() == before


def test_a_child_of_somebody_else_is_left_alone(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prod-fleet", "namespace": namespace},
              "data": {"fleet.yaml": "theirs"}}  # fmt: skip
    plane.apply(theirs)
    plane.apply(cluster(namespace, pool="here"))

    wait_until(lambda: summary(plane, namespace) == "ForeignChild", "the reason")
    assert "ConfigMap prod-fleet exists and does not belong to this FleetCluster" in condition(
        plane, namespace, "Stalled"
    )[2]  # fmt: skip
    assert plane.read("-n", namespace, "configmap", "prod-fleet")["data"] == {"fleet.yaml": "theirs"}


def test_a_quota_is_named_and_nothing_loops(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": namespace},
             "spec": {"hard": {"services": "0"}}}  # fmt: skip
    plane.apply(quota)
    wait_until(
        lambda: bool((plane.read("-n", namespace, "resourcequota", "q").get("status") or {}).get("hard")), "the quota"
    )
    plane.apply(cluster(namespace, pool="here"))

    wait_until(lambda: summary(plane, namespace) == "QuotaExceeded", "the reason")
    assert "exceeded quota: q" in condition(plane, namespace, "Degraded")[2]


def test_a_paused_cluster_is_left_as_it_is(plane: ControlPlane, healthy: str, operator: Any) -> None:
    plane.kubectl("-n", healthy, "annotate", "fc", "prod", "ingero.io/paused=true")
    wait_until(lambda: summary(plane, healthy) == "Paused", "the pause")
    plane.kubectl("-n", healthy, "delete", "service", "prod-fleet")
    operator.settle(2)
    assert plane.read("-n", healthy, "service", "prod-fleet") is None

    plane.kubectl("-n", healthy, "annotate", "fc", "prod", "ingero.io/paused-")
    wait_until(lambda: plane.read("-n", healthy, "service", "prod-fleet") is not None, "the Service")


def test_service_monitors_are_made_where_their_kind_exists_and_taken_back(
    plane: ControlPlane, healthy: str, operator: Any
) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"kind": "ServiceMonitor", "plural": "servicemonitors", "singular": "servicemonitor"}
    plane.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
            "spec": {
                "group": "monitoring.coreos.com",
                "scope": "Namespaced",
                "names": {**names, "listKind": "ServiceMonitorList"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        }
    )
    plane.kubectl("wait", "--for=condition=Established", "crd/servicemonitors.monitoring.coreos.com", "--timeout=30s")
    path = f"/apis/monitoring.coreos.com/v1/namespaces/{healthy}/servicemonitors"

    def monitors() -> int:
        try:
            return len((plane.request("GET", path) or {}).get("items", []))
        except RuntimeError:
            return -1

    wait_until(lambda: monitors() == 2, "the ServiceMonitors")
    wait_until(lambda: summary(plane, healthy) == "Healthy", "the FleetCluster to be healthy with them")
    operator.rest()

    plane.apply(cluster(healthy, pool="here", serviceMonitors={"enabled": False}))
    wait_until(lambda: monitors() == 0, "the ServiceMonitors to go")
    wait_until(lambda: summary(plane, healthy) == "Healthy", "the FleetCluster to be healthy")
