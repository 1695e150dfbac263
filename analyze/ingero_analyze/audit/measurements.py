"""Turns rows of results into populations that can be compared, with the physical values of every chip."""

import hashlib
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from ingero_analyze.audit.benchmark_logs import rows_of_log
from ingero_analyze.audit.chips import (
    Coded,
    Places,
    Texts,
    is_cluster,
    of_one_name,
    places,
    ranks_in_nodes,
    renamed,
    where_seen,
    with_parts,
)
from ingero_analyze.audit.columns import (
    CHIP_NAMES,
    IDENTIFIED,
    RACKS,
    RANKS,
    SCALES,
    SHOWN,
    SUMMARIES,
    is_value,
    number_of_gpu,
    parameters_of,
    recognised,
    says_failed,
    words_of,
)
from ingero_analyze.audit.contents import (
    LOOKED_AT,
    know_gpu_by_content,
    know_value_by_content,
    moments,
    on_top_of_100,
    status_by_content,
)
from ingero_analyze.audit.file_nodes import FilePlace
from ingero_analyze.audit.inputs import AuditInput, told_apart
from ingero_analyze.audit.joint_rows import of_single_members
from ingero_analyze.audit.labels import Labels, usual
from ingero_analyze.audit.quantities import MISSING, quantity_of
from ingero_analyze.audit.row_values import LARGEST, SMALLEST, Directions, UndirectedError, row_value
from ingero_analyze.audit.runs import day_of, days_are_runs, joined, numbered, rounding_of, runs_of_rows
from ingero_analyze.audit.value_lists import of_single_values
from ingero_analyze.audit.wide import unpivoted
from ingero_analyze.diagnose.sources import Problems
from ingero_analyze.json_tables import Row
from ingero_analyze.table_errors import TableError
from ingero_analyze.tables import Rows, read_rows
from ingero_detect.audit.audit import Population
from ingero_detect.audit.audit_tiers import FEWEST_UNITS
from ingero_detect.audit.job_values import are_of_jobs
from ingero_detect.audit.node_kinds import node_kinds
from ingero_detect.grouped import Bools, Floats, Ints, grouped_median

KINDS: Final = ("cluster", "model", "benchmark", "parameters", "unit")
"""What rows that are compared with each other share."""

PHYSICAL: Final = ("clock", "power", "temperature")
NODE_OF_FILE: Final = "node of the file"
GPU_OF_FILE: Final = "GPU of the file"
"""Names of the columns that are added for them."""

MAX_ROWS: Final = 5_000_000
MOST_PARAMETERS: Final = 200
"""Different parameters of benchmarks; if there are more, they are taken for something else."""

MOST_DIGITS: Final = 3
"""Digits of numbers of GPUs in a node."""

