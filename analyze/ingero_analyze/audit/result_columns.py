"""All results by column, as they are read, and what the headers of their files say of them."""

import math
import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from ingero_analyze.audit.chips import Texts
from ingero_analyze.audit.columns import CHIP_NAMES, IDENTIFIED, RACKS, RANKS, words_of
from ingero_analyze.audit.labels import Labels
from ingero_analyze.json_tables import Row

KINDS: Final = ("cluster", "model", "benchmark", "parameters", "unit")
"""What rows that are compared with each other share."""

PHYSICAL: Final = ("clock", "power", "temperature")

NUMBER: Final = re.compile(r"[-+]?\d+(?:[.,]\d+)?")

_NO_READINGS: Final = MappingProxyType(dict[str, float]())


def _texts() -> dict[str, Texts]:
    return {name: Texts() for name in ("gpu", "part", "slot", "node", "group", "run", "time", *KINDS)}


@dataclass
class ResultColumns:
    """A value for each row that is of a chip or node, from all files.

    `slowness`: logarithms, NaN of rows that cannot be used. `file`: the number of a row's file. `physical`: NaN where
    nothing is given. `clusters`: by column of clusters, the files that have it. `notes`: what to say of all of it.
    Whether, in any file, chips have names that no two share (`by_name`), or are ranks of jobs (`by_rank`), runs only
    have numbers (`counted`), and groups are racks (`racks`).
    """

    texts: Mapping[str, Texts] = field(default_factory=_texts)
    labels: Labels = field(default_factory=Labels)
    slowness: "array[float]" = field(default_factory=lambda: array("d"))
    file: "array[int]" = field(default_factory=lambda: array("q"))
    physical: "Mapping[str, array[float]]" = field(default_factory=lambda: {name: array("d") for name in PHYSICAL})
    files: int = 0
    clusters: Counter[str] = field(default_factory=Counter)
    notes: set[str] = field(default_factory=set)
    by_name: bool = False
    by_rank: bool = False
    counted: bool = False
    racks: bool = False

    def note_file(self, roles: Mapping[str, str], unused: Sequence[str]) -> None:
        """Begin a file, and note what its columns mean for all rows."""
        self.files += 1
        self.labels.use(unused)
        self.by_name |= words_of(roles.get("gpu", "")) in CHIP_NAMES
        self.by_rank |= words_of(roles.get("gpu", "")) in RANKS
        self.counted |= words_of(roles.get("run", "job")) not in IDENTIFIED
        self.clusters.update([roles["cluster"]] if "cluster" in roles else [])
        self.racks |= words_of(roles.get("group", "")) in RACKS

    def append(
        self, cells: Mapping[str, str], row: Row, slowness: float, readings: Mapping[str, float] = _NO_READINGS
    ) -> None:
        """Add a row of the current file."""
        self.labels.add(row)
        self.file.append(self.files - 1)
        self.slowness.append(slowness)
        for role, texts in self.texts.items():
            texts.add(cells.get(role, ""))
        for role, numbers in self.physical.items():
            numbers.append(readings.get(role, math.nan))
