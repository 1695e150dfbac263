"""Fleet's topology file from labels of nodes. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

MAX_BYTES: Final = 900_000
"""Longest text: a ConfigMap holds 1 MiB with everything that is around it."""

KEY: Final = "topology.json"


def topology_of(nodes: Iterable[tuple[str, Mapping[str, str]]], keys: Sequence[str]) -> str:
    """The file's text for these nodes and their labels; empty if no node has the first label.

    `keys`: labels that name the switches above a node, the nearest first. A switch's name has the names of those
    above it in front, because values of labels need not differ between racks.
    """
    nearest, above = dict[str, str](), dict[str, str]()
    for node, labels in sorted(nodes, key=lambda item: item[0]):
        values: list[str] = []
        for key in keys:
            if not labels.get(key):
                break
            values.append(labels[key])
        names = ["/".join(reversed(values[place:])) for place in range(len(values))]
        if names:
            nearest[node] = names[0]
            above.update(pairwise(names))
    return json.dumps({"nodes": nearest, "switches": above}, separators=(",", ":")) if nearest else ""
