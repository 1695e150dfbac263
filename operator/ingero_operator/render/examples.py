"""Example resources to start from."""

from typing import Any

import yaml

from ingero_contract.kubernetes import GROUP, VERSION
from ingero_operator.render.images import LOCAL
from ingero_operator.render.install import NAMESPACE, OPERATOR, WATCHED


def _resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": WATCHED}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": metadata, "spec": spec}


def namespace() -> dict[str, Any]:
    """A namespace that admits the tracing DaemonSet, whose privileges the baseline level refuses."""
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": WATCHED, "labels": labels}}


def smallest() -> list[dict[str, Any]]:
    """One GPU cluster that is observed only."""
    return [namespace(), _resource("FleetCluster", "prod", {"clusterId": "prod"})]


def registry() -> dict[str, Any]:
    """The installation with every image from a private registry."""
    where = "registry.example.com/team"
    variable = {"name": "INGERO_OPERATOR_IMAGE_REGISTRY", "value": where}
    container = {"name": "operator", "env": [variable]}
    metadata = {"name": OPERATOR, "namespace": NAMESPACE}
    spec = {"template": {"spec": {"containers": [container]}}}
    patch = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../base"],
        "images": [{"name": f"{LOCAL}/ingero/operator", "newName": f"{where}/ingero/operator"}],
        "patches": [{"patch": yaml.safe_dump(patch, sort_keys=False)}],
    }


def taints() -> list[dict[str, Any]]:
    """A cluster whose confirmed stragglers get no new pods, one node in twenty at most."""
    spec = {
        "clusterId": "prod",
        "tokenSecret": {"name": "fleet-token"},
        "taints": {"mode": "NoSchedule", "budget": {"maxNodes": 4, "maxPercent": 5}, "confirmFor": "15m"},
    }
    return [_resource("FleetCluster", "prod", spec)]


def store() -> list[dict[str, Any]]:
    """Events stored on a volume that is proven encrypted, and a Fleet that forwards to it."""
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
