"""The CustomResourceDefinitions, from the types."""

from typing import Any, Final

from pydantic import BaseModel

from ingero_contract.kubernetes import GROUP, VERSION
from ingero_operator.api import status, v1alpha1

MAX_NAME = 40
"""Longest name of a resource: its children's names and labels are derived from it."""

_KEPT = {
    "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
    "argocd.argoproj.io/sync-wave": "-2",
    "helm.sh/resource-policy": "keep",
}
_NAME_RULE = {
    "rule": f"self.metadata.name.size() <= {MAX_NAME}",
    "message": f"metadata.name may have at most {MAX_NAME} characters",
}
_CHARACTERS_RULE = {
    "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "message": "metadata.name must be a letter and then letters, digits and dashes: Services are named after it",
}
_CLASS_RULE = {
    "rule": (
        "!has(oldSelf.status) || !has(oldSelf.status.storage) || !has(oldSelf.status.storage.claimUID) || "
        "((has(oldSelf.spec.storage) && has(oldSelf.spec.storage.className)) == "
        "(has(self.spec.storage) && has(self.spec.storage.className)) && "
        "(!has(self.spec.storage) || !has(self.spec.storage.className) || "
        "self.spec.storage.className == oldSelf.spec.storage.className))"
    ),
    "message": "spec.storage.className cannot be changed once a claim exists: make a new store and copy",
}
_RANK = '{"Declared": 0, "ProviderDefault": 1, "Proven": 2}'


def _policy(side: str) -> str:
    path = f"{side}.spec.storage"
    given = f"has({path}) && has({path}.encryption) && has({path}.encryption.policy)"
    return f'{_RANK}[{given} ? {path}.encryption.policy : "Proven"]'


_POLICY_RULE = {
    "rule": (
        "!has(oldSelf.status) || !has(oldSelf.status.storage) || !has(oldSelf.status.storage.claimUID) || "
        f"{_policy('self')} >= {_policy('oldSelf')}"
    ),
    "message": "spec.storage.encryption.policy can only be tightened once a claim exists",
}
_DROPPED_STORAGE_RULE = {
    "rule": (
        "!has(oldSelf.spec.storage) || !has(oldSelf.spec.storage.size) || "
        "(has(self.spec.storage) && has(self.spec.storage.size))"
    ),
    "message": "spec.storage.size cannot be taken away once it is given",
}


def _column(name: str, path: str, priority: int = 0, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}


def _condition(kind: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].status'


_AGE = _column("Age", ".metadata.creationTimestamp", kind="date")


def _definition(
    kind: str,
    plural: str,
    short: str,
    spec: type[Any],
    state: type[Any],
    columns: list[dict[str, Any]],
    rules: list[dict[str, Any]],
    fields: list[str],
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "description": f"{kind}: {(spec.__doc__ or '').strip()}",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(spec, defaults=True),
            # The operator has not seen it yet, and tools that only know kstatus must not take it for ready.
            "status": {**structural(state), "default": {"observedGeneration": -1}},
        },
        "x-kubernetes-validations": rules,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "annotations": dict(_KEPT)},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["ingero"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "selectableFields": [{"jsonPath": field} for field in fields],
                }
            ],
        },
    }


def fleet_clusters() -> dict[str, Any]:
    """fleetclusters.ingero.io"""
    columns = [
        _column("Ready", _condition("Ready")),
        _column("Status", ".status.summary"),
        _column("Fleet", ".status.fleet.ready"),
        _column("Log", ".status.log.state"),
        _column("Agents", ".status.agents.ready"),
        _column("Quorum", _condition("QuorumMet")),
        _column("Threshold", ".status.fleet.threshold"),
        _column("Stragglers", ".status.stragglers.confirmed", kind="integer"),
        _column("Late-Rank-On", ".status.lateRanks[0].node"),
        _column("Tainted", ".status.taints.used"),
        _column("Mode", ".status.taints.mode"),
        _AGE,
        _column("Version", ".status.version", 1),
        _column("Nodes", ".status.fleet.nodes", 1),
        _column("Waiting-Per-Hour", ".status.cost.waitingPerHour", 1),
        _column("Currency", ".status.cost.currency", 1),
        _column("Message", ".status.message", 1),
        _column("Last-Action", ".status.taints.lastAction", 1),
    ]
    return _definition(
        "FleetCluster", "fleetclusters", "fc", v1alpha1.FleetClusterSpec, status.FleetClusterStatus, columns,
        [dict(_NAME_RULE), dict(_CHARACTERS_RULE)], [".spec.clusterId", ".spec.taints.mode"],
    )  # fmt: skip


