"""Tables that say the node once, in the first of its rows, as spreadsheets with merged cells do. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

from ingero_analyze.audit.columns import number_of_gpu
from ingero_analyze.json_tables import Row

MOST_DIGITS: Final = 2
"""Digits of the number of a GPU in its node; a longer one may be the name of a chip."""


def with_node_above(rows: Iterable[tuple[int, Row]], node: str, gpu: str) -> Iterator[tuple[int, Row]]:
    """The rows with the node of the row above where theirs is empty, while the numbers of the GPUs go up.

    Any other row without a node stays so. `node`, `gpu`: columns.
    """
    above, last = "", -1
    for line, row in rows:
        number = number_of_gpu(row.get(gpu, ""))
        place = int(number) if number.isdecimal() and len(number) <= MOST_DIGITS else -1
        if row.get(node):
            above = row[node]
        else:
            above = above if place > last >= 0 else ""
            row = row | {node: above} if above else row
        last = place
        yield line, row
