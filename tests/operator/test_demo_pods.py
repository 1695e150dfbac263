"""What the demos in real pods read from pages of metrics, and from the example with NATS."""

from scripts.demo_pods_ha import example
from scripts.pod_faults import total


def test_a_counter_is_summed_over_its_labels_and_not_confused_with_another() -> None:
    page = '# TYPE pushes_total counter\npushes_total 5.0\npushes_total{reason="a b"} 2.0\npushes_total_more 9\n'

    assert total(page, "pushes_total") == 7
    assert total(page, "failures_total") == 0


def test_the_example_has_one_image_for_the_server_of_the_wheel() -> None:
    (stateful,) = [item for item in example() if item["kind"] == "StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]

    assert container["image"].rpartition(":")[0] == "docker.io/library/nats" and "command" not in container
