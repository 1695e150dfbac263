"""Who is judged under which name: a node, or each of its GPUs or workloads at one time. Pure."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ingero_analyze.packed import SUFFIXES as PACKED
from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.grouped import extremes
from ingero_detect.nodes.cohorts import CohortKey

NOBODY: Final = node_key("", "")
"""Stands for the nodes of a recorded tick without any."""

SHARED_TICKS: Final = 10
"""Ticks with rows of several that show that a node does them at one time. Where one job follows another, the rows of
both may share some ticks."""

COPIES: Final = 0.01
"""Share of the times of several files at which their values differ, above which they are no copies of each other.
Clocks and other values of few levels are often equal by chance."""

FEWEST_NODES: Final = 3
"""Nodes of a file that can be a cluster of its own."""

_SUFFIXES: Final = frozenset(
    ("csv", "tsv", "txt", "log", "json", "jsonl", "ndjson", "parquet", "pq", "prom", "om", "dat", *PACKED)
)
"""Suffixes of names of files that tell no name of a host."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Members = dict[tuple[int, int], list[int]]
"""Numbers of sources by unit and part: codes of what they share, and of what differs between them."""


HiddenGroups = Mapping[tuple[NodeKey, CohortKey], int]
"""By node and cohort its group, from 0, of those that no column tells."""


class RowSource(NamedTuple):
    """What tells rows of a history apart, besides their time. `file`: its number; `rack`: where the node stands."""

    node: NodeKey
    gpu: str
    cohort: CohortKey
    file: int
    rack: str = ""


