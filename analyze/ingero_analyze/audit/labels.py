"""What slow ones have in common and others do not, by columns that say nothing else, such as the driver. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_analyze.audit.chips import Coded, Texts
from ingero_analyze.json_tables import Row
from ingero_detect.grouped import Ints

MOST_COLUMNS: Final = 12
MOST_VALUES: Final = 1000
"""Columns that are looked at, and different values of one."""

SHARED: Final = 0.8
"""Share of the rows of a chip, and of the chips of a node, that have one value if it is theirs."""

UNLIKELY: Final = 0.05
"""Chance by which so many have a value in common, of all columns and values, from which it is said."""


class Labels:
    """Values of columns without a role, by row."""

    def __init__(self) -> None:
        self._columns: dict[str, Texts] = {}
        self._rows = 0
        self._varied: set[str] = set()

    def use(self, columns: Sequence[str]) -> None:
        """Keep the values of these columns from now on, too, if they are not too many."""
        for name in columns:
            if name not in self._columns and name not in self._varied and len(self._columns) < MOST_COLUMNS:
                self._columns[name] = Texts(self._rows)

    def add(self, row: Row) -> None:
        """Append a row. A column with too many different values is forgotten."""
        self._rows += 1
        for name, texts in [*self._columns.items()]:
            texts.add(row.get(name, ""))
            if len(texts.numbers) > MOST_VALUES:
                del self._columns[name]
                self._varied.add(name)

    @property
    def columns(self) -> dict[str, Coded]:
        """By column the values of all rows."""
        return {name: texts.coded for name, texts in self._columns.items()}


def usual(item: Ints, column: Coded, items: int) -> Ints:
    """By item the value that most of its rows have, -1 if there is none. `item`: by row of the column."""
    known = (column.codes >= 0) & (item >= 0)
    width = len(column.names) + 1
    pairs, count = np.unique(item[known] * width + column.codes[known], return_counts=True)
    found, most = np.full(items, -1), np.zeros(items)
    of, value = np.divmod(pairs, width)
    order = np.argsort(count, kind="stable")
    found[of[order]], most[of[order]] = value[order], count[order]
    return np.where(most >= SHARED * np.maximum(np.bincount(item[known], minlength=items), 1), found, -1)


@dataclass(frozen=True)
class InCommon:
    """A value of a column that `named` of `all_named` slow ones have, and `others` of `all_others`."""

    column: str
    value: str
    named: int
    all_named: int
    others: int
    all_others: int

    def __str__(self) -> str:
        """As people read it."""
        return (
            f"{self.column} {self.value} ({self.named} of {self.all_named} of them, "
            f"{self.others} of {self.all_others} others)"
        )


def in_common(slow: Sequence[Ints], others: Sequence[Ints], labels: Mapping[str, Coded]) -> list[InCommon]:
    """What slow ones have in common, more than chance explains (hypergeometric, for all columns and values).

    `slow` and `others`: the chips of each; `labels`: by chip.
    """
    found = list[InCommon]()
    both = {name: (_of_most(slow, column), _of_most(others, column)) for name, column in labels.items()}
    both = {name: (mine, theirs) for name, (mine, theirs) in both.items() if mine.max(initial=-1) >= 0}
    for name, (mine, theirs) in both.items():
        values = np.unique(np.concatenate((mine, theirs)))
        values = values[values >= 0]
        best = (UNLIKELY, -1)
        for value in np.unique(mine[mine >= 0]).tolist():
            has, have = int((mine == value).sum()), int((theirs == value).sum())
            tests = len(values) * len(both)
            best = min(best, (tests * _tail(has, len(mine), has + have, len(mine) + len(theirs)), value))
        value = best[1]
        if value >= 0:
            counts = int((mine == value).sum()), len(mine), int((theirs == value).sum()), len(theirs)
            found.append(InCommon(name, labels[name].names[value], *counts))
    return found


def _of_most(members: Sequence[Ints], column: Coded) -> Ints:
    """By set of chips the value that nearly all of them have; -1 if there is none."""
    chips = np.concatenate([*members, np.zeros(0, np.int64)]).astype(np.int64)
    item = np.repeat(np.arange(len(members)), [len(one) for one in members])
    return usual(item, Coded(column.codes[chips], column.names), len(members))


def _tail(least: int, drawn: int, marked: int, whole: int) -> float:
    """The chance of at least so many marked ones among those drawn from the whole (hypergeometric)."""
    ways = math.comb(whole, drawn)
    more = range(least, min(drawn, marked) + 1)
    return sum(math.comb(marked, one) * math.comb(whole - marked, drawn - one) for one in more) / ways
