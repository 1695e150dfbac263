"""The operator's own installation: `install.yaml` with the rights and the version filled in."""

from importlib.resources import files
from typing import Final

import yaml

from ingero_contract.kubernetes import GROUP
from ingero_operator.kinds import CHILDREN, HTTP_ROUTE, SERVICE_MONITOR, Manifest

NAMESPACE: Final = "ingero-system"
OPERATOR: Final = "ingero-operator"
GUARD: Final = "ingero-operator-nodes"
"""The admission policy that limits the operator's writes to a node."""
PROOFS: Final = "volumeproofs"
"""A permission without a kind: an account that may `create` it in the whole cluster may write volume proofs. The
admission policy can check it wherever the operator is installed."""

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
    *(
        (kind.group, (kind.plural,), ("get", "create", "patch", "delete"), "children, where known")
        for kind in (HTTP_ROUTE, SERVICE_MONITOR)
    ),
    ("", ("nodes",), ("get", "list", "watch", "patch"), "straggler taints; the admission policy bounds the patch"),
    ("", ("nodes/status",), ("patch",), "the condition `ingero.io/Straggler`; the admission policy bounds the patch"),
    ("storage.k8s.io", ("storageclasses",), ("get", "list", "watch"), "the encryption gate"),
    ("", ("persistentvolumes",), ("get",), "the encryption gate"),
    ("", ("secrets",), ("get",), "the Secrets that resources name"),
    ("", ("pods",), ("list",), "why pods do not run: their status, by label, while a workload is not available"),
    ("", ("namespaces",), ("get",), "what pods a namespace admits"),
    ("", ("events",), ("get", "create", "patch"), "Events for users"),
)
"""API group, resources, verbs and purpose; docs/rbac.md is generated from it."""

WHOLE_CLUSTER: Final = frozenset(
    {"nodes", "nodes/status", "storageclasses", "persistentvolumes", "namespaces", PROOFS, "events"}
)  # fmt: skip
"""Resources without a namespace; also Events, because those about nodes are in `default`."""


def everything(version: str) -> list[Manifest]:
    """The whole installation without the CRDs."""
    text = files(__package__).joinpath("install.yaml").read_text()
    found: list[Manifest] = list(yaml.safe_load_all(text.replace(":VERSION", f":{version}")))
    for item in found:
        if (item["kind"], item["metadata"]["name"]) == ("ClusterRole", OPERATOR):
            item["rules"] = rules(True, False)
    return found


def rules(*scopes: bool) -> list[Manifest]:
    """Rules that need the whole cluster (true), rules for which a namespace is enough (false), or both."""
    return [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
        for group, resources, verbs, _ in RIGHTS
        if (resources[0] in WHOLE_CLUSTER) in scopes
    ]


def namespace_access(namespace: str) -> list[Manifest]:
    """Rights of the operator in one watched namespace, where it does not watch all."""
    group, name = "rbac.authorization.k8s.io", f"{OPERATOR}-resources"
    wave = {"argocd.argoproj.io/sync-wave": "-1"}
    metadata = {
        "name": name, "labels": {"app.kubernetes.io/name": OPERATOR}, "annotations": wave, "namespace": namespace
    }  # fmt: skip
    role = {"apiGroup": group, "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": NAMESPACE}
    return [
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules(False)},
        {
            "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata,
            "roleRef": role, "subjects": [subject],
        },
    ]  # fmt: skip
