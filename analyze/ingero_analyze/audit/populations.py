"""Makes populations of columns of results: what can be compared, with the physical values of every chip. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ingero_analyze.audit.chips import (
    Coded,
    Places,
    is_cluster,
    of_one_name,
    places,
    ranks_in_nodes,
    renamed,
    where_seen,
    with_parts,
)
from ingero_analyze.audit.columns import SHOWN, number_of_gpu, words_of
from ingero_analyze.audit.inputs import AuditInput, told_apart
from ingero_analyze.audit.labels import usual
from ingero_analyze.audit.other_units import in_usual_unit
from ingero_analyze.audit.result_columns import KINDS, NUMBER, ResultColumns
from ingero_analyze.audit.runs import day_of, days_are_runs, joined, numbered, rounding_of, runs_of_rows
from ingero_detect.audit.audit_results import Population
from ingero_detect.audit.audit_tiers import FEWEST_UNITS
from ingero_detect.audit.job_values import are_of_jobs
from ingero_detect.audit.node_kinds import node_kinds
from ingero_detect.grouped import Bools, Floats, Ints, grouped_median

MOST_PARAMETERS: Final = 200
"""Different parameters of benchmarks; if there are more, they are taken for something else."""

MOST_DIGITS: Final = 3
"""Digits of numbers of GPUs in a node."""

MIXED_VALUES: Final = (
    "values of one chip in one run differ by {:.0f} %, far more than chips and runs do: they may be of several "
    "benchmarks that no column tells apart; see --column benchmark=COLUMN"
)

OTHER_UNIT: Final = "measurements that were converted, because they differ from most as two units do (1,000): {}"

ONLY_NUMBERS: Final = (
    "no column is known as the node, so the GPUs with one number are taken for one chip; if they are of several "
    "nodes, name the column with --node, or give --node-from-file"
)

SAME_NUMBERS: Final = (
    "no column names the node, and the {} files have the same numbers of GPUs, which are taken for the same chips; "
    "if the files are of different nodes, give --node-from-file"
)

JOINT: Final = (
    "nodes that are always in the same jobs have one name, joined by +: nothing tells which of them is slow, so swap "
    "them between jobs"
)


class PopulationBuilder:
    """Takes columns apart into populations. `failed`: by name, the rows of whom no row can be used, after `build`.

    `not_clusters`: columns that seem to name clusters and do not. `run_effects`: whether runs have effects.
    """

    def __init__(self, columns: ResultColumns, *, run_effects: bool) -> None:
        self.columns, self.run_effects = columns, run_effects
        self.failed: dict[str, int] = {}
        self.not_clusters: Mapping[str, int] = {}
        self._by_label: Mapping[str, Coded] = {}

    def build(self) -> list[AuditInput]:
        """What can be compared: rows of one cluster, model, benchmark (with its parameters) and unit each."""
        read = self.columns
        used = np.flatnonzero(np.isfinite(np.array(read.slowness)))
        texts = {name: read.texts[name].coded for name in (*KINDS, "gpu", "slot", "node", "group")}
        if len(texts["parameters"].names) > MOST_PARAMETERS:
            texts["parameters"] = _without(texts["parameters"])
        texts["gpu"] = with_parts(texts["gpu"], read.texts["part"].coded, texts["node"])
        if read.by_rank:
            texts["gpu"] = ranks_in_nodes(texts["gpu"], texts["node"], read.texts["run"].coded)
        of_nodes = any(words_of(name) == "partition" for name in read.clusters)
        if texts["cluster"].names and not is_cluster(texts["cluster"], texts["gpu"], texts["node"], of_nodes):
            texts["cluster"] = _without(texts["cluster"])
            self.not_clusters = read.clusters
        texts["day"] = _days((read.texts["time"] if read.texts["time"].names else read.texts["run"]).coded)
        of_files = Coded(np.array(read.file), list(map(str, range(read.files))))
        found = places(
            texts["gpu"], texts["slot"], texts["node"], texts["group"], texts["cluster"],
            texts["day"] if texts["day"].names else of_files, read.by_name, self._at_once(),
        )  # fmt: skip
        run, runs = self._runs(found.chip.codes)
        self._note_failed(found, used)
        kind, first = numbered(*(texts[name].codes[used] for name in KINDS))
        without = len(numbered(*(texts[name].codes[used] for name in KINDS if name != "unit"))[1])
        texts["shown"] = texts["unit"] if without < len(first) else _without(texts["unit"])
        self._by_label = self._columns_of_labels(texts)
        inputs, said = list[AuditInput](), (*self._one_chip_of_files(), *sorted(read.notes))
        for number, row in enumerate(used[first].tolist()):
            here = used[kind == number]
            whole = self._population(here, row, texts, found, run, runs)
            given = whole.population
            its = found
            if are_of_jobs(given.slowness, given.unit, given.run):
                its = of_one_name(found, here, run[here])
                whole = self._population(here, row, texts, its, run, runs, racks=False)
                given = whole.population
            joint = (JOINT,) if its.node.names != found.node.names or its.chip.names != found.chip.names else ()
            of_node = np.full_like(given.node, -1) if given.of_nodes else given.node
            kinds = node_kinds(given.slowness, given.unit, given.run, of_node, given.group)
            of_row = kinds.of_unit[np.unique(its.chip.codes[here], return_inverse=True)[1]]
            parts = [here[of_row == one] for one in range(len(kinds.slower))]
            parted = [whole]
            if len(parts) > 1:
                parted = told_apart(
                    [self._population(rows, row, texts, its, run, runs) for rows in parts], kinds.slower
                )
            inputs += [replace(part, notes=part.notes + joint + said) for part in parted]
        return inputs

    def _at_once(self) -> Ints | None:
        """By row when a node is in one group only: always if groups are racks, else in one run; `None`: not known."""
        run = self.columns.texts["run"].coded
        return np.zeros_like(run.codes) if self.columns.racks else run.codes if run.names else None

    def _columns_of_labels(self, texts: Mapping[str, Coded]) -> dict[str, Coded]:
        """What slow ones may have in common: columns without a role, groups, and the numbers of GPUs in nodes."""
        numbers = texts["slot"] if texts["slot"].names else texts["gpu"]
        numbers = numbers if all(len(name) <= MOST_DIGITS for name in numbers.names) else _without(numbers)
        its = {"group": texts["group"], "GPU": numbers}
        return {
            name: column for name, column in {**its, **self.columns.labels.columns}.items() if len(column.names) > 1
        }

    def _note_failed(self, found: Places, used: Ints) -> None:
        """Note who has rows, but none that can be used."""
        rows = np.bincount(found.chip.codes, minlength=len(found.chip.names))
        well = np.bincount(found.chip.codes[used], minlength=len(rows))
        of_gpu = self._of_gpus()
        self.failed = {
            f"{'gpu' if of_gpu[found.chip.codes == one].any() else 'node'} {found.chip.names[one]}": int(rows[one])
            for one in np.flatnonzero((rows > 0) & (well == 0)).tolist()
        }

    def _one_chip_of_files(self) -> tuple[str, ...]:
        """A note where numbers of GPUs are all that names chips, and several files have the same."""
        gpu, known = self.columns.texts["gpu"].coded, self.columns.texts["node"].names or self.columns.by_name
        if known or not all(map(NUMBER.fullmatch, map(number_of_gpu, gpu.names))):
            return ()
        if self.columns.files < 2:
            return (ONLY_NUMBERS,) if len(gpu.names) < FEWEST_UNITS and len(gpu.codes) > len(gpu.names) else ()
        pairs = len(numbered(gpu.codes, np.array(self.columns.file))[1])
        return (SAME_NUMBERS.format(self.columns.files),) if pairs > len(gpu.names) else ()

    def _of_gpus(self) -> Bools:
        """By row, whether it is of a GPU, and not of a whole node."""
        found: Bools = (self.columns.texts["gpu"].codes >= 0) | (self.columns.texts["slot"].codes >= 0)
        return found

    def _name(self, row: int, texts: Mapping[str, Coded]) -> str:
        """What tells the population of a row from others."""
        parts = []
        for name in ("cluster", "model", "benchmark", "parameters"):
            column = texts[name]
            several = len(column.names) > 1 or name in ("model", "benchmark")
            parts += [column.names[column.codes[row]]] if several and column.codes[row] >= 0 else []
        units = texts["shown"]
        if units.names:
            unit, _, direction = units.names[units.codes[row]].partition("\0")
            parts.append(SHOWN.get(unit, unit) or f"{direction} is better")
        return ", ".join(parts)

    def _runs(self, chip: Ints) -> tuple[Ints, Sequence[str]]:
        """By row, the run, and the names of runs; times are runs if several chips share them, or else their days."""
        runs, times = self.columns.texts["run"].coded, self.columns.texts["time"].coded
        if not self.run_effects:
            return np.full(len(runs.codes), -1), []
        if not runs.names and times.names:
            days = _days(times)
            if 3 * len(times.names) <= len(times.codes):
                runs = times
            elif days_are_runs(days.codes, chip):
                runs = days
        return runs.codes, runs.names

    def _population(
        self, here: Ints, row: int, texts: Mapping[str, Coded], found: Places, run: Ints, runs: Sequence[str],
        racks: bool = True,
    ) -> AuditInput:  # fmt: skip
        """The rows `here` of one population. `racks`: where rows are of whole nodes, compare groups of these too."""
        read = self.columns
        known, unit = np.unique(found.chip.codes[here], return_inverse=True)
        chip = unit
        lower = texts["unit"].names[texts["unit"].codes[row]].endswith("lower")
        slowness, odd = in_usual_unit(np.array(read.slowness)[here], of_times=lower)
        counted = read.counted and read.texts["run"].names and read.texts["time"].names
        day = texts["day"].codes[here] if counted else None
        number, rounds = runs_of_rows(
            run[here], found.chip.codes[here], np.array(read.file)[here], runs, day, texts["day"].names
        )
        seen = where_seen(chip, len(known), number, found, here)
        of_row = _with_new_names(found.node, renamed(seen))[here]
        rounding = rounding_of(np.exp(np.abs(slowness)))
        slowness, unit, number, apart = joined(slowness, unit, number, len(known))
        some, place = np.unique(_most_frequent(chip, of_row, len(known)), return_inverse=True)
        offset = int(some[0] < 0)
        names = [found.node.names[one] for one in some[offset:].tolist()]
        of_node = _most_frequent(place[chip] - offset, found.group.codes[here], len(names))
        kinds, rank = np.unique(of_node, return_inverse=True)
        lowest = int(len(kinds) > 0 and kinds[0] < 0)
        physical = {
            role: _medians(np.array(values)[here], chip, len(known)) for role, values in read.physical.items()
        }
        node, group = place - offset, rank - lowest
        groups = [found.group.names[one] for one in kinds[lowest:].tolist()]
        of_nodes = racks and not names
        if of_nodes:
            node, groups = _racks(chip, found.group, here, len(known))
            group = np.full(len(groups), -1)
        mixed = (MIXED_VALUES.format(100 * apart),) if apart else ()
        notes = (*mixed, OTHER_UNIT.format(odd)) if odd else mixed
        chips = [found.chip.names[one] for one in known.tolist()]
        days = _only(chip, texts["day"].codes[here], len(known))
        only_day = [texts["day"].names[day] if day >= 0 else "" for day in days.tolist()]
        by = "gpu" if self._of_gpus()[here].any() else "node"
        labels = {
            name: Coded(usual(chip, Coded(column.codes[here], column.names), len(known)), column.names)
            for name, column in self._by_label.items()
        }
        at = labels["GPU"].codes if "GPU" in labels and not of_nodes else None
        population = Population(self._name(row, texts), slowness, unit, number, node, group, rounding, of_nodes, at)
        return AuditInput(
            population, chips, names, groups, physical, by, seen, lower, only_day, labels, notes, rounds
        )  # fmt: skip


def _days(times: Coded) -> Coded:
    """The dates of times; what is no date stays as it is."""
    numbers: dict[str, int] = {}
    day = [numbers.setdefault(day_of(name), len(numbers)) for name in times.names]
    return Coded(np.where(times.codes < 0, -1, np.array([*day, -1])[times.codes]), list(numbers))


def _only(item: Ints, value: Ints, items: int) -> Ints:
    """By item, the value that all of its rows have; -1 if there is none."""
    first = numbered(item, value)[1]
    several = np.bincount(item[first], minlength=items) > 1
    found = np.full(items, -1)
    found[item[first]] = value[first]
    return np.where(several, -1, found)


def _without(column: Coded) -> Coded:
    """The column as if it were empty."""
    return Coded(np.full(len(column.codes), -1), [])


def _with_new_names(node: Coded, new: Mapping[str, str]) -> Ints:
    """The codes of nodes, with those of their new names for old ones."""
    numbers = {name: number for number, name in enumerate(node.names)}
    codes = np.array([numbers[new.get(name, name)] for name in node.names] + [-1])
    return codes[node.codes]


def _racks(node: Ints, group: Coded, rows: Ints, nodes: int) -> tuple[Ints, list[str]]:
    """By node its group (-1: none), and the names of groups. `node`: by row."""
    some, place = np.unique(_most_frequent(node, group.codes[rows], nodes), return_inverse=True)
    lowest = int(some[0] < 0)
    return place - lowest, [group.names[one] for one in some[lowest:].tolist()]


def _most_frequent(item: Ints, value: Ints, items: int) -> Ints:
    """By item, the value that most of its rows have; -1 if none."""
    found = np.full(items, -1)
    counts = Counter(pair for pair in zip(item.tolist(), value.tolist(), strict=True) if min(pair) >= 0)
    for (one, of_it), _ in reversed(counts.most_common()):
        found[one] = of_it
    return found


def _medians(values: Floats, item: Ints, items: int) -> Floats:
    finite = np.isfinite(values)
    return grouped_median(values[finite], item[finite], items)[1]