MIXED_VALUES: Final = (
    "values of one chip in one run differ by {:.0f} %, far more than chips and runs do: they may be of several "
    "benchmarks that no column tells apart; see --column benchmark=COLUMN"
)
ONLY_NUMBERS: Final = (
    "no column is known as the node, so the GPUs with one number are taken for one chip; if they are of several "
    "nodes, name the column with --node, or give --node-from-file"
)
SAME_NUMBERS: Final = (
    "no column names the node, and the {} files have the same numbers of GPUs, which are taken for the same chips; "
    "if the files are of different nodes, give --node-from-file"
)
UNDIRECTED: Final = (
    "nothing says whether a larger {!r}{} is better; use --higher-is-better or --lower-is-better, or a column "
    "'direction' with 'higher' or 'lower' where benchmarks differ"
)
JOINT: Final = (
    "nodes that are always in the same jobs have one name, joined by +: nothing tells which of them is slow, so swap "
    "them between jobs"
)
_NODE_WITH_GPU: Final = re.compile(r"([^:/]*[a-z][^:/]*?)(?::|[:/_ -]gpu[_ -]?)(\d{1,2})", re.IGNORECASE)
_GPU_OF_NODE: Final = re.compile(r"([^:/]*[a-z][^:/]*?)(?:[:/]|[:/_ -]gpu[_ -]?)(\d{1,2})", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[-+]?\d+(?:[.,]\d+)?")
_FRACTION: Final = re.compile(r"[-+]?\d+\.\d+")
_WHOLE: Final = re.compile(r"(\d+)\.0+")


@dataclass(frozen=True)
class ReadingOptions:
    """What the user says about the columns. `lower`: smaller values are better; None: as the names say.

    `values`: several columns of values, each of a benchmark of its own; `lower` then counts where names do not say.
    `places`: what files are of, where logs do not tell it, nor tables of one GPU each.
    `files_are_nodes`: of all tables without a node.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    lower: bool | None = None
    run_effects: bool = True
    values: Sequence[str] = ()
    places: Mapping[str, FilePlace] = field(default_factory=dict)
    files_are_nodes: bool = False


class Measurements:
    """All rows that can be used, from all files."""

    def __init__(self, options: ReadingOptions) -> None:
        self.options = options
        self.problems = Problems()
        self.unused: Counter[str] = Counter()
        self.rows = self.repeated = 0
        self.latest: float | None = None
        self.failed: dict[str, int] = {}
        self._texts = {name: Texts() for name in ("gpu", "part", "slot", "node", "group", "run", "time", *KINDS)}
        self._labels, self._by_label = Labels(), dict[str, Coded]()
        self._clusters: Counter[str] = Counter()
        self._racks = self._by_rank = self._counted = False
        self._directions, self._notes = Directions(), set[str]()
        self._by_name, self._spelt = False, dict[tuple[str, str], str]()
        self._slowness = array("d")
        self._file = array("q")
        self._files = 0
        self._physical = {name: array("d") for name in PHYSICAL}
        self._seen: set[bytes] = set()
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Of all rows used."""
        return self._hash.hexdigest()[:16]

    def read(self, file: str, advance: Callable[[int], None]) -> None:
        """Add the rows of one file; what cannot be used is noted. `TableError` if it is no table of results."""
        place = self.options.places.get(file, FilePlace(file))
        columns, rows = self._table(file, place, advance)
        first = list(islice(rows, LOOKED_AT))
        roles, unused = self._roles(file, columns, first, place)
        parameters = parameters_of(unused)
        values = [name for name in self.options.values if name in columns] or [roles["value"]]
        self._note_columns(roles, [name for name in unused if name not in parameters])
        lower = self.options.lower
        self._directions = Directions(None if self.options.values else lower, lower, on_top_of_100(values, first))
        used, before = 0, self.problems.count
        for line, row in chain(first, rows):
            if row and roles.get("node") == NODE_OF_FILE:
                row |= {NODE_OF_FILE: place.node, GPU_OF_FILE: place.gpu}
            self.rows += 1
            if self.rows > MAX_ROWS:
                raise TableError(file, f"line {line}: more than {MAX_ROWS} rows")
            for value in values:
                used += self._add(file, line, row, roles | {"value": value}, parameters)
        if not used and self.problems.count == before:
            self.problems.add(file, "there are no rows")

    @property
    def _named(self) -> list[str]:
        """The columns that the user has named."""
        return [*self.options.columns.values(), *self.options.values]

    def _table(self, file: str, place: FilePlace, advance: Callable[[int], None]) -> Rows:
        """A file as a table with a row for each result."""
        read = read_rows(file, advance, partial(_rows_of_text, place=place), is_value)
        read, note = of_single_values(*read, self._named)
        self._notes |= {note} - {""}
        columns, rows = of_single_members(*unpivoted(*read, self._named), self._named)
        if not self._named and any(map(_FRACTION.fullmatch, columns)):
            raise TableError(file, f"the first line seems to hold values ({', '.join(columns)[:200]}): name the "
                                   "columns there")  # fmt: skip
        return columns, rows

    def _roles(
        self, file: str, columns: Sequence[str], first: Sequence[tuple[int, Row]], place: FilePlace
    ) -> tuple[dict[str, str], list[str]]:
        """The column of each role, and those without one."""
        values = [name for name in self.options.values if name in columns]
        chosen = dict(self.options.columns)
        if self.options.values:
            chosen["value"] = (*values, *self.options.values)[0]
        for name in chosen.values():
            if name not in columns:
                raise TableError(file, f"there is no column {name!r} (there are: {', '.join(columns)[:200]})")
        chosen = status_by_content(columns, first, self._named) | chosen
        try:
            known = [name for name in columns if name not in values[1:]]
            roles, unused = recognised(known, chosen, moments(columns, first))
        except ValueError as error:
            raise TableError(file, str(error)) from None
        if (self.options.files_are_nodes or (place.gpu and "gpu" not in roles)) and "node" not in roles:
            roles["node"] = NODE_OF_FILE
            roles |= {"gpu": GPU_OF_FILE} if place.gpu and "gpu" not in roles else {}
        know_gpu_by_content(first, roles, unused)
        know_value_by_content(first, roles, unused)
        there = ", ".join(columns)[:200]
        if "gpu" not in roles and "node" not in roles:
            header = "; the first line seems to hold values: name the columns there" if _values(columns) else ""
            raise TableError(file, f"no column names a GPU or a node (there are: {there}); see --gpu{header}")
        if "value" not in roles:
            raise TableError(file, f"no column is known as the value (there are: {there}); see --value")
        return roles, unused

    def _note_columns(self, roles: Mapping[str, str], unused: Sequence[str]) -> None:
        """Note what the columns of a further file mean for all rows."""
        self._files += 1
        self.unused.update(unused)
        self._labels.use(unused)
        self._by_name |= words_of(roles.get("gpu", "")) in CHIP_NAMES
        self._by_rank |= words_of(roles.get("gpu", "")) in RANKS
        self._counted |= words_of(roles.get("run", "job")) not in IDENTIFIED
        self._clusters.update([roles["cluster"]] if "cluster" in roles else [])
        self._racks |= words_of(roles.get("group", "")) in RACKS

    def _add(self, file: str, line: int, row: Row, roles: Mapping[str, str], parameters: Sequence[str]) -> bool:
        place = f"{file}:{line}"
        cells = {role: self._tidy(role, row.get(column, "")) for role, column in roles.items()}
        nobody = _nobody(row, cells)
        if nobody:
            return self._refuse(place, nobody)
        cells |= _place(cells)
        if "node" in cells:
            cells |= {role: number_of_gpu(cells[role]) for role in ("gpu", "slot") if role in cells}
        if self.options.values:
            cells["benchmark"] = " ".join(filter(None, (cells.get("benchmark", ""), roles["value"])))
        if says_failed(cells.get("status", "")):
            return self._fail(place, f"the status is {cells['status'][:40]!r}", cells)
        try:
            value = row_value(cells, roles["value"], self._directions)
        except UndirectedError:
            raise TableError(place, self._undirected(cells, roles["value"])) from None
        except ValueError as error:
            return self._fail(place, str(error), cells)
        if value is None and any(row.get(name, "").lower() not in MISSING for name in self.options.values):
            return False
        if value is None:
            return self._fail(place, "no value", cells)
        cells |= _parameters(row, parameters)
        if not self._is_new(cells, may_repeat="run" in roles or "time" in roles):
            self.repeated += 1
            return True
        cells["unit"] = f"{value.unit}\0{'lower' if value.lower else 'higher'}"
        self._append(cells, row, value.slowness)
        for role, numbers in self._physical.items():
            numbers.append(self._reading(place, role, cells.get(role, "")))
        self._note_time(cells.get("time", ""))
        return True

    def _is_new(self, cells: Mapping[str, str], may_repeat: bool) -> bool:
        """Note a row, and say whether it is the first one of its kind; all are if nothing tells runs apart."""
        identity = "\0".join(f"{role}={cells[role]}" for role in sorted(cells)).encode()
        key = hashlib.blake2b(identity, digest_size=12).digest()
        if may_repeat and key in self._seen:
            return False
        self._seen.add(key)
        self._hash.update(key)
        return True

    def _undirected(self, cells: Mapping[str, str], column: str) -> str:
        benchmark = cells.get("benchmark", "")
        of = f" of {benchmark!r}" if benchmark and not self.options.values else ""
        return UNDIRECTED.format(column, of)

    def _tidy(self, role: str, text: str) -> str:
        """A cell without decimal places of numbers, and with the first spelling of what rows are told apart by."""
        if role in KINDS and text:
            words = " ".join(text.split())
            return self._spelt.setdefault((role, words.casefold()), words)
        return _whole(text) if role in ("gpu", "part", "slot", "node", "group", "run") else text

    def _append(self, cells: Mapping[str, str], row: Row, slowness: float) -> None:
        self._labels.add(row)
        self._file.append(self._files - 1)
        self._slowness.append(slowness)
        for role, texts in self._texts.items():
            texts.add(cells.get(role, ""))

    def _fail(self, place: str, text: str, cells: Mapping[str, str]) -> bool:
        """Keep whose row cannot be used."""
        self._append({role: cells.get(role, "") for role in ("gpu", "part", "slot", "node", "cluster")}, {}, math.nan)
        for numbers in self._physical.values():
            numbers.append(math.nan)
        return self._refuse(place, text)

    def _refuse(self, place: str, text: str) -> bool:
        self.problems.add(place, text)
        return False

    def _reading(self, place: str, role: str, text: str) -> float:
        try:
            value, unit = quantity_of(text) or (math.nan, "")
        except ValueError as error:
            self.problems.add(place, f"{role}: {error}")
            return math.nan
        value *= SCALES.get(unit, (1.0, unit))[0]
        return value if SMALLEST <= value <= LARGEST else math.nan

    def _note_time(self, text: str) -> None:
        if not text:
            return
        try:
            moment = datetime.fromisoformat(text)
            found = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            try:
                found = float(text)
            except ValueError:
                return
        if 1e8 < found < 1e11:
            self.latest = max(found, self.latest or 0.0)

    def populations(self) -> list[AuditInput]:
        """What can be compared: rows of one cluster, model, benchmark (with its parameters) and unit each.

        `TableError` with the first reason if nothing in any file could be used.
        """
        used = np.flatnonzero(np.isfinite(np.array(self._slowness)))
        if not len(used):
            raise TableError(self.problems.shown[0], "nothing can be used")
        texts = {name: self._texts[name].coded for name in (*KINDS, "gpu", "slot", "node", "group")}
        if len(texts["parameters"].names) > MOST_PARAMETERS:
            texts["parameters"] = _without(texts["parameters"])
        texts["gpu"] = with_parts(texts["gpu"], self._texts["part"].coded, texts["node"])
        if self._by_rank:
            texts["gpu"] = ranks_in_nodes(texts["gpu"], texts["node"], self._texts["run"].coded)
        of_nodes = any(words_of(name) == "partition" for name in self._clusters)
        if texts["cluster"].names and not is_cluster(texts["cluster"], texts["gpu"], texts["node"], of_nodes):
            texts["cluster"] = _without(texts["cluster"])
            self.unused.update(self._clusters)
        texts["day"] = _days(self._texts["time"].coded if self._texts["time"].names else self._texts["run"].coded)
        of_files = Coded(np.array(self._file), list(map(str, range(self._files))))
        found = places(
            texts["gpu"], texts["slot"], texts["node"], texts["group"], texts["cluster"],
            texts["day"] if texts["day"].names else of_files, self._by_name, self._at_once(),
        )  # fmt: skip
        run, runs = self._runs(found.chip.codes)
        self._note_failed(found, used)
        kind, first = numbered(*(texts[name].codes[used] for name in KINDS))
        without = len(numbered(*(texts[name].codes[used] for name in KINDS if name != "unit"))[1])
        texts["shown"] = texts["unit"] if without < len(first) else _without(texts["unit"])
        self._by_label = self._columns_of_labels(texts)
        inputs, said = list[AuditInput](), (*self._one_chip_of_files(), *sorted(self._notes))
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
            kinds = node_kinds(given.slowness, given.unit, given.run, of_node)
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
        run = self._texts["run"].coded
        return np.zeros_like(run.codes) if self._racks else run.codes if run.names else None

    def _columns_of_labels(self, texts: Mapping[str, Coded]) -> dict[str, Coded]:
        """What slow ones may have in common: columns without a role, groups, and the numbers of GPUs in nodes."""
        numbers = texts["slot"] if texts["slot"].names else texts["gpu"]
        numbers = numbers if all(len(name) <= MOST_DIGITS for name in numbers.names) else _without(numbers)
        its = {"group": texts["group"], "GPU": numbers}
        return {name: column for name, column in {**its, **self._labels.columns}.items() if len(column.names) > 1}

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
        gpu, known = self._texts["gpu"].coded, self._texts["node"].names or self._by_name
        if known or not all(map(_NUMBER.fullmatch, map(number_of_gpu, gpu.names))):
            return ()
        if self._files < 2:
            return (ONLY_NUMBERS,) if len(gpu.names) < FEWEST_UNITS and len(gpu.codes) > len(gpu.names) else ()
        pairs = len(numbered(gpu.codes, np.array(self._file))[1])
        return (SAME_NUMBERS.format(self._files),) if pairs > len(gpu.names) else ()

    def _of_gpus(self) -> Bools:
        """By row, whether it is of a GPU, and not of a whole node."""
        found: Bools = (self._texts["gpu"].codes >= 0) | (self._texts["slot"].codes >= 0)
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
        runs, times = self._texts["run"].coded, self._texts["time"].coded
        if not self.options.run_effects:
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
        known, unit = np.unique(found.chip.codes[here], return_inverse=True)
        chip = unit
        slowness = np.array(self._slowness)[here]
        counted = self._counted and self._texts["run"].names and self._texts["time"].names
        day = texts["day"].codes[here] if counted else None
        number, rounds = runs_of_rows(
            run[here], found.chip.codes[here], np.array(self._file)[here], runs, day, texts["day"].names
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
            role: _medians(np.array(values)[here], chip, len(known)) for role, values in self._physical.items()
        }
        node, group = place - offset, rank - lowest
        groups = [found.group.names[one] for one in kinds[lowest:].tolist()]
        of_nodes = racks and not names
        if of_nodes:
            node, groups = _racks(chip, found.group, here, len(known))
            group = np.full(len(groups), -1)
        notes = (MIXED_VALUES.format(100 * apart),) if apart else ()
        lower = texts["unit"].names[texts["unit"].codes[row]].endswith("lower")
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

    def summary(self) -> dict[str, Any]:
        """What was read, and what could not be used."""
        return {
            "rows": self.rows, "repeated_rows": self.repeated, "unknown_columns": sorted(self.unused),
            "problems": self.problems.answer(), "failed": self.failed,
        }  # fmt: skip


def _rows_of_text(text: str, place: FilePlace) -> Rows | None:
    """The rows of a log of a benchmark, or of a column alone in a file of one GPU; None for any other text."""
    if (found := rows_of_log(text, place.node, place.gpu)) is not None or not place.gpu:
        return found
    header, *lines = [line.strip() for line in text.splitlines()]
    if not is_value(header) or not all(_NUMBER.fullmatch(line) for line in lines if line):
        return None
    return [header], ((number, {header: line}) for number, line in enumerate(lines, 2) if line)


def _values(columns: Sequence[str]) -> bool:
    """Whether names of columns are numbers, as in a table without a header."""
    return any(_NUMBER.fullmatch(name.strip()) for name in columns)


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


def _whole(text: str) -> str:
    """A whole number without its decimal places: pandas writes them where some cells are empty."""
    found = _WHOLE.fullmatch(text)
    return found.group(1) if found else text


def _parameters(row: Row, names: Sequence[str]) -> dict[str, str]:
    given = [f"{name} {_whole(row[name])}" for name in names if row.get(name, "").lower() not in MISSING]
    return {"parameters": ", ".join(given)} if given else {}


def _place(cells: Mapping[str, str]) -> dict[str, str]:
    """Node and GPU where one column has both, such as node-7:3 or node-7/gpu3."""
    if "node" not in cells:
        found = _GPU_OF_NODE.fullmatch(cells["gpu"])
    else:
        found = _NODE_WITH_GPU.fullmatch(cells["node"]) if "gpu" not in cells else None
    return {"node": found.group(1), "gpu": found.group(2)} if found else {}


def _nobody(row: Row, cells: Mapping[str, str]) -> str:
    """Why a row is of no chip and no node; "" if it is of one."""
    if not row:
        return "more values than columns, or no object"
    if all(cells.get(role, "").lower() in MISSING for role in ("gpu", "node")):
        return "neither a GPU nor a node"
    if any(words_of(cells.get(role, "")) in SUMMARIES for role in ("gpu", "node")):
        return "a summary of other rows"
    return ""


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
