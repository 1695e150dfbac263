"""Tables with a column for every GPU of a node, or for every run, as one row for each of them. Pure."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from ingero_analyze.audit.columns import ROLES, UNITS, is_value, words_of
from ingero_analyze.json_tables import Row

_OF_GPU: Final = re.compile(r"(?P<before>.*\b)?(?:gpu|gcd|device|card|chip) ?(?P<number>\d{1,2})(?P<after>\b.*)?")
_BARE: Final = re.compile(r"(?P<before>)(?P<number>\d{1,2})(?P<after>)")
"""Of GPUs if they are counted from 0 and another column names the node, as in a pivot table."""

_RANKED: Final = re.compile(r"(?P<before>[^:]+):(?P<number>\d{1,3})(?P<after>)")
"""Likewise, in text as it is: results of SuperBench, such as gemm/fp16_tflops:0."""

_OF_RUN: Final = re.compile(
    r"(?P<before>.*\b)?(?:run|trial|iteration|iter|rep|repeat|repetition|attempt|round) ?(?P<number>\d{1,4})"
    r"(?P<after>\b.*)?"
)
_NUMBERED: Final = re.compile(r"(?P<before>.+) (?P<number>\d{1,4})(?P<after>)")
_DATED: Final = re.compile(r"(?P<before>)(?P<number>\d{4} \d\d \d\d)(?P<after>)")


def cells_of_gpus(columns: Sequence[str]) -> dict[str, tuple[str, str]]:
    """By column that is of one GPU, such as `gpu3_tflops`, the number of this and the name of what it holds; empty if
    these columns are not of the same things, or another column tells which GPU."""
    return {} if set(map(words_of, columns)) & set(ROLES["gpu"]) else _cells(columns, _OF_GPU)


def unpivoted(
    columns: Sequence[str], rows: Iterator[tuple[int, Row]], chosen: Collection[str]
) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """The table with one row a GPU or run, if columns are of single ones, and no other column tells which.

    `chosen`: columns that the user named; a table with these is as it should be.
    """
    names = {words_of(column) for column in columns}
    of_gpus = (_OF_GPU, _BARE, _RANKED) if names & set(ROLES["node"]) else (_OF_GPU,)
    for role, patterns in (("gpu", of_gpus), ("run", (_OF_RUN, _DATED, _NUMBERED))):
        for pattern in patterns:
            cells = {} if names & set(ROLES[role]) else _cells(columns, pattern)
            if cells and not set(chosen) & set(cells):
                rest = [column for column in columns if column not in cells]
                values = list(dict.fromkeys(name for _, name in cells.values()))
                return [*rest, role, *values], _rows(rows, rest, role, cells)
    return list(columns), rows


def _cells(columns: Sequence[str], pattern: re.Pattern[str]) -> dict[str, tuple[str, str]]:
    """By column of such a name its number and the name of what it holds; empty if these are not of one table."""
    found: dict[str, tuple[str, str]] = {}
    for column in columns:
        match = pattern.fullmatch(column if pattern is _RANKED else words_of(column))
        if match:
            name = f"{match['before'] or ''} {match['after'] or ''}".strip()
            name = f"value ({name})" if name in UNITS else name or "value"
            if pattern is not _NUMBERED or is_value(name):
                found[column] = (match["number"].replace(" ", "-"), name)
    if pattern is _RANKED:
        found = _of_all_numbers(found)
    numbers = {number for number, _ in found.values()}
    if pattern in (_BARE, _RANKED) and numbers != set(map(str, range(len(numbers)))):
        return {}
    whole = len(found) == len(numbers) * len({name for _, name in found.values()}) == len(set(found.values()))
    return found if whole and len(numbers) > 1 else {}


def _of_all_numbers(found: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """The columns of what as many numbers have as of anything: a node may have fewer adapters than GPUs."""
    counts = Counter(name for _, name in found.values())
    most = max(counts.values(), default=0)
    return {column: (number, name) for column, (number, name) in found.items() if counts[name] == most}


def _rows(
    rows: Iterator[tuple[int, Row]], rest: Sequence[str], role: str, cells: dict[str, tuple[str, str]]
) -> Iterator[tuple[int, Row]]:
    by_number: dict[str, list[tuple[str, str]]] = {}
    for column, (number, name) in cells.items():
        by_number.setdefault(number, []).append((column, name))
    for line, row in rows:
        if not row:
            yield line, row
            continue
        common = {column: row.get(column, "") for column in rest}
        for number, its in by_number.items():
            yield line, common | {role: number} | {name: row.get(column, "") for column, name in its}
