"""The Helm chart installs what manifests/base installs, and its values reach the operator."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ingero_kit.settings import load
from ingero_operator.cli import run
from ingero_operator.render.crds import all_definitions
from ingero_operator.render.install import everything, namespace_access, rules
from ingero_operator.settings import OperatorConfig
from ingero_testing.needs import HELM, find_helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/ingero"
DIGEST = "sha256:" + "0" * 64
Objects = dict[tuple[str, str, str], dict[str, Any]]
Rendered = Callable[..., Objects]


def chart_values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def errors(**changed: Any) -> list[str]:
    """The schema's complaints about the default values with these changed."""
    validator = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    return [error.message for error in validator.iter_errors({**chart_values(), **changed})]


def test_the_schema_knows_every_value_and_takes_the_defaults() -> None:
    described = json.loads((CHART / "values.schema.json").read_text())["properties"]

    jsonschema.Draft7Validator.check_schema(json.loads((CHART / "values.schema.json").read_text()))
    assert errors() == []
    assert set(described) == {*chart_values(), "global"}


@pytest.mark.parametrize(
    "changed",
    [
        {"replica": 2},
        {"replicas": "two"},
        {"image": {"registry": "r", "digest": {}}},
        {"image": {"registry": ""}},
        {"image": {"digests": {"fleet": "latest"}}},
        {"image": {"digests": {"nats": DIGEST}}},
        {"taints": {"enable": False}},
        {"minEncryption": "Never"},
        {"watchNamespaces": ["Team A"]},
        {"serviceMonitor": {"interval": "often"}},
        {"extraArgs": "--no-taints"},
        {"tolerations": {"key": "a"}},
        {"extraEnv": [{"value": "x"}]},
    ],
)
def test_the_schema_refuses_what_the_chart_does_not_know(changed: dict[str, Any]) -> None:
    assert len(errors(**changed)) == 1


def test_templates_and_values_name_each_other() -> None:
    used = {
        path
        for file in (CHART / "templates").iterdir()
        for path in re.findall(r"\.Values\.([\w.]+)", file.read_text())
    }
    values = chart_values()
    known = {
        path
        for name, value in values.items()
        for path in ([f"{name}.{key}" for key in value] if name in ("image", "taints", "serviceMonitor") else [name])
    }

    assert used == known


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = find_helm()
    if program is None:
        pytest.skip(HELM)
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120)


def by_name(documents: Any) -> Objects:
    named = [
        ((item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]), item)
        for item in documents
        if item
    ]
    assert len(dict(named)) == len(named)
    return dict(named)


