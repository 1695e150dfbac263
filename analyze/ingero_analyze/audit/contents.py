"""Columns that are known by what they hold in the first rows, and not by their names. Pure."""

from collections.abc import Sequence
from typing import Final

from ingero_analyze.audit.columns import number_of_gpu, words_of
from ingero_analyze.audit.quantities import MISSING
from ingero_analyze.json_tables import Row

LOOKED_AT: Final = 64
"""Rows of a file by which a column is known that no name tells."""

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