class Subjects:
    """Numbers of sources, and the nodes and cohorts as which they are judged.

    A node whose rows are of one source after another stays one node. Where rows of several come at one time, each is
    a node of its own: every GPU as node/gpu, and of the rest those that differ, as node/workload. Files with the same
    nodes and other values are clusters, or hosts where nodes are numbers of GPUs. Where most nodes have rows of
    several racks at one time, nodes are numbers within a rack, and are called rack/node. A name that was given stays,
    except that a node may become several. A cohort whose nodes were told apart in an earlier reading is one cohort
    for each of these `groups`.
    """

    def __init__(self, files: Sequence[str], groups: HiddenGroups | None = None) -> None:
        self._groups = groups or {}
        self.nodes: dict[NodeKey, int] = {NOBODY: 0}
        self.host_of: dict[NodeKey, NodeKey] = {}
        """By node that is one GPU of several its host."""
        self.cohorts: dict[CohortKey, int] = {}
        self.by_rack = self.by_gpu = self.by_file = self.files_are_clusters = False
        self.numbers_of_gpus = False
        """Whether nodes are numbers of GPUs, so that files with the same ones are hosts."""
        self.parts: set[int] = set()
        """Places in the keys of cohorts that are parts of names."""
        self._files = short_names(files)
        self._sources: dict[RowSource, int] = {}
        self._known: list[RowSource] = []
        self._codes: tuple[dict[tuple[NodeKey, str], int], dict[str, int], dict[CohortKey, int]] = ({}, {}, {})
        self._table = np.zeros((0, 4), np.int64)
        self._node, self._cohort = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._split: dict[int, tuple[int, ...]] = {}
        self._begun = False

    @property
    def files_are_hosts(self) -> bool:
        """Whether each file is of one host, whose GPUs are judged as file/gpu."""
        return self.by_file and self.numbers_of_gpus

    def number(self, source: RowSource) -> int:
        """The number of a source."""
        return self._sources.setdefault(source, len(self._sources))

    def hosts(self, source: Ints) -> Ints:
        """Numbers of the nodes in the file."""
        self._grow()
        found: Ints = self._table[source, 0]
        return found

    def cohorts_of_sources(self) -> Ints:
        """By source a number of the cohort that the file names."""
        self._grow()
        return self._table[:, 2]

    def assign(self, source: Ints, tick: Ints, value: Floats, exact: bool) -> tuple[Ints, Ints]:
        """By row the numbers of the node and of the cohort as which it is judged; if `exact`, as the file says."""
        self._grow()
        if not exact:
            self._tell_apart(source, tick, value)
        self._begun = True
        present = np.flatnonzero(np.bincount(source))
        for number in present[self._node[present] < 0].tolist():
            self._give_name(number)
        return self._node[source], self._cohort[source]

    def nodes_of(self, source: Ints) -> Ints:
        """The numbers of the nodes as which sources that have rows are judged."""
        return self._node[source]

    def finish(self) -> None:
        """Name the sources without any row that could be used."""
        self._grow()
        for number in np.flatnonzero(self._node < 0).tolist():
            self.nodes.setdefault(self._given_name(number), len(self.nodes))

    def _grow(self) -> None:
        if len(self._known) == len(self._sources):
            return
        new = list(self._sources)[len(self._known) :]
        self._known += new
        hosts, gpus, cohorts = self._codes
        rows = [
            (hosts.setdefault((one.node, one.rack * self.by_rack), len(hosts)), gpus.setdefault(one.gpu, len(gpus)),
             cohorts.setdefault(one.cohort, len(cohorts)), one.file)
            for one in new
        ]  # fmt: skip
        self._table = np.concatenate((self._table, np.array(rows, np.int64)))
        unknown = np.full(len(new), -1, np.int64)
        self._node, self._cohort = np.append(self._node, unknown), np.append(self._cohort, unknown)

    def _tell_apart(self, source: Ints, tick: Ints, value: Floats) -> None:
        if not self.by_rack:
            self._look_for_racks(source, tick)
        host, gpu, cohort, file = self._table.T
        unit = host
        if not self._begun and len(self._files) > 1:
            self._compare_files(source, tick, value)
        if self.by_file:
            unit = unit * len(self._files) + file
        if not self.by_gpu and len(self._codes[1]) > 1:
            members = _together(source, tick, unit, gpu)
            self.by_gpu = bool(members)
            self._forget(members)
        if self.by_gpu:
            unit = unit * len(self._codes[1]) + gpu
        if len(self._codes[2]) > 1:
            members = _together(source, tick, unit, cohort)
            self._forget(members)
            self._split_cohorts(members)

    def _look_for_racks(self, source: Ints, tick: Ints) -> None:
        """See whether most nodes have rows of several racks at one time, and tell them apart then."""
        racks: dict[str, int] = {}
        rack = np.array([racks.setdefault(one.rack, len(racks)) for one in self._known], np.int64)
        if len(racks) < 2:
            return
        host = self._table[:, 0]
        members = _together(source, tick, host, rack)
        several = len({one for one, _ in members})
        self.by_rack = several > 0.5 * len(np.unique(host[np.unique(source)]))
        if self.by_rack:
            self._forget(members)
            hosts = self._codes[0]
            hosts.clear()
            self._table[:, 0] = [hosts.setdefault((one.node, one.rack), len(hosts)) for one in self._known]

    def _compare_files(self, source: Ints, tick: Ints, value: Floats) -> None:
        """See whether files have the same nodes at the same times with other values, and enough for clusters.

        Compared are the least and the greatest value of a node in a tick, of which a file may have several.
        """
        host, gpu, cohort, file = self._table.T
        unit = (host * len(self._codes[1]) + gpu) * len(self._codes[2]) + cohort
        found = _together(source, tick, unit, file)
        rows = np.flatnonzero(np.isin(unit[source], [one for one, _ in found]))
        pairs, of = np.unique(
            np.stack((unit[source[rows]], tick[rows], file[source[rows]])), axis=1, return_inverse=True
        )
        _, moment, files = np.unique(pairs[:2], axis=1, return_inverse=True, return_counts=True)
        differ = np.zeros(len(files), np.bool_)
        for ends in extremes(value[rows], of, len(moment)):
            least, most = extremes(ends, moment, len(files))
            differ |= most - least > 1e-6 * np.abs(most)
        self.by_file = bool(np.count_nonzero(differ) > COPIES * np.count_nonzero(files > 1))
        fewest = min((len(set(host[file == number].tolist())) for _, number in found), default=0)
        named = any(cluster for (cluster, _), _ in self._codes[0])
        self.files_are_clusters = self.by_file and not named and not self.numbers_of_gpus and fewest >= FEWEST_NODES

    def _forget(self, members: Members) -> None:
        """Of those that have rows at one time and one name, only the first keeps it."""
        keepers: dict[int, int] = {}
        for (_, part), sources in members.items():
            for source in sources:
                node = int(self._node[source])
                if node >= 0 and keepers.setdefault(node, part) != part:
                    self._node[source] = -1

    def _split_cohorts(self, members: Members) -> None:
        """Tell sources apart by the parts of their cohorts' keys that differ."""
        keys = list(self._codes[2])
        cohorts: dict[int, list[CohortKey]] = {}
        for unit, cohort in members:
            cohorts.setdefault(unit, []).append(keys[cohort])
        for (unit, _), sources in members.items():
            unnamed = [source for source in sources if self._node[source] < 0]
            if unnamed:
                places = zip_longest(*cohorts[unit], fillvalue="")
                differ = tuple(place for place, texts in enumerate(places) if place and len(set(texts)) > 1)
                self._split.update(dict.fromkeys(unnamed, differ))
                self.parts.update(differ)

    def _give_name(self, number: int) -> None:
        source = self._known[number]
        if source.node == NOBODY:
            self._node[number] = self._cohort[number] = 0
            return
        key = (self._cluster(source), *source.cohort[1:])
        name = self._given_name(number)
        if (group := self._groups.get((name, key))) is not None:
            key = (*key, f"group {group + 1}")
        self._node[number] = self.nodes.setdefault(name, len(self.nodes))
        if self.files_are_hosts:
            self.host_of[name] = node_key(self._cluster(source), self._files[source.file])
        elif self.by_gpu:
            self.host_of[name] = self._named(source)
        self._cohort[number] = self.cohorts.setdefault(key, len(self.cohorts))

    def _given_name(self, number: int) -> NodeKey:
        source = self._known[number]
        labels = [source.cohort[place] for place in self._split.get(number, ()) if place < len(source.cohort)]
        return self._named(source, source.gpu if self.by_gpu else "", *labels)

    def _named(self, source: RowSource, *parts: str) -> NodeKey:
        """The name of a host, or of `parts` of it."""
        rack = source.rack if self.by_rack else ""
        file = self._files[source.file] if self.by_file and not self.files_are_clusters else ""
        words = [rack, source.node[1], *parts]
        words = [file, *words] if self.files_are_hosts else [*words, file]
        return node_key(self._cluster(source), "/".join(filter(None, words)))

    def _cluster(self, source: RowSource) -> str:
        return self._files[source.file] if self.files_are_clusters else source.node[0]


