"""The operator's own installation: namespace, rights, Deployment, admission policies, Kustomize base."""

from typing import Final

import yaml

from ingero_contract.kubernetes import GROUP, STRAGGLER_TAINT
from ingero_operator.kinds import CHILDREN, SERVICE_MONITOR, Manifest
from ingero_operator.render.common import API, NAME, USER, locked_down, probe
from ingero_operator.render.images import IMAGE, LOCAL, image_name

NAMESPACE: Final = "ingero-system"
WATCHED: Final = "ingero"
"""Namespace of the examples' resources."""
OPERATOR: Final = "ingero-operator"
AGENTS: Final = "ingero-agents"
_WAVE: Final = {"argocd.argoproj.io/sync-wave": "-1"}
"""ArgoCD sync wave: after the CRDs and before the resources that the operator manages."""
_LABELS: Final = {NAME: OPERATOR}
PROOFS: Final = "volumeproofs"
"""A permission without a kind: an account that may `create` it in the whole cluster may write volume proofs. The
admission policy can check it wherever the operator is installed."""
GUARD: Final = "ingero-operator-nodes"
_OPERATOR: Final = f'request.userInfo.username.matches("^system:serviceaccount:[^:]+:.*{OPERATOR}")'
"""Expression that matches the operator's account in any namespace and with any prefix or suffix of an overlay, as
overlays do not rewrite expressions. It also matches accounts of that name elsewhere, which does no harm: one policy
only forbids, the other also requires a permission."""


def _object(api: str, kind: str, name: str, body: Manifest, *, namespaced: bool = True) -> Manifest:
    metadata: Manifest = {"name": name, "labels": dict(_LABELS), "annotations": dict(_WAVE)}
    if namespaced:
        metadata["namespace"] = NAMESPACE
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def namespace() -> Manifest:
    """The operator's namespace; nothing in it needs a privilege."""
    child = _object("v1", "Namespace", NAMESPACE, {}, namespaced=False)
    child["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
    return child


RIGHTS: Final[tuple[tuple[str, tuple[str, ...], tuple[str, ...], str], ...]] = (
    (GROUP, ("fleetclusters", "echostores"), ("get", "list", "watch"), "what users ask for"),
    (GROUP, ("fleetclusters",), ("patch",), "the finalizer, while nodes carry a taint"),
    (GROUP, ("fleetclusters/status", "echostores/status"), ("patch",), "what is observed"),
    (GROUP, ("fleetclusters/finalizers", "echostores/finalizers"), ("update",), "owner references that block"),
    (GROUP, (PROOFS,), ("create",), "no kind: the admission policy asks for it before a volume proof is written"),
    *(
        (kind.group, (kind.plural,), ("get", "list", "watch", "create", "patch", "delete"), f"children: {kind.name}")
        for kind in CHILDREN
    ),
    (SERVICE_MONITOR.group, (SERVICE_MONITOR.plural,), ("get", "create", "patch", "delete"), "children, where known"),
    ("", ("nodes",), ("get", "list", "watch", "patch"), "straggler taints; the admission policy bounds the patch"),
    ("storage.k8s.io", ("storageclasses",), ("get", "list", "watch"), "the encryption gate"),
    ("", ("persistentvolumes",), ("get",), "the encryption gate"),
    ("", ("secrets",), ("get",), "the Secrets that resources name"),
    ("", ("namespaces",), ("get",), "what pods a namespace admits"),
    ("", ("events",), ("get", "create", "patch"), "Events for users"),
)
"""API group, resources, verbs and purpose; docs/rbac.md is generated from it."""

WHOLE_CLUSTER: Final = frozenset(
    {"nodes", "storageclasses", "persistentvolumes", "namespaces", PROOFS, "events"}
)  # fmt: skip
"""Resources without a namespace; also Events, because those about nodes are in `default`."""
_RBAC: Final = "rbac.authorization.k8s.io"


def _rules(*scopes: bool) -> list[Manifest]:
    """Rules that need the whole cluster, rules for which a namespace is enough, or both."""
    return [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
        for group, resources, verbs, _ in RIGHTS
        if (resources[0] in WHOLE_CLUSTER) in scopes
    ]


def cluster_role(*, namespaced: bool = False) -> Manifest:
    """Rights outside the operator's own namespace; `namespaced`: without those that `namespace_access` grants."""
    rules = _rules(True) if namespaced else _rules(True, False)
    return _object(f"{_RBAC}/v1", "ClusterRole", OPERATOR, {"rules": rules}, namespaced=False)


def namespace_access(namespace: str) -> list[Manifest]:
    """Rights of the operator in one watched namespace, where it does not watch all."""
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": NAMESPACE}
    found = [
        _object(f"{_RBAC}/v1", "Role", f"{OPERATOR}-resources", {"rules": _rules(False)}),
        _object(
            f"{_RBAC}/v1", "RoleBinding", f"{OPERATOR}-resources",
            {"roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": f"{OPERATOR}-resources"}, "subjects": [subject]},
        ),
    ]  # fmt: skip
    for item in found:
        item["metadata"]["namespace"] = namespace
    return found


