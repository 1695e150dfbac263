"""What is slow in the network of a job, what it costs, and what is only possible since nothing explains it. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ingero_detect.network.links import (
    HEALTHY_SHARE,
    Element,
    GroupExcess,
    RankPort,
    SlowElements,
    explain,
    explained,
    explained_by,
    group_excesses,
    healthy_paths,
    path_elements,
    work_elements,
)
from ingero_detect.ranks.timeline import Timeline, most_common_by_rank
from ingero_detect.ranks.wait_attribution import with_exposed_waits

ALL_ALIKE: Final = "all groups of an operation use it, so they are alike, and none shows it to be slow or healthy"
ONE_OPERATION: Final = "only one operation is slow there, such as one direction; others that use it are not"
LARGEST_ONLY: Final = "it explains the slowest groups only; others are slow too, which nothing explains"


def slow_elements(line: Timeline, ports: Mapping[int, RankPort]) -> SlowElements:
    """The slow elements that a job's collectives show. Groups with ranks that have no port are left out."""
    groups = [group for group in group_excesses(line) if all(rank in ports for rank in group.ranks)]
    work = _work(line, groups)
    found = explained(groups, ports, work)
    if found.slow and not found.causes:
        causes, doubt = explain_doubtfully(groups, [path_elements(one.ranks, ports) | work(one) for one in groups])
        found = replace(found, causes=causes, doubt=doubt)
    return replace(found, seconds_lost=seconds_lost(line, found.slow))


def slow_work(line: Timeline) -> SlowElements:
    """The slow groups without any topology; the only causes that are known are parts of the job with more work."""
    groups = group_excesses(line)
    slow = tuple(group for group in groups if group.slow)
    causes = explain(groups, list(map(_work(line, groups), groups))) if slow else ()
    return SlowElements(causes, slow, len(groups), seconds_lost=seconds_lost(line, slow))


def _work(line: Timeline, groups: Sequence[GroupExcess]) -> Callable[[GroupExcess], frozenset[Element]]:
    """The parts of the job that a group belongs to."""
    stage, replica = most_common_by_rank(line, line.stage), most_common_by_rank(line, line.data_parallel)
    slow = {group.op for group in groups if group.slow}
    return lambda group: work_elements(group, slow, ("stage", stage), ("replica", replica))


def seconds_lost(line: Timeline, slow: Sequence[GroupExcess]) -> float:
    """Seconds by which slow groups lengthen a step, on the rank that loses most.

    What a rank computes meanwhile, or loses in a collective that lasts longer at the same time, does not count.
    """
    rows = np.flatnonzero(line.collective & (line.instance >= 0) & (line.step >= 0))
    if not slow or not len(rows):
        return 0.0
    rows = rows[np.argsort(line.instance[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(line.instance[rows], prepend=-1))
    sizes = np.diff(np.append(starts, len(rows)))
    lasts, rank = np.minimum.reduceat(line.duration[rows], starts), line.rank[rows]
    waits = with_exposed_waits(line).duration[rows]
    marks = np.random.default_rng(0).integers(1, 2**63, line.ranks, dtype=np.uint64)
    sets, op = np.add.reduceat(marks[rank], starts), line.op[rows[starts]]
    lost = np.zeros(line.ranks)
    for group in slow:
        more = np.where((op == group.op) & (sets == marks[list(group.ranks)].sum()), group.excess, 0.0)
        lost += np.bincount(rank, np.minimum(waits, np.repeat(lasts * more / (1 + more), sizes)), line.ranks)
    return float(lost.max()) / line.steps


def explain_doubtfully(
    groups: Sequence[GroupExcess], paths: Sequence[frozenset[Element]]
) -> tuple[tuple[tuple[Element, ...], ...], str]:
    """What may be slow where no element is used by all slow groups and by no healthy one, and why that is possible.

    Groups of an operation that all use an element do not clear it, nor does another operation clear a pair. At last
    the slowest groups are explained without the others.
    """
    healthy = healthy_paths(groups, paths)
    ops = {group.op for group in groups}
    by_all = {op: frozenset.intersection(*(paths[n] for n, one in enumerate(groups) if one.op == op)) for op in ops}
    told = {number: path - by_all[groups[number].op] for number, path in healthy.items()}
    slow = {group.op for group in groups if group.slow}
    same = {
        number: frozenset(item for item in path if item[0] != "pair" or groups[number].op in slow)
        for number, path in told.items()
    }
    for clear, doubt in ((told, ALL_ALIKE), (same, ONE_OPERATION)):
        causes = explained_by(groups, paths, set().union(*clear.values()))
        if causes:
            return causes, doubt
    least = HEALTHY_SHARE * max(group.excess for group in groups if group.slow)
    kept = [number for number, group in enumerate(groups) if not group.slow or group.excess >= least]
    if len(kept) == len(groups):
        return (), ""
    largest, ways = [groups[number] for number in kept], [paths[number] for number in kept]
    causes = explain(largest, ways) or explain_doubtfully(largest, ways)[0]
    return causes, LARGEST_ONLY if causes else ""
