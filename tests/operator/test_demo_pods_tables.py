"""The parts of the demo of shared tables that need no cluster."""

from typing import Any

from ingero_operator.render.shards import shard_of
from scripts.demo_pods_tables import CLUSTERS, WRITERS, verifier


def test_the_pod_that_verifies_is_the_writers_with_another_command() -> None:
    shared: dict[str, Any] = {"name": "echo", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    writer = {**shared, "args": ["serve", "--config", "/c.yaml"], "readinessProbe": {}, "livenessProbe": {}}
    volumes = [{"name": "data"}]
    template = {"metadata": {"labels": {"app": "echo"}}, "spec": {"containers": [writer], "volumes": volumes}}

    pod = verifier("ns", "events-echo", template)

    assert pod["spec"]["containers"] == [{**shared, "args": ["verify", "--config", "/c.yaml", "--json"]}]
    assert pod["spec"]["restartPolicy"] == "Never" and pod["spec"]["volumes"] == volumes
    assert pod["metadata"] == {"name": "verify-events-echo", "namespace": "ns", "labels": {"app": "echo"}}
    assert "readinessProbe" in writer


def test_the_cluster_whose_fleet_publishes_belongs_to_the_writer_that_loses_its_volume() -> None:
    assert shard_of(CLUSTERS[1], len(WRITERS)) == 1