def _together(source: Ints, tick: Ints, unit: Ints, part: Ints) -> Members:
    """The sources of units' parts that have rows in the same ticks, one of them in most of its ticks.

    `source` and `tick` are by row, `unit` and `part` by source.
    """
    present = np.flatnonzero(np.bincount(source))
    kinds = int(part.max()) + 1
    pairs = np.unique(unit[present] * kinds + part[present])
    units, count = np.unique(pairs // kinds, return_counts=True)
    several = np.isin(unit, units[count > 1])[source]
    if not several.any():
        return {}
    pair = np.searchsorted(pairs, (unit * kinds + part)[source[several]])
    moments, moment = np.unique(tick[several], return_inverse=True)
    cells = np.unique(pair * len(moments) + moment)
    where = cells // len(moments)
    owner = np.searchsorted(units, pairs[where] // kinds)
    _, back, count = np.unique(owner * len(moments) + cells % len(moments), return_inverse=True, return_counts=True)
    ticks = np.bincount(where, minlength=len(pairs))
    shared = np.bincount(where[count[back] > 1], minlength=len(pairs))
    enough = shared >= SHARED_TICKS
    mostly = pairs[enough & (2 * shared >= ticks)]
    enough &= np.isin(pairs // kinds, mostly // kinds)
    members: Members = {divmod(code, kinds): [] for code in pairs[enough].tolist()}
    for number in np.flatnonzero(np.isin(unit * kinds + part, pairs[enough])).tolist():
        members[int(unit[number]), int(part[number])].append(number)
    return members


def short_names(files: Sequence[str]) -> list[str]:
    """What tells files apart: their names without suffixes of formats, with the folders that differ where these are
    not different, and alone where all are called alike; else their whole paths."""
    stems = [_stem(Path(file).name) for file in files]
    folders = [Path(file).parent.parts for file in files]
    depths = [depth for depth, parts in enumerate(zip(*folders, strict=False)) if len(set(parts)) > 1]
    shared = depths[0] if depths else min(map(len, folders), default=0)
    alike = len(set(stems)) == 1
    paths = [
        "/".join((*parts[shared:], *(() if alike else (stem,)))) for parts, stem in zip(folders, stems, strict=True)
    ]
    return next((names for names in (stems, paths) if all(names) and len(set(names)) == len(names)), list(files))


def _stem(name: str) -> str:
    """The name of a file without suffixes of formats: names of hosts have points too."""
    while (parts := name.rpartition("."))[0] and parts[2].lower() in _SUFFIXES:
        name = parts[0]
    return name
