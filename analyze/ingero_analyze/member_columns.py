"""Tables with a column for each GPU, node or rank and value, turned into a row for each of them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ingero_analyze.table_batch import TableBatch

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ColumnsOfMembers:
    """A table with columns for each GPU, node or rank, such as `gpu3_tokens_per_s`, beside others. `role`: the name
    of the column in the long table that says which. `cells`: the GPU, node or rank and the name of what the column
    holds, by column."""

    role: str
    names: Sequence[str]
    cells: Mapping[str, tuple[str, str]]

    @property
    def long_names(self) -> list[str]:
        """The columns of the table with a row for each GPU, node or rank."""
        rest = [name for name in self.names if name not in self.cells]
        return list(dict.fromkeys([*rest, self.role, *(held for _, held in self.cells.values())]))

    def needed(self, wanted: Sequence[str]) -> list[str]:
        """The columns from which those of the long table come that are wanted."""
        return [name for name in self.names if self.cells.get(name, ("", name))[1] in wanted]

    def long(self, batch: TableBatch) -> TableBatch:
        """A row for each GPU, node or rank and row of a batch, in the order of its rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        members = list(dict.fromkeys(number for number, _ in self.cells.values()))
        rows, order = spread(batch.rows, len(members))
        columns: dict[str, Any] = {self.role: pa.array(members * batch.rows, pa.string())}
        held: dict[str, list[Any]] = {}
        for name, column in batch.columns.items():
            if name in self.cells:
                held.setdefault(self.cells[name][1], []).append(
                    (members.index(self.cells[name][0]), as_array(column))
                )
            else:
                columns[name] = pc.take(column, pa.array(rows))
        for name, its in held.items():
            values = pa.concat_arrays([column for _, column in sorted(its, key=lambda one: one[0])])
            columns[name] = pc.take(values, pa.array(order))
        places = rows if batch.places is None else batch.places[rows]
        return replace(batch, columns=columns, rows=len(rows), places=places)


def is_whole(cells: Mapping[str, tuple[str, str]]) -> bool:
    """Whether each GPU, node or rank has a column for each value."""
    members, held = ({one[place] for one in cells.values()} for place in (0, 1))
    return len(set(cells.values())) == len(members) * len(held) == len(cells)


def spread(rows: int, width: int) -> tuple[Ints, Ints]:
    """Of a row for each of so many columns and rows: the row that it comes from, and the place of its value where the
    columns are behind each other."""
    return np.repeat(np.arange(rows), width), np.arange(rows * width).reshape(width, rows).T.ravel()


def as_array(column: Any) -> Any:
    """A column of Arrow in one piece."""
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
