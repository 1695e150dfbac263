"""Finds the slow part of a network from how long collectives last after their last rank has arrived. Pure.

All ranks of a collective end together, so the shortest duration among them is the time after the last arrival: late
ranks do not lengthen it, slow links do. A collective moves at the speed of the slowest part that it uses. A part of
the network is named if every slow group uses it and no group that uses it is healthy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, row_medians
from ingero_detect.network.group_families import families
from ingero_detect.ranks.last_arrival import frequently_far
from ingero_detect.ranks.rank_outliers import (
    SIGNIFICANCE,
    moderated_errors,
    time_segments,
    trimmed_mean,
)
from ingero_detect.ranks.student import upper_quantile, upper_quantiles
from ingero_detect.ranks.timeline import FEWEST_STEPS, Timeline
from ingero_detect.threshold import MAD_TO_SIGMA

FEWEST_PEERS: Final = 4
"""Groups of one operation, size and family that are needed to compare them."""

FEWEST_OF_JOB: Final = 2
"""The same in the recording of one job, where fewer than `FEWEST_PEERS` show what is far slower only."""

EXCESS_OF_FEW: Final = 0.5
"""Relative excess over the fastest of two or three groups, which do not show by how much healthy ones differ."""

SMALLEST_EXCESS: Final = 0.05
"""Relative excess of a group's duration below which the group is not slow."""

HEALTHY_SHARE: Final = 0.5
"""A group below this share of the smallest slow excess is healthy."""

PEER_SPREADS: Final = 5.0
"""How far an excess must exceed the usual spread between like groups, standard deviations."""

MAX_CANDIDATES: Final = 64
"""Different sets of slow groups that are tried as two simultaneous causes."""

Element = tuple[str, str]
"""Kind and name: gpu, interconnect, nic, pair, link, switch, node; stage and replica stand for the job's own work."""

WORK: Final = ("stage", "replica")


@dataclass(frozen=True)
class RankPort:
    """Where a rank is attached: its node, its NIC, and the switches above the NIC, the nearest first."""

    node: str
    nic: str
    switches: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupExcess:
    """Ranks that meet in one operation, and by which share they need longer than like groups.

    Groups of one `family` were compared with each other.
    """

    op: int
    ranks: tuple[int, ...]
    excess: float
    error: float
    slow: bool
    family: int = 0


@dataclass(frozen=True)
class SlowElements:
    """What is slow: one entry by cause, each with all elements that explain it equally well.

    No causes although groups are slow: nothing in the topology explains them. `doubt`: why the causes are possible
    only. `seconds_lost`: by which the slow groups lengthen a step, at most.
    """

    causes: tuple[tuple[Element, ...], ...] = ()
    slow: tuple[GroupExcess, ...] = ()
    compared: int = 0
    doubt: str = ""
    seconds_lost: float = 0.0

    @property
    def certain(self) -> bool:
        """Whether every cause is one element, without a doubt."""
        return bool(self.causes) and not self.doubt and all(len(cause) == 1 for cause in self.causes)


def explained(
    groups: Sequence[GroupExcess],
    ports: Mapping[int, RankPort],
    work: Callable[[GroupExcess], frozenset[Element]] = lambda group: frozenset(),
) -> SlowElements:
    """What explains the slow ones of these groups. `work`: the parts of the job that a group belongs to."""
    slow = tuple(group for group in groups if group.slow)
    if not slow:
        return SlowElements(compared=len(groups))
    paths = [path_elements(group.ranks, ports) | work(group) for group in groups]
    return SlowElements(explain(groups, paths), slow, len(groups))


def group_excesses(line: Timeline) -> list[GroupExcess]:
    """Every group that can be compared with like ones, and whether it is slow."""
    return compared_groups(*_transfer_seconds(line), FEWEST_OF_JOB)


def compared_groups(
    ops: Sequence[int], members: Sequence[tuple[int, ...]], seconds: Floats, fewest: int = FEWEST_PEERS
) -> list[GroupExcess]:
    """Compare groups of one operation, size and family. `seconds` after the last arrival by (group, step).

    NaN where unknown. Groups of fewer than `fewest` like ones are left out.
    """
    places: dict[tuple[int, int], list[int]] = {}
    for place, (op, ranks) in enumerate(zip(ops, members, strict=True)):
        places.setdefault((op, len(ranks)), []).append(place)
    levels = np.log(row_medians(seconds)) if len(ops) else np.zeros(0)
    alike = [
        (op, [like[number] for number in own])
        for (op, _), like in places.items()
        if len(like) >= fewest
        for own in families([members[place] for place in like], levels[like])
        if len(own) >= fewest
    ]
    tested = sum(len(own) for _, own in alike)
    found = []
    for family, (op, own) in enumerate(alike):
        compared = _compared if len(own) >= FEWEST_PEERS else _compared_with_fastest
        mean, error, slow = compared(seconds[own], tested)
        excess = np.expm1(mean)
        found += [
            GroupExcess(op, members[place], float(excess[number]), float(error[number]), bool(slow[number]), family)
            for number, place in enumerate(own)
        ]
    return found


