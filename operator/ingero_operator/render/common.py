"""What all children have in common: names, labels, owner, digest."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ingero_contract.kubernetes import GROUP, MANAGER, OWNER_LABEL, SPEC_HASH, STRAGGLER_TAINT, VERSION
from ingero_operator.api.base import Confinement, LocalName, Resources, Toleration
from ingero_operator.api.v1alpha1 import Gateway, Ingress, ServiceMonitors
from ingero_operator.kinds import HTTP_ROUTE, Manifest
from ingero_operator.render.images import COMPONENTS, image_name, is_allowed
from ingero_operator.settings import OperatorConfig

NAME: Final = "app.kubernetes.io/name"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
VERSION_LABEL: Final = "app.kubernetes.io/version"
CONFIG_HASH: Final = "ingero.io/config-hash"
USER: Final = 65532
"""User and group of every container that needs no privileges."""

OTLP_GRPC, OTLP_HTTP, API, FINDINGS, VITALS, HEALTH = 4317, 4318, 8080, 9090, 8888, 8088
PAGE = 8081
SINK_PORT: Final = 9464
PUSH_PORT: Final = 9465
TRACE_PORT: Final = 9466
AGENT_API_PORT: Final = 9467

QUIET: Final = {"argocd.argoproj.io/ignore-resource-updates": "true"}
"""Annotation by which ArgoCD ignores the operator's writes to children."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The custom resource that a child belongs to."""

    kind: str
    namespace: str
    name: str
    uid: str

    def child(self, suffix: str) -> str:
        """Name of a child."""
        return f"{self.name}-{suffix}"

    def reference(self) -> list[Manifest]:
        """The owner reference, by which the garbage collector cleans up."""
        return [
            {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": self.kind,
                "name": self.name,
                "uid": self.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What the cluster offers and what the operator's settings say, the same for every resource."""

    config: OperatorConfig = field(default_factory=OperatorConfig)
    native_sidecars: bool = True
    service_monitors: bool = False
    http_routes: bool = False

    def image_of(self, component: str, version: str | None, override: str | None) -> str:
        """The image of a component."""
        own = self.config.version
        name, pinned = self._image(component, version or own), self.config.image_digests.get(component)
        return override or (f"{name}@{pinned}" if pinned and version in (None, own) else name)

    def _image(self, component: str, version: str) -> str:
        return image_name(self.config.image, self.config.image_registry, component, version)

    def refuses(self, override: str | None) -> bool:
        """Whether a resource must not name this image: it would run with rights that the resource's author may not
        have."""
        own = (self._image(component, self.config.version) for component in COMPONENTS)
        return override is not None and not is_allowed(override, (*own, *self.config.allowed_images))


def selector(owner: Owner, component: str) -> dict[str, str]:
    """The two labels that select pods. They never change: selectors are immutable."""
    return {NAME: f"ingero-{component}", OWNER_LABEL: owner.name}


def labels(owner: Owner, component: str, version: str | None = None) -> dict[str, str]:
    """Labels of a child. The owner's own labels are not copied, because GitOps tools track objects by them."""
    extra = {VERSION_LABEL: version} if version else {}
    return {**selector(owner, component), MANAGED_BY: MANAGER, **extra}


def manifest(
    owner: Owner, api: str, kind: str, suffix: str, component: str, body: Manifest, *, owned: bool = True
) -> Manifest:
    """A child with its metadata; `owned` is false for a child that must outlive its owner."""
    metadata: Manifest = {
        "name": owner.child(suffix),
        "namespace": owner.namespace,
        "labels": labels(owner, component),
        "annotations": dict(QUIET),
    }
    if owned:
        metadata["ownerReferences"] = owner.reference()
    return sealed({"apiVersion": api, "kind": kind, "metadata": metadata, **body})


def sealed(child: Manifest) -> Manifest:
    """Write the digest of the whole manifest into its annotations."""
    annotations = child["metadata"].setdefault("annotations", {})
    annotations.pop(SPEC_HASH, None)
    annotations[SPEC_HASH] = digest(child)
    return child


def digest(value: Any) -> str:
    """Short digest of any JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def resources(wanted: Resources) -> Manifest:
    """Requests, and a memory limit."""
    requests = {name: value for name, value in (("cpu", wanted.cpu), ("memory", wanted.memory)) if value is not None}
    out: Manifest = {"requests": requests} if requests else {}
    if wanted.memory is not None:
        out["limits"] = {"memory": wanted.memory}
    return out


def confined(wanted: Confinement) -> Manifest:
    """SELinux and AppArmor settings of a pod or container, as fields of a security context."""
    return wanted.model_dump(by_alias=True, exclude_none=True, include={"se_linux_options", "app_armor_profile"})


def pulled(platform: Platform, wanted: tuple[LocalName, ...]) -> Manifest:
    """Image pull secrets as fields of a pod: the operator's own and the resource's."""
    names = dict.fromkeys((*platform.config.image_pull_secrets, *(item.name for item in wanted)))
    return {"imagePullSecrets": [{"name": name} for name in names]} if names else {}


def tolerations(wanted: tuple[Toleration, ...]) -> list[Manifest]:
    """Tolerations as in a pod, the one of the operator's own taint first.

    Nodes that it taints must still be watched, and a claim may tie Fleet or Echo to one of them: without their
    evidence no node would ever be released.
    """
    own: Manifest = {"key": STRAGGLER_TAINT, "operator": "Exists"}
    return [own, *(item.model_dump(by_alias=True, exclude_none=True) for item in wanted)]


def locked_down() -> Manifest:
    """Security context of a container without any privilege."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def unprivileged() -> Manifest:
    """Security context of a pod without any privilege."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container(
    name: str, image: str, args: list[str], ports: Mapping[str, int], wanted: Resources, mounts: list[Manifest],
    **more: Any,
) -> Manifest:  # fmt: skip
    """A container without any privilege, unless `more` has another security context; ports by name."""
    return {
        "name": name,
        "image": image,
        "args": args,
        "ports": [{"name": port, "containerPort": number, "protocol": "TCP"} for port, number in ports.items()],
        "resources": resources(wanted),
        "securityContext": locked_down(),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # conditions show why a container ended
        "volumeMounts": mounts,
        **more,
    }


def probe(
    path: str, port: str | int, *, period: int = 10, failures: int = 3, scheme: Literal["HTTP", "HTTPS"] = "HTTP"
) -> Manifest:
    """An HTTP probe; over HTTPS the kubelet accepts any certificate."""
    return {
        "httpGet": {"path": path, "port": port, "scheme": scheme},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": 3,
    }


def service_account(owner: Owner, component: str) -> Manifest:
    """A ServiceAccount without rights and without a token: no component in a pod uses the API server."""
    return manifest(owner, "v1", "ServiceAccount", component, component, {"automountServiceAccountToken": False})


def workload(
    owner: Owner, kind: str, component: str, version: str, pod: Manifest, spec: Manifest, config_digest: str = ""
) -> Manifest:
    """A Deployment, DaemonSet or StatefulSet; `spec` has what is specific to it.

    Its pods have no access to the API server. They restart when the digest of their settings changes; without
    settings, when the pod template changes.
    """
    pod = {
        "serviceAccountName": owner.child(component), "automountServiceAccountToken": False,
        "enableServiceLinks": False, **pod,
    }  # fmt: skip
    metadata = {
        "labels": labels(owner, component, version), "annotations": {CONFIG_HASH: config_digest or digest(pod)}
    }  # fmt: skip
    whole = {
        "revisionHistoryLimit": 3,
        **spec,
        "selector": {"matchLabels": selector(owner, component)},
        "template": {"metadata": metadata, "spec": pod},
    }
    return manifest(owner, "apps/v1", kind, component, component, {"spec": whole})


def disruption_budget(owner: Owner, component: str) -> Manifest:
    """The PodDisruptionBudget: one pod may always be evicted, as anything stricter would block every drain."""
    body = {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(owner, component)}}}
    return manifest(owner, "policy/v1", "PodDisruptionBudget", component, component, body)


def placed(node_selector: dict[str, str], wanted: tuple[Toleration, ...]) -> Manifest:
    """Where a pod may run, as fields of a pod."""
    selected: Manifest = {"nodeSelector": dict(node_selector)} if node_selector else {}
    return {**selected, "tolerations": tolerations(wanted)}


def service(owner: Owner, component: str, ports: dict[str, tuple[int, str]], *, headless: bool = False) -> Manifest:
    """A ClusterIP Service; ports by name, with their application protocol."""
    spec: Manifest = {
        "type": "ClusterIP",
        "selector": selector(owner, component),
        "ports": [
            {"name": name, "port": port, "targetPort": name, "protocol": "TCP", "appProtocol": protocol}
            for name, (port, protocol) in ports.items()
        ],
    }
    if headless:
        spec["clusterIP"] = "None"
    suffix = f"{component}-pods" if headless else component
    return manifest(owner, "v1", "Service", suffix, component, {"spec": spec})


def ingress(owner: Owner, component: str, wanted: Ingress, paths: Mapping[str, str]) -> Manifest:
    """The Ingress for a component's Service: its ports by path."""
    routed = [
        {
            "path": path, "pathType": "Prefix",
            "backend": {"service": {"name": owner.child(component), "port": {"name": port}}},
        }
        for path, port in paths.items()
    ]  # fmt: skip
    body = {
        "tls": [{"hosts": [wanted.host], "secretName": wanted.tls_secret}],
        "rules": [{"host": wanted.host, "http": {"paths": routed}}],
        **({"ingressClassName": wanted.class_name} if wanted.class_name else {}),
    }
    child = manifest(owner, "networking.k8s.io/v1", "Ingress", component, component, {"spec": body})
    child["metadata"]["annotations"] |= wanted.annotations
    return sealed(child)


def http_route(
    owner: Owner, platform: Platform, component: str, wanted: Gateway | None, paths: Mapping[str, int]
) -> Manifest | None:
    """The HTTPRoute for a component's Service, where the Gateway API is: ports by path."""
    if wanted is None or not platform.http_routes:
        return None
    parents = [
        {
            "group": HTTP_ROUTE.group, "kind": "Gateway", "name": parent.name,
            "namespace": parent.namespace or owner.namespace,
            **({"sectionName": parent.section_name} if parent.section_name else {}),
        }
        for parent in wanted.parent_refs
    ]  # fmt: skip
    by_port: dict[int, list[Manifest]] = {}
    for path, port in paths.items():
        by_port.setdefault(port, []).append({"path": {"type": "PathPrefix", "value": path}})
    backend = {"group": "", "kind": "Service", "name": owner.child(component), "weight": 1}
    routed = [{"matches": matches, "backendRefs": [{**backend, "port": port}]} for port, matches in by_port.items()]
    body = {"parentRefs": parents, "hostnames": [wanted.hostname], "rules": routed}
    version = f"{HTTP_ROUTE.group}/{HTTP_ROUTE.version}"
    return manifest(owner, version, HTTP_ROUTE.name, component, component, {"spec": body})


def service_monitor(
    owner: Owner, platform: Platform, component: str, ports: tuple[str, ...], wanted: ServiceMonitors, **how: Any
) -> Manifest | None:
    """A ServiceMonitor, where the Prometheus operator is. `how`: further fields of its endpoints, such as TLS."""
    if not (wanted.enabled and platform.service_monitors):
        return None
    spec = {
        "selector": {"matchLabels": selector(owner, component)},
        "endpoints": [{"port": port, "interval": wanted.interval, **how} for port in ports],
    }
    child = manifest(owner, "monitoring.coreos.com/v1", "ServiceMonitor", component, component, {"spec": spec})
    child["metadata"]["labels"] |= wanted.labels
    return sealed(child)
