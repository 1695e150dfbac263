"""What the demos in real pods read: pages of metrics, the example with NATS, and the folder of a running cluster."""

from pathlib import Path

import pytest

from scripts.demo_pods_ha import example
from scripts.lab import LabFailed, laboratory
from scripts.pod_faults import total
from scripts.pod_lab import nodes


def test_a_counter_is_summed_over_its_labels_and_not_confused_with_another() -> None:
    page = '# TYPE pushes_total counter\npushes_total 5.0\npushes_total{reason="a b"} 2.0\npushes_total_more 9\n'

    assert total(page, "pushes_total") == 7
    assert total(page, "failures_total") == 0


def test_the_example_has_one_image_for_the_server_of_the_wheel() -> None:
    (stateful,) = [item for item in example() if item["kind"] == "StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]

    assert container["image"].rpartition(":")[0] == "docker.io/library/nats" and "command" not in container


def test_a_folder_without_kubeconfig_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGERO_LAB", str(tmp_path))

    with laboratory("test") as lab, pytest.raises(LabFailed, match=f"no {tmp_path}/kubeconfig"), nodes(lab):
        pass
