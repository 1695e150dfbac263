"""The values of the Helm chart: defaults, meaning and schema."""

from dataclasses import dataclass
from typing import Any, Final

import yaml

from ingero_operator.api.v1alpha1 import Policy
from ingero_operator.kinds import Manifest
from ingero_operator.render.images import COMPONENTS, LOCAL
from ingero_operator.settings import OperatorConfig

AGENT_PRIORITY_CLASS: Final = "ingero-agents"
TEXT: Final = {"type": "string"}
NAME: Final = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"}
NAMESPACE: Final = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
DIGEST: Final = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
NAME_OR_EMPTY: Final = {"anyOf": [{"const": ""}, NAME]}
PLACEMENT: Final = ("nodeSelector", "tolerations", "affinity")
"""Values that say on which nodes the operator's pods may run, as in a pod."""
OF_DEPLOYMENT: Final = object()
"""The default is what the Deployment of the installation has."""

NOTES: Final = """\
The operator of ingero {{ .Chart.AppVersion }} runs in the namespace {{ .Release.Namespace }}.

{{- if eq .Values.image.registry "localhost" }}

Its image is not published: no registry serves `localhost`. Push the images of `make images` to your registry and set
image.registry, or load them into the nodes.
{{- end }}

Wait until it runs, then create a FleetCluster. Its namespace must admit the tracing pods:

  kubectl -n {{ .Release.Namespace }} rollout status deployment/ingero-operator
  kubectl apply -f - <<'YAML'
  apiVersion: v1
  kind: Namespace
  metadata:
    name: {{ first (append .Values.watchNamespaces "ingero") }}
    labels: {pod-security.kubernetes.io/enforce: privileged}
  ---
  apiVersion: ingero.io/v1alpha1
  kind: FleetCluster
  metadata: {name: prod, namespace: {{ first (append .Values.watchNamespaces "ingero") }}}
  spec: {clusterId: prod}
  YAML
  kubectl get fleetclusters --all-namespaces

Helm does not upgrade CRDs. Before `helm upgrade` to another version of the chart:

  helm show crds CHART | kubectl apply --server-side --force-conflicts -f -

Before `helm uninstall`, delete the FleetClusters, so that the operator removes their taints.
"""


def _record(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _items(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


@dataclass(frozen=True)
class ChartValue:
    """One value at the top of values.yaml."""

    name: str
    default: Any
    schema: dict[str, Any]
    meaning: str


VALUES: Final = (
    ChartValue(
        "image",
        {"registry": LOCAL, "digests": {}, "pullSecrets": []},
        _record(
            {
                "registry": {"type": "string", "pattern": "[^/]$"},
                "digests": _record(dict.fromkeys(("operator", *COMPONENTS), DIGEST)),
                "pullSecrets": _items(NAME),
            }
        ),
        "registry: registry, and path in it, of the operator's image and of all that it creates; `localhost` is\n"
        "served by none. digests: `operator`, `fleet`, `agent`, `sink` and `echo`, each as sha256:…. pullSecrets:\n"
        "names of Secrets for the registry, in the release's namespace and in those of FleetClusters and EchoStores.",
    ),
    ChartValue(
        "replicas", OF_DEPLOYMENT, {"type": "integer", "minimum": 0}, "One leads by the Lease, the others stand by."
    ),
    ChartValue("resources", OF_DEPLOYMENT, {"type": "object"}, "Of the operator's container."),
    ChartValue("priorityClassName", OF_DEPLOYMENT, NAME_OR_EMPTY, "Of the operator's pods."),
    ChartValue(
        "nodeSelector", {}, {"type": "object", "additionalProperties": TEXT}, "Nodes that the operator may run on."
    ),
    ChartValue(
        "tolerations", [], _items({"type": "object"}), "Taints that the operator's pods tolerate, as in a pod."
    ),
    ChartValue("affinity", {}, {"type": "object"}, "Affinity of the operator's pods, as in a pod."),
    ChartValue(
        "agentPriorityClass",
        AGENT_PRIORITY_CLASS,
        NAME_OR_EMPTY,
        f"PriorityClass of the agents. The chart makes `{AGENT_PRIORITY_CLASS}`; another must exist. Empty: none.",
    ),
    ChartValue(
        "watchNamespaces",
        [],
        _items(NAMESPACE),
        "Namespaces whose resources are reconciled; all if empty. They must exist: the chart makes a Role in each.\n"
        "The operator then has no right to Secrets and workloads of other namespaces.",
    ),
    ChartValue(
        "minEncryption",
        str(OperatorConfig.model_fields["min_encryption"].default.value),
        {"type": "string", "enum": [policy.value for policy in Policy]},
        "Least that must vouch for encryption at rest anywhere in the cluster.",
    ),
    ChartValue(
        "taints",
        {"enabled": True, "paused": False},
        _record({"enabled": {"type": "boolean"}, "paused": {"type": "boolean"}}),
        "enabled: false removes every taint of the operator and sets no new one. paused: true sets no new one.",
    ),
    ChartValue(
        "serviceMonitor",
        {"enabled": False, "interval": "30s", "labels": {}},
        _record(
            {
                "enabled": {"type": "boolean"},
                "interval": {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"},
                "labels": {"type": "object", "additionalProperties": TEXT},
            }
        ),
        "ServiceMonitor of the Prometheus Operator for the operator's own metrics; its CRD must exist.",
    ),
    ChartValue(
        "extraArgs",
        [],
        _items(TEXT),
        "More flags of `ingero-operator run`, after those of the chart: the last one of a name decides.",
    ),
    ChartValue(
        "extraEnv",
        [],
        _items({"type": "object", "required": ["name"], "properties": {"name": TEXT}}),
        "More environment variables of the operator's container, as in a pod.",
    ),
)


def _default(value: ChartValue, deployment: Manifest) -> Any:
    if value.default is not OF_DEPLOYMENT:
        return value.default
    pod = deployment["spec"]["template"]["spec"]
    return next(
        holder[value.name] for holder in (deployment["spec"], pod, *pod["containers"]) if value.name in holder
    )


def values_text(deployment: Manifest) -> str:
    """The values with their defaults, each below a comment with its meaning."""
    texts = []
    for value in VALUES:
        comment = "".join(f"# {line}\n" for line in value.meaning.splitlines())
        texts.append(comment + yaml.safe_dump({value.name: _default(value, deployment)}, sort_keys=False))
    return "\n" + "\n".join(texts)


def schema() -> dict[str, Any]:
    """JSON Schema of the values; `global` is what Helm adds where the chart is a dependency."""
    properties = {
        value.name: {**value.schema, "description": " ".join(value.meaning.split())} for value in VALUES
    } | {"global": {"type": "object"}}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "ingero", **_record(properties)}
