"""Columns that are known by what they hold in the first rows, and not by their names. Pure."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from ingero_analyze.audit.columns import SCALES, SHOWN, number_of_gpu, words_of
from ingero_analyze.audit.quantities import MISSING, quantity_of
from ingero_analyze.json_tables import Row

LOOKED_AT: Final = 64
"""Rows of a file by which a column is known that no name tells."""

SINCE_1970: Final = (1.2e9, 2.4e9)
"""Seconds since then of the years 2008 to 2045; moments may be in thousandths, millionths or billionths of them."""

RATIO: Final = 50.0
"""Percents from which a slowdown is a ratio, such as 112 for what takes 12 % longer."""

VERDICTS: Final = ("result", "score", "value")
"""Names of values that may also be those of a status."""


def _cells(first: Sequence[tuple[int, Row]], column: str) -> list[str]:
    """What a column holds in the first rows."""
    return [row[column] for _, row in first if row.get(column, "").lower() not in MISSING]


def know_gpu_by_content(first: Sequence[tuple[int, Row]], roles: dict[str, str], unused: list[str]) -> None:
    """Where no column has the name of the GPU of a node, one that holds `GPU 3` and the like is it."""
    if "node" not in roles or {"gpu", "slot"} & set(roles):
        return
    for name in unused:
        cells = _cells(first, name)
        if cells and all(number_of_gpu(cell) != cell for cell in cells):
            roles["gpu"] = name
            unused.remove(name)
            return


def know_value_by_content(first: Sequence[tuple[int, Row]], roles: dict[str, str], unused: list[str]) -> None:
    """Where no column has the name of a value, the only one whose cells have units of times or rates is it."""
    if "value" in roles:
        return
    found = [name for name in unused if (cells := _cells(first, name)) and all(map(_is_result, cells))]
    if len(found) == 1:
        roles["value"] = found[0]
        unused.remove(found[0])


def status_by_content(
    columns: Sequence[str], first: Sequence[tuple[int, Row]], named: Sequence[str]
) -> dict[str, str]:
    """A column that has the name of a value, but holds words such as PASS, is the status."""
    for name in columns:
        if name not in named and words_of(name) in VERDICTS:
            cells = _cells(first, name)
            if cells and not any(character.isdigit() for cell in cells for character in cell):
                return {"status": name}
    return {}


def moments(columns: Sequence[str], first: Sequence[tuple[int, Row]]) -> set[str]:
    """Columns that hold dates, times of the day or seconds since 1970, or no numbers at all."""
    return {name for name in columns if (cells := _cells(first, name)) and all(map(_is_moment, cells))}


def on_top_of_100(columns: Sequence[str], first: Sequence[tuple[int, Row]]) -> set[str]:
    """Columns of percents most of which are nearer to 0 than to 100: what comes on top of these."""
    found = set[str]()
    for name in columns:
        values = [value for cell in _cells(first, name) if math.isfinite(value := _value(cell))]
        found |= {name} if values and median(values) < RATIO else set()
    return found


def _value(cell: str) -> float:
    try:
        return (quantity_of(cell) or (math.nan, ""))[0]
    except ValueError:
        return math.nan


def _is_result(cell: str) -> bool:
    """Whether a cell is a number with a unit of a time or a rate, and not a time of the day."""
    try:
        unit = (quantity_of(cell) or (math.nan, ""))[1]
    except ValueError:
        return False
    return ":" not in cell and SCALES.get(unit, (0, ""))[1] in SHOWN


def _is_moment(cell: str) -> bool:
    """Whether a cell says when something was, or holds no number."""
    try:
        value, unit = quantity_of(cell) or (math.nan, "")
    except ValueError:
        return True
    of_day = unit == "s" and cell.count(":") == 2
    return of_day or any(SINCE_1970[0] <= value / 1000**power <= SINCE_1970[1] for power in range(4))
