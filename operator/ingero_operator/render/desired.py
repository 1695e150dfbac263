"""All children of a resource, in the order in which they are applied."""

from collections.abc import Iterable
from typing import Final

from ingero_operator.api.v1alpha1 import EchoStoreSpec, FleetClusterSpec
from ingero_operator.cache import WORKLOADS
from ingero_operator.kinds import Manifest
from ingero_operator.plan import ChildKey
from ingero_operator.render import agents, echo, fleet, network, readers, receivers
from ingero_operator.render.common import Owner, Platform

ORDER: Final = (
    "ServiceAccount", "ConfigMap", "PersistentVolumeClaim", "Service", "NetworkPolicy", "Deployment", "StatefulSet",
    "DaemonSet", "HorizontalPodAutoscaler", "PodDisruptionBudget", "Ingress", "HTTPRoute", "ServiceMonitor",
)  # fmt: skip
"""Order of kinds: what a pod needs comes before the pod."""


_NOTHING: Final = echo.EchoInputs()


def split(
    children: list[Manifest], observed: Iterable[ChildKey], refused: bool
) -> tuple[list[Manifest], frozenset[ChildKey]]:
    """The children to apply, and the keys that must not be deleted: workloads with a refused image stay unchanged."""
    if not refused:
        return children, frozenset()
    return [child for child in children if child["kind"] not in WORKLOADS], frozenset(
        key for key in observed if key[0] in WORKLOADS
    )


def _ordered(children: list[Manifest | None]) -> list[Manifest]:
    return sorted((child for child in children if child), key=lambda child: ORDER.index(child["kind"]))


def of_fleet_cluster(
    owner: Owner, spec: FleetClusterSpec, platform: Platform, around: fleet.FleetInputs
) -> list[Manifest]:
    """The children of a FleetCluster."""
    return _ordered(
        [
            *fleet.children(owner, spec, platform, around),
            *receivers.children(owner, spec, platform, around),
            *agents.children(owner, spec, platform),
            *network.of_fleet_cluster(owner, spec, platform, around),
        ]
    )


def of_echo_store(
    owner: Owner, spec: EchoStoreSpec, platform: Platform, around: echo.EchoInputs = _NOTHING
) -> list[Manifest]:
    """The children of an EchoStore without claim and proof, which the gate decides on."""
    return _ordered(
        [
            *echo.children(owner, spec, platform, around),
            *readers.children(owner, spec, platform, around),
            *network.of_echo_store(owner, spec, platform, around),
        ]
    )
