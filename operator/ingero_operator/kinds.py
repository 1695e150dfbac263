"""The kinds of objects that the operator reads or writes, and where the API server serves them."""

from dataclasses import dataclass
from typing import Any, Final

from ingero_contract.kubernetes import GROUP, MANAGER, VERSION

Manifest = dict[str, Any]
"""An object of the API server, or a part of one, as JSON."""

OURS: Final = f"app.kubernetes.io/managed-by={MANAGER}"
"""Label selector of every child."""


@dataclass(frozen=True)
class ResourceKind:
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


FLEET_CLUSTER: Final = ResourceKind("FleetCluster", GROUP, VERSION, "fleetclusters")
ECHO_STORE: Final = ResourceKind("EchoStore", GROUP, VERSION, "echostores")
NODE: Final = ResourceKind("Node", "", "v1", "nodes", False)
STORAGE_CLASS: Final = ResourceKind("StorageClass", "storage.k8s.io", "v1", "storageclasses", False)
VOLUME: Final = ResourceKind("PersistentVolume", "", "v1", "persistentvolumes", False)
NAMESPACE: Final = ResourceKind("Namespace", "", "v1", "namespaces", False)
SECRET: Final = ResourceKind("Secret", "", "v1", "secrets")
POD: Final = ResourceKind("Pod", "", "v1", "pods")
EVENT: Final = ResourceKind("Event", "", "v1", "events")
LEASE: Final = ResourceKind("Lease", "coordination.k8s.io", "v1", "leases")
CRD: Final = ResourceKind(
    "CustomResourceDefinition", "apiextensions.k8s.io", "v1", "customresourcedefinitions", False
)

CHILDREN: Final = (
    ResourceKind("ServiceAccount", "", "v1", "serviceaccounts"),
    ResourceKind("ConfigMap", "", "v1", "configmaps"),
    ResourceKind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims"),
    ResourceKind("Service", "", "v1", "services"),
    ResourceKind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
    ResourceKind("Deployment", "apps", "v1", "deployments"),
    ResourceKind("StatefulSet", "apps", "v1", "statefulsets"),
    ResourceKind("DaemonSet", "apps", "v1", "daemonsets"),
    ResourceKind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
    ResourceKind("Ingress", "networking.k8s.io", "v1", "ingresses"),
    ResourceKind("HorizontalPodAutoscaler", "autoscaling", "v2", "horizontalpodautoscalers"),
)
"""Kinds that the operator creates, and watches by their label."""

CACHED: Final = (FLEET_CLUSTER, ECHO_STORE, NODE, *CHILDREN)
"""Kinds that the cache holds."""

SERVICE_MONITOR: Final = ResourceKind("ServiceMonitor", "monitoring.coreos.com", "v1", "servicemonitors")
"""Created only where its CRD exists; read only when it is created or resynced, never watched."""

CLAIM: Final = CHILDREN[2]
CONFIG_MAP: Final = CHILDREN[1]
HTTP_ROUTE: Final = ResourceKind("HTTPRoute", "gateway.networking.k8s.io", "v1", "httproutes")
"""As `SERVICE_MONITOR`: the CRDs of the Gateway API may be missing."""

UNWATCHED: Final = frozenset({SERVICE_MONITOR.name, HTTP_ROUTE.name})
"""Children that are not in the cache."""

BY_NAME: Final = {
    kind.name: kind for kind in (*CHILDREN, SERVICE_MONITOR, HTTP_ROUTE, FLEET_CLUSTER, ECHO_STORE, NODE)
}
