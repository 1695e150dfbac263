"""Reads the value of a row of results: how slow it is, in which unit, and which direction is better. Pure."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from ingero_analyze.audit.columns import (
    SCALES,
    is_excess,
    is_lost_share,
    split_unit,
    unit_in_name,
    unit_of_result,
    words_of,
)
from ingero_analyze.audit.directions import lower_is_better
from ingero_analyze.audit.quantities import quantity_of

SMALLEST: Final = 1e-200
LARGEST: Final = 1e200
"""Values that are used, in any unit."""


@dataclass(frozen=True)
class RowValue:
    """`slowness`: natural logarithm of the value in `unit`, its negative where larger values are better.

    `lower`: smaller values are better.
    """

    slowness: float
    unit: str
    lower: bool


@dataclass(frozen=True)
class Directions:
    """What is known about the direction of values beforehand; None: nothing.

    `given`: smaller ones are better, whatever names say. `otherwise`: the same where names say nothing.
    `on_top`: columns of percents by which something takes longer, whose values are on top of 100.
    """

    given: bool | None = None
    otherwise: bool | None = None
    on_top: Container[str] = ()


class UndirectedError(Exception):
    """Nothing says whether a larger value is better."""


def row_value(cells: Mapping[str, str], column: str, directions: Directions) -> RowValue | None:
    """The value of a row, by the cells of its roles; None if it has none. `column`: the name of that of the value.

    `ValueError` with the reason if it cannot be used, `UndirectedError` if nothing says which direction is better.
    """
    quantity = quantity_of(cells["value"])
    if quantity is None:
        return None
    value, in_cell = quantity
    benchmark, lower = cells.get("benchmark", ""), directions.given
    unit = in_cell or words_of(cells.get("unit", "")) or unit_in_name(column) or unit_of_result(benchmark)
    if is_lost_share(column, unit):
        value, lower = 100 - value, False
    elif is_excess(column, unit):
        value, lower = value + 100 * (column in directions.on_top), True
    if value <= 0:
        raise ValueError(f"the value {value:g} is not positive")
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"the value {value:g} is too {'small' if value < 1 else 'large'}")
    if lower is None:
        lower = lower_is_better(cells.get("direction", ""), unit, " ".join(split_unit(column)), benchmark)
    if lower is None:
        lower = directions.otherwise
    if lower is None:
        raise UndirectedError
    factor, unit = SCALES.get(unit, (1.0, unit))
    return RowValue(math.log(value * factor) * (1 if lower else -1), unit, lower)
