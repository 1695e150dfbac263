"""Reads a parsed topology: which NIC each rank uses, and which switches are above it. Pure.

A topology has `nics` (a list of `node`, `nic`, `ranks` or `gpus`, and optionally `switch`) and `switches` (every
switch and the one above it). A GPU of a node, such as GPU0, is the rank `NODE:GPU0`.

Where the NICs are not known, `nodes` has the nearest switch of each node instead. All NICs of a node then count as
one, `network`, and the rank `NODE:` stands for all GPUs of the node.
"""

from collections.abc import Iterable
from typing import Any, Final

from ingero_detect.network.links import RankPort

MAX_TIERS: Final = 8
WHOLE_NODE: Final = "network"
"""Name of all NICs of a node."""


class TopologyError(ValueError):
    """A topology cannot be used; the text names the place in it."""


def ports_of(tree: Any) -> dict[str, RankPort]:
    """The ports in a parsed topology."""
    if not isinstance(tree, dict) or ("nics" in tree) == ("nodes" in tree):
        raise TopologyError("either nics or nodes were expected")
    above = tree.get("switches", {})
    if not isinstance(above, dict):
        raise TopologyError("switches: every switch and the one above it were expected")
    if "nodes" in tree:
        return _ports_of_nodes(tree["nodes"], above)
    if not isinstance(tree["nics"], list):
        raise TopologyError("nics: a list was expected")
    ports: dict[str, RankPort] = {}
    for place, nic in enumerate(tree["nics"]):
        ranks, gpus = (nic.get(name, []) for name in ("ranks", "gpus")) if isinstance(nic, dict) else (None, None)
        if not isinstance(ranks, list) or not isinstance(gpus, list) or not (ranks or gpus):
            raise TopologyError(f"nics[{place}]: node, nic and ranks or gpus were expected")
        node, name = _text(nic.get("node"), 253), _text(nic.get("nic"), 100)
        if not node or not name:
            raise TopologyError(f"nics[{place}]: node and nic: names were expected")
        port = RankPort(node, name, _tiers(nic.get("switch"), above, f"nics[{place}]"))
        if not all(type(gpu) is str for gpu in gpus):
            raise TopologyError(f"nics[{place}].gpus: names were expected, such as GPU0")
        for rank in (*ranks, *(f"{node}:{gpu}" for gpu in gpus)):
            if type(rank) not in (int, str):
                raise TopologyError(f"nics[{place}].ranks: ranks were expected")
            if str(rank) in ports:
                raise TopologyError(f"nics[{place}].ranks: rank {str(rank)[:40]} has a NIC already")
            ports[str(rank)] = port
    if not ports:
        raise TopologyError("nics: no NIC has a rank")
    return ports


def _ports_of_nodes(nodes: Any, above: dict[Any, Any]) -> dict[str, RankPort]:
    if not isinstance(nodes, dict):
        raise TopologyError("nodes: every node and its nearest switch were expected")
    ports: dict[str, RankPort] = {}
    for node, switch in nodes.items():
        name = _text(node, 253)
        if not name:
            raise TopologyError("nodes: names were expected")
        ports[f"{name}:"] = RankPort(name, WHOLE_NODE, _tiers(switch, above, f"nodes.{name}"))
    return ports


def nearest_switches(ports: Iterable[RankPort]) -> dict[str, str]:
    """By node the nearest switch above all of its NICs; nodes whose NICs share none are left out."""
    shared: dict[str, tuple[str, ...]] = {}
    for port in ports:
        before = shared.setdefault(port.node, port.switches)
        shared[port.node] = tuple(switch for switch in before if switch in port.switches)
    return {node: switches[0] for node, switches in shared.items() if switches}


def _tiers(switch: Any, above: dict[Any, Any], place: str) -> tuple[str, ...]:
    found: list[str] = []
    while switch is not None:
        name = _text(switch)
        if not name:
            raise TopologyError(f"{place}: a switch's name was expected")
        if name in found or len(found) == MAX_TIERS:
            raise TopologyError(f"switches: {name[:100]}: a ring, or more than {MAX_TIERS} tiers")
        found.append(name)
        switch = above.get(name)
    return tuple(found)


def _text(value: Any, longest: int = 200) -> str:
    """A short printable text; empty for anything else."""
    return "".join(letter for letter in value[:longest] if letter.isprintable()) if type(value) is str else ""
