"""Objects that hold the values of nodes as lists, as scripts collect histories: a row for each value. Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final

from ingero_analyze.keyed_json import KEYED, OF_MEMBER

_NO_METRICS: Final = frozenset(
    ("data", "series", "values", "value", "results", "points", "samples", "metrics", *KEYED)
)
"""Names of objects that do not say what their values are."""

_COLUMNS: Final = {"times": "time", "timestamps": "timestamp", "steps": "step", **KEYED}
"""How the column is called whose values are a list of this name."""

_PER_RANK: Final = re.compile(r"[ _](?:per|by|of)[ _]ranks?$", re.IGNORECASE)
_SEVERAL: Final = re.compile(r"(?<=time|tion)s(?![a-z])", re.IGNORECASE)
_RANK: Final = re.compile(r"(?:rank[ _-]?)?\d{1,7}", re.IGNORECASE)

_SINCE_1970: Final = 1e8
"""Seconds from which a number is a moment."""

Series = dict[str, list[Any]]


def rows_of_series(whole: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of an object with lists by node or rank: of pairs of a time and a value, or of values, whose times are
    a list beside them, or the numbers of steps where there is none. `None` for any other object.

    The lists may be those of a matrix, by node or by time, beside a list of the names of nodes. A row has the name of
    its lists as the metric, if that says something.
    """
    cells = {name: _named(cell, whole) for name, cell in whole.items()}
    if _are_tables(whole) or (_are_series(whole) and all(map(_are_pairs, whole.values()))):
        cells = {"": whole}
    around = {name: cell for name, cell in cells.items() if not isinstance(cell, dict | list)}
    if len(whole) > 1 and all(map(_are_objects, whole.values())) and not all(map(_RANK.fullmatch, whole)):
        return [{"node": node, **each} for node, rows in whole.items() for each in rows]
    tables = [cell for cell in cells.values() if _are_tables(cell)]
    if len(tables) == 1:
        return [around | {"node": node} | row for node, table in tables[0].items() for row in rows_of_columns(table)]
    series = {name: cell for name, cell in cells.items() if _are_series(cell)}
    if not series:
        return None
    found: list[dict[str, Any]] = []
    for name, lists in series.items():
        metric = {} if name.lower() in _NO_METRICS | {""} else {"metric": _column(name)}
        key = KEYED.get(name.lower()) or ("rank" if all(map(str.isdecimal, lists)) else "node")
        found += [around | metric | {key: node, **row} for node, row in _points(lists, whole)]
    return found


def rows_of_columns(found: dict[str, Any]) -> list[dict[str, Any]]:
    """An object with several lists of equally many values as rows of these, each with the cells around them; one with
    a single list of numbers, and no cell that says whose they are, as rows of ranks; any other as the only row."""
    lists = {name: cell for name, cell in found.items() if _is_list(cell)}
    lengths = set(map(len, lists.values()))
    if len(lengths) != 1 or max(lengths) < 2:
        return [found]
    around = {name: cell for name, cell in found.items() if name not in lists}
    if len(lists) == 1:
        [(name, values)] = lists.items()
        if name.lower() in KEYED or not _are_values(values) or not OF_MEMBER.isdisjoint(map(str.lower, around)):
            return [found]
        return [around | {"rank": rank, _column(name): value} for rank, value in enumerate(values)]
    names = [_column(name) for name in lists]
    return [around | dict(zip(names, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def rows_of_lists(whole: list[list[Any]]) -> list[dict[str, Any]]:
    """The rows of a list of lists: below names of columns in the first one, or those of a time, a step and a value,
    as TensorBoard writes a series; empty for any other list."""
    names, *rows = whole
    if all(isinstance(name, str) for name in names) and len(set(names)) == len(names) > 1 and rows:
        return [dict(zip(names, row, strict=False)) for row in rows]
    if all(len(row) == 3 and _are_values(row) and (row[0] or 0) > _SINCE_1970 for row in whole):
        return [dict(zip(("wall time", "step", "value"), row, strict=True)) for row in whole]
    return []


def _column(name: str) -> str:
    """How the column is called whose values are a list of this name, such as `step_times_per_rank`."""
    return _COLUMNS.get(name.lower()) or _SEVERAL.sub("", _PER_RANK.sub("", name))


def _points(lists: Series, whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """By node its values with their times."""
    if all(map(_are_pairs, lists.values())):
        yield from ((node, {"time": pair[0], "value": pair[1]}) for node, pairs in lists.items() for pair in pairs)
        return
    length = len(next(iter(lists.values())))
    beside = {
        _column(name): cell for name, cell in whole.items()
        if _is_list(cell) and len(cell) == length and name.lower() not in KEYED
    }  # fmt: skip
    beside = beside or {"step": list(range(length))}
    for node, values in lists.items():
        for number, value in enumerate(values):
            yield node, {name: cell[number] for name, cell in beside.items()} | {"value": value}


def _named(cell: Any, whole: dict[str, Any]) -> Any:
    """A matrix by node or by time as lists by node, if one list beside it has their names; else the cell itself."""
    if not (
        isinstance(cell, list) and cell and all(isinstance(row, list) and len(row) == len(cell[0]) for row in cell)
    ):
        return cell
    names: list[Any] = next((found for name, found in whole.items() if name.lower() in KEYED and _is_list(found)), [])
    if len(names) == len(cell):
        return dict(zip(map(str, names), cell, strict=True))
    if len(names) == len(cell[0]):
        return dict(zip(map(str, names), map(list, zip(*cell, strict=True)), strict=True))
    return cell


def _are_tables(cell: Any) -> bool:
    """Whether it is an object of objects, each of several lists of equally many values."""
    return (
        isinstance(cell, dict)
        and len(cell) > 1
        and all(isinstance(table, dict) and len(rows_of_columns(table)) > 1 for table in cell.values())
    )


def _are_series(cell: Any) -> bool:
    """Whether it is an object of lists that are all of pairs, or all of equally many values."""
    if (
        not isinstance(cell, dict)
        or len(cell) < 2
        or not all(isinstance(each, list) and each for each in cell.values())
    ):
        return False
    if all(map(_are_pairs, cell.values())):
        return True
    return all(map(_are_values, cell.values())) and len(set(map(len, cell.values()))) == 1


def _are_objects(cells: Any) -> bool:
    return isinstance(cells, list) and bool(cells) and all(isinstance(cell, dict) for cell in cells)


def _are_values(cells: list[Any]) -> bool:
    return all(cell is None or isinstance(cell, int | float) for cell in cells)


def _are_pairs(cells: Any) -> bool:
    return isinstance(cells, list) and all(
        isinstance(cell, list) and len(cell) == 2 and not isinstance(cell[0], list | dict) and _are_values(cell[1:])
        for cell in cells
    )


def _is_list(cell: Any) -> bool:
    """Whether it is a list of texts or numbers."""
    return isinstance(cell, list) and not any(isinstance(each, list | dict) for each in cell)
