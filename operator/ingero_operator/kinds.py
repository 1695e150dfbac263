"""The kinds of objects that the operator reads or writes, and where the API server serves them."""

from dataclasses import dataclass
from typing import Any, Final

from ingero_contract.kubernetes import GROUP, MANAGER, VERSION

Manifest = dict[str, Any]
"""An object of the API server, or a part of one, as JSON."""

OURS: Final = f"app.kubernetes.io/managed-by={MANAGER}"
"""Label selector of every child."""


@dataclass(frozen=True)
class Kind:
    """One kind: name, API group and version, plural."""

    name: str
    group: str
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """URL path of a collection, an object or its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{scope}/{self.plural}" + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")


FLEET_CLUSTER: Final = Kind("FleetCluster", GROUP, VERSION, "fleetclusters")
ECHO_STORE: Final = Kind("EchoStore", GROUP, VERSION, "echostores")
NODE: Final = Kind("Node", "", "v1", "nodes", False)
STORAGE_CLASS: Final = Kind("StorageClass", "storage.k8s.io", "v1", "storageclasses", False)
VOLUME: Final = Kind("PersistentVolume", "", "v1", "persistentvolumes", False)
NAMESPACE: Final = Kind("Namespace", "", "v1", "namespaces", False)
SECRET: Final = Kind("Secret", "", "v1", "secrets")
EVENT: Final = Kind("Event", "", "v1", "events")
LEASE: Final = Kind("Lease", "coordination.k8s.io", "v1", "leases")
CRD: Final = Kind("CustomResourceDefinition", "apiextensions.k8s.io", "v1", "customresourcedefinitions", False)

CHILDREN: Final = (
    Kind("ServiceAccount", "", "v1", "serviceaccounts"),
    Kind("ConfigMap", "", "v1", "configmaps"),
    Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims"),
    Kind("Service", "", "v1", "services"),
    Kind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
    Kind("Deployment", "apps", "v1", "deployments"),
    Kind("StatefulSet", "apps", "v1", "statefulsets"),
    Kind("DaemonSet", "apps", "v1", "daemonsets"),
    Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
    Kind("Ingress", "networking.k8s.io", "v1", "ingresses"),
)
"""Kinds that the operator creates, and watches by their label."""

CACHED: Final = (FLEET_CLUSTER, ECHO_STORE, NODE, *CHILDREN)
"""Kinds that the cache holds."""

SERVICE_MONITOR: Final = Kind("ServiceMonitor", "monitoring.coreos.com", "v1", "servicemonitors")
"""Created only where its CRD exists; read only when it is created or resynced, never watched."""

CLAIM: Final = CHILDREN[2]
CONFIG_MAP: Final = CHILDREN[1]
BY_NAME: Final = {kind.name: kind for kind in (*CHILDREN, SERVICE_MONITOR, FLEET_CLUSTER, ECHO_STORE, NODE)}
