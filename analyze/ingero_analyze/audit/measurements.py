"""Reads files of results into columns, and counts and describes the rows that cannot be used."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from ingero_analyze.audit.benchmark_logs import rows_of_log
from ingero_analyze.audit.columns import (
    SCALES,
    SUMMARIES,
    is_value,
    number_of_gpu,
    parameters_of,
    recognised,
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
from ingero_analyze.audit.directions import says_failed
from ingero_analyze.audit.file_nodes import FilePlace
from ingero_analyze.audit.inputs import AuditInput
from ingero_analyze.audit.joint_rows import of_single_members
from ingero_analyze.audit.merged_cells import with_node_above
from ingero_analyze.audit.populations import PopulationBuilder
from ingero_analyze.audit.quantities import MISSING, quantity_of
from ingero_analyze.audit.result_columns import KINDS, NUMBER, PHYSICAL, ResultColumns
from ingero_analyze.audit.row_values import LARGEST, SMALLEST, Directions, UndirectedError, row_value
from ingero_analyze.audit.value_lists import of_single_values
from ingero_analyze.audit.wide import unpivoted
from ingero_analyze.diagnose.sources import Problems
from ingero_analyze.json_tables import Row
from ingero_analyze.table_errors import TableError
from ingero_analyze.tables import Rows, read_rows

NODE_OF_FILE: Final = "node of the file"
GPU_OF_FILE: Final = "GPU of the file"
"""Names of the columns that are added for them."""

MAX_ROWS: Final = 5_000_000


UNDIRECTED: Final = (
    "nothing says whether a larger {!r}{} is better; use --higher-is-better or --lower-is-better, or a column "
    "'direction' with 'higher' or 'lower' where benchmarks differ"
)
_NODE_WITH_GPU: Final = re.compile(r"([^:/]*[a-z][^:/]*?)(?::|[:/_ -]gpu[_ -]?)(\d{1,2})", re.IGNORECASE)
_GPU_OF_NODE: Final = re.compile(r"([^:/]*[a-z][^:/]*?)(?:[:/]|[:/_ -]gpu[_ -]?)(\d{1,2})", re.IGNORECASE)
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
        self.columns = ResultColumns()
        self._directions, self._spelt = Directions(), dict[tuple[str, str], str]()
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
        others = [name for name in unused if name not in parameters]
        self.unused.update(others)
        self.columns.note_file(roles, others)
        lower = self.options.lower
        self._directions = Directions(None if self.options.values else lower, lower, on_top_of_100(values, first))
        used, before = 0, self.problems.count
        every: Iterator[tuple[int, Row]] = chain(first, rows)
        if {"node", "gpu"} <= roles.keys() and roles["node"] != NODE_OF_FILE:
            every = with_node_above(every, roles["node"], roles["gpu"])
        for line, row in every:
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
        read = read_rows(file, advance, partial(_rows_of_text, file=file, place=place), is_value)
        read, note = of_single_values(*read, self._named)
        self.columns.notes |= {note} - {""}
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
        readings = {role: self._reading(place, role, cells.get(role, "")) for role in PHYSICAL}
        self.columns.append(cells, row, value.slowness, readings)
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

    def _fail(self, place: str, text: str, cells: Mapping[str, str]) -> bool:
        """Keep whose row cannot be used."""
        whose = {role: cells.get(role, "") for role in ("gpu", "part", "slot", "node", "cluster")}
        self.columns.append(whose, {}, math.nan)
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
        """What can be compared; `TableError` with the first reason if nothing in any file could be used."""
        if not np.isfinite(np.array(self.columns.slowness)).any():
            raise TableError(self.problems.shown[0], "nothing can be used")
        builder = PopulationBuilder(self.columns, run_effects=self.options.run_effects)
        found = builder.build()
        self.failed = builder.failed
        self.unused.update(builder.not_clusters)
        return found

    def summary(self) -> dict[str, Any]:
        """What was read, and what could not be used."""
        return {
            "rows": self.rows, "repeated_rows": self.repeated, "unknown_columns": sorted(self.unused),
            "problems": self.problems.answer(), "failed": self.failed,
        }  # fmt: skip


def _rows_of_text(text: str, file: str, place: FilePlace) -> Rows | None:
    """The rows of a log of a benchmark, or of a column alone in a file of one GPU; None for any other text."""
    if (found := rows_of_log(text, place.node, place.gpu, file)) is not None or not place.gpu:
        return found
    header, *lines = [line.strip() for line in text.splitlines()]
    if not is_value(header) or not all(NUMBER.fullmatch(line) for line in lines if line):
        return None
    return [header], ((number, {header: line}) for number, line in enumerate(lines, 2) if line)


def _values(columns: Sequence[str]) -> bool:
    """Whether names of columns are numbers, as in a table without a header."""
    return any(NUMBER.fullmatch(name.strip()) for name in columns)


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
