"""Which provider a node runs at: what the operator of the fleet says, then what the agent found, then the default."""

import fnmatch
import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import yaml

from ingero_detect.memory import NodeKey

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_DASHED: Final = re.compile(r"(?:^|[.-])ip-(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})(?:[.-]|$)")


class ProvidersError(Exception):
    """The file cannot be used; the text says where it is wrong."""


@dataclass(frozen=True)
class Rule:
    """Nodes of one provider: every condition that is given must hold, any of its patterns will do."""

    provider: str
    nodes: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    def holds(self, node: NodeKey) -> bool:
        """Whether a node belongs here."""
        cluster, name = node
        if self.clusters and not any(fnmatch.fnmatchcase(cluster, pattern) for pattern in self.clusters):
            return False
        if self.nodes and not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.nodes):
            return False
        if self.networks:
            address = address_of(name)
            return address is not None and any(address in network for network in self.networks)
        return True


@dataclass(frozen=True)
class ProviderMap:
    """The rules in order; the first that holds decides."""

    rules: tuple[Rule, ...] = ()
    default: str = ""

    def find(self, node: NodeKey, reported: str) -> str:
        """The provider of a node; empty when nobody knows."""
        for rule in self.rules:
            if rule.holds(node):
                return rule.provider
        return reported or self.default


@lru_cache(4096)
def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a node's name is, or spells as in `ip-10-0-1-5.ec2.internal`."""
    found = _DASHED.search(name)
    try:
        return ipaddress.ip_address(".".join(found.groups()) if found else name)
    except ValueError:
        return None


def parse_providers(text: str, default: str = "") -> ProviderMap:
    """Read rules from YAML: a list of `{provider, nodes, clusters, networks}`; raises `ProvidersError`."""
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ProvidersError(f"not YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        return ProviderMap((), default)
    if not isinstance(tree, list):
        raise ProvidersError("a list of rules was expected, each with provider and nodes, clusters or networks")
    return ProviderMap(tuple(_rule(item, f"rule {number}") for number, item in enumerate(tree, 1)), default)


def _rule(item: Any, place: str) -> Rule:
    if not isinstance(item, dict) or not isinstance(item.get("provider"), str) or not item["provider"]:
        raise ProvidersError(f"{place}: provider: a name was expected")
    unknown = sorted(str(key) for key in item if key not in ("provider", "nodes", "clusters", "networks"))
    if unknown:
        raise ProvidersError(f"{place}: {unknown[0]}: no such key")
    texts: dict[str, tuple[str, ...]] = {}
    for key in ("nodes", "clusters", "networks"):
        value = item.get(key) or []
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ProvidersError(f"{place}: {key}: a list of texts was expected")
        texts[key] = tuple(value)
    if not any(texts.values()):
        raise ProvidersError(f"{place}: needs nodes, clusters or networks")
    try:
        networks = tuple(ipaddress.ip_network(text) for text in texts["networks"])
    except ValueError as error:
        raise ProvidersError(f"{place}: networks: {error}") from None
    return Rule(item["provider"], texts["nodes"], texts["clusters"], networks)
