"""Reads a cluster's topology, and adds to a verdict which part of the network is slow. Pure but `read_topology`."""

from pathlib import Path
from typing import Any, Final

from ingero_analyze.diagnose.sources import SourceError, read_content
from ingero_analyze.diagnose.timeline_files import RecordedTimeline
from ingero_detect.links import WORK, Element, RankPort, SlowElements, slow_elements
from ingero_detect.topology import TopologyError, ports_of
from ingero_kit.yaml_documents import YamlError, load_yaml

SHOWN: Final = 32
"""Slow groups that are listed."""


def read_topology(file: str) -> dict[str, RankPort]:
    """The port of every rank by the rank's name. Raises `SourceError` with the place of what cannot be used."""
    try:
        data = read_content(Path(file))
    except SourceError as error:
        raise SourceError(f"{file}: {error}") from None
    try:
        tree = load_yaml(data)
    except YamlError as error:
        raise SourceError(f"{file}: {str(error)[:200]}") from None
    try:
        ports = ports_of(tree)
    except TopologyError as error:
        raise SourceError(f"{file}: {error}") from None
    if "nics" not in tree:
        raise SourceError(f"{file}: nodes: a recording does not name the nodes of ranks; list nics with their ranks")
    return ports


def with_network(answer: dict[str, Any], recorded: RecordedTimeline, ports: dict[str, RankPort]) -> dict[str, Any]:
    """The verdict with `network`.

    A rank that others wait for because its own collectives are slow is not the cause: the verdict is then `network`.
    A rank that computes longer stays named.
    """
    numbers = {number: ports[str(name)] for number, name in enumerate(recorded.ranks) if str(name) in ports}
    found = slow_elements(recorded.line, numbers)
    network = _network(found, recorded)
    absent = [name for name in recorded.ranks if str(name) not in ports]
    if absent:
        network["ranks_without_nic"] = {"count": len(absent), "first": absent[:SHOWN]}
    causes = [item for cause in found.causes for item in cause]
    if causes and all(kind in WORK for kind, _ in causes):
        return {**answer, "network": network}
    waited_for = str(answer["evidence"].get("by", "")).startswith("blocked_least")
    unnamed = answer["kind"] == "none" and bool(causes)
    if found.slow and (unnamed or (answer["kind"] in ("node", "stage_imbalance") and waited_for)):
        return {**answer, "kind": "network", "ranks": [], "network": network}
    return {**answer, "network": network}


def _network(found: SlowElements, recorded: RecordedTimeline) -> dict[str, Any]:
    """What `network` of the answer says: `elements` if certain, else `possible`."""
    causes = [[_element(item, recorded) for item in cause] for cause in found.causes]
    kind = "none"
    if found.slow:
        kinds = {item["kind"] for cause in causes for item in cause}
        kind = kinds.pop() if found.certain and len(kinds) == 1 else "several" if found.certain else "unknown"
    groups = [
        {"ranks": [recorded.ranks[rank] for rank in group.ranks], "excess_share": round(group.excess, 4)}
        for group in sorted(found.slow, key=lambda group: -group.excess)[:SHOWN]
    ]
    return {
        "kind": kind,
        "elements": [cause[0] for cause in causes] if found.certain else [],
        "possible": [] if found.certain else causes,
        "slow_groups": groups,
        "slow_group_count": len(found.slow),
        "compared_groups": found.compared,
    }


def _element(item: Element, recorded: RecordedTimeline) -> dict[str, str]:
    kind, name = item
    if kind == "gpu":
        name = f"rank {recorded.ranks[int(name)]}"
    if kind in WORK:
        name = name.split(" of operation ")[0]
    return {"kind": kind, "name": name}


def sentence(network: dict[str, Any]) -> str:
    """The answer's sentence on the network."""
    if network["kind"] == "none":
        return "no part of the network is slow" if network["compared_groups"] else "the network cannot be judged"
    if network["elements"]:
        return "slow: " + " and ".join(f"{item['kind']} {item['name']}" for item in network["elements"])
    lists = [", ".join(f"{item['kind']} {item['name']}" for item in cause[:SHOWN]) for cause in network["possible"]]
    return "collectives are slow; one of: " + "; and one of: ".join(lists) if lists else (
        "collectives are slow, and nothing in the topology explains which"
    )  # fmt: skip