def user_roles() -> list[Manifest]:
    """Rights of users. Users who may view a namespace see both kinds; users who may edit it may create EchoStores. A
    FleetCluster can taint nodes, which the whole cluster shares, so its role is aggregated to no other."""
    look, change = ["get", "list", "watch"], ["create", "update", "patch", "delete", "deletecollection"]

    def role(name: str, resources: list[str], verbs: list[str], *into: str) -> Manifest:
        rules = [{"apiGroups": [GROUP], "resources": resources, "verbs": verbs}]
        found = _object(f"{_RBAC}/v1", "ClusterRole", name, {"rules": rules}, namespaced=False)
        found["metadata"]["labels"] |= {f"{_RBAC}/aggregate-to-{item}": "true" for item in into}
        return found

    return [
        role("ingero-view", ["fleetclusters", "echostores"], look, "view"),
        role("ingero-echostores-edit", ["echostores"], [*look, *change], "edit"),
        role("ingero-fleetclusters-edit", ["fleetclusters"], [*look, *change]),
    ]


def access() -> list[Manifest]:
    """ServiceAccount, roles and bindings."""
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": NAMESPACE}
    group = _RBAC
    lease = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [OPERATOR],
            "verbs": ["get", "update"],
        },
    ]
    return [
        _object("v1", "ServiceAccount", OPERATOR, {}),
        cluster_role(),
        _object(
            f"{group}/v1", "ClusterRoleBinding", OPERATOR,
            {"roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": OPERATOR}, "subjects": [subject]},
            namespaced=False,
        ),
        _object(f"{group}/v1", "Role", OPERATOR, {"rules": lease}),
        _object(
            f"{group}/v1", "RoleBinding", OPERATOR,
            {"roleRef": {"apiGroup": group, "kind": "Role", "name": OPERATOR}, "subjects": [dict(subject)]},
        ),
    ]  # fmt: skip


def deployment(version: str) -> Manifest:
    """Two replicas: one leads by the Lease, the other stands by."""
    container: Manifest = {
        "name": "operator",
        "image": image_name(IMAGE, LOCAL, "operator", version),
        "args": [
            "run",
            "--namespace=$(POD_NAMESPACE)",
            "--identity=$(POD_NAME)",
            f"--listen=0.0.0.0:{API}",
            f"--agent-priority-class={AGENTS}",
        ],
        "env": [
            {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
            for name, path in (("POD_NAME", "metadata.name"), ("POD_NAMESPACE", "metadata.namespace"))
        ],
        "ports": [{"name": "http", "containerPort": API, "protocol": "TCP"}],
        "livenessProbe": {**probe("/healthz", "http", period=20), "initialDelaySeconds": 10},
        "readinessProbe": probe("/readyz", "http"),
        "resources": {"requests": {"cpu": "100m", "memory": "192Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": locked_down(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod: Manifest = {
        "serviceAccountName": OPERATOR,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "priorityClassName": "system-cluster-critical",
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": dict(_LABELS)},
            }
        ],
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}}],
    }
    spec = {
        "replicas": 2,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": dict(_LABELS)},
        "template": {"metadata": {"labels": dict(_LABELS)}, "spec": pod},
    }
    return _object("apps/v1", "Deployment", OPERATOR, {"spec": spec})


