"""Rows of several metrics in one file: those of one are judged, and none while it is open which."""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.table_batch import TableBatch
from ingero_analyze.table_errors import TableError
from ingero_analyze.tables import read_columns
from ingero_analyze.terminal import listed

MOST_NAMES: Final = 10
"""Most metrics that an error names."""

Ints = npt.NDArray[np.int64]


def metrics_of(file: str, column: str) -> list[str]:
    """The names in the column of metrics of a file. Raises `TableError` and `OSError` as reading does."""
    names: dict[str, int] = {}
    for batch in read_columns(file, lambda columns: [column], lambda problem: None, json=True):
        batch.codes(column, names)
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))


class MetricColumn:
    """The column of a file that says of which metric a row is. `wanted`: the metric that was chosen."""

    def __init__(self, file: str, column: str, wanted: str | None) -> None:
        self._file, self._column, self._wanted = file, column, wanted
        self._names: dict[str, int] = {}
        self._first = np.zeros(0, np.int64)
        self._found = False

    def select(self, batch: TableBatch) -> TableBatch:
        """The rows of the metric that is wanted; all, if none is."""
        import pyarrow as pa
        import pyarrow.compute as pc

        codes = batch.codes(self._column, self._names)
        if self._wanted is None:
            return batch
        names = [name.strip() == self._wanted for name in self._names]
        kept = np.flatnonzero(np.array(names, np.bool_)[codes]) if names else codes
        self._found |= bool(len(kept))
        columns = {name: pc.take(column, pa.array(kept)) for name, column in batch.columns.items()}
        places = kept if batch.places is None else batch.places[kept]
        return replace(batch, columns=columns, rows=len(kept), places=places)

    def check(self, batch: TableBatch, source: Ints, kept: Ints) -> None:
        """Raises `TableError` where a source has rows of several metrics; `source`: of the rows that are `kept`."""
        if self._wanted is not None or not len(kept):
            return
        metric = batch.codes(self._column, self._names)[kept]
        more = int(source.max()) + 1 - len(self._first)
        self._first = np.append(self._first, np.full(max(0, more), -1))
        seen, where = np.unique(source, return_index=True)
        self._first[seen] = np.where(self._first[seen] < 0, metric[where], self._first[seen])
        if (self._first[source] != metric).any():
            raise TableError(
                self._file,
                f"rows of a node are of several metrics ({self._known()}): choose one with --metric NAME, or none of "
                "them tells rows apart, with --column metric=",
                column=self._column,
            )

    def finish(self) -> None:
        """Raises `TableError` where no row of the file was of the metric that is wanted."""
        if self._wanted is not None and not self._found:
            text = f"no row is of the metric {self._wanted!r} (there are: {self._known()})"
            raise TableError(self._file, text, column=self._column)

    def _known(self) -> str:
        names = list(self._names)
        return listed(names[:MOST_NAMES], len(names))
