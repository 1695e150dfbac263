"""Which chip, node and group every row is about, and where chips were. Pure."""

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final

import numpy as np

from ingero_analyze.audit.quantities import MISSING
from ingero_analyze.audit.runs import numbered
from ingero_detect.audit.job_values import always_together
from ingero_detect.grouped import Bools, Ints

_HOST: Final = re.compile(r"[a-z][a-z0-9-]*(?:\.[a-z][a-z0-9-]*)+")
"""The name of a host with its domain."""

LOCAL: Final = 0.8
"""Share of names among pairs of name and node below which the names of GPUs are numbers within a node."""

NUMBERED: Final = 0.5
"""Share of names of nodes in several groups at once above which they are numbers within a group."""

ROWS: Final = 0.5
TIMES: Final = 2.0
"""Names that are more than this share of the rows, and this many times the places, are those of rows."""

CHANGING: Final = 1.5
"""Ranks of a node in all runs, by those in one, above which they are not the places of its GPUs."""

BLOCKS: Final = 0.95
"""Least share of the nodes in a run whose ranks follow each other, from a multiple of how many they are."""

MOST_JOINT: Final = 8
"""Most nodes in the joint name of those that nothing tells from each other."""

LEAST_CHIPS: Final = 12
"""Chips of a cluster on average; with fewer, a column is not taken for a cluster."""


@dataclass(frozen=True)
class Coded:
    """A column: by row the place of its text in `names`, -1 where it is missing."""

    codes: Ints
    names: Sequence[str]


class Texts:
    """Numbers for the texts of a column, in the order in which they first appear; none in its first `rows`."""

    def __init__(self, rows: int = 0) -> None:
        self.numbers: dict[str, int] = {}
        self.column = array("q", [-1]) * rows

    def add(self, text: str) -> None:
        """Append a text; one that is missing is -1."""
        number = self.numbers.get(text, -1)
        if number < 0 and text.lower() not in MISSING:
            number = self.numbers[text] = len(self.numbers)
        self.column.append(number)

    @property
    def codes(self) -> Ints:
        """The column as numbers."""
        return np.array(self.column, np.int64)

    @property
    def coded(self) -> Coded:
        """The column as numbers, with their texts."""
        return Coded(self.codes, self.names)

    @property
    def names(self) -> list[str]:
        """Texts by number."""
        return list(self.numbers)


@dataclass(frozen=True)
class Places:
    """By row chip, node and group with their names, and the place in the node (slot)."""

    chip: Coded
    node: Coded
    group: Coded
    slot: Coded


def places(
    gpu: Coded, slot: Coded, node: Coded, group: Coded, cluster: Coded, day: Coded, by_name: bool,
    at_once: Ints | None,
) -> Places:  # fmt: skip
    """Put names together. `by_name`: the column of the GPU holds names that no two chips have (a UUID); `at_once`: by
    row when a node is in one group only, such as its run; `None` if that is not known.

    Names of nodes, groups and GPUs that several clusters have are those of different ones, and so are names of nodes
    if most of them are in several groups at once. A GPU without a name, or
    one whose name is none, is known by its node and slot. Names of a host with and without its domain, in capitals or
    not, are those of one.
    """
    node, group = _within(_of_one_host(node), cluster), _within(group, cluster)
    if at_once is not None and _numbered_in(group, node, at_once):
        node = _within(node, group)
    if slot.names and node.names:
        gpu = _by_place(gpu, slot, node, day)
    local = not by_name and _local(gpu, node)
    gpu = gpu if by_name or local else _within(gpu, cluster)
    chip, numbers = np.empty(len(gpu.codes), np.int64), dict[str, int]()
    for row, (one, where) in enumerate(zip(gpu.codes.tolist(), node.codes.tolist(), strict=True)):
        name = node.names[where] if one < 0 else gpu.names[one]
        if local and one >= 0 and where >= 0:
            name = f"{node.names[where]}/{name}"
        chip[row] = numbers.setdefault(name, len(numbers))
    of_chip = Coded(np.where(gpu.codes < 0, -1, node.codes), node.names)
    return Places(Coded(chip, list(numbers)), of_chip, group, slot)


def with_parts(gpu: Coded, part: Coded, node: Coded) -> Coded:
    """The GPUs with their parts, such as `1/0`, where these tell what one has from each other."""
    both = (gpu.codes >= 0) & (part.codes >= 0)
    its, of, at = (_rows(column, both) for column in (gpu, part, node))
    several = both.any() and _combinations(at, its, of) > _combinations(at, its)
    return _joined(part, gpu, both) if several and both.all() else gpu


