"""Examples to begin with."""

from typing import Any

from ingero_contract.kubernetes import GROUP, VERSION


def _resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ingero"}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": metadata, "spec": spec}


def namespace() -> dict[str, Any]:
    """Where the tracing DaemonSet may run: it needs privileges that the baseline refuses."""
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ingero", "labels": labels}}


def smallest() -> list[dict[str, Any]]:
    """One GPU cluster, watched and left alone."""
    return [namespace(), _resource("FleetCluster", "prod", {"clusterId": "prod"})]


def taints() -> list[dict[str, Any]]:
    """A cluster whose confirmed stragglers get no new pods, one node in twenty at most."""
    spec = {
        "clusterId": "prod",
        "tokenSecret": {"name": "fleet-token"},
        "taints": {"mode": "NoSchedule", "budget": {"maxNodes": 4, "maxPercent": 5}, "confirmFor": "15m"},
    }
    return [_resource("FleetCluster", "prod", spec)]


def store() -> list[dict[str, Any]]:
    """Events kept on a volume that is proven encrypted, and a Fleet that fills it."""
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "encrypted"},
        "provisioner": "ebs.csi.aws.com",
        "parameters": {"type": "gp3", "encrypted": "true"},
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }
    echo = {
        "tokenSecret": {"name": "echo-token"},
        "tlsSecret": "echo-tls",
        "retention": "30d",
        "storage": {"className": "encrypted"},
    }
    fleet = {
        "clusterId": "prod",
        "fleet": {"forward": {"echoStore": "events", "tokenSecret": {"name": "echo-token"}}},
    }
    return [storage_class, _resource("EchoStore", "events", echo), _resource("FleetCluster", "prod", fleet)]
