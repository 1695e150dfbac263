"""The finalizer of a FleetCluster, set while nodes may carry its taints; resourceVersion guards every write."""

from ingero_contract.kubernetes import TAINT_FINALIZER
from ingero_operator.api_client import ApiClient, ApiError
from ingero_operator.cache import Cache
from ingero_operator.kinds import FLEET_CLUSTER, Manifest


def has_finalizer(resource: Manifest) -> bool:
    """Whether the resource carries the finalizer."""
    return TAINT_FINALIZER in (resource["metadata"].get("finalizers") or [])


async def set_finalizer(api: ApiClient, cache: Cache, resource: Manifest, wanted: bool) -> None:
    """Add or remove the finalizer; a resource that is already gone needs none removed. Raises `ApiError`."""
    metadata = resource["metadata"]
    finalizers = [item for item in metadata.get("finalizers") or [] if item != TAINT_FINALIZER]
    finalizers += [TAINT_FINALIZER] if wanted else []
    body = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}
    try:
        response = await api.merge(FLEET_CLUSTER, metadata["namespace"], metadata["name"], body)
    except ApiError as error:
        if wanted or not error.not_found:
            raise
        return
    cache.put(FLEET_CLUSTER.name, response)
    metadata["finalizers"] = finalizers
    metadata["resourceVersion"] = response["metadata"]["resourceVersion"]
