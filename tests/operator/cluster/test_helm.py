"""Install, upgrade, rollback and uninstall by the commands of docs/operator.md, on a real API server."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingero_testing.needs import CONTROL_PLANE, HELM, find_helm
from scripts.controlplane import ControlPlane, control_plane

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("cluster"),
    pytest.mark.skipif(find_helm() is None, reason=HELM),
]

ROOT = Path(__file__).parents[3]
(SECTION,) = re.findall(
    r"^### With Helm$(.*?)^## ", (ROOT / "docs/operator.md").read_text(), re.DOTALL | re.MULTILINE
)
NEWER = "9.9.9"
DEFINITION = "fleetclusters.ingero.io"


def documented(beginning: str) -> str:
    """The command of the page that begins so, in a fence or in a sentence; a longer one precedes."""
    found = re.findall(rf"(?:^|`)({re.escape(beginning)}[^`\n]*)", SECTION, re.MULTILINE)
    assert found, beginning
    return str(max(found, key=len))


class Cluster:
    """A control plane that knows nothing of ingero, and a folder with the chart in which the commands run."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.chart = folder / "charts/ingero"
        shutil.copytree(ROOT / "charts/ingero", self.chart)

    def run(self, command: str) -> str:
        helm = find_helm()
        assert helm
        path = os.pathsep.join([str(Path(helm).parent), str(self.plane.assets), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            env=os.environ | {"PATH": path, "KUBECONFIG": str(self.plane.kubeconfig)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def newer_chart(self) -> None:
        """The next release: another version, and a definition with another description."""
        about = yaml.safe_load((self.chart / "Chart.yaml").read_text()) | {"version": NEWER, "appVersion": NEWER}
        (self.chart / "Chart.yaml").write_text(yaml.safe_dump(about))
        for file in (self.chart / "crds").iterdir():
            definitions = list(yaml.safe_load_all(file.read_text()))
            for definition in definitions:
                definition["metadata"].setdefault("annotations", {})["release"] = NEWER
            file.write_text(yaml.safe_dump_all(definitions))

    def operator(self) -> tuple[str, int]:
        """Tag of its image, and replicas."""
        found = json.loads(self.run("kubectl -n ingero-system get deployment ingero-operator --output json"))
        return found["spec"]["template"]["spec"]["containers"][0]["image"].rpartition(":")[2], found["spec"][
            "replicas"
        ]

    def definition(self) -> dict[str, Any]:
        """Annotations of a definition that Helm installs and neither upgrades nor removes."""
        found = json.loads(self.run(f"kubectl get crd {DEFINITION} --output json"))
        return dict(found["metadata"].get("annotations", {}))

    def left(self) -> set[str]:
        """What is labelled as Helm's of this release, of the kinds without a namespace and in its namespace."""
        kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
        every = (
            f"kubectl get {kinds} --output name; kubectl -n ingero-system get deploy,sa,svc,role,rolebinding -o name"
        )
        return {line for line in self.run(every).splitlines() if "ingero" in line}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    try:
        with control_plane(tmp_path / "plane") as plane:
            yield Cluster(plane, tmp_path)
    except FileNotFoundError:
        pytest.skip(CONTROL_PLANE)


def test_the_documented_commands_install_upgrade_roll_back_and_uninstall(cluster: Cluster) -> None:
    version = yaml.safe_load((cluster.chart / "Chart.yaml").read_text())["version"]

    cluster.run(documented("helm install ") + " --set replicas=3")
    cluster.run(documented("kubectl label namespace "))
    assert cluster.operator() == (version, 3)
    assert "release" not in cluster.definition()

    cluster.newer_chart()
    cluster.run(documented("helm show crds "))
    cluster.run(documented("helm upgrade ") + " --set taints.paused=true")
    assert cluster.operator() == (NEWER, 3)
    assert cluster.definition()["release"] == NEWER

    cluster.run(documented("helm rollback "))
    assert cluster.operator() == (version, 3)
    assert cluster.definition()["release"] == NEWER

    cluster.run(documented("kubectl delete fleetclusters "))
    cluster.run(documented("helm uninstall "))
    assert cluster.left() == set()
    assert cluster.definition()["release"] == NEWER
