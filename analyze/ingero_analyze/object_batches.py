"""Batches of rows that are objects, such as those of JSON or of the lines of a log, as they arrive in a stream."""

import io
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ingero_analyze import json_tables
from ingero_analyze.json_tables import Row
from ingero_analyze.table_batch import BATCH_ROWS, Choose, Skip, TableBatch, chosen
from ingero_analyze.table_errors import TableError

RowsOf = Callable[[bytes, json_tables.LineStream, json_tables.Fail], Iterator[tuple[int, Row]]]
"""Reads rows of a stream, of which something was read before, with their line numbers."""


class CountedStream:
    """A binary stream that counts the bytes read; `ahead` was read from it before."""

    def __init__(self, stream: Any, ahead: bytes = b"") -> None:
        self._stream, self._ahead = stream, io.BytesIO(ahead)
        self.consumed = 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        data = self._ahead.read(size)
        data += bytes(self._stream.read(size if size < 0 else size - len(data)))
        self.consumed += len(data)
        return data

    def readline(self, size: int = -1) -> bytes:
        data = self._ahead.readline()
        if not data.endswith(b"\n"):
            data += bytes(self._stream.readline(size))
        self.consumed += len(data)
        return data


def object_batches(
    file: str, first: bytes, stream: Any, choose: Choose, skip: Skip | None, consumed: Callable[[], int] | None,
    rows_of: RowsOf,
) -> Iterator[TableBatch]:  # fmt: skip
    """Batches of objects. Cells whose name the first batch does not have are left out."""

    failures: list[str] = []

    def fail(text: str, row: int) -> None:
        error = TableError(file, text, row)
        if skip is None:
            raise error
        failures[:] = failures or [text]
        skip(error)

    counted = CountedStream(stream)
    found = rows_of(first, counted, fail)
    wanted: Sequence[str] | None = None
    while part := list(islice(found, BATCH_ROWS)):
        rows = [row for _, row in part]
        wanted = chosen(file, json_tables.names_of(rows), choose) if wanted is None else wanted
        places = np.array([number for number, _ in part], np.int64) - part[0][0]
        columns = json_tables.columns_of(rows, wanted)
        yield TableBatch(
            file, part[0][0], columns, len(rows), consumed() if consumed else len(first) + counted.consumed, places
        )
    if wanted is None:
        raise TableError(file, failures[0] if failures else "there is no JSON object with cells of a row")
