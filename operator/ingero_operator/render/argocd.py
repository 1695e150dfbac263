"""Health checks for ArgoCD and an example Application."""

from typing import Any, Final

from ingero_contract.kubernetes import GROUP

HEALTH: Final = """\
-- Health of a FleetCluster or EchoStore for ArgoCD: the status says it all, the first match wins.
local health = { status = "Progressing", message = "waiting for the operator" }
local status = obj.status
if obj.metadata ~= nil and obj.metadata.deletionTimestamp ~= nil then
  health.message = "Pending deletion"
  return health
end
if status == nil or status.conditions == nil or status.observedGeneration == nil
    or status.observedGeneration ~= obj.metadata.generation then
  return health
end
if obj.metadata.annotations ~= nil and obj.metadata.annotations["ingero.io/paused"] == "true" then
  return { status = "Suspended", message = "paused by annotation" }
end
local found = {}
for _, condition in ipairs(status.conditions) do
  found[condition.type] = condition
end
for _, kind in ipairs({ "Stalled", "Degraded" }) do
  if found[kind] ~= nil and found[kind].status == "True" then
    return { status = "Degraded", message = found[kind].message }
  end
end
if found.Reconciling ~= nil and found.Reconciling.status == "True" then
  return { status = "Progressing", message = found.Reconciling.message }
end
if found.Ready ~= nil then
  if found.Ready.status == "True" then
    return { status = "Healthy", message = status.summary }
  end
  health.message = found.Ready.message
end
return health
"""


def config_map_patch() -> dict[str, Any]:
    """Keys for `argocd-cm`: one health check for each kind."""
    keys = [f"resource.customizations.health.{GROUP}_{kind}" for kind in ("FleetCluster", "EchoStore")]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "argocd-cm", "namespace": "argocd"},
        "data": dict.fromkeys(keys, HEALTH),
    }


def application() -> dict[str, Any]:
    """The example Application: CRDs, operator and resources from Git."""
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {
            "name": "ingero",
            "namespace": "argocd",
            "annotations": {"argocd.argoproj.io/compare-options": "ServerSideDiff=true"},
        },
        "spec": {
            "project": "default",
            "source": {
                "repoURL": "https://github.com/ingero-io/ingero",
                "targetRevision": "HEAD",
                "path": "manifests/base",
            },
            "destination": {"server": "https://kubernetes.default.svc", "namespace": "ingero-system"},
            "syncPolicy": {
                "automated": {"prune": True, "selfHeal": True},
                "syncOptions": ["ServerSideApply=true", "SkipDryRunOnMissingResource=true"],
            },
        },
    }
