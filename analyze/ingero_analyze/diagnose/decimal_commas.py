"""Numbers of tables whose decimal sign is a comma, or whose thousands are separated by commas. Pure."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ingero_analyze.table_batch import TableBatch, is_text

_THOUSANDS: Final = r"[-+]?[1-9]\d{0,2}(?:,\d{3})+"
_SURELY_THOUSANDS: Final = re.compile(rf"{_THOUSANDS}\.\d+|[-+]?[1-9]\d{{0,2}}(?:,\d{{3}}){{2,}}")
_THOUSANDS_OR_DECIMAL: Final = re.compile(_THOUSANDS)

_DECIMAL: Final = r"^\s*[-+]?(\d*|\d{1,3}(\.\d{3})+),\d+([eE][-+]?\d+)?\s*$"
_SEPARATED: Final = r"^\s*[-+]?\d{1,3}(,\d{3})+(\.\d*)?\s*$"
"""Numbers with a decimal comma, and with commas between thousands, in the syntax of RE2."""


def with_points(batch: TableBatch, names: Sequence[str]) -> TableBatch:
    """The batch with numbers in these columns as programs read them, if commas are in them.

    Columns of one table are written alike. A comma is a decimal one if it cannot separate thousands in some number,
    or if every number of a column has one; otherwise, and where it surely does, it separates thousands.
    """
    columns = {name: batch.texts(name) for name in names if is_text(batch.columns[name])}
    columns = {name: column for name, column in columns.items() if _any(column, ",")}
    if not columns:
        return batch
    cells = [[cell for cell in map(str.strip, column.to_pylist()) if cell] for column in columns.values()]
    with_commas = [cell for column in cells for cell in column if "," in cell]
    decimal = not any(map(_SURELY_THOUSANDS.fullmatch, with_commas)) and (
        not all(map(_THOUSANDS_OR_DECIMAL.fullmatch, with_commas))
        or any(all("," in cell for cell in column) for column in cells)
    )
    changed = {name: _replaced(column, decimal) for name, column in columns.items()}
    return replace(batch, columns={**batch.columns, **changed})


def _any(column: Any, part: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring(column, part)).as_py())


def _replaced(column: Any, decimal: bool) -> Any:
    """The column with numbers as programs read them; a cell that is none keeps its commas."""
    import pyarrow.compute as pc

    pattern, mark, other = (_DECIMAL, ",", ".") if decimal else (_SEPARATED, ".", ",")
    plain = pc.replace_substring(pc.replace_substring(column, other, ""), mark, ".")
    return pc.if_else(pc.match_substring_regex(column, pattern), plain, column)
