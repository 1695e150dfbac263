"""Reads a cluster's topology, and adds to a verdict which part of the network is slow. Pure but `read_topology`."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ingero_analyze.diagnose.sources import SourceError, read_content
from ingero_analyze.diagnose.timeline_files import RecordedTimeline
from ingero_detect.network.links import WORK, Element, RankPort, SlowElements
from ingero_detect.network.slow_links import slow_elements, slow_work
from ingero_detect.network.topology import TopologyError, ports_of
from ingero_detect.ranks.diagnosis import LISTED
from ingero_detect.ranks.rank_outliers import SMALLEST_EFFECT
from ingero_detect.ranks.slower_part import LATE_PART
from ingero_detect.ranks.timeline import Timeline, step_period
from ingero_kit.yaml_documents import YamlError, load_yaml

SHOWN: Final = 32
"""Slow groups that are listed."""

FAR_MORE: Final = 2.0
"""How many times what another cause loses slow groups must lose to be the verdict: both are known roughly only."""

OTHERS: Final = ("node", "stage_imbalance", "sequence_imbalance")
"""Verdicts that do not count if slow groups lose far more."""

FACTS: Final = ("ranks", "steps", "step_seconds", "compute_share", "largest_lag_share", "note")
"""Evidence that is of the recording, and not of a finding."""

_SEND: Final = re.compile("send", re.IGNORECASE)
_RECEIVE: Final = re.compile("recv|receive", re.IGNORECASE)

NO_TOPOLOGY: Final = "which NIC, link or switch they share is known with --topology only"
NOTHING: Final = "no part of the topology is used by the slow groups and by no healthy one"
UNSURE: Final = "these parts are used by the same slow groups, and no healthy group tells them apart"


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


def with_network(
    answer: dict[str, Any], recorded: RecordedTimeline, ports: dict[str, RankPort] | None
) -> dict[str, Any]:  # fmt: skip
    """The verdict with `network`; without a topology (`ports`), only if groups are slow.

    A rank that others wait for because its own collectives are slow is not the cause: the verdict is then `network`,
    or `unknown` where nothing tells which part is slow. A rank that computes longer stays named. Where slow groups
    lose far more time than a rank, stages or data, these are in `also`: a verdict explains most of what is lost.
    """
    line = _without_halves(recorded)
    if ports is None:
        found, absent = slow_work(line), []
        if not found.slow:
            return answer
    else:
        numbers = {number: ports[str(name)] for number, name in enumerate(recorded.ranks) if str(name) in ports}
        found = slow_elements(line, numbers)
        absent = [name for name in recorded.ranks if str(name) not in ports]
    network = _network(found, recorded, topology=ports is not None)
    if absent:
        network["ranks_without_nic"] = {"count": len(absent), "first": absent[:SHOWN]}
    answer = {**answer, "network": network}
    causes = [item for cause in found.causes for item in cause]
    if not found.slow or (causes and all(kind in WORK for kind, _ in causes)):
        return answer
    period = step_period(recorded.line)
    known = ports is not None and bool(causes)
    waited_for = str(answer["evidence"].get("by", "")).startswith("blocked_least")
    in_slow_groups = {recorded.ranks[rank] for group in found.slow for rank in group.ranks}
    unnamed = answer["kind"] == "none" and (known or found.seconds_lost >= SMALLEST_EFFECT * period)
    late = answer["evidence"].get("by") == LATE_PART
    victims = late or (answer["kind"] in ("node", "stage_imbalance") and waited_for)
    suspects = answer["evidence"]["possible"] if late else answer["ranks"]
    smaller = (
        answer["kind"] == "node" and not waited_for and found.seconds_lost > FAR_MORE * _most_lost(answer, period)
    )
    waited = victims and (ports is not None or in_slow_groups.issuperset(suspects))
    if not unnamed and not waited and not smaller:
        return answer
    lost = min(found.seconds_lost, 0.99 * period)
    replaced = {"possible", "by"} if late else {"possible"}
    evidence = {name: value for name, value in answer["evidence"].items() if name not in replaced}
    if smaller:
        finding = {name: answer[name] for name in ("kind", "ranks", "seconds_lost_per_step")}
        finding |= {name: answer["evidence"][name] for name in LISTED if name in answer["evidence"]}
        evidence = {name: value for name, value in evidence.items() if name in FACTS}
        evidence["also"] = [finding, *answer["evidence"].get("also", ())]
    evidence |= {"possible": suspects} if victims and not known else {}
    return {
        **answer, "kind": "network" if ports is not None and (known or victims) else "unknown", "ranks": [],
        "slowdown": round(period / (period - lost), 6), "seconds_lost_per_step": round(lost, 9), "evidence": evidence,
    }  # fmt: skip


def _without_halves(recorded: RecordedTimeline) -> Timeline:
    """The timeline without sends and receives that are operations of their own, as far as slow groups are concerned.

    What receivers have in common in time is how long they wait for their senders, and no transfer.
    """
    sends, receives = ([bool(name.search(op)) for op in recorded.ops] for name in (_SEND, _RECEIVE))
    halves = np.array([sent != received for sent, received in zip(sends, receives, strict=True)], np.bool_)
    line = recorded.line
    rows = line.collective & halves[line.op]
    used = np.unique(line.op[rows]).tolist()
    if not (any(sends[op] for op in used) and any(receives[op] for op in used)):
        return line
    return replace(line, instance=np.where(rows, -1, line.instance))


def _most_lost(answer: dict[str, Any], period: float) -> float:
    """Seconds of a step that a verdict explains at most: the excess of ranks, where others hide what it costs."""
    shares = answer["evidence"].get("excess_share_of_step", {})
    return max(float(answer["seconds_lost_per_step"]), max(shares.values(), default=0.0) * period)


def _network(found: SlowElements, recorded: RecordedTimeline, topology: bool) -> dict[str, Any]:
    """What `network` of the answer says: `elements` if certain, else `possible` with a `reason`."""
    causes = [[_element(item, recorded) for item in cause] for cause in found.causes]
    kind = "none"
    if found.slow:
        kinds = {item["kind"] for cause in causes for item in cause}
        kind = kinds.pop() if found.certain and len(kinds) == 1 else "several" if found.certain else "unknown"
    groups = [
        {
            "op": recorded.ops[group.op],
            "ranks": [recorded.ranks[rank] for rank in group.ranks],
            "excess_share": round(group.excess, 4),
        }
        for group in sorted(found.slow, key=lambda group: -group.excess)[:SHOWN]
    ]
    reason = found.doubt or (UNSURE if causes else NOTHING if topology else NO_TOPOLOGY)
    return {
        "kind": kind,
        **({"reason": reason} if kind == "unknown" else {}),
        "elements": [cause[0] for cause in causes] if found.certain else [],
        "possible": [] if found.certain else causes,
        "slow_groups": groups,
        "slow_group_count": len(found.slow),
        "compared_groups": found.compared,
        "seconds_lost_per_step": round(found.seconds_lost, 9),
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
    words = "collectives are slow; one of: " + "; and one of: ".join(lists) if lists else "collectives are slow"
    return f"{words} ({network['reason']})"


def slow_group_lines(network: dict[str, Any], most: int) -> list[str]:
    """The slowest groups as lines."""
    lines = [
        f"{group['op']} of ranks {', '.join(map(str, group['ranks'][:SHOWN]))} lasts {1 + group['excess_share']:.3g} "
        "times as long as in like groups, after its last rank has arrived"
        for group in network["slow_groups"][:most]
    ]
    rest = network["slow_group_count"] - len(lines)
    return [*lines, f"and {rest} more slow groups"] if rest > 0 else lines
