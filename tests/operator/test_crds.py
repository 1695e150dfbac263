"""The CRDs are structural, bounded and free of defaults."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingero_operator.api import v1alpha1
from ingero_operator.api.base import Part
from ingero_operator.render.crds import all_definitions, structural
from ingero_operator.status import effective

DEFINITIONS = {item["spec"]["names"]["kind"]: item for item in all_definitions()}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}.*")


def schema_of(kind: str) -> dict[str, Any]:
    return DEFINITIONS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize("kind", ["FleetCluster", "EchoStore"])
def test_every_node_has_a_type_and_no_default(kind: str) -> None:
    for path, node in nodes(schema_of(kind)):
        assert "type" in node, path
        assert not {"$ref", "anyOf", "oneOf", "nullable"} & set(node), path
        assert "default" not in node or path == ".status", path


@pytest.mark.parametrize("kind", ["FleetCluster", "EchoStore"])
def test_before_there_is_a_status_it_is_about_no_generation(kind: str) -> None:
    assert schema_of(kind)["properties"]["status"]["default"] == {"observedGeneration": -1}


@pytest.mark.parametrize("kind", ["FleetCluster", "EchoStore"])
def test_everything_that_can_grow_is_bounded(kind: str) -> None:
    for path, node in nodes(schema_of(kind)):
        if path in ("", ".apiVersion", ".kind", ".metadata"):
            continue
        if node["type"] == "string":
            assert "maxLength" in node or "enum" in node, path
        if node["type"] == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


@pytest.mark.parametrize("kind", ["FleetCluster", "EchoStore"])
def test_every_field_of_the_spec_says_what_it_is(kind: str) -> None:
    undocumented = [
        path for path, node in nodes(schema_of(kind)["properties"]["spec"])
        if "description" not in node and not path.endswith(("[]", ".*"))
    ]  # fmt: skip

    assert undocumented == []


def test_every_default_is_in_the_description_of_its_field() -> None:
    def description(kind: str, path: str) -> str:
        node = schema_of(kind)["properties"]["spec"]
        for name in path.split("."):
            node = node["properties"][name]
        return str(node["description"])

    for kind, path, words in (
        ("FleetCluster", "taints.ttl", "Default: 24h."),
        ("FleetCluster", "taints.mode", "Default: Observe."),
        ("FleetCluster", "fleet.resources", "Default: cpu=250m, memory=512Mi."),
        ("FleetCluster", "agents.push.resources", "Default: cpu=50m, memory=128Mi."),
        ("FleetCluster", "agents.nodeSelector", "Default: nvidia.com/gpu.present=true."),
        ("FleetCluster", "network.enabled", "Default: true."),
        ("EchoStore", "storage.size", "Default: 50Gi."),
    ):
        assert description(kind, path).endswith(words), path
    assert "Default" not in description("FleetCluster", "tlsSecret") + description("FleetCluster", "taints.budget")
    for kind in DEFINITIONS:
        assert "Default:" not in str(schema_of(kind)["properties"]["status"])


def test_what_is_in_force_fits_into_the_status_of_the_widest_spec() -> None:
    many = {f"k{number}": "v" for number in range(16)}
    secret, data = {"name": "s", "key": "k"}, {"name": "c", "key": "k"}
    confined = {
        "seLinuxOptions": {"level": "l", "role": "r", "type": "t", "user": "u"},
        "appArmorProfile": {"type": "Localhost", "localhostProfile": "p"},
    }
    fleet = v1alpha1.FleetClusterSpec.model_validate(
        {
            "clusterId": "lab", "version": "1", "images": {"fleet": "a", "agent": "a", "sink": "a"},
            "tokenSecret": secret, "tlsSecret": "tls",
            "fleet": {
                "forward": {"endpoint": "a:1", "tokenSecret": secret}, "nodeSelector": many,
                "cost": {"rates": data, "providers": data, "defaultProvider": "x"}, "tolerations": [{"key": "a"}],
                **confined,
            },
            "imagePullSecrets": [{"name": "s"}],
            "agents": {
                "trace": confined, "push": confined,
                "nodeSelector": many, "jobId": "j", "runtimeClassName": "r", "priorityClassName": "p",
                "tolerations": [{"key": "a"}],
            },
            "taints": {"pauseRequests": ["x"]}, "network": {"monitoringNamespace": many},
            "serviceMonitors": {"labels": many, "tokenSecret": secret},
        }
    )  # fmt: skip

    bound = schema_of("FleetCluster")["properties"]["status"]["properties"]["effective"]["maxProperties"]
    assert len(effective(fleet)) <= bound


def test_no_mode_evicts() -> None:
    mode = schema_of("FleetCluster")["properties"]["spec"]["properties"]["taints"]["properties"]["mode"]

    assert mode["enum"] == ["Observe", "Annotate", "PreferNoSchedule", "NoSchedule"]


def test_a_union_is_refused_in_words() -> None:
    class Odd(Part):
        value: int | str

    with pytest.raises(ValueError, match="union"):
        structural(Odd)


def test_the_smallest_specs_are_whole() -> None:
    fleet = v1alpha1.FleetClusterSpec.model_validate({"clusterId": "lab"})
    echo = v1alpha1.EchoStoreSpec.model_validate({"tlsSecret": "tls", "tokenSecret": {"name": "t"}})

    assert (fleet.taints.mode, fleet.taints.budget.max_nodes) == ("Observe", 2)
    assert (echo.storage.encryption.policy, echo.storage.size) == ("Proven", "50Gi")


def test_a_field_of_a_newer_version_does_not_stop_the_operator() -> None:
    spec = v1alpha1.FleetClusterSpec.model_validate({"clusterId": "lab", "fromTheFuture": 1})

    assert spec.cluster_id == "lab"


def test_the_folder_of_the_definitions_holds_nothing_that_kubectl_apply_would_refuse() -> None:
    kinds = {
        item["kind"]
        for file in (Path(__file__).parents[2] / "crds").glob("*.yaml")
        for item in yaml.safe_load_all(file.read_text())
    }
    assert kinds == {"CustomResourceDefinition"}
