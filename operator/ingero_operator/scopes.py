"""Which nodes each FleetCluster watches, as the others need to know it. Pure.

A reconcile asks this of every other FleetCluster, so a body is decoded once for each of its versions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ingero_operator.api.v1alpha1 import Agents
from ingero_operator.cache import Cache, OwnerKey
from ingero_operator.kinds import FLEET_CLUSTER, Manifest
from ingero_operator.resources import conditions_wanted, is_deleting

_SLACK: Final = 64
"""FleetScopes of deleted FleetClusters that are kept at most."""


class ClusterName(NamedTuple):
    """A cluster id, and the store or endpoint in which it is to be unique."""

    cluster: str
    target: str


@dataclass(frozen=True, slots=True)
class FleetScope:
    """What one FleetCluster claims."""

    selector: Mapping[str, str]
    """Labels of the nodes that it watches."""
    conditions: bool
    """Whether it writes conditions to them."""
    name: ClusterName | None = None
    """What its verdicts are told apart by where it forwards to; `None` where it forwards nothing."""
    made: str = ""
    """When it was made."""


def scope_of(resource: Manifest) -> FleetScope:
    """The scope of a FleetCluster, read without a schema: its spec may be older than the schema."""
    spec, metadata = resource.get("spec") or {}, resource["metadata"]
    agents = spec.get("agents") or {}
    forward, name = (spec.get("fleet") or {}).get("forward") or {}, None
    store = f"EchoStore {metadata.get('namespace')}/{forward.get('echoStore')}" if forward.get("echoStore") else ""
    target = store or forward.get("endpoint")
    if target and not is_deleting(resource):
        name = ClusterName(str(spec.get("clusterId")), str(target))
    return FleetScope(
        name=name,
        made=str(metadata.get("creationTimestamp", "")),
        selector=agents.get("nodeSelector") or Agents().node_selector,
        conditions=conditions_wanted(resource) and not is_deleting(resource),
    )


class FleetScopes:
    """The scopes of all FleetClusters of a cache."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._known: dict[OwnerKey, tuple[int, FleetScope]] = {}

    def others(self, key: OwnerKey) -> Iterator[tuple[OwnerKey, FleetScope]]:
        """Every other FleetCluster and its scope."""
        cache, known = self._cache, self._known
        if len(known) > cache.count(FLEET_CLUSTER.name) + _SLACK:
            known.clear()
        for other in cache.keys(FLEET_CLUSTER.name):
            if other == key:
                continue
            version, found = cache.version(other), known.get(other)
            if found is None or found[0] != version:
                found = known[other] = version, scope_of(cache.get(other) or {"metadata": {}})
            yield other, found[1]

    def earlier_namesake(self, key: OwnerKey, resource: Manifest) -> tuple[OwnerKey, ClusterName] | None:
        """The first FleetCluster made before this one that forwards under the same cluster id to the same place."""
        own = scope_of(resource)
        found = [
            (scope.made, other)
            for other, scope in self.others(key)
            if own.name and scope.name == own.name and (scope.made, other) < (own.made, key)
        ]
        return (min(found)[1], own.name) if own.name and found else None