@pytest.fixture
def rendered(tmp_path: Path) -> Rendered:
    """The objects that the chart makes of the default values with these changed."""

    def render(namespace: str = "ingero-system", **changed: Any) -> Objects:
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(changed))
        done = helm(
            "template", "ingero", str(CHART), "--namespace", namespace, "--include-crds",
            "--kube-version", "1.30.0",
            "--values", str(tmp_path / "values.yaml"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return by_name(yaml.safe_load_all(done.stdout))

    return render


def arguments_of(found: Objects, namespace: str = "ingero-system") -> list[str]:
    pod = found["Deployment", namespace, "ingero-operator"]["spec"]["template"]["spec"]
    arguments: list[str] = pod["containers"][0]["args"]
    return arguments


def test_helm_finds_nothing_wrong() -> None:
    done = helm("lint", "--strict", str(CHART))

    assert done.returncode == 0, done.stdout


def test_helm_shows_every_definition_for_kubectl() -> None:
    done = helm("show", "crds", str(CHART))

    assert done.returncode == 0, done.stderr
    assert by_name(yaml.safe_load_all(done.stdout)) == by_name(all_definitions())


def test_by_default_the_chart_is_the_base_without_its_namespace(rendered: Rendered) -> None:
    base = by_name(
        item
        for name in ("crds.yaml", "operator.yaml")
        for item in yaml.safe_load_all((ROOT / "manifests/base" / name).read_text())
    )
    del base["Namespace", "", "ingero-system"]

    assert rendered() == base


def test_helm_refuses_an_unknown_value_and_names_it() -> None:
    done = helm("template", "ingero", str(CHART), "--set", "replica=3")

    assert done.returncode != 0
    assert "replica" in done.stderr


def test_another_namespace_leaves_no_trace_of_the_old_one(rendered: Rendered) -> None:
    assert "ingero-system" not in yaml.safe_dump_all(rendered("gpu-watch", watchNamespaces=["a"]).values())


def test_values_become_settings_that_the_operator_takes(rendered: Rendered) -> None:
    found = rendered(
        image={
            "registry": "registry.example.com/team",
            "digests": {"operator": DIGEST, "fleet": DIGEST, "echo": DIGEST},
            "pullSecrets": ["regcred", "7"],
        },
        minEncryption="Proven",
        taints={"enabled": False, "paused": True},
        agentPriorityClass="gpu-agents",
        priorityClassName="",
        nodeSelector={"pool": "system"},
        tolerations=[{"key": "CriticalAddonsOnly", "operator": "Exists"}],
        affinity={"nodeAffinity": {}},
        extraArgs=["--workers=4"],
        extraEnv=[{"name": "TZ", "value": "UTC"}],
        resources={"requests": {"cpu": "1"}, "limits": None},
    )
    pod = found["Deployment", "ingero-system", "ingero-operator"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings = settings_of(container["args"])

    version = next(iter(yaml.safe_load_all((CHART / "Chart.yaml").read_text())))["appVersion"]
    assert container["image"] == f"registry.example.com/team/ingero/operator:{version}@{DIGEST}"
    assert settings.image_registry == "registry.example.com/team"
    assert settings.image_digests == {"fleet": DIGEST, "echo": DIGEST}
    assert settings.image_pull_secrets == ("regcred", "7")
    assert [item["name"] for item in pod["imagePullSecrets"]] == ["regcred", "7"]
    assert (settings.min_encryption, settings.workers, settings.agent_priority_class) == ("Proven", 4, "gpu-agents")
    assert {"--no-taints", "--pause-taints"} <= set(container["args"])
    assert container["env"][-1] == {"name": "TZ", "value": "UTC"}
    assert container["resources"] == {"requests": {"cpu": "1", "memory": "192Mi"}}
    assert (pod["nodeSelector"], pod["affinity"]) == ({"pool": "system"}, {"nodeAffinity": {}})
    assert pod["tolerations"] == [{"key": "CriticalAddonsOnly", "operator": "Exists"}]
    assert "priorityClassName" not in pod
    assert not [key for key in found if key[0] == "PriorityClass"]


def settings_of(arguments: list[str]) -> OperatorConfig:
    """The settings that the operator takes from its arguments."""
    command, *flags = arguments
    given = run.make_context(command, [flag for flag in flags if "$(" not in flag]).params
    return load(OperatorConfig, prefix="X_", flags={name: given[name] for name in OperatorConfig.model_fields})


def test_for_some_namespaces_the_chart_makes_a_role_in_each(rendered: Rendered) -> None:
    found = rendered(watchNamespaces=["a", "b"])

    assert settings_of(arguments_of(found)).watch_namespaces == ("a", "b")
    assert found["ClusterRole", "", "ingero-operator"]["rules"] == rules(True)
    for namespace in ("a", "b"):
        for item in namespace_access(namespace):
            assert found[item["kind"], namespace, item["metadata"]["name"]] == item


def test_the_service_monitor_is_that_of_the_manifests(rendered: Rendered) -> None:
    found = rendered(serviceMonitor={"enabled": True, "interval": "10s", "labels": {"release": "prometheus"}})

    expected = yaml.safe_load((ROOT / "manifests/monitoring/prometheus-operator/servicemonitor.yaml").read_text())
    expected["spec"]["endpoints"][0]["interval"] = "10s"
    expected["metadata"]["labels"]["release"] = "prometheus"
    assert found["ServiceMonitor", "ingero-system", "ingero-operator"] == expected


def test_the_base_and_the_chart_have_the_same_documents() -> None:
    text = (CHART / "templates/operator.yaml").read_text()
    named = re.findall(r"^kind: (\w+)\nmetadata:\n  name: ([\w-]+)$", text, re.MULTILINE)

    assert named == [(x["kind"], x["metadata"]["name"]) for x in everything("x") if x["kind"] != "Namespace"]
