"""Fleet's topology file from labels of nodes. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Final

MAX_BYTES: Final = 900_000
"""Longest text: a ConfigMap holds 1 MiB with everything that is around it."""

KEY: Final = "topology.json"


class TopologyUnusable(ValueError):
    """There is nothing to write, or too much."""


def topology_of(nodes: Iterable[tuple[str, Mapping[str, str]]], keys: Sequence[str]) -> str:
    """The file's text for these nodes and their labels. Raises `TopologyUnusable`.

    `keys`: labels that name the switches above a node, the nearest first. A switch's name has the names of those
    above it in front, because values of labels need not differ between racks; `-` stands for a missing one, so that
    switches of different tiers have different names.
    """
    nearest, above = dict[str, str](), dict[str, str]()
    for node, labels in sorted(nodes, key=lambda item: item[0]):
        values = list(takewhile(bool, (labels.get(key, "") for key in keys)))
        path = [*values, *("-" for _ in keys[len(values) :])]
        names = ["/".join(reversed(path[tier:])) for tier in range(len(values))]
        if names:
            nearest[node] = names[0]
            above.update(pairwise(names))
    if not nearest:
        raise TopologyUnusable(f"no node that spec.agents.nodeSelector selects has the label {keys[0]}")
    text = json.dumps({"nodes": nearest, "switches": above}, separators=(",", ":"))
    if len(text) > MAX_BYTES:
        raise TopologyUnusable(
            f"{len(text)} bytes of names do not fit into a ConfigMap; use fewer labels, or topology"
        )
    return text
