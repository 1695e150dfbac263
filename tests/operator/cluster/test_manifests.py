"""The manifests that users apply by hand, applied with kubectl to an API server that has seen none of them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero_testing.needs import CONTROL_PLANE
from scripts.controlplane import ControlPlane, find_assets
from scripts.pages import play

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]

ROOT = Path(__file__).parents[3]
DEVICE_TAINTS = (
    "--runtime-config=resource.k8s.io/v1beta2=true",
    "--feature-gates=DRADeviceTaints=true,DRADeviceTaintRules=true",
)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server without CRDs, which serves DeviceTaintRules."""
    assets = find_assets()
    if assets is None:
        pytest.skip(CONTROL_PLANE)
    plane = ControlPlane(tmp_path_factory.mktemp("empty"), assets, False, flags=DEVICE_TAINTS)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.mark.parametrize("how", ["-f", "-k"])
def test_the_folder_of_crds_can_be_applied_twice(empty: ControlPlane, how: str) -> None:
    first = empty.kubectl("apply", how, str(ROOT / "crds"))
    empty.established()
    second = empty.kubectl("apply", how, str(ROOT / "crds"))

    assert all(f"{name}.ingero.io" in first for name in ("fleetclusters", "echostores"))
    assert second.count("unchanged") == 2
    assert "No resources found" in empty.kubectl("get", "fleetclusters,echostores", "-A", check=False)


def test_the_example_of_shared_tables_fits_the_schema(empty: ControlPlane) -> None:
    empty.kubectl("apply", "-f", str(ROOT / "crds"))
    empty.established()
    empty.kubectl("create", "namespace", "ingero", check=False)
    file = ROOT / "manifests/examples/tables.yaml"

    applied = empty.kubectl("apply", "--server-side", "--validate=strict", "--dry-run=server", "-f", str(file))

    assert "echostore.ingero.io/history serverside-applied (server dry run)" in applied
    assert "\n  shards: 2\n" in file.read_text()


def test_the_example_of_a_device_taint_rule_fits_the_api(empty: ControlPlane) -> None:
    file = ROOT / "manifests/examples/integrations/device-taint-rule.yaml"

    empty.kubectl("apply", "--server-side", "--validate=strict", "-f", str(file))

    effect = "jsonpath={.spec.taint.key} {.spec.taint.effect}"
    assert empty.kubectl("get", "devicetaintrule", "slow-gpu", "-o", effect) == "ingero.io/straggler None"


def test_the_quickstart_installs_the_operator_and_creates_a_fleetcluster(empty: ControlPlane, tmp_path: Path) -> None:
    for folder in ("crds", "manifests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / ".kube").mkdir()
    shutil.copy(empty.kubeconfig, tmp_path / ".kube/config")

    play(ROOT / "docs/quickstart/kubernetes.md", tmp_path, tmp_path, 90, str(empty.assets))

    image = "jsonpath={.spec.template.spec.containers[0].image}"
    found = empty.kubectl("-n", "ingero-system", "get", "deployment", "ingero-operator", "-o", image)
    assert found.startswith("registry.example.com/team/ingero/operator:")