def priority_class() -> Manifest:
    """The PriorityClass of the agents: above ordinary pods, so that a full node is watched too; no preemption."""
    body = {
        "value": 1_000_000, "preemptionPolicy": "Never", "globalDefault": False,
        "description": "Agents that watch GPU nodes.",
    }  # fmt: skip
    return _object("scheduling.k8s.io/v1", "PriorityClass", AGENTS, body, namespaced=False)


def disruption_budget() -> Manifest:
    """The PodDisruptionBudget: one replica may always be evicted."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": dict(_LABELS)}}
    return _object("policy/v1", "PodDisruptionBudget", OPERATOR, {"spec": spec})


def metrics_service() -> Manifest:
    """The Service for Prometheus."""
    port = {"name": "http", "port": API, "targetPort": "http", "protocol": "TCP", "appProtocol": "http"}
    return _object("v1", "Service", OPERATOR, {"spec": {"selector": dict(_LABELS), "ports": [port]}})


def _policy(name: str, rules: list[Manifest], conditions: list[Manifest], body: Manifest) -> list[Manifest]:
    api = "admissionregistration.k8s.io/v1"
    policy = {
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": rules},
            "matchConditions": conditions,
            **body,
        }
    }
    binding = {"spec": {"policyName": name, "validationActions": ["Deny"]}}
    return [
        _object(api, "ValidatingAdmissionPolicy", name, policy, namespaced=False),
        _object(api, "ValidatingAdmissionPolicyBinding", name, binding, namespaced=False),
    ]


def _must(expression: str, message: str) -> Manifest:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def node_policy() -> list[Manifest]:
    """The policy that limits the operator's writes to a node to its own taint; roles cannot restrict fields."""
    mine = f't.key == "{STRAGGLER_TAINT}"'
    effects = 't.effect in ["PreferNoSchedule", "NoSchedule"] && t.?value.orValue("").matches("^[0-9a-f]{8}$")'
    variables = {
        "before": "oldObject.spec.?taints.orValue([])",
        "after": "object.spec.?taints.orValue([])",
        "notesBefore": "oldObject.metadata.?annotations.orValue({})",
        "notesAfter": "object.metadata.?annotations.orValue({})",
        "marked": f'variables.after.exists(t, {mine}) || "{STRAGGLER_TAINT}" in variables.notesAfter',
    }
    foreign = f'k != "{STRAGGLER_TAINT}"'
    control_plane = " || ".join(
        f'"{label}" in object.metadata.?labels.orValue({{}})'
        for label in ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
    )
    validations = [
        _must(
            f"variables.before.filter(t, !({mine})) == variables.after.filter(t, !({mine}))",
            "the operator may not change other taints",
        ),
        # A user may have set another taint of our key: ours may be removed from next to it.
        _must(
            f"variables.after.filter(t, {mine}).all(t, t in variables.before || ({effects})) && "
            f"(variables.after.filter(t, {mine}).size() <= 1 || "
            f"variables.after.filter(t, {mine}).size() <= variables.before.filter(t, {mine}).size())",
            "the operator's taint has one of two effects and eight hexadecimal digits",
        ),
        _must(
            "object.spec.?unschedulable.orValue(false) == oldObject.spec.?unschedulable.orValue(false)",
            "the operator may not cordon",
        ),
        _must(
            "object.spec.?providerID.orValue('') == oldObject.spec.?providerID.orValue('') && "
            "object.spec.?podCIDR.orValue('') == oldObject.spec.?podCIDR.orValue('') && "
            "object.spec.?podCIDRs.orValue([]) == oldObject.spec.?podCIDRs.orValue([])",
            "the operator may not change what a node is",
        ),
        _must(
            "object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({})",
            "the operator may not change labels",
        ),
        _must(
            "object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([]) && "
            "object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])",
            "the operator may not change finalizers or owners",
        ),
        _must(
            f"variables.notesAfter.all(k, !({foreign}) || "
            "(k in variables.notesBefore && variables.notesAfter[k] == variables.notesBefore[k])) && "
            f"variables.notesBefore.all(k, !({foreign}) || k in variables.notesAfter)",
            "the operator may not change other annotations",
        ),
        _must(f"!variables.marked || !({control_plane})", "the operator may not mark the control plane"),
    ]
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}]
    body = {
        "variables": [{"name": name, "expression": text} for name, text in variables.items()],
        "validations": validations,
    }
    return _policy(GUARD, rules, [{"name": "operator", "expression": _OPERATOR}], body)


