"""Determines the provider at which a node runs.

The rules of the fleet's operator come first, then the agent's finding, then Kubernetes, then the default.
"""

import fnmatch
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Final, Self

import orjson
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from ingero_contract.identifiers import NodeKey
from ingero_kit.settings import Settings, explain
from ingero_kit.yaml_documents import YamlError, load_yaml

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_DASHED: Final = re.compile(r"(?:^|[.-])ip-(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})(?:[.-]|$)")


class ProvidersError(Exception):
    """The file cannot be used; the text names the place of the error."""


@dataclass(frozen=True)
class NodeLocation:
    """What Kubernetes knows about a node; `provider` is the scheme of its `providerID`, empty where there is none."""

    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[Address, ...] = ()
    provider: str = ""


NOWHERE: Final = NodeLocation()


class Rule(Settings):
    """Nodes of one provider: every given condition must hold, for at least one of its patterns."""

    provider: str = Field(min_length=1)
    """The provider."""
    nodes: tuple[str, ...] = ()
    """Patterns of node names."""
    clusters: tuple[str, ...] = ()
    """Patterns of cluster names."""
    networks: tuple[Annotated[Network, BeforeValidator(ipaddress.ip_network)], ...] = ()
    """Networks of node addresses."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Patterns of the values of node labels, which must all be present."""

    @model_validator(mode="after")
    def _condition(self) -> Self:
        if not (self.nodes or self.clusters or self.networks or self.labels):
            raise ValueError(f"the rule of {self.provider} needs nodes, clusters, networks or labels")
        return self

    def holds(self, node: NodeKey, place: NodeLocation = NOWHERE) -> bool:
        """Whether the rule applies to a node."""
        cluster, name = node
        if self.clusters and not any(fnmatch.fnmatchcase(cluster, pattern) for pattern in self.clusters):
            return False
        if self.nodes and not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.nodes):
            return False
        for key, pattern in self.labels.items():
            value = place.labels.get(key)
            if value is None or not fnmatch.fnmatchcase(value, pattern):
                return False
        if self.networks:
            own = address_of(name)
            addresses = place.addresses if own is None else (*place.addresses, own)
            return any(address in network for address in addresses for network in self.networks)
        return True


@dataclass(frozen=True)
class ProviderMap:
    """The rules in order; the first that applies decides. `places` is by node name."""

    rules: tuple[Rule, ...] = ()
    default: str = ""
    places: Mapping[str, NodeLocation] = field(default_factory=dict)

    def find(self, node: NodeKey, reported: str) -> str:
        """The provider of a node; empty when unknown."""
        place = self.places.get(node[1], NOWHERE)
        for rule in self.rules:
            if rule.holds(node, place):
                return rule.provider
        return reported or place.provider or self.default


@lru_cache(4096)
def address_of(name: str) -> Address | None:
    """The address that a node's name is, or that it contains as in `ip-10-0-1-5.ec2.internal`."""
    found = _DASHED.search(name)
    try:
        return ipaddress.ip_address(".".join(found.groups()) if found else name)
    except ValueError:
        return None


def parse_providers(text: str, default: str = "") -> ProviderMap:
    """Read rules from YAML: a list of `{provider, nodes, clusters, networks, labels}`; raises `ProvidersError`."""
    try:
        tree = load_yaml(text)
    except YamlError as error:
        raise ProvidersError(str(error)) from None
    if tree is None:
        return ProviderMap((), default)
    if not isinstance(tree, list):
        raise ProvidersError("a list of rules was expected, each with provider and what nodes it is for")
    return ProviderMap(tuple(_rule(item, number) for number, item in enumerate(tree, 1)), default)


def _rule(item: Any, number: int) -> Rule:
    try:
        given = {key: value for key, value in item.items() if value is not None} if isinstance(item, dict) else item
        return Rule.model_validate(given)
    except ValidationError as error:
        raise ProvidersError(explain(error, f"rule {number}")) from None


def parse_nodes(data: bytes) -> dict[str, NodeLocation]:
    """What `kubectl get nodes -o json` prints, by node name; raises `ProvidersError`."""
    try:
        tree = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ProvidersError(f"not JSON: {error}") from None
    items = tree.get("items") if isinstance(tree, dict) else None
    if not isinstance(items, list):
        raise ProvidersError("a list of nodes was expected, as kubectl get nodes -o json prints it")
    found: dict[str, NodeLocation] = {}
    for number, item in enumerate(items):
        metadata, spec, status = (_part(item, name) for name in ("metadata", "spec", "status"))
        name, labels = metadata.get("name"), _part(metadata, "labels")
        if not isinstance(name, str) or not name:
            raise ProvidersError(f"items[{number}].metadata.name: a name was expected")
        entries = status.get("addresses")
        entries = entries if isinstance(entries, list) else []
        texts = [entry.get("address") for entry in entries if isinstance(entry, dict)]
        addresses = (address_of(text) for text in texts if isinstance(text, str))
        scheme, divided, _ = str(spec.get("providerID") or "").partition("://")
        found[name] = NodeLocation(
            {key: value for key, value in labels.items() if isinstance(value, str)},
            tuple(dict.fromkeys(address for address in addresses if address is not None)),
            scheme.lower() if divided else "",
        )
    return found


def _part(item: Any, name: str) -> dict[str, Any]:
    part = item.get(name) if isinstance(item, dict) else None
    return part if isinstance(part, dict) else {}
