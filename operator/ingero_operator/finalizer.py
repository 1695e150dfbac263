"""The finalizer of a FleetCluster, set while nodes may carry its taints; resourceVersion guards every write."""

from ingero_contract.kubernetes import TAINT_FINALIZER
from ingero_operator.api_client import ApiClient, ApiError
from ingero_operator.cache import Cache
from ingero_operator.kinds import FLEET_CLUSTER, Manifest


def has_finalizer(resource: Manifest) -> bool:
    """Whether the resource carries the finalizer."""
    return TAINT_FINALIZER in (resource["metadata"].get("finalizers") or [])


async def add_finalizer(api: ApiClient, cache: Cache, resource: Manifest) -> None:
    """Add the finalizer. Raises `ApiError`."""
    finalizers = [*(resource["metadata"].get("finalizers") or []), TAINT_FINALIZER]
    await _write(api, cache, resource, finalizers)


async def remove_finalizer(api: ApiClient, cache: Cache, resource: Manifest) -> None:
    """Remove the finalizer; succeeds if the resource is already gone. Raises `ApiError`."""
    finalizers = [item for item in resource["metadata"].get("finalizers") or [] if item != TAINT_FINALIZER]
    try:
        await _write(api, cache, resource, finalizers)
    except ApiError as error:
        if not error.not_found:
            raise


async def _write(api: ApiClient, cache: Cache, resource: Manifest, finalizers: list[str]) -> None:
    metadata = resource["metadata"]
    body = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}
    response = await api.merge(FLEET_CLUSTER, metadata["namespace"], metadata["name"], body)
    cache.put(FLEET_CLUSTER.name, response)
    metadata["finalizers"] = finalizers
    metadata["resourceVersion"] = response["metadata"]["resourceVersion"]