def proof_policy() -> list[Manifest]:
    """The policy that only the operator writes volume proofs. Owner references may change: the garbage collector must
    be able to orphan a proof, which remains the operator's by its labels."""
    rules = [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}
    ]
    ours = 'object.metadata.name.endsWith("-volume-proof")'
    allowed = f'authorizer.group("{GROUP}").resource("{PROOFS}").check("create").allowed()'
    same = " && ".join(
        f"object.{field}.orValue({{}}) == oldObject.{field}.orValue({{}})"
        for field in ("?data", "?binaryData", "metadata.?labels")
    )
    rule = f'({_OPERATOR} && {allowed}) || (request.operation == "UPDATE" && {same})'
    body = {"validations": [_must(rule, "only the operator may write a volume proof")]}
    return _policy("ingero-operator-proofs", rules, [{"name": "proof", "expression": ours}], body)


def everything(version: str) -> list[Manifest]:
    """The whole installation without the CRDs."""
    return [
        namespace(), *access(), *user_roles(), *node_policy(), *proof_policy(), metrics_service(),
        disruption_budget(), priority_class(),
        deployment(version),
    ]  # fmt: skip


def kustomization() -> Manifest:
    """The Kustomize base that installs everything."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../crds", "operator.yaml"],
    }


def namespaced() -> Manifest:
    """The installation for selected namespaces: Roles in each of them instead of rights in all namespaces."""
    variable = {"name": "INGERO_OPERATOR_WATCH_NAMESPACES", "value": WATCHED}
    role = [{"op": "replace", "path": "/rules", "value": cluster_role(namespaced=True)["rules"]}]
    watch = [{"op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": variable}]
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../base", "access.yaml"],
        "patches": [
            {"target": {"kind": kind, "name": OPERATOR}, "patch": yaml.safe_dump(steps, sort_keys=False)}
            for kind, steps in (("ClusterRole", role), ("Deployment", watch))
        ],
    }


def service_monitor() -> Manifest:
    """The ServiceMonitor of the operator; not part of the base, because its CRD may be missing."""
    spec = {"selector": {"matchLabels": dict(_LABELS)}, "endpoints": [{"port": "http", "interval": "30s"}]}
    return _object("monitoring.coreos.com/v1", "ServiceMonitor", OPERATOR, {"spec": spec})


def prometheus_rule(groups: list[Manifest]) -> Manifest:
    """Recording rules and alerts as a PrometheusRule."""
    return _object("monitoring.coreos.com/v1", "PrometheusRule", "ingero", {"spec": {"groups": groups}})


def monitoring() -> Manifest:
    """The Kustomize base of ServiceMonitor and rules."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["servicemonitor.yaml", "rules.yaml"],
    }


def crd_kustomization() -> Manifest:
    """The Kustomize base that installs the CRDs alone."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["fleetclusters.yaml", "echostores.yaml"],
    }