def ranks_in_nodes(rank: Coded, node: Coded, run: Coded) -> Coded:
    """Ranks counted within their node, where a node has other ones in every run and these are whole blocks."""
    known = (rank.codes >= 0) & (node.codes >= 0) & (run.codes >= 0)
    if not known.any() or not all(map(str.isdecimal, rank.names)):
        return rank
    number = np.array([int(name) for name in rank.names] + [-1])[rank.codes]
    cell, first = numbered(node.codes[known], run.codes[known])
    pairs = numbered(cell, number[known])[1]
    per_node = int(np.bincount(cell[pairs]).max())
    blocks = len(numbered(cell, number[known] // per_node)[1])
    nodes = len(np.unique(node.codes[known]))
    changing = _combinations(_rows(node, known), _rows(rank, known)) > CHANGING * per_node * nodes
    if not changing or blocks > len(first) / BLOCKS:
        return rank
    return Coded(np.where(number < 0, -1, number % per_node), list(map(str, range(per_node))))


def of_one_name(found: Places, here: Ints, run: Ints) -> Places:
    """The places with one name for nodes (and chips without a node) that are always in the same runs.

    `here`: the rows to look at, of which `run` has the runs.
    """
    free = found.node.codes[here] < 0
    return replace(
        found,
        chip=_merged(found.chip, here[free], run[free]),
        node=_merged(found.node, here[~free], run[~free]),
    )


def _merged(column: Coded, rows: Ints, run: Ints) -> Coded:
    codes = column.codes.copy()
    present, place = np.unique(codes[rows], return_inverse=True)
    together = always_together(place, run)
    names = list(column.names)
    for first in np.flatnonzero(np.bincount(together, minlength=1) > 1).tolist():
        members = [column.names[one] for one in present[together == first].tolist()]
        more = f" and {len(members) - MOST_JOINT} more" if len(members) > MOST_JOINT else ""
        names.append(" + ".join(members[:MOST_JOINT]) + more)
        codes[rows[together[place] == first]] = len(names) - 1
    return Coded(codes, names)


def is_cluster(cluster: Coded, gpu: Coded, node: Coded, of_nodes: bool) -> bool:
    """Whether a column that has the name of one tells clusters: their chips are enough to be compared.

    `of_nodes`: it may also be a group of nodes, such as a partition; then no node is in several.
    """
    known = (node.codes >= 0) & (cluster.codes >= 0)
    node_of, cluster_of = _rows(node, known), _rows(cluster, known)
    if of_nodes and _combinations(node_of) < _combinations(node_of, cluster_of):
        return False
    return LEAST_CHIPS * len(cluster.names) <= _combinations(cluster, gpu, node)


def where_seen(chip: Ints, chips: int, order: Ints, found: Places, rows: Ints) -> list[list[tuple[str, str]]]:
    """By chip the nodes and slots in which it was (in these `rows`), by `order`; "" for what is not known."""
    latest = np.lexsort((np.arange(len(rows)), order))[::-1]
    chip, node, slot = chip[latest], found.node.codes[rows[latest]], found.slot.codes[rows[latest]]
    first = np.sort(numbered(chip, node, slot)[1])[::-1]
    seen: list[list[tuple[str, str]]] = [[] for _ in range(chips)]
    for one, where, place in zip(chip[first].tolist(), node[first].tolist(), slot[first].tolist(), strict=True):
        if where >= 0:
            seen[one].append((found.node.names[where], found.slot.names[place] if place >= 0 else ""))
    return seen


def renamed(seen: Sequence[Sequence[tuple[str, str]]]) -> dict[str, str]:
    """New names of nodes by their old ones: at least half of the chips of one, and two, went on to another one.

    None of them went elsewhere, and none of the other one's came from elsewhere. `seen`: as of `where_seen`.
    """
    sizes, went, came = Counter[str](), dict[str, list[str]](), dict[str, list[str]]()
    for places in seen:
        nodes = [node for node, _ in groupby(places, lambda place: place[0])]
        sizes.update(set(nodes))
        for before, after in pairwise(nodes):
            went.setdefault(before, []).append(after)
            came.setdefault(after, []).append(before)
    found = {
        old: after[0]
        for old, after in went.items()
        if len(after) >= max(2, sizes[old] / 2) and {*after} == {after[0]} and {*came[after[0]]} == {old}
    }
    for old in found:
        seen_names = {old}
        while (new := found[old]) in found and new not in seen_names:
            seen_names.add(new)
            found[old] = found[new]
    return found


def _combinations(*columns: Coded) -> int:
    """How many different rows the columns have."""
    return len(numbered(*(column.codes for column in columns))[1])


def _rows(column: Coded, asked: Bools) -> Coded:
    return Coded(column.codes[asked], column.names)


def _local(gpu: Coded, node: Coded) -> bool:
    """Whether several nodes have the same names of GPUs."""
    known = gpu.codes >= 0
    gpu, node = _rows(gpu, known), _rows(node, known)
    return _combinations(gpu) < LOCAL * _combinations(gpu, node)


def _of_one_host(node: Coded) -> Coded:
    """The column with one name for `N7`, `n7` and `n7.example`, if there is no `n7` of another domain."""
    plain = [name.lower() for name in node.names]
    domains = dict[str, set[str]]()
    for name in plain:
        short, _, domain = name.partition(".")
        domains.setdefault(short if _HOST.fullmatch(name) else name, set()).update([domain] if domain else [])
    shorts = [name.partition(".")[0] if _HOST.fullmatch(name) else name for name in plain]
    keys = [short if len(domains[short]) < 2 else name for name, short in zip(plain, shorts, strict=True)]
    present = set(plain)
    keys = [key if key in present else name for key, name in zip(keys, plain, strict=True)]
    numbers = dict[str, int]()
    to = np.array([numbers.setdefault(key, place) for place, key in enumerate(keys)] + [-1])
    return Coded(to[node.codes], node.names)


def _within(column: Coded, cluster: Coded) -> Coded:
    """The column with different names for what several clusters have."""
    known = (column.codes >= 0) & (cluster.codes >= 0)
    pairs = column.codes[known][numbered(column.codes[known], cluster.codes[known])[1]]
    shared = np.bincount(pairs, minlength=len(column.names) + 1) > 1
    return _joined(column, cluster, shared[column.codes] & known) if shared.any() else column


def _numbered_in(group: Coded, node: Coded, at_once: Ints) -> bool:
    """Whether most names of nodes are in several groups at once, so that they are numbers within one.

    A node may be moved now and then.
    """
    known = (node.codes >= 0) & (group.codes >= 0)
    cell, first = numbered(node.codes[known], at_once[known])
    pairs = cell[numbered(cell, group.codes[known])[1]]
    several = np.bincount(pairs, minlength=len(first)) > 1
    nodes = node.codes[known][first]
    return bool(len(np.unique(nodes[several])) > NUMBERED * len(np.unique(nodes)))


def _joined(column: Coded, before: Coded, asked: Bools) -> Coded:
    """The column with the text of `before` in front where it is `asked`."""
    numbers = {name: place for place, name in enumerate(column.names)}
    codes = column.codes.copy()
    for row in np.flatnonzero(asked).tolist():
        name = f"{before.names[before.codes[row]]}/{column.names[column.codes[row]]}"
        codes[row] = numbers.setdefault(name, len(numbers))
    return Coded(codes, list(numbers))


def _by_place(gpu: Coded, slot: Coded, node: Coded, day: Coded) -> Coded:
    """The names of GPUs; their nodes and slots where they have none, or where the names are of something else.

    Names of nodes or racks are fewer than the places of one day, and names of rows are more than all places.
    """
    known = (gpu.codes >= 0) & (node.codes >= 0) & (slot.codes >= 0)
    asked = (node.codes >= 0) & (slot.codes >= 0)
    names = _combinations(_rows(gpu, known))
    where = _combinations(_rows(node, known), _rows(slot, known))
    of_day = _combinations(_rows(gpu, known), _rows(day, known))
    places_of_day = _combinations(_rows(node, known), _rows(slot, known), _rows(day, known))
    if LOCAL * places_of_day <= of_day and names <= max(TIMES * where, ROWS * np.count_nonzero(known)):
        asked &= gpu.codes < 0
    if not asked.any():
        return gpu
    placed = _joined(slot, node, asked)
    numbers = {name: number for number, name in enumerate(gpu.names)}
    codes = gpu.codes.copy()
    for row in np.flatnonzero(asked).tolist():
        codes[row] = numbers.setdefault(placed.names[placed.codes[row]], len(numbers))
    return Coded(codes, list(numbers))
