"""What both reconcilers read from a custom resource: its key, its spec, whether it is paused. Pure."""

from typing import TypeVar

from pydantic import ValidationError

from ingero_operator.api.base import Part
from ingero_operator.api.v1alpha1 import PAUSED, FleetClusterSpec, Mode
from ingero_operator.cache import OwnerKey
from ingero_operator.errors import ReconcileError
from ingero_operator.kinds import Manifest
from ingero_operator.render.common import Owner

Spec = TypeVar("Spec", bound=Part)


def owner_from(resource: Manifest) -> Owner:
    """The owner of a resource's children."""
    metadata = resource["metadata"]
    return Owner(kind=resource["kind"], namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


def key_from(resource: Manifest) -> OwnerKey:
    """The key of a resource."""
    return resource["kind"], resource["metadata"]["namespace"], resource["metadata"]["name"]


def is_paused(resource: Manifest) -> bool:
    """Whether a user asked the operator to leave everything of this resource as it is."""
    return (resource["metadata"].get("annotations") or {}).get(PAUSED) == "true"


def is_deleting(resource: Manifest) -> bool:
    """Whether the resource is being deleted."""
    return "deletionTimestamp" in resource["metadata"]


def parse(kind: type[Spec], resource: Manifest) -> Spec | ReconcileError:
    """The spec, or what is wrong with it: the object may be older than a rule of the schema, which has none for the
    keys of maps."""
    try:
        return kind.model_validate(resource.get("spec") or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, wrong = [str(part) for part in first["loc"]], first["msg"]
        if place[-1:] == ["[key]"]:
            *place, key, _ = place
            wrong = f"{key[:100]!r} cannot be the key of a label or annotation: PREFIX/NAME, or NAME alone"
        return ReconcileError("InvalidSpec", f"spec.{'.'.join(place)}: {wrong}")


def readable_spec(resource: Manifest, why: str) -> FleetClusterSpec:
    """The readable part of an invalid spec: enough to keep and remove the taints that are there, and never to add
    one."""
    tree = {"clusterId": "unreadable", **(resource.get("spec") or {})}
    while True:
        try:
            spec = FleetClusterSpec.model_validate(tree)
            break
        except ValidationError as error:
            places = {item["loc"][0] for item in error.errors(include_url=False) if item["loc"]} & tree.keys()
            tree = {key: value for key, value in tree.items() if key not in places} if places else {}
            tree.setdefault("clusterId", "unreadable")
    # A mode that cannot be read weakens no taint, and removes no condition.
    unread = "taints" in (resource.get("spec") or {}) and "taints" not in tree
    update: Manifest = {"pause_requests": (why,)}
    if unread:
        update |= {"mode": Mode.NO_SCHEDULE, "condition": conditions_wanted(resource)}
    taints = spec.taints.model_copy(update=update)
    return spec.model_copy(update={"taints": taints})


def conditions_wanted(resource: Manifest) -> bool:
    """Whether a FleetCluster asks for conditions on its nodes, read without a schema."""
    taints = (resource.get("spec") or {}).get("taints")
    return isinstance(taints, dict) and taints.get("condition") is True


def soonest(*waits: float | None) -> float | None:
    """The shortest of some waits in seconds, `None` when there is none."""
    return min((wait for wait in waits if wait is not None), default=None)