def _transfer_seconds(line: Timeline) -> tuple[list[int], list[tuple[int, ...]], Floats]:
    """Operation, ranks and seconds after the last arrival by (group, step); groups that miss many steps left out."""
    rows = np.flatnonzero(line.collective & (line.instance >= 0) & (line.step >= 0))
    if not len(rows):
        return [], [], np.zeros((0, 0))
    rows = rows[np.argsort(line.instance[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(line.instance[rows], prepend=-1))
    seconds = np.minimum.reduceat(line.duration[rows], starts)
    # A number for the members of a collective that does not depend on their order.
    marks = np.random.default_rng(0).integers(1, 2**63, line.ranks, dtype=np.uint64)
    sets = np.add.reduceat(marks[line.rank[rows]], starts)
    op, step = line.op[rows[starts]], line.step[rows[starts]]
    order = np.lexsort((sets, op))
    new = np.append(True, (np.diff(op[order]) != 0) | (np.diff(sets[order]) != 0))
    group = np.empty(len(starts), np.int64)
    group[order] = np.cumsum(new) - 1
    place, size = group * line.steps + step, (int(group.max()) + 1) * line.steps
    count = np.bincount(place, minlength=size)
    table = np.where(count > 0, np.bincount(place, seconds, size) / np.maximum(count, 1), np.nan)
    table = table.reshape(-1, line.steps)
    ends = np.append(starts[1:], len(rows))
    ops, members, kept = [], [], []
    for number, first in enumerate(order[new].tolist()):
        ranks = tuple(sorted(set(line.rank[rows[starts[first] : ends[first]]].tolist())))
        known = np.isfinite(table[number]) & (table[number] > 0)
        if len(ranks) >= 2 and known.sum() >= max(FEWEST_STEPS, line.steps // 2):
            ops.append(int(op[first]))
            members.append(ranks)
            kept.append(number)
    return ops, members, np.where(table[kept] > 0, table[kept], np.nan)


def _compared_with_fastest(seconds: Floats, tested: int) -> tuple[Floats, Floats, Bools]:
    """The same as `_compared` for so few groups that their median may be that of slow ones, over all steps."""
    logs = np.log(seconds)
    logs = logs[:, np.isfinite(logs).all(axis=0)]
    nothing = np.zeros(len(logs)), np.full(len(logs), np.inf), np.zeros(len(logs), np.bool_)
    if logs.shape[1] < FEWEST_STEPS:
        return nothing
    fastest = int(row_medians(logs).argmin())
    mean, error = trimmed_mean(logs - logs[fastest])
    needed = upper_quantile(SIGNIFICANCE / tested, logs.shape[1]) * error
    slow: Bools = mean > np.maximum(needed, np.log1p(EXCESS_OF_FEW))
    return mean, error, slow


def _compared(seconds: Floats, tested: int) -> tuple[Floats, Floats, Bools]:
    """Mean logarithmic excess over like groups, its error, and which groups are slow, in all or in part of the steps.

    What like groups have in common in a step is removed. With parts, the excess is that of the part that shows most.
    """
    logs = np.log(seconds)
    logs = logs[:, np.isfinite(logs).sum(axis=0) >= FEWEST_PEERS // 2]
    best = np.zeros(len(logs)), np.full(len(logs), np.inf), np.zeros(len(logs), np.bool_)
    if logs.shape[1] < FEWEST_STEPS:
        return best
    parts = time_segments(logs.shape[1])
    most = 0.0
    for part in parts:
        values = logs[:, part]
        if not (np.isfinite(values).sum(axis=1) >= FEWEST_STEPS // 2).all():
            continue
        values = values - row_medians(values.T)
        mean, error = trimmed_mean(values)
        level, spread = _healthy_level(mean)
        mean = mean - level
        error, freedom = moderated_errors(error, values.shape[1])
        needed = upper_quantiles(SIGNIFICANCE / max(tested * len(parts), 1), freedom) * error
        least = max(PEER_SPREADS * spread, float(np.log1p(SMALLEST_EXCESS)))
        slow: Bools = mean > np.maximum(needed, least)
        if part == parts[0]:
            # Where a link is slow now and then, the errors of means are as large as what it loses.
            often, _ = frequently_far(values, np.zeros(len(values), np.int64), SIGNIFICANCE / max(tested, 1))
            plain = np.nanmean(values, axis=1) - level
            often &= (plain > least) & ~slow
            mean, slow = np.where(often, plain, mean), slow | often
        shown = float(mean[slow].sum())
        if part == parts[0] or shown > most:
            best, most = (mean, error, slow), shown
    return best


def _healthy_level(mean: Floats) -> tuple[float, float]:
    """The level of healthy groups and their spread: the median, or the lower level where half of them are slow alike.

    Then the median is between two levels, which are twice as far apart as any two groups of one level.
    """
    half, rest = divmod(len(mean), 2)
    if half >= FEWEST_PEERS and not rest:
        ordered = np.sort(mean)
        lower, upper = ordered[:half], ordered[half:]
        if upper[0] - lower[-1] > max(2 * np.ptp(lower), 2 * np.ptp(upper), np.log1p(SMALLEST_EXCESS)):
            return _middle_and_spread(lower)
    return _middle_and_spread(mean)


def _middle_and_spread(values: Floats) -> tuple[float, float]:
    middle = float(np.median(values))
    return middle, MAD_TO_SIGMA * float(np.median(np.abs(values - middle)))


def path_elements(ranks: Sequence[int], ports: Mapping[int, RankPort]) -> frozenset[Element]:
    """What a ring over these ranks uses; a group of two is a pair."""
    found: set[Element] = set()
    for rank in ranks:
        found |= {("gpu", str(rank)), ("node", ports[rank].node)}
    hops = list(zip(ranks, (*ranks[1:], ranks[0]), strict=True))
    for one, other in hops[:1] if len(ranks) == 2 else hops:
        found |= _hop(ports[one], ports[other])
    return frozenset(found)


def _hop(one: RankPort, other: RankPort) -> set[Element]:
    if one.node == other.node:
        return {("interconnect", one.node)}
    ends = [_nic(one), _nic(other)]
    found = {("nic", ends[0]), ("nic", ends[1]), ("pair", " - ".join(sorted(ends)))}
    shared = set(one.switches) & set(other.switches)
    for port in (one, other):
        below = ""
        for switch in port.switches:
            found.add(("switch", switch))
            if below:
                found.add(("link", f"{below} - {switch}"))
            if switch in shared:
                break
            below = switch
    return found


def _nic(port: RankPort) -> str:
    return f"{port.node}/{port.nic}"


def work_elements(group: GroupExcess, slow: set[int], *partitions: tuple[str, Ints]) -> frozenset[Element]:
    """The parts of the job that the group belongs to: their own work explains longer operations, too.

    `slow`: operations with slow groups, of which a part may do more work in all.
    """
    found: set[Element] = set()
    for name, parts in partitions:
        own = sorted({int(parts[rank]) for rank in group.ranks})
        if own[0] >= 0 and len(own) < len(np.unique(parts)):
            part = "-".join(map(str, own))
            found.add((name, f"{part} of operation {group.op}"))
            if len(slow) > 1 and group.op in slow:
                found.add((name, part))
    return frozenset(found)


def explain(groups: Sequence[GroupExcess], paths: Sequence[frozenset[Element]]) -> tuple[tuple[Element, ...], ...]:
    """The causes of all slow groups: one, or else two; nothing if no one or two elements explain them all."""
    return explained_by(groups, paths, set().union(*healthy_paths(groups, paths).values()))


def healthy_groups(groups: Sequence[GroupExcess]) -> list[int]:
    """Groups that are certainly below a share of the smallest slow excess."""
    least = HEALTHY_SHARE * min(group.excess for group in groups if group.slow)
    return [n for n, group in enumerate(groups) if not group.slow and group.excess + 2 * group.error < least]


def healthy_paths(
    groups: Sequence[GroupExcess], paths: Sequence[frozenset[Element]]
) -> dict[int, frozenset[Element]]:  # fmt: skip
    """What each healthy group shows to be healthy, by its number.

    Groups of a family without a slow one are only as healthy as each other: what all of them use may be slow.
    """
    judged = {group.family for group in groups if group.slow}
    shared: dict[int, frozenset[Element]] = {}
    for group, path in zip(groups, paths, strict=True):
        if group.family not in judged:
            shared[group.family] = shared.get(group.family, path) & path
    nothing: frozenset[Element] = frozenset()
    return {number: paths[number] - shared.get(groups[number].family, nothing) for number in healthy_groups(groups)}


def explained_by(
    groups: Sequence[GroupExcess], paths: Sequence[frozenset[Element]], healthy: set[Element]
) -> tuple[tuple[Element, ...], ...]:
    """One or two elements that explain all slow groups and are not `healthy`."""
    slow = frozenset(number for number, group in enumerate(groups) if group.slow)
    coverage: dict[Element, set[int]] = {}
    for number in slow:
        for element in paths[number]:
            coverage.setdefault(element, set()).add(number)
    alike: dict[frozenset[int], list[Element]] = {}
    for element, covered in coverage.items():
        if element not in healthy:
            alike.setdefault(frozenset(covered), []).append(element)
    if slow in alike:
        return (_smallest(alike[slow]),)
    sets = sorted(alike, key=lambda covered: (-len(covered), sorted(covered)))[:MAX_CANDIDATES]
    pairs = [pair for pair in combinations(sets, 2) if pair[0] | pair[1] == slow]
    if not pairs:
        return ()
    if len(pairs) > 1:
        # Several pairs explain the same: all of their elements remain possible.
        return (tuple(sorted({element for pair in pairs for covered in pair for element in alike[covered]})),)
    return tuple(_smallest(alike[covered]) for covered in pairs[0])


def _smallest(elements: list[Element]) -> tuple[Element, ...]:
    """Without a node of which a part explains as much."""
    parts = {name.split("/")[0] for kind, name in elements if kind in ("nic", "interconnect")}
    return tuple(sorted(item for item in elements if item[0] != "node" or item[1] not in parts))
