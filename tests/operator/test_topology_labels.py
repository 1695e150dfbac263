"""Fleet's topology from labels of nodes: what is written, where Fleet finds it, and that a change rolls no pod."""

import json
from typing import Any

import pytest
import yaml

from ingero_detect.network.topology import ports_of
from ingero_fleet.settings import FleetConfig
from ingero_operator.api.v1alpha1 import FleetClusterSpec
from ingero_operator.render import desired, fleet
from ingero_operator.render.common import Owner, Platform
from ingero_operator.render.topology import TopologyUnusable, topology_of

KEYS = ("example.com/leaf", "example.com/spine")
OWNER = Owner(kind="FleetCluster", namespace="ml", name="prod", uid="u")


def node(name: str, *values: str) -> tuple[str, dict[str, str]]:
    return name, dict(zip(KEYS, values, strict=False))


def test_labels_of_nodes_become_a_topology_that_fleet_reads() -> None:
    text = topology_of([node("b", "1", "y"), node("a", "1", "x"), node("c", "2"), node("d")], KEYS)

    ports = ports_of(json.loads(text))
    assert {port.node: port.switches for port in ports.values()} == {
        "a": ("x/1", "x"), "b": ("y/1", "y"), "c": ("-/2",)
    }  # fmt: skip
    assert text == topology_of([node("c", "2"), node("a", "1", "x"), node("d"), node("b", "1", "y")], KEYS)


def test_a_gap_between_labels_ends_the_path() -> None:
    gap = ("a", {KEYS[1]: "x"})

    assert json.loads(topology_of([gap, node("b", "1", "x")], KEYS))["nodes"] == {"b": "x/1"}


def test_switches_of_different_tiers_with_the_same_label_are_different_switches() -> None:
    ports = ports_of(json.loads(topology_of([node("a", "x"), node("b", "1", "x")], KEYS)))

    (a,), b = (ports[f"{name}:"].switches for name in "ab")
    assert a not in b


def test_no_label_at_all_and_too_many_names_are_refused_with_the_reason() -> None:
    with pytest.raises(TopologyUnusable, match=f"no node .* has the label {KEYS[0]}"):
        topology_of([("a", {KEYS[1]: "x"}), node("b")], KEYS)
    with pytest.raises(TopologyUnusable, match="bytes of names do not fit"):
        topology_of([node(f"{'n' * 200}-{number}", "1") for number in range(4500)], KEYS)


def children(topology: str) -> dict[tuple[str, str], Any]:
    spec = FleetClusterSpec.model_validate({"clusterId": "c", "fleet": {"collectives": {"topologyLabels": KEYS}}})
    around = fleet.FleetInputs(topology=topology)
    return {
        (child["kind"], child["metadata"]["name"]): child
        for child in desired.of_fleet_cluster(OWNER, spec, Platform(), around)
    }


@pytest.mark.parametrize("topology", ["", '{"nodes":{"a":"leaf"},"switches":{}}'])
def test_fleet_finds_the_file_and_other_labels_roll_no_pod(topology: str) -> None:
    found = children(topology)

    config = FleetConfig.model_validate(yaml.safe_load(found["ConfigMap", "prod-fleet"]["data"]["fleet.yaml"]))
    assert config.processors.nccl.topology_file
    pod = found["Deployment", "prod-fleet"]["spec"]["template"]["spec"]
    (volume,) = [item for item in pod["volumes"] if item["name"] == "topology"]
    (mount,) = [item for item in pod["containers"][0]["volumeMounts"] if item["name"] == "topology"]
    key = volume["configMap"]["items"][0]["path"]
    assert str(config.processors.nccl.topology_file) == f"{mount['mountPath']}/{key}"
    ports_of(json.loads(found["ConfigMap", volume["configMap"]["name"]]["data"][key]))
    assert found["Deployment", "prod-fleet"] == children("")["Deployment", "prod-fleet"]