def echo_stores() -> dict[str, Any]:
    """echostores.ingero.io"""
    columns = [
        _column("Ready", _condition("Ready")),
        _column("Status", ".status.summary"),
        _column("Encrypted", ".status.encryption.verdict"),
        _column("Class", ".status.storage.className"),
        _column("Size", ".status.storage.capacity"),
        _column("Used", ".status.storage.usedBand"),
        _column("Retention", ".status.effective.retention"),
        _AGE,
        _column("Sealed", ".status.sealing.sealedUntil", 1, "date"),
        _column("Volume", ".status.encryption.volume", 1),
        _column("Key", ".status.encryption.key", 1),
        _column("Endpoint", ".status.endpoint", 1),
        _column("Message", ".status.message", 1),
    ]
    return _definition(
        "EchoStore", "echostores", "echo", v1alpha1.EchoStoreSpec, status.EchoStoreStatus, columns,
        [dict(rule) for rule in (_NAME_RULE, _CHARACTERS_RULE, _CLASS_RULE, _POLICY_RULE, _DROPPED_STORAGE_RULE)],
        [".spec.storage.className"],
    )  # fmt: skip


def all_definitions() -> list[dict[str, Any]]:
    """Every CRD of the operator."""
    return [fleet_clusters(), echo_stores()]


_SCHEMA_KEYS: Final = (
    "type", "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "minProperties", "maxProperties", "required", "description",
)  # fmt: skip


def structural(model: type[BaseModel], *, defaults: bool = False) -> dict[str, Any]:
    """The structural schema of a type. With `defaults` the descriptions name the defaults: the API server would write
    defaults of the schema into objects that users keep in Git."""
    tree = model.model_json_schema(by_alias=True, mode="validation")
    return _flatten(tree, tree.get("$defs", {}), defaults)


def _flatten(node: dict[str, Any], definitions: dict[str, Any], defaults: bool) -> dict[str, Any]:
    description = node.get("description")
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return _flatten({**target, **({"description": description} if description else {})}, definitions, defaults)
    if "anyOf" in node:
        options = [option for option in node["anyOf"] if option.get("type") != "null"]
        if len(options) != 1:
            raise ValueError(f"a structural schema has no union: {node}")
        whole = {**options[0], **({"description": description} if description else {})}
        return _flatten(whole, definitions, defaults)
    out: dict[str, Any] = {key: node[key] for key in _SCHEMA_KEYS if key in node}
    out |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    for numeric, boolean, bound in (
        ("exclusiveMinimum", "exclusiveMinimum", "minimum"),
        ("exclusiveMaximum", "exclusiveMaximum", "maximum"),
    ):
        if numeric in node:
            out[bound], out[boolean] = node[numeric], True
    if "const" in node:
        out["enum"] = [node["const"]]
    if "properties" in node:
        out["properties"] = {
            name: _property(child, definitions, defaults) for name, child in node["properties"].items()
        }
    if node.get("type") == "object" and isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _flatten(node["additionalProperties"], definitions, defaults)
    elif node.get("type") == "object" and "patternProperties" in node:
        (values,) = node["patternProperties"].values()
        out["additionalProperties"] = _flatten(values, definitions, defaults)
    if "items" in node:
        out["items"] = _flatten(node["items"], definitions, defaults)
    if isinstance(out.get("description"), str):
        out["description"] = " ".join(out["description"].split())
    return out


def _property(node: dict[str, Any], definitions: dict[str, Any], defaults: bool) -> dict[str, Any]:
    out = _flatten(node, definitions, defaults)
    default = _default(node, definitions) if defaults else ""
    if default:
        out["description"] = f"{out.get('description', '')} Default: {default}.".strip()
    return out


def _default(node: dict[str, Any], definitions: dict[str, Any]) -> str:
    """A default as text; empty where the default is empty, or where the fields of an object describe their own."""
    value = node.get("default")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        parts = definitions[node["$ref"].rsplit("/", 1)[-1]].get("properties", {}) if "$ref" in node else {}
        return ", ".join(
            f"{key}={item}"
            for key, item in value.items()
            if item not in (None, {}, []) and item != parts.get(key, {}).get("default")
        )
    return "" if value in (None, "", [], ()) else str(value)
